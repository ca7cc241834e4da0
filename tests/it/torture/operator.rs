//! The operator: what a publisher that stopped asks for is done, by the command that it names.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use super::keeper::{Keeper, SEES_WITHIN, tail};
use crate::harness::Dice;

/// One attempt of a command takes no longer, in seconds.
const COMMAND_ENDS_WITHIN: u64 = 600;

/// So often a command may fail, and an attempt of it may take so many seconds, before the faults
/// pause for it.
const PATIENCE: (usize, u64) = (2, 15);

/// An act on the server succeeds within this, whatever happens to the server.
const DONE_WITHIN: Duration = Duration::from_secs(120);

impl Keeper<'_> {
    /// Does it, through all trouble of the server, until `is_done` has a row.
    pub(super) fn surely(&self, act: &str, is_done: &str) {
        let began = Instant::now();
        loop {
            match self.sql.try_rows(is_done) {
                Ok(rows) if !rows.is_empty() => return,
                _ => {}
            }
            if began.elapsed() > DONE_WITHIN {
                let text = format!("not done within {DONE_WITHIN:?}: {act}");
                return self.history.found("harness", None, text);
            }
            if self.sql.try_rows(act).is_err() {
                // Perhaps in the middle of a transaction.
                let _ = self.sql.try_rows("ROLLBACK");
                sleep(Duration::from_millis(100));
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// The only cell of the only row, through all trouble.
    pub(super) fn ask(&self, query: &str) -> Option<String> {
        let began = Instant::now();
        loop {
            match self.sql.try_rows(query) {
                Ok(rows) => return rows.into_iter().next()?.into_iter().next()?,
                Err(error) if began.elapsed() > DONE_WITHIN => {
                    let text = format!("{query}: {error}");
                    self.history.found("harness", None, text);
                    return None;
                }
                Err(_) => sleep(Duration::from_millis(100)),
            }
        }
    }

    /// Each publisher stops with exit code 4 and says these words, whether it ran or is started
    /// now. `false`: one didn't.
    pub(super) fn all_refuse(&mut self, words: &[&str]) -> bool {
        (0..self.publishers.len()).all(|n| self.refuses(n, words))
    }

    fn refuses(&mut self, n: usize, words: &[&str]) -> bool {
        let began = Instant::now();
        let (mut last, mut code) = (String::new(), None);
        // One that ran may have stopped for what was wrong before.
        while began.elapsed() < SEES_WITHIN {
            if self.publishers[n].run.is_none() {
                self.start(n);
            }
            let Some(run) = &mut self.publishers[n].run else {
                return false;
            };
            let left = SEES_WITHIN.saturating_sub(began.elapsed());
            let Some(status) = run.ended_within(left.as_secs() + 1) else {
                last = format!("it runs and said:\n{}", tail(run));
                continue;
            };
            (last, code) = (tail(run), status.code());
            let log = run.log();
            self.publishers[n].run = None;
            self.note(n, &format!("ended with {code:?}"));
            let is_said = words.iter().all(|word| last.contains(word));
            match code {
                Some(4) if is_said => return true,
                Some(4) => {}
                _ if self.is_excused(code, &log) => {}
                _ => break,
            }
        }
        let text = format!(
            "{} has to stop with exit code 4 and say {words:?}; code {code:?}, {last}",
            self.publishers[n].name
        );
        self.history.found("not refused", None, text);
        false
    }

    /// `walpost recover`, killed now and then, until it is done.
    pub(super) fn recover(&mut self, dice: &mut Dice) {
        self.history.distrust_slot(true);
        if *dice.pick(&[true, false, false]) {
            self.command(&["recover", "--dry-run"], 0, dice);
        }
        let kills = *dice.pick(&[0, 0, 1, 2]);
        self.command(&["recover"], kills, dice);
        self.history.distrust_slot(false);
    }

    /// A command to its end, again after each kill and after what passes.
    pub(super) fn command(&mut self, arguments: &[&str], mut kills: usize, dice: &mut Dice) {
        let line = arguments.join(" ");
        let began = Instant::now();
        let mut failures = 0;
        loop {
            let publisher = dice.pick(&self.publishers);
            let (mut run, wires) = (publisher.walpost.spawn(arguments), publisher.wires);
            self.history.note("operator", &line);
            if kills > 0 {
                kills -= 1;
                sleep(Duration::from_millis(dice.between(50, 3_000)));
                run.kill();
                self.history.note("operator", &format!("{line} was killed"));
                continue;
            }
            let ended = run.ended_within(PATIENCE.1).or_else(|| {
                self.history.truce(true);
                // A command waits for its connection as long as that seems to live.
                let began = Instant::now();
                loop {
                    wires.postgres.reset_swallowed();
                    let ended = run.ended_within(PATIENCE.1);
                    if ended.is_some() || began.elapsed().as_secs() > COMMAND_ENDS_WITHIN {
                        break ended;
                    }
                }
            });
            let code = ended.and_then(|status| status.code());
            let said = format!("{}{}", run.out(), tail(&run));
            let last = run.out().lines().last().unwrap_or_default().to_owned();
            self.history
                .note("operator", &format!("{line} ended with {code:?}: {last}"));
            failures += 1;
            match code {
                Some(0) => break,
                // The server went away, or a grace ended: what it says is to run it again.
                Some(1 | 6) if began.elapsed().as_secs() < 2 * COMMAND_ENDS_WITHIN => {}
                _ => {
                    let text = format!("`walpost {line}` ended with {code:?}: {said}");
                    self.history.found("walpost's exit code", None, text);
                    break;
                }
            }
            if failures >= PATIENCE.0 {
                self.history.truce(true);
            }
            sleep(Duration::from_millis(300));
        }
        self.history.truce(false);
    }
}

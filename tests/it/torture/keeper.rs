//! Runs the publishers: starts them, looks how they are, stops them.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{history::History, kinds::Kinds, publication::Gap, world::Wires};
use crate::harness::{Dice, Run, Scene, Walpost, sql::Sql};

/// More than `delivery.shutdown_grace`: the machine is busy.
const STOPS_WITHIN: u64 = 15;

/// One of the publishers.
pub(super) struct Publisher<'a> {
    pub name: String,
    pub walpost: &'a Walpost,
    pub wires: &'a Wires,
    pub run: Option<Run>,
}

pub struct Keeper<'a> {
    pub(super) publishers: Vec<Publisher<'a>>,
    pub(super) scene: &'a Scene,
    /// The operator's session.
    pub(super) sql: Sql,
    pub(super) history: &'a History,
    kinds: Kinds,
    /// Rows that the publication left out.
    pub gaps: Vec<Gap>,
    /// Until then a publisher may have seen that the table was missing.
    pub(super) table_was_missing: Option<Instant>,
    /// The most memory that any of their processes ever had resident, in bytes.
    pub peak: u64,
    pub starts: usize,
}

impl<'a> Keeper<'a> {
    pub fn new(
        scene: &'a Scene,
        walposts: &'a [Walpost],
        wires: &'a [Wires],
        kinds: Kinds,
        history: &'a History,
    ) -> Keeper<'a> {
        let publisher = |(n, (walpost, wires))| Publisher {
            name: format!("walpost {}", n + 1),
            walpost,
            wires,
            run: None,
        };
        Keeper {
            publishers: walposts
                .iter()
                .zip(wires)
                .enumerate()
                .map(publisher)
                .collect(),
            scene,
            sql: Sql::new(scene.server.superuser(&scene.tag)),
            history,
            kinds,
            gaps: Vec::new(),
            table_was_missing: None,
            peak: 0,
            starts: 0,
        }
    }

    pub(super) fn note(&self, n: usize, what: &str) {
        self.history.note(&self.publishers[n].name, what);
    }

    pub(super) fn fault(&self, n: usize, what: &str, how: &str) {
        self.history.fault(&self.publishers[n].name, what, how);
    }

    /// Starts those that don't run.
    pub fn start_all(&mut self) {
        for n in 0..self.publishers.len() {
            if self.publishers[n].run.is_none() {
                self.start(n);
            }
        }
    }

    pub(super) fn start(&mut self, n: usize) {
        let publisher = &mut self.publishers[n];
        publisher.run = Some(publisher.walpost.start());
        self.starts += 1;
        self.note(n, "started");
    }

    /// Looks after them until the run is over.
    pub fn keep(&mut self, mut dice: Dice) {
        self.start_all();
        loop {
            for _ in 0..dice.between(4, 50) {
                if !self.history.pass(200) {
                    return;
                }
                self.look();
            }
            match dice.between(0, 20) {
                0..2 if self.kinds.slot_loss => self.lose_slot(&mut dice),
                2..4 if self.kinds.publication => self.change_publication(&mut dice),
                4..6 if self.kinds.schema => self.change_table(&mut dice),
                _ => {
                    let n = dice.between(0, self.publishers.len() as u64) as usize;
                    self.harm(n, &mut dice);
                }
            }
        }
    }

    /// They run, or how one ended is a finding.
    pub fn look(&mut self) {
        for n in 0..self.publishers.len() {
            let Some(run) = &mut self.publishers[n].run else {
                continue;
            };
            self.peak = self.peak.max(run.try_peak_memory().unwrap_or_default());
            let Some(status) = run.ended_within(0) else {
                continue;
            };
            let (log, tail) = (run.log(), tail(run));
            self.publishers[n].run = None;
            if self.is_excused(status.code(), &log) {
                self.note(n, &format!("ended with {:?}", status.code()));
                self.start(n);
                continue;
            }
            let text = format!("it ended by itself ({status}) and said:\n{tail}");
            let name = &self.publishers[n].name;
            self.history.found(&format!("{name} ended"), None, text);
        }
    }

    /// Ends that may come any time, and after which it has to be started again.
    pub(super) fn is_excused(&self, code: Option<i32>, log: &str) -> bool {
        let saw_no_table = self
            .table_was_missing
            .is_some_and(|until| Instant::now() < until);
        match code {
            Some(2) => saw_no_table && log.contains("does not exist"),
            _ => false,
        }
    }

    pub(super) fn signal(&mut self, n: usize, signal: Signal) {
        self.look();
        if let Some(run) = &mut self.publishers[n].run {
            run.signal(signal);
        }
    }

    pub(super) fn kill(&mut self, n: usize) {
        self.look();
        if let Some(mut run) = self.publishers[n].run.take() {
            run.kill();
        }
    }

    /// SIGTERM: it ends in time, with everything confirmed or with a word about what isn't.
    pub(super) fn stop(&mut self, n: usize) -> Option<i32> {
        self.signal(n, Signal::TERM);
        let mut run = self.publishers[n].run.take()?;
        let code = match run.ended_within(STOPS_WITHIN) {
            None => {
                let text = format!(
                    "SIGTERM did not end it within {STOPS_WITHIN} s:\n{}",
                    tail(&run)
                );
                self.history.found("walpost did not stop", None, text);
                return None;
            }
            Some(status) => status.code(),
        };
        self.note(n, &format!("ended with {code:?}"));
        if !matches!(code, Some(0 | 6)) && !self.is_excused(code, &run.log()) {
            let text = format!("SIGTERM ended it with {code:?}:\n{}", tail(&run));
            self.history.found("walpost's exit code", None, text);
        }
        code
    }

    /// One publishes and the others know it. What was swallowed before is noticed by then.
    pub fn wait_roles(&mut self) {
        let began = Instant::now();
        loop {
            self.look();
            let publishers = self
                .publishers
                .iter()
                .map(|one| one.walpost.get("/api/status"));
            let roles: Vec<String> = publishers
                .map(|status| {
                    let status = status.and_then(|(_, body)| serde_json::from_str(&body).ok());
                    let role =
                        |status: serde_json::Value| status["role"].as_str().map(str::to_owned);
                    status.and_then(role).unwrap_or_default()
                })
                .collect();
            let count = |role: &str| roles.iter().filter(|r| *r == role).count();
            if count("publisher") == 1 && count("standby") + 1 == roles.len() {
                return;
            }
            if began.elapsed() > SEES_WITHIN {
                let text = format!("they are {roles:?}; {}", self.tell());
                return self.history.found("roles", None, text);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// SIGTERM when nothing is open: each confirms all and ends with 0.
    pub fn stop_drained(&mut self) {
        for n in 0..self.publishers.len() {
            if let Some(code) = self.stop(n).filter(|code| *code != 0) {
                let text = format!("SIGTERM with nothing open ended it with {code}");
                self.history.found("walpost's exit code", None, text);
            }
        }
    }

    /// What they said last, for people.
    pub fn tell(&self) -> String {
        let tell = |publisher: &Publisher| match &publisher.run {
            Some(run) => format!("{} runs and said:\n{}", publisher.name, tail(run)),
            None => format!("{} does not run", publisher.name),
        };
        let told: Vec<String> = self.publishers.iter().map(tell).collect();
        told.join("\n")
    }

    /// The first one ends by itself with this code; what it said.
    pub fn wait_end(&mut self, code: i32, seconds: u64) -> Option<String> {
        let mut run = self.publishers[0].run.take()?;
        let status = run.ended_within(seconds);
        if status.and_then(|status| status.code()) != Some(code) {
            let text = format!(
                "{status:?} instead of exit code {code} within {seconds} s:\n{}",
                tail(&run)
            );
            self.history.found("walpost's exit code", None, text);
            return None;
        }
        Some(run.log())
    }
}

/// Time for a publisher that is hindered to see what happened.
pub(super) const SEES_WITHIN: Duration = Duration::from_secs(90);

/// The last words that are for people.
pub(super) fn tail(run: &Run) -> String {
    let log = run.log();
    let lines: Vec<&str> = log.lines().filter(|line| !line.contains("DEBUG")).collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

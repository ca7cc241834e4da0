//! Runs the publisher and does it harm: kills it, freezes it, stops it and starts it again.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::history::History;
use crate::harness::{Dice, Run, Walpost, proxy::Proxy};

/// More than `delivery.shutdown_grace`: the machine is busy.
const STOPS_WITHIN: u64 = 15;

/// What a dead process has sent is on its way no longer than this.
const RESIDUE: Duration = Duration::from_secs(2);

pub struct Keeper<'a> {
    walpost: &'a Walpost,
    kafka_wire: &'a Proxy,
    history: &'a History,
    run: Option<Run>,
    /// The most memory that any of its processes ever had resident, in bytes.
    pub peak: u64,
    pub starts: usize,
}

const ME: &str = "walpost";

impl<'a> Keeper<'a> {
    pub fn new(walpost: &'a Walpost, kafka_wire: &'a Proxy, history: &'a History) -> Keeper<'a> {
        Keeper {
            walpost,
            kafka_wire,
            history,
            run: None,
            peak: 0,
            starts: 0,
        }
    }

    /// What a dead process left in the network could land behind what the next one sends: late
    /// repeats that no publisher can hold back. So it has to land, or go, before.
    pub fn start(&mut self) {
        let began = Instant::now();
        while !self.kafka_wire.is_drained() && began.elapsed() < RESIDUE {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kafka_wire.reset();
        self.run = Some(self.walpost.start());
        self.starts += 1;
        self.history.note(ME, "started");
    }

    /// Looks after it until the run is over.
    pub fn keep(&mut self, mut dice: Dice) {
        self.start();
        loop {
            for _ in 0..dice.between(4, 50) {
                if !self.history.pass(200) {
                    return;
                }
                self.look();
            }
            self.harm(&mut dice);
        }
    }

    /// It runs, or how it ended is a finding.
    pub fn look(&mut self) {
        let Some(run) = &mut self.run else { return };
        self.peak = self.peak.max(run.try_peak_memory().unwrap_or_default());
        if let Some(status) = run.ended_within(0) {
            let text = format!("it ended by itself ({status}) and said:\n{}", tail(run));
            self.history.found("walpost ended", None, text);
            self.run = None;
        }
    }

    fn harm(&mut self, dice: &mut Dice) {
        match dice.between(0, 10) {
            0..3 => {
                let down = *dice.pick(&[0, 0, 300, 3_000]);
                self.history
                    .fault(ME, "killed", &format!(", down for {down} ms"));
                self.kill();
                self.history.pass(down);
                self.start();
            }
            3 => {
                self.history.fault(ME, "killed", " twice");
                self.kill();
                self.start();
                self.history.pass(dice.between(50, 1_500));
                self.kill();
                self.start();
            }
            4..6 => {
                self.history.fault(ME, "stopped", "");
                self.stop();
                self.start();
            }
            6 => {
                self.history.fault(ME, "stopped", " and killed meanwhile");
                self.signal(Signal::TERM);
                self.history.pass(dice.between(0, 300));
                // It may have ended already, as it was told to.
                drop(self.run.take());
                self.start();
            }
            7..9 => self.freeze(dice.between(50, 2_500)),
            // Longer than either server waits.
            _ => self.freeze(dice.between(5_500, 9_000)),
        }
    }

    fn freeze(&mut self, milliseconds: u64) {
        self.history
            .fault(ME, "frozen", &format!(" for {milliseconds} ms"));
        self.signal(Signal::STOP);
        self.history.pass(milliseconds);
        self.signal(Signal::CONT);
        self.history.note(ME, "thawed");
    }

    fn signal(&mut self, signal: Signal) {
        self.look();
        if let Some(run) = &mut self.run {
            run.signal(signal);
        }
    }

    fn kill(&mut self) {
        self.look();
        if let Some(mut run) = self.run.take() {
            run.kill();
        }
    }

    /// SIGTERM: it ends in time, with everything confirmed or with a word about what isn't.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        let mut run = self.run.take()?;
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
        self.history.note(ME, &format!("ended with {code:?}"));
        if !matches!(code, Some(0 | 6)) {
            let text = format!("SIGTERM ended it with {code:?}:\n{}", tail(&run));
            self.history.found("walpost's exit code", None, text);
        }
        code
    }

    /// SIGTERM when nothing is open: it confirms all and ends with 0.
    pub fn stop_drained(&mut self) {
        if let Some(code) = self.stop().filter(|code| *code != 0) {
            let text = format!("SIGTERM with nothing open ended it with {code}");
            self.history.found("walpost's exit code", None, text);
        }
    }

    /// What it said last, for people.
    pub fn tell(&self) -> String {
        match &self.run {
            Some(run) => format!("it runs and said:\n{}", tail(run)),
            None => "it does not run".to_owned(),
        }
    }

    /// It ends by itself with this code; what it said.
    pub fn wait_end(&mut self, code: i32, seconds: u64) -> Option<String> {
        let mut run = self.run.take()?;
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

/// The last words that are for people.
fn tail(run: &Run) -> String {
    let log = run.log();
    let lines: Vec<&str> = log.lines().filter(|line| !line.contains("DEBUG")).collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

//! Processes of the binary: in the background, or to their end.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;

use super::{process::Process, until};

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Output {
    pub line: String,
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Output {
    /// This exit code, and each of the words in what was printed, in any case; `a|b` is either.
    #[track_caller]
    pub fn expect(self, code: i32, words: &[&str]) -> Output {
        let text = format!("{}{}", self.out, self.err);
        assert_eq!(
            self.code,
            Some(code),
            "exit code of `walpost {}`, which said:\n{text}",
            self.line
        );
        for word in words {
            assert!(
                says(&text, word),
                "`walpost {}` doesn't say {word:?}:\n{text}",
                self.line
            );
        }
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| {
            panic!(
                "`walpost {}` printed no JSON: {error}: {:?}",
                self.line, self.out
            )
        })
    }
}

fn says(text: &str, words: &str) -> bool {
    let text = text.to_lowercase();
    words
        .split('|')
        .any(|word| text.contains(&word.to_lowercase()))
}

/// One process of the binary; killed when dropped.
pub struct Run {
    pub(super) process: Process,
    pub(super) out: PathBuf,
    pub(super) log: PathBuf,
}

fn read(file: &Path) -> String {
    String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()
}

impl Run {
    pub fn out(&self) -> String {
        read(&self.out)
    }

    /// Standard error, where the log goes.
    pub fn log(&self) -> String {
        read(&self.log)
    }

    pub fn says(&self, words: &str) -> bool {
        says(&self.log(), words)
    }

    #[track_caller]
    pub fn wait_says(&mut self, words: &str, seconds: u64) {
        until(format_args!("the log says {words:?}"), seconds, || {
            if self.says(words) {
                return Some(());
            }
            self.assert_alive();
            None
        });
    }

    /// The transaction that it says cannot be decoded.
    #[track_caller]
    pub fn named_transaction(&self) -> String {
        let log = self.log();
        let rest = log.split("walpost skip --transaction ").nth(1);
        let position = rest.and_then(|rest| rest.split_whitespace().next());
        position.expect("a position").to_owned()
    }

    pub fn alive(&mut self) -> bool {
        self.process.ended().is_none()
    }

    #[track_caller]
    pub fn assert_alive(&mut self) {
        assert!(
            self.alive(),
            "walpost ended: {:?}\n{}",
            self.process.ended(),
            self.log()
        );
    }

    /// The exit code; `None` when a signal ended it.
    #[track_caller]
    pub fn wait(&mut self, seconds: u64) -> Option<i32> {
        let status = self.ended_within(seconds);
        status
            .unwrap_or_else(|| {
                panic!(
                    "walpost did not end within {seconds} s; it said:\n{}",
                    self.log()
                )
            })
            .code()
    }

    /// How it ended; `None` when it still runs.
    pub fn ended_within(&mut self, seconds: u64) -> Option<ExitStatus> {
        self.process.wait(Duration::from_secs(seconds))
    }

    /// It ends by itself with this code and has said the words.
    #[track_caller]
    pub fn expect_end(&mut self, code: i32, words: &[&str], seconds: u64) {
        let ended = self.wait(seconds);
        Output {
            line: "run".into(),
            code: ended,
            out: self.out(),
            err: self.log(),
        }
        .expect(code, words);
    }

    /// SIGTERM; it has to end with this code.
    #[track_caller]
    pub fn stop(&mut self, code: i32) {
        self.assert_alive();
        self.process.signal(Signal::TERM);
        self.expect_end(code, &[], 60);
    }

    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Processor time so far, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.process.pid().into())
    }

    /// The most memory it ever had resident, in bytes, as the kernel counts it.
    pub fn peak_memory(&self) -> u64 {
        self.try_peak_memory().expect("VmHWM of a living process")
    }

    /// `None` when it has ended.
    pub fn try_peak_memory(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid())).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
        Some(kilobytes << 10)
    }
}

/// Processor time of a process so far, in seconds.
pub fn cpu_seconds(pid: u64) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process's times");
    // Behind the name in parentheses, from field 3 on: user and system time are 14 and 15, in 1/100 s.
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let ticks = |n: usize| {
        fields
            .split_whitespace()
            .nth(n - 3)
            .and_then(|text| text.parse::<f64>().ok())
    };
    (ticks(14).expect("a number") + ticks(15).expect("a number")) / 100.0
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!(
                "--- the end of {:?}\n{}",
                self.log,
                lines[lines.len().saturating_sub(30)..].join("\n")
            );
        }
    }
}

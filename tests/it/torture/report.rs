//! What a run tells at its end.

use std::{fs, path::PathBuf};

use super::{
    evidence::Evidence,
    history::{Finding, History},
};
use crate::harness::{Walpost, services};

/// What happened so close to a violation is part of its story, in ms.
const STORY: i64 = 12_000;

pub struct Report {
    pub findings: Vec<Finding>,
    /// The run in one line.
    pub figures: String,
}

impl Report {
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    #[cfg(feature = "faults")]
    pub fn has(&self, kind: &str) -> bool {
        self.findings.iter().any(|finding| finding.kind == kind)
    }

    pub fn print(&self, history: &History, walposts: &[Walpost], evidence: &Evidence, seed: u64) {
        for finding in &self.findings {
            let at = history.second(finding.at);
            println!("\nVIOLATION: {} at {at}: {}", finding.kind, finding.text);
            println!(
                "  what was done then:\n{}",
                history.around(finding.at, STORY)
            );
        }
        if !self.is_clean() || std::env::var_os("TORTURE_KEEP").is_some() {
            keep_logs(walposts, history, evidence, seed);
        }
        let counts = history.counts();
        let counts: Vec<_> = counts
            .iter()
            .map(|(what, n)| format!("{what} {n}"))
            .collect();
        println!("  faults: {}", counts.join(", "));
        let end = match self.findings.len() {
            0 => "clean".to_owned(),
            count => format!("{count} VIOLATIONS"),
        };
        println!("{}; {end}", self.figures);
    }
}

/// How often the publisher's processes said so.
pub fn told(walposts: &[Walpost], phrase: &str) -> usize {
    let count = |file: PathBuf| {
        let log = fs::read(file).unwrap_or_default();
        String::from_utf8_lossy(&log).matches(phrase).count()
    };
    walposts.iter().flat_map(logs).map(count).sum()
}

fn logs(walpost: &Walpost) -> impl Iterator<Item = PathBuf> + use<> {
    let files = fs::read_dir(&walpost.folder).expect("read the publisher's folder");
    files.map(|entry| entry.expect("read the publisher's folder").path())
}

/// The run's own folder goes with it.
fn keep_logs(walposts: &[Walpost], history: &History, evidence: &Evidence, seed: u64) {
    let folder = services::root().join(format!("target/torture/seed-{seed}"));
    let _ = fs::remove_dir_all(&folder);
    for (n, walpost) in walposts.iter().enumerate() {
        let folder = folder.join(format!("{}", n + 1));
        fs::create_dir_all(&folder).expect("create a folder for logs");
        for file in logs(walpost) {
            let name = file.file_name().expect("a name");
            fs::copy(&file, folder.join(name)).expect("keep a log");
        }
    }
    let whole = history.around(history.began, i64::MAX);
    fs::write(folder.join("history"), whole).expect("keep the history");
    fs::write(folder.join("records"), evidence.records()).expect("keep the records");
    println!(
        "the history, the records and the publishers' logs are in {}",
        folder.display()
    );
}

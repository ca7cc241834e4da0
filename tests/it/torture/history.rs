//! What was done to whom and when, and what was found wrong; shared by all threads of a run.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::sleep,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Milliseconds since 1970, as the servers of this machine count them too.
pub type Moment = i64;

pub fn now() -> Moment {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    since
        .as_millis()
        .try_into()
        .expect("a time before 292277026")
}

/// Something that must not be, with the fewest facts that show it.
pub struct Finding {
    pub kind: String,
    pub at: Moment,
    pub text: String,
}

pub struct History {
    pub began: Moment,
    entries: Mutex<Vec<(Moment, String)>>,
    counts: Mutex<BTreeMap<String, usize>>,
    findings: Mutex<Vec<Finding>>,
    over: AtomicBool,
    truce: AtomicBool,
    distrusted: AtomicBool,
}

impl History {
    pub fn new() -> History {
        History {
            began: now(),
            entries: Mutex::default(),
            counts: Mutex::default(),
            findings: Mutex::default(),
            over: AtomicBool::new(false),
            truce: AtomicBool::new(false),
            distrusted: AtomicBool::new(false),
        }
    }

    /// A fault begins; faults are counted by `who` and `what`.
    pub fn fault(&self, who: &str, what: &str, how: &str) {
        let mut counts = self.counts.lock().expect("no panic under this lock");
        *counts.entry(format!("{who} {what}")).or_default() += 1;
        drop(counts);
        self.note(who, &format!("{what}{how}"));
    }

    pub fn note(&self, who: &str, what: &str) {
        let mut entries = self.entries.lock().expect("no panic under this lock");
        entries.push((now(), format!("{who}: {what}")));
    }

    pub fn counts(&self) -> BTreeMap<String, usize> {
        self.counts
            .lock()
            .expect("no panic under this lock")
            .clone()
    }

    /// The run need not go on after it. Without a moment it is of now.
    pub fn found(&self, kind: &str, at: Option<Moment>, text: String) {
        self.note("FOUND", kind);
        println!("  found: {kind}");
        self.findings
            .lock()
            .expect("no panic under this lock")
            .push(Finding {
                kind: kind.to_owned(),
                at: at.unwrap_or_else(now),
                text,
            });
        self.end();
    }

    pub fn take_findings(&self) -> Vec<Finding> {
        std::mem::take(&mut self.findings.lock().expect("no panic under this lock"))
    }

    /// No new fault from now on; those that last are lifted.
    pub fn end(&self) {
        self.over.store(true, Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// While it lasts nothing new is done to servers and wires: something has to get through.
    pub fn truce(&self, on: bool) {
        self.truce.store(on, Relaxed);
    }

    pub fn is_truce(&self) -> bool {
        self.truce.load(Relaxed)
    }

    /// While it lasts the slot's place means nothing: somebody else's doing, or not ready.
    pub fn distrust_slot(&self, on: bool) {
        self.distrusted.store(on, Relaxed);
    }

    pub fn is_slot_distrusted(&self) -> bool {
        self.distrusted.load(Relaxed)
    }

    /// Waits; false as soon as the run is over.
    pub fn pass(&self, milliseconds: u64) -> bool {
        let end = now() + milliseconds.cast_signed();
        while !self.is_over() && now() < end {
            sleep(Duration::from_millis(
                10.min((end - now()).max(1).cast_unsigned()),
            ));
        }
        !self.is_over()
    }

    pub fn second(&self, at: Moment) -> String {
        format!("{:7.3} s", (at - self.began) as f64 / 1000.0)
    }

    /// What happened within so many milliseconds of a moment.
    pub fn around(&self, at: Moment, milliseconds: i64) -> String {
        let mut text = String::new();
        let entries = self.entries.lock().expect("no panic under this lock");
        let near = |moment: Moment| (moment - at).abs() <= milliseconds;
        for (moment, what) in entries.iter().filter(|(moment, _)| near(*moment)) {
            let _ = writeln!(text, "    {}  {what}", self.second(*moment));
        }
        text
    }
}

//! Who published when, and of which slot. A publisher that was superseded may repeat, late, what its
//! client library still had: those records have no place in the order of repeats.

use std::{collections::HashMap, fs, path::PathBuf};

use walpost::{
    lsn::Lsn,
    verdict::{Arrived, Committed, Fault, Reading, Verdict, judge, judge_as},
};

use super::{Walpost, batches::Batches};

/// From here on, until the next one's begins, one process is the publisher.
struct Term {
    /// In µs since 1970.
    began: i64,
    process: usize,
    /// What it sends is of here or later.
    start: Lsn,
}

pub struct Terms {
    /// In order.
    terms: Vec<Term>,
    /// Of each process.
    logs: Vec<PathBuf>,
    /// The number that the brokers gave a producer → the process that it is in.
    producers: HashMap<i64, usize>,
    /// By topic.
    batches: HashMap<String, Batches>,
}

/// The judgement of publishers that superseded each other.
pub struct Judged {
    pub verdict: Verdict,
    /// How often another process than before became the publisher.
    pub take_overs: usize,
    /// Records that came late.
    pub late: usize,
    /// The most that one process left behind when it was superseded.
    pub most: usize,
    /// Its log, and the first and the last of these records.
    pub whose: String,
}

impl Terms {
    /// By the publishers' logs, which have to tell enough; see `reveal`.
    pub fn read(publishers: &[&Walpost], batches: HashMap<String, Batches>) -> Terms {
        let (mut terms, mut producers) = (Vec::new(), HashMap::new());
        let logs = publishers.iter().flat_map(|walpost| files(walpost, "err"));
        let logs: Vec<PathBuf> = logs.collect();
        for (process, log) in logs.iter().enumerate() {
            let log = fs::read(log).expect("read a log");
            for line in String::from_utf8_lossy(&log).lines() {
                if let Some((_, producer)) = line.split_once("Acquired PID{Id:") {
                    let number = producer.split(',').next().and_then(|id| id.parse().ok());
                    producers.extend(number.map(|number: i64| (number, process)));
                }
                terms.extend(term(line, process));
            }
        }
        terms.sort_by_key(|term: &Term| term.began);
        Terms {
            terms,
            logs,
            producers,
            batches,
        }
    }

    /// How often another process than before became the publisher.
    pub fn take_overs(&self) -> usize {
        let pairs = self.terms.windows(2);
        pairs.filter(|p| p[0].process != p[1].process).count()
    }

    /// The shared verdict. `arrived` with the broker's time, in ms since 1970; `is_letter`: it came from
    /// a dead letter, long after its place.
    pub fn judge(
        &self,
        committed: &[Committed],
        arrived: &[(Arrived, i64)],
        is_letter: impl Fn(&Arrived) -> bool,
    ) -> Judged {
        let mut timely = Vec::new();
        let mut left = HashMap::<_, Vec<(&Arrived, i64)>>::new();
        let mut late = 0;
        for (record, at) in arrived {
            match self.lateness(record, *at, is_letter(record)) {
                None => timely.push(record.clone()),
                Some(superseded) => {
                    late += 1;
                    if let Some(term) = superseded {
                        left.entry(term).or_default().push((record, *at));
                    }
                }
            }
        }
        let all: Vec<Arrived> = arrived.iter().map(|(record, _)| record.clone()).collect();
        // `recover` reads the table while no publisher runs.
        let mut verdict = judge_as(committed, &all, Reading::InTurn);
        let of_repeats = |fault: &Fault| matches!(fault, Fault::NoSuffix | Fault::Stale);
        verdict.faults.retain(|fault, _| !of_repeats(fault));
        verdict
            .examples
            .retain(|example| !of_repeats(&example.fault));
        let strict = judge(committed, &timely);
        let faults = strict.faults.into_iter();
        verdict.faults.extend(faults.filter(|(f, _)| of_repeats(f)));
        let examples = strict.examples.into_iter();
        verdict
            .examples
            .extend(examples.filter(|e| of_repeats(&e.fault)));
        let most = left.into_iter().max_by_key(|(_, records)| records.len());
        let tell = |((process, _), mut records): (_, Vec<(&Arrived, i64)>)| {
            records.sort_by_key(|(_, at)| *at);
            let [first, last] = [records.first(), records.last()].map(|found| {
                let (record, at) = found.expect("one at least");
                let at = jiff::Timestamp::from_millisecond(*at).expect("a time");
                format!("{record} at {at}")
            });
            let log: &PathBuf = &self.logs[process];
            (
                records.len(),
                format!("{}: from {first} to {last}", log.display()),
            )
        };
        let (most, whose) = most.map(tell).unwrap_or_default();
        Judged {
            verdict,
            take_overs: self.take_overs(),
            late,
            most,
            whose,
        }
    }

    /// `Some` of a late one; in it, of which process, and the term that superseded it.
    fn lateness(
        &self,
        record: &Arrived,
        at: i64,
        is_letter: bool,
    ) -> Option<Option<(usize, usize)>> {
        // Rows that were read from the table were sent by no publisher.
        let position = record.position?;
        // The broker's clock shows whole milliseconds.
        let now = self
            .terms
            .partition_point(|term| term.began < (at + 1) * 1_000);
        let current = self.terms.get(now.checked_sub(1)?)?;
        let batches = self.batches.get(&record.topic)?;
        let producer = batches.producer(record.partition, record.offset);
        let process = producer.and_then(|number| self.producers.get(&number));
        let process = *process.unwrap_or_else(|| panic!("nobody tells that {record} is his"));
        if process != current.process {
            // Until it publishes again, however often others do.
            let own = self.terms[..now].iter().rposition(|t| t.process == process);
            return Some(Some((process, own.unwrap_or_default())));
        }
        (position.commit < current.start && !is_letter).then_some(None)
    }
}

/// From now on the publisher's log tells what `Terms` reads.
pub fn reveal(walpost: &mut Walpost) {
    walpost
        .set("kafka.properties.debug", "eos")
        .environment("WALPOST_LOG_LEVEL", "debug");
}

/// Each process has one of each kind.
fn files(walpost: &Walpost, kind: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(&walpost.folder).expect("read the publisher's folder");
    let files = files.map(|entry| entry.expect("read the publisher's folder").path());
    files
        .filter(|file| file.extension().is_some_and(|extension| extension == kind))
        .collect()
}

fn term(line: &str, process: usize) -> Option<Term> {
    let (_, fields) = line.split_once("replication started")?;
    let (_, start) = fields.split_once("start_lsn=")?;
    let began: jiff::Timestamp = line.split(' ').next()?.parse().ok()?;
    Some(Term {
        began: began.as_microsecond(),
        process,
        start: start.split_whitespace().next()?.parse().ok()?,
    })
}

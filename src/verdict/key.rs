//! The order of one key's records.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
};

use super::{Fault, Reading, Sight, Stream, Verdict, excerpt};

/// So many runs tell how a violation came about.
const RUNS: usize = 12;

impl Verdict {
    /// One key in one topic. What is lost was said already: order is judged among what arrived.
    pub(super) fn judge_key(&mut self, (topic, key): &Stream, sights: &[Sight], reading: Reading) {
        let of = format!("key {} of topic {topic}: ", excerpt(&Some(key.to_vec())));
        let home = sights[0].record.partition;
        if let Some(away) = sights.iter().find(|s| s.record.partition != home) {
            // No order exists between partitions, so nothing more can be said of this key.
            return self.add(Fault::Split, || format!("{of}{}, then {away}", sights[0]));
        }
        self.judge_stream(&of, sights);
        self.judge_reread(&of, sights, reading);
    }

    /// What the stream brought of a key, each event by its rank among what it brought. Rows that were
    /// read from the table come when they come, and have no part in it but one: where a stream ended
    /// in the middle of a repetition, because its slot was lost, they go on with it, step by step as
    /// it would have.
    fn judge_stream(&mut self, of: &str, sights: &[Sight]) {
        let mut order: Vec<&Sight> = sights.iter().filter(|s| !s.is_reread()).collect();
        order.sort_by_key(|s| s.event.seq);
        order.dedup_by_key(|s| &s.event.id);
        let rank: HashMap<&str, usize> = order
            .iter()
            .enumerate()
            .map(|(n, s)| (s.event.id.as_str(), n + 1))
            .collect();

        let (mut seen, mut highest) = (HashSet::new(), 0);
        // Where the stream is, or the table's rows that went on with it.
        let (mut last, mut last_sight) = (0, None);
        for (i, sight) in sights.iter().enumerate() {
            let Some(&n) = rank.get(sight.event.id.as_str()) else {
                continue;
            };
            if sight.is_reread() {
                if n == last + 1 && n <= highest {
                    (last, last_sight) = (n, Some(sight));
                }
                continue;
            }
            if seen.insert(&sight.event.id) && n < highest {
                let is_ahead = |s: &&Sight| !s.is_reread() && rank[s.event.id.as_str()] > n;
                let ahead = sights.iter().find(is_ahead).unwrap_or(sight);
                self.add(Fault::OutOfOrder, || {
                    format!(
                        "{of}{ahead}, and only then {sight}{}",
                        course(&sights[..=i])
                    )
                });
            } else if n > last + 1 && n <= highest + 1 {
                let before = last_sight.unwrap_or(sight);
                self.add(Fault::NoSuffix, || {
                    format!(
                        "{of}after going back {before}, then {sight}{}",
                        course(&sights[..=i])
                    )
                });
            }
            (highest, last, last_sight) = (highest.max(n), n, Some(sight));
        }
        if let (Some(newest), Some(end)) = (order.last(), last_sight)
            && newest.event.id != end.event.id
        {
            self.add(Fault::Stale, || {
                format!(
                    "{of}newest is {newest}, but it ends with {end}{}",
                    course(sights)
                )
            });
        }
        for pair in order
            .windows(2)
            .filter(|pair| pair[0].record.position >= pair[1].record.position)
        {
            self.add(Fault::Misplaced, || {
                format!("{of}{} is not before {}", pair[0], pair[1])
            });
        }
    }

    /// What was read from the table of a key: its first arrivals are in order among themselves, and
    /// among all where the stream stood still meanwhile.
    fn judge_reread(&mut self, of: &str, sights: &[Sight], reading: Reading) {
        let (mut seen, mut newest): (_, Option<&Sight>) = (HashSet::new(), None);
        for (i, sight) in sights.iter().enumerate() {
            let counts = sight.is_reread() || reading == Reading::InTurn;
            if !counts || !seen.insert(&sight.event.id) {
                continue;
            }
            match newest {
                Some(ahead) if ahead.event.seq > sight.event.seq => {
                    // Of two that were streamed it was said.
                    if ahead.is_reread() || sight.is_reread() {
                        self.add(Fault::OutOfOrder, || {
                            let course = course(&sights[..=i]);
                            format!(
                                "{of}{ahead}, and only then {sight}, read from the table{course}"
                            )
                        });
                    }
                }
                _ => newest = Some(sight),
            }
        }
    }
}

/// How a key came, as runs of its numbers: `1-4 2-3 [4-5] 6`, in brackets what was read from the
/// table. The last ones tell enough.
fn course(sights: &[Sight]) -> String {
    let goes_on =
        |a: &Sight, b: &Sight| b.event.seq == a.event.seq + 1 && a.is_reread() == b.is_reread();
    let runs: Vec<&[Sight]> = sights.chunk_by(goes_on).collect();
    let shown = &runs[runs.len().saturating_sub(RUNS)..];
    let mut text = String::from("; it came as");
    if shown.len() < runs.len() {
        text.push_str(" …");
    }
    for run in shown {
        let (first, last) = (run[0].event.seq, run[run.len() - 1].event.seq);
        let mut numbers = first.to_string();
        if last > first {
            let _ = write!(numbers, "-{last}");
        }
        let _ = if run[0].is_reread() {
            write!(text, " [{numbers}]")
        } else {
            write!(text, " {numbers}")
        };
    }
    text
}

//! The one judgement of a run: what the database committed against what is in Kafka. No I/O.
//!
//! What a publisher may do after a fault is repeat a *suffix* of a key's stream: 1,2,3,2,3,4. So
//! going back is allowed, going on again must be step by step, and the last word on a key must be
//! its newest event. Everything else is a fault and has a name here.
//!
//! That is of the stream. Rows that were read from the table, after a slot was lost, are in order
//! among themselves, and live ones come between.

mod key;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use crate::lsn::Position;

/// An event whose transaction committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub id: String,
    /// `None` has no order.
    pub key: Option<Vec<u8>>,
    /// Rises with the commit order of its key, and inside a transaction with the statement order.
    pub seq: u64,
    pub value: Option<Vec<u8>>,
}

/// A record as it lies in Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Header `event_id`.
    pub id: Option<String>,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    /// Header `wal_position`; records that were read from the table have none.
    pub position: Option<Position>,
}

/// What can be wrong, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// Committed and not in Kafka.
    Lost,
    /// In Kafka and never committed.
    Invented,
    /// First arrived behind a later event of its key.
    OutOfOrder,
    /// A repeat that does not go on step by step: 1,2,3,1,3.
    NoSuffix,
    /// An old event is the last word on its key.
    Stale,
    /// Key or value differ from what was committed.
    Altered,
    /// One key in two partitions of a topic, or one event in two topics.
    Split,
    /// `wal_position` not rising with the key's order, not unique, or another one in a repeat.
    Misplaced,
}

/// One violation and the fewest records that show it, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub fault: Fault,
    pub history: String,
}

/// The outcome. `Display` gives the figures and, of each kind of fault, the first violation.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub committed: usize,
    pub arrived: usize,
    /// Records of events that had arrived before. At-least-once allows them.
    pub repeats: usize,
    /// How many violations of each kind; kinds without one are absent.
    pub faults: BTreeMap<Fault, usize>,
    /// At most `EXAMPLES` of each kind, in the order they were found.
    pub examples: Vec<Violation>,
}

/// More of a kind tell no more, and a run that lost a million events must not need a million texts.
const EXAMPLES: usize = 10;

/// The topic and the key whose stream is looked at.
type Stream<'a> = (&'a str, &'a [u8]);

/// When rows of the table were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// At any time: live rows come between.
    AnyTime,
    /// While nothing was streamed, and all that the next stream brings is newer: first arrivals are in
    /// order whatever they were read from.
    InTurn,
}

/// Compares what was committed with what arrived; `arrived` in any order. Of rows of the table
/// nothing is known but their order among themselves.
pub fn judge(committed: &[Committed], arrived: &[Arrived]) -> Verdict {
    judge_as(committed, arrived, Reading::AnyTime)
}

/// As [`judge`], by what is known of the table's rows.
pub fn judge_as(committed: &[Committed], arrived: &[Arrived], reading: Reading) -> Verdict {
    let mut verdict = Verdict {
        committed: committed.len(),
        arrived: arrived.len(),
        ..Verdict::default()
    };
    let truth: HashMap<&str, &Committed> = committed
        .iter()
        .map(|event| (event.id.as_str(), event))
        .collect();
    let mut records: Vec<&Arrived> = arrived.iter().collect();
    records.sort_by_key(|r| (&r.topic, r.partition, r.offset));

    let mut first: HashMap<&str, &Arrived> = HashMap::new();
    let mut streams: BTreeMap<Stream, Vec<Sight>> = BTreeMap::new();
    for record in records {
        let Some(event) = record.id.as_deref().and_then(|id| truth.get(id)).copied() else {
            verdict.add(Fault::Invented, || format!("{record} was never committed"));
            continue;
        };
        let sight = Sight { record, event };
        if record.key != event.key || record.value != event.value {
            verdict.add(Fault::Altered, || sight.difference());
        }
        match first.get(event.id.as_str()) {
            None => {
                first.insert(&event.id, record);
            }
            Some(before) => {
                verdict.repeats += 1;
                if before.topic != record.topic {
                    verdict.add(Fault::Split, || format!("{before}, then {record}"));
                }
                // A record of a row that was read from the table has none.
                let both = before.position.is_some() && record.position.is_some();
                if both && before.position != record.position {
                    verdict.add(Fault::Misplaced, || {
                        format!("{before}, repeated as {record}")
                    });
                }
            }
        }
        if let Some(key) = &event.key {
            streams.entry((&record.topic, key)).or_default().push(sight);
        }
    }

    for event in committed
        .iter()
        .filter(|event| !first.contains_key(event.id.as_str()))
    {
        verdict.add(Fault::Lost, || lost(event, committed, &first));
    }
    for (stream, sights) in &streams {
        verdict.judge_key(stream, sights, reading);
    }
    let mut places: HashMap<Position, &Arrived> = HashMap::new();
    let mut once: Vec<&Arrived> = first
        .into_values()
        .filter(|r| r.position.is_some())
        .collect();
    once.sort_by_key(|r| (&r.topic, r.partition, r.offset));
    for record in once {
        let taken = record
            .position
            .and_then(|position| places.insert(position, record));
        if let Some(other) = taken {
            verdict.add(Fault::Misplaced, || {
                format!("two events at one position: {other} and {record}")
            });
        }
    }
    verdict
}

/// A record together with the event it is of.
struct Sight<'a> {
    record: &'a Arrived,
    event: &'a Committed,
}

impl Sight<'_> {
    /// From the table, not from the stream.
    fn is_reread(&self) -> bool {
        self.record.position.is_none()
    }

    fn difference(&self) -> String {
        let (record, event) = (self.record, self.event);
        let what = if record.key != event.key {
            ("key", &event.key, &record.key)
        } else {
            ("value", &event.value, &record.value)
        };
        format!(
            "{record}: {} was {}, is {}",
            what.0,
            excerpt(what.1),
            excerpt(what.2)
        )
    }
}

impl fmt::Display for Sight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seq {} at {}", self.event.seq, self.record)
    }
}

impl fmt::Display for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}", self.topic, self.partition, self.offset)?;
        write!(f, " event {}", self.id.as_deref().unwrap_or("without id"))?;
        self.position
            .map_or(Ok(()), |position| write!(f, " from {position}"))
    }
}

/// The first bytes as text, without control characters.
fn excerpt(bytes: &Option<Vec<u8>>) -> String {
    let Some(bytes) = bytes else {
        return "null".into();
    };
    let shown = bytes[..bytes.len().min(40)].escape_ascii();
    format!(
        "\"{shown}\"{}",
        if bytes.len() > 40 {
            format!("… of {} bytes", bytes.len())
        } else {
            String::new()
        }
    )
}

/// What arrived of the lost event's neighbours in its key.
fn lost(event: &Committed, committed: &[Committed], first: &HashMap<&str, &Arrived>) -> String {
    let of_key = || {
        committed
            .iter()
            .filter(|other| event.key.is_some() && other.key == event.key)
    };
    let before = of_key()
        .filter(|other| other.seq < event.seq)
        .max_by_key(|other| other.seq);
    let after = of_key()
        .filter(|other| other.seq > event.seq)
        .min_by_key(|other| other.seq);
    let tell = |other: Option<&Committed>| match other {
        None => "nothing".to_owned(),
        Some(other) => match first.get(other.id.as_str()) {
            Some(record) => format!("seq {} at {record}", other.seq),
            None => format!("seq {}, lost too", other.seq),
        },
    };
    format!(
        "event {} of key {}, seq {}; before it {}; behind it {}",
        event.id,
        excerpt(&event.key),
        event.seq,
        tell(before),
        tell(after)
    )
}

impl Verdict {
    /// Nothing lost, invented, altered or out of order. Repeats are allowed.
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty()
    }

    pub fn count(&self, fault: Fault) -> usize {
        self.faults.get(&fault).copied().unwrap_or(0)
    }

    fn add(&mut self, fault: Fault, history: impl FnOnce() -> String) {
        let count = self.faults.entry(fault).or_default();
        *count += 1;
        if *count <= EXAMPLES {
            self.examples.push(Violation {
                fault,
                history: history(),
            });
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Lost => "lost",
            Fault::Invented => "invented",
            Fault::OutOfOrder => "out of order",
            Fault::NoSuffix => "repeated, but not as a suffix",
            Fault::Stale => "old event last",
            Fault::Altered => "altered",
            Fault::Split => "split over partitions or topics",
            Fault::Misplaced => "misplaced",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} committed, {} arrived, {} repeated",
            self.committed, self.arrived, self.repeats
        )?;
        for (fault, count) in &self.faults {
            write!(f, "\n{count} {fault}")?;
            if let Some(first) = self.examples.iter().find(|v| v.fault == *fault) {
                write!(f, ": {}", first.history)?;
            }
        }
        Ok(())
    }
}

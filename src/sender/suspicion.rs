//! Records like one that the brokers refused of late are tried alone before they fail in a batch: a
//! run of bad events costs round trips, not a new producer each.

use std::{collections::HashMap, time::Duration};

use rdkafka::types::RDKafkaErrorCode as Code;

use super::poison::is_size;
use crate::outbox::record::Record;

/// How long one bad event makes others suspicious.
const LASTS: Duration = Duration::from_secs(60);

/// What the refused record had.
#[derive(Clone, Copy, Debug)]
enum Trait {
    /// Key and value of at least so many bytes.
    Size(usize),
    /// A timestamp at or beyond this one.
    After(i64),
    /// A timestamp at or before this one.
    Before(i64),
    NoKey,
}

impl Trait {
    /// What a refusal with this code says of the record.
    fn of(code: Code, record: &Record<'_>, now: i64) -> Option<Trait> {
        match code {
            code if is_size(code) => Some(Trait::Size(size(record))),
            Code::InvalidTimestamp if record.timestamp > now => {
                Some(Trait::After(record.timestamp))
            }
            Code::InvalidTimestamp => Some(Trait::Before(record.timestamp)),
            _ if record.key.is_none() => Some(Trait::NoKey),
            _ => None,
        }
    }

    fn is_of(self, record: &Record<'_>) -> bool {
        match self {
            Trait::Size(least) => size(record) >= least,
            Trait::After(time) => record.timestamp >= time,
            Trait::Before(time) => record.timestamp <= time,
            Trait::NoKey => record.key.is_none(),
        }
    }

    /// Both in one, where they are of one kind.
    fn and(self, other: Trait) -> Trait {
        match (self, other) {
            (Trait::Size(a), Trait::Size(b)) => Trait::Size(a.min(b)),
            (Trait::After(a), Trait::After(b)) => Trait::After(a.min(b)),
            (Trait::Before(a), Trait::Before(b)) => Trait::Before(a.max(b)),
            (_, newest) => newest,
        }
    }
}

/// What is suspicious, by topic.
#[derive(Debug, Default)]
pub struct Suspicions(HashMap<usize, (Trait, jiff::Timestamp)>);

impl Suspicions {
    /// A record of the topic was refused, alone.
    pub fn refused(&mut self, code: Code, record: &Record<'_>, topic: usize, now: jiff::Timestamp) {
        let Some(found) = Trait::of(code, record, now.as_millisecond()) else {
            return;
        };
        let known = self.0.get(&topic).filter(|(_, until)| now < *until);
        let now_known = known.map_or(found, |(known, _)| known.and(found));
        // Far from the end of time.
        if let Ok(until) = now.checked_add(LASTS) {
            self.0.insert(topic, (now_known, until));
        }
    }

    /// Whether the record is like one that was refused.
    pub fn of(&mut self, record: &Record<'_>, topic: usize, now: jiff::Timestamp) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let Some((suspicious, until)) = self.0.get(&topic) else {
            return false;
        };
        if now >= *until {
            self.0.remove(&topic);
            return false;
        }
        suspicious.is_of(record)
    }
}

fn size(record: &Record<'_>) -> usize {
    record.key.map_or(0, <[u8]>::len) + record.payload.map_or(0, <[u8]>::len)
}

//! What the rows at hand become, and so which topics there must be.

use std::collections::BTreeMap;

use crate::{
    lsn::{Lsn, PgTime, Position},
    outbox::{
        mapping::Mapping,
        record::Mapper,
        relation::Shape,
        row::{Origin, OutboxRow},
    },
    pg::pgoutput::Tuple,
};

/// So many topics are asked for; names made of columns may be without number.
const MOST_TOPICS: usize = 100;

/// Topics that records go to, with what the rows at hand ask of them.
#[derive(Debug, Default)]
pub struct AtHand {
    pub topics: BTreeMap<String, Use>,
    /// More topics than these were named.
    pub more: bool,
}

/// What the records of a topic are like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// The largest partition that a column names, and in which event.
    pub partition: Option<(i32, String)>,
    /// The earliest and the latest time of a record, in milliseconds since 1970.
    pub times: Option<(i64, i64)>,
    /// An event without key.
    pub keyless: Option<String>,
}

/// What the rows of one table become.
#[derive(Default)]
pub struct Tried {
    pub rows: u64,
    /// Those that become no record: how many for each reason, and the first event.
    pub faults: BTreeMap<&'static str, Fault>,
    mapper: Mapper,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    pub rows: u64,
    pub text: String,
    pub event: String,
}

impl AtHand {
    /// The topic of a table whose rows all go to one.
    pub fn expect(&mut self, mapping: &Mapping) {
        if let Some(topic) = mapping.route.only() {
            self.topic(&topic);
        }
    }

    fn topic(&mut self, name: &str) -> Option<&mut Use> {
        if !self.topics.contains_key(name) {
            if self.topics.len() >= MOST_TOPICS {
                self.more = true;
                return None;
            }
            self.topics.insert(name.to_owned(), Use::default());
        }
        self.topics.get_mut(name)
    }
}

impl Tried {
    /// Maps a row; without a time of its own it has that of `now`.
    pub fn row(&mut self, shape: &Shape, tuple: Tuple<'_>, now: PgTime, at_hand: &mut AtHand) {
        self.rows += 1;
        let row = OutboxRow::new(shape, tuple);
        let event = row.as_ref().ok().and_then(OutboxRow::event_id);
        let event = event.map_or("without id".into(), |id| {
            String::from_utf8_lossy(id).into_owned()
        });
        let nowhere = Position {
            commit: Lsn::ZERO,
            ordinal: 0,
        };
        let mapped = row.as_ref().map_err(Clone::clone);
        let mapped = mapped.and_then(|row| self.mapper.record(row, Origin::Stream, nowhere, now));
        match mapped {
            Ok(record) => {
                let Some(seen) = at_hand.topic(record.topic) else {
                    return;
                };
                let time = record.timestamp;
                let (first, last) = seen.times.unwrap_or((time, time));
                seen.times = Some((first.min(time), last.max(time)));
                if record.key.is_none() {
                    seen.keyless.get_or_insert_with(|| event.clone());
                }
                let known = seen.partition.as_ref().map(|(partition, _)| *partition);
                if let Some(partition) = record.partition
                    && Some(partition) > known
                {
                    seen.partition = Some((partition, event));
                }
            }
            Err(fault) => {
                let known = self.faults.entry(fault.code).or_insert(Fault {
                    rows: 0,
                    text: fault.text,
                    event,
                });
                known.rows += 1;
            }
        }
    }
}

/// A fault of the configuration rather than of a row: the topic's name or the partition.
pub fn is_of_route(code: &str) -> bool {
    code.starts_with("topic_") || code.starts_with("partition_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        outbox::{
            relation::Types,
            tests::mapping,
            types::{INT4, TEXT},
        },
        pg::pgoutput::{Column, Relation},
    };

    #[test]
    fn rows_tell_their_topics_and_what_they_ask_of_them() {
        let mapping = mapping(
            "table = \"outbox\"\ntopic = \"t.{kind}\"\nkey = \"k\"\nadditional = [{ column = \"p\", placement = \"partition\" }]\n\
             columns = { event_id = \"id\", aggregate_type = false, aggregate_id = false, aggregate_version = false, event_type = false, \
             schema_version = false, payload = false, headers = false, occurred_at = \"at\" }",
        );
        let column = |(name, type_oid): (&str, u32)| Column {
            name: name.into(),
            type_oid,
        };
        let columns = [
            ("id", TEXT),
            ("kind", TEXT),
            ("k", TEXT),
            ("p", INT4),
            ("at", INT4),
        ];
        let relation = Relation {
            id: 1,
            namespace: "public".into(),
            name: "outbox".into(),
            columns: columns.map(column).into(),
        };
        let shape = Shape::new(&relation, &mapping, &Types::default());
        let (mut at_hand, mut tried) = (AtHand::default(), Tried::default());
        at_hand.expect(&mapping);
        assert!(at_hand.topics.is_empty(), "it depends on the row");
        for values in [
            ["1", "a", "k", "0", "2000"],
            ["2", "a", "", "7", "1000"],
            ["3", "a", "k", "5", "3000"],
            ["4", "b", "k", "", "4000"],
            ["5", "no topic", "k", "1", "1"],
            ["6", "a", "k", "-1", "1"],
            ["7", "no topic", "k", "1", "1"],
        ] {
            let mut tuple = vec![0, 5];
            for value in values {
                if value.is_empty() {
                    tuple.push(b'n');
                    continue;
                }
                tuple.push(b't');
                tuple.extend((value.len() as u32).to_be_bytes());
                tuple.extend(value.as_bytes());
            }
            tried.row(
                &shape,
                Tuple::from_bytes(&tuple),
                PgTime::new(0),
                &mut at_hand,
            );
        }
        let seen = Use {
            partition: Some((7, "2".into())),
            times: Some((1000, 3000)),
            keyless: Some("2".into()),
        };
        assert_eq!(at_hand.topics["t.a"], seen);
        assert_eq!(at_hand.topics["t.b"].partition, None);
        assert_eq!((at_hand.topics.len(), tried.rows), (2, 7));
        let faults: Vec<_> = tried
            .faults
            .iter()
            .map(|(code, fault)| (*code, fault.rows, fault.event.as_str()))
            .collect();
        assert_eq!(
            faults,
            [("partition_invalid", 1, "6"), ("topic_invalid", 2, "5")]
        );
        assert!(tried.faults.keys().all(|code| is_of_route(code)));
    }
}

//! The observer: the slot, what was committed, what arrived, and whether that is as promised.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use walpost::{
    lsn::{Lsn, Position},
    verdict::{Committed, Verdict, judge},
};

use super::Scene;
use crate::harness::{pass, records::Record, until};

/// What `pg_replication_slots` says.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    pub confirmed: Lsn,
    pub active_pid: Option<i64>,
    pub plugin: String,
    /// Bytes from the confirmed position to the end of the WAL.
    pub lag: i64,
    /// Bytes from the restart position to the end of the WAL.
    pub retained: i64,
}

impl Scene {
    pub fn slot(&self) -> Option<Slot> {
        self.slot_named(&self.tag)
    }

    pub fn slot_named(&self, name: &str) -> Option<Slot> {
        let query = format!(
            "SELECT confirmed_flush_lsn, active_pid, plugin, pg_current_wal_lsn() - confirmed_flush_lsn, pg_current_wal_lsn() - restart_lsn
             FROM pg_replication_slots WHERE slot_name = '{name}'"
        );
        let row = self.sql.try_rows(&query).ok()?.into_iter().next()?;
        let number = |n: usize| row[n].as_deref().and_then(|text| text.parse().ok());
        Some(Slot {
            confirmed: row[0]
                .as_deref()
                .map_or(Lsn::ZERO, |text| text.parse().expect("an LSN")),
            active_pid: number(1),
            plugin: row[2].clone().unwrap_or_default(),
            lag: number(3).unwrap_or_default(),
            retained: number(4).unwrap_or_default(),
        })
    }

    #[track_caller]
    pub fn confirmed(&self) -> Lsn {
        self.slot().expect("the slot exists").confirmed
    }

    pub fn current_lsn(&self) -> Lsn {
        self.sql
            .value("SELECT pg_current_wal_lsn()")
            .expect("an LSN")
            .parse()
            .expect("an LSN")
    }

    /// The slot has passed everything that was written before this call.
    #[track_caller]
    pub fn wait_confirmed(&self, seconds: u64) {
        let target = self.current_lsn();
        until("everything committed is confirmed", seconds, || {
            (self.slot()?.confirmed >= target).then_some(())
        });
    }

    /// The walsender's process id has to be this one all along: no reconnect.
    #[track_caller]
    pub fn walsender(&self) -> i64 {
        self.slot()
            .and_then(|slot| slot.active_pid)
            .expect("a walsender")
    }

    /// From now on `positions` knows what is committed. Needs the publication.
    pub fn observe(&self) {
        self.sql.run(&format!(
            "SELECT pg_create_logical_replication_slot('{}_seen', 'pgoutput')",
            self.tag
        ));
    }

    /// Event id → position, by the server's own decoding.
    pub fn positions(&self) -> HashMap<String, Position> {
        let query = format!(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('{0}_seen', NULL, NULL, 'proto_version', '1', 'publication_names', '{0}', 'messages', 'true')",
            self.tag
        );
        let mut found = HashMap::new();
        let rows = self.sql.typed(&query);
        learn_positions(rows.iter().map(|row| row.get(0)), &mut found);
        found
    }

    /// What the table holds is what was committed.
    pub fn committed(&self) -> Vec<Committed> {
        let rows = self.sql.rows("SELECT event_id::text, aggregate_id, payload->>'seq', payload::text FROM public.outbox");
        let event = |row: Vec<Option<String>>| {
            let [id, key, seq, value] = <[_; 4]>::try_from(row).expect("four columns");
            Committed {
                id: id.expect("an id"),
                key: key.map(String::into_bytes),
                seq: seq.and_then(|text| text.parse().ok()).unwrap_or_default(),
                value: value.map(String::into_bytes),
            }
        };
        rows.into_iter().map(event).collect()
    }

    /// All records of the scene's topics.
    pub fn records(&self) -> Vec<Record> {
        let topics = self
            .topics
            .lock()
            .expect("no panic under this lock")
            .clone();
        topics
            .iter()
            .flat_map(|topic| self.kafka.read(topic))
            .collect()
    }

    /// All records of topic `order`, once there are `count`.
    #[track_caller]
    pub fn wait_records(&self, count: usize) -> Vec<Record> {
        self.kafka.wait(&self.topic("order"), count, 60)
    }

    /// The slot has passed everything, and everything committed is in Kafka as promised; at least so many events.
    #[track_caller]
    pub fn judge(&self, at_least: usize) -> Verdict {
        let target = self.current_lsn();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut passed = false;
        while !passed && Instant::now() < deadline {
            pass(50);
            passed = self.slot().is_some_and(|slot| slot.confirmed >= target);
        }
        let arrived: Vec<_> = self.records().iter().map(Record::arrived).collect();
        let verdict = judge(&self.committed(), &arrived);
        // What is missing says more than a slot that did not pass it.
        assert!(verdict.is_clean(), "{verdict}");
        assert!(
            passed,
            "all is in Kafka, but the slot stays behind: {verdict}"
        );
        assert!(
            verdict.committed >= at_least,
            "too few events to prove anything: {verdict}"
        );
        verdict
    }

    /// `judge`, and nothing came twice.
    #[track_caller]
    pub fn judge_once(&self, at_least: usize) {
        let verdict = self.judge(at_least);
        assert_eq!(verdict.repeats, 0, "{verdict}");
    }
}

/// Takes in the messages of whole transactions; of an Insert its first columns are enough.
pub fn learn_positions<'a>(
    messages: impl Iterator<Item = &'a [u8]>,
    found: &mut HashMap<String, Position>,
) {
    let mut at = Position {
        commit: Lsn::ZERO,
        ordinal: 0,
    };
    for message in messages {
        match message[0] {
            b'B' => {
                let commit = message[1..9].try_into().expect("8 bytes");
                at = Position {
                    commit: Lsn::new(u64::from_be_bytes(commit)),
                    ordinal: 0,
                }
            }
            b'I' => {
                at.ordinal += 1;
                found.extend(event_id(message).map(|id| (id, at)));
            }
            // The first bit of the flags: transactional.
            b'M' if message[1] & 1 == 1 => at.ordinal += 1,
            _ => {}
        }
    }
}

/// The first UUID among the text columns of an Insert.
fn event_id(insert: &[u8]) -> Option<String> {
    let start = insert
        .windows(5)
        .position(|bytes| bytes == b"t\0\0\0\x24")?
        + 5;
    Some(String::from_utf8_lossy(&insert[start..start + 36]).into_owned())
}

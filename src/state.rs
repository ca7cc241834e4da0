//! What the publisher knows about itself, as `/ready`, `/metrics` and `/api/status` tell it. The
//! relay and the side connection write it, HTTP reads it; nothing is decided from it.

use std::{
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    lsn::{Lsn, PgTime},
    pg::slot::SlotFacts,
};

/// Who this process is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Not connected, or not yet told whether the locks are ours.
    None,
    /// Another process holds the slot or the table; waiting for it to let go.
    Standby,
    /// Holds the locks and the stream.
    Publisher,
}

/// A topic whose rows wait, and why.
#[derive(Clone, Debug)]
pub struct WaitingTopic {
    pub topic: String,
    pub reason: String,
    pub rows: usize,
    pub since: jiff::Timestamp,
}

/// The slot's dead letters by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LetterCounts {
    pub pending: u64,
    pub replaying: u64,
    pub held: u64,
    pub dead: u64,
    pub resolved: u64,
    pub ignored: u64,
}

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub role: Role,
    /// The replication stream is open.
    pub streaming: bool,
    /// Why there is no stream, or why the slot check fails; cleared when it works again.
    pub trouble: Option<String>,
    /// Why Kafka does not take records; cleared by the next delivery or answer.
    pub kafka_trouble: Option<String>,
    pub received: Option<Lsn>,
    pub confirmed: Option<Lsn>,
    pub in_flight_rows: usize,
    pub in_flight_bytes: u64,
    /// Commit time of the oldest row that is not settled.
    pub oldest_unsettled: Option<PgTime>,
    pub waiting_topics: Vec<WaitingTopic>,
    /// As last counted; `None` before that.
    pub dead_letters: Option<LetterCounts>,
    /// Keys whose later rows wait behind a letter; `None` before the letters were read.
    pub held_keys: Option<u64>,
    /// Why no dead letter can be written; cleared when one can.
    pub letter_trouble: Option<String>,
    /// The last trouble, for `status`; stays when it is over.
    pub last_error: Option<String>,
    /// When a row was last settled, or when the first row was opened after all were settled.
    pub last_progress: Instant,
    /// When the server last said anything on the stream.
    pub last_server_message: Option<Instant>,
    /// What the side connection last saw, and when; `None` while it sees nothing.
    pub slot: Option<(SlotFacts, Instant)>,
    /// Rows settled since the start of the process.
    pub settled_rows: u64,
    /// Rows settled per second over about the last ten seconds.
    pub events_per_second: f64,
    /// Bytes of WAL confirmed per second over the same time.
    pub confirmed_bytes_per_second: f64,
}

pub struct State(Mutex<Snapshot>);

impl Default for State {
    fn default() -> Self {
        State(Mutex::new(Snapshot {
            role: Role::None,
            streaming: false,
            trouble: Some("starting".into()),
            kafka_trouble: None,
            received: None,
            confirmed: None,
            in_flight_rows: 0,
            in_flight_bytes: 0,
            oldest_unsettled: None,
            waiting_topics: Vec::new(),
            dead_letters: None,
            held_keys: None,
            letter_trouble: None,
            last_error: None,
            last_progress: Instant::now(),
            last_server_message: None,
            slot: None,
            settled_rows: 0,
            events_per_second: 0.0,
            confirmed_bytes_per_second: 0.0,
        }))
    }
}

impl State {
    /// Locked only for the moment of reading or writing; a panic elsewhere does not poison it.
    pub fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Snapshot {
    /// Why the publisher is not ready, or `None` when it is.
    pub fn not_ready(&self, not_ready_after: Duration) -> Option<String> {
        if self.role == Role::Standby {
            let why = self
                .trouble
                .as_deref()
                .unwrap_or("another publisher holds the slot");
            return Some(format!("standby: {why}"));
        }
        if let Some(trouble) = &self.trouble {
            return Some(trouble.clone());
        }
        if !self.streaming {
            return Some("no replication stream".into());
        }
        if let Some(trouble) = &self.letter_trouble {
            return Some(trouble.clone());
        }
        let waiting: Vec<_> = self
            .waiting_topics
            .iter()
            .map(|t| format!("topic {}: {} ({} rows waiting)", t.topic, t.reason, t.rows))
            .collect();
        let stalled = self.in_flight_rows > 0 && self.last_progress.elapsed() >= not_ready_after;
        match (waiting.is_empty(), &self.kafka_trouble, stalled) {
            (false, _, _) => Some(waiting.join("; ")),
            // With nothing to send nobody knows whether it still holds.
            (true, Some(kafka), _) if self.in_flight_rows > 0 => Some(format!("kafka {kafka}")),
            (true, _, true) => Some(format!(
                "{} rows in flight and nothing settled for {:.0} s",
                self.in_flight_rows,
                self.last_progress.elapsed().as_secs_f64()
            )),
            (true, _, false) => None,
        }
    }
}

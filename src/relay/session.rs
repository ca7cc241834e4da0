//! What belongs to one stream.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::ending::{Ending, Why};
use crate::{
    dead_letters::store::Loaded, error::Failure, ledger::ConfirmedLsn, lsn::Lsn,
    outbox::relation::Types, pg::wire::Stream,
};

/// What a stream runs over.
pub trait Wire: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire for S {}

/// Where a stream starts.
pub struct Start {
    /// Where the slot stands.
    pub confirmed: Lsn,
    /// Of the configured tables, in their order.
    pub table_oids: Vec<u32>,
    pub types: Types,
    pub epoch: i64,
    /// What is known of dead letters.
    pub letters: Loaded,
    /// How far positions are recorded as ours.
    pub reserved: Lsn,
    /// Of our walsender.
    pub pid: i32,
    /// `None`: the server never ends a silent connection.
    pub wal_sender_timeout: Option<Duration>,
}

/// What belongs to one stream.
pub struct Session<S> {
    pub stream: Stream<S>,
    pub start: Start,
    pub status_interval: Duration,
    /// A message whose row has no room yet.
    pub held: Option<Bytes>,
    /// The boundary that the check under way will vouch for.
    pub asked: Option<Asked>,
    /// When the last check began.
    pub checked: Instant,
    /// When the last one began that said that the slot is ours.
    pub vouched: Instant,
    /// The newest position then.
    pub checked_received: Lsn,
    pub check_now: bool,
    /// Since when it is known that another publisher has the next epoch.
    pub superseded: Option<Instant>,
    /// Somebody says that he took the slot over; a check will tell.
    pub doubted: bool,
    /// When the server last said anything.
    pub heard: Instant,
    /// When the last status was sent, and what it confirmed.
    pub reported: Instant,
    pub reported_confirmed: Option<ConfirmedLsn>,
    pub reply_wanted: bool,
    /// When the last mark was asked for.
    pub marked: Instant,
    /// Where the slot stood at the last look.
    pub stands: Option<Lsn>,
    /// Since when the server refuses connections.
    pub server_stopping: Option<Instant>,
    /// Since when what the ended connection left behind is read, or the rows of it are sent.
    pub orphaned: Option<Instant>,
    /// When the loop last turned: a long gap means that the process was paused.
    pub turned: Instant,
    pub ending: Option<Ending>,
    /// Why nothing more comes and nothing can be told, while the rest is settled.
    pub broken: Option<Failure>,
    pub draining: Draining,
}

impl<S> Session<S> {
    pub fn is_stopped_by_poison(&self) -> bool {
        self.ending
            .as_ref()
            .is_some_and(|ending| ending.why == Why::Poison)
    }
}

/// What a check under way will vouch for.
pub struct Asked {
    pub boundary: Option<Lsn>,
    /// How far the record on the server reaches then.
    pub reserved: Option<Lsn>,
}

/// A failed producer whose last reports are awaited.
pub struct Draining {
    pub since: Option<Instant>,
    pub purged: Instant,
    pub warned: bool,
}

impl Default for Draining {
    fn default() -> Self {
        Draining {
            since: None,
            purged: Instant::now(),
            warned: false,
        }
    }
}

//! A stream whose end shows only behind all that the server had sent: nobody reads the slot, and
//! anyone may take it. The end may say why (a transaction that cannot be decoded), and the rows
//! before it are good. So what is left is read and sent by turns: read while nothing is sent, until
//! there is no more room; sent after a check said that nobody took over. Whoever takes over then
//! sees no more rows late than may be in flight. Before the check that notices it, the stream looks
//! like any other, and all that is read is sent, until a take-over is heard of.

use std::time::{Duration, Instant};

use anyhow::anyhow;

use super::{Relay, session::Session};
use crate::{error::Failure, pg::slot::SlotFacts};

/// What the server had sent is here by then.
const READ_LIMIT: Duration = Duration::from_secs(2);

/// Kafka has answered by then, if it answers at all.
const SEND_LIMIT: Duration = Duration::from_secs(10);

impl Relay {
    /// After a check that found the slot ours.
    pub(super) fn notice_orphan<S>(&self, session: &mut Session<S>, facts: &SlotFacts) {
        let is_read = facts.slot.as_ref().is_some_and(|s| s.active_pid.is_some());
        if is_read || session.broken.is_some() {
            session.orphaned = None;
        } else {
            session.orphaned.get_or_insert_with(Instant::now);
        }
    }

    /// Rows may enter the ledger. `orphaned`: of the session.
    pub(super) fn may_open(&self, orphaned: Option<Instant>) -> bool {
        orphaned.is_none() || self.sender.is_suspended()
    }

    /// It is the turn of reading.
    pub(super) fn reads_what_is_left<S>(&self, session: &Session<S>) -> bool {
        session.orphaned.is_some() && self.ledger.rows() == 0
    }

    /// It is the turn of sending, if a check allows it.
    pub(super) fn wants_to_send_what_is_left<S>(&self, session: &Session<S>) -> bool {
        session.orphaned.is_some() && self.sender.is_suspended() && self.ledger.rows() > 0
    }

    /// All that was read is settled: reading has its turn again.
    pub(super) fn alternate<S>(&mut self, session: &mut Session<S>) {
        if self.reads_what_is_left(session) && !self.sender.is_suspended() {
            session.orphaned = Some(Instant::now());
            self.sender.suspend(true);
        }
    }

    /// Without its end the stream is given up, and begins again.
    pub(super) fn give_up_orphan<S>(&self, session: &Session<S>) -> Result<(), Failure> {
        let limit = if self.sender.is_suspended() {
            READ_LIMIT
        } else {
            SEND_LIMIT
        };
        match session.orphaned {
            Some(since) if session.broken.is_none() && since.elapsed() >= limit => {
                Err(Failure::Passing(anyhow!(
                    "slot {} is read by nobody; our connection is gone",
                    self.config.postgres.slot
                )))
            }
            _ => Ok(()),
        }
    }
}

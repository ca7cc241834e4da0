//! Rows of the table itself instead of the stream: read in order, sent by the same walk, and
//! waited for until the brokers have all of them.

use std::time::Instant;

use tokio::time::{MissedTickBehavior, interval};

use super::{Relay, TICK, session::Draining};
use crate::{
    dead_letters::store::Loaded,
    error::{Exit, Failure},
    ledger::{Content, Seq},
    lsn::{Lsn, PgTime, Position},
    outbox::{
        event_ids::EventIds,
        relation::Shape,
        row::{Origin, OutboxRow, Reread},
    },
    pg::{pgoutput::Tuple, table::Rows},
    shutdown::Shutdown,
    stop,
};

/// Which rows to publish, and as what.
pub struct Backfill<'a> {
    pub rows: Rows,
    pub shape: std::sync::Arc<Shape>,
    /// Events that the topics have already.
    pub except: &'a EventIds,
    pub reread: Reread,
    /// Where the slot begins; rows are numbered right before.
    pub at: Lsn,
    /// How many were numbered before, of other tables.
    pub numbered: u64,
    /// What makes these rows be published again after a stop.
    pub command: &'a str,
}

/// The place of a row, `number` from 1 on. Before all of the stream to come: its first transaction may
/// commit right where the slot begins, and a letter of each would then have the same place.
pub fn place(at: Lsn, number: u64) -> Position {
    Position {
        commit: Lsn::new(at.bytes().saturating_sub(1)),
        ordinal: u32::try_from(number).unwrap_or(u32::MAX),
    }
}

impl Relay {
    /// Publishes all of them and tells how many that were. `told` hears from time to time how many
    /// arrived so far.
    pub async fn backfill(
        &mut self,
        mut from: Backfill<'_>,
        letters: Loaded,
        shutdown: &Shutdown,
        mut told: impl FnMut(u64),
    ) -> Result<u64, Failure> {
        self.use_letters(letters);
        // What is read here has an older order than the stream to come, and what was kept before an
        // older one still: nothing of it is sent until all of this is.
        self.sender.parking.keep_only();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut draining = Draining::default();
        let (mut read, mut is_end, mut held) = (0, false, None::<Vec<u8>>);
        let mut poisoned = None;
        loop {
            if let Some(tuple) = held.take_if(|tuple| self.ledger.has_room(tuple.len())) {
                read += 1;
                self.open(&from, read, tuple);
            }
            self.send();
            self.tell_clerk(true);
            let settled = read - self.ledger.rows() as u64;
            if is_end && held.is_none() && self.ledger.rows() == 0 {
                told(settled);
                return Ok(read);
            }
            if let Some(poison) = self.sender.poison() {
                let since = poisoned.get_or_insert_with(Instant::now).elapsed();
                let oldest = self.ledger.first_from(Seq(0));
                let flushed = oldest.is_none_or(|oldest| oldest >= poison.seq);
                if flushed || since >= self.config.delivery.shutdown_grace {
                    return Err(self.stopped_at_row(settled, from.command));
                }
            }
            let reading =
                !is_end && held.is_none() && poisoned.is_none() && self.ledger.has_room(0);
            tokio::select! {
                biased;
                () = shutdown.requested.cancelled() => return Err(interrupted(settled, from.command)),
                () = self.deliveries.ready() => self.take_reports()?,
                made = self.factory.made() => self.on_producer(made),
                replies = self.inquirer.replies() => self.on_replies(replies),
                limit = self.limits.answered() => self.on_limit(limit),
                done = self.letters.clerk.answer(), if !self.letters.clerk.is_free() => self.on_clerk(done)?,
                _ = ticks.tick() => {
                    self.tend(&mut draining)?;
                    self.waiting_topics();
                    told(settled);
                }
                row = from.rows.next(), if reading => match row.map_err(Failure::Passing)? {
                    Some(tuple) => held = Some(tuple).filter(|tuple| !is_known(&from, tuple)),
                    None => is_end = true,
                },
            }
        }
    }

    fn open(&mut self, from: &Backfill<'_>, number: u64, tuple: Vec<u8>) {
        let position = place(from.at, from.numbered + number);
        // Its letter stands there already.
        if self.sender.parking.is_known(position) {
            return;
        }
        let (origin, shape) = (Origin::Table(from.reread), from.shape.clone());
        let tuple = tuple.into();
        self.ledger.open(
            origin,
            position,
            PgTime::now(),
            Content::Tuple { shape, tuple },
        );
    }

    fn stopped_at_row(&self, settled: u64, command: &str) -> Failure {
        let poison = self
            .sender
            .poison()
            .map(ToString::to_string)
            .unwrap_or_default();
        stop!(
            Exit::Policy,
            "{poison}. {settled} rows before it were published, nothing behind it, and the slot is not ready. Mend the cause and \
             run `{command}` again, which publishes from the first row again"
        )
        .into()
    }
}

fn is_known(from: &Backfill<'_>, tuple: &[u8]) -> bool {
    let row = OutboxRow::new(&from.shape, Tuple::from_bytes(tuple)).ok();
    let id = row.and_then(|row| row.event_id());
    id.is_some_and(|id| from.except.contains(id))
}

fn interrupted(settled: u64, command: &str) -> Failure {
    stop!(
        Exit::Grace,
        "stopped after {settled} rows, and the slot is not ready: run `{command}` again, which publishes from the first row again"
    )
    .into()
}

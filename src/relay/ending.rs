//! A stop in progress: finish the open transaction if half the grace suffices, flush, confirm, let
//! the server process it.

use std::time::{Duration, Instant};

use tracing::info;

use super::{
    Relay,
    session::{Session, Wire},
};
use crate::{
    error::{Exit, Failure},
    ledger::{ConfirmedLsn, Ledger, Seq},
    lsn::Lsn,
    stop,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// SIGTERM or SIGINT.
    Signal,
    /// A row that can never be delivered: nothing more is sent from it on.
    Poison,
    /// A transaction that the server cannot decode: nothing comes any more.
    Undecodable,
}

#[derive(Debug)]
pub struct Ending {
    pub why: Why,
    began: Instant,
    grace: Duration,
    reading: bool,
    pub stage: Stage,
}

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The open transaction is read to its end.
    Reading,
    /// Rows that can be delivered are not settled yet.
    Flushing,
    /// All is settled: check, confirm, wait until the server's slot shows it.
    Confirming,
    Done,
    /// The grace ended first.
    TimedOut,
}

/// What the server was told, and what its slot shows.
pub struct Told {
    pub confirmed: Option<Lsn>,
    pub stands: Option<Lsn>,
}

impl Ending {
    pub fn signal(grace: Duration) -> Self {
        Ending {
            why: Why::Signal,
            began: Instant::now(),
            grace,
            reading: true,
            stage: Stage::Reading,
        }
    }

    pub fn poison(grace: Duration) -> Self {
        Ending {
            why: Why::Poison,
            began: Instant::now(),
            grace,
            reading: false,
            stage: Stage::Flushing,
        }
    }

    pub fn undecodable(grace: Duration) -> Self {
        Ending {
            why: Why::Undecodable,
            ..Ending::poison(grace)
        }
    }

    pub fn is_reading(&self) -> bool {
        self.reading
    }

    /// Looks again. `poison` is the oldest row that can never be delivered.
    pub fn look(&mut self, ledger: &Ledger, poison: Option<Seq>, told: &Told) -> Stage {
        self.stage = self.next_stage(ledger, poison, told);
        self.stage
    }

    fn next_stage(&mut self, ledger: &Ledger, poison: Option<Seq>, told: &Told) -> Stage {
        let elapsed = self.began.elapsed();
        // Once over it stays over: the next transaction is the next publisher's.
        self.reading &= ledger.in_transaction() && poison.is_none() && elapsed < self.grace / 2;
        if elapsed >= self.grace {
            return Stage::TimedOut;
        }
        let oldest = ledger.first_from(Seq(0));
        let flushed = oldest.is_none_or(|seq| poison.is_some_and(|p| seq >= p));
        let frontier = ledger.frontier();
        if self.reading {
            Stage::Reading
        } else if !flushed {
            Stage::Flushing
        } else if self.why == Why::Undecodable
            && frontier <= ledger.ceiling()
            && frontier.is_none_or(|f| f <= ledger.reserved())
        {
            // A broken stream tells the server nothing: the slot is advanced by SQL.
            Stage::Done
        } else if frontier <= ledger.ceiling()
            && told.confirmed == frontier
            && frontier.is_none_or(|f| told.stands >= Some(f))
        {
            Stage::Done
        } else {
            Stage::Confirming
        }
    }
}

impl Relay {
    /// A stop is done; one that could not be finished is an error with its exit code.
    pub(super) fn is_over<S: Wire>(&mut self, session: &mut Session<S>) -> Result<bool, Failure> {
        let Some(ending) = &mut session.ending else {
            return Ok(false);
        };
        let poison = self.sender.poison();
        let told = Told {
            confirmed: session.reported_confirmed.map(ConfirmedLsn::lsn),
            stands: session.stands,
        };
        match (
            ending.look(&self.ledger, poison.map(|p| p.seq), &told),
            ending.why,
        ) {
            (Stage::Reading | Stage::Flushing | Stage::Confirming, _) => Ok(false),
            (Stage::Done | Stage::TimedOut, Why::Undecodable) if poison.is_none() => {
                Err(self.stopped_by_undecodable(session))
            }
            (Stage::Done | Stage::TimedOut, Why::Poison | Why::Undecodable) => {
                Err(self.stopped_by_poison())
            }
            (Stage::Done, Why::Signal) if self.ledger.in_transaction() => {
                Err(self.unconfirmed("half of the grace ended inside a transaction"))
            }
            (Stage::Done, Why::Signal) => {
                let at = told
                    .confirmed
                    .map_or("the slot's position".into(), |l| l.to_string());
                info!(confirmed = at, unconfirmed = 0, "stopped");
                Ok(true)
            }
            (Stage::TimedOut, Why::Signal) => Err(self.unconfirmed("the grace ended")),
        }
    }

    pub(super) fn unconfirmed(&self, why: &str) -> Failure {
        stop!(
            Exit::Grace,
            "stopped with {} rows in flight that are not confirmed ({why}); the next `walpost run` sends them again",
            self.ledger.rows(),
        )
        .into()
    }

    pub(super) fn stopped_by_poison(&self) -> Failure {
        let poison = self
            .sender
            .poison()
            .map(ToString::to_string)
            .unwrap_or_default();
        stop!(
            Exit::Policy,
            "{poison}. Slot {} stands before it: mend the cause and start `walpost run` again, which goes on from there",
            self.config.postgres.slot,
        )
        .into()
    }
}

//! A stop in progress: finish the open transaction if half the grace suffices, flush, confirm, let
//! the server process it.

use std::time::{Duration, Instant};

use crate::{
    ledger::{Ledger, Seq},
    lsn::Lsn,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// SIGTERM or SIGINT.
    Signal,
    /// A row that can never be delivered: nothing from it on is sent.
    Poison,
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

//! A transaction that the server cannot decode ends the stream each time it comes, at once behind
//! the rows before it. Those are settled and confirmed all the same, or they would be sent again
//! with each attempt and never be passed.

use super::{Relay, ending::Ending, session::Session};
use crate::{error::Failure, ledger::ConfirmedLsn, lsn::Lsn, pg::server_error::ServerError};

/// What a stream that ended so left behind.
pub struct Undecodable {
    /// Commit record of the transaction in which it failed; `None` when it failed before the server
    /// named one.
    pub commit_lsn: Option<Lsn>,
    /// All before it is settled and checked.
    pub settled: Option<ConfirmedLsn>,
}

impl Relay {
    /// The stream failed. What can be settled is settled first if the server failed at what it read.
    pub(super) fn on_failure<S>(
        &mut self,
        session: &mut Session<S>,
        failure: Failure,
    ) -> Result<(), Failure> {
        let Failure::Passing(error) = &failure else {
            return Err(failure);
        };
        let server = error.chain().find_map(|e| e.downcast_ref::<ServerError>());
        if session.ending.is_some() || !server.is_some_and(ServerError::is_of_content) {
            return Err(failure);
        }
        session.ending = Some(Ending::undecodable(self.config.delivery.shutdown_grace));
        session.broken = Some(failure);
        // Nothing more is read; what was may go once a check allows it.
        session.orphaned = None;
        session.check_now = true;
        Ok(())
    }

    /// The end of such a stream.
    pub(super) fn stopped_by_undecodable<S>(&mut self, session: &mut Session<S>) -> Failure {
        self.undecodable = Some(Undecodable {
            commit_lsn: self.ledger.open_commit(),
            settled: self.ledger.confirmed(),
        });
        let ended = || Failure::Passing(anyhow::anyhow!("internal: a stream without its failure"));
        session.broken.take().unwrap_or_else(ended)
    }

    /// What the last stream left, if it ended so.
    pub fn take_undecodable(&mut self) -> Option<Undecodable> {
        self.undecodable.take()
    }
}

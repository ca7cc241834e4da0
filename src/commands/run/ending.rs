//! How a stream ends: what is noted of it, and what is said of it when it was the last one.

use std::time::Duration;

use anyhow::anyhow;
use tokio_postgres::error::SqlState;
use tracing::{debug, warn};

use super::Publisher;
use crate::{
    error::{Exit, Failure, Stop},
    lsn::Lsn,
    pg::{
        lost::at_stake,
        publication::Missed,
        server_error::ServerError,
        watch::{Answer, Question},
    },
    relay::Undecodable,
};

/// How long a clean stop waits for its last note in `walpost.slot`.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// A transaction that could not be decoded so often is worth naming.
const STUCK: u32 = 3;

impl Publisher {
    /// A stop that asks for the operator says how much waits for him.
    pub(super) async fn last_words(&mut self, stop: Stop) -> Stop {
        let stop = self.behind(stop).await;
        let facts = self.state.lock().slot.clone();
        let Some((facts, _)) = facts.filter(|_| stop.exit == Exit::Slot) else {
            return stop;
        };
        match at_stake(&self.info, &self.names, &facts).await {
            Some(stake) => Stop::new(Exit::Slot, anyhow!("{stop}. {stake}")),
            None => stop,
        }
    }

    /// What is behind a stop, seen from the catalogue of now.
    async fn behind(&mut self, stop: Stop) -> Stop {
        if let Some(missed) = stop.cause.downcast_ref::<Missed>() {
            // Without a note nobody would know what to recover.
            let question = Question::Missed {
                after: missed.after,
            };
            let answer = self.watch.ask_now(question).await;
            if !matches!(answer, Answer::Noted) {
                warn!(?answer, "what the stream showed was not noted");
            }
            return stop;
        }
        if stop.exit != Exit::Policy {
            return stop;
        }
        match self.check().await {
            // A publication that leaves a column out makes each event look broken, and mending
            // events would be in vain.
            Err(Failure::Stop(cause)) if cause.exit == Exit::Slot => {
                warn!("{stop}");
                cause
            }
            _ => stop,
        }
    }

    /// After a clean stop nothing beyond the confirmed position is ours. Left undone, it only makes
    /// the next start less strict.
    pub(super) async fn release(&mut self, epoch: i64, confirmed: Lsn) {
        let question = Question::Release { epoch, confirmed };
        let answer = tokio::time::timeout(RELEASE_TIMEOUT, self.watch.ask_now(question)).await;
        if !matches!(answer, Ok(Answer::Released)) {
            debug!(?answer, "the reserve was not given back");
        }
    }

    /// The server could not decode a transaction. What is settled before it is passed; when the same
    /// one fails again and again, it is named.
    pub(super) async fn undecodable(
        &mut self,
        failure: Failure,
        left: Undecodable,
        epoch: i64,
    ) -> Failure {
        if let Some(to) = left.settled {
            let question = Question::Advance { epoch, to };
            let answer = self.watch.ask_now(question).await;
            if !matches!(answer, Answer::Advanced) {
                debug!(?answer, "the slot was not advanced");
            }
        }
        let (Failure::Passing(error), Some(commit)) = (&failure, left.commit_lsn) else {
            return failure;
        };
        self.stuck = match self.stuck {
            Some((at, times)) if at == commit => Some((at, times + 1)),
            _ => Some((commit, 1)),
        };
        match self.stuck {
            Some((_, times)) if times >= STUCK => Failure::Passing(anyhow!(
                "slot {} is stuck: the server cannot decode the transaction that commits at {commit}: {error:#}. If that cannot be \
                 mended, stop this publisher and pass that one transaction with `walpost skip --transaction {commit} --reason TEXT`",
                self.names.slot
            )),
            _ => failure,
        }
    }

    /// The stream ended with an error. 42704 is the code of a missing slot and of a publication that
    /// did not exist at some position of the stream: the catalogue of now tells them apart.
    pub(super) async fn explain(&mut self, failure: Failure) -> Failure {
        let Failure::Passing(error) = failure else {
            return failure;
        };
        if ServerError::code_of(&error) != Some(SqlState::UNDEFINED_OBJECT) {
            return Failure::Passing(error);
        }
        match self.check().await {
            Ok(facts) => {
                let confirmed = facts.slot.and_then(|slot| slot.confirmed_flush_lsn);
                let missed = Missed {
                    publication: self.names.publication.clone(),
                    after: confirmed.unwrap_or(Lsn::ZERO),
                };
                let text = format!("slot {} cannot be read on: {error:#}", self.names.slot);
                Stop::new(Exit::Slot, anyhow::Error::new(missed).context(text)).into()
            }
            Err(Failure::Stop(stop)) => stop.into(),
            Err(Failure::Passing(_)) => Failure::Passing(error),
        }
    }
}

//! Which server it is: the two connections reach the same one, and never one that was left behind
//! by a promotion.

use anyhow::{Context as _, anyhow};

use crate::{
    error::Failure,
    pg::{slot::SlotFacts, tls::Stream, wire::Replication},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerId {
    system_identifier: String,
    timeline: u32,
}

impl ServerId {
    pub fn of(facts: &SlotFacts) -> Self {
        ServerId {
            system_identifier: facts.server.system_identifier.clone(),
            timeline: facts.server.timeline,
        }
    }

    /// What the replication connection leads to.
    pub async fn identify(connection: &mut Replication<Stream>) -> Result<Self, Failure> {
        let rows = connection.simple_query("IDENTIFY_SYSTEM").await?;
        let cell = |column: usize| rows.first()?.get(column)?.clone();
        let found = || {
            Some(ServerId {
                system_identifier: cell(0)?,
                timeline: cell(1)?.parse().ok()?,
            })
        };
        found()
            .context("the server's answer to IDENTIFY_SYSTEM lacks its columns")
            .map_err(Failure::Passing)
    }

    /// With several hosts, each connection finds its own way.
    pub fn same(&self, other: &ServerId) -> Result<(), Failure> {
        if self == other {
            return Ok(());
        }
        Err(Failure::Passing(anyhow!(
            "two connections reached two servers: system identifier {}, timeline {}, and system identifier {}, timeline {}",
            self.system_identifier,
            self.timeline,
            other.system_identifier,
            other.timeline
        )))
    }

    /// A primary that comes back after another one was promoted has a past of its own: what is
    /// written there is not what the application relies on.
    pub fn not_older_than(&self, newest: Option<&ServerId>) -> Result<(), Failure> {
        let Some(newest) = newest.filter(|newest| {
            newest.system_identifier == self.system_identifier && newest.timeline > self.timeline
        }) else {
            return Ok(());
        };
        Err(Failure::Passing(anyhow!(
            "the server is on timeline {}, and the slot was read on timeline {} before: this is an old primary that came back. \
             Nothing is read from it; stop it, or let the connection lead to the new one",
            self.timeline,
            newest.timeline
        )))
    }
}

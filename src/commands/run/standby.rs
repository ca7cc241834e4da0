//! One publisher at a time: the locks on slot and table, and the wait for whoever holds them.

use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;
use tracing::warn;

use super::Publisher;
use crate::{
    error::Failure,
    pg::{server_error::ServerError, tls::Stream, wire::Replication},
    state::Role,
};

/// Between two looks at locks that another publisher holds.
const STANDBY_POLL: Duration = Duration::from_millis(500);

/// How old what a standby tells of slot and holder may be.
const STANDBY_LOOK: Duration = Duration::from_secs(10);

/// Between two warnings that a slot which isn't read keeps WAL.
const STANDBY_WARNING: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
enum Lock {
    Slot,
    Table,
}

impl Publisher {
    /// The locks live and die with the replication connection: whoever streams holds them. Tables in
    /// the order of their OIDs, so that two publishers of several never wait for each other.
    pub(super) async fn take_locks(
        &mut self,
        connection: &mut Replication<Stream>,
        mut table_oids: Vec<u32>,
    ) -> Result<(), Failure> {
        let slot = crate::pg::quote::literal(&self.names.slot);
        let slot_key = format!("pg_catalog.hashtext('walpost.slot'), pg_catalog.hashtext({slot})");
        self.take_lock(connection, &slot_key, Lock::Slot).await?;
        table_oids.sort_unstable();
        for oid in table_oids {
            // Keys are signed; an OID above 2^31 wraps around.
            let key = format!("pg_catalog.hashtext('walpost'), {}", oid.cast_signed());
            self.take_lock(connection, &key, Lock::Table).await?;
        }
        Ok(())
    }

    /// Asks again and again: a call that waits inside the server would hold back VACUUM.
    async fn take_lock(
        &mut self,
        connection: &mut Replication<Stream>,
        key: &str,
        lock: Lock,
    ) -> Result<(), Failure> {
        let sql = format!("SELECT pg_catalog.pg_try_advisory_lock({key})");
        let mut warned: Option<Instant> = None;
        let mut looked = Instant::now();
        loop {
            let rows = self.in_time(connection.simple_query(&sql)).await?;
            if rows.first().and_then(|row| row.first()?.as_deref()) == Some("t") {
                return Ok(());
            }
            self.look(&mut looked).await?;
            let names = &self.names;
            let reason = match lock {
                Lock::Slot => format!(
                    "slot {} is held by {}",
                    names.slot,
                    self.holder()
                        .unwrap_or("another walpost that is about to stream".into())
                ),
                Lock::Table => format!(
                    "table {} is published by another walpost with another slot; our slot {} is not read meanwhile and retains WAL",
                    names.listed(),
                    names.slot
                ),
            };
            let due = match lock {
                Lock::Slot => warned.is_none(),
                Lock::Table => warned.is_none_or(|at| at.elapsed() >= STANDBY_WARNING),
            };
            if due {
                warn!("standby: {reason}");
                warned = Some(Instant::now());
            }
            self.set_role(Role::Standby, Some(reason));
            tokio::time::sleep(STANDBY_POLL).await;
        }
    }

    /// What is told of slot and holder stays true, and a slot that is lost meanwhile is no secret.
    async fn look(&mut self, looked: &mut Instant) -> Result<(), Failure> {
        if looked.elapsed() >= STANDBY_LOOK {
            *looked = Instant::now();
            self.check().await?;
        }
        Ok(())
    }

    /// Who reads the slot, as it was seen last.
    fn holder(&self) -> Option<String> {
        let state = self.state.lock();
        let holder = state
            .slot
            .as_ref()
            .and_then(|(facts, _)| facts.holder.as_ref())?;
        let since = holder
            .since
            .map_or(String::new(), |since| format!(" since {since}"));
        Some(format!(
            "pid {} ({}, client {}){since}",
            holder.pid,
            holder
                .application
                .as_deref()
                .unwrap_or("unknown application"),
            holder.client.as_deref().unwrap_or("local or hidden"),
        ))
    }

    /// A slot that is still active belongs to a client that isn't ours, or to a connection of ours
    /// that died and that the server has not noticed yet: wait, and never end it.
    pub(super) async fn start_replication(
        &mut self,
        connection: &mut Replication<Stream>,
    ) -> Result<(), Failure> {
        let (mut warned, mut looked) = (false, Instant::now());
        loop {
            let started = connection.start_replication(&self.names.slot, &self.names.publication);
            match self.in_time(started).await {
                Err(Failure::Passing(error))
                    if ServerError::code_of(&error) == Some(SqlState::OBJECT_IN_USE) =>
                {
                    let reason = match self.holder() {
                        Some(holder) => {
                            format!("slot {} is held by {holder}", self.names.slot)
                        }
                        None => format!("{error:#}"),
                    };
                    if !warned {
                        warn!("standby: {reason}");
                        warned = true;
                    }
                    self.set_role(Role::Standby, Some(reason));
                    self.look(&mut looked).await?;
                    tokio::time::sleep(STANDBY_POLL).await;
                }
                other => return other,
            }
        }
    }
}

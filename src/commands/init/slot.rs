//! The slot: made, taken over, or made anew after an init that was interrupted.

use tokio::time::{Instant, sleep};

use super::{Init, POLL_EVERY};
use crate::{
    error::{Exit, Stop},
    lsn::Lsn,
    pg::{
        create_slot::{Made, blamed, blockers, create_slot, make_failover},
        mark,
        quote::literal,
        record,
        setup::look_at_rest,
        slot::{Slot, SlotFacts},
        verdict::{lacks_failover, ours},
    },
    stop,
};

impl Init {
    /// A slot that is there without our row: made by hand, with the same rights and SQL.
    pub(super) fn adopt(&self, slot: &Slot, facts: &SlotFacts) -> Result<Lsn, Stop> {
        let name = &self.names.slot;
        ours(slot, &facts.database, name)?;
        if slot.active {
            return Err(held(name, facts));
        }
        if facts.publication.is_none() {
            return Err(stop!(
                Exit::Slot,
                "slot {name} is there but publication {} is not: what was written since the slot was made could not be \
                 decoded. If nothing reads the slot, drop it with `SELECT pg_drop_replication_slot({})`, then `walpost init` again",
                self.names.publication,
                literal(name)
            ));
        }
        match (slot.confirmed_flush_lsn, slot.wal_status.as_deref()) {
            (Some(at), Some("reserved" | "extended" | "unreserved")) => Ok(at),
            (_, status) => Err(stop!(
                Exit::Slot,
                "slot {name} cannot be read from (WAL {}): drop it with `SELECT pg_drop_replication_slot({})`, then `walpost init` again",
                status.unwrap_or("not reserved"),
                literal(name)
            )),
        }
    }

    /// Of an init that was interrupted, perhaps still at work on the server. Nothing was published
    /// from such a slot.
    pub async fn drop_half_made(&self, slot: &Slot, database: &str) -> anyhow::Result<()> {
        self.drop_old(slot, database).await?;
        self.out.say(&format!(
            "dropped slot {}, which was half-made",
            self.names.slot
        ))
    }

    /// One of ours that is of no use any more.
    pub async fn drop_old(&self, slot: &Slot, database: &str) -> anyhow::Result<()> {
        let name = &self.names.slot;
        ours(slot, database, name)?;
        loop {
            record::drop_slot(&self.client, name).await?;
            let facts = self.facts().await?;
            if facts.slot.is_none() {
                return Ok(());
            }
            if Instant::now() >= self.within.deadline {
                return Err(self.still_there(&facts).await?.into());
            }
            sleep(POLL_EVERY).await;
        }
    }

    async fn still_there(&self, facts: &SlotFacts) -> anyhow::Result<Stop> {
        let name = &self.names.slot;
        let slot = facts.slot.as_ref();
        Ok(match slot.and_then(|s| s.active_pid) {
            Some(pid) if slot.is_some_and(|s| s.confirmed_flush_lsn.is_none()) => stop!(
                Exit::Grace,
                "slot {name}: a creation that was begun earlier (pid {pid}) still goes on{}. Wait for it, or end it with \
                 `SELECT pg_terminate_backend({pid})`; then run `{}` again",
                blamed(&blockers(&self.client, pid).await?),
                self.within.command
            ),
            _ => held(name, facts),
        })
    }

    pub(super) async fn make(
        &self,
        facts: &SlotFacts,
        begun: bool,
        export: bool,
    ) -> anyhow::Result<Made> {
        let name = &self.names.slot;
        record::creating(&self.client, name).await?;
        match self.create(facts, export).await {
            Ok(made) => Ok(made),
            Err(error) => {
                let ended = Exit::of(&error) == Exit::Grace;
                if let Err(why) = self.undo(ended, begun).await {
                    tracing::warn!(
                        "slot {name} stays marked as half-made, until the next init: {why:#}"
                    );
                }
                Err(error)
            }
        }
    }

    /// Makes the slot that is there one that standbys keep in step, if that is asked for; `true`
    /// when it was none.
    pub(super) async fn failover(&self, facts: &SlotFacts) -> anyhow::Result<bool> {
        let name = &self.names.slot;
        let Some(slot) = facts
            .slot
            .as_ref()
            .filter(|_| lacks_failover(facts, &self.names))
        else {
            return Ok(false);
        };
        ours(slot, &facts.database, name)?;
        let facts = look_at_rest(&self.client, &self.names, &self.conninfo.user).await?;
        if facts.slot.as_ref().is_some_and(|slot| slot.active) {
            return Err(held(name, &facts).into());
        }
        make_failover(&self.conninfo, name).await?;
        self.out
            .say(&format!("slot {name} is a failover slot from now on"))?;
        Ok(true)
    }

    /// The slot itself; `export`: with the snapshot of its beginning.
    pub async fn create(&self, facts: &SlotFacts, export: bool) -> anyhow::Result<Made> {
        // Below the slot's beginning: should its place be lost, rows from before it are known.
        mark::write(&self.client).await?;
        let made = create_slot(
            &self.conninfo,
            &self.client,
            &self.names,
            self.within,
            export,
        )
        .await?;
        let (here, there) = (&facts.server.system_identifier, &made.system_identifier);
        anyhow::ensure!(
            here == there,
            "two connections reached two clusters, with system identifiers {here} and {there}"
        );
        Ok(made)
    }

    /// After a creation that failed. `ended`: it was ours that was ended, so a slot that is there
    /// nevertheless is ours too.
    async fn undo(&self, ended: bool, begun: bool) -> anyhow::Result<()> {
        if ended {
            record::drop_slot(&self.client, &self.names.slot).await?;
            let slot = self.facts().await?.slot;
            anyhow::ensure!(slot.is_none(), "its creation goes on in the server");
        }
        // A row of an earlier attempt stays, with its life.
        match begun {
            true => Ok(()),
            false => record::forget(&self.client, &self.names.slot).await,
        }
    }
}

pub fn held(slot: &str, facts: &SlotFacts) -> Stop {
    let holder = facts.holder.as_ref();
    stop!(
        Exit::Slot,
        "slot {slot} is read by pid {} ({}): stop that program, or choose another name (`postgres.slot`)",
        holder.map_or(0, |h| h.pid),
        holder
            .and_then(|h| h.application.as_deref())
            .unwrap_or("an unknown application")
    )
}

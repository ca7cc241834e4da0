//! Our row in `walpost.slot`, as `init` writes it.

use anyhow::Context as _;
use tokio_postgres::{
    Client,
    types::{ToSql, Type},
};

use crate::{
    dead_letters::store::Owner,
    lsn::Lsn,
    pg::{
        setup::{explain, unless_denied},
        slot::{Names, SlotFacts},
    },
};

/// Who writes dead letters of the slot's present life.
pub async fn owner(client: &Client, slot: &str) -> anyhow::Result<Owner> {
    let text = "SELECT epoch, life FROM walpost.slot WHERE slot = $1";
    let rows = client
        .query_typed(text, &[(&slot, Type::TEXT)])
        .await
        .map_err(explain)?;
    let row = rows
        .first()
        .context("the slot has no row in walpost.slot")?;
    Ok(Owner {
        slot: slot.to_owned(),
        epoch: row.try_get(0)?,
        life: row.try_get(1)?,
    })
}

/// From here on the slot counts as half-made until `made`.
pub async fn creating(client: &Client, slot: &str) -> anyhow::Result<()> {
    // Another life: positions of an earlier slot of this name may come again.
    let text = "INSERT INTO walpost.slot AS s (slot, state) VALUES ($1, 'creating')
        ON CONFLICT (slot) DO UPDATE SET state = 'creating', life = s.life + 1, confirmed_lsn = NULL,
          committed_at = NULL, updated_at = pg_catalog.now()";
    execute(client, text, &[(&slot, Type::TEXT)]).await
}

/// Undoes `creating` where there was no row before.
pub async fn forget(client: &Client, slot: &str) -> anyhow::Result<()> {
    let text = "DELETE FROM walpost.slot WHERE slot = $1 AND state = 'creating'";
    execute(client, text, &[(&slot, Type::TEXT)]).await
}

/// After the slot was dropped on purpose.
pub async fn remove(client: &Client, slot: &str) -> anyhow::Result<()> {
    let text = "WITH line AS (DELETE FROM walpost.timeline WHERE slot = $1) DELETE FROM walpost.slot WHERE slot = $1";
    execute(client, text, &[(&slot, Type::TEXT)]).await
}

/// The slot's place in the log is lost at this position: from here on `backfilling`, with the
/// position kept in `confirmed_lsn` until all behind it is published.
pub async fn losing(client: &Client, slot: &str, position: Lsn) -> anyhow::Result<()> {
    let text = "UPDATE walpost.slot SET state = 'backfilling', life = life + 1, confirmed_lsn = $2::pg_catalog.pg_lsn,
          consistent_point = NULL, reserved_lsn = NULL, holder = NULL, updated_at = pg_catalog.now()
        WHERE slot = $1";
    let position = position.to_string();
    execute(
        client,
        text,
        &[(&slot, Type::TEXT), (&position, Type::TEXT)],
    )
    .await
}

/// Another attempt to publish what the table holds: its rows' positions may come again.
pub async fn again(client: &Client, slot: &str) -> anyhow::Result<()> {
    let text = "UPDATE walpost.slot SET life = life + 1, updated_at = pg_catalog.now() WHERE slot = $1 AND state = 'backfilling'";
    execute(client, text, &[(&slot, Type::TEXT)]).await
}

/// What the table held is published. Nothing of the stream was confirmed in this life yet.
pub async fn finished(client: &Client, slot: &str) -> anyhow::Result<()> {
    let text = "UPDATE walpost.slot SET state = 'ready', confirmed_lsn = NULL, committed_at = NULL, updated_at = pg_catalog.now()
        WHERE slot = $1 AND state = 'backfilling'";
    execute(client, text, &[(&slot, Type::TEXT)]).await
}

/// What follows when the slot is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It may be read.
    Ready,
    /// Rows of the table come first.
    Backfilling,
}

/// The slot's identity, and its state. Nothing was confirmed in this life yet.
pub async fn made(
    client: &Client,
    facts: &SlotFacts,
    names: &Names,
    consistent_point: Lsn,
    next: Next,
) -> anyhow::Result<()> {
    let fingerprint = facts.fingerprint().map(|print| print.to_string());
    let (database, system) = (&facts.database, &facts.server.system_identifier);
    let text = "WITH line AS (INSERT INTO walpost.timeline (slot, timeline) VALUES ($1, $7)
          ON CONFLICT (slot) DO UPDATE SET timeline = $7)
        INSERT INTO walpost.slot AS s (slot, state, system_identifier, database, plugin, consistent_point, publication, reserved_lsn)
        VALUES ($1, $6, $2, $3, 'pgoutput', $4::pg_catalog.pg_lsn, $5::jsonb, $4::pg_catalog.pg_lsn)
        ON CONFLICT (slot) DO UPDATE SET state = $6, system_identifier = $2, database = $3, plugin = 'pgoutput',
          consistent_point = $4::pg_catalog.pg_lsn, publication = $5::jsonb,
          confirmed_lsn = CASE WHEN $6 = 'backfilling' THEN s.confirmed_lsn END, committed_at = NULL,
          reserved_lsn = $4::pg_catalog.pg_lsn, holder = NULL, updated_at = pg_catalog.now()";
    let timeline = facts.server.timeline.cast_signed();
    let at = consistent_point.to_string();
    let state = match next {
        Next::Ready => "ready",
        Next::Backfilling => "backfilling",
    };
    let values: &[(&(dyn ToSql + Sync), Type)] = &[
        (&names.slot, Type::TEXT),
        (system, Type::TEXT),
        (database, Type::TEXT),
        (&at, Type::TEXT),
        (&fingerprint, Type::TEXT),
        (&state, Type::TEXT),
        (&timeline, Type::INT4),
    ];
    execute(client, text, values).await
}

/// The publication as it is now was reviewed by an operator.
pub async fn accept(client: &Client, facts: &SlotFacts, names: &Names) -> anyhow::Result<()> {
    let fingerprint = facts.fingerprint().map(|print| print.to_string());
    let text = "UPDATE walpost.slot SET publication = $2::jsonb, updated_at = pg_catalog.now()
        WHERE slot = $1";
    let values: &[(&(dyn ToSql + Sync), Type)] =
        &[(&names.slot, Type::TEXT), (&fingerprint, Type::TEXT)];
    execute(client, text, values).await
}

/// Drops the slot if it is there and nobody reads it.
pub async fn drop_slot(client: &Client, slot: &str) -> anyhow::Result<()> {
    let text =
        "SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_catalog.pg_replication_slots
        WHERE slot_name = $1 AND NOT active";
    client
        .query_typed(text, &[(&slot, Type::TEXT)])
        .await
        .map_err(explain)?;
    Ok(())
}

async fn execute(
    client: &Client,
    text: &str,
    values: &[(&(dyn ToSql + Sync), Type)],
) -> anyhow::Result<()> {
    client.query_typed(text, values).await.map_err(|error| {
        unless_denied(error, "write to walpost.slot", || {
            "its owner is another role: let that role run init, or `GRANT SELECT, INSERT, UPDATE, DELETE ON walpost.slot`".into()
        })
    })?;
    Ok(())
}

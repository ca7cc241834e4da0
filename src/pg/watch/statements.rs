//! What the side connection writes, and what it listens to.

use tokio_postgres::{Client, Notification, error::SqlState, types::Type};

use super::{Note, RESERVE};
use crate::{
    ledger::ConfirmedLsn,
    lsn::Lsn,
    pg::{mark, verdict::MISSED_AFTER},
};

/// Bookkeeping lets no position pass, so it waits for no standby: if we were taken for one
/// ourselves, it would wait for us.
const LOCAL: &str =
    "WITH local AS (SELECT pg_catalog.set_config('synchronous_commit', 'local', true))";

/// The same for several statements.
const LOCAL_FIRST: &str = "BEGIN; SET LOCAL synchronous_commit = local";

/// Of a primary. The control file follows a promotion only at the next checkpoint.
const TIMELINE: &str = "('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::int";

/// Where every take-over of this database is told: slot and epoch, with a blank in between.
const CHANNEL: &str = "walpost.slot";

/// Hears of take-overs from now on.
pub(super) async fn listen(client: &Client) -> Result<(), tokio_postgres::Error> {
    let listening = client.batch_execute(&format!("LISTEN \"{CHANNEL}\"")).await;
    match listening {
        // A standby in recovery takes no listeners, and has no publishers.
        Err(error) if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => Ok(()),
        other => other,
    }
}

/// The epoch that somebody began who says that he took the slot over. Anyone may say so.
pub(super) fn heard(notification: &Notification, slot: &str) -> Option<i64> {
    let (of, epoch) = notification.payload().rsplit_once(' ')?;
    (notification.channel() == CHANNEL && of == slot)
        .then(|| epoch.parse().ok())
        .flatten()
}

/// Reserves at once and writes a mark: confirming the first rows then writes nothing.
pub(super) async fn take_over(
    client: &Client,
    slot: &str,
) -> Result<(i64, Lsn), tokio_postgres::Error> {
    let rows = client
        .query_typed(
            &format!(
                "{LOCAL}, line AS (INSERT INTO walpost.timeline AS t (slot, timeline) SELECT slot, {TIMELINE} FROM walpost.slot WHERE slot = $1
                   ON CONFLICT (slot) DO UPDATE SET timeline = excluded.timeline WHERE t.timeline <> excluded.timeline)
                 UPDATE walpost.slot SET epoch = epoch + 1, updated_at = pg_catalog.now(),
                   holder = pg_catalog.current_setting('application_name'),
                   reserved_lsn = greatest(reserved_lsn, pg_catalog.pg_current_wal_insert_lsn() + {RESERVE})
                 FROM local WHERE slot = $1
                 RETURNING epoch, reserved_lsn::text, pg_catalog.pg_notify('{CHANNEL}', slot || ' ' || epoch)"
            ),
            &[(&slot, Type::TEXT)],
        )
        .await?;
    // The check before this one saw the row; without one nothing can be confirmed.
    let Some(row) = rows.first() else {
        return Ok((0, Lsn::ZERO));
    };
    let reserved: String = row.try_get(1)?;
    write_mark(client).await?;
    Ok((row.try_get(0)?, reserved.parse().unwrap_or(Lsn::ZERO)))
}

pub(super) async fn write_mark(client: &Client) -> Result<(), tokio_postgres::Error> {
    let write = format!("{LOCAL_FIRST}; {}; {}; COMMIT", mark::WRITE, mark::PRUNE);
    client.batch_execute(&write).await
}

/// Writes nothing when there is nothing to write. PostgreSQL's clock starts in 2000.
pub(super) async fn write(
    client: &Client,
    slot: &str,
    note: &Note,
) -> Result<(), tokio_postgres::Error> {
    if note.mark {
        write_mark(client).await?;
    }
    if note.progress.is_none() && note.reserve.is_none() {
        return Ok(());
    }
    let progress = note.progress.as_ref();
    let confirmed = progress.map(|p| p.confirmed.to_string());
    let committed_at = progress.map(|p| p.committed_at.micros());
    let reserve = note.reserve.map(|lsn| lsn.to_string());
    client
        .query_typed(
            &format!(
                "{LOCAL} UPDATE walpost.slot SET updated_at = pg_catalog.now(),
                   confirmed_lsn = coalesce($3::pg_catalog.pg_lsn, confirmed_lsn),
                   committed_at = coalesce('2000-01-01 00:00:00+00'::timestamptz + $4 * interval '1 microsecond', committed_at),
                   reserved_lsn = greatest($5::pg_catalog.pg_lsn, reserved_lsn)
                 FROM local WHERE slot = $1 AND epoch = $2"
            ),
            &[
                (&slot, Type::TEXT),
                (&note.epoch, Type::INT8),
                (&confirmed, Type::TEXT),
                (&committed_at, Type::INT8),
                (&reserve, Type::TEXT),
            ],
        )
        .await
        .map(drop)
}

/// Only while nobody reads the slot and it is still ours.
pub(super) async fn advance(
    client: &Client,
    slot: &str,
    epoch: i64,
    to: ConfirmedLsn,
) -> Result<(), tokio_postgres::Error> {
    client
        .query_typed(
            "SELECT pg_catalog.pg_replication_slot_advance(r.slot_name, $3::pg_catalog.pg_lsn)
             FROM pg_catalog.pg_replication_slots r JOIN walpost.slot s ON s.slot = r.slot_name AND s.epoch = $2
             WHERE r.slot_name = $1 AND NOT r.active AND r.confirmed_flush_lsn < $3::pg_catalog.pg_lsn",
            &[
                (&slot, Type::TEXT),
                (&epoch, Type::INT8),
                (&to.to_string(), Type::TEXT),
            ],
        )
        .await
        .map(drop)
}

/// In the place of the publication's fingerprint, so that it stays known until `recover`.
pub(super) async fn missed(
    client: &Client,
    slot: &str,
    after: Lsn,
) -> Result<(), tokio_postgres::Error> {
    let text = "UPDATE walpost.slot SET publication = pg_catalog.jsonb_build_object($3, $2), updated_at = pg_catalog.now()
        WHERE slot = $1";
    let after = after.to_string();
    let values = [
        (&slot as _, Type::TEXT),
        (&after as _, Type::TEXT),
        (&MISSED_AFTER as _, Type::TEXT),
    ];
    client.query_typed(text, &values).await.map(drop)
}

pub(super) async fn release(
    client: &Client,
    slot: &str,
    epoch: i64,
    confirmed: Lsn,
) -> Result<(), tokio_postgres::Error> {
    client
        .query_typed(
            &format!(
                "{LOCAL} UPDATE walpost.slot SET updated_at = pg_catalog.now(), holder = NULL,
                   reserved_lsn = $3::pg_catalog.pg_lsn
                 FROM local WHERE slot = $1 AND epoch = $2"
            ),
            &[
                (&slot, Type::TEXT),
                (&epoch, Type::INT8),
                (&confirmed.to_string(), Type::TEXT),
            ],
        )
        .await
        .map(drop)
}

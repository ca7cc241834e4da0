//! Marks: places in the log, each with a transaction number. A row that an older transaction wrote
//! was committed below the place; that tells rows apart when their place in the log is lost.

use jiff::Timestamp;
use tokio_postgres::{Client, types::Type};

use crate::{lsn::Lsn, pg::setup::explain};

/// Writes a mark of this moment. Of use although nothing of the log was read up to it yet.
///
/// The statement's snapshot is taken before the position is read, so each transaction that had
/// ended in the snapshot has its commit record below the position.
pub const WRITE: &str = "INSERT INTO walpost.mark (lsn, xid, at)
    SELECT pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()), pg_catalog.clock_timestamp()
    ON CONFLICT DO NOTHING";

/// Deletes what is older than 30 days or behind the newest 10,000, but never the newest mark that
/// every slot of the database has passed, nor one above it.
pub const PRUNE: &str = "DELETE FROM walpost.mark
    WHERE lsn < (SELECT pg_catalog.max(m.lsn) FROM walpost.mark m
        WHERE m.lsn <= (SELECT pg_catalog.min(coalesce(s.confirmed_lsn, s.consistent_point)) FROM walpost.slot s))
      AND (at < pg_catalog.now() - interval '30 days'
        OR lsn <= (SELECT m.lsn FROM walpost.mark m ORDER BY m.lsn DESC OFFSET 10000 LIMIT 1))";

pub async fn write(client: &Client) -> anyhow::Result<()> {
    client.query_typed(WRITE, &[]).await.map_err(explain)?;
    Ok(())
}

/// Rows that transactions before `xid` wrote were committed below `lsn`.
#[derive(Clone, Debug)]
pub struct Mark {
    pub lsn: Lsn,
    /// Of 64 bits, as decimal digits.
    pub xid: u64,
    pub at: Timestamp,
}

impl Mark {
    /// True of a row that may have been committed at or above the mark, as SQL.
    ///
    /// A transaction number has 32 bits in the row: ages compare where the bare numbers wrap
    /// around. What is too old for that looks new, and is only sent once more.
    pub fn is_recent(&self) -> String {
        format!(
            "pg_catalog.age(xmin) <= pg_catalog.age('{}'::pg_catalog.xid8::pg_catalog.xid)",
            self.xid
        )
    }
}

/// The newest mark at or below a position.
pub async fn newest(client: &Client, position: Lsn) -> anyhow::Result<Option<Mark>> {
    let text = "SELECT lsn::text, xid::text, extract(epoch FROM at)::float8 FROM walpost.mark m
        WHERE lsn <= $1::pg_catalog.pg_lsn ORDER BY m.lsn DESC LIMIT 1";
    let position = position.to_string();
    let rows = client
        .query_typed(text, &[(&position, Type::TEXT)])
        .await
        .map_err(explain)?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let at: f64 = row.try_get(2)?;
    Ok(Some(Mark {
        lsn: row.try_get::<_, &str>(0)?.parse()?,
        xid: row.try_get::<_, &str>(1)?.parse()?,
        at: Timestamp::from_millisecond((at * 1000.0) as i64)?,
    }))
}

/// Those of another cluster, which an upgrade or a copy brought along: their numbers mean nothing
/// here, and taken for ours they would hide rows. Where no other slot of this cluster needs marks,
/// a slot that is made begins without any.
pub async fn forget_others(
    client: &Client,
    slot: &str,
    system_identifier: &str,
) -> anyhow::Result<()> {
    let text = "DELETE FROM walpost.mark
        WHERE NOT EXISTS (SELECT FROM walpost.slot WHERE slot <> $1 AND system_identifier = $2)";
    let values = [
        (&slot as _, Type::TEXT),
        (&system_identifier as _, Type::TEXT),
    ];
    client.query_typed(text, &values).await.map_err(explain)?;
    Ok(())
}

/// Of another cluster: its numbers mean nothing here.
pub async fn forget_all(client: &Client) -> anyhow::Result<()> {
    client
        .query_typed("DELETE FROM walpost.mark", &[])
        .await
        .map_err(explain)?;
    Ok(())
}

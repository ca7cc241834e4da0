//! From which position on something was not published, and how much that is.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::types::Type;
use tracing::debug;

use crate::{
    lsn::Lsn,
    pg::{
        conninfo::ConnInfo,
        mark::{self, Mark},
        quote::table,
        setup::{COUNT_TO, explain, may_read},
        slot::{Names, Record, SlotFacts},
        sql,
    },
};

/// Counting takes no longer; somebody waits for the last words.
const COUNT_WITHIN: Duration = Duration::from_secs(3);

/// All that committed before it was published.
pub fn lost_position(facts: &SlotFacts, record: &Record) -> Lsn {
    if record.state == "backfilling" {
        return record.confirmed_lsn.unwrap_or(Lsn::ZERO);
    }
    let noted = record.confirmed_lsn.max(record.consistent_point);
    // The slot knows better than our notes, unless it was moved.
    let stands = facts
        .slot
        .as_ref()
        .and_then(|slot| slot.confirmed_flush_lsn);
    let stands = stands.filter(|stands| Some(*stands) <= record.reserved_lsn);
    noted.max(stands).unwrap_or(Lsn::ZERO)
}

/// What may be unpublished, for the last words of a publisher: a stretch of the log, and rows where
/// they can be counted. `None` when nothing is known.
pub async fn at_stake(info: &ConnInfo, names: &Names, facts: &SlotFacts) -> Option<String> {
    let record = facts.record.as_ref().filter(|r| r.state == "ready")?;
    let is_elsewhere = record
        .system_identifier
        .as_ref()
        .is_some_and(|was| *was != facts.server.system_identifier);
    let position = match is_elsewhere {
        true => Lsn::ZERO,
        false => lost_position(facts, record),
    };
    let wal = facts.server.wal_lsn.filter(|_| position > Lsn::ZERO);
    let wal = wal.map(|end| {
        let bytes = end.bytes().saturating_sub(position.bytes());
        format!("the WAL from {position} to {end} ({bytes} bytes)")
    });
    let rows = match timeout(COUNT_WITHIN, count(info, names, position)).await {
        Ok(Ok(rows)) => rows,
        Ok(Err(error)) => {
            debug!("rows at stake are not counted: {error:#}");
            Vec::new()
        }
        Err(_) => Vec::new(),
    };
    let rows = rows.into_iter().map(|(outbox, rows)| match rows {
        0 => format!("no row of table {outbox}"),
        COUNT_TO => format!("at least {rows} rows of table {outbox}, published ones included"),
        _ => format!("at most {rows} rows of table {outbox}"),
    });
    let parts: Vec<_> = wal.into_iter().chain(rows).collect();
    (!parts.is_empty()).then(|| format!("At stake: {}", parts.join(", ")))
}

/// Each table's rows since the newest mark below the position, of those that may be looked at.
async fn count(
    info: &ConnInfo,
    names: &Names,
    position: Lsn,
) -> anyhow::Result<Vec<(String, i64)>> {
    let client = sql::connect(info, "walpost:run").await?;
    let mark = mark::newest(&client, position).await?;
    let since = mark.as_ref().map_or("true".into(), Mark::is_recent);
    let limit = format!("SET statement_timeout = {}", COUNT_WITHIN.as_millis());
    client.batch_execute(&limit).await.map_err(explain)?;
    let mut counted = Vec::new();
    for outbox in &names.tables {
        if !may_read(&client, &outbox.table).await {
            continue;
        }
        let outbox = table(&outbox.table);
        let text = format!(
            "SELECT pg_catalog.count(*) FROM (SELECT FROM {outbox} WHERE {since} LIMIT $1) AS rows"
        );
        let values = [(&COUNT_TO as _, Type::INT8)];
        let rows = client.query_typed(&text, &values).await.map_err(explain)?;
        counted.push((outbox, rows[0].try_get(0)?));
    }
    Ok(counted)
}

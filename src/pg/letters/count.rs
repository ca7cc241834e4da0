//! How many letters there are and how large their tables are.

use tokio_postgres::{
    Client, Error,
    error::SqlState,
    types::{ToSql, Type},
};

use crate::{
    config::{Config, OnPoison},
    pg::slot::FromJson,
    state::LetterCounts,
};

/// The slot's letters, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub letters: LetterCounts,
    /// Keys whose later rows wait behind a letter.
    pub held_keys: u64,
}

/// The tables, by their names in letters, whose policy is `hold-key`.
pub fn holding(config: &Config) -> Vec<String> {
    let tables = config.outbox.iter();
    tables
        .filter(|outbox| outbox.on_poison == OnPoison::HoldKey)
        .map(|outbox| outbox.table.to_string())
        .collect()
}

/// Of tables that are `holding`, each letter that is open holds its key; of others only keys that
/// have held rows from before are held on. An event that is sent again holds none. `None`: no right
/// to look.
pub async fn count(
    client: &Client,
    slot: &str,
    holding: &[String],
) -> Result<Option<Counted>, Error> {
    let text = "SELECT (SELECT pg_catalog.json_object_agg(status, letters)
          FROM (SELECT status, pg_catalog.count(*) AS letters FROM walpost.dead_letter WHERE slot = $1 GROUP BY status) AS by_status),
        (SELECT pg_catalog.count(*) FROM (SELECT FROM walpost.dead_letter
          WHERE slot = $1 AND status IN ('pending', 'replaying', 'held', 'dead') AND key IS NOT NULL AND position_lsn IS NOT NULL
          GROUP BY outbox, topic, key HAVING outbox = ANY ($2) OR pg_catalog.bool_or(status = 'held' OR held_behind IS NOT NULL)) AS keys)";
    let values: &[(&(dyn ToSql + Sync), Type)] =
        &[(&slot, Type::TEXT), (&holding, Type::TEXT_ARRAY)];
    let rows = match client.query_typed(text, values).await {
        Ok(rows) => rows,
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => return Ok(None),
        Err(error) => return Err(error),
    };
    let letters: Option<FromJson<LetterCounts>> = rows[0].try_get(0)?;
    let held_keys: i64 = rows[0].try_get(1)?;
    Ok(Some(Counted {
        letters: letters.map_or_else(LetterCounts::default, |FromJson(letters)| letters),
        held_keys: held_keys.cast_unsigned(),
    }))
}

/// Bytes on disk with indexes, of all slots together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub letters: u64,
    pub audit_log: u64,
}

pub async fn sizes(client: &Client) -> Result<Sizes, Error> {
    let text = "SELECT pg_catalog.pg_total_relation_size('walpost.dead_letter'), pg_catalog.pg_total_relation_size('walpost.audit_log')";
    let row = &client.query_typed(text, &[]).await?[0];
    let size = |column| row.try_get(column).map(i64::cast_unsigned);
    Ok(Sizes {
        letters: size(0)?,
        audit_log: size(1)?,
    })
}

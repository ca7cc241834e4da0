//! Letters of rows that are read from the table again: they belong where these rows are now.

use std::collections::HashMap;

use serde_json::json;
use tokio_postgres::{Client, types::ToSql};

use super::{BY_PLACE, OPEN, Owner, Refused, begin};
use crate::{
    lsn::Position,
    outbox::{mapping::WALPOST_REPLAY, row::Reread},
};

/// The open and the ignored letters of a table's events, each by its event's id.
pub async fn of_events(
    client: &Client,
    owner: &Owner,
    outbox: &str,
) -> Result<HashMap<String, i64>, Refused> {
    let text = format!(
        "SELECT DISTINCT ON (event_id) event_id, id FROM walpost.dead_letter d
         WHERE slot = $1 AND outbox = $2 AND event_id IS NOT NULL AND position_lsn IS NOT NULL
           AND ({OPEN} OR status = 'ignored') AND error_class IS DISTINCT FROM 'resend'
         ORDER BY event_id, status = 'ignored', {BY_PLACE}"
    );
    let mut letters = HashMap::new();
    for row in client.query(&text, &[&owner.slot, &outbox]).await? {
        letters.insert(row.try_get(0)?, row.try_get(1)?);
    }
    Ok(letters)
}

/// From now on these letters stand there in the slot's present life. What no record could be made of
/// tells no position any more: it is a row of the table now.
pub async fn replace(
    client: &mut Client,
    owner: &Owner,
    places: &[(i64, Position)],
    reread: Reread,
) -> Result<(), Refused> {
    let transaction = begin(client, owner).await?;
    let text = format!(
        "UPDATE walpost.dead_letter d SET life = $2, position_lsn = p.lsn::pg_catalog.pg_lsn, position_ordinal = p.ordinal,
           headers = CASE WHEN d.raw IS NULL THEN d.headers ELSE coalesce(d.headers, $6) END
         FROM (SELECT * FROM unnest($3::bigint[], $4::text[], $5::integer[])) p (id, lsn, ordinal)
         WHERE d.slot = $1 AND d.id = p.id AND ({OPEN} OR d.status = 'ignored')"
    );
    let ids: Vec<i64> = places.iter().map(|(id, _)| *id).collect();
    let commits: Vec<String> = places.iter().map(|(_, p)| p.commit.to_string()).collect();
    let ordinal = |p: &Position| i32::try_from(p.ordinal).unwrap_or(i32::MAX);
    let ordinals: Vec<i32> = places.iter().map(|(_, p)| ordinal(p)).collect();
    let headers = json!([[WALPOST_REPLAY, reread.name()]]);
    let values: &[&(dyn ToSql + Sync)] = &[
        &owner.slot,
        &owner.life,
        &ids,
        &commits,
        &ordinals,
        &headers,
    ];
    transaction.execute(&text, values).await?;
    transaction.commit().await?;
    Ok(())
}

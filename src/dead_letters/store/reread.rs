//! Letters of rows that are read from the table again: they belong where these rows are now.

use std::collections::HashMap;

use serde_json::json;
use tokio_postgres::{Client, types::ToSql};
use tracing::info;

use super::{BY_PLACE, OPEN, Owner, Refused, begin};
use crate::{
    lsn::Position,
    outbox::{mapping::WALPOST_REPLAY, row::Reread},
};

/// The letter of an event whose row is read again.
#[derive(Clone, Debug)]
pub struct OfEvent {
    pub id: i64,
    /// Others of the same event: it was read more than once, and had to wait each time.
    pub repeated: Vec<i64>,
}

/// A letter stands here from now on.
#[derive(Clone, Debug)]
pub struct Moved {
    pub letter: OfEvent,
    pub to: Position,
}

/// The open and the ignored letters of a table's events, by event id.
pub async fn of_events(
    client: &Client,
    owner: &Owner,
    outbox: &str,
) -> Result<HashMap<String, OfEvent>, Refused> {
    let text = format!(
        "SELECT event_id, pg_catalog.array_agg(id ORDER BY status = 'ignored', {BY_PLACE}), pg_catalog.count(*) FILTER (WHERE {OPEN})
         FROM walpost.dead_letter d
         WHERE slot = $1 AND outbox = $2 AND event_id IS NOT NULL AND position_lsn IS NOT NULL
           AND ({OPEN} OR status = 'ignored') AND error_class IS DISTINCT FROM 'resend'
         GROUP BY event_id"
    );
    let mut letters = HashMap::new();
    for row in client.query(&text, &[&owner.slot, &outbox]).await? {
        let (ids, open): (Vec<i64>, i64) = (row.try_get(1)?, row.try_get(2)?);
        let open = usize::try_from(open).unwrap_or_default();
        let repeated = ids.get(1..open).unwrap_or_default().to_vec();
        if let Some(&id) = ids.first() {
            letters.insert(row.try_get(0)?, OfEvent { id, repeated });
        }
    }
    Ok(letters)
}

/// From now on these letters stand there in the slot's present life. What no record could be made of
/// tells no position any more: it is a row of the table now. Repeated ones are removed: in an older
/// life they would come before all that is read now.
pub async fn replace(
    client: &mut Client,
    owner: &Owner,
    moved: &[Moved],
    reread: Reread,
) -> Result<(), Refused> {
    let transaction = begin(client, owner).await?;
    let text = format!(
        "UPDATE walpost.dead_letter d SET life = $2, position_lsn = p.lsn::pg_catalog.pg_lsn, position_ordinal = p.ordinal,
           headers = CASE WHEN d.raw IS NULL THEN d.headers ELSE coalesce(d.headers, $6) END
         FROM (SELECT * FROM unnest($3::bigint[], $4::text[], $5::integer[])) p (id, lsn, ordinal)
         WHERE d.slot = $1 AND d.id = p.id AND ({OPEN} OR d.status = 'ignored')"
    );
    let ids: Vec<i64> = moved.iter().map(|moved| moved.letter.id).collect();
    let commits: Vec<String> = moved.iter().map(|m| m.to.commit.to_string()).collect();
    let ordinal = |m: &Moved| i32::try_from(m.to.ordinal).unwrap_or(i32::MAX);
    let ordinals: Vec<i32> = moved.iter().map(ordinal).collect();
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
    let pairs = moved.iter().flat_map(|moved| {
        let kept = moved.letter.id;
        moved.letter.repeated.iter().map(move |id| (*id, kept))
    });
    let (repeated, kept): (Vec<i64>, Vec<i64>) = pairs.unzip();
    if !repeated.is_empty() {
        let behind = "UPDATE walpost.dead_letter d SET held_behind = p.kept
            FROM (SELECT * FROM unnest($2::bigint[], $3::bigint[])) p (repeated, kept)
            WHERE d.slot = $1 AND d.held_behind = p.repeated";
        let values: &[&(dyn ToSql + Sync)] = &[&owner.slot, &repeated, &kept];
        transaction.execute(behind, values).await?;
        let remove =
            format!("DELETE FROM walpost.dead_letter WHERE slot = $1 AND id = ANY ($2) AND {OPEN}");
        let removed = transaction
            .execute(&remove, &[&owner.slot, &repeated])
            .await?;
        info!(
            letters = removed,
            "removed dead letters of events that have an older one"
        );
    }
    transaction.commit().await?;
    Ok(())
}

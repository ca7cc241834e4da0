//! What is written of letters: rows that are kept, and how letters fared that were sent.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio_postgres::{Client, Row, Statement, Transaction, types::ToSql};

use super::{
    super::letter::{Kept, Place, as_ascii, headers_to_json},
    Fault, Owner, Refused, begin, lsn,
};
use crate::{
    lsn::{Lsn, PgTime},
    outbox::{mapping::WALPOST_REPLAY, row::Reread},
};

/// A row to be kept.
#[derive(Debug)]
pub struct Park {
    pub place: Place,
    pub outbox: String,
    pub event_id: Option<String>,
    pub committed_at: PgTime,
    pub topic: String,
    pub partition: Option<i32>,
    pub key: Option<Vec<u8>>,
    /// `None`: no record could be made of it.
    pub kept: Option<Kept>,
    pub raw: Option<Value>,
    /// Why it was read from the table; `None`: it was read from the log.
    pub reread: Option<Reread>,
    pub fault: Option<Fault>,
    /// It waits behind this letter of its key.
    pub behind: Option<Place>,
    /// Until it is sent again by itself.
    pub retry_after: Option<Duration>,
}

/// What became of a letter that was sent.
#[derive(Debug)]
pub struct Failure {
    pub id: i64,
    /// How often it had been sent before.
    pub attempts: i32,
    pub fault: Fault,
    /// `None`: `dead`, or left to operators.
    pub retry_after: Option<Duration>,
    pub is_dead: bool,
    /// Held rows of its key wait behind it now.
    pub holds: bool,
}

/// What is written, in order, in one transaction.
#[derive(Debug)]
pub enum Write {
    Park(Box<Park>),
    Resolve {
        id: i64,
    },
    Fail(Box<Failure>),
    /// A letter of its key before it failed.
    Return {
        id: i64,
        behind: Place,
    },
}

/// A letter as it was written.
#[derive(Debug)]
pub struct Noted {
    pub id: i64,
    pub attempts: i32,
    /// `None` of a row that is only held.
    pub first_failed_at: Option<jiff::Timestamp>,
    pub last_failed_at: Option<jiff::Timestamp>,
}

impl Noted {
    /// It failed for the first time.
    pub fn is_new(&self) -> bool {
        self.first_failed_at.is_some() && self.first_failed_at == self.last_failed_at
    }
}

/// Writes all of it or nothing; where the log stood when it was durable, and each letter that failed.
/// Written twice it is the same as written once. `ascii`: the database may have no character for
/// what letters say.
pub async fn write(
    client: &mut Client,
    owner: &Owner,
    writes: &[Write],
    ascii: bool,
) -> Result<(Lsn, Vec<Option<Noted>>), Refused> {
    let transaction = begin(client, owner).await?;
    let park = transaction.prepare(PARK).await?;
    // All on their way at once, in order: one round trip for the batch.
    let each = writes.iter().map(|write| {
        let (transaction, park) = (&transaction, &park);
        async move {
            match write {
                Write::Park(row) => write_park(transaction, park, owner, row, ascii).await,
                Write::Resolve { id } => transaction.execute(RESOLVE, &[id]).await.map(|_| None),
                Write::Fail(failure) => write_failure(transaction, failure, ascii).await,
                Write::Return { id, behind } => {
                    let (life, commit, ordinal) = parts(behind);
                    let values: &[&(dyn ToSql + Sync)] = &[id, &life, &commit, &ordinal];
                    transaction.execute(RETURN, values).await.map(|_| None)
                }
            }
        }
    });
    let noted = try_join_all(each).await?;
    transaction.commit().await?;
    let text = "SELECT pg_catalog.pg_current_wal_insert_lsn()::text";
    let row = client.query_one(text, &[]).await?;
    Ok((lsn(row.try_get(0)?).unwrap_or(Lsn::ZERO), noted))
}

fn parts(place: &Place) -> (i32, String, i32) {
    let ordinal = i32::try_from(place.position.ordinal).unwrap_or(i32::MAX);
    (place.life, place.position.commit.to_string(), ordinal)
}

const RESOLVE: &str = "UPDATE walpost.dead_letter SET status = 'resolved', next_retry_at = NULL, held_behind = NULL, attempts = attempts + 1
    WHERE id = $1 AND status = 'replaying'";

const RETURN: &str = "UPDATE walpost.dead_letter d SET status = 'held', held_behind = (SELECT c.id FROM walpost.dead_letter c
      WHERE c.slot = d.slot AND c.life = $2 AND c.position_lsn = $3::text::pg_catalog.pg_lsn AND c.position_ordinal = $4)
    WHERE d.id = $1 AND d.status = 'replaying'";

/// A row that was read again and whose letter is resolved is kept once more: its key is held again.
const PARK: &str = "INSERT INTO walpost.dead_letter AS d (slot, life, outbox, event_id, position_lsn, position_ordinal, committed_at, topic, partition, key,
          headers, record_ms, payload, raw, status, error_class, error_code, error_text, first_failed_at, last_failed_at, next_retry_at, held_behind)
        SELECT $1, $2, $3, $4, $5::text::pg_catalog.pg_lsn, $6, '2000-01-01 00:00:00+00'::timestamptz + $7::bigint * interval '1 microsecond', $8, $9, $10,
          $11::jsonb, $12, $13, $14::jsonb, $15, $16, $17, $18, f.at, f.at, pg_catalog.clock_timestamp() + $19::float8 * interval '1 second',
          (SELECT c.id FROM walpost.dead_letter c
           WHERE c.slot = $1 AND c.life = $20 AND c.position_lsn = $21::text::pg_catalog.pg_lsn AND c.position_ordinal = $22)
        FROM (SELECT CASE WHEN $16::text IS NOT NULL THEN pg_catalog.clock_timestamp() END AS at) f
        ON CONFLICT (slot, life, position_lsn, position_ordinal) DO UPDATE SET status = excluded.status, error_class = excluded.error_class,
          error_code = excluded.error_code, error_text = excluded.error_text, attempts = 0,
          first_failed_at = coalesce(d.first_failed_at, excluded.first_failed_at), last_failed_at = excluded.last_failed_at,
          next_retry_at = excluded.next_retry_at, held_behind = excluded.held_behind
        WHERE d.status = 'resolved'
        RETURNING d.id, d.attempts, d.first_failed_at, d.last_failed_at";

fn noted(row: Option<Row>) -> Result<Option<Noted>, tokio_postgres::Error> {
    let Some(row) = row else { return Ok(None) };
    let time = |index| -> Result<Option<jiff::Timestamp>, tokio_postgres::Error> {
        let at: Option<SystemTime> = row.try_get(index)?;
        Ok(at.and_then(|at| at.try_into().ok()))
    };
    Ok(Some(Noted {
        id: row.try_get(0)?,
        attempts: row.try_get(1)?,
        first_failed_at: time(2)?,
        last_failed_at: time(3)?,
    }))
}

/// With what the database does not take as `\u{…}`.
fn plain(text: &str, ascii: bool) -> Cow<'_, str> {
    let takes = |c: char| c != '\0' && (!ascii || c.is_ascii());
    if text.chars().all(takes) {
        return text.into();
    }
    let mut plain = String::new();
    for c in text.chars() {
        match takes(c) {
            true => plain.push(c),
            false => plain.extend(c.escape_unicode()),
        }
    }
    plain.into()
}

async fn write_park(
    transaction: &Transaction<'_>,
    statement: &Statement,
    owner: &Owner,
    park: &Park,
    ascii: bool,
) -> Result<Option<Noted>, tokio_postgres::Error> {
    let (life, commit, ordinal) = parts(&park.place);
    let kept = park.kept.as_ref();
    let as_stored = |json| if ascii { as_ascii(json) } else { json };
    // A raw row has no headers yet, but what its record is to say of where it was read.
    let reread = park.raw.as_ref().and(park.reread);
    let reread = reread.map(|reread| json!([[WALPOST_REPLAY, reread.name()]]));
    let headers = kept.map(|kept| as_stored(headers_to_json(&kept.headers)));
    let headers = headers.or(reread);
    let raw = park.raw.clone().map(as_stored);
    let event_id = park.event_id.as_deref().map(|id| plain(id, ascii));
    let fault = park.fault.as_ref();
    let status = if park.behind.is_some() {
        "held"
    } else {
        "pending"
    };
    let behind = park.behind.as_ref().map(parts);
    let values: &[&(dyn ToSql + Sync)] = &[
        &owner.slot,
        &life,
        &park.outbox,
        &event_id,
        &commit,
        &ordinal,
        &park.committed_at.micros(),
        &park.topic,
        &kept.and_then(|kept| kept.partition).or(park.partition),
        &park.key,
        &headers,
        &kept.map(|kept| kept.timestamp),
        &kept.and_then(|kept| kept.payload.as_deref()),
        &raw,
        &status,
        &fault.map(|fault| fault.class),
        &fault.map(|fault| fault.code.as_str()),
        &fault.map(|fault| plain(&fault.text, ascii)),
        &park.retry_after.map(|after| after.as_secs_f64()),
        &behind.as_ref().map(|behind| behind.0),
        &behind.as_ref().map(|behind| behind.1.as_str()),
        &behind.as_ref().map(|behind| behind.2),
    ];
    noted(transaction.query_opt(statement, values).await?)
}

async fn write_failure(
    transaction: &Transaction<'_>,
    failure: &Failure,
    ascii: bool,
) -> Result<Option<Noted>, tokio_postgres::Error> {
    let text = "UPDATE walpost.dead_letter d SET status = $2, attempts = attempts + 1, error_class = $3, error_code = $4, error_text = $5,
          first_failed_at = coalesce(first_failed_at, f.at), last_failed_at = f.at,
          next_retry_at = f.at + $6::float8 * interval '1 second', held_behind = NULL
        FROM (SELECT pg_catalog.clock_timestamp() AS at) f
        WHERE id = $1 AND status = 'replaying' AND attempts = $7
        RETURNING d.id, d.attempts, d.first_failed_at, d.last_failed_at";
    let status = if failure.is_dead { "dead" } else { "pending" };
    let fault = &failure.fault;
    let retry_after = failure.retry_after.map(|after| after.as_secs_f64());
    let values: &[&(dyn ToSql + Sync)] = &[
        &failure.id,
        &status,
        &fault.class,
        &fault.code,
        &plain(&fault.text, ascii),
        &retry_after,
        &failure.attempts,
    ];
    let changed = noted(transaction.query_opt(text, values).await?)?;
    if changed.is_some() && failure.holds {
        let text = "UPDATE walpost.dead_letter d SET held_behind = f.id FROM walpost.dead_letter f
            WHERE f.id = $1 AND d.slot = f.slot AND d.outbox = f.outbox AND d.topic = f.topic AND d.key = f.key AND d.status = 'held'
              AND d.held_behind IS DISTINCT FROM f.id";
        transaction.execute(text, &[&failure.id]).await?;
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_database_does_not_take_is_written_as_an_escape() {
        assert_eq!(plain("aé\0", false), "aé\\u{0}");
        assert_eq!(plain("aé\0", true), "a\\u{e9}\\u{0}");
        assert!(matches!(plain("plain", true), Cow::Borrowed("plain")));
    }
}

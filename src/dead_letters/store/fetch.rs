//! Letters with their bytes, to be sent.

use serde_json::Value;
use tokio_postgres::{Client, Row, Transaction};

use super::{
    super::letter::{Kept, Place, headers_from_json, tuple_of},
    BY_PLACE, COLUMNS, Owner, Refused, begin, place,
};
use crate::{
    lsn::PgTime,
    outbox::row::{Origin, Reread},
};

/// The bytes of a letter.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    Kept(Kept),
    /// Columns with their types' OIDs, and the row in the tuple format of the stream: mapped again
    /// by today's configuration.
    Row {
        columns: Vec<(String, u32)>,
        tuple: Vec<u8>,
        origin: Origin,
    },
    /// Why it cannot be sent at all.
    Broken(String),
}

/// A letter to be sent.
#[derive(Clone, Debug)]
pub struct Letter {
    pub id: i64,
    pub outbox: String,
    pub topic: String,
    pub key: Option<Vec<u8>>,
    pub place: Option<Place>,
    pub event_id: Option<String>,
    pub committed_at: PgTime,
    pub attempts: i32,
    /// It failed by its own fault before.
    pub failed: bool,
    /// Sent once more for an operator; not a letter of an event that failed.
    pub resend: bool,
    pub body: Body,
}

/// Letters that are still `replaying`, with their bytes.
pub async fn fetch(
    client: &mut Client,
    owner: &Owner,
    ids: &[i64],
) -> Result<Vec<Letter>, Refused> {
    let transaction = begin(client, owner).await?;
    let text = format!(
        "SELECT {COLUMNS} FROM walpost.dead_letter d WHERE slot = $1 AND id = ANY ($2) AND status = 'replaying'
         ORDER BY {BY_PLACE}, id"
    );
    let rows = transaction.query(&text, &[&owner.slot, &ids]).await?;
    let letters = letters(&transaction, &rows).await?;
    transaction.commit().await?;
    Ok(letters)
}

pub(super) async fn letters(
    transaction: &Transaction<'_>,
    rows: &[Row],
) -> Result<Vec<Letter>, tokio_postgres::Error> {
    let mut letters = Vec::with_capacity(rows.len());
    for row in rows {
        letters.push(letter(transaction, row).await?);
    }
    Ok(letters)
}

async fn letter(transaction: &Transaction<'_>, row: &Row) -> Result<Letter, tokio_postgres::Error> {
    let class: Option<&str> = row.try_get(10)?;
    let mut letter = Letter {
        id: row.try_get(0)?,
        outbox: row.try_get(1)?,
        topic: row.try_get(2)?,
        key: row.try_get(3)?,
        place: place(row.try_get(4)?, row.try_get(5)?, row.try_get(6)?),
        event_id: row.try_get(7)?,
        committed_at: PgTime::new(row.try_get::<_, Option<i64>>(8)?.unwrap_or_default()),
        attempts: row.try_get(9)?,
        failed: class.is_some(),
        resend: class == Some("resend"),
        body: Body::Broken("it holds neither a record nor a row".into()),
    };
    letter.body = body(transaction, &letter, row).await?;
    Ok(letter)
}

async fn body(
    transaction: &Transaction<'_>,
    letter: &Letter,
    row: &Row,
) -> Result<Body, tokio_postgres::Error> {
    let raw: Option<Value> = row.try_get(14)?;
    if let Some(raw) = raw {
        return Ok(match tuple_of(&raw) {
            Err(text) => Body::Broken(text),
            Ok((names, tuple)) => Body::Row {
                columns: typed(transaction, &letter.outbox, names).await?,
                tuple,
                origin: match row.try_get::<_, Option<Value>>(11)? {
                    _ if letter.resend => Origin::Table(Reread::Resend),
                    Some(_) => Origin::TableLetter,
                    None => Origin::Letter,
                },
            },
        });
    }
    let headers: Option<Value> = row.try_get(11)?;
    let timestamp: Option<i64> = row.try_get(12)?;
    let (Some(headers), Some(timestamp)) = (headers, timestamp) else {
        return Ok(Body::Broken("it holds neither a record nor a row".into()));
    };
    Ok(match headers_from_json(&headers) {
        Err(text) => Body::Broken(text),
        Ok(headers) => Body::Kept(Kept {
            topic: letter.topic.clone(),
            key: letter.key.clone(),
            headers,
            timestamp,
            partition: row.try_get(15)?,
            payload: row.try_get(13)?,
        }),
    })
}

/// Column names with the OIDs of their types today; a column that is gone has none, 0xFFFFFFFF.
async fn typed(
    transaction: &Transaction<'_>,
    outbox: &str,
    names: Vec<String>,
) -> Result<Vec<(String, u32)>, tokio_postgres::Error> {
    let text = "SELECT a.attname::text, a.atttypid FROM pg_catalog.pg_attribute a
          JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname || '.' || c.relname = $1 AND a.attnum > 0 AND NOT a.attisdropped";
    let rows = transaction.query(text, &[&outbox]).await?;
    let of = |name: &String| {
        let found = rows.iter().find(|row| row.get::<_, &str>(0) == name);
        found.map_or(u32::MAX, |row| row.get(1))
    };
    Ok(names
        .into_iter()
        .map(|name| {
            let oid = of(&name);
            (name, oid)
        })
        .collect())
}

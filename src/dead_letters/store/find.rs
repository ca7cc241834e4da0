//! The bytes of an event that an operator asks for, from an older letter or the outbox table.

use serde_json::Value;
use tokio_postgres::Client;

use super::{
    super::letter::{Kept, headers_from_json},
    Body, COLUMNS, Letter, Refused,
};
use crate::{
    outbox::row::{Origin, Reread},
    pg::quote::ident,
};

/// Where rows of an event may still be: an outbox table and its column with the event's id.
#[derive(Clone, Debug)]
pub struct Source {
    pub outbox: String,
    pub schema: String,
    pub table: String,
    pub event_id: String,
}

/// What a letter that an operator asked for sends: the bytes of an older letter of the event, or
/// the event's row in an outbox table.
pub async fn find_event(
    client: &Client,
    sources: &[Source],
    letter: &mut Letter,
) -> Result<(), Refused> {
    let event = letter.event_id.clone().unwrap_or_default();
    let text = format!(
        "SELECT {COLUMNS} FROM walpost.dead_letter d WHERE event_id = $1 AND id < $2 AND (headers IS NOT NULL OR raw IS NOT NULL) ORDER BY id DESC LIMIT 1"
    );
    if let Some(row) = client.query_opt(&text, &[&event, &letter.id]).await? {
        let outbox: String = row.try_get(1)?;
        (letter.topic, letter.key) = (row.try_get(2)?, row.try_get(3)?);
        letter.outbox.clone_from(&outbox);
        let headers: Option<Value> = row.try_get(11)?;
        let timestamp: Option<i64> = row.try_get(12)?;
        if let (Some(headers), Some(timestamp)) = (headers, timestamp) {
            letter.body = match headers_from_json(&headers) {
                Err(text) => Body::Broken(text),
                Ok(headers) => Body::Kept(Kept {
                    topic: letter.topic.clone(),
                    key: letter.key.clone(),
                    headers,
                    timestamp,
                    partition: row.try_get(15)?,
                    payload: row.try_get(13)?,
                }),
            };
            return Ok(());
        }
    }
    for source in sources {
        let text = format!(
            "SELECT t.* FROM {}.{} t WHERE t.{}::text = $1 LIMIT 1",
            ident(&source.schema),
            ident(&source.table),
            ident(&source.event_id)
        );
        // As text, as the stream has it: the simple protocol gives nothing else.
        let text = text.replace("$1", &literal(&event));
        let found = client.simple_query(&text).await;
        let rows = match found {
            Ok(rows) => rows,
            Err(error) => {
                letter.body = Body::Broken(format!(
                    "table {} cannot be read: {}",
                    source.outbox,
                    reason(&error)
                ));
                continue;
            }
        };
        let row = rows.into_iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let Some(row) = row else { continue };
        let names: Vec<String> = row.columns().iter().map(|c| c.name().to_owned()).collect();
        let mut tuple = u16::try_from(names.len())
            .unwrap_or(u16::MAX)
            .to_be_bytes()
            .to_vec();
        for index in 0..names.len() {
            match row.get(index) {
                None => tuple.push(b'n'),
                Some(value) => {
                    tuple.push(b't');
                    tuple.extend((value.len() as u32).to_be_bytes());
                    tuple.extend(value.as_bytes());
                }
            }
        }
        let types = "SELECT a.attname::text, a.atttypid FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0";
        let types = client
            .query(types, &[&source.schema, &source.table])
            .await?;
        let of = |name: &String| {
            let found = types.iter().find(|row| row.get::<_, &str>(0) == name);
            found.map_or(u32::MAX, |row| row.get(1))
        };
        let columns = names.into_iter().map(|name| {
            let oid = of(&name);
            (name, oid)
        });
        letter.outbox.clone_from(&source.outbox);
        letter.body = Body::Row {
            columns: columns.collect(),
            tuple,
            origin: Origin::Table(Reread::Resend),
        };
        return Ok(());
    }
    if !matches!(&letter.body, Body::Broken(text) if text.starts_with("table ")) {
        letter.body = Body::Broken(format!("event {event} is in no letter and no outbox table"));
    }
    Ok(())
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn reason(error: &tokio_postgres::Error) -> String {
    error
        .as_db_error()
        .map_or_else(|| error.to_string(), |db| db.message().to_owned())
}

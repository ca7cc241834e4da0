//! One letter: the columns of `walpost.dead_letter`, and how they are written as JSON.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;
use tokio_postgres::{Client, Error, Row, types::Type};

use crate::{lsn::Lsn, pg::slot::FromJson};

/// What is listed of a letter.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Letter {
    pub id: i64,
    pub slot: String,
    /// The outbox table, with its schema; empty where it is not known.
    pub outbox: String,
    pub event_id: Option<String>,
    pub position_lsn: Option<Lsn>,
    pub position_ordinal: Option<i32>,
    pub committed_at: Option<Timestamp>,
    /// Empty where no topic could be made of the row.
    pub topic: String,
    pub partition: Option<i32>,
    pub record_ms: Option<i64>,
    pub status: String,
    pub error_class: Option<String>,
    pub error_code: Option<String>,
    pub error_text: Option<String>,
    pub attempts: i32,
    pub first_failed_at: Option<Timestamp>,
    pub last_failed_at: Option<Timestamp>,
    pub next_retry_at: Option<Timestamp>,
    pub held_behind: Option<i64>,
    pub acted_by: Option<String>,
    pub acted_at: Option<Timestamp>,
    pub life: Option<i32>,
}

/// What is shown on demand only: the application's data.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    pub key: Option<Vec<u8>>,
    pub headers: Value,
    pub payload: Option<Vec<u8>>,
    /// Column → text, of a row that no record could be made of.
    pub raw: Value,
}

/// A letter in the form of `dead-letters list --json`: with its content if that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    pub letter: Letter,
    pub content: Option<Content>,
}

/// The columns to select, for `Listed::of`.
pub(super) fn columns(with_content: bool) -> String {
    const LETTER: &str = "(SELECT pg_catalog.row_to_json(shown) FROM (SELECT l.id, l.slot, l.outbox, l.event_id, l.position_lsn,
        l.position_ordinal, l.committed_at, l.topic, l.partition, l.record_ms, l.status, l.error_class, l.error_code, l.error_text,
        l.attempts, l.first_failed_at, l.last_failed_at, l.next_retry_at, l.held_behind, l.acted_by, l.acted_at, l.life) AS shown)";
    let content = match with_content {
        true => ", l.key, l.headers::json, l.payload, l.raw::json",
        false => "",
    };
    format!("{LETTER}{content}")
}

impl Listed {
    pub(super) fn of(row: &Row, with_content: bool) -> Result<Listed, Error> {
        let FromJson(letter) = row.try_get(0)?;
        let json = |column| {
            let value: Option<FromJson<Value>> = row.try_get(column)?;
            Ok::<_, Error>(value.map_or(Value::Null, |FromJson(value)| value))
        };
        let content = match with_content {
            true => Some(Content {
                key: row.try_get(1)?,
                headers: json(2)?,
                payload: row.try_get(3)?,
                raw: json(4)?,
            }),
            false => None,
        };
        Ok(Listed { letter, content })
    }
}

impl Serialize for Listed {
    /// In the order of the table's columns.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Listed { letter: l, content } = self;
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("id", &l.id)?;
        map.serialize_entry("slot", &l.slot)?;
        map.serialize_entry("outbox", &l.outbox)?;
        map.serialize_entry("event_id", &l.event_id)?;
        map.serialize_entry("position_lsn", &l.position_lsn)?;
        map.serialize_entry("position_ordinal", &l.position_ordinal)?;
        map.serialize_entry("committed_at", &l.committed_at)?;
        map.serialize_entry("topic", &l.topic)?;
        map.serialize_entry("partition", &l.partition)?;
        if let Some(content) = content {
            bytes(&mut map, "key", content.key.as_deref())?;
            map.serialize_entry("headers", &content.headers)?;
        }
        map.serialize_entry("record_ms", &l.record_ms)?;
        if let Some(content) = content {
            bytes(&mut map, "payload", content.payload.as_deref())?;
            map.serialize_entry("raw", &content.raw)?;
        }
        map.serialize_entry("status", &l.status)?;
        map.serialize_entry("error_class", &l.error_class)?;
        map.serialize_entry("error_code", &l.error_code)?;
        map.serialize_entry("error_text", &l.error_text)?;
        map.serialize_entry("attempts", &l.attempts)?;
        map.serialize_entry("first_failed_at", &l.first_failed_at)?;
        map.serialize_entry("last_failed_at", &l.last_failed_at)?;
        map.serialize_entry("next_retry_at", &l.next_retry_at)?;
        map.serialize_entry("held_behind", &l.held_behind)?;
        map.serialize_entry("acted_by", &l.acted_by)?;
        map.serialize_entry("acted_at", &l.acted_at)?;
        map.serialize_entry("life", &l.life)?;
        map.end()
    }
}

/// As text, or under `<name>_base64` what is not UTF-8.
fn bytes<M: SerializeMap>(map: &mut M, name: &str, bytes: Option<&[u8]>) -> Result<(), M::Error> {
    match bytes.map(|bytes| (std::str::from_utf8(bytes), bytes)) {
        None => map.serialize_entry(name, &None::<&str>),
        Some((Ok(text), _)) => map.serialize_entry(name, text),
        Some((Err(_), bytes)) => {
            map.serialize_entry(&format!("{name}_base64"), &STANDARD.encode(bytes))
        }
    }
}

/// The letter of this id; `None` when the slot has no such letter.
pub async fn one(
    client: &Client,
    slot: &str,
    id: i64,
    with_content: bool,
) -> Result<Option<Listed>, Error> {
    let text = format!(
        "SELECT {} FROM walpost.dead_letter l WHERE l.slot = $1 AND l.id = $2",
        columns(with_content)
    );
    let values: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] =
        &[(&slot, Type::TEXT), (&id, Type::INT8)];
    let rows = client.query_typed(&text, values).await?;
    let row = rows.first();
    row.map(|row| Listed::of(row, with_content)).transpose()
}

/// What somebody did to a letter, from the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deed {
    pub at: Timestamp,
    pub who: String,
    pub verb: String,
    pub detail: Option<Value>,
}

/// All that was done to this letter, in order.
pub async fn deeds(client: &Client, id: i64) -> Result<Vec<Deed>, Error> {
    let text =
        "SELECT pg_catalog.json_build_object('at', at, 'who', who, 'verb', verb, 'detail', detail)
        FROM walpost.audit_log WHERE dead_letter_id = $1 ORDER BY audit_log.id";
    let rows = client.query_typed(text, &[(&id, Type::INT8)]).await?;
    let deed = |row: &Row| row.try_get(0).map(|FromJson(deed)| deed);
    rows.iter().map(deed).collect()
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    pub fn letter() -> Letter {
        serde_json::from_value(json!({
            "id": 7, "slot": "s", "outbox": "public.outbox", "event_id": "e", "position_lsn": "0/16B3748", "position_ordinal": 3,
            "committed_at": "2026-01-02T03:04:05.5+00:00", "topic": "t", "partition": null, "record_ms": 5, "status": "pending",
            "error_class": "event", "error_code": "MSG_SIZE_TOO_LARGE", "error_text": "too large", "attempts": 0,
            "first_failed_at": "2026-01-02T03:04:06+00:00", "last_failed_at": null, "next_retry_at": null, "held_behind": null,
            "acted_by": null, "acted_at": null, "life": 1
        }))
        .unwrap()
    }

    #[test]
    fn a_list_hides_what_belongs_to_the_application() {
        let mut listed = Listed {
            letter: letter(),
            content: None,
        };
        let json = serde_json::to_value(&listed).unwrap();
        assert_eq!(
            (&json["position_lsn"], &json["committed_at"]),
            (&json!("0/16B3748"), &json!("2026-01-02T03:04:05.5Z"))
        );
        let object = json.as_object().unwrap();
        assert_eq!(object.len(), 22);
        for hidden in ["key", "headers", "payload", "raw"] {
            assert!(!object.contains_key(hidden), "{hidden}");
        }
        listed.content = Some(Content {
            key: Some(vec![0xff, 0]),
            headers: json!([["a", null]]),
            payload: Some(b"{}".to_vec()),
            raw: Value::Null,
        });
        let json = serde_json::to_value(&listed).unwrap();
        assert_eq!(
            (&json["key_base64"], json.get("key"), &json["payload"]),
            (&json!("/wA="), None, &json!("{}"))
        );
        assert_eq!(
            (&json["headers"], &json["raw"]),
            (&json!([["a", null]]), &Value::Null)
        );
        assert_eq!(json.as_object().unwrap().len(), 26);
    }
}

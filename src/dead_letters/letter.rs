//! What a dead letter holds: a record as it is to be sent, or the columns of a row that no record
//! could be made of.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use crate::{
    lsn::Position,
    outbox::{
        headers::Headers,
        mapping::{WAL_POSITION, WALPOST_REPLAY},
        record::Record,
        relation::Shape,
    },
    pg::pgoutput::{Tuple, Value as Column},
};

/// Where an event stands. Positions of another life of the slot may repeat: those of an earlier one
/// come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub life: i32,
    pub position: Position,
}

/// A header's name and value; `None` is a null header.
pub type Header = (String, Option<Vec<u8>>);

/// A record's bytes. Header names and values as they are sent, without what tells of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub topic: String,
    pub key: Option<Vec<u8>>,
    pub headers: Vec<Header>,
    /// Milliseconds since 1970.
    pub timestamp: i64,
    /// Where a column gives it, as one of the table's may.
    pub partition: Option<i32>,
    pub payload: Option<Vec<u8>>,
}

impl Kept {
    pub fn of(record: &Record<'_>) -> Self {
        let headers = record.headers.iter().map(|(name, value)| {
            let name = String::from_utf8_lossy(name).into_owned();
            (name, value.map(<[u8]>::to_vec))
        });
        Kept {
            topic: record.topic.to_owned(),
            key: record.key.map(<[u8]>::to_vec),
            headers: headers.collect(),
            timestamp: record.timestamp,
            partition: record.partition,
            payload: record.payload.map(<[u8]>::to_vec),
        }
    }

    /// What it weighs in memory, in bytes.
    pub fn weight(&self) -> usize {
        let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers = self.headers.iter();
        length(&self.key)
            + length(&self.payload)
            + self.topic.len()
            + headers
                .map(|(name, value)| name.len() + length(value) + 48)
                .sum::<usize>()
    }
}

/// Headers as column `headers` keeps them: `[name, text | null | {"base64": …}]` each.
pub fn headers_to_json(headers: &[Header]) -> Value {
    let entry =
        |(name, value): &Header| json!([name, value.as_deref().map_or(Value::Null, text_to_json)]);
    headers.iter().map(entry).collect()
}

/// The same for a database whose encoding may have no character for what it says: texts that are not
/// ASCII in base64, a header's name too.
pub fn as_ascii(json: Value) -> Value {
    match json {
        Value::String(text) if !text.is_ascii() => json!({ "base64": STANDARD.encode(text) }),
        Value::Array(entries) => entries.into_iter().map(as_ascii).collect(),
        // Column names are the database's own.
        Value::Object(columns) => {
            let columns = columns.into_iter();
            let columns: Map<_, _> = columns.map(|(name, v)| (name, as_ascii(v))).collect();
            columns.into()
        }
        other => other,
    }
}

/// Nothing is lost on the way back; an entry that isn't one is named.
pub fn headers_from_json(json: &Value) -> Result<Vec<Header>, String> {
    let wrong = || format!("column headers holds {json}, which is not [[name, value], …]");
    let entries = json.as_array().ok_or_else(wrong)?;
    let entry = |entry: &Value| {
        let pair = entry.as_array().filter(|pair| pair.len() == 2)?;
        let name = String::from_utf8(text_from_json(&pair[0])??).ok()?;
        Some((name, text_from_json(&pair[1])?))
    };
    entries.iter().map(|e| entry(e).ok_or_else(wrong)).collect()
}

/// jsonb takes neither other bytes than UTF-8 nor a zero byte.
fn text_to_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) if !bytes.contains(&0) => text.into(),
        _ => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

fn text_from_json(value: &Value) -> Option<Option<Vec<u8>>> {
    match value {
        Value::Null => Some(None),
        Value::String(text) => Some(Some(text.clone().into_bytes())),
        other => {
            let coded = other.get("base64")?.as_str()?;
            STANDARD.decode(coded).ok().map(Some)
        }
    }
}

/// Column name → text, as column `raw` keeps a row.
pub fn raw_of(shape: &Shape, tuple: Tuple<'_>) -> Value {
    let text = |value: Column<'_>| match value {
        Column::Text(text) => text_to_json(text),
        Column::Null | Column::Unchanged => Value::Null,
        Column::Binary(bytes) => json!({ "base64": STANDARD.encode(bytes) }),
    };
    let columns = shape.columns.iter().cloned();
    let columns: Map<_, _> = columns.zip(tuple.values().map(text)).collect();
    columns.into()
}

/// Columns of a kept row in the tuple format of the stream.
pub fn tuple_of(raw: &Value) -> Result<(Vec<String>, Vec<u8>), String> {
    let wrong = || "column raw is not an object of texts".to_owned();
    let columns = raw.as_object().ok_or_else(wrong)?;
    let mut tuple = u16::try_from(columns.len())
        .map_err(|_| wrong())?
        .to_be_bytes()
        .to_vec();
    for value in columns.values() {
        match text_from_json(value).ok_or_else(wrong)? {
            None => tuple.push(b'n'),
            Some(text) => {
                tuple.push(b't');
                let length = u32::try_from(text.len()).map_err(|_| wrong())?;
                tuple.extend(length.to_be_bytes());
                tuple.extend(text);
            }
        }
    }
    Ok((columns.keys().cloned().collect(), tuple))
}

/// Header `walpost_replay` of a letter that is sent.
pub const DEAD_LETTER: &str = "dead-letter";

/// Puts a letter's headers, with the reason of its replay at its place among the built-in ones.
pub fn put_headers(kept: &[Header], reason: &str, with_position: bool, to: &mut Headers) {
    let mut told = false;
    for (name, value) in kept {
        match name.as_str() {
            WAL_POSITION if !with_position => {
                to.push(WALPOST_REPLAY, reason.as_bytes());
                told = true;
            }
            WAL_POSITION => {
                to.push_entry(name, value.as_deref());
                to.push(WALPOST_REPLAY, reason.as_bytes());
                told = true;
            }
            WALPOST_REPLAY if !told => {
                to.push(WALPOST_REPLAY, reason.as_bytes());
                told = true;
            }
            WALPOST_REPLAY => {}
            _ => to.push_entry(name, value.as_deref()),
        }
    }
    if !told {
        to.push(WALPOST_REPLAY, reason.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, value: Option<&[u8]>) -> Header {
        (name.into(), value.map(<[u8]>::to_vec))
    }

    #[test]
    fn headers_survive_the_table_byte_for_byte_and_in_order() {
        let headers = vec![
            entry("b", Some(b"text")),
            entry("€", Some("€é".as_bytes())),
            entry("a", None),
            entry("a", Some(b"")),
            entry("c", Some(&[0xff, 0, 1])),
            entry("d", Some(b"nul \0 inside")),
            entry("e", Some(br#"{"base64": "eA=="}"#)),
        ];
        let json = headers_to_json(&headers);
        assert_eq!(headers_from_json(&json).unwrap(), headers);
        let ascii = as_ascii(json);
        assert!(ascii.to_string().is_ascii());
        assert_eq!(headers_from_json(&ascii).unwrap(), headers);
        for wrong in [
            json!({}),
            json!([["a"]]),
            json!([[1, "x"]]),
            json!([["a", {"base64": "?"}]]),
        ] {
            assert!(headers_from_json(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_reason_of_a_replay_stands_behind_the_position_once() {
        let names = |kept: &[Header], with_position| {
            let mut headers = Headers::default();
            put_headers(kept, "dead-letter", with_position, &mut headers);
            let text = |(name, value): (&[u8], Option<&[u8]>)| {
                let value = String::from_utf8_lossy(value.unwrap_or(b"-"));
                format!("{}={value}", String::from_utf8_lossy(name))
            };
            headers.iter().map(text).collect::<Vec<_>>().join(" ")
        };
        let kept = [
            entry("event_id", Some(b"e")),
            entry("wal_position", Some(b"0/1:1")),
            entry("x", None),
        ];
        assert_eq!(
            names(&kept, true),
            "event_id=e wal_position=0/1:1 walpost_replay=dead-letter x=-"
        );
        assert_eq!(
            names(&kept, false),
            "event_id=e walpost_replay=dead-letter x=-"
        );
        let of_the_table = [entry("walpost_replay", Some(b"recover")), entry("x", None)];
        assert_eq!(names(&of_the_table, true), "walpost_replay=dead-letter x=-");
        assert_eq!(names(&[], true), "walpost_replay=dead-letter");
    }
}

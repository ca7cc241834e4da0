//! Events without a table: logical messages of prefix `walpost`, as `walpost.emit` writes them. One
//! becomes the row that it would have been, so all that follows is the same.
//!
//! Anybody who can connect may write such a message, so nothing in it is taken for granted.

use std::{borrow::Cow, sync::Arc};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    mapping::{Mapping, Role},
    relation::Shape,
    row::Unmappable,
    types::{BYTEA, INT4, INT8, JSONB, TEXT, TIMESTAMPTZ, Types, UUID},
};
use crate::pg::pgoutput::{Column, Relation};

pub const PREFIX: &str = "walpost";

/// Columns that tell a kept message from a row. What kind it is, is in the name: a message has the
/// types of its function's parameters, whatever the table's are.
const JSON_MARK: &str = "walpost.emit";
const BYTES_MARK: &str = "walpost.emit_bytes";
/// The content of a message that is malformed.
const CONTENT: &str = "walpost.message";

/// The only version there is of the line before the payload.
const VERSION: u32 = 1;

/// Makes rows of messages, for one mapping.
#[derive(Debug)]
pub struct Messages {
    json: Arc<Shape>,
    bytes: Arc<Shape>,
}

/// What stands before the payload.
#[derive(Deserialize)]
struct Line<'a> {
    v: u32,
    #[serde(borrow)]
    event_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    aggregate_type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    aggregate_id: Option<Cow<'a, str>>,
    aggregate_version: Option<i64>,
    #[serde(borrow)]
    event_type: Option<Cow<'a, str>>,
    schema_version: Option<i32>,
    #[serde(borrow)]
    headers: Option<&'a RawValue>,
    #[serde(borrow)]
    occurred_at: Option<Cow<'a, str>>,
    #[serde(default = "json")]
    payload: Option<Kind>,
}

fn json() -> Option<Kind> {
    Some(Kind::Json)
}

/// What the payload is; without one it is NULL.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Json,
    Bytes,
}

impl Messages {
    pub fn new(mapping: &Arc<Mapping>) -> Self {
        Messages {
            json: Arc::new(shape(mapping, &names(mapping, JSON_MARK), JSONB)),
            bytes: Arc::new(shape(mapping, &names(mapping, BYTES_MARK), BYTEA)),
        }
    }

    /// Why no message can be mapped: a mapped column that messages don't have.
    pub fn fault(&self) -> Option<&Unmappable> {
        self.json.fault.as_ref()
    }

    /// The row that the message stands for: its shape and its tuple. Of one that is malformed, a row
    /// that cannot be mapped and says why.
    pub fn row(&self, content: &[u8]) -> (Arc<Shape>, Box<[u8]>) {
        self.well_formed(content).unwrap_or_else(|why| {
            let fault = Unmappable::new("message_malformed", format!("its message {why}"));
            let shape = Shape::unmappable(&self.json.mapping, CONTENT, fault);
            (Arc::new(shape), Tuple::new(1).text(content).done())
        })
    }

    fn well_formed(&self, content: &[u8]) -> Result<(Arc<Shape>, Box<[u8]>), String> {
        let end = content.iter().position(|b| *b == b'\n');
        let end = end.ok_or("has no line before its payload")?;
        let (line, payload) = (&content[..end], &content[end + 1..]);
        // The parser's message may quote a value; its place says enough.
        let line: Line<'_> = serde_json::from_slice(line).map_err(|error| {
            format!(
                "does not begin with the line that walpost.emit writes (byte {})",
                error.column()
            )
        })?;
        if line.v != VERSION {
            return Err(format!("is of version {}, not {VERSION}", line.v));
        }
        let shape = match line.payload {
            Some(Kind::Bytes) => &self.bytes,
            _ => &self.json,
        };
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_ok();
        if line.payload == Some(Kind::Json) && !is_json {
            return Err("has a payload that is no JSON".into());
        }
        let mut tuple = Tuple::new(shape.columns.len()).null();
        for role in roles(&shape.mapping) {
            tuple = match role {
                Role::EventId => tuple.string(line.event_id.as_deref()),
                Role::AggregateType => tuple.string(line.aggregate_type.as_deref()),
                Role::AggregateId => tuple.string(line.aggregate_id.as_deref()),
                Role::AggregateVersion => tuple.number(line.aggregate_version),
                Role::EventType => tuple.string(line.event_type.as_deref()),
                Role::SchemaVersion => tuple.number(line.schema_version.map(i64::from)),
                Role::Headers => tuple.string(line.headers.map(RawValue::get)),
                Role::OccurredAt => tuple.string(line.occurred_at.as_deref()),
                Role::Payload => match line.payload {
                    None => tuple.null(),
                    Some(Kind::Json) => tuple.text(payload),
                    Some(Kind::Bytes) => tuple.hex(payload),
                },
            };
        }
        Ok((shape.clone(), tuple.done()))
    }
}

/// The roles that have a column, in the order of a message's tuple. A role that is switched off is
/// nothing in a message either.
fn roles(mapping: &Mapping) -> impl Iterator<Item = Role> {
    Role::ALL
        .into_iter()
        .filter(|role| mapping.column(*role).is_some())
}

/// The columns of a message's row: its mark, and the roles'.
fn names(mapping: &Mapping, mark: &str) -> Vec<String> {
    let roles = roles(mapping).filter_map(|role| mapping.column(role));
    [mark].into_iter().chain(roles).map(str::to_owned).collect()
}

/// The shape of a message that was kept as columns; `None`: these are the columns of a row.
pub fn kept(mapping: &Arc<Mapping>, columns: &[(String, u32)]) -> Option<Shape> {
    let has = |mark: &str| columns.iter().any(|(name, _)| name == mark);
    if has(CONTENT) {
        let text = "its message is none that walpost.emit writes";
        let fault = Unmappable::new("message_malformed", text);
        return Some(Shape::unmappable(mapping, CONTENT, fault));
    }
    let payload = match (has(JSON_MARK), has(BYTES_MARK)) {
        (true, _) => JSONB,
        (_, true) => BYTEA,
        _ => return None,
    };
    let names: Vec<_> = columns.iter().map(|(name, _)| name.clone()).collect();
    Some(shape(mapping, &names, payload))
}

/// A table of these columns, with the types that they have in a message.
fn shape(mapping: &Arc<Mapping>, names: &[String], payload: u32) -> Shape {
    let type_of = |name: &String| {
        let role = roles(mapping).find(|role| mapping.column(*role) == Some(name));
        match role {
            Some(Role::EventId) => UUID,
            Some(Role::AggregateVersion) => INT8,
            Some(Role::SchemaVersion) => INT4,
            Some(Role::Payload) => payload,
            Some(Role::Headers) => JSONB,
            Some(Role::OccurredAt) => TIMESTAMPTZ,
            Some(Role::AggregateType | Role::AggregateId | Role::EventType) | None => TEXT,
        }
    };
    let column = |name: &String| Column {
        name: name.clone(),
        type_oid: type_of(name),
    };
    let relation = Relation {
        id: 0,
        namespace: mapping.table.schema.clone(),
        name: mapping.table.name.clone(),
        columns: names.iter().map(column).collect(),
    };
    let mut shape = Shape::new(&relation, mapping, &Types::default());
    if let Some(fault) = &mut shape.fault {
        fault.text = fault
            .text
            .replace("its table had", "it is a message, which has")
            .replace(" when it was written", "");
    }
    shape
}

/// A tuple as pgoutput writes one.
struct Tuple(Vec<u8>);

impl Tuple {
    fn new(columns: usize) -> Self {
        Tuple((columns as u16).to_be_bytes().to_vec())
    }

    fn null(mut self) -> Self {
        self.0.push(b'n');
        self
    }

    fn text(self, text: &[u8]) -> Self {
        self.value(|to| to.extend_from_slice(text))
    }

    fn string(self, text: Option<&str>) -> Self {
        match text {
            None => self.null(),
            Some(text) => self.text(text.as_bytes()),
        }
    }

    fn number(self, number: Option<i64>) -> Self {
        match number {
            None => self.null(),
            Some(number) => self.text(number.to_string().as_bytes()),
        }
    }

    /// As `bytea_output = hex` writes it.
    fn hex(self, bytes: &[u8]) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.value(|to| {
            to.reserve(2 + bytes.len() * 2);
            to.extend_from_slice(b"\\x");
            for byte in bytes {
                to.push(DIGITS[usize::from(byte >> 4)]);
                to.push(DIGITS[usize::from(byte & 15)]);
            }
        })
    }

    fn value(mut self, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        self.0.extend_from_slice(b"t\0\0\0\0");
        let start = self.0.len();
        write(&mut self.0);
        // A message of more than 4 GiB does not exist.
        let length = (self.0.len() - start) as u32;
        self.0[start - 4..start].copy_from_slice(&length.to_be_bytes());
        self
    }

    fn done(self) -> Box<[u8]> {
        self.0.into()
    }
}

//! OutboxRow → Record: topic, key, headers, timestamp, value. The mapper's buffers are used again
//! for every row, so nothing is allocated once they have grown.

use std::fmt::Write as _;

use super::{
    headers::Headers,
    relation::{Form, Role, TopicPart},
    row::{Origin, OutboxRow, Reread, Unmappable},
    template::is_valid_topic,
};
use crate::{
    dead_letters::letter::{DEAD_LETTER, Kept, REPLAY_HEADER, put_headers},
    lsn::{PgTime, Position},
};

/// What goes to Kafka. `None` is a null key or a null value, not an empty one.
pub struct Record<'a> {
    pub topic: &'a str,
    pub key: Option<&'a [u8]>,
    pub headers: &'a Headers,
    /// Milliseconds since 1970; never 0, which the client library takes for "now".
    pub timestamp: i64,
    pub payload: Option<&'a [u8]>,
}

/// Makes records out of rows.
#[derive(Default)]
pub struct Mapper {
    topic: String,
    position: String,
    headers: Headers,
    key: Vec<u8>,
    payload: Vec<u8>,
    dropped_headers: u64,
}

/// The columns that are sent as headers of their own, before `wal_position`.
const COLUMN_HEADERS: [Role; 5] = [
    Role::EventId,
    Role::AggregateType,
    Role::AggregateVersion,
    Role::EventType,
    Role::SchemaVersion,
];

impl Mapper {
    /// The record of a row; one of the stream stands at `position`, one of the table has none.
    pub fn record<'a>(
        &'a mut self,
        row: &OutboxRow<'a>,
        origin: Origin,
        position: Position,
        committed_at: PgTime,
    ) -> Result<Record<'a>, Unmappable> {
        if let Some(column) = &row.shape.missing {
            let text = format!("its table had no column {column} when it was written");
            return Err(Unmappable::new("column_missing", text));
        }
        self.render_topic(row)?;
        self.headers.clear();
        for role in COLUMN_HEADERS {
            if let Some(value) = row.role(role) {
                self.headers.push(role.column(), value);
            }
        }
        match origin {
            Origin::Stream | Origin::Letter => {
                self.position.clear();
                // Writing to a String cannot fail.
                let _ = write!(self.position, "{position}");
                self.headers.push("wal_position", self.position.as_bytes());
            }
            Origin::Table(_) => {}
        }
        match origin {
            Origin::Stream => {}
            Origin::Letter => self.headers.push(REPLAY_HEADER, DEAD_LETTER.as_bytes()),
            Origin::Table(reread) => self.headers.push(REPLAY_HEADER, reread.name().as_bytes()),
        }
        if let Some(json) = row.role(Role::Headers) {
            self.dropped_headers += self.headers.spread(json)?;
        }
        let key = match row.shape.key {
            None => None,
            Some(field) => bytes(row.column(field.index)?, field.form, "key", &mut self.key)?,
        };
        let payload = row.role(Role::Payload);
        let form = row.shape.payload.map_or(Form::Text, |field| field.form);
        let payload = bytes(payload, form, "payload", &mut self.payload)?;
        Ok(Record {
            topic: &self.topic,
            key,
            headers: &self.headers,
            timestamp: timestamp(row.role(Role::OccurredAt), committed_at),
            payload,
        })
    }

    /// The record that a letter keeps, with the reason why it goes out once more.
    pub fn kept<'a>(&'a mut self, kept: &'a Kept, resend: bool) -> Record<'a> {
        let reason = if resend {
            Reread::Resend.name()
        } else {
            DEAD_LETTER
        };
        self.headers.clear();
        put_headers(&kept.headers, reason, !resend, &mut self.headers);
        Record {
            topic: &kept.topic,
            key: kept.key.as_deref(),
            headers: &self.headers,
            timestamp: kept.timestamp,
            payload: kept.payload.as_deref(),
        }
    }

    /// The row's key, also of one that no record can be made of.
    pub fn key<'a>(&'a mut self, row: &OutboxRow<'a>) -> Result<Option<&'a [u8]>, Unmappable> {
        match row.shape.key {
            None => Ok(None),
            Some(field) => bytes(row.column(field.index)?, field.form, "key", &mut self.key),
        }
    }

    /// The name of the row's topic.
    pub fn topic(&mut self, row: &OutboxRow<'_>) -> Result<&str, Unmappable> {
        self.render_topic(row)?;
        Ok(&self.topic)
    }

    fn render_topic(&mut self, row: &OutboxRow<'_>) -> Result<(), Unmappable> {
        self.topic.clear();
        for part in &row.shape.topic {
            match part {
                TopicPart::Literal(text) => self.topic.push_str(text),
                TopicPart::Column { index, name } => {
                    let text = row.column(*index)?.ok_or_else(|| {
                        let text = format!("column {name} is NULL and part of the topic's name");
                        Unmappable::new("topic_null", text)
                    })?;
                    let text = std::str::from_utf8(text).map_err(|_| {
                        let text =
                            format!("column {name} is not UTF-8 and part of the topic's name");
                        Unmappable::new("topic_invalid", text)
                    })?;
                    self.topic.push_str(text);
                }
            }
        }
        if is_valid_topic(&self.topic) {
            return Ok(());
        }
        let text = format!(
            "{:?} is no name for a topic: 1 to 249 letters, digits, dots, underscores and hyphens",
            self.topic
        );
        Err(Unmappable::new("topic_invalid", text))
    }

    /// Entries of the JSON column that were dropped for their built-in name, since the last call.
    pub fn take_dropped_headers(&mut self) -> u64 {
        std::mem::take(&mut self.dropped_headers)
    }
}

/// A column's value as bytes: its text, or what the hexadecimal text of a bytea stands for.
fn bytes<'a>(
    text: Option<&'a [u8]>,
    form: Form,
    what: &str,
    buffer: &'a mut Vec<u8>,
) -> Result<Option<&'a [u8]>, Unmappable> {
    match (text, form) {
        (Some(text), Form::Bytea) => {
            decode_bytea(text, buffer).ok_or_else(|| {
                let text = format!("the {what}'s bytea is not in hexadecimal form");
                Unmappable::new("bytea_form", text)
            })?;
            Ok(Some(buffer))
        }
        // A text that looks like that by accident is less likely than a domain over bytea.
        (Some(text), Form::Gone) if decode_bytea(text, buffer).is_some() => Ok(Some(buffer)),
        (text, _) => Ok(text),
    }
}

/// `\x` and two digits a byte, as `bytea_output = hex` writes it.
fn decode_bytea(text: &[u8], to: &mut Vec<u8>) -> Option<()> {
    let digit = |c: u8| (c as char).to_digit(16).map(|d| d as u8);
    let digits = text
        .strip_prefix(b"\\x")
        .filter(|digits| digits.len() % 2 == 0)?;
    to.clear();
    to.reserve(digits.len() / 2);
    for pair in digits.chunks_exact(2) {
        to.push(digit(pair[0])? << 4 | digit(pair[1])?);
    }
    Some(())
}

/// `occurred_at` in milliseconds; the commit time where it is NULL or no time that a record can
/// have: infinity, BC, beyond the year 9999, at or before 1970.
fn timestamp(occurred_at: Option<&[u8]>, committed_at: PgTime) -> i64 {
    occurred_at
        .and_then(own_time)
        .unwrap_or_else(|| committed_at.unix_millis())
}

/// The time that `occurred_at` gives a record, in milliseconds, if it can.
pub fn own_time(occurred_at: &[u8]) -> Option<i64> {
    let parsed = millis(std::str::from_utf8(occurred_at).ok()?);
    parsed.filter(|ms| *ms > 0)
}

fn millis(text: &str) -> Option<i64> {
    if text.ends_with("BC") {
        return None;
    }
    // A column without a time zone is read as UTC.
    let zoned = text.parse::<jiff::Timestamp>().ok();
    let time = zoned.or_else(|| {
        let civil: jiff::civil::DateTime = text.parse().ok()?;
        jiff::tz::TimeZone::UTC.to_timestamp(civil).ok()
    })?;
    Some(time.as_millisecond())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        config::{Format, OnPoison, Outbox, Preset, TableName},
        lsn::Lsn,
        outbox::{
            relation::{Mapping, Relations, Shape, Table},
            row::Reread,
        },
        pg::pgoutput::{Column, Relation, Tuple},
    };

    const COLUMNS: [&str; 10] = [
        "seq",
        "event_id",
        "aggregate_type",
        "aggregate_id",
        "aggregate_version",
        "event_type",
        "schema_version",
        "payload",
        "headers",
        "occurred_at",
    ];

    fn outbox(topic: &str) -> Outbox {
        Outbox {
            table: TableName {
                schema: "public".into(),
                name: "outbox".into(),
            },
            preset: Preset::Walpost,
            topic: topic.into(),
            key: "aggregate_id".into(),
            format: Format::Raw,
            on_poison: OnPoison::Stop,
            order_by: "seq".into(),
        }
    }

    fn shape(topic: &str, payload_type: u32) -> Arc<Shape> {
        let mut relations = Relations::new(Mapping::new(&outbox(topic)).unwrap(), 1);
        let column = |name: &&str| Column {
            name: (*name).into(),
            type_oid: if *name == "payload" { payload_type } else { 25 },
        };
        let _ = relations.learn(&Relation {
            id: 1,
            namespace: "public".into(),
            name: "outbox".into(),
            columns: COLUMNS.iter().map(column).collect(),
        });
        match relations.table(1) {
            Some(Table::Ours(shape)) => shape.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// A tuple with these values; every column not named is NULL.
    fn tuple(values: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = (COLUMNS.len() as u16).to_be_bytes().to_vec();
        for column in COLUMNS {
            match values.iter().find(|(name, _)| *name == column) {
                None => bytes.push(b'n'),
                Some((_, text)) => {
                    bytes.push(b't');
                    bytes.extend((text.len() as u32).to_be_bytes());
                    bytes.extend(text.as_bytes());
                }
            }
        }
        bytes
    }

    const AT: Position = Position {
        commit: Lsn::new(0x16B_3748),
        ordinal: 3,
    };
    const COMMITTED: PgTime = PgTime::new(1_500);

    fn with<T>(
        shape: &Shape,
        values: &[(&str, &str)],
        look: impl FnOnce(Record<'_>) -> T,
    ) -> Result<T, Unmappable> {
        let bytes = tuple(values);
        let row = OutboxRow::new(shape, Tuple::from_bytes(&bytes))?;
        Mapper::default()
            .record(&row, Origin::Stream, AT, COMMITTED)
            .map(look)
    }

    #[test]
    fn a_full_row_becomes_topic_key_headers_and_value() {
        let values = [
            ("seq", "1"),
            ("event_id", "e-1"),
            ("aggregate_type", "order"),
            ("aggregate_id", "o-1"),
            ("aggregate_version", "7"),
            ("event_type", "Placed"),
            ("schema_version", "2"),
            ("payload", "{\"b\":  1}"),
            ("headers", "{\"traceparent\": \"00-a\"}"),
            ("occurred_at", "2024-02-29 12:34:56.789+00"),
        ];
        with(&shape("x.{aggregate_type}", 3802), &values, |record| {
            assert_eq!((record.topic, record.key), ("x.order", Some(&b"o-1"[..])));
            assert_eq!(
                (record.timestamp, record.payload),
                (1_709_210_096_789, Some(&b"{\"b\":  1}"[..]))
            );
            let names: Vec<_> = record
                .headers
                .iter()
                .map(|(n, v)| (n, v.unwrap()))
                .collect();
            let expected: [(&[u8], &[u8]); 7] = [
                (b"event_id", b"e-1"),
                (b"aggregate_type", b"order"),
                (b"aggregate_version", b"7"),
                (b"event_type", b"Placed"),
                (b"schema_version", b"2"),
                (b"wal_position", b"0/16B3748:3"),
                (b"traceparent", b"00-a"),
            ];
            assert_eq!(names, expected);
        })
        .unwrap();
    }

    #[test]
    fn a_row_of_the_table_tells_why_it_was_read_instead_of_a_position() {
        let bytes = tuple(&[("event_id", "e-1"), ("headers", "{\"a\": \"b\"}")]);
        let shape = shape("t", 25);
        let row = OutboxRow::new(&shape, Tuple::from_bytes(&bytes)).unwrap();
        let mut mapper = Mapper::default();
        let origin = Origin::Table(Reread::Recover);
        let record = mapper.record(&row, origin, AT, COMMITTED).unwrap();
        let headers: Vec<_> = record.headers.iter().collect();
        let expected: [(&[u8], Option<&[u8]>); 3] = [
            (b"event_id", Some(b"e-1")),
            (b"walpost_replay", Some(b"recover")),
            (b"a", Some(b"b")),
        ];
        assert_eq!(headers, expected);
    }

    #[test]
    fn null_and_empty_stay_apart() {
        let shape = shape("t", 25);
        with(&shape, &[], |r| {
            assert_eq!((r.key, r.payload, r.headers.len()), (None, None, 1))
        })
        .unwrap();
        let empty = [("aggregate_id", ""), ("payload", "")];
        with(&shape, &empty, |r| {
            assert_eq!((r.key, r.payload), (Some(&b""[..]), Some(&b""[..])))
        })
        .unwrap();
    }

    #[test]
    fn bytea_becomes_its_bytes() {
        let shape = shape("t", 17);
        for (text, bytes) in [("\\x", &b""[..]), ("\\x00fF0a", &[0, 255, 10])] {
            with(&shape, &[("payload", text)], |r| {
                assert_eq!(r.payload, Some(bytes))
            })
            .unwrap();
        }
        for bad in ["", "\\x0", "\\x0g", "00"] {
            let error = with(&shape, &[("payload", bad)], |_| ()).unwrap_err();
            assert_eq!(error.code, "bytea_form");
        }
    }

    #[test]
    fn a_type_that_is_gone_is_judged_by_the_form_of_its_text() {
        let shape = shape("t", 99_999);
        for (text, bytes) in [
            ("\\x00ff", &[0, 255][..]),
            ("\\x0", b"\\x0"),
            ("\\xyz", b"\\xyz"),
            ("", b""),
            ("label", b"label"),
        ] {
            with(&shape, &[("payload", text)], |r| {
                assert_eq!(r.payload, Some(bytes), "{text}")
            })
            .unwrap();
        }
    }

    #[test]
    fn times_that_no_record_can_have_become_the_commit_time() {
        let commit = COMMITTED.unix_millis();
        for (text, expected) in [
            ("1970-01-01 00:00:00.001+00", 1),
            ("2024-01-01 00:00:00.0006+00", 1_704_067_200_000),
            ("2262-04-12 00:00:00+00", 9_223_372_800_000),
            ("2024-02-29 12:34:56.789", 1_709_210_096_789),
            ("infinity", commit),
            ("-infinity", commit),
            ("0044-03-15 12:00:00+00 BC", commit),
            ("1970-01-01 00:00:00+00", commit),
            ("1969-07-20 20:17:40+00", commit),
            ("10000-01-01 00:00:00+00", commit),
        ] {
            assert_eq!(
                timestamp(Some(text.as_bytes()), COMMITTED),
                expected,
                "{text}"
            );
        }
        assert_eq!(timestamp(None, COMMITTED), commit);
    }

    #[test]
    fn a_row_of_a_table_without_a_mapped_column_is_unmappable_and_named() {
        let mapping = Mapping::new(&outbox("t")).unwrap();
        let mut relations = Relations::new(mapping, 1);
        let column = |name: &str| Column {
            name: name.into(),
            type_oid: 25,
        };
        let columns = vec![column("event_id"), column("payload")];
        let (namespace, name) = ("public".into(), "outbox".into());
        let _ = relations.learn(&Relation {
            id: 1,
            namespace,
            name,
            columns,
        });
        let Some(Table::Ours(shape)) = relations.table(1) else {
            panic!()
        };
        let row = OutboxRow::new(shape, Tuple::from_bytes(b"\0\x02t\0\0\0\x01en")).unwrap();
        assert_eq!(row.role(Role::EventId), Some(&b"e"[..]));
        let error = Mapper::default()
            .record(&row, Origin::Stream, AT, COMMITTED)
            .err()
            .unwrap();
        assert_eq!(
            (error.code, error.text.contains("aggregate_type")),
            ("column_missing", true)
        );
    }

    #[test]
    fn rows_without_a_topic_are_unmappable() {
        let shape = shape("x.{aggregate_type}", 25);
        assert_eq!(with(&shape, &[], |_| ()).unwrap_err().code, "topic_null");
        for bad in ["a b", "a/b", &"x".repeat(300)] {
            let error = with(&shape, &[("aggregate_type", bad)], |_| ()).unwrap_err();
            assert_eq!(error.code, "topic_invalid", "{bad}");
        }
        let values = [("aggregate_type", "a"), ("headers", "[1]")];
        assert_eq!(
            with(&shape, &values, |_| ()).unwrap_err().code,
            "headers_not_an_object"
        );
    }
}

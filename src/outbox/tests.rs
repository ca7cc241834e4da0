//! What a row becomes, one thing at a time. Other modules' tests begin with `mapping`.

use std::sync::Arc;

use super::{
    mapping::Mapping,
    record::Mapper,
    relation::{Relations, Shape, Table},
    row::{Origin, OutboxRow, Reread, Unmappable},
    types::{BOOL, BYTEA, INT4, INT8, JSONB, TEXT, TIMESTAMPTZ},
};
use crate::{
    config::Outbox,
    lsn::{Lsn, PgTime, Position},
    pg::pgoutput::{Column, Relation, Tuple},
};

mod debezium;
mod formats;
mod messages;
mod options;

/// Of the keys of one `[[outbox]]`.
pub fn mapping(toml: &str) -> Arc<Mapping> {
    Arc::new(try_mapping(toml).expect("a good mapping"))
}

pub fn try_mapping(toml: &str) -> Result<Mapping, String> {
    let outbox: Outbox = toml::from_str(toml).map_err(|error| error.message().to_owned())?;
    Mapping::new(&outbox, 0).map_err(|problem| problem.to_string())
}

/// A column: name, type, value.
type Cell<'a> = (&'a str, u32, Option<&'a str>);

/// A record, owned.
#[derive(Debug, PartialEq)]
struct Told {
    topic: String,
    key: Option<Vec<u8>>,
    headers: Vec<(String, Option<String>)>,
    timestamp: i64,
    partition: Option<i32>,
    value: Option<Vec<u8>>,
}

impl Told {
    fn text(&self) -> Option<&str> {
        self.value
            .as_deref()
            .map(|v| std::str::from_utf8(v).unwrap())
    }

    fn names(&self) -> Vec<&str> {
        self.headers.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known == name)?;
        value.as_deref()
    }
}

const AT: Position = Position {
    commit: Lsn::new(0x16B_3748),
    ordinal: 3,
};
const COMMITTED: PgTime = PgTime::new(1_500);

fn shape(mapping: &Arc<Mapping>, cells: &[Cell<'_>]) -> Arc<Shape> {
    let mut relations = Relations::new(vec![mapping.clone()]);
    let columns = cells.iter().map(|(name, type_oid, _)| Column {
        name: (*name).into(),
        type_oid: *type_oid,
    });
    let _ = relations.learn(&Relation {
        id: 1,
        namespace: "public".into(),
        name: "outbox".into(),
        columns: columns.collect(),
    });
    match relations.table(1) {
        Some(Table::Ours(shape)) => shape.clone(),
        other => panic!("{other:?}"),
    }
}

fn tuple(cells: &[Cell<'_>]) -> Vec<u8> {
    let mut bytes = (cells.len() as u16).to_be_bytes().to_vec();
    for (_, _, value) in cells {
        match value {
            None => bytes.push(b'n'),
            Some(text) => {
                bytes.push(b't');
                bytes.extend((text.len() as u32).to_be_bytes());
                bytes.extend(text.as_bytes());
            }
        }
    }
    bytes
}

fn told(config: &str, cells: &[Cell<'_>], origin: Origin) -> Result<Told, Unmappable> {
    let mapping = mapping(&format!("table = \"outbox\"\n{config}"));
    tell(&shape(&mapping, cells), &tuple(cells), origin)
}

fn tell(shape: &Shape, tuple: &[u8], origin: Origin) -> Result<Told, Unmappable> {
    let row = OutboxRow::new(shape, Tuple::from_bytes(tuple))?;
    let mut mapper = Mapper::default();
    let record = mapper.record(&row, origin, AT, COMMITTED)?;
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    Ok(Told {
        topic: record.topic.into(),
        key: record.key.map(<[u8]>::to_vec),
        headers: record
            .headers
            .iter()
            .map(|(n, v)| (text(n), v.map(text)))
            .collect(),
        timestamp: record.timestamp,
        partition: record.partition,
        value: record.payload.map(<[u8]>::to_vec),
    })
}

/// A row of preset `walpost`, with these columns otherwise or besides.
fn row<'a>(otherwise: &[Cell<'a>]) -> Vec<Cell<'a>> {
    let mut cells = vec![
        ("seq", INT8, Some("1")),
        ("event_id", 2950, Some("e-1")),
        ("aggregate_type", TEXT, Some("order")),
        ("aggregate_id", TEXT, Some("o-1")),
        ("aggregate_version", INT8, Some("7")),
        ("event_type", TEXT, Some("Placed")),
        ("schema_version", INT4, Some("2")),
        ("payload", JSONB, Some("{\"b\":  1}")),
        ("headers", JSONB, Some("{\"traceparent\": \"00-a\"}")),
        (
            "occurred_at",
            TIMESTAMPTZ,
            Some("2024-02-29 12:34:56.789+00"),
        ),
    ];
    for cell in otherwise {
        match cells.iter_mut().find(|(name, ..)| *name == cell.0) {
            Some(known) => *known = *cell,
            None => cells.push(*cell),
        }
    }
    cells
}

fn stream(config: &str, otherwise: &[Cell<'_>]) -> Result<Told, Unmappable> {
    told(config, &row(otherwise), Origin::Stream)
}

fn code(result: Result<Told, Unmappable>) -> &'static str {
    result.expect_err("no record").code
}

fn pair(name: &str, value: &str) -> (String, Option<String>) {
    (name.into(), Some(value.into()))
}

#[test]
fn a_full_row_becomes_topic_key_headers_and_value() {
    let told = stream("topic = \"x.{aggregate_type}\"", &[]).unwrap();
    assert_eq!(
        told,
        Told {
            topic: "x.order".into(),
            key: Some(b"o-1".to_vec()),
            headers: vec![
                pair("event_id", "e-1"),
                pair("aggregate_type", "order"),
                pair("aggregate_version", "7"),
                pair("event_type", "Placed"),
                pair("schema_version", "2"),
                pair("wal_position", "0/16B3748:3"),
                pair("traceparent", "00-a"),
            ],
            timestamp: 1_709_210_096_789,
            partition: None,
            value: Some(b"{\"b\":  1}".to_vec()),
        }
    );
}

#[test]
fn a_row_of_the_table_tells_why_it_was_read_instead_of_a_position() {
    let cells = row(&[("headers", JSONB, Some("{\"a\": \"b\"}"))]);
    let told = told("", &cells, Origin::Table(Reread::Recover)).unwrap();
    assert_eq!(told.header("wal_position"), None);
    assert_eq!(
        told.headers[5..],
        [pair("walpost_replay", "recover"), pair("a", "b")]
    );
}

#[test]
fn null_and_empty_stay_apart() {
    for (stored, key) in [
        (None, None),
        (Some(""), Some(&b""[..])),
        (Some("k"), Some(b"k")),
    ] {
        let told = stream("", &[("aggregate_id", TEXT, stored)]).unwrap();
        assert_eq!(told.key.as_deref(), key);
    }
    for (kind, stored, value) in [
        (JSONB, None, None),
        (TEXT, Some(""), Some(&b""[..])),
        (BYTEA, Some("\\x"), Some(b"")),
        (JSONB, Some("null"), Some(b"null")),
    ] {
        let told = stream("", &[("payload", kind, stored)]).unwrap();
        assert_eq!(told.value.as_deref(), value, "{stored:?}");
    }
    let told = stream(
        "",
        &[("headers", JSONB, Some("{\"n\": null, \"e\": \"\"}"))],
    )
    .unwrap();
    assert_eq!(told.headers[6..], [("n".into(), None), pair("e", "")]);
}

#[test]
fn a_null_column_has_no_header() {
    let nulls = [
        "event_id",
        "aggregate_type",
        "aggregate_version",
        "event_type",
        "schema_version",
        "headers",
    ];
    let cells = nulls.map(|name| (name, TEXT, None));
    let told = stream("topic = \"t\"", &cells).unwrap();
    assert_eq!(told.names(), ["wal_position"]);
}

#[test]
fn bytea_becomes_its_bytes() {
    for (text, bytes) in [("\\x", &b""[..]), ("\\x00fF0a", &[0, 255, 10])] {
        let told = stream(
            "",
            &[
                ("payload", BYTEA, Some(text)),
                ("aggregate_id", BYTEA, Some(text)),
            ],
        )
        .unwrap();
        assert_eq!(
            (told.value.as_deref(), told.key.as_deref()),
            (Some(bytes), Some(bytes))
        );
    }
    for bad in ["", "\\x0", "\\x0g", "00"] {
        assert_eq!(
            code(stream("", &[("payload", BYTEA, Some(bad))])),
            "bytea_form"
        );
    }
}

#[test]
fn a_type_that_is_gone_is_judged_by_the_form_of_its_text() {
    for (text, bytes) in [
        ("\\x00ff", &[0, 255][..]),
        ("\\x0", b"\\x0"),
        ("\\xyz", b"\\xyz"),
        ("", b""),
        ("label", b"label"),
    ] {
        let told = stream("", &[("payload", 99_999, Some(text))]).unwrap();
        assert_eq!(told.value.as_deref(), Some(bytes), "{text}");
    }
}

#[test]
fn a_row_of_a_table_without_a_mapped_column_is_unmappable_and_named() {
    let cells = [("event_id", TEXT, Some("e")), ("payload", TEXT, None)];
    let error = told("topic = \"t\"", &cells, Origin::Stream).unwrap_err();
    assert_eq!(error.code, "column_missing");
    assert!(error.text.contains("aggregate_type"), "{error}");
}

#[test]
fn half_a_topic_is_never_told() {
    let cells = [("event_id", TEXT, Some("e")), ("payload", TEXT, None)];
    for (config, topic) in [
        ("topic = \"t\"", Some("t")),
        ("topic = \"t.{aggregate_type}\"", None),
        ("topic = \"t.{event_id}\"", Some("t.e")),
    ] {
        let mapping = mapping(&format!("table = \"outbox\"\n{config}"));
        let (shape, tuple) = (shape(&mapping, &cells), tuple(&cells));
        let row = OutboxRow::new(&shape, Tuple::from_bytes(&tuple)).unwrap();
        let mut mapper = Mapper::default();
        assert_eq!(mapper.topic(&row).ok(), topic, "{config}");
    }
}

#[test]
fn rows_without_a_topic_are_unmappable() {
    assert_eq!(
        code(stream("", &[("aggregate_type", TEXT, None)])),
        "topic_null"
    );
    for bad in ["a b", "a/b", "é", &"x".repeat(300)] {
        assert_eq!(
            code(stream("", &[("aggregate_type", TEXT, Some(bad))])),
            "topic_invalid",
            "{bad}"
        );
    }
    for bad in ["[1]", "null", "7", "\"x\""] {
        assert_eq!(
            code(stream("", &[("headers", JSONB, Some(bad))])),
            "headers_not_an_object"
        );
    }
}

#[test]
fn columns_far_to_the_right_are_found() {
    let names: Vec<String> = (0..60).map(|n| format!("c{n}")).collect();
    let mut cells = row(&[]);
    cells.extend(
        names
            .iter()
            .map(|name| (name.as_str(), TEXT, Some(name.as_str()))),
    );
    let config = "topic = \"{c59}.{c0}\"\nkey = \"c40\"\nadditional = [{ column = \"c50\", placement = \"header\" }]";
    let told = told(config, &cells, Origin::Stream).unwrap();
    assert_eq!(
        (told.topic.as_str(), told.key.as_deref()),
        ("c59.c0", Some(&b"c40"[..]))
    );
    assert_eq!(told.header("c50"), Some("c50"));
}

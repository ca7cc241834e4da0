//! Work on the path of a row, for `scripts/bench instructions`, which counts what the processor does: `NAME COUNT` does it
//! so often. The difference between two counts is free of what starts and ends a process.

use std::{hint::black_box, sync::Arc};

use walpost::{
    ledger::{Ledger, RowState, Seq},
    lsn::{Lsn, PgTime, Position},
    outbox::{
        mapping::Mapping,
        record::Mapper,
        relation::{Relations, Shape, Table},
        row::{Origin, OutboxRow},
    },
    pg::{
        message::ServerMessage,
        pgoutput::{Change, Column, Relation, Tuple},
    },
};

/// Columns of the table that `walpost init --create-table` makes, their types, and a row.
const ROW: [(&str, u32, &str); 10] = [
    ("seq", 20, "123456"),
    ("event_id", 2950, "0b5ce5c8-83a5-4f9c-9c47-1d0a3f1e2b44"),
    ("aggregate_type", 25, "order"),
    ("aggregate_id", 25, "31415"),
    ("aggregate_version", 20, "7"),
    ("event_type", 25, "OrderCreated"),
    ("schema_version", 23, "1"),
    ("payload", 3802, PAYLOAD),
    ("headers", 3802, r#"{"source": "shop", "tenant": "7"}"#),
    ("occurred_at", 1184, "2026-01-02 03:04:05.678901+00"),
];

/// 320 bytes.
const PAYLOAD: &str = r#"{"order": 31415, "status": "created", "items": ["0123456789abcdef0123456789abc", "0123456789abcdef0123456789abc", "0123456789abcdef0123456789abc", "0123456789abcdef0123456789abc", "0123456789abcdef0123456789abc", "0123456789abcdef0123456789abc", "0123456789abcdef0123456789abc", "0123456789abcdef01234567890123"]}"#;

/// Rows in flight.
const WINDOW: u64 = 1000;

fn tuple() -> Vec<u8> {
    let mut bytes = (ROW.len() as u16).to_be_bytes().to_vec();
    for (_, _, value) in ROW {
        bytes.push(b't');
        bytes.extend((value.len() as u32).to_be_bytes());
        bytes.extend(value.as_bytes());
    }
    bytes
}

fn shape() -> Arc<Shape> {
    let keys = "table = \"public.outbox\"\ntopic = \"outbox.{aggregate_type}\"";
    let outbox = toml::from_str(keys).expect("good keys");
    let mapping = Mapping::new(&outbox, 0).map_err(|problem| problem.to_string());
    let mut relations = Relations::new(vec![Arc::new(mapping.expect("a good mapping"))]);
    let columns = ROW.map(|(name, type_oid, _)| Column {
        name: name.into(),
        type_oid,
    });
    let learnt = relations.learn(&Relation {
        id: 1,
        namespace: "public".into(),
        name: "outbox".into(),
        columns: columns.into(),
    });
    assert!(learnt);
    match relations.table(1) {
        Some(Table::Ours(shape)) => shape.clone(),
        other => panic!("{other:?}"),
    }
}

/// A frame of the stream to a change with its values.
fn parse(count: u64) {
    let mut frame = b"w".to_vec();
    frame.extend([0; 24]);
    frame.extend(b"I\0\0\0\x01N");
    frame.extend(tuple());
    for _ in 0..count {
        match ServerMessage::parse(black_box(&frame)) {
            Ok(ServerMessage::XLogData { data, .. }) => match Change::parse(data) {
                Ok(Change::Insert { tuple, .. }) => tuple.values().for_each(|value| {
                    black_box(value);
                }),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

/// A row's bytes to its record: topic, key, headers, timestamp, value.
fn map(count: u64) {
    let (shape, tuple, mut mapper) = (shape(), tuple(), Mapper::default());
    for ordinal in 0..count {
        let position = Position {
            commit: Lsn::new(1 << 32),
            ordinal: ordinal as u32,
        };
        let row = OutboxRow::new(&shape, Tuple::from_bytes(black_box(&tuple))).expect("a row");
        let record = mapper.record(&row, Origin::Stream, position, PgTime::new(1_500));
        black_box(record.expect("a record"));
    }
}

/// A transaction of one row: opened, enqueued, settled behind 1,000 others, and confirmed.
fn ledger(count: u64) {
    let (shape, tuple) = (shape(), tuple());
    let mut ledger = Ledger::new(20_000, 32 << 20);
    ledger.reserve(Lsn::new(u64::MAX));
    for n in 1..=count {
        let at = Lsn::new(n * 1000);
        ledger.begin(at, PgTime::new(0)).expect("in turn");
        ledger.next_position().expect("in turn");
        let seq = ledger
            .open_row(shape.clone(), tuple.as_slice().into())
            .expect("in turn");
        ledger.set_topic(seq, 0, 400);
        ledger.set_state(seq, RowState::Enqueued);
        ledger.commit(Lsn::new(n * 1000 + 8)).expect("in turn");
        ledger.raise_ceiling(ledger.boundary());
        if n > WINDOW {
            black_box(ledger.settle(Seq(seq.0 - WINDOW)));
        }
        black_box(ledger.confirmed());
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (name, count) = (arguments.next(), arguments.next());
    // Without arguments it is `cargo test` that calls: once is enough to see that it works.
    let count = count.and_then(|count| count.parse().ok()).unwrap_or(1);
    match name.as_deref() {
        Some("parse") => parse(count),
        Some("map") => map(count),
        Some("ledger") => ledger(count),
        _ => [parse, map, ledger]
            .map(|work| work(count))
            .into_iter()
            .collect(),
    }
}

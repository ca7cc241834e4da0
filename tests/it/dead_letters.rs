//! One bad event stops and loses nothing else: it becomes a dead letter, rows of its key wait behind
//! it, all others flow, and it can be published again.

mod content;
mod copies;
mod guilty;
mod hot;
mod killed;
mod policies;
mod races;
mod servers;
mod unwritten;

use serde_json::Value;

use crate::harness::{Scene, Walpost, records::Record, until};

/// The topic takes no record of this many bytes.
const LARGE: usize = 30_000;
const LIMIT: &str = "20000";

/// A row of `walpost.dead_letter`.
#[derive(Clone, Debug)]
struct Letter {
    id: i64,
    event_id: String,
    status: String,
    held_behind: Option<i64>,
    attempts: i64,
    class: String,
    code: String,
    text: String,
    topic: String,
    position: String,
}

/// All of them, in the order of the stream.
fn letters(scene: &Scene) -> Vec<Letter> {
    let rows = scene.sql.rows(
        "SELECT id, event_id, status, held_behind, attempts, error_class, error_code, error_text, topic,
           position_lsn || ':' || position_ordinal
         FROM walpost.dead_letter ORDER BY life, position_lsn, position_ordinal, id",
    );
    let letter = |row: Vec<Option<String>>| {
        let text = |n: usize| row[n].clone().unwrap_or_default();
        let number = |n: usize| row[n].as_ref().and_then(|text| text.parse().ok());
        Letter {
            id: number(0).expect("an id"),
            event_id: text(1),
            status: text(2),
            held_behind: number(3),
            attempts: number(4).unwrap_or_default(),
            class: text(5),
            code: text(6),
            text: text(7),
            topic: text(8),
            position: text(9),
        }
    };
    rows.into_iter().map(letter).collect()
}

fn statuses(scene: &Scene) -> Vec<String> {
    letters(scene).into_iter().map(|l| l.status).collect()
}

/// Once the letters have these statuses, in the order of the stream.
#[track_caller]
fn wait_statuses(scene: &Scene, wanted: &[&str]) -> Vec<Letter> {
    let mut last = Vec::new();
    until(format_args!("letters are {wanted:?}"), 60, || {
        let now = letters(scene);
        let statuses: Vec<&str> = now.iter().map(|l| l.status.as_str()).collect();
        if statuses != last {
            println!("letters: {statuses:?}");
            last = statuses.iter().map(|s| (*s).to_owned()).collect();
        }
        (statuses == wanted).then(|| now.clone())
    })
}

/// Topic `order` takes records up to `LIMIT` bytes; letters wait for operators.
fn small_topic(scene: &Scene) -> Walpost {
    scene.create_topic("order", 1, &[("max.message.bytes", LIMIT)]);
    let mut walpost = patient(scene);
    walpost.init();
    walpost.set("outbox.on_poison", "hold-key");
    walpost
}

/// Many rows in one batch, as they are; letters wait for operators.
fn patient(scene: &Scene) -> Walpost {
    let mut walpost = scene.walpost();
    walpost
        .set("kafka.properties.linger.ms", 50)
        .set("kafka.properties.compression.type", "none")
        .set("dead_letters.retry_after", Vec::<String>::new());
    walpost
}

/// From now on topic `order` takes large records.
fn heal(scene: &Scene) {
    scene
        .kafka
        .configure(&scene.topic("order"), &[("max.message.bytes", "1000000")]);
}

/// A row of the key that the topic does not take; its event id.
fn large(scene: &Scene, key: &str) -> String {
    scene.sql.value(&scene.rows(key, 1, LARGE)).expect("an id")
}

fn seq(record: &Record) -> u64 {
    let value = record.value.as_deref().expect("a value");
    let value: Value = serde_json::from_slice(value).expect("JSON");
    value["seq"].as_u64().expect("a number")
}

/// The `seq` of each record of the key, in the topic's order.
fn seqs(scene: &Scene, key: &str) -> Vec<u64> {
    let records = scene.records();
    let of_key = records
        .iter()
        .filter(|record| record.key.as_deref() == Some(key.as_bytes()));
    of_key.map(seq).collect()
}

/// What an operator does by SQL; the new status.
#[track_caller]
fn act(scene: &Scene, call: &str) -> String {
    scene
        .sql
        .value(&format!("SELECT walpost.{call}"))
        .expect("a status")
}

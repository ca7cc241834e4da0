//! The copy of each letter in a topic of Kafka.

use serde_json::Value;

use super::{LIMIT, act, large, letters, patient, small_topic, wait_statuses};
use crate::harness::{Scene, records::Record, until};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

fn of_letter(record: &Record) -> Vec<(&str, &str)> {
    let texts = record.texts().into_iter();
    texts
        .filter_map(|(name, value)| Some((name.strip_prefix("dead_letter_")?, value?)))
        .collect()
}

#[test]
fn a_letter_is_copied_with_its_record_and_why_it_is_one_and_again_when_it_is_dead() {
    let scene = Scene::new();
    let mut walpost = small_topic(&scene);
    scene.create_topic("copies", 1, &[]);
    walpost.set("dead_letters.topic", scene.topic("copies"));
    let mut run = scene.started(&walpost);
    let trace = format!(r#"'{{"traceparent": "00-{TRACE}-b7ad6b7169203331-01", "n": null}}'"#);
    let big = scene.insert_row(&[
        ("aggregate_id", "'K'"),
        ("headers", &trace),
        (
            "payload",
            "jsonb_build_object('seq', 1, 'pad', repeat('x', 30000))",
        ),
    ]);
    let held = scene.insert("K", 1);
    let raw = scene.insert_row(&[("headers", "'[1]'"), ("aggregate_id", "'R'")]);
    scene.insert("L", 1);
    let copies = scene.kafka.wait(&scene.topic("copies"), 2, 60);
    let written = wait_statuses(&scene, &["pending", "held", "pending"]);
    assert_eq!(written[1].event_id, held[0]);

    // In the order in which the letters were written.
    let of = |event: &str| {
        let of_event = |copy: &&Record| copy.header("dead_letter_event_id") == Some(event);
        copies.iter().find(of_event).expect("a copy")
    };
    let (letter, copy) = (&written[0], of(&big));
    assert_eq!(
        (copy.event_id(), copy.key.as_deref()),
        (big.as_str(), Some(&b"K"[..]))
    );
    assert!(
        copy.value
            .as_ref()
            .is_some_and(|value| value.len() > 30_000)
    );
    let names: Vec<_> = copy.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names[..7],
        [
            "event_id",
            "aggregate_type",
            "event_type",
            "schema_version",
            "wal_position",
            "n",
            "traceparent"
        ],
        "the original's come first"
    );
    let topic = scene.topic("order");
    let (id, first, last) = (
        letter.id.to_string(),
        copy.header("dead_letter_first_failed_at").expect("a time"),
        copy.header("dead_letter_last_failed_at").expect("a time"),
    );
    assert!(first.parse::<jiff::Timestamp>().is_ok(), "{first}");
    assert_eq!(
        of_letter(copy),
        [
            ("id", id.as_str()),
            ("event_id", &big),
            ("outbox", "public.outbox"),
            ("topic", &topic),
            ("partition", "0"),
            ("position", &letter.position),
            ("class", "event"),
            ("code", &letter.code),
            ("text", &letter.text),
            ("attempts", "0"),
            ("first_failed_at", first),
            ("last_failed_at", last),
            ("trace_id", TRACE),
        ]
    );

    let (letter, copy) = (&written[2], of(&raw));
    assert_eq!(letter.event_id, raw);
    let columns: Value =
        serde_json::from_slice(copy.value.as_deref().expect("a value")).expect("JSON");
    assert_eq!(
        (&columns["event_id"], &columns["headers"]),
        (&raw.as_str().into(), &"[1]".into())
    );
    assert_eq!(
        copy.header("dead_letter_code"),
        Some("headers_not_an_object")
    );

    // Without another retry a letter that fails again is dead.
    act(&scene, &format!("replay({})", written[0].id));
    let copies = scene.kafka.wait(&scene.topic("copies"), 3, 60);
    assert_eq!(
        (
            copies[2].event_id(),
            copies[2].header("dead_letter_attempts")
        ),
        (big.as_str(), Some("1"))
    );
    assert_eq!(copies[2].header("dead_letter_first_failed_at"), Some(first));
    assert!(copies[2].header("dead_letter_last_failed_at") > Some(first));
    assert!(
        copies[2].header("walpost_replay").is_none(),
        "the record as it was"
    );
    run.stop(0);
    assert_eq!(
        scene.kafka.read(&scene.topic("copies")).len(),
        3,
        "held rows are not copied"
    );
}

#[test]
fn copies_that_kafka_does_not_take_are_counted_and_disturb_nothing() {
    let scene = Scene::new();
    let mut walpost = small_topic(&scene);
    // As large as the one that the letter was refused by.
    scene.create_topic("copies", 1, &[("max.message.bytes", LIMIT)]);
    walpost.set("dead_letters.topic", scene.topic("copies"));
    let mut run = scene.started(&walpost);
    scene.insert("L", 1);
    let bad = large(&scene, "K");
    scene.insert("L", 1);
    scene.wait_confirmed(60);
    let metric = |name, labels| walpost.metric(name, labels).unwrap_or_default();
    let counted = || metric("walpost_dead_letter_copy_failures_total", "TOO_LARGE");
    until("the copy's failure is counted", 60, || {
        (counted() == 1.0).then_some(())
    });
    let restarts = metric("walpost_restarts_total", "producer");
    assert_eq!(restarts, 1.0, "of the event itself alone");
    let failures = metric("walpost_delivery_failures_total", "class=\"event\"");
    // The next one is suspected: its letter's copy alone fails anew.
    large(&scene, "K2");
    until("the next copy's failure is counted", 60, || {
        (counted() == 2.0).then_some(())
    });
    assert!(metric("walpost_delivery_failures_total", "class=\"event\"") <= failures + 2.0);
    run.assert_alive();
    scene.insert("L", 1);
    scene.wait_confirmed(60);
    assert_eq!(letters(&scene)[0].event_id, bad);
    assert!(
        !run.says("making smaller ones"),
        "one that is too large itself says nothing of batches"
    );
    assert!(run.says("a copy of a dead letter was not published"));
    // A letter that fits is copied.
    scene.insert_row(&[("headers", "'[1]'")]);
    scene.kafka.wait(&scene.topic("copies"), 1, 60);
    run.stop(0);
}

#[test]
fn without_their_topic_copies_are_given_up_and_the_events_flow() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    let mut walpost = patient(&scene);
    walpost.init();
    walpost
        .set("dead_letters.topic", scene.topic("nobody-made-it"))
        .set("kafka.properties.topic.metadata.propagation.max.ms", 500);
    let mut run = scene.started(&walpost);
    for _ in 0..3 {
        scene.insert_row(&[("headers", "'[1]'")]);
        scene.insert("L", 1);
    }
    scene.wait_confirmed(60);
    assert_eq!(letters(&scene).len(), 3);
    until("the copies' failures are counted", 60, || {
        let counted = walpost.metric("walpost_dead_letter_copy_failures_total", "UNKNOWN_TOPIC");
        (counted == Some(3.0)).then_some(())
    });
    let log = run.log();
    assert_eq!(log.matches("was not published").count(), 1, "{log}");
    run.stop(0);
}

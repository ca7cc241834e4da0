//! A letter that cannot be written lets nothing pass; too many failures end it before it has set
//! everything aside.

use super::{LARGE, large, letters, patient, seqs, small_topic, wait_statuses};
use crate::harness::{Scene, Walpost, always, kafka_server::KafkaServer, postgres::Server, until};

/// While letters cannot be written the slot stays before the event, `/ready` says why, and all that
/// can be is published; afterwards it goes on by itself.
fn nothing_passes(forbid: &str, allow: &str) {
    let scene = Scene::new();
    let walpost = small_topic(&scene);
    scene.observe();
    let mut run = scene.started(&walpost);
    scene.insert("L", 5);
    scene.wait_confirmed(60);
    scene.sql.run(forbid);
    let bad = large(&scene, "K");
    scene.insert("K", 2);
    scene.insert("L", 50);
    until("/ready says that it cannot dead-letter", 60, || {
        let (code, body) = walpost.get("/ready")?;
        (code == 503 && body.contains("cannot dead-letter")).then_some(())
    });
    until("the others are published", 60, || {
        (seqs(&scene, "L").len() == 55).then_some(())
    });
    let position = scene.positions()[&bad];
    always("the slot stays before the event", 3, || {
        scene.confirmed() <= position.commit
    });
    assert_eq!(seqs(&scene, "K"), [0; 0]);
    let status = walpost.api_status();
    let error = status["last_error"].as_str().unwrap_or_default();
    assert!(error.contains("cannot dead-letter"), "{error}");
    // A restart meanwhile loses nothing either.
    run.kill();
    until("the slot is free", 60, || {
        scene.slot()?.active_pid.is_none().then_some(())
    });
    let mut run = walpost.start();
    crate::harness::pass(1_000);
    run.assert_alive();
    assert!(scene.confirmed() <= position.commit);
    scene.sql.run(allow);
    wait_statuses(&scene, &["pending", "held", "held"]);
    scene.wait_confirmed(60);
    walpost.wait_ready();
    assert_eq!(seqs(&scene, "K"), [0; 0]);
    run.stop(0);
}

#[test]
fn without_the_right_to_write_letters_nothing_passes_until_it_is_granted() {
    let role = crate::harness::postgres::Server::shared()
        .publisher_name()
        .to_owned();
    nothing_passes(
        &format!("REVOKE INSERT ON walpost.dead_letter FROM {role}"),
        &format!("GRANT INSERT ON walpost.dead_letter TO {role}"),
    );
}

#[test]
fn without_the_table_nothing_passes_until_it_is_back() {
    nothing_passes(
        "ALTER TABLE walpost.dead_letter RENAME TO away",
        "ALTER TABLE walpost.away RENAME TO dead_letter",
    );
}

#[test]
fn with_a_full_disk_nothing_passes_until_there_is_room() {
    nothing_passes(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN RAISE EXCEPTION ''could not extend file'' USING ERRCODE = ''53100''; END';
         CREATE TRIGGER full_disk BEFORE INSERT ON walpost.dead_letter EXECUTE FUNCTION full_disk()",
        "DROP FUNCTION full_disk CASCADE",
    );
}

/// Ten thousand events that all fail, each with a key of its own, behind some that are good.
fn the_guard_stops_it(scene: &Scene, walpost: &mut Walpost, insert: &str, words: &[&str]) {
    walpost.set("delivery.shutdown_grace", "30s");
    let mut run = scene.started(walpost);
    scene.insert("L", 10);
    let before = scene.current_lsn();
    scene.wait_confirmed(60);
    scene.sql.run(insert);
    let all = [
        &["more than 1000 events failed within 60 s", "guard"],
        words,
    ]
    .concat();
    run.expect_end(5, &all, 90);
    let written = letters(scene);
    assert!(written.len() <= 1_000, "{} letters", written.len());
    assert!(
        scene.confirmed() >= before,
        "what came before is not confirmed"
    );
    assert_eq!(seqs(scene, "L").len(), 10);
    assert!(
        written
            .iter()
            .all(|l| l.status == "pending" && l.class == "event")
    );
    println!("{} letters", written.len());
}

fn ten_thousand(payload: &str, headers: &str) -> String {
    format!(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
         SELECT 'order', 'k' || i, 'T', {payload}, {headers} FROM generate_series(1, 10000) i ORDER BY i"
    )
}

#[test]
fn ten_thousand_rows_that_cannot_be_mapped_stop_it_at_the_guard() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    let mut walpost = patient(&scene);
    walpost.init();
    let insert = ten_thousand("'{}'", "'[1]'");
    the_guard_stops_it(
        &scene,
        &mut walpost,
        &insert,
        &["headers is not a JSON object"],
    );
}

#[test]
fn ten_thousand_records_that_the_broker_refuses_stop_it_at_the_guard() {
    let scene = Scene::new();
    let mut walpost = small_topic(&scene);
    let insert = ten_thousand(
        &format!("jsonb_build_object('pad', repeat('x', {LARGE}))"),
        "NULL",
    );
    the_guard_stops_it(&scene, &mut walpost, &insert, &["20000"]);
}

#[test]
fn ten_thousand_records_that_the_client_refuses_stop_it_at_the_guard() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    let mut walpost = patient(&scene);
    walpost.set("kafka.properties.message.max.bytes", 20_000);
    walpost.init();
    let insert = ten_thousand(
        &format!("jsonb_build_object('pad', repeat('x', {LARGE}))"),
        "NULL",
    );
    the_guard_stops_it(&scene, &mut walpost, &insert, &["message.max.bytes"]);
}

#[test]
fn ten_thousand_records_from_the_future_stop_it_at_the_guard() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    let mut walpost = patient(&scene);
    walpost.init();
    let insert = ten_thousand("'{}'", "NULL")
        .replace("headers)", "headers, occurred_at)")
        .replace("NULL FROM", "NULL, now() + interval '2 days' FROM");
    the_guard_stops_it(&scene, &mut walpost, &insert, &["timestamp"]);
}

#[test]
fn ten_thousand_keyless_records_for_a_compacted_topic_stop_it_at_the_guard() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    let mut walpost = patient(&scene);
    walpost.init();
    walpost.set("outbox.topic", scene.topic("{event_type}"));
    scene.create_topic("T", 1, &[]);
    scene.create_topic("C", 1, &[("cleanup.policy", "compact")]);
    let insert = ten_thousand("'{}'", "NULL")
        .replace("'k' || i", "NULL")
        .replace("'T'", "'C'");
    the_guard_stops_it(&scene, &mut walpost, &insert, &["the broker refuses it"]);
}

#[test]
fn ten_thousand_records_for_a_topic_that_cannot_be_stop_it_at_the_guard() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    let mut walpost = patient(&scene);
    walpost.init();
    let insert = ten_thousand("'{}'", "NULL").replace("'order'", "'no topic/' || i");
    the_guard_stops_it(
        &scene,
        &mut walpost,
        &insert,
        &["no name for a topic", "topic_invalid"],
    );
}

#[test]
fn ten_thousand_records_that_are_too_large_for_the_whole_broker_stop_it_at_the_guard() {
    let (broker, _) = KafkaServer::secured("PLAINTEXT", "message.max.bytes=20000");
    let scene = Scene::on(Server::shared(), broker.kafka.clone());
    scene.create_topic("order", 1, &[]);
    let mut walpost = patient(&scene);
    walpost.init();
    let insert = ten_thousand(
        &format!("jsonb_build_object('pad', repeat('x', {LARGE}))"),
        "NULL",
    );
    the_guard_stops_it(&scene, &mut walpost, &insert, &["20000"]);
}

//! Events without a table: `walpost.emit` and `emit_bytes`.

use crate::harness::{Scene, Walpost, sql::hex};

/// An outbox that takes messages, and nothing running yet.
fn ready(scene: &Scene) -> Walpost {
    scene.create_topic("order", 1, &[]);
    let mut walpost = scene.walpost();
    walpost.set("outbox.messages", true);
    walpost.init();
    walpost
}

const EMIT: &str = "SELECT walpost.emit(aggregate_type => 'order', aggregate_id => 'k', event_type => 'emitted', payload => '{\"a\": 1.50}')";

#[test]
fn events_without_a_table_become_records_like_rows_on_every_version() {
    let scene = Scene::new();
    let walpost = ready(&scene);
    let _run = scene.started(&walpost);
    let row = scene.row(&[("event_type", "'row'"), ("aggregate_id", "'k'")]);
    let bytes = [0, 255, b'\n', b'{'];
    let ids = scene.sql.column(&format!(
        "BEGIN; {EMIT}; ROLLBACK; BEGIN; {row}; {EMIT}; SAVEPOINT a; {EMIT}; ROLLBACK TO a;
         SELECT walpost.emit_bytes('order', 'k', 'bytes', {}, headers => '{{\"h\": \"é\"}}', event_id => md5('x')::uuid,
           aggregate_version => 4, schema_version => 2, occurred_at => '2024-02-29 12:34:56.789+05:45'); COMMIT;
         SELECT pg_logical_emit_message(true, 'other', 'x'), pg_logical_emit_message(false, 'walpost', '{{\"v\":1}}');",
        hex(&bytes)
    ));
    let records = scene.wait_records(3);
    let kinds: Vec<_> = records
        .iter()
        .map(|r| r.header("event_type").unwrap_or(""))
        .collect();
    assert_eq!(kinds, ["row", "emitted", "bytes"]);
    // Those that were rolled back gave an id too.
    let emitted = &records[1];
    assert!(ids.contains(&emitted.event_id().to_owned()), "{ids:?}");
    assert_eq!(emitted.value.as_deref(), Some(&br#"{"a": 1.50}"#[..]));
    assert_eq!(emitted.key.as_deref(), Some(&b"k"[..]));
    let raw = &records[2];
    assert_eq!(raw.value.as_deref(), Some(&bytes[..]));
    assert_eq!(raw.timestamp, Some(1_709_189_396_789));
    let position = raw.header("wal_position").expect("a position");
    assert_eq!(
        raw.texts(),
        [
            ("event_id", Some("9dd4e461-268c-8034-f5c8-564e155c67a6")),
            ("aggregate_type", Some("order")),
            ("aggregate_version", Some("4")),
            ("event_type", Some("bytes")),
            ("schema_version", Some("2")),
            ("wal_position", Some(position)),
            ("h", Some("é")),
        ]
    );
    let ordinals: Vec<_> = records
        .iter()
        .filter_map(|r| r.header("wal_position")?.split(':').nth(1))
        .collect();
    assert_eq!(ordinals, ["1", "2", "3"]);
    scene.wait_confirmed(60);
    assert_eq!(scene.records().len(), 3);
}

#[test]
fn messages_are_left_alone_by_default() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.sql.run(EMIT);
    scene.wait_confirmed(60);
    assert!(scene.records().is_empty());
    run.assert_alive();
}

#[test]
fn null_and_empty_stay_apart_in_messages_too() {
    let scene = Scene::new();
    let walpost = ready(&scene);
    let _run = scene.started(&walpost);
    let cases = [
        ("emit", "NULL", "NULL", None, None),
        ("emit", "''", "'null'", Some(""), Some("null")),
        ("emit_bytes", "'k'", "NULL", Some("k"), None),
        ("emit_bytes", "'k'", "''", Some("k"), Some("")),
    ];
    for (function, key, payload, ..) in cases {
        scene.sql.run(&format!("SELECT walpost.{function}('order', {key}, 'T', {payload}, event_id => NULL, occurred_at => NULL)"));
    }
    for (record, (function, _, payload, key, value)) in scene.wait_records(4).iter().zip(cases) {
        assert_eq!(
            record.key.as_deref(),
            key.map(str::as_bytes),
            "{function} {payload}"
        );
        assert_eq!(
            record.value.as_deref(),
            value.map(str::as_bytes),
            "{function} {payload}"
        );
    }
}

#[test]
fn large_payloads_wait_for_room_and_arrive_whole() {
    let scene = Scene::new();
    let mut walpost = ready(&scene);
    walpost
        .set("delivery.in_flight_bytes", "64KiB")
        .set("kafka.properties.message.max.bytes", 2_000_000);
    let _run = scene.started(&walpost);
    scene.sql.run(
        "SELECT walpost.emit_bytes('order', i::text, 'T', convert_to(repeat('x', 40000) || i, 'UTF8')) FROM generate_series(1, 60) i;
         SELECT walpost.emit_bytes('order', 'big', 'T', convert_to(repeat('y', 900000), 'UTF8'))",
    );
    let records = scene.wait_records(61);
    for (n, record) in records[..60].iter().enumerate() {
        let value = record.value.as_deref().expect("a value");
        assert!(value.ends_with((n + 1).to_string().as_bytes()) && value.len() > 40_000);
    }
    assert_eq!(records[60].value.as_ref().map(Vec::len), Some(900_000));
    scene.wait_confirmed(60);
}

#[test]
fn only_who_may_emit_emits_on_every_version() {
    let scene = Scene::new();
    ready(&scene);
    let app = format!("{}_app", scene.tag);
    scene.sql.run(&format!(
        "CREATE ROLE {app}; GRANT USAGE ON SCHEMA walpost TO {app}"
    ));
    let attempt = |sql: &str| {
        scene
            .sql
            .try_rows(&format!("SET ROLE {app}; {sql}"))
            .map_err(|error| {
                error
                    .as_db_error()
                    .map(|e| e.message().to_owned())
                    .unwrap_or_default()
            })
    };
    let denied = attempt(EMIT);
    scene.sql.run("RESET ROLE");
    assert!(denied.is_err_and(|text| text.contains("emit")));
    // From 17 on they have one parameter more.
    let by_hand = scene
        .sql
        .column("SELECT oid::regprocedure FROM pg_proc WHERE proname = 'pg_logical_emit_message'")
        .join(", ");
    scene.sql.run(&format!(
        "GRANT EXECUTE ON FUNCTION walpost.emit, walpost.emit_bytes TO {app}; REVOKE EXECUTE ON FUNCTION {by_hand} FROM PUBLIC"
    ));
    let denied = attempt("SELECT pg_logical_emit_message(true, 'walpost', 'x')");
    scene.sql.run("RESET ROLE");
    assert!(denied.is_err());
    scene.sql.run(&format!(
        "GRANT EXECUTE ON FUNCTION {by_hand} TO {}",
        scene.server.publisher_name()
    ));
    let emitted = attempt(EMIT);
    scene
        .sql
        .run(&format!("RESET ROLE; DROP OWNED BY {app}; DROP ROLE {app}"));
    assert_eq!(emitted.map(|rows| rows.len()), Ok(1));
}

#[test]
fn a_message_that_cannot_be_mapped_is_kept_and_holds_its_key_like_a_row() {
    let scene = Scene::new();
    let mut walpost = ready(&scene);
    let mut run = scene.started(&walpost);
    let bytes = [0, 255, b'\n', b'{'];
    // No topic without an aggregate type; the table's payload is jsonb, this one is bytes.
    scene.sql.run(&format!(
        "SELECT walpost.emit_bytes(NULL, 'k', 'bad', {}, event_id => md5('1')::uuid);
         SELECT walpost.emit('order', 'k', 'good', '1', event_id => md5('2')::uuid);
         SELECT walpost.emit('order', 'j', 'bad headers', '1', headers => '[1]', event_id => md5('3')::uuid);
         SELECT walpost.emit('order', 'j', 'behind', '2', event_id => md5('4')::uuid);
         SELECT pg_logical_emit_message(true, 'walpost', 'by hand')",
        hex(&bytes)
    ));
    scene.wait_confirmed(60);
    let letters = "SELECT error_code, status, key, outbox FROM walpost.dead_letter ORDER BY id";
    let codes = scene.sql.column(letters);
    let expected = [
        "topic_null",
        "headers_not_an_object",
        "",
        "message_malformed",
    ];
    assert_eq!(codes, expected);
    let states = scene
        .sql
        .column("SELECT status FROM walpost.dead_letter ORDER BY id");
    assert_eq!(states, ["pending", "pending", "held", "pending"]);
    assert_eq!(scene.wait_records(1)[0].header("event_type"), Some("good"));

    // Mapped again by the configuration of today, with the types that it had as a message.
    run.stop(0);
    walpost.set("outbox.topic", scene.topic("order"));
    let mut run = scene.started(&walpost);
    let ids = scene
        .sql
        .column("SELECT id FROM walpost.dead_letter ORDER BY id");
    walpost
        .command(&["dead-letters", "replay", &ids[0]])
        .expect(0, &[]);
    let replayed = &scene.wait_records(2)[1];
    assert_eq!(replayed.value.as_deref(), Some(&bytes[..]));
    assert_eq!(replayed.header("walpost_replay"), Some("dead-letter"));
    assert_eq!(replayed.event_id(), "c4ca4238-a0b9-2382-0dcc-509a6f75849b");
    // What waits behind a letter that is given up is released.
    walpost
        .command(&["dead-letters", "ignore", &ids[1], "--reason", "test"])
        .expect(0, &[]);
    assert_eq!(
        scene.wait_records(3)[2].header("event_type"),
        Some("behind")
    );
    // One that nobody but an intruder writes stays what it is.
    walpost
        .command(&["dead-letters", "replay", &ids[3]])
        .expect(0, &[]);
    crate::harness::until("it failed again", 60, || {
        let query = format!(
            "SELECT 1 FROM walpost.dead_letter WHERE id = {} AND status = 'pending' AND attempts = 1 AND error_code = 'message_malformed'",
            ids[3]
        );
        scene.sql.value(&query)
    });
    run.stop(0);
}

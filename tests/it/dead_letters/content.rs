//! What a letter holds comes back byte for byte, in any database; what is closed goes in time; an
//! event is sent once more from wherever it is.

use super::{act, heal, large, letters, patient, small_topic, wait_statuses};
use crate::harness::{Scene, Walpost, kafka::Kafka, postgres::Server, records::Record, until};

/// Key, value, headers and timestamp.
type Content = (
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Vec<(String, Option<Vec<u8>>)>,
    Option<i64>,
);

/// What the record says, but for its replay.
fn content(record: &Record) -> Content {
    let mut headers = record.headers.clone();
    headers.retain(|(name, _)| {
        name != "walpost_replay" && name != "wal_position" && name != "event_id"
    });
    let Record {
        key,
        value,
        timestamp,
        ..
    } = record.clone();
    (key, value, headers, timestamp)
}

/// The same row twice, of two topics: one takes it at once, one comes from its letter.
fn a_letter_is_as_good_as_its_row(scene: &Scene, payload_type: &str, columns: &[(&str, &str)]) {
    scene.create_topic("order", 1, &[]);
    scene.create_topic("small", 1, &[("max.message.bytes", "300")]);
    scene.create_table(payload_type);
    let mut walpost = patient(scene);
    walpost.set("outbox.topic", scene.topic("{event_type}"));
    walpost.init();
    let mut run = scene.started(&walpost);
    let row = |kind: &str| {
        let kind = [
            ("event_type", kind),
            ("aggregate_type", "'a'"),
            ("aggregate_version", "1"),
        ];
        let mut all = columns.to_vec();
        if all.iter().all(|(name, _)| *name != "occurred_at") {
            all.push(("occurred_at", "'2020-01-01 00:00:00+00'"));
        }
        all.extend(kind);
        scene.insert_row(&all)
    };
    row("'order'");
    let bad = row("'small'");
    let [letter] = wait_statuses(scene, &["pending"])
        .try_into()
        .expect("one letter");
    assert_eq!((letter.event_id, letter.class.as_str()), (bad, "event"));
    scene.wait_confirmed(60);
    scene
        .kafka
        .configure(&scene.topic("small"), &[("max.message.bytes", "100000")]);
    act(scene, &format!("replay({})", letter.id));
    wait_statuses(scene, &["resolved"]);
    let [straight] = scene
        .kafka
        .read(&scene.topic("order"))
        .try_into()
        .expect("one record");
    let [replayed] = scene
        .kafka
        .read(&scene.topic("small"))
        .try_into()
        .expect("one record");
    let (mut straight, mut replayed) = (content(&straight), content(&replayed));
    for content in [&mut straight, &mut replayed] {
        content.2.retain(|(name, _)| name != "event_type");
    }
    assert_eq!(straight, replayed);
    run.stop(0);
}

/// Longer than the small topic takes.
const LONG: &str = "repeat('pad', 100)";

#[test]
fn bytes_null_and_empty_come_back_as_they_were() {
    let scene = Scene::new();
    let payload = format!(r"'\x00ff0a'::bytea || convert_to({LONG}, 'UTF8')");
    a_letter_is_as_good_as_its_row(
        &scene,
        "bytea",
        &[
            ("aggregate_id", "''"),
            ("payload", &payload),
            (
                "headers",
                r#"'{"null": null, "empty": "", "é": "漢\u0001", "n": 12.50, "o": {"a": [1]}}'"#,
            ),
            ("occurred_at", "'2020-02-29 12:34:56.789+00'"),
        ],
    );
    let scene = Scene::new();
    a_letter_is_as_good_as_its_row(
        &scene,
        "text",
        &[
            ("aggregate_id", "NULL"),
            ("payload", "NULL"),
            (
                "headers",
                &format!(r#"jsonb_build_object('long', {LONG}, 'x', NULL)"#),
            ),
        ],
    );
}

/// A database with this encoding, whose rows are a publisher's all the same.
fn encoded(encoding: &str) -> Scene {
    let options = format!("ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
    Scene::with_options(Server::shared(), Kafka::shared(), &options)
}

#[test]
fn in_a_latin1_database_letters_hold_what_its_rows_say() {
    let scene = encoded("LATIN1");
    let payload = format!(r#"format('{{"text": "%s", "pad": "%s"}}', U&'caf\00e9', {LONG})::json"#);
    a_letter_is_as_good_as_its_row(
        &scene,
        "json",
        &[
            ("aggregate_id", r"U&'k\00e9y'"),
            ("payload", &payload),
            (
                "headers",
                r#"jsonb_build_object(U&'h\00e9ad', U&'\00fcber')"#,
            ),
        ],
    );
}

#[test]
fn in_a_latin1_database_letters_hold_what_it_has_no_letters_for() {
    // Written as an escape it is in a column of type json, and in the record as what it stands for.
    let scene = encoded("LATIN1");
    scene.create_table("json");
    scene
        .sql
        .run("ALTER TABLE public.outbox ALTER COLUMN headers TYPE json USING headers::text::json");
    scene.create_topic("order", 1, &[("max.message.bytes", "300")]);
    let walpost = patient(&scene);
    walpost.init();
    let mut run = scene.started(&walpost);
    let bad = scene.insert_row(&[
        ("payload", &format!("to_json({LONG})")),
        ("headers", r#"'{"euro": "\u20ac", "name \u20ac": "x"}'"#),
    ]);
    scene.wait_confirmed(60);
    let [letter] = wait_statuses(&scene, &["pending"])
        .try_into()
        .expect("one letter");
    heal(&scene);
    act(&scene, &format!("replay({})", letter.id));
    wait_statuses(&scene, &["resolved"]);
    let [record] = scene.wait_records(1).try_into().expect("one record");
    assert_eq!(record.event_id(), bad);
    assert_eq!(
        (record.header("euro"), record.header("name €")),
        (Some("€"), Some("x"))
    );
    run.stop(0);
}

#[test]
fn a_message_that_somebody_wrote_by_hand_becomes_a_letter_in_any_database() {
    for encoding in ["UTF8", "LATIN1", "SQL_ASCII"] {
        let scene = encoded(encoding);
        let mut walpost = scene.ready(1);
        walpost.set("outbox.messages", true);
        let mut run = scene.started(&walpost);
        let say = |json: &str| {
            let text = json.bytes().map(|byte| format!("{byte:02x}"));
            let text: String = text.collect();
            scene.sql.run(&format!(
                r"SELECT pg_logical_emit_message(true, 'walpost', '\x{text}'::bytea)"
            ));
        };
        say(
            "{\"v\":1,\"event_id\":\"a\\u0000€\",\"aggregate_type\":\"a €\",\"event_type\":\"\\u0000\"}\n€",
        );
        say("€\0");
        scene.insert("a", 1);
        scene.wait_confirmed(60);
        assert_eq!(
            wait_statuses(&scene, &["pending", "pending"]).len(),
            2,
            "{encoding}"
        );
        run.stop(0);
    }
}

#[test]
fn in_an_sql_ascii_database_letters_hold_any_bytes() {
    let scene = encoded("SQL_ASCII");
    // Neither UTF-8 nor anything else.
    let payload = format!(r"convert_from('\xe9ff'::bytea, 'SQL_ASCII') || {LONG}");
    a_letter_is_as_good_as_its_row(
        &scene,
        "text",
        &[
            ("aggregate_id", r"convert_from('\xe9'::bytea, 'SQL_ASCII')"),
            ("payload", &payload),
            ("headers", r#"'{"h": "é"}'"#),
        ],
    );
    // A row that no record can be made of.
    let scene = encoded("SQL_ASCII");
    scene.create_table("text");
    scene.create_topic("order", 1, &[]);
    let mut walpost = patient(&scene);
    walpost.init();
    let mut run = scene.started(&walpost);
    scene.insert_row(&[
        (
            "aggregate_type",
            r"convert_from('\xe9'::bytea, 'SQL_ASCII')",
        ),
        ("payload", r"convert_from('\xff'::bytea, 'SQL_ASCII')"),
    ]);
    let [letter] = wait_statuses(&scene, &["pending"])
        .try_into()
        .expect("one letter");
    assert_eq!(letter.code, "topic_invalid");
    run.stop(0);
    walpost.set("outbox.topic", scene.topic("order"));
    let mut run = scene.started(&walpost);
    act(&scene, &format!("replay({})", letter.id));
    let [record] = scene.wait_records(1).try_into().expect("one record");
    assert_eq!(record.value.as_deref(), Some(&[0xff][..]));
    run.stop(0);
}

#[track_caller]
fn resent(scene: &Scene, event: &str) -> Record {
    let found = |records: Vec<Record>| {
        records
            .into_iter()
            .find(|r| r.event_id() == event && r.header("walpost_replay") == Some("resend"))
    };
    until("it is sent once more", 60, || found(scene.records()))
}

#[test]
fn an_event_is_sent_once_more_from_its_row_or_its_letter() {
    let scene = Scene::new();
    let walpost = small_topic(&scene);
    let mut run = scene.started(&walpost);
    let published = scene.insert_row(&[("aggregate_id", "'a'"), ("headers", r#"'{"x": null}'"#)]);
    let [first] = scene.wait_records(1).try_into().expect("one record");
    // From the table.
    assert_eq!(act(&scene, &format!("resend('{published}')")), "replaying");
    let again = resent(&scene, &published);
    assert_eq!(content(&again), content(&first));
    assert_eq!(again.header("wal_position"), None);
    wait_statuses(&scene, &["resolved"]);
    // From its letter, also when the row is gone: it overtakes nothing that is held.
    let bad = large(&scene, "K");
    scene.insert("K", 1);
    let held = until("its key is held", 60, || {
        let all = letters(&scene);
        (all.iter().filter(|l| l.status == "held").count() == 1).then_some(all)
    });
    scene.sql.run("DELETE FROM public.outbox");
    heal(&scene);
    act(&scene, &format!("resend('{bad}')"));
    resent(&scene, &bad);
    let head = held.iter().find(|l| l.event_id == bad).expect("the head");
    let status = |id| {
        let query = format!("SELECT status FROM walpost.dead_letter WHERE id = {id}");
        scene.sql.value(&query).unwrap_or_default()
    };
    assert_eq!(
        status(head.id),
        "pending",
        "its own letter stays what it is"
    );
    // One that is nowhere.
    act(&scene, &format!("resend('{published}-')"));
    let nowhere = until("it is dead", 60, || {
        letters(&scene).into_iter().find(|l| l.status == "dead")
    });
    assert!(
        nowhere.text.contains("in no letter and no outbox table"),
        "{}",
        nowhere.text
    );
    run.assert_alive();
    run.stop(0);
}

#[test]
fn closed_letters_and_the_audit_log_go_in_time_and_open_ones_stay() {
    let scene = Scene::new();
    let mut walpost = small_topic(&scene);
    let mut run = scene.started(&walpost);
    for key in ["resolved", "ignored", "open"] {
        large(&scene, key);
    }
    let all = wait_statuses(&scene, &["pending"; 3]);
    heal(&scene);
    act(&scene, &format!("replay({})", all[0].id));
    act(&scene, &format!("ignore({}, 'no good')", all[1].id));
    wait_statuses(&scene, &["resolved", "ignored", "pending"]);
    scene.insert("L", 1);
    scene.wait_confirmed(60);
    let log = || scene.sql.number("SELECT count(*) FROM walpost.audit_log");
    run.stop(0);
    let mut run = scene.started(&walpost);
    crate::harness::pass(1_500);
    assert_eq!((letters(&scene).len(), log()), (3, 2), "kept for 30 days");
    run.stop(0);
    walpost.set("dead_letters.keep_resolved", "1s");
    let mut run = scene.started(&walpost);
    until("the closed ones are gone", 60, || {
        let left = letters(&scene);
        (left.len() == 1 && left[0].id == all[2].id && log() == 0).then_some(())
    });
    // It is known by its key all the same.
    scene.insert("open", 1);
    scene.wait_confirmed(60);
    assert_eq!(letters(&scene)[1].held_behind, Some(all[2].id));
    run.stop(0);
}

#[test]
fn a_letter_whose_time_has_come_is_sent_by_itself_and_dies_after_the_last_time() {
    let scene = Scene::new();
    let mut walpost: Walpost = small_topic(&scene);
    walpost.set(
        "dead_letters.retry_after",
        vec!["300ms".to_owned(), "1s".to_owned(), "300ms".to_owned()],
    );
    let mut run = scene.started(&walpost);
    large(&scene, "K");
    large(&scene, "healed");
    scene.insert("healed", 1);
    let all = wait_statuses(&scene, &["dead", "dead", "held"]);
    assert_eq!((all[0].attempts, all[1].attempts), (3, 3));
    let times = "SELECT count(*) FROM walpost.dead_letter WHERE first_failed_at < last_failed_at AND next_retry_at IS NULL";
    assert_eq!(scene.sql.number(times), 2);
    // While it waits for its time it is not sent, and operators may be earlier.
    walpost.set("dead_letters.retry_after", vec!["1h".to_owned()]);
    run.stop(0);
    let mut run = scene.started(&walpost);
    large(&scene, "later");
    let all = wait_statuses(&scene, &["dead", "dead", "held", "pending"]);
    let due = "SELECT next_retry_at - now() BETWEEN '0 s' AND '1 h' FROM walpost.dead_letter WHERE status = 'pending'";
    assert_eq!(scene.sql.value(due).as_deref(), Some("t"));
    heal(&scene);
    for letter in &all[1..] {
        if letter.status != "held" {
            act(&scene, &format!("replay({})", letter.id));
        }
    }
    wait_statuses(&scene, &["dead", "resolved", "resolved", "resolved"]);
    run.stop(0);
}

//! `walpost replay`: rows of the table once more, beside a publisher that goes on.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{
    Scene, Walpost,
    load::{Load, Plan},
    records::Record,
};

/// What the command printed.
#[track_caller]
fn replay(walpost: &Walpost, code: i32, arguments: &[&str]) -> Value {
    let all = [&["replay", "--table", "outbox", "--json"], arguments].concat();
    walpost.command(&all).expect(code, &[]).json()
}

/// Event ids of what came once more, in order.
fn replayed(scene: &Scene) -> Vec<String> {
    let records = scene.records();
    let again = records
        .iter()
        .filter(|record| record.header("walpost_replay") == Some("replay"));
    again.map(|record| record.event_id().to_owned()).collect()
}

fn without_marks(record: &Record) -> Vec<(&str, Option<&str>)> {
    let marks = ["wal_position", "walpost_replay"];
    let mut texts = record.texts();
    texts.retain(|(name, _)| !marks.contains(name));
    texts
}

#[test]
fn rows_of_a_range_come_again_as_they_were_and_marked() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    let mut ids = scene.insert("a", 3);
    ids.push(scene.insert_row(&[
        ("headers", r#"'{"n": null, "x": "y"}'"#),
        ("occurred_at", "'2026-01-02 03:04:05+00'"),
    ]));
    ids.push(scene.insert_row(&[("payload", "NULL"), ("aggregate_id", "NULL")]));
    ids.extend(scene.insert("a", 2));
    let before = scene.wait_records(7);
    let done = replay(&walpost, 0, &["--from-seq", "2", "--to-seq", "5"]);
    let wanted = json!({
        "table": "public.outbox", "outcome": "published", "rows": 4, "published": 4, "held": 0, "dead_letters": 0,
        "failed": 0, "failures": [],
        "numbers": {"table": "public.outbox", "column": "seq", "from": 2, "to": 5, "without_row": 0, "ranges": []},
    });
    assert_eq!(done, wanted);
    let after = scene.wait_records(11);
    let again = &after[7..];
    for (old, new) in before[1..5].iter().zip(again) {
        assert_eq!(new.event_id(), old.event_id());
        assert_eq!((&new.key, &new.value), (&old.key, &old.value));
        assert_eq!(without_marks(new), without_marks(old));
        assert_eq!(
            (new.header("walpost_replay"), new.header("wal_position")),
            (Some("replay"), None)
        );
    }
    assert_eq!(again[2].timestamp, before[3].timestamp);
    run.assert_alive();
    scene.insert("a", 1);
    scene.wait_confirmed(60);
    assert!(
        !run.says("fenced") && !run.says("trying again"),
        "it was disturbed"
    );
    run.stop(0);
}

#[test]
fn a_dry_run_counts_rows_found_gone_and_left_out_and_publishes_nothing() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    walpost.set("dead_letters.retry_after", Vec::<String>::new());
    let mut run = scene.started(&walpost);
    scene.insert("a", 4);
    scene.insert_row(&[("headers", "'[1]'"), ("aggregate_id", "'K'")]);
    scene.insert("K", 2);
    let given_up = scene.insert_row(&[("headers", "'[1]'"), ("aggregate_id", "NULL")]);
    scene.insert("a", 2);
    scene.wait_confirmed(60);
    scene.sql.run(&format!(
        "SELECT walpost.ignore(id, 'bad') FROM walpost.dead_letter WHERE event_id = '{given_up}';
         DELETE FROM public.outbox WHERE seq IN (2, 3, 9)"
    ));
    let records = scene.records().len();
    let found = replay(
        &walpost,
        0,
        &["--from-seq", "1", "--to-seq", "1000", "--dry-run"],
    );
    assert_eq!(
        (&found["outcome"], &found["rows"], &found["published"]),
        (&json!("would_publish"), &json!(7), &Value::Null)
    );
    assert_eq!(
        (&found["held"], &found["dead_letters"]),
        (&json!(3), &json!(1))
    );
    let numbers = &found["numbers"];
    assert_eq!(
        (&numbers["to"], &numbers["without_row"], &numbers["ranges"]),
        (&json!(10), &json!(3), &json!([[2, 3], [9, 9]])),
        "what nobody wrote yet is not gone"
    );
    walpost
        .command(&[
            "replay",
            "--table",
            "public.outbox",
            "--to-seq",
            "9",
            "--dry-run",
        ])
        .expect(
            0,
            &[
                "2 of 6 rows",
                "3 of held keys",
                "at most 3",
                "2-3, 9",
                "nothing was published",
            ],
        );
    assert_eq!(scene.records().len(), records);

    // The rest comes, and the letters stay what they are.
    let letters = "SELECT string_agg(status, ' ' ORDER BY id) FROM walpost.dead_letter";
    let before = scene.sql.value(letters);
    let done = replay(&walpost, 0, &["--from-seq", "1"]);
    assert_eq!((&done["published"], &done["held"]), (&json!(3), &json!(3)));
    assert_eq!(replayed(&scene).len(), 3);
    assert_eq!(scene.sql.value(letters), before);
    assert!(
        scene
            .records()
            .iter()
            .all(|record| record.key.as_deref() != Some(b"K"))
    );
    run.assert_alive();
}

#[test]
fn rows_of_a_time_come_again_and_those_of_another_do_not() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let _run = scene.started(&walpost);
    let at = |time: &str| scene.insert_row(&[("occurred_at", &format!("'2026-01-{time}+00'"))]);
    let ids = [
        at("01 10:00"),
        at("02 09:59:59.9"),
        at("02 10:00"),
        at("02 10:30"),
        at("02 11:00"),
        at("03 10:00"),
    ];
    scene.insert_row(&[("occurred_at", "NULL")]);
    scene.wait_records(7);
    let range = [
        "--from",
        "2026-01-02T10:00:00Z",
        "--to",
        "2026-01-02T12:00:00+01:00",
    ];
    let done = replay(&walpost, 0, &range);
    assert_eq!(done["published"], json!(2));
    assert_eq!(replayed(&scene), ids[2..4]);
    assert_eq!(
        replay(&walpost, 0, &["--to", "2026-01-02"])["published"],
        json!(1)
    );
    assert_eq!(replay(&walpost, 0, &["--from", "1h"])["rows"], json!(0));
}

#[test]
fn a_row_that_fails_is_named_and_the_others_go_on() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    let mut walpost = scene.walpost();
    walpost.set("kafka.properties.compression.type", "none");
    walpost.init();
    let mut run = scene.started(&walpost);
    scene.insert("a", 50);
    let large = scene.sql.value(&scene.rows("a", 1, 30_000)).expect("an id");
    scene.insert("a", 50);
    scene.wait_records(101);
    // It got in before, and does not now.
    let topic = scene.topic("order");
    scene
        .kafka
        .configure(&topic, &[("max.message.bytes", "20000")]);
    let done = replay(&walpost, 1, &["--from-seq", "1"]);
    assert_eq!(
        (&done["rows"], &done["published"], &done["failed"]),
        (&json!(101), &json!(100), &json!(1))
    );
    let failure = &done["failures"][0];
    assert_eq!(
        (&failure["event_id"], &failure["topic"]),
        (&json!(large), &json!(topic))
    );
    assert_eq!(failure["error_class"], json!("event"));
    assert!(
        failure["error_text"]
            .as_str()
            .is_some_and(|text| text.contains("20000")),
        "{failure}"
    );
    walpost
        .command(&[
            "replay",
            "--table",
            "outbox",
            "--from-seq",
            "51",
            "--to-seq",
            "51",
        ])
        .expect(
            1,
            &[
                &large,
                "too large",
                "1 rows of public.outbox could not be published",
            ],
        );
    let again = replayed(&scene);
    let wanted = "SELECT event_id::text FROM public.outbox WHERE seq <> 51 ORDER BY seq";
    assert_eq!(
        again,
        scene.sql.column(wanted),
        "the others, in order, once"
    );
    let letters = scene.sql.number("SELECT count(*) FROM walpost.dead_letter");
    assert_eq!(letters, 0, "letters are the publisher's");
    run.assert_alive();
    run.stop(0);
}

#[test]
fn under_live_traffic_each_keys_rows_come_again_in_their_order() {
    let scene = Scene::new();
    let walpost = scene.ready(3);
    let mut run = scene.started(&walpost);
    for key in ["a", "b", "c"] {
        scene.sql.run(&scene.rows(key, 400, 100));
    }
    let plan = Plan {
        seed: Some(7),
        ..Plan::default()
    };
    let load = Load::start(&scene, &plan);
    let began = Instant::now();
    let done = replay(&walpost, 0, &["--to-seq", "1200", "--rate", "600/s"]);
    // 60 of them may go at once.
    assert!(
        began.elapsed() >= Duration::from_millis(1_800),
        "{:?}",
        began.elapsed()
    );
    load.stop();
    scene.wait_confirmed(60);
    assert_eq!(done["published"], done["rows"]);
    assert!(done["rows"].as_u64() >= Some(1_190), "{done}");
    for key in ["a", "b", "c"] {
        let query = format!(
            "SELECT event_id::text FROM public.outbox WHERE seq <= 1200 AND aggregate_id = '{key}' ORDER BY seq"
        );
        let records = scene.records();
        let again = records.iter().filter(|record| {
            record.key.as_deref() == Some(key.as_bytes())
                && record.header("walpost_replay") == Some("replay")
        });
        let again: Vec<_> = again.map(|record| record.event_id()).collect();
        assert_eq!(again, scene.sql.column(&query));
    }
    run.assert_alive();
    scene.judge(1_200);
    run.stop(0);
}

#[test]
fn what_cannot_be_replayed_is_refused_before_anything_is_published() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    let refuse = |walpost: &Walpost, code: i32, arguments: &[&str], words: &[&str]| {
        let all = [&["replay"], arguments].concat();
        walpost.command(&all).expect(code, words);
    };
    refuse(
        &walpost,
        2,
        &["--table", "other", "--from-seq", "1"],
        &["public.other", "public.outbox"],
    );
    refuse(&walpost, 2, &["--table", "outbox"], &["--from"]);
    walpost.set("outbox.order_by", "event_id");
    refuse(
        &walpost,
        2,
        &["--table", "outbox", "--from-seq", "1"],
        &["uuid", "--from"],
    );
    refuse(
        &walpost,
        0,
        &["--table", "outbox", "--from", "1h"],
        &["cannot be counted"],
    );
    walpost.set("outbox.order_by", "no");
    refuse(
        &walpost,
        2,
        &["--table", "outbox", "--from", "1h"],
        &["order_by"],
    );
    walpost
        .outbox("[[outbox]]\ntable = \"public.outbox\"\n[outbox.columns]\noccurred_at = false\n");
    refuse(
        &walpost,
        2,
        &["--table", "outbox", "--from", "1h"],
        &["--from-seq"],
    );

    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    let role = format!("{}_p", scene.tag);
    scene.sql.run(&format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA walpost TO {role};
         GRANT SELECT ON ALL TABLES IN SCHEMA walpost TO {role}"
    ));
    let (host, port) = scene.server.address();
    let url = crate::harness::postgres::url(&role, "x", &host, port, &scene.tag);
    walpost.set("postgres.url", url);
    refuse(
        &walpost,
        1,
        &["--table", "outbox", "--from-seq", "1"],
        &["GRANT SELECT ON public.outbox TO"],
    );
    scene
        .sql
        .run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn a_missing_topic_is_waited_for_and_a_signal_ends_the_wait() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let run = scene.started(&walpost);
    scene.insert("a", 2);
    scene.wait_records(2);
    scene.wait_confirmed(60);
    scene.kafka.delete(&[scene.topic("order")]);
    let mut waiting = walpost.spawn(&["replay", "--table", "outbox", "--from-seq", "1"]);
    waiting.wait_says("rows wait for their topic", 60);
    waiting.stop(6);
    let mut waiting = walpost.spawn(&["replay", "--table", "outbox", "--from-seq", "1"]);
    waiting.wait_says("rows wait for their topic", 60);
    scene.create_topic("order", 1, &[]);
    waiting.expect_end(0, &["published 2 of 2"], 60);
    let records = scene.kafka.read(&scene.topic("order"));
    assert_eq!(records.len(), 2, "of the topic that was made anew");
    drop(run);
}

//! `walpost preview`: the records are seen before the first one is sent, and nothing moves.

use std::{
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Scene, Walpost, kafka_server::Breakable, sql::hex, until};

fn preview(walpost: &Walpost, arguments: &[&str]) -> Vec<Value> {
    let output = walpost
        .command(&[&["preview"], arguments].concat())
        .expect(0, &[]);
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    output.out.lines().map(line).collect()
}

fn ids(lines: &[Value]) -> Vec<&str> {
    lines
        .iter()
        .map(|line| line["event_id"].as_str().unwrap_or("none"))
        .collect()
}

fn no_slot_stays(scene: &Scene) {
    until("the copy is gone", 60, || {
        let copies = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'walpost_preview%' AND database = current_database()";
        (scene.sql.number(copies) == 0).then_some(())
    });
}

#[test]
fn what_preview_says_is_what_run_does_on_every_version() {
    let scene = Scene::new();
    scene.create_table("bytea");
    scene.create_topic("order", 1, &[]);
    let walpost = scene.walpost();
    walpost.init();
    let mut expected = vec![
        scene.insert_row(&[
            ("payload", &hex(b"text")),
            ("headers", "'{\"h\": \"x\", \"nil\": null}'"),
        ]),
        scene.insert_row(&[("payload", &hex(&[0xff, 0]))]),
        scene.insert_row(&[("payload", "NULL"), ("aggregate_id", "NULL")]),
    ];
    let first = scene.row(&[("payload", &hex(b"1"))]);
    let rows: Vec<String> = scene
        .sql
        .column(&format!("BEGIN; {first}; {first}; {first}; COMMIT"));
    expected.extend(rows);
    let before = scene.confirmed();
    let lines = preview(&walpost, &[]);
    assert_eq!(ids(&lines)[..3], expected[..3]);
    assert_eq!(lines.len(), 6);
    assert_eq!(lines[0]["value"], "text");
    assert_eq!(
        (&lines[1]["value_base64"], lines[1].get("value")),
        (&json!("/wA="), None)
    );
    assert_eq!(
        (&lines[2]["value"], &lines[2]["key"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(scene.confirmed(), before);
    assert!(scene.records().is_empty());
    no_slot_stays(&scene);
    assert_eq!(
        ids(&preview(&walpost, &["--limit", "2", "--json"])),
        expected[..2]
    );
    assert!(preview(&walpost, &["--limit", "0"]).is_empty());

    let _run = scene.started(&walpost);
    scene.wait_confirmed(60);
    for (line, record) in lines.iter().zip(scene.wait_records(6)) {
        let headers: Vec<_> = record
            .texts()
            .into_iter()
            .map(|(n, v)| json!([n, v]))
            .collect();
        assert_eq!(line["headers"], json!(headers));
        assert_eq!(line["position"].as_str(), record.header("wal_position"));
        assert_eq!(
            (&line["topic"], &line["timestamp"]),
            (&json!(record.topic), &json!(record.timestamp))
        );
        assert_eq!(
            (&line["outbox"], &line["poison"]),
            (&json!("public.outbox"), &Value::Null)
        );
    }
    assert!(preview(&walpost, &[]).is_empty());
}

#[test]
fn poison_is_shown_as_poison_and_the_rest_as_it_is() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    walpost.set("outbox.messages", true);
    let bad = scene.insert_row(&[("headers", "'[]'"), ("aggregate_id", "'k'")]);
    let nowhere = scene.insert_row(&[("aggregate_type", "'no topic'")]);
    let large = scene.insert_row(&[("payload", "jsonb_build_object('x', repeat('y', 1100000))")]);
    let good = scene.insert("a", 1);
    let emitted = scene
        .sql
        .value("SELECT walpost.emit('order', 'k', 'T', '1')")
        .expect("an id");
    scene
        .sql
        .run("SELECT pg_logical_emit_message(true, 'walpost', 'by hand')");
    let lines = preview(&walpost, &[]);
    assert_eq!(
        ids(&lines),
        [&bad, &nowhere, &large, &good[0], &emitted, "none"]
    );
    let codes: Vec<_> = lines.iter().map(|l| l["poison"]["code"].as_str()).collect();
    assert_eq!(
        codes,
        [
            Some("headers_not_an_object"),
            Some("topic_invalid"),
            Some("MESSAGE_SIZE_TOO_LARGE"),
            None,
            None,
            Some("message_malformed")
        ]
    );
    assert_eq!(lines[0]["poison"]["class"], "event");
    assert_eq!(lines[5]["topic"], Value::Null, "half a name is none");
    assert_eq!(
        (&lines[0]["topic"], &lines[0]["key"]),
        (&json!(scene.topic("order")), &json!("k"))
    );
    assert!(lines[0]["timestamp"].is_i64());
}

#[test]
fn it_works_while_run_holds_the_slot_and_kafka_stalls() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.insert("a", 3);
    scene.wait_confirmed(60);
    way.proxy().refuse();
    let ids_of = scene.insert("a", 5);
    let (before, sender) = (scene.confirmed(), scene.walsender());
    let lines = preview(&walpost, &[]);
    assert_eq!(
        ids(&lines),
        ids_of.iter().map(String::as_str).collect::<Vec<_>>()
    );
    assert_eq!((scene.confirmed(), scene.walsender()), (before, sender));
    no_slot_stays(&scene);
    run.assert_alive();
    way.proxy().forward();
    scene.judge_once(8);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    scene.sql.run(&scene.rows("k", 20_000, 50));
    let line = format!(
        "set -o pipefail; {} --config {} preview | head -n 3",
        env!("CARGO_BIN_EXE_walpost"),
        walpost.file().display()
    );
    let output = Command::new("bash")
        .args(["-c", &line])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .output()
        .expect("bash");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(text.lines().count(), 3);
    assert_eq!(preview(&walpost, &[]).len(), 20_000);
    no_slot_stays(&scene);
}

#[test]
fn one_that_is_interrupted_or_killed_leaves_no_slot_on_every_version() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    // More than a pipe takes that nobody reads.
    scene.sql.run(&scene.rows("k", 20_000, 500));
    let before = scene.confirmed();
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut preview = Command::new(env!("CARGO_BIN_EXE_walpost"))
            .args(["preview", "--config"])
            .arg(walpost.file())
            .env_clear()
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start walpost");
        let copy = "SELECT active_pid FROM pg_replication_slots WHERE temporary AND active AND database = current_database()";
        until("a copy is read", 60, || scene.sql.value(copy));
        kill_process(Pid::from_child(&preview), signal).expect("a signal");
        // Where SIGINT was ignored by whoever started these tests, it is by their children too.
        let end = format!("the end by signal {}", signal.as_raw());
        let ended = until(end, 60, || preview.try_wait().expect("its end"));
        assert_eq!(ended.signal(), Some(signal.as_raw()), "{ended}");
        no_slot_stays(&scene);
    }
    assert_eq!(scene.confirmed(), before);
}

#[test]
fn what_cannot_be_previewed_says_why() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    let walpost = scene.walpost();
    walpost.command(&["preview"]).expect(4, &["walpost init"]);
    walpost.init();
    scene
        .sql
        .run(&format!("SELECT pg_drop_replication_slot('{}')", scene.tag));
    walpost
        .command(&["preview"])
        .expect(4, &["missing", "walpost recover"]);
}

//! What it tells about itself: `status`, HTTP, logs.

use serde_json::Value;
use walpost::lsn::Lsn;

use crate::harness::{
    Scene, kafka::Kafka, kafka_server::Breakable, postgres::Cluster, sql::quote, until,
};

const FIELDS: [&str; 20] = [
    "slot",
    "publication",
    "role",
    "holder",
    "server",
    "received_lsn",
    "confirmed_lsn",
    "confirmed_lag_bytes",
    "retained_bytes",
    "wal_status",
    "safe_wal_size",
    "oldest_unpublished_seconds",
    "events_per_second",
    "drain_eta_seconds",
    "in_flight",
    "waiting_topics",
    "dead_letters",
    "held_keys",
    "last_error",
    "",
];

/// Exactly these fields, in any order.
#[track_caller]
fn assert_fields(object: &Value, fields: &[&str]) {
    let mut found: Vec<&str> = object
        .as_object()
        .unwrap_or_else(|| panic!("no object: {object}"))
        .keys()
        .map(String::as_str)
        .collect();
    let mut wanted: Vec<&str> = fields
        .iter()
        .copied()
        .filter(|field| !field.is_empty())
        .collect();
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
}

fn lsn(value: &Value) -> Lsn {
    value
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("no LSN: {value}"))
}

#[test]
fn status_has_its_fields_and_true_figures_with_and_without_a_publisher() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    walpost.wait_ready();
    scene.insert("a", 3);
    scene.wait_confirmed(60);
    let command = || walpost.command(&["status", "--json"]).expect(0, &[]).json();
    for status in [command(), walpost.api_status()] {
        assert_fields(&status, &FIELDS);
        assert_eq!(
            (&status["slot"], &status["publication"]),
            (
                &Value::from(scene.tag.as_str()),
                &Value::from(scene.tag.as_str())
            )
        );
        assert_eq!(status["role"], "publisher");
        assert_fields(
            &status["holder"],
            &["pid", "client", "application", "since"],
        );
        assert_eq!(status["holder"]["pid"].as_i64(), Some(scene.walsender()));
        assert_eq!(
            status["holder"]["application"],
            format!("walpost:{}", scene.tag)
        );
        assert!(
            status["holder"]["since"]
                .as_str()
                .is_some_and(|text| text.parse::<jiff::Timestamp>().is_ok()),
            "{status}"
        );
        assert_fields(
            &status["server"],
            &["version", "system_identifier", "timeline"],
        );
        assert!(
            status["server"]["version"].is_string()
                && status["server"]["system_identifier"].is_string()
        );
        assert!(status["server"]["timeline"].is_u64());
        assert!(
            lsn(&status["confirmed_lsn"]) <= lsn(&status["received_lsn"]),
            "{status}"
        );
        assert!(
            status["confirmed_lag_bytes"].is_u64() && status["retained_bytes"].is_u64(),
            "{status}"
        );
        assert_eq!(status["wal_status"], "reserved");
        assert!(status["events_per_second"].is_number());
        assert_eq!(
            status["in_flight"],
            serde_json::json!({"rows": 0, "bytes": 0})
        );
        assert_eq!(status["waiting_topics"], serde_json::json!([]));
    }

    way.proxy().refuse();
    scene.insert("a", 7);
    until("7 rows in flight", 60, || {
        (walpost.api_status()["in_flight"]["rows"] == 7).then_some(())
    });
    until("the oldest ages", 60, || {
        (walpost.api_status()["oldest_unpublished_seconds"].as_f64()? > 0.5).then_some(())
    });
    let status = command();
    assert!(
        status["confirmed_lag_bytes"].as_u64() > Some(0)
            && status["in_flight"]["bytes"].as_u64() > Some(0),
        "{status}"
    );
    let human = walpost.command(&["status"]).expect(0, &[&scene.tag]);
    assert!(!human.out.trim_start().starts_with('{'));

    run.kill();
    until("the slot is free", 60, || {
        scene.slot()?.active_pid.is_none().then_some(())
    });
    let alone = command();
    assert_fields(&alone, &FIELDS);
    assert_eq!(alone["role"], "none");
    for unknown in [
        "holder",
        "received_lsn",
        "oldest_unpublished_seconds",
        "events_per_second",
        "drain_eta_seconds",
        "in_flight",
        "waiting_topics",
        "last_error",
    ] {
        assert_eq!(
            alone[unknown],
            Value::Null,
            "{unknown} is the publisher's to know"
        );
    }
    assert_eq!(lsn(&alone["confirmed_lsn"]), scene.confirmed());
}

#[test]
fn live_ready_and_metrics_tell_the_truth_also_in_a_stall() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let mut walpost = scene.ready(1);
    walpost.set("http.not_ready_after", "2s");
    let _run = scene.started(&walpost);
    walpost.wait_ready();
    scene.insert("a", 20);
    scene.wait_confirmed(60);
    let names = [
        "walpost_events_published_total",
        "walpost_published_bytes_total",
        "walpost_publish_latency_seconds_count",
        "walpost_in_flight_rows",
        "walpost_in_flight_bytes",
        "walpost_received_lsn_bytes",
        "walpost_confirmed_lsn_bytes",
        "walpost_slot_confirmed_lag_bytes",
        "walpost_slot_retained_wal_bytes",
        "walpost_slot_wal_status",
        "walpost_slot_active",
        "walpost_oldest_unpublished_seconds",
        "walpost_last_server_message_seconds",
        "walpost_role",
        "walpost_build_info",
    ];
    for name in names {
        assert!(walpost.metric(name, "").is_some(), "{name} is missing");
    }
    let topic = format!("topic=\"{}\"", scene.topic("order"));
    assert_eq!(
        walpost.metric("walpost_events_published_total", &topic),
        Some(20.0)
    );
    assert_eq!(
        walpost.metric("walpost_publish_latency_seconds_count", ""),
        Some(20.0)
    );
    assert_eq!(
        walpost.metric("walpost_role", "role=\"publisher\""),
        Some(1.0)
    );
    assert_eq!(walpost.metric("walpost_in_flight_rows", ""), Some(0.0));
    until("the slot is active", 60, || {
        (walpost.metric("walpost_slot_active", "")? == 1.0).then_some(())
    });

    way.proxy().refuse();
    scene.insert("a", 30);
    scene.noise(&scene.sql, 4);
    until("30 rows in flight", 60, || {
        (walpost.metric("walpost_in_flight_rows", "")? == 30.0).then_some(())
    });
    until("the lag is the slot's", 60, || {
        let slot = scene.slot()?;
        let near = |name, truth: i64| Some((walpost.metric(name, "")? - truth as f64).abs() < 1e6);
        (slot.lag > 3_000_000
            && near("walpost_slot_confirmed_lag_bytes", slot.lag)?
            && near("walpost_slot_retained_wal_bytes", slot.retained)?)
        .then_some(())
    });
    until("the oldest row ages", 60, || {
        (walpost.metric("walpost_oldest_unpublished_seconds", "")? > 1.0).then_some(())
    });
    let body = until("/ready says no", 60, || {
        walpost.get("/ready").filter(|(code, _)| *code == 503)
    })
    .1;
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_fields(&body, &["ready", "reason"]);
    assert_eq!(body["ready"], false);
    assert_eq!(walpost.get("/live").map(|(code, _)| code), Some(200));
    way.proxy().forward();
    until("/ready says yes", 60, || {
        (walpost.ready() == Some(200)).then_some(())
    });
    scene.judge(50);
}

#[test]
fn figures_of_the_slot_are_gone_while_postgresql_is_away_and_come_back() {
    let mut cluster = Cluster::start("");
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let walpost = scene.ready(1);
    let _run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.wait_confirmed(60);
    let twin = walpost.twin();
    let _standby = twin.start();
    let of_the_slot = [
        "walpost_slot_active",
        "walpost_slot_confirmed_lag_bytes",
        "walpost_slot_retained_wal_bytes",
        "walpost_slot_wal_status",
    ];
    let all = |there: bool| {
        [&walpost, &twin].iter().all(|one| {
            of_the_slot
                .iter()
                .all(|name| one.metric(name, "").is_some() == there)
        })
    };
    until("they are told", 60, || {
        twin.get("/metrics")?;
        all(true).then_some(())
    });
    cluster.stop();
    until("they are no longer told", 60, || all(false).then_some(()));
    assert_eq!(walpost.api_status()["confirmed_lsn"], Value::Null);
    assert_eq!(walpost.api_status()["holder"], Value::Null);
    assert!(walpost.metric("walpost_confirmed_lsn_bytes", "").is_some());
    cluster.restart();
    until("they are told again", 60, || all(true).then_some(()));
}

#[test]
fn status_ends_as_run_would_where_the_slot_or_publication_needs_somebody() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let tag = &scene.tag;
    let mut run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.wait_confirmed(60);
    run.stop(0);
    let ends = |code: i32, word: &str| {
        let output = walpost.command(&["status", "--json"]);
        let status = output.expect(code, &[word]).json();
        assert_eq!(status["slot"], tag.as_str(), "printed all the same");
        walpost.run_to_end().expect(code, &[word]);
    };
    walpost.command(&["status", "--json"]).expect(0, &[]);
    scene
        .sql
        .run(&format!("ALTER PUBLICATION {tag} DROP TABLE public.outbox"));
    ends(4, "does not cover");
    scene
        .sql
        .run(&format!("ALTER PUBLICATION {tag} ADD TABLE public.outbox"));
    ends(4, "--accept-publication");
    walpost
        .command(&["init", "--accept-publication"])
        .expect(0, &[]);
    scene.sql.run("UPDATE walpost.slot SET state = 'creating'");
    ends(4, "walpost init");
    scene.sql.run("UPDATE walpost.slot SET state = 'ready'");
    scene.drop_slot();
    ends(4, "walpost recover");
    scene.insert("a", 1);
    scene.sql.run(&format!(
        "SELECT pg_create_logical_replication_slot('{tag}', 'pgoutput')"
    ));
    ends(4, "not as we left it");
    scene.sql.run("ALTER TABLE public.outbox RENAME TO other");
    ends(2, "public.outbox");
}

#[test]
fn logs_are_json_lines_on_stderr_without_payload_or_password() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    walpost.set("kafka.properties.debug", "all");
    let password = scene.server.publisher_password();
    for level in ["trace", "debug", "info"] {
        let mut run = walpost.spawn(&["--log-format", "json", "--log-level", level, "run"]);
        until("walpost holds the slot", 60, || scene.slot()?.active_pid);
        scene.insert_row(&[
            ("payload", &quote(Some(r#"{"card": "payload-7731"}"#))),
            ("headers", r#"'{"h": "header-7731"}'"#),
        ]);
        scene.wait_confirmed(60);
        run.stop(0);
        let log = run.log();
        assert!(log.lines().count() > 0);
        for line in log.lines() {
            assert!(
                serde_json::from_str::<Value>(line).is_ok_and(|value| value.is_object()),
                "no JSON: {line}"
            );
        }
        for secret in ["payload-7731", "header-7731", &password] {
            assert!(
                !log.contains(secret),
                "{secret} is in the log at level {level}"
            );
        }
        assert_eq!(run.out(), "");
    }
}

//! Topics that are missing or forbidden: their rows wait and are named, other topics flow.

use std::time::Instant;

use serde_json::Value;

use crate::harness::{Scene, Walpost, always, services, until};

#[test]
fn rows_of_an_unknown_topic_wait_named_while_others_flow() {
    let scene = Scene::new();
    let mut walpost = scene.ready(3);
    walpost.set("http.not_ready_after", "2s");
    scene.observe();
    let mut run = scene.started(&walpost);
    let late = scene.topic("late");
    scene.insert("a", 5);
    let waiting: Vec<_> = (0..3)
        .map(|_| scene.insert_row(&[("aggregate_type", "'late'"), ("aggregate_id", "'late'")]))
        .collect();
    scene.insert("a", 200);
    scene.wait_records(205);
    waits(&walpost, &late, 3);
    let limit = scene.positions()[&waiting[0]].commit;
    always("the slot stays before the waiting rows", 2, || {
        scene.confirmed() <= limit
    });
    assert!(!scene.kafka.exists(&late), "walpost made the topic");

    scene.create_topic("late", 1, &[]);
    scene.judge_once(208);
    until("/ready is true again", 60, || {
        (walpost.ready() == Some(200)).then_some(())
    });
    assert_eq!(
        walpost.api_status()["waiting_topics"],
        Value::Array(Vec::new())
    );
    run.assert_alive();
}

#[test]
fn rows_that_wait_for_a_topic_survive_a_kill() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.observe();
    let late = scene.insert_row(&[("aggregate_type", "'late'")]);
    scene.insert("a", 20);
    scene.wait_records(20);
    let limit = scene.positions()[&late].commit;
    always("the slot stays before the waiting row", 2, || {
        scene.confirmed() <= limit
    });
    run.kill();
    scene.create_topic("late", 1, &[]);
    until("the slot is free", 60, || {
        scene.slot()?.active_pid.is_none().then_some(())
    });
    let _run = scene.started(&walpost);
    scene.judge(21);
}

#[test]
fn rows_of_a_forbidden_topic_wait_named_until_it_is_allowed() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    scene.create_topic("secret", 1, &[]);
    scene.kafka.allow("alice", &scene.topic("order"));
    let mut walpost = scene.walpost();
    as_alice(&mut walpost);
    walpost.set("http.not_ready_after", "2s");
    walpost.init();
    let mut run = scene.started(&walpost);
    let secret = scene.topic("secret");
    scene.insert("a", 3);
    for _ in 0..2 {
        scene.insert_row(&[("aggregate_type", "'secret'"), ("aggregate_id", "'secret'")]);
    }
    scene.insert("a", 30);
    scene.wait_records(33);
    let reason = waits(&walpost, &secret, 2);
    assert!(reason.to_lowercase().contains("authori"), "{reason}");
    scene.kafka.allow("alice", &secret);
    scene.judge_once(35);
    run.assert_alive();
    assert!(!run.says("alice-secret"), "the password is in the log");
}

#[test]
fn rows_of_a_topic_deleted_under_it_wait_until_it_is_there_again() {
    let scene = Scene::new();
    let walpost = scene.ready(2);
    scene.create_topic("gone", 2, &[]);
    let mut run = scene.started(&walpost);
    let gone = |count: u64| {
        for _ in 0..count {
            scene.insert_row(&[("aggregate_type", "'gone'"), ("aggregate_id", "'g'")]);
        }
    };
    gone(3);
    scene.insert("a", 3);
    scene.wait_confirmed(60);
    // What the deleted topic held is nobody's any more.
    scene
        .sql
        .run("DELETE FROM public.outbox WHERE aggregate_type = 'gone'");
    let topic = scene.topic("gone");
    scene.kafka.delete(std::slice::from_ref(&topic));
    until("the topic is gone", 60, || {
        (!scene.kafka.exists(&topic)).then_some(())
    });
    gone(20);
    scene.insert("a", 50);
    scene.wait_records(53);
    until("the rows wait, named", 60, || {
        let waiting = walpost.api_status()["waiting_topics"].clone();
        (waiting[0]["topic"] == topic.as_str() && waiting[0]["rows"] == 20).then_some(())
    });
    scene.kafka.create(&topic, 2, &[]);
    scene.judge(73);
    run.assert_alive();
}

#[test]
fn rows_of_a_topic_forbidden_under_it_wait_until_it_is_allowed_again() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    scene.create_topic("secret", 1, &[]);
    let secret = scene.topic("secret");
    scene.kafka.allow("alice", &scene.topic("order"));
    scene.kafka.allow("alice", &secret);
    as_alice(&mut walpost);
    let mut run = scene.started(&walpost);
    let hide = |count: u64| {
        for _ in 0..count {
            scene.insert_row(&[("aggregate_type", "'secret'"), ("aggregate_id", "'s'")]);
        }
    };
    hide(3);
    scene.insert("a", 3);
    scene.wait_confirmed(60);
    scene.kafka.forbid("alice", &secret);
    hide(20);
    scene.insert("a", 50);
    scene.wait_records(53);
    until("the rows wait, named", 60, || {
        let waiting = walpost.api_status()["waiting_topics"].clone();
        (waiting[0]["topic"] == secret.as_str() && waiting[0]["rows"] == 20).then_some(())
    });
    scene.kafka.allow("alice", &secret);
    scene.judge(76);
    run.assert_alive();
}

#[test]
fn rows_of_a_topic_that_stays_missing_end_it_named_after_setup_retry_for() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    walpost
        .set("delivery.setup_retry_for", "6s")
        .set("outbox.on_poison", "stop");
    scene.observe();
    let mut run = scene.started(&walpost);
    scene.insert("a", 5);
    let began = Instant::now();
    let never = scene.insert_row(&[("aggregate_type", "'never'"), ("aggregate_id", "'n'")]);
    scene.insert_row(&[("aggregate_type", "'never'"), ("aggregate_id", "'n'")]);
    let behind = scene.insert("a", 20);
    scene.wait_records(25);
    run.assert_alive();
    let position = scene.positions()[&never];
    let topic = scene.topic("never");
    run.expect_end(5, &[&never, &topic, &position.to_string(), "2 rows"], 60);
    let took = began.elapsed().as_secs();
    assert!((5..15).contains(&took), "waited {took} s");
    let confirmed = scene.confirmed();
    let before = scene.current_lsn();
    assert!(
        confirmed <= position.commit,
        "the slot passed the waiting rows"
    );
    assert!(
        scene.records().iter().any(|r| r.event_id() == behind[19]),
        "rows behind them were not sent"
    );
    // The next start waits as long again, and goes on when the topic is there.
    let mut run = scene.started(&walpost);
    scene.create_topic("never", 1, &[]);
    scene.judge(27);
    assert!(scene.confirmed() >= before);
    run.assert_alive();
}

#[test]
fn what_came_before_a_topic_that_stays_missing_is_confirmed() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    walpost
        .set("delivery.setup_retry_for", "1s")
        .set("outbox.on_poison", "stop");
    let mut run = scene.started(&walpost);
    scene.insert("a", 5);
    let before = scene.current_lsn();
    let never = scene.insert_row(&[("aggregate_type", "'never'")]);
    run.expect_end(5, &[&never], 60);
    assert!(
        scene.confirmed() >= before,
        "rows before it are not confirmed"
    );
    assert_eq!(scene.records().len(), 5);
}

#[test]
fn two_hundred_topics_at_once() {
    let scene = Scene::new();
    let walpost = scene.walpost();
    walpost.init();
    scene.create_topics((0..200).map(|n| format!("t{n}")));
    let mut run = scene.started(&walpost);
    scene.sql.run(
        "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT 't' || i % 200, 'k' || i % 200, 'T', jsonb_build_object('seq', i) FROM generate_series(1, 4000) i ORDER BY i",
    );
    scene.judge_once(4_000);
    run.assert_alive();
}

/// By the listener where rights count.
fn as_alice(walpost: &mut Walpost) {
    walpost
        .set("kafka.brokers", services::setting("KAFKA_SASL_BROKERS"))
        .set("kafka.properties.security.protocol", "SASL_PLAINTEXT")
        .set("kafka.properties.sasl.mechanism", "PLAIN")
        .set("kafka.properties.sasl.username", "alice")
        .set("kafka.properties.sasl.password", "alice-secret");
}

/// `/ready` and `status --json` name the topic with its rows; the reason they give.
#[track_caller]
fn waits(walpost: &Walpost, topic: &str, rows: u64) -> String {
    until("/ready names the topic", 60, || {
        let (code, body) = walpost.get("/ready")?;
        (code == 503 && body.contains(topic)).then_some(())
    });
    let status = walpost.command(&["status", "--json"]).expect(0, &[]).json();
    let [waiting] = status["waiting_topics"]
        .as_array()
        .expect("an array")
        .as_slice()
    else {
        panic!("one waiting topic: {status}")
    };
    assert_eq!(
        (waiting["topic"].as_str(), waiting["rows"].as_u64()),
        (Some(topic), Some(rows)),
        "{waiting}"
    );
    let since = waiting["since"].as_str().expect("a time");
    assert!(
        since.parse::<jiff::Timestamp>().is_ok() && since.ends_with('Z'),
        "{since}"
    );
    waiting["reason"].as_str().expect("a reason").to_owned()
}

//! The guilty one alone is kept, and its neighbours arrive once each, in order.

use super::{LARGE, act, heal, large, letters, patient, seqs, small_topic, wait_statuses};
use crate::harness::{Scene, Walpost, services, until};

/// Hundred rows, a large one and hundred again, in one transaction; the large one's event id.
fn two_hundred_and_one(scene: &Scene) -> String {
    let (before, bad, behind) = (
        scene.rows("a", 100, 20),
        scene.rows("big", 1, LARGE),
        scene.rows("a", 100, 20),
    );
    let ids = scene
        .sql
        .column(&format!("BEGIN; {before}; {bad}; {behind}; COMMIT"));
    ids[100].clone()
}

/// The slot passes all that was written, and exactly these `seq` of the key arrived.
#[track_caller]
fn arrived_once(scene: &Scene, key: &str, count: u64) {
    scene.wait_confirmed(60);
    assert_eq!(seqs(scene, key), (1..=count).collect::<Vec<_>>());
}

#[test]
fn neighbours_of_a_too_large_record_arrive_once_each_in_order() {
    for rows_in_a_batch in [10_000, 10] {
        let scene = Scene::new();
        let mut walpost = small_topic(&scene);
        walpost.set("kafka.properties.batch.num.messages", rows_in_a_batch);
        scene.observe();
        let mut run = scene.started(&walpost);
        let bad = two_hundred_and_one(&scene);
        arrived_once(&scene, "a", 200);
        let [letter] = letters(&scene).try_into().expect("one letter");
        let position = scene.positions()[&bad].to_string();
        assert_eq!(
            (letter.event_id, &letter.position),
            (bad.clone(), &position)
        );
        assert_eq!(
            (letter.class.as_str(), letter.status.as_str()),
            ("event", "pending")
        );
        assert!(
            letter.text.contains("topic's max.message.bytes of 20000"),
            "{}",
            letter.text
        );
        heal(&scene);
        act(&scene, &format!("replay({})", letter.id));
        wait_statuses(&scene, &["resolved"]);
        let records = scene.records();
        let [record] = records
            .iter()
            .filter(|record| record.event_id() == bad)
            .collect::<Vec<_>>()
            .try_into()
            .expect("it came once");
        assert_eq!(
            (
                record.header("wal_position"),
                record.header("walpost_replay")
            ),
            (Some(position.as_str()), Some("dead-letter"))
        );
        scene.judge_once(201);
        run.assert_alive();
    }
}

#[test]
fn a_record_that_the_client_itself_refuses_is_kept_with_the_clients_limit() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[("max.message.bytes", "5000000")]);
    let walpost = patient(&scene);
    walpost.init();
    let mut run = scene.started(&walpost);
    scene.insert("a", 2);
    let bad = scene
        .sql
        .value(&scene.rows("b", 1, 2_000_000))
        .expect("an id");
    scene.insert("a", 2);
    arrived_once(&scene, "a", 4);
    let [letter] = letters(&scene).try_into().expect("one letter");
    assert_eq!(letter.event_id, bad);
    assert!(
        letter.text.contains(r#""message.max.bytes" of 1000000"#),
        "{}",
        letter.text
    );
    assert!(!run.says("new producer"), "nothing was sent again");
    run.stop(0);

    // Raised, it is published from its letter.
    let mut walpost = walpost.twin();
    walpost.set("kafka.properties.message.max.bytes", 3_000_000);
    let mut run = scene.started(&walpost);
    act(&scene, &format!("replay({})", letter.id));
    wait_statuses(&scene, &["resolved"]);
    scene.judge_once(5);
    run.assert_alive();
}

#[test]
fn a_record_over_the_brokers_limit_is_kept_with_the_brokers_limit() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    let mut walpost = patient(&scene);
    walpost.set("kafka.properties.message.max.bytes", 3_000_000);
    walpost.init();
    let _run = scene.started(&walpost);
    scene.insert("a", 2);
    scene.sql.run(&scene.rows("b", 1, 2_000_000));
    scene.insert("a", 2);
    arrived_once(&scene, "a", 4);
    let [letter] = letters(&scene).try_into().expect("one letter");
    assert!(
        letter
            .text
            .contains("the broker's message.max.bytes of 1048588"),
        "{}",
        letter.text
    );
}

#[test]
fn a_row_without_a_key_for_a_compacted_topic_is_kept_and_holds_nothing() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[("cleanup.policy", "compact")]);
    let walpost = patient(&scene);
    walpost.init();
    let mut run = scene.started(&walpost);
    scene.insert("a", 50);
    let keyless = scene.insert_row(&[("aggregate_id", "NULL")]);
    scene.insert("a", 50);
    let another = scene.insert_row(&[("aggregate_id", "NULL")]);
    scene.insert("a", 50);
    arrived_once(&scene, "a", 150);
    let kept = wait_statuses(&scene, &["pending", "pending"]);
    let ids: Vec<_> = kept.iter().map(|l| l.event_id.as_str()).collect();
    assert_eq!(ids, [&keyless, &another]);
    assert_eq!(kept[0].code, "INVALID_RECORD", "{:?}", kept[0]);
    assert_eq!(walpost.metric("walpost_held_keys", ""), Some(0.0));
    // A topic that takes them.
    scene
        .kafka
        .configure(&scene.topic("order"), &[("cleanup.policy", "delete")]);
    for letter in &kept {
        act(&scene, &format!("replay({})", letter.id));
    }
    wait_statuses(&scene, &["resolved", "resolved"]);
    scene.judge_once(152);
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

/// A row for topic `late`.
fn late(scene: &Scene, key: &str) -> String {
    scene.insert_row(&[
        ("aggregate_type", "'late'"),
        ("aggregate_id", &format!("'{key}'")),
    ])
}

#[test]
fn rows_of_a_forbidden_topic_become_letters_that_follow_in_order_when_it_is_allowed() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    scene.create_topic("late", 1, &[]);
    scene.kafka.allow("alice", &scene.topic("order"));
    let mut walpost = patient(&scene);
    as_alice(&mut walpost);
    walpost.set("delivery.setup_retry_for", "2s");
    walpost.init();
    let mut run = scene.started(&walpost);
    scene.insert("a", 3);
    let first: Vec<_> = (0..3).map(|_| late(&scene, "s")).collect();
    scene.insert("a", 30);
    // The slot passes them, and the other topic never waited.
    arrived_once(&scene, "a", 33);
    let kept = wait_statuses(&scene, &["pending", "held", "held"]);
    assert_eq!(
        (
            kept[0].class.as_str(),
            kept[0].code.as_str(),
            kept[0].topic.as_str()
        ),
        (
            "setup",
            "TOPIC_AUTHORIZATION_FAILED",
            scene.topic("late").as_str()
        )
    );
    assert_eq!(kept[0].event_id, first[0]);
    // While it stays closed, new rows of it become letters at once.
    late(&scene, "s");
    late(&scene, "t");
    wait_statuses(&scene, &["pending", "held", "held", "held", "pending"]);
    scene.wait_confirmed(60);
    scene.kafka.allow("alice", &scene.topic("late"));
    until("all are published by themselves", 100, || {
        let all = letters(&scene);
        all.iter().all(|l| l.status == "resolved").then_some(())
    });
    late(&scene, "s");
    scene.judge_once(39);
    assert_eq!(walpost.metric("walpost_held_keys", ""), Some(0.0));
    run.assert_alive();
    assert!(!run.says("alice-secret"), "the password is in the log");
}

#[test]
fn letters_of_a_missing_topic_die_and_follow_when_it_is_made() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    walpost
        .set("delivery.setup_retry_for", "1s")
        .set("dead_letters.retry_after", vec!["100ms".to_owned(); 2]);
    let mut run = scene.started(&walpost);
    let first = late(&scene, "s");
    late(&scene, "s");
    scene.insert("a", 20);
    arrived_once(&scene, "a", 20);
    let kept = wait_statuses(&scene, &["dead", "held"]);
    assert_eq!(
        (&kept[0].event_id, kept[0].class.as_str(), kept[0].attempts),
        (&first, "setup", 2)
    );
    assert_eq!(walpost.metric("walpost_dead_letters", "dead"), Some(1.0));
    scene.create_topic("late", 1, &[]);
    until("both are published", 100, || {
        letters(&scene)
            .iter()
            .all(|l| l.status == "resolved")
            .then_some(())
    });
    scene.judge_once(22);
    run.stop(0);
}

#[test]
fn an_outage_spends_no_attempt_and_makes_no_letters() {
    let way = crate::harness::kafka_server::Breakable::take();
    let scene = Scene::behind(&way);
    let mut walpost = small_topic(&scene);
    walpost.set("dead_letters.retry_after", vec!["200ms".to_owned(); 50]);
    let mut run = scene.started(&walpost);
    let bad = large(&scene, "K");
    until("it was sent again by itself", 60, || {
        letters(&scene)
            .first()
            .filter(|l| l.attempts >= 2)
            .map(|_| ())
    });
    way.proxy().refuse();
    scene.insert("K", 1);
    scene.insert("L", 20);
    run.wait_says("cannot be reached", 60);
    let before = letters(&scene);
    crate::harness::pass(3_000);
    let after = letters(&scene);
    assert!(after[0].attempts <= before[0].attempts + 1, "{after:?}");
    assert!(
        after
            .iter()
            .all(|l| l.event_id == bad || l.status == "held"),
        "{after:?}"
    );
    heal(&scene);
    way.proxy().forward();
    until("it is published", 60, || {
        letters(&scene)
            .iter()
            .all(|l| l.status == "resolved")
            .then_some(())
    });
    scene.judge(22);
    run.stop(0);
}

//! Events that can never be delivered stop the publisher, loudly, at their place.

use crate::harness::{Scene, sql::quote};

/// Rows before, a record that the topic does not take, rows behind, all waiting in the client at
/// the same time.
fn nothing_behind_it_arrives(rows_in_a_batch: u64) {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[("max.message.bytes", "20000")]);
    let mut walpost = scene.walpost();
    walpost.set("outbox.on_poison", "stop");
    walpost
        .set("kafka.properties.linger.ms", 200)
        .set("kafka.properties.compression.type", "none")
        .set("kafka.properties.batch.num.messages", rows_in_a_batch);
    walpost.init();
    scene.observe();
    let mut run = scene.started(&walpost);
    scene.insert("K", 1);
    scene.wait_confirmed(60);

    let (before, behind) = (scene.rows("K", 100, 20), scene.rows("K", 1, 30_000));
    scene.sql.run(&before);
    let bad = scene.sql.value(&behind).expect("an id");
    scene.sql.run(&scene.rows("K", 300, 20));
    let position = scene.positions()[&bad];
    let (place, topic) = (position.to_string(), scene.topic("order"));
    run.expect_end(5, &[&bad, &place, "too large|size", &topic], 60);

    assert!(
        scene.confirmed() <= position.commit,
        "the slot passed the event"
    );
    let arrived = seqs(&scene);
    let wanted: Vec<u64> = (1..=101).collect();
    assert_eq!(arrived, wanted, "what is before it, once, and nothing else");
    walpost.run_to_end().expect(5, &[&bad]);
    assert!(
        seqs(&scene).iter().all(|seq| *seq <= 101),
        "the next start passed it"
    );
}

#[test]
fn nothing_behind_a_too_large_record_in_its_batch_arrives_before_the_stop() {
    nothing_behind_it_arrives(10_000);
}

#[test]
fn nothing_in_batches_behind_a_too_large_record_arrives_before_the_stop() {
    // Batches behind the refused one are on their way before anybody hears of it. What keeps them
    // out is librdkafka's enable.gapless.guarantee, which its documentation calls experimental:
    // this test guards an upgrade, and fails without the setting.
    nothing_behind_it_arrives(10);
}

#[test]
fn nothing_overtakes_a_too_large_record_that_is_a_producers_first() {
    // A broker that knows nothing of a producer yet takes any first sequence number: behind a
    // refused first batch the second one would be appended.
    let scene = Scene::new();
    scene.create_topic("order", 1, &[("max.message.bytes", "20000")]);
    let mut walpost = scene.walpost();
    walpost.set("outbox.on_poison", "stop");
    walpost
        .set("kafka.properties.linger.ms", 50)
        .set("kafka.properties.batch.num.messages", 2)
        .set("kafka.properties.compression.type", "none");
    walpost.init();
    let (bad, after) = (scene.rows("K", 1, 30_000), scene.rows("K", 200, 20));
    let ids = scene.sql.column(&format!("BEGIN; {bad}; {after}; COMMIT"));
    walpost.run_to_end().expect(5, &[&ids[0]]);
    assert_eq!(seqs(&scene).len(), 0);
}

#[test]
fn nothing_overtakes_a_too_large_record_that_is_the_first_of_its_partition() {
    // The producer is known in the other partitions when the record comes.
    let scene = Scene::new();
    scene.create_topic("order", 4, &[("max.message.bytes", "20000")]);
    let mut walpost = scene.walpost();
    walpost.set("outbox.on_poison", "stop");
    walpost
        .set("kafka.properties.linger.ms", 50)
        .set("kafka.properties.batch.num.messages", 2)
        .set("kafka.properties.compression.type", "none");
    walpost.init();
    let mut run = scene.started(&walpost);
    scene.insert("other", 3);
    scene.wait_records(3);
    let (bad, after) = (scene.rows("K", 1, 30_000), scene.rows("K", 200, 20));
    let ids = scene.sql.column(&format!("BEGIN; {bad}; {after}; COMMIT"));
    run.expect_end(5, &[&ids[0]], 60);
    assert_eq!(seqs(&scene).len(), 3);
}

#[test]
fn all_in_one_transaction_the_rows_before_the_poison_arrive_once() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[("max.message.bytes", "20000")]);
    let mut walpost = scene.walpost();
    walpost.set("outbox.on_poison", "stop");
    walpost
        .set("kafka.properties.linger.ms", 200)
        .set("kafka.properties.compression.type", "none");
    walpost.init();
    let mut run = scene.started(&walpost);
    let (before, bad, after) = (
        scene.rows("K", 50, 20),
        scene.rows("K", 1, 30_000),
        scene.rows("K", 50, 20),
    );
    let ids = scene
        .sql
        .column(&format!("BEGIN; {before}; {bad}; {after}; COMMIT"));
    run.expect_end(5, &[&ids[50]], 60);
    assert_eq!(seqs(&scene), (1..=50).collect::<Vec<_>>());
}

#[test]
fn a_record_that_the_client_itself_refuses_stops_in_the_same_way() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    walpost.set("outbox.on_poison", "stop");
    walpost.set("kafka.properties.message.max.bytes", 20_000);
    let mut run = scene.started(&walpost);
    scene.insert("a", 3);
    let bad = scene.sql.value(&scene.rows("a", 1, 30_000)).expect("an id");
    scene.insert("a", 3);
    run.expect_end(5, &[&bad, "too large|size"], 60);
    assert_eq!(seqs(&scene), [1, 2, 3]);
}

#[test]
fn good_rows_whose_batch_is_over_the_topics_limit_all_arrive() {
    let scene = Scene::new();
    scene.create_topic("order", 2, &[("max.message.bytes", "20000")]);
    let mut walpost = scene.walpost();
    walpost.set("outbox.on_poison", "stop");
    walpost
        .set("kafka.properties.linger.ms", 100)
        .set("kafka.properties.compression.type", "none");
    walpost.init();
    let mut run = scene.started(&walpost);
    scene.sql.run(&scene.rows("a", 2_000, 270));
    scene.judge_once(2_000);
    run.assert_alive();
}

#[test]
fn a_topic_that_takes_less_than_the_smallest_usual_batch_gets_smaller_ones() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[("max.message.bytes", "4000")]);
    let mut walpost = scene.walpost();
    walpost.set("kafka.properties.compression.type", "none");
    walpost.init();
    let mut run = scene.started(&walpost);
    scene.sql.run(&scene.rows("a", 2_000, 1_000));
    scene.judge_once(2_000);
    assert!(
        run.says("batch_size=2000") || run.says("batch_size=4000"),
        "{}",
        run.log()
    );
    scene.sql.run(&scene.rows("a", 2_000, 1_000));
    scene.judge_once(4_000);
    run.assert_alive();
}

#[test]
fn ten_thousand_small_rows_in_a_topic_of_small_batches_all_arrive() {
    let scene = Scene::new();
    scene.create_topic("order", 3, &[("max.message.bytes", "20000")]);
    let walpost = scene.walpost();
    walpost.init();
    // A backlog: the client packs batches as large as its defaults let it, lz4 and all.
    for key in ["a", "b", "c", "d"] {
        scene.sql.run(&scene.rows(key, 2_500, 270));
    }
    let mut run = scene.started(&walpost);
    scene.judge(10_000);
    run.assert_alive();
    assert!(!run.says("poison"), "somebody was found guilty");
}

#[test]
fn headers_that_are_no_object_stop_it_and_what_came_before_is_confirmed() {
    for headers in ["'[1, 2]'", "'\"text\"'", "'null'"] {
        let scene = Scene::new();
        let mut walpost = scene.ready(1);
        walpost.set("outbox.on_poison", "stop");
        scene.observe();
        let mut run = scene.started(&walpost);
        let good = scene.insert("a", 3);
        let bad = scene.insert_row(&[("headers", headers)]);
        scene.insert("a", 1);
        let position = scene.positions()[&bad];
        run.expect_end(5, &[&bad, "headers", &position.to_string()], 60);
        let arrived = scene.records();
        assert_eq!(
            arrived.iter().map(|r| r.event_id()).collect::<Vec<_>>(),
            good,
            "exactly what came before"
        );
        assert!(scene.confirmed() <= position.commit);
        assert!(
            scene.confirmed() >= scene.positions()[&good[2]].commit,
            "what was delivered is not confirmed"
        );
    }
}

#[test]
fn a_topic_name_that_kafka_cannot_have_stops_it() {
    for name in ["a b/c".to_owned(), "x".repeat(300)] {
        let scene = Scene::new();
        let mut walpost = scene.ready(1);
        walpost.set("outbox.on_poison", "stop");
        let mut run = scene.started(&walpost);
        let bad = scene.insert_row(&[("aggregate_type", &quote(Some(&name)))]);
        run.expect_end(5, &[&bad, "topic"], 60);
        assert!(scene.records().is_empty());
    }
}

#[test]
fn a_time_too_far_ahead_for_the_broker_stops_it() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    walpost.set("outbox.on_poison", "stop");
    let mut run = scene.started(&walpost);
    scene.insert("a", 1);
    let bad = scene.insert_row(&[("occurred_at", "now() + interval '2 days'")]);
    run.expect_end(5, &[&bad, "timestamp"], 60);
    assert_eq!(scene.records().len(), 1);
}

#[test]
fn rows_of_other_topics_that_were_on_their_way_come_again_in_order_after_the_stop() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[("max.message.bytes", "20000")]);
    scene.create_topic("other", 1, &[]);
    let mut walpost = scene.walpost();
    walpost
        .set("outbox.on_poison", "stop")
        .set("kafka.properties.linger.ms", 50)
        // The other topic's rows fill batches and leave at once; the poison waits for its linger.
        .set("kafka.properties.batch.num.messages", 50)
        .set("kafka.properties.compression.type", "none");
    walpost.init();
    scene.observe();
    let mut run = scene.started(&walpost);
    scene.insert("K", 3);
    scene.insert_row(&[("aggregate_type", "'other'"), ("aggregate_id", "'M'")]);
    scene.wait_confirmed(60);
    let other = scene.rows("L", 100, 20).replacen("'order'", "'other'", 1);
    let (bad, behind) = (scene.rows("K", 1, 30_000), scene.rows("K", 50, 20));
    let ids = scene
        .sql
        .column(&format!("BEGIN; {bad}; {other}; {behind}; COMMIT"));
    run.expect_end(5, &[&ids[0]], 60);
    assert_eq!(seqs(&scene), [1, 2, 3], "its own key waits");
    let position = scene.positions()[&ids[0]];
    assert!(scene.confirmed() <= position.commit, "the slot passed it");

    scene
        .kafka
        .configure(&scene.topic("order"), &[("max.message.bytes", "1000000")]);
    let _run = scene.started(&walpost);
    let verdict = scene.judge(155);
    assert!(verdict.repeats > 0, "nothing was on its way: {verdict}");
}

/// The `seq` of what is in topic `order`, in its order.
fn seqs(scene: &Scene) -> Vec<u64> {
    let seq = |value: &[u8]| {
        serde_json::from_slice::<serde_json::Value>(value).expect("JSON")["seq"]
            .as_u64()
            .expect("a number")
    };
    scene
        .kafka
        .read(&scene.topic("order"))
        .iter()
        .map(|r| seq(r.value.as_deref().expect("a value")))
        .collect()
}

//! Brokers fail: the slot stays before what they did not take, and it goes on by itself.

use std::{collections::HashSet, time::Duration};

use crate::harness::{
    Scene, always,
    kafka_server::{Breakable, KafkaServer},
    load::{Load, Plan},
    pass,
    postgres::Server,
    until,
};

#[test]
fn broker_stopped_the_slot_stays_and_later_all_arrive_on_the_same_connection() {
    let mut broker = KafkaServer::start();
    let scene = Scene::on(Server::shared(), broker.kafka.clone());
    // Several keepalives while the broker is away.
    scene.publisher_setting("wal_sender_timeout", "'3s'");
    let walpost = scene.ready(4);
    scene.observe();
    let mut run = scene.started(&walpost);
    let walsender = scene.walsender();
    scene.insert("a", 3);
    scene.wait_confirmed(60);

    broker.kill();
    let first = scene.insert("a", 1).remove(0);
    let limit = scene.positions()[&first].commit;
    let load = Load::start(
        &scene,
        &Plan {
            pause: 20,
            ..Plan::default()
        },
    );
    scene.noise(&scene.sql, 2);
    always("the slot stays before the first undelivered row", 8, || {
        scene.confirmed() <= limit
    });
    broker.restart();
    pass(1_000);
    load.stop();
    scene.judge(100);
    run.assert_alive();
    assert_eq!(
        scene.walsender(),
        walsender,
        "connected to PostgreSQL again"
    );
}

#[test]
fn broker_frozen_and_the_publisher_killed_all_arrive_later() {
    let mut broker = KafkaServer::start();
    let scene = Scene::on(Server::shared(), broker.kafka.clone());
    let walpost = scene.ready(3);
    scene.observe();
    let mut run = scene.started(&walpost);
    scene.insert("a", 3);
    scene.wait_confirmed(60);
    broker.freeze();
    let ids = scene.insert("a", 50);
    let limit = scene.positions()[&ids[0]].commit;
    always("the slot stays before the undelivered rows", 4, || {
        scene.confirmed() <= limit
    });
    run.kill();
    broker.thaw();
    until("the slot is free", 60, || {
        scene.slot()?.active_pid.is_none().then_some(())
    });
    let _run = scene.started(&walpost);
    scene.judge(53);
}

#[test]
fn brokers_that_fell_silent_are_given_up_and_connected_again() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let mut walpost = scene.ready(3);
    walpost
        .set("kafka.properties.socket.timeout.ms", 3_000)
        .set("http.not_ready_after", "2s");
    scene.observe();
    let mut run = scene.started(&walpost);
    let walsender = scene.walsender();
    scene.insert("a", 3);
    scene.wait_confirmed(60);
    way.proxy().swallow();
    let ids = scene.insert("a", 50);
    let limit = scene.positions()[&ids[0]].commit;
    until("/ready is false", 60, || {
        (walpost.ready() == Some(503)).then_some(())
    });
    // New connections work; the old ones stay silent for ever.
    way.proxy().forward();
    assert!(
        scene.confirmed() <= limit || scene.records().len() == 53,
        "the slot passed rows that are not in Kafka"
    );
    scene.judge(53);
    until("/ready is true", 60, || {
        (walpost.ready() == Some(200)).then_some(())
    });
    assert_eq!(
        scene.walsender(),
        walsender,
        "connected to PostgreSQL again"
    );
    run.assert_alive();
}

#[test]
fn a_later_transaction_delivered_first_confirms_nothing_and_leaders_may_move() {
    let first = KafkaServer::start();
    let mut second = first.second();
    let scene = Scene::on(Server::shared(), first.kafka.clone());
    scene.create_topic_on_two(false);
    let walpost = scene.walpost();
    walpost.init();
    scene.observe();
    let mut run = scene.started(&walpost);
    // A key for each broker.
    let mut keys: Vec<String> = vec![String::new(); 2];
    for (sent, name) in (1..).zip(["a", "b", "c", "d", "e", "f", "g", "h"]) {
        scene.insert(name, 1);
        let records = scene.wait_records(sent);
        let partition = records
            .iter()
            .find(|r| r.key.as_deref() == Some(name.as_bytes()));
        keys[partition.expect("the record").partition as usize] = name.to_owned();
        if keys.iter().all(|key| !key.is_empty()) {
            break;
        }
    }
    scene.wait_confirmed(60);
    let before = scene.records().len();
    second.freeze();
    let slow = scene.insert(&keys[1], 1).remove(0);
    // Rows on both: the transaction is not done when one of them is.
    scene.sql.run(&format!(
        "BEGIN; {}; {}; COMMIT",
        scene.rows(&keys[0], 1, 0),
        scene.rows(&keys[1], 1, 0)
    ));
    let quick = scene.insert(&keys[0], 1).remove(0);
    let positions = scene.positions();
    let mut tail = scene.kafka.tail_of(&scene.topic("order"), &[0]);
    until("the later one is in Kafka", 60, || {
        tail.poll(Duration::from_millis(100));
        tail.records
            .iter()
            .any(|r| r.event_id() == quick)
            .then_some(())
    });
    always("the slot stays before the one that is stuck", 3, || {
        scene.confirmed() <= positions[&slow].commit
    });
    run.kill();
    assert!(scene.confirmed() <= positions[&slow].commit);
    second.thaw();
    until("the slot is free", 60, || {
        scene.slot()?.active_pid.is_none().then_some(())
    });
    let mut run = scene.started(&walpost);
    scene.judge(before + 4);
    run.stop(0);

    // A partition whose leader dies under load, and comes back.
    let scene = Scene::on(Server::shared(), first.kafka.clone());
    scene.create_topic_on_two(true);
    let walpost = scene.walpost();
    walpost.init();
    let mut run = scene.started(&walpost);
    let load = Load::start(&scene, &Plan::default());
    pass(1_000);
    second.kill();
    let target = scene.current_lsn();
    until("the other broker leads", 60, || {
        (scene.confirmed() >= target).then_some(())
    });
    second.restart();
    pass(1_000);
    load.stop();
    scene.judge(300);
    run.assert_alive();
}

#[test]
fn the_slot_is_at_no_moment_ahead_of_what_is_in_kafka() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let mut walpost = scene.ready(3);
    // Room for little: reading pauses and goes on all the time.
    walpost.set("delivery.in_flight_rows", 50);
    scene.observe();
    let mut run = scene.started(&walpost);
    let load = Load::start(&scene, &Plan::default());
    let mut tail = scene.kafka.tail(&scene.topic("order"));
    let mut samples = Vec::new();
    // Where the slot stands first, then what Kafka has.
    let mut sample = || {
        let confirmed = scene.confirmed();
        tail.catch_up();
        samples.push((confirmed, tail.records.len()));
        confirmed
    };
    for fault in ["slow", "refused", "reset", "killed"].repeat(2) {
        let before = sample();
        match fault {
            "slow" => way.proxy().throttle(50_000),
            "refused" => way.proxy().refuse(),
            "reset" => way.proxy().reset(),
            _ => run.kill(),
        }
        for _ in 0..3 {
            pass(100);
            sample();
        }
        way.proxy().forward();
        if !run.alive() {
            run = walpost.start();
        }
        until("the slot moves on", 60, || {
            (sample() > before).then_some(())
        });
    }
    load.stop();
    let positions = scene.positions();
    for (confirmed, count) in samples {
        let arrived: HashSet<_> = tail.records[..count].iter().map(|r| r.event_id()).collect();
        for (id, at) in &positions {
            assert!(
                at.commit >= confirmed || arrived.contains(id.as_str()),
                "the slot stood at {confirmed}, event {id} of {at} was not in Kafka"
            );
        }
    }
    scene.judge(300);
}

#[test]
fn a_broker_that_lost_the_end_of_its_log_makes_a_new_producer_necessary_and_nothing_worse() {
    let mut broker = KafkaServer::start();
    let scene = Scene::on(Server::shared(), broker.kafka.clone());
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    // A batch each.
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.extend(scene.insert("a", 1));
        scene.wait_confirmed(60);
    }
    broker.kill();
    broker.lose_last_batch(&scene.topic("order"));
    broker.restart();
    assert_eq!(scene.records().len(), 2);
    // The producer goes on behind a record that the broker does not know.
    let more = scene.insert("a", 20);
    scene.wait_confirmed(60);
    let arrived: Vec<_> = scene
        .records()
        .iter()
        .map(|r| r.event_id().to_owned())
        .collect();
    assert_eq!(arrived, [&ids[..2], &more[..]].concat());
    let refused = "code=\"OUT_OF_ORDER_SEQUENCE_NUMBER\"";
    let refused = walpost.metric("walpost_delivery_failures_total", refused);
    println!("{refused:?}\n{}", run.log());
    assert!(refused.is_some_and(|count| count > 0.0), "{}", run.log());
    run.assert_alive();
}

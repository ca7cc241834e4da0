//! The publisher itself ends and comes back: nothing is lost, and only what has to repeat does.

use std::time::Instant;

use rustix::process::Signal;

use crate::harness::{
    Dice, Scene,
    kafka_server::Breakable,
    load::{Load, Plan},
    pass, until,
};

#[test]
fn killed_twenty_times_under_load_every_event_arrives_and_only_suffixes_repeat() {
    let scene = Scene::new();
    let walpost = scene.ready(4);
    let load = Load::start(
        &scene,
        &Plan {
            keys: 12,
            pause: 3,
            ..Plan::default()
        },
    );
    let mut dice = Dice::new();
    for _ in 0..20 {
        let mut run = scene.started(&walpost);
        pass(dice.between(0, 1_400));
        run.kill();
        // The server has to see that the connection is gone.
        until("the slot is free", 60, || {
            scene.slot()?.active_pid.is_none().then_some(())
        });
    }
    load.stop();
    let _run = scene.started(&walpost);
    let verdict = scene.judge(1_000);
    println!("{verdict}");
}

#[test]
fn stopped_cleanly_five_times_under_load_nothing_repeats() {
    let scene = Scene::new();
    let walpost = scene.ready(4);
    let load = Load::start(&scene, &Plan::default());
    for _ in 0..5 {
        let mut run = scene.started(&walpost);
        pass(1_000);
        run.stop(0);
    }
    load.stop();
    let _run = scene.started(&walpost);
    scene.judge_once(500);
}

#[test]
fn an_idle_publisher_stopped_and_started_five_times_repeats_nothing_on_every_version() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    for count in 1..=5 {
        let mut run = scene.started(&walpost);
        scene.insert("a", 1);
        scene.wait_records(count);
        // At once: the last position is confirmed by the stop itself.
        run.stop(0);
    }
    let _run = scene.started(&walpost);
    scene.judge_once(5);
}

#[test]
fn stopped_while_kafka_is_down_it_ends_within_the_grace_and_the_slot_stays() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let mut walpost = scene.ready(3);
    walpost.set("delivery.shutdown_grace", "2s");
    scene.observe();
    let mut run = scene.started(&walpost);
    scene.insert("a", 5);
    scene.wait_confirmed(60);
    way.proxy().refuse();
    let ids = scene.insert("a", 100);
    pass(1_000);
    let began = Instant::now();
    run.stop(6);
    assert!(
        began.elapsed().as_secs() < 8,
        "took {:?} with a grace of 2 s",
        began.elapsed()
    );
    assert!(
        scene.confirmed() <= scene.positions()[&ids[0]].commit,
        "the slot passed rows that are not in Kafka"
    );
    way.proxy().forward();
    let _run = scene.started(&walpost);
    scene.judge(105);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let mut walpost = scene.ready(1);
    walpost.set("delivery.shutdown_grace", "60s");
    let mut run = scene.started(&walpost);
    way.proxy().refuse();
    scene.insert("a", 1);
    until("the row is in flight", 60, || {
        (walpost.metric("walpost_in_flight_rows", "")? == 1.0).then_some(())
    });
    run.signal(Signal::TERM);
    pass(500);
    run.assert_alive();
    run.signal(Signal::INT);
    run.wait(5);
    way.proxy().forward();
    let _run = scene.started(&walpost);
    scene.judge(1);
}

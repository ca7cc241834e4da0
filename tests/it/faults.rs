//! The servers and the wires fail: nothing is lost, the slot never runs ahead, it goes on by itself.

use crate::harness::{
    Scene,
    kafka::Kafka,
    kafka_server::Breakable,
    load::{Kind, Load, Plan},
    pass,
    postgres::Cluster,
    proxy::Proxy,
    until,
};

/// A crashed server would leave prepared transactions behind, with the keys' locks.
const RESTARTABLE: &[Kind] = &[
    Kind::Plain,
    Kind::Multi,
    Kind::Rollback,
    Kind::Savepoint,
    Kind::Copy,
];

#[test]
fn postgresql_restarted_and_crashed_under_load_nothing_is_lost_on_every_version() {
    let mut cluster = Cluster::start("");
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let walpost = scene.ready(3);
    let mut run = scene.started(&walpost);
    let load = Load::start(
        &scene,
        &Plan {
            pause: 10,
            kinds: RESTARTABLE,
            ..Plan::default()
        },
    );
    for crash in [false, true] {
        pass(1_500);
        if crash {
            cluster.crash();
        } else {
            let took = cluster.stop();
            assert!(
                took.as_secs() < 20,
                "the publisher held up the shutdown for {took:?}"
            );
        }
        pass(300);
        cluster.restart();
        until("streaming again", 60, || scene.slot()?.active_pid);
    }
    pass(500);
    load.stop();
    scene.judge(100);
    run.assert_alive();
}

#[test]
fn walsender_terminated_under_load_nothing_is_lost() {
    let scene = Scene::new();
    let walpost = scene.ready(3);
    let mut run = scene.started(&walpost);
    let load = Load::start(&scene, &Plan::default());
    for _ in 0..3 {
        pass(700);
        let walsender = scene.walsender();
        scene
            .sql
            .run(&format!("SELECT pg_terminate_backend({walsender})"));
        until("another walsender", 60, || {
            scene.slot()?.active_pid.filter(|pid| *pid != walsender)
        });
    }
    load.stop();
    scene.judge(100);
    run.assert_alive();
}

#[test]
fn both_connections_reset_again_and_again_nothing_is_lost() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let proxy = postgres_proxy(&scene);
    let mut walpost = scene.ready(3);
    walpost.set(
        "postgres.url",
        scene.server.url_at("127.0.0.1", proxy.port, &scene.tag),
    );
    let mut run = scene.started(&walpost);
    let load = Load::start(&scene, &Plan::default());
    for round in 0..6 {
        pass(700);
        if round % 2 == 0 {
            way.proxy().reset()
        } else {
            proxy.reset()
        }
    }
    load.stop();
    scene.judge(100);
    run.assert_alive();
}

#[test]
fn a_connection_that_fell_silent_is_given_up_and_opened_again() {
    let scene = Scene::new();
    let proxy = postgres_proxy(&scene);
    scene.publisher_setting("wal_sender_timeout", "'4s'");
    let mut walpost = scene.ready(3);
    walpost
        .set(
            "postgres.url",
            scene.server.url_at("127.0.0.1", proxy.port, &scene.tag),
        )
        .set("postgres.receive_timeout", "4s");
    let mut run = scene.started(&walpost);
    scene.insert("a", 3);
    scene.wait_confirmed(60);
    let walsender = scene.walsender();
    proxy.swallow();
    scene.insert("a", 3);
    pass(1_000);
    // New connections work; the old ones stay silent for ever.
    proxy.forward();
    until("another walsender", 60, || {
        scene.slot()?.active_pid.filter(|pid| *pid != walsender)
    });
    scene.judge(6);
    run.assert_alive();
}

#[test]
fn a_connection_that_fell_silent_while_nothing_is_read_is_given_up_although_kafka_stays_away() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let proxy = postgres_proxy(&scene);
    scene.publisher_setting("wal_sender_timeout", "'4s'");
    let mut walpost = scene.ready(1);
    walpost
        .set(
            "postgres.url",
            scene.server.url_at("127.0.0.1", proxy.port, &scene.tag),
        )
        .set("postgres.receive_timeout", "4s")
        .set("delivery.in_flight_rows", 10);
    let mut run = scene.started(&walpost);
    scene.insert("a", 3);
    scene.wait_confirmed(60);
    let (walsender, confirmed) = (scene.walsender(), scene.confirmed());
    way.proxy().refuse();
    scene.sql.run(&scene.rows("a", 500, 100));
    until("as many rows are on their way as may be", 60, || {
        (walpost.metric("walpost_in_flight_rows", "")? == 10.0).then_some(())
    });
    proxy.swallow();
    until("the server gives the connection up", 60, || {
        scene.slot()?.active_pid.is_none().then_some(())
    });
    // New connections work; the old ones stay silent for ever.
    proxy.forward();
    until("another walsender", 60, || {
        scene.slot()?.active_pid.filter(|pid| *pid != walsender)
    });
    assert!(scene.records().len() == 3 && scene.confirmed() >= confirmed);
    way.proxy().forward();
    scene.judge(503);
    run.assert_alive();
}

#[test]
fn started_before_the_servers_it_waits_and_says_so_once() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let proxy = postgres_proxy(&scene);
    let mut walpost = scene.ready(1);
    walpost.set(
        "postgres.url",
        scene.server.url_at("127.0.0.1", proxy.port, &scene.tag),
    );
    proxy.refuse();
    way.proxy().refuse();
    let mut run = walpost.start();
    run.wait_says(&proxy.port.to_string(), 60);
    pass(4_000);
    run.assert_alive();
    assert_ne!(walpost.ready(), Some(200));
    let lines = run.log().lines().count();
    assert!(
        lines < 25,
        "one line per change of state, not per attempt:\n{}",
        run.log()
    );
    proxy.forward();
    way.proxy().forward();
    scene.insert("a", 1);
    until("the slot is held", 60, || scene.slot()?.active_pid);
    scene.judge_once(1);
}

#[test]
fn steady_load_moves_the_slot_although_the_server_never_asks() {
    let scene = Scene::new();
    scene.publisher_setting("wal_sender_timeout", "0");
    let walpost = scene.ready(3);
    let _run = scene.started(&walpost);
    let load = Load::start(
        &scene,
        &Plan {
            kinds: &[Kind::Plain],
            ..Plan::default()
        },
    );
    for _ in 0..3 {
        let before = scene.confirmed();
        until("the slot moves", 3, || {
            (scene.confirmed() > before).then_some(())
        });
        pass(200);
    }
    load.stop();
    scene.judge(50);
}

#[test]
fn a_slow_wire_on_both_sides_delays_and_breaks_nothing() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    scene.publisher_setting("wal_sender_timeout", "'4s'");
    let proxy = postgres_proxy(&scene);
    let mut walpost = scene.ready(3);
    walpost
        .set(
            "postgres.url",
            scene.server.url_at("127.0.0.1", proxy.port, &scene.tag),
        )
        .set("postgres.receive_timeout", "4s");
    let mut run = scene.started(&walpost);
    let walsender = scene.walsender();
    proxy.delay(300);
    way.proxy().delay(300);
    let load = Load::start(&scene, &Plan::default());
    pass(6_000);
    load.stop();
    scene.judge_once(300);
    assert_eq!(
        scene.walsender(),
        walsender,
        "connected to PostgreSQL again"
    );
    run.assert_alive();
}

fn postgres_proxy(scene: &Scene) -> Proxy {
    Proxy::new(scene.server.socket_address())
}

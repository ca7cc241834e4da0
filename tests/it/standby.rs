//! Two publishers: one publishes, the other waits and takes over.

use serde_json::Value;

use crate::harness::{
    Scene, Walpost, always,
    kafka::Kafka,
    kafka_server::Breakable,
    load::{Kind, Load, Plan},
    pass,
    postgres::Cluster,
    proxy::Proxy,
    sql::Sql,
    until,
};

#[test]
fn a_second_run_waits_as_standby_and_takes_over() {
    let scene = Scene::new();
    let walpost = scene.ready(3);
    let mut first = scene.started(&walpost);
    let holder = scene.walsender();
    let twin = walpost.twin();
    let mut second = twin.start();
    until("the twin is standby", 60, || {
        (twin.get("/api/status").is_some() && twin.api_status()["role"] == "standby").then_some(())
    });
    scene.insert("a", 3);
    scene.wait_confirmed(60);
    assert_eq!(scene.walsender(), holder, "never ends the holder");
    second.wait_says(&holder.to_string(), 10);
    let (code, body) = twin.get("/ready").expect("/ready");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((code, &body["ready"]), (503, &Value::Bool(false)), "{body}");
    assert!(
        body["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("standby")),
        "{body}"
    );
    let status = twin.api_status();
    assert_eq!(status["holder"]["pid"].as_i64(), Some(holder), "{status}");
    assert_eq!(
        status["holder"]["application"],
        format!("walpost:{}", scene.tag)
    );
    assert_eq!(twin.metric("walpost_role", "role=\"standby\""), Some(1.0));
    assert_eq!(
        walpost.metric("walpost_role", "role=\"publisher\""),
        Some(1.0)
    );
    assert_eq!(walpost.api_status()["role"], "publisher");

    first.stop(0);
    let successor = until("the standby takes over", 5, || {
        scene.slot()?.active_pid.filter(|pid| *pid != holder)
    });
    scene.insert("a", 3);
    scene.wait_confirmed(60);
    twin.wait_ready();
    let _third = walpost.start();
    until("the third is standby", 60, || {
        (walpost.get("/api/status").is_some() && walpost.api_status()["role"] == "standby")
            .then_some(())
    });
    second.kill();
    until("the third takes over", 60, || {
        scene.slot()?.active_pid.filter(|pid| *pid != successor)
    });
    scene.insert("a", 3);
    scene.judge(9);
}

#[test]
fn a_standby_ends_cleanly_when_told() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let _first = scene.started(&walpost);
    let twin = walpost.twin();
    let mut second = twin.start();
    until("the twin is standby", 60, || {
        (twin.get("/api/status").is_some() && twin.api_status()["role"] == "standby").then_some(())
    });
    second.stop(0);
}

#[test]
fn a_publisher_of_another_slot_on_the_same_table_waits() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let _first = scene.started(&walpost);
    let mut other = walpost.twin();
    other.set("postgres.slot", format!("{}_b", scene.tag));
    other.init();
    let mut second = other.start();
    second.wait_says("slot", 60);
    scene.insert("a", 20);
    scene.wait_confirmed(60);
    always("not ready", 2, || other.ready() != Some(200));
    second.assert_alive();
    assert_eq!(scene.records().len(), 20, "both published");
}

#[test]
fn a_standby_whose_connection_fell_silent_takes_over_all_the_same() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let mut first = scene.started(&walpost);
    let holder = scene.walsender();
    let proxy = Proxy::new(scene.server.socket_address());
    let mut twin = walpost.twin();
    twin.set(
        "postgres.url",
        scene.server.url_at("127.0.0.1", proxy.port, &scene.tag),
    )
    .set("postgres.receive_timeout", "4s");
    let mut second = twin.start();
    until("the twin is standby", 60, || {
        (twin.get("/api/status").is_some() && twin.api_status()["role"] == "standby").then_some(())
    });
    proxy.swallow();
    pass(1_000);
    // New connections work; the old ones stay silent for ever.
    proxy.forward();
    first.stop(0);
    until("the standby takes over", 60, || {
        scene.slot()?.active_pid.filter(|pid| *pid != holder)
    });
    scene.insert("a", 3);
    scene.judge(3);
    second.assert_alive();
}

#[test]
fn a_standby_that_vanished_without_a_word_holds_nothing_for_long() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let mut first = scene.started(&walpost);
    let proxy = Proxy::new(scene.server.socket_address());
    let other_slot = format!("{}_b", scene.tag);
    let mut other = walpost.twin();
    other
        .set("postgres.slot", other_slot.as_str())
        .set("postgres.receive_timeout", "4s");
    other.init();
    let direct = other.twin();
    other.set(
        "postgres.url",
        scene.server.url_at("127.0.0.1", proxy.port, &scene.tag),
    );
    // It has its slot's lock and waits for the table's.
    let mut second = other.start();
    second.wait_says("another walpost with another slot", 60);
    proxy.swallow();
    second.kill();
    first.stop(0);
    let _third = direct.start();
    until("the next one has the slot", 60, || {
        scene.slot_named(&other_slot)?.active_pid
    });
}

#[test]
fn a_holder_whose_network_is_gone_loses_the_slot_in_time_and_does_no_more() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    scene.publisher_setting("wal_sender_timeout", "'3s'");
    let mut walpost = scene.ready(1);
    let direct = walpost.twin();
    let proxy = Proxy::new(scene.server.socket_address());
    walpost
        .set(
            "postgres.url",
            scene.server.url_at("127.0.0.1", proxy.port, &scene.tag),
        )
        .set("postgres.receive_timeout", "4s");
    let mut first = scene.started(&walpost);
    let mut second = direct.start();
    second.wait_says("standby", 60);
    let holder = scene.walsender();
    // What the first one has when it is cut off waits in its client.
    way.proxy().delay(600_000);
    scene.insert("a", 5);
    until("the rows are with the first", 60, || {
        (walpost.api_status()["in_flight"]["rows"] == 5).then_some(())
    });
    proxy.swallow();
    // wal_sender_timeout, two seconds, and one for a slow machine.
    until("the standby takes over", 6, || {
        scene.slot()?.active_pid.filter(|pid| *pid != holder)
    });
    until("the first one is not ready any more", 60, || {
        (walpost.ready() == Some(503)).then_some(())
    });
    way.proxy().forward();
    proxy.forward();
    scene.insert("a", 5);
    scene.judge(10);
    // It comes back as the standby.
    until("the first one waits", 60, || {
        (walpost.metric("walpost_role", "role=\"standby\"") == Some(1.0)).then_some(())
    });
    first.assert_alive();
    second.assert_alive();
}

/// Who publishes and who waits: the first of the two, then the other.
fn roles(walpost: &Walpost, twin: &Walpost) -> Option<(Value, Value)> {
    let role = |one: &Walpost| {
        let (_, body) = one.get("/api/status")?;
        let status: Value = serde_json::from_str(&body).expect("JSON");
        Some(status["role"].clone())
    };
    Some((role(walpost)?, role(twin)?))
}

/// The publisher's connection ends and it does not hear of that. The standby takes the epoch, but
/// cannot stream yet.
fn a_lost_session_waits_behind_its_successor(poison: bool) {
    // Its own server: the lock's transaction would keep everybody's slots from being made.
    let cluster = Cluster::start("");
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let proxy = Proxy::new(scene.server.socket_address());
    let mut walpost = scene.ready(1);
    let twin = walpost.twin();
    walpost.set(
        "postgres.url",
        scene.server.url_at("127.0.0.1", proxy.port, &scene.tag),
    );
    let mut first = scene.started(&walpost);
    scene.insert("a", 1);
    scene.wait_confirmed(60);
    let mut second = twin.start();
    until("the twin is standby", 60, || {
        (roles(&walpost, &twin)?.1 == "standby").then_some(())
    });
    // Nobody gets at the letters: the successor has the epoch, and no stream.
    let lock = Sql::new(scene.server.superuser(&scene.tag));
    lock.run("BEGIN; LOCK TABLE walpost.dead_letter");
    if poison {
        scene.insert_row(&[("headers", "'[]'")]);
        until("it waits for its letter", 60, || {
            (walpost.metric("walpost_in_flight_rows", "")? == 1.0).then_some(())
        });
    }
    let epoch = "SELECT epoch FROM walpost.slot";
    let before = scene.sql.number(epoch);
    let walsender = scene.walsender();
    proxy.swallow();
    scene
        .sql
        .run(&format!("SELECT pg_terminate_backend({walsender})"));
    until("the successor has the next epoch", 60, || {
        (scene.sql.number(epoch) > before).then_some(())
    });
    // New connections work; the old ones stay silent for ever.
    proxy.forward();
    first.wait_says("took slot|read by another", 60);
    lock.run("COMMIT");
    scene.insert("a", 5);
    let letters = "SELECT count(*) FROM walpost.dead_letter";
    until("the poison is a letter", 60, || {
        (scene.sql.number(letters) == i64::from(poison)).then_some(())
    });
    scene
        .sql
        .run("DELETE FROM public.outbox WHERE headers = '[]'");
    scene.judge(6);
    until("one publishes and one waits", 60, || {
        first.assert_alive();
        second.assert_alive();
        let (one, other) = roles(&walpost, &twin)?;
        (one != other && one != "none" && other != "none").then_some(())
    });
}

#[test]
fn a_publisher_whose_session_is_lost_waits_behind_its_successor() {
    a_lost_session_waits_behind_its_successor(false);
}

#[test]
fn a_publisher_whose_session_is_lost_waits_behind_its_successor_with_a_letter_to_write() {
    a_lost_session_waits_behind_its_successor(true);
}

#[test]
fn a_publisher_that_is_superseded_while_its_session_lives_ends_as_fenced() {
    for poison in [false, true] {
        let scene = Scene::new();
        let walpost = scene.ready(1);
        let mut run = scene.started(&walpost);
        scene.insert("a", 1);
        scene.wait_confirmed(60);
        let confirmed = scene.confirmed();
        let mut act = "BEGIN; UPDATE walpost.slot SET epoch = epoch + 1; ".to_owned();
        if poison {
            act += &format!("{}; ", scene.row(&[("headers", "'[]'")]));
        }
        let row = scene.row(&[("aggregate_id", "'b'")]);
        scene.sql.run(&format!("{act}{row}; COMMIT"));
        run.expect_end(1, &["fenced", &scene.tag, "epoch"], 60);
        assert!(
            scene
                .sql
                .rows("SELECT 1 FROM walpost.dead_letter")
                .is_empty(),
            "it wrote a letter of another's slot"
        );
        let before = scene
            .sql
            .number(&format!("SELECT pg_current_wal_lsn() - '{confirmed}'"));
        assert!(
            before > 0 && scene.slot().is_some_and(|slot| slot.lag > 0),
            "it confirmed another's row"
        );
    }
}

#[test]
fn two_publishers_outlive_crashes_of_postgresql_and_one_of_them_publishes() {
    let mut cluster = Cluster::start("");
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let walpost = scene.ready(3);
    let mut first = scene.started(&walpost);
    let twin = walpost.twin();
    let mut second = twin.start();
    let load = Load::start(
        &scene,
        &Plan {
            pause: 10,
            // A crash would leave prepared transactions behind, with the keys' locks.
            kinds: &[Kind::Plain, Kind::Multi, Kind::Rollback, Kind::Savepoint],
            ..Plan::default()
        },
    );
    for round in 0..6 {
        until("one publishes and one waits", 60, || {
            first.assert_alive();
            second.assert_alive();
            let (one, other) = roles(&walpost, &twin)?;
            (one != other && one != "none" && other != "none").then_some(())
        });
        pass(500);
        match round % 3 {
            // The postmaster ends all its processes and begins anew.
            0 => cluster.signal(scene.walsender(), rustix::process::Signal::KILL),
            1 => {
                cluster.crash();
                cluster.restart();
            }
            _ => {
                cluster.kill();
                cluster.restart();
            }
        }
        until("streaming again", 60, || {
            first.assert_alive();
            second.assert_alive();
            scene.slot()?.active_pid
        });
    }
    load.stop();
    println!("{}", scene.judge(100));
    first.assert_alive();
    second.assert_alive();
}

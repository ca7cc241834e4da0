//! The database is never hostage: it shuts down when told, commits don't wait for us, nobody is
//! flooded with status reports.

use std::time::Duration;

use crate::harness::{
    Run, Scene, kafka::Kafka, kafka_server::Breakable, pass, postgres::Cluster, run::cpu_seconds,
    sql::Sql, until,
};

#[test]
fn an_idle_publisher_lets_the_server_shut_down_at_once_on_every_version() {
    let mut cluster = Cluster::start("");
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.insert("a", 3);
    scene.wait_confirmed(60);
    let took = cluster.stop();
    assert!(took < Duration::from_secs(2), "took {took:?}");
    cluster.restart();
    scene.insert("a", 3);
    // Up to 16 a restarted server may come back at an older position of the slot.
    scene.judge(6);
    run.assert_alive();
}

#[test]
fn a_stalled_kafka_floods_nobody_and_holds_a_shutdown_no_longer_than_the_grace_on_every_version() {
    let way = Breakable::take();
    let mut cluster = Cluster::start("wal_sender_timeout = '3s'\nautovacuum = off");
    let scene = Scene::on(cluster.server.clone(), way.kafka()).by(&way);
    let mut walpost = scene.ready(1);
    walpost.set("postgres.server_shutdown_grace", "3s");
    let mut run = scene.started(&walpost);
    scene.insert("a", 3);
    scene.wait_confirmed(60);
    floods_nobody(&scene, &run);

    way.proxy().refuse();
    scene.insert("a", 10);
    until("the rows are in flight", 60, || {
        (walpost.metric("walpost_in_flight_rows", "")? == 10.0).then_some(())
    });
    floods_nobody(&scene, &run);
    let before = scene.confirmed();
    let took = cluster.stop();
    assert!(
        took < Duration::from_secs(5),
        "took {took:?} with a grace of 3 s"
    );
    run.wait_says("released the slot with 10 unconfirmed", 10);
    cluster.restart();
    assert!(
        scene.confirmed() <= before,
        "the slot passed rows that are not in Kafka"
    );
    way.proxy().forward();
    scene.judge(13);
    run.assert_alive();
}

/// Answering every keepalive with an old position makes tens of thousands of them a second.
#[track_caller]
fn floods_nobody(scene: &Scene, run: &Run) {
    let walsender = scene.walsender().unsigned_abs();
    // Each sleep of the walsender ends with a message, a signal or a time-out.
    let wakes = || {
        let status = std::fs::read_to_string(format!("/proc/{walsender}/status"))
            .expect("the walsender's status");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|text| text.trim().parse::<u64>().ok())
            .expect("a number")
    };
    let (began, servers, ours) = (wakes(), cpu_seconds(walsender), run.cpu_seconds());
    pass(4_000);
    let woken = wakes() - began;
    assert!(
        woken < 80,
        "the walsender woke {woken} times in 4 s of silence"
    );
    for (who, seconds) in [
        ("the walsender", cpu_seconds(walsender) - servers),
        ("walpost", run.cpu_seconds() - ours),
    ] {
        assert!(
            seconds < 0.6,
            "{who} worked for {seconds} s in 4 s of silence"
        );
    }
}

#[test]
fn taken_for_a_synchronous_standby_it_stops_and_commits_go_on_on_every_version() {
    for stalled in [false, true] {
        let way = Breakable::take();
        let cluster = Cluster::start("");
        let scene = Scene::on(cluster.server.clone(), way.kafka()).by(&way);
        let walpost = scene.ready(1);
        let mut run = scene.started(&walpost);
        scene.insert("a", 1);
        scene.wait_confirmed(60);
        if stalled {
            way.proxy().refuse();
        }
        cluster.set("synchronous_standby_names", "'*'");
        let admin = cluster.server.admin();
        until("the walsender is waited for", 60, || {
            admin.value("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
        });
        // The commit waits until nobody is a synchronous standby of the server's choice any more.
        let row = scene.row(&[("aggregate_id", "'a'")]);
        let login = scene.server.superuser(&scene.tag);
        let commit = std::thread::spawn(move || Sql::new(login).value(&row));
        run.expect_end(4, &["synchronous_standby_names"], 8);
        cluster.set("synchronous_standby_names", "''");
        commit.join().expect("the commit ends");
        // Neither is it let in at its next start.
        cluster.set("synchronous_standby_names", "'*'");
        walpost
            .run_to_end()
            .expect(4, &["synchronous_standby_names"]);
        cluster.set("synchronous_standby_names", "''");
        way.proxy().forward();
        let _run = scene.started(&walpost);
        scene.judge(2);
    }
}

#[test]
fn while_the_real_standby_is_the_synchronous_one_it_publishes_on() {
    let mut cluster = Cluster::start("");
    let _standby = cluster.standby();
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    cluster.set("synchronous_standby_names", "'real_standby'");
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.insert("a", 5);
    scene.judge_once(5);
    run.assert_alive();
    cluster.set("synchronous_standby_names", "''");
}

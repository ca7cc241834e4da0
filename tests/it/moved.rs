//! The database is on another server now: promoted, restored, upgraded. The slot stayed behind, and
//! nothing is lost.

use crate::harness::{Run, Scene, Walpost, kafka::Kafka, postgres::Cluster, until};

fn on(cluster: &Cluster) -> (Scene, Walpost) {
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let walpost = scene.ready(1);
    (scene, walpost)
}

/// Five rows are published, and confirmed by a clean stop.
fn published(scene: &Scene, walpost: &Walpost) {
    let mut run = scene.started(walpost);
    scene.insert("a", 5);
    scene.wait_confirmed(20);
    run.stop(0);
}

/// It goes on, and all that the table holds arrived.
#[track_caller]
fn goes_on(scene: &Scene, walpost: &Walpost, rows: usize) -> Run {
    let run = scene.started(walpost);
    scene.insert("b", 1);
    scene.judge_once(rows);
    run
}

#[test]
fn a_promoted_standby_has_no_slot_and_recover_closes_the_gap_on_every_version() {
    let mut primary = Cluster::start("");
    let (scene, walpost) = on(&primary);
    published(&scene, &walpost);
    let mut standby = primary.standby();
    scene.insert("a", 3);
    let last = scene.current_lsn();
    let there = standby.server.admin();
    until("the standby has all of it", 20, || {
        let text = format!("SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{last}'");
        there.value(&text)
    });
    primary.crash();
    standby.succeed(&primary);
    until("promoted", 20, || {
        let text = "SELECT 1 WHERE NOT pg_is_in_recovery()";
        standby.server.admin().try_rows(text).ok()?.pop()
    });
    let lost = walpost
        .run_to_end()
        .expect(4, &["timeline changed", "slot missing", "walpost recover"]);
    assert!(lost.err.contains("on timeline 2"), "{}", lost.err);
    assert!(scene.slot().is_none(), "a slot was made");
    scene.insert("a", 2);
    walpost
        .command(&["recover"])
        .expect(0, &["published 5 rows"]);
    goes_on(&scene, &walpost, 11);
}

#[test]
fn a_restored_backup_has_no_slot_and_recover_closes_the_gap_on_every_version() {
    let mut cluster = Cluster::start("");
    let (scene, walpost) = on(&cluster);
    published(&scene, &walpost);
    let kept = scene.insert("a", 3);
    let backup = cluster.backup();
    // What is in the backup and was not published then is published now, and so is more.
    let mut run = scene.started(&walpost);
    let gone = scene.insert("a", 2);
    scene.wait_confirmed(20);
    run.stop(0);
    cluster.restore(backup);
    assert_eq!(scene.sql.number("SELECT count(*) FROM public.outbox"), 8);
    walpost
        .run_to_end()
        .expect(4, &["is missing", "walpost recover"]);
    scene.insert("a", 2);
    walpost
        .command(&["recover"])
        .expect(0, &["published 2 rows", "8 of the 10 looked at"]);
    let _run = scene.started(&walpost);
    scene.insert("b", 1);
    scene.wait_confirmed(20);
    // Events whose rows the restored database never had stay in Kafka.
    let records = scene.records();
    let mut arrived: Vec<_> = records.iter().map(|record| record.event_id()).collect();
    // A server that was stopped may have forgotten the slot's last steps.
    let mut seen = std::collections::HashSet::new();
    arrived.retain(|id| seen.insert(*id));
    assert_eq!(arrived.len(), 13);
    assert_eq!(arrived[5..8], kept);
    assert_eq!(arrived[8..10], gone);
    let mut table = scene.sql.column("SELECT event_id::text FROM public.outbox");
    table.retain(|id| !arrived.contains(&id.as_str()));
    assert!(table.is_empty(), "not in Kafka: {table:?}");
}

#[test]
fn after_an_upgrade_with_unpublished_rows_recover_closes_the_gap() {
    let mut cluster = Cluster::start("");
    let (scene, walpost) = on(&cluster);
    published(&scene, &walpost);
    scene.insert("a", 3);
    if !cluster.upgrade() {
        return;
    }
    assert!(scene.slot().is_none());
    walpost
        .run_to_end()
        .expect(4, &["system identifier", "walpost recover"]);
    scene.insert("a", 2);
    walpost.command(&["recover"]).expect(
        0,
        &[
            "another cluster",
            "published 5 rows",
            "5 of the 10 looked at",
        ],
    );
    goes_on(&scene, &walpost, 11);
}

#[test]
fn after_an_upgrade_by_the_book_nothing_is_missing_and_nothing_comes_twice() {
    let mut cluster = Cluster::start("");
    let (scene, walpost) = on(&cluster);
    let mut run = scene.started(&walpost);
    scene.insert("a", 5);
    walpost.command(&["drain"]).expect(0, &["drained"]);
    run.stop(0);
    walpost.command(&["uninstall", "--yes"]).expect(0, &[]);
    if !cluster.upgrade() {
        return;
    }
    // First init, then the application's writes.
    walpost.command(&["init"]).expect(0, &["made slot"]);
    scene.insert("a", 3);
    goes_on(&scene, &walpost, 9);
}

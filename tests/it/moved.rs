//! The database is on another server now: promoted, restored, upgraded. The slot stayed behind, and
//! nothing is lost.

use crate::harness::{
    Run, Scene, Walpost, always, kafka::Kafka, postgres::Cluster, proxy::Proxy, sql::Sql, until,
};

fn on(cluster: &Cluster) -> (Scene, Walpost) {
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let walpost = scene.ready(1);
    (scene, walpost)
}

/// Five rows are published, and confirmed by a clean stop.
fn published(scene: &Scene, walpost: &Walpost) {
    let mut run = scene.started(walpost);
    scene.insert("a", 5);
    scene.wait_confirmed(60);
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
    until("the standby has all of it", 60, || {
        let text = format!("SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{last}'");
        there.value(&text)
    });
    primary.crash();
    standby.succeed(&primary);
    until("promoted", 60, || {
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
    scene.wait_confirmed(60);
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
    scene.wait_confirmed(60);
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

/// A primary, and a standby that keeps the publisher's slot in step; both are reached by `proxy`.
struct Pair {
    primary: Cluster,
    standby: Cluster,
    proxy: Proxy,
    scene: Scene,
    walpost: Walpost,
}

impl Pair {
    /// `None` where there are no failover slots.
    fn new() -> Option<Pair> {
        let mut primary = Cluster::start("");
        let version = "SELECT current_setting('server_version_num')::int / 10000";
        if primary.server.admin().number(version) < 17 {
            return None;
        }
        let mut standby = primary.standby();
        let admin = primary.server.admin();
        admin.run("SELECT pg_create_physical_replication_slot('standby')");
        let (_, port) = primary.server.address();
        let (user, password) = (
            primary.server.publisher_name(),
            primary.server.publisher_password(),
        );
        standby.set("primary_slot_name", "'standby'");
        standby.set("sync_replication_slots", "'on'");
        standby.set(
            "primary_conninfo",
            &format!(
                "'host=127.0.0.1 port={port} user={user} password={password} dbname=postgres'"
            ),
        );
        standby.stop();
        standby.restart();
        // The slot shows nothing that the standby does not have.
        primary.set("synchronized_standby_slots", "'standby'");

        let scene = Scene::on(primary.server.clone(), Kafka::shared());
        scene.create_topic("order", 1, &[]);
        let proxy = Proxy::new(primary.server.socket_address());
        let mut walpost = scene.walpost();
        let url = scene.server.url_at("127.0.0.1", proxy.port, &scene.tag);
        walpost
            .set("postgres.url", url)
            .set("postgres.failover_slot", true);
        walpost.init();
        Some(Pair {
            primary,
            standby,
            proxy,
            scene,
            walpost,
        })
    }

    /// The standby has the slot where it stands now.
    fn wait_in_step(&self) {
        let (target, tag) = (self.scene.confirmed(), &self.scene.tag);
        let there = self.standby.server.admin();
        until("the standby has the slot in step", 60, || {
            // The worker looks more often where something goes on.
            self.scene.insert_row(&[("aggregate_id", "'noise'")]);
            let text = format!(
                "SELECT 1 FROM pg_replication_slots WHERE slot_name = '{tag}' AND synced AND NOT temporary
                 AND invalidation_reason IS NULL AND confirmed_flush_lsn >= '{target}'"
            );
            there.value(&text)
        });
    }

    /// The standby has all that was written, and takes over.
    fn fail_over(&mut self) -> Sql {
        let last = self.scene.current_lsn();
        let there = self.standby.server.admin();
        until("the standby has all of it", 60, || {
            let text = format!("SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{last}'");
            there.value(&text)
        });
        self.primary.crash();
        there.run("SELECT pg_promote()");
        self.proxy.lead_to(self.standby.server.socket_address());
        Sql::new(self.standby.server.superuser(&self.scene.tag))
    }

    /// All of these are in the topic, in this order but for repeats.
    fn have_arrived(&self, wanted: &[String]) -> bool {
        let mut seen = std::collections::HashSet::new();
        let arrived = self.scene.records();
        let mut once: Vec<_> = arrived.iter().map(|record| record.event_id()).collect();
        once.retain(|id| wanted.iter().any(|known| known == id) && seen.insert(*id));
        once == wanted
    }
}

#[test]
fn a_promoted_standby_that_kept_the_slot_in_step_goes_on_without_loss_on_every_version() {
    let Some(mut pair) = Pair::new() else { return };
    let mut run = pair.scene.started(&pair.walpost);
    let mut wanted = pair.scene.insert("a", 20);
    pair.scene.wait_confirmed(60);
    pair.wait_in_step();
    wanted.extend(pair.scene.insert("a", 20));
    until("the rows arrive", 60, || {
        pair.have_arrived(&wanted).then_some(())
    });
    let promoted = pair.fail_over();
    let tag = &pair.scene.tag;
    until("the publisher goes on at the new primary", 60, || {
        run.assert_alive();
        let text = format!("SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{tag}'");
        promoted.value(&text)
    });
    let row = pair.scene.row(&[("aggregate_id", "'a'")]);
    wanted.push(promoted.value(&row).expect("an event id"));
    until("the row of the new primary arrives", 60, || {
        run.assert_alive();
        pair.have_arrived(&wanted).then_some(())
    });
    let timeline = promoted.value("SELECT timeline FROM walpost.timeline");
    assert_eq!(timeline.as_deref(), Some("2"));
    run.stop(0);
}

#[test]
fn a_slot_kept_in_step_may_be_ahead_of_what_was_recorded_of_it_on_every_version() {
    let Some(mut pair) = Pair::new() else { return };
    let mut run = pair.scene.started(&pair.walpost);
    let mut wanted = pair.scene.insert("a", 3);
    pair.scene.wait_confirmed(60);
    pair.wait_in_step();
    run.kill();
    let promoted = pair.fail_over();
    until("promoted", 60, || {
        promoted.value("SELECT 1 WHERE NOT pg_is_in_recovery()")
    });
    // The row that recorded the position did not come over. Without a mark behind it nobody knows
    // whose position that is.
    promoted
        .run("UPDATE walpost.slot SET reserved_lsn = consistent_point; DELETE FROM walpost.mark");
    let place = format!(
        "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{}'",
        pair.scene.tag
    );
    let stands = promoted.value(&place);
    pair.walpost
        .run_to_end()
        .expect(4, &["not as we left it", "walpost recover"]);
    assert_eq!(promoted.value(&place), stands, "the slot moved");
    promoted.run(
        "INSERT INTO walpost.mark VALUES (pg_current_wal_insert_lsn(), pg_snapshot_xmin(pg_current_snapshot()), now())",
    );
    pair.walpost
        .command(&["recover"])
        .expect(0, &["nothing to recover"]);
    let mut run = pair.walpost.start();
    let row = pair.scene.row(&[("aggregate_id", "'a'")]);
    wanted.push(promoted.value(&row).expect("an event id"));
    until("it goes on", 60, || {
        run.assert_alive();
        pair.have_arrived(&wanted).then_some(())
    });
    run.stop(0);
    // From then on it is a primary like any other.
    promoted.run("UPDATE walpost.slot SET reserved_lsn = consistent_point");
    pair.walpost.run_to_end().expect(4, &["not as we left it"]);
}

#[test]
fn nothing_is_published_that_the_standby_does_not_have_where_that_is_asked_for_on_every_version() {
    let Some(mut pair) = Pair::new() else { return };
    let mut run = pair.scene.started(&pair.walpost);
    let mut wanted = pair.scene.insert("a", 3);
    pair.scene.wait_confirmed(60);
    pair.standby.stop();
    // A failover now would leave an event behind whose row nobody has.
    wanted.extend(pair.scene.insert("a", 1));
    run.wait_says("standby", 60);
    always("the row waits for the standby", 3, || {
        pair.have_arrived(&wanted[..3]) && !pair.have_arrived(&wanted)
    });
    run.assert_alive();
    pair.standby.restart();
    until("the row arrives", 60, || {
        pair.have_arrived(&wanted).then_some(())
    });
    run.stop(0);
}

#[test]
fn an_old_primary_that_comes_back_is_not_read_on_every_version() {
    let mut old = Cluster::start("");
    let (scene, mut walpost) = on(&old);
    published(&scene, &walpost);
    let standby = old.standby();
    let admin = standby.server.admin();
    admin.run("SELECT pg_promote()");
    // The old one goes on as if nothing had happened.
    let proxy = Proxy::new(standby.server.socket_address());
    let url = scene.server.url_at("127.0.0.1", proxy.port, &scene.tag);
    walpost.set("postgres.url", url);
    walpost.command(&["recover"]).expect(0, &[]);
    let mut run = walpost.start();
    walpost.wait_ready();
    let promoted = Sql::new(standby.server.superuser(&scene.tag));
    let first = promoted.value(&scene.row(&[])).expect("an id");
    scene.wait_records(6);

    proxy.lead_to(scene.server.socket_address());
    run.wait_says("old primary", 60);
    let stray = scene.insert("a", 1);
    always("nothing of the old primary arrives", 3, || {
        scene
            .records()
            .iter()
            .all(|record| record.event_id() != stray[0])
    });
    assert_ne!(walpost.ready(), Some(200));
    assert_eq!(scene.slot().and_then(|slot| slot.active_pid), None);

    proxy.lead_to(standby.server.socket_address());
    let second = promoted.value(&scene.row(&[])).expect("an id");
    until("the new primary's row arrives", 60, || {
        run.assert_alive();
        let arrived = scene.records();
        let has = |id: &str| arrived.iter().any(|record| record.event_id() == id);
        (has(&first) && has(&second)).then_some(())
    });
    run.stop(0);
}

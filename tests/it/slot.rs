//! `run` on a slot or publication that is not what it should be: it stops with the reason and mends nothing.

use crate::harness::{Scene, kafka::Kafka, kafka_server::Breakable, postgres::Cluster, until};

#[test]
fn never_initialised() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    scene.walpost().run_to_end().expect(4, &["walpost init"]);
    let made = scene.sql.rows("SELECT 1 FROM pg_publication UNION ALL SELECT 1 FROM pg_namespace WHERE nspname = 'walpost'");
    assert!(
        made.is_empty() && scene.slot().is_none(),
        "something was created"
    );
}

#[test]
fn missing_slot() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    scene
        .sql
        .run(&format!("SELECT pg_drop_replication_slot('{}')", scene.tag));
    scene.insert("a", 1);
    walpost.run_to_end().expect(4, &[&scene.tag, "slot"]);
    assert!(scene.slot().is_none(), "a slot was created");
    assert!(scene.records().is_empty());
}

#[test]
fn slot_dropped_under_a_running_publisher_on_every_version() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.wait_confirmed(60);
    let name = &scene.tag;
    scene.sql.run(&format!(
        "DO $$ BEGIN PERFORM pg_terminate_backend({}); FOR i IN 1..100 LOOP
           BEGIN PERFORM pg_drop_replication_slot('{name}'); EXIT; EXCEPTION WHEN object_in_use THEN PERFORM pg_sleep(0.01); END;
         END LOOP; END $$",
        scene.walsender()
    ));
    run.expect_end(4, &[name, "slot"], 60);
    assert!(scene.slot().is_none());
}

#[test]
fn missing_publication_on_every_version() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    scene.insert("a", 1);
    let before = scene.confirmed();
    let misspelled = format!("{}x", scene.tag);
    walpost
        .set("postgres.publication", misspelled.as_str())
        .run_to_end()
        .expect(4, &[&misspelled, "publication"]);
    scene.sql.run(&format!("DROP PUBLICATION {}", scene.tag));
    walpost
        .set("postgres.publication", scene.tag.as_str())
        .run_to_end()
        .expect(4, &[&scene.tag, "publication"]);
    assert_eq!(scene.confirmed(), before, "the slot moved");
}

#[test]
fn publication_that_does_not_cover_the_table_or_its_inserts() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    scene.insert("a", 1);
    let (before, name) = (scene.confirmed(), &scene.tag);
    for (spoil, mend) in [
        (
            format!("ALTER PUBLICATION {name} DROP TABLE public.outbox"),
            format!("ALTER PUBLICATION {name} ADD TABLE public.outbox"),
        ),
        (
            format!("ALTER PUBLICATION {name} SET (publish = 'update')"),
            format!("ALTER PUBLICATION {name} SET (publish = 'insert')"),
        ),
    ] {
        scene.sql.run(&spoil);
        walpost.run_to_end().expect(4, &["publication", name]);
        scene.sql.run(&mend);
    }
    assert_eq!(scene.confirmed(), before, "the slot moved");
}

#[test]
fn publication_dropped_under_a_running_publisher_on_every_version() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.wait_confirmed(60);
    scene.sql.run(&format!("DROP PUBLICATION {}", scene.tag));
    scene.insert("a", 1);
    let behind = scene.current_lsn();
    run.expect_end(4, &["publication", &scene.tag], 60);
    assert!(
        scene.confirmed() < behind,
        "the slot passed a row that was not streamed"
    );
}

#[test]
fn slot_of_another_plugin_or_database() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let (name, admin) = (&scene.tag, scene.server.admin());
    let drop = format!("SELECT pg_drop_replication_slot('{name}')");
    scene.sql.run(&drop);
    scene.sql.run(&format!(
        "SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')"
    ));
    walpost.run_to_end().expect(4, &["test_decoding", name]);
    scene.sql.run(&drop);
    admin.run(&format!(
        "SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"
    ));
    let output = walpost.run_to_end();
    admin.run(&drop);
    output.expect(4, &["database", name]);
}

#[test]
fn another_schema_version() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let before = scene.confirmed();
    scene.sql.run("UPDATE walpost.meta SET version = 9999");
    for command in ["run", "status"] {
        walpost.command(&[command]).expect(2, &["9999"]);
    }
    assert_eq!(scene.confirmed(), before);
    assert_eq!(scene.sql.number("SELECT version FROM walpost.meta"), 9999);
}

#[test]
fn a_slot_older_than_its_publication_is_told_and_recover_closes_the_gap_on_every_version() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    scene.create_topic("order", 1, &[]);
    let (tag, role) = (&scene.tag, scene.server.publisher_name());
    scene.sql.run(&format!(
        "SELECT pg_create_logical_replication_slot('{tag}', 'pgoutput')"
    ));
    scene.insert("a", 2);
    scene.sql.run(&format!(
        "SET ROLE {role}; CREATE PUBLICATION {tag} FOR TABLE public.outbox WITH (publish = 'insert'); RESET ROLE"
    ));
    scene.insert("a", 1);
    let walpost = scene.walpost();
    walpost.command(&["init"]).expect(0, &["took over"]);
    let before = scene.confirmed();
    let words = [
        tag.as_str(),
        "publication",
        "walpost recover",
        "at most 3 rows",
    ];
    walpost.run_to_end().expect(4, &words);
    assert_eq!((scene.confirmed(), scene.records().len()), (before, 0));
    // It is known from now on, and no look at the publication mends it.
    walpost.run_to_end().expect(4, &words);
    walpost
        .command(&["init", "--accept-publication"])
        .expect(4, &["walpost recover"]);
    walpost
        .command(&["recover"])
        .expect(0, &["published 3 rows"]);
    let _run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.judge_once(4);
}

#[test]
fn the_way_to_a_lost_slot_is_warned_of_and_the_end_says_what_is_at_stake() {
    let cluster =
        Cluster::start("max_slot_wal_keep_size = 100MB\nmin_wal_size = 32MB\nmax_wal_size = 48MB");
    let way = Breakable::take();
    let scene = Scene::on(cluster.server.clone(), way.kafka()).by(&way);
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.wait_confirmed(60);
    way.proxy().refuse();
    scene.insert("a", 3);
    let is = |status: &str| {
        let text = format!("SELECT 1 FROM pg_replication_slots WHERE wal_status = '{status}'");
        scene.sql.rows(&text).pop()
    };
    until("the slot is beyond max_wal_size", 60, || {
        scene.noise(&scene.sql, 5);
        is("extended")
    });
    run.wait_says("bytes until max_slot_wal_keep_size", 60);
    walpost
        .command(&["status"])
        .expect(0, &["bytes until max_slot_wal_keep_size"]);
    let warnings = run.log().matches("until max_slot_wal_keep_size").count();
    assert_eq!(warnings, 1, "one line a change:\n{}", run.log());
    until("the slot is lost", 60, || {
        scene.noise(&scene.sql, 5);
        scene.sql.run("SELECT pg_switch_wal(); CHECKPOINT");
        is("lost")
    });
    let stands = format!("the WAL from {}", scene.confirmed());
    run.expect_end(
        4,
        &["is lost", "max_slot_wal_keep_size", &stands, "at most"],
        60,
    );
    way.proxy().forward();
    walpost
        .command(&["recover"])
        .expect(0, &["published 3 rows"]);
}

#[test]
fn a_slot_that_was_idle_for_too_long_is_told_with_the_setting_on_every_version() {
    let cluster = Cluster::start("");
    let version = "SELECT current_setting('server_version_num')::int / 10000";
    if cluster.server.admin().number(version) < 18 {
        // There is no such limit.
        return;
    }
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let walpost = scene.ready(1);
    scene.insert("a", 1);
    cluster.set("idle_replication_slot_timeout", "'1s'");
    until("the slot is lost", 60, || {
        scene.sql.run("CHECKPOINT");
        let lost = "SELECT 1 FROM pg_replication_slots WHERE invalidation_reason = 'idle_timeout'";
        scene.sql.rows(lost).pop()
    });
    walpost
        .run_to_end()
        .expect(4, &["idle_replication_slot_timeout", "walpost recover"]);
    assert!(scene.slot().is_some(), "the slot stays as evidence");
    walpost
        .command(&["recover"])
        .expect(0, &["published 1 rows"]);
    let _run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.judge_once(2);
}

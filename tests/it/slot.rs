//! `run` on a slot or publication that is not what it should be: it stops with the reason and mends nothing.

use crate::harness::Scene;

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
    scene.wait_confirmed(20);
    let name = &scene.tag;
    scene.sql.run(&format!(
        "DO $$ BEGIN PERFORM pg_terminate_backend({}); FOR i IN 1..100 LOOP
           BEGIN PERFORM pg_drop_replication_slot('{name}'); EXIT; EXCEPTION WHEN object_in_use THEN PERFORM pg_sleep(0.01); END;
         END LOOP; END $$",
        scene.walsender()
    ));
    run.expect_end(4, &[name, "slot"], 30);
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
    scene.wait_confirmed(20);
    scene.sql.run(&format!("DROP PUBLICATION {}", scene.tag));
    scene.insert("a", 1);
    let behind = scene.current_lsn();
    run.expect_end(4, &["publication", &scene.tag], 30);
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

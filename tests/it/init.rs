//! `init`: what it makes, what it finds, what it leaves alone.

use rustix::process::Signal;

use crate::harness::{Scene, kafka::Kafka, postgres::Cluster, sql::Sql, until};

#[test]
fn init_makes_table_publication_schema_and_slot_on_every_version() {
    let scene = Scene::new();
    let walpost = scene.walpost();
    walpost.init();
    let columns = scene.sql.column(
        "SELECT attname || ' ' || format_type(atttypid, NULL) || CASE WHEN attnotnull THEN ' not null' ELSE '' END FROM pg_attribute
         WHERE attrelid = 'public.outbox'::regclass AND attnum > 0 ORDER BY attnum",
    );
    let wanted = [
        "seq bigint not null",
        "event_id uuid not null",
        "aggregate_type text not null",
        "aggregate_id text",
        "aggregate_version bigint",
        "event_type text not null",
        "schema_version integer not null",
        "payload jsonb",
        "headers jsonb",
        "occurred_at timestamp with time zone",
    ];
    for column in wanted {
        assert!(
            columns.iter().any(|found| found.starts_with(column)),
            "{column} in {columns:?}"
        );
    }
    assert_eq!(columns.len(), wanted.len());
    let publication = format!(
        "SELECT pubinsert, pubupdate, pubdelete, pubtruncate, puballtables, pubviaroot FROM pg_publication WHERE pubname = '{}'",
        scene.tag
    );
    let flags: Vec<_> = scene
        .sql
        .rows(&publication)
        .remove(0)
        .into_iter()
        .flatten()
        .collect();
    assert_eq!(flags, ["t", "f", "f", "f", "f", "t"]);
    assert_eq!(
        scene
            .sql
            .column("SELECT schemaname || '.' || tablename FROM pg_publication_tables"),
        ["public.outbox"]
    );

    let slot = scene.slot().expect("a slot");
    assert_eq!(slot.plugin, "pgoutput");
    let known = scene.sql.rows("SELECT slot, state, system_identifier, database, plugin, consistent_point FROM walpost.slot");
    let known: Vec<_> = known
        .into_iter()
        .map(|row| {
            row.into_iter()
                .map(Option::unwrap_or_default)
                .collect::<Vec<_>>()
        })
        .collect();
    let identity = scene
        .sql
        .value("SELECT system_identifier FROM pg_control_system()")
        .expect("an identity");
    assert_eq!(
        known,
        [[
            scene.tag.clone(),
            "ready".into(),
            identity,
            scene.tag.clone(),
            "pgoutput".into(),
            slot.confirmed.to_string()
        ]]
    );
    assert!(scene.sql.number("SELECT version FROM walpost.meta") > 0);
}

#[test]
fn init_twice_changes_nothing() {
    let scene = Scene::new();
    let walpost = scene.walpost();
    let state = || {
        let mut rows = scene.sql.rows("SELECT xmin, * FROM walpost.slot; SELECT xmin, * FROM walpost.meta; SELECT oid, xmin, * FROM pg_publication; SELECT oid, xmin FROM pg_class WHERE relnamespace::regnamespace::text IN ('public', 'walpost') ORDER BY oid");
        rows.extend(scene.sql.rows(&format!("SELECT restart_lsn, confirmed_flush_lsn, catalog_xmin FROM pg_replication_slots WHERE slot_name = '{}'", scene.tag)));
        rows
    };
    walpost.init();
    let before = state();
    walpost.init();
    walpost.command(&["init"]).expect(0, &[]);
    assert_eq!(state(), before);
}

#[test]
fn init_and_uninstall_tell_what_they_did_as_one_object() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    scene.create_topic("order", 1, &[]);
    scene.insert("a", 2);
    let walpost = scene.walpost();
    let made = walpost.command(&["init", "--json"]).expect(0, &[]).json();
    let at = scene.confirmed().to_string();
    let wanted = serde_json::json!({
        "slot": scene.tag, "publication": scene.tag, "tables": ["public.outbox"], "state": "ready", "life": 1,
        "consistent_point": at, "confirmed_lsn": at, "changed": true, "published_rows": null, "left_out_rows": 2,
    });
    assert_eq!(made, wanted);
    let again = walpost.command(&["init", "--json"]).expect(0, &[]).json();
    assert_eq!(
        (&again["changed"], &again["state"]),
        (&false.into(), &"ready".into())
    );

    let shown = walpost
        .command(&["uninstall", "--json"])
        .expect(2, &["--yes"])
        .json();
    assert_eq!(
        (&shown["dropped"], &shown["rows"]),
        (&serde_json::json!([]), &2.into())
    );
    assert!(scene.slot().is_some() && shown["unpublished_bytes"].is_u64());
    let dropped = walpost
        .command(&["uninstall", "--yes", "--json"])
        .expect(0, &[])
        .json();
    assert_eq!(
        dropped["dropped"],
        serde_json::json!(["slot", "publication"])
    );
    assert_eq!(dropped["confirmed_lsn"], at);

    let made = walpost
        .command(&["init", "--include-existing", "--json"])
        .expect(0, &[])
        .json();
    assert_eq!(
        (&made["published_rows"], &made["state"]),
        (&2.into(), &"ready".into())
    );
}

#[test]
fn print_sql_prints_the_publication_before_the_slot_and_runs_nothing() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    let output = scene
        .walpost()
        .command(&["init", "--print-sql"])
        .expect(0, &["create publication", "pgoutput", "walpost.slot"]);
    let text = output.out.to_lowercase();
    assert!(
        text.find("create publication") < text.rfind("pgoutput"),
        "{text}"
    );
    let made = scene.sql.rows("SELECT 1 FROM pg_publication UNION ALL SELECT 1 FROM pg_namespace WHERE nspname = 'walpost'");
    assert!(
        made.is_empty() && scene.slot().is_none(),
        "something was created"
    );
}

#[test]
fn without_the_table_init_says_so_and_makes_nothing() {
    let scene = Scene::new();
    scene
        .walpost()
        .command(&["init"])
        .expect(2, &["public.outbox", "--create-table"]);
    assert!(scene.slot().is_none() && scene.sql.rows("SELECT 1 FROM pg_publication").is_empty());
}

#[test]
fn init_behind_an_old_transaction_ends_in_time_names_it_and_leaves_no_slot_on_every_version() {
    // On a cluster of its own: the old transaction holds up every slot creation of the server.
    let cluster = Cluster::start("");
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let walpost = scene.walpost();
    let old = Sql::new(scene.server.superuser(&scene.tag));
    old.run("BEGIN; SELECT pg_current_xact_id()");
    let pid = old.value("SELECT pg_backend_pid()").expect("a pid");
    walpost
        .command(&["init", "--create-table", "--timeout", "2s"])
        .expect(6, &[&pid]);
    until("no slot is left", 5, || {
        scene.slot().is_none().then_some(())
    });
    walpost.command(&["run"]).expect(4, &["init"]);

    // A second `init` waits for the first one, and no longer than it was told.
    let mut first = walpost.spawn(&["init", "--timeout", "50s"]);
    until("the first waits", 60, || scene.slot());
    walpost.command(&["init", "--timeout", "2s"]).expect(6, &[]);
    first.assert_alive();
    old.run("ROLLBACK");
    first.expect_end(0, &[], 60);
    walpost.init();
    scene.create_topic("order", 1, &[]);
    let _run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.judge_once(1);
}

#[test]
fn init_adopts_a_slot_that_is_there_as_it_stands() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    scene.create_topic("order", 1, &[]);
    let role = scene.server.publisher_name().to_owned();
    let name = &scene.tag;
    scene.sql.run(&format!(
        "SET ROLE {role}; CREATE PUBLICATION {name} FOR TABLE public.outbox WITH (publish = 'insert', publish_via_partition_root = true); RESET ROLE"
    ));
    scene.sql.run(&format!(
        "SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"
    ));
    scene.insert("a", 2);
    let before = scene.confirmed();
    let walpost = scene.walpost();
    walpost.command(&["init"]).expect(0, &[]);
    assert_eq!(scene.confirmed(), before);
    assert_eq!(
        scene.sql.value("SELECT consistent_point FROM walpost.slot"),
        Some(before.to_string())
    );
    let _run = scene.started(&walpost);
    scene.judge_once(2);
}

#[test]
fn init_refuses_a_slot_of_another_plugin_or_database_or_in_use() {
    let scene = Scene::new();
    let walpost = scene.walpost();
    let name = &scene.tag;
    scene.sql.run(&format!(
        "SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')"
    ));
    walpost
        .command(&["init", "--create-table"])
        .expect(4, &["test_decoding", name]);
    assert_eq!(
        scene.slot().map(|slot| slot.plugin).as_deref(),
        Some("test_decoding")
    );
    scene
        .sql
        .run(&format!("SELECT pg_drop_replication_slot('{name}')"));

    let other = Scene::new();
    other.sql.run(&format!(
        "SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"
    ));
    walpost
        .command(&["init", "--create-table"])
        .expect(4, &[&other.tag, name]);
    other
        .sql
        .run(&format!("SELECT pg_drop_replication_slot('{name}')"));

    walpost.init();
    let mut run = scene.started(&walpost);
    // Or it would notice that its row is gone, and let go.
    run.signal(Signal::STOP);
    scene.sql.run("DELETE FROM walpost.slot");
    walpost.command(&["init"]).expect(4, &[name]);
    assert!(scene.slot().is_some());
}

#[test]
fn a_half_made_slot_is_dropped_and_made_again() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    scene.insert("a", 1);
    scene.sql.run("UPDATE walpost.slot SET state = 'creating'");
    walpost.run_to_end().expect(4, &["creating", "init"]);
    let before = scene.confirmed();
    walpost.init();
    assert!(scene.confirmed() > before);
    assert_eq!(
        scene.sql.value("SELECT state FROM walpost.slot").as_deref(),
        Some("ready")
    );
    // Also when the slot itself was never made.
    scene.sql.run(&format!(
        "UPDATE walpost.slot SET state = 'creating'; SELECT pg_drop_replication_slot('{}')",
        scene.tag
    ));
    walpost.init();
    let ids = scene.insert("b", 1);
    let _run = scene.started(&walpost);
    scene.wait_confirmed(60);
    assert_eq!(
        scene
            .records()
            .iter()
            .map(|r| r.event_id())
            .collect::<Vec<_>>(),
        ids,
        "what was written after init"
    );
}

#[test]
fn a_ready_slot_that_is_gone_or_foreign_is_never_made_again() {
    let scene = Scene::new();
    let walpost = scene.walpost();
    walpost.init();
    let name = &scene.tag;
    scene
        .sql
        .run(&format!("SELECT pg_drop_replication_slot('{name}')"));
    walpost.command(&["init"]).expect(4, &[name]);
    assert!(scene.slot().is_none(), "init made a slot over a gap");
    scene.sql.run(&format!(
        "SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')"
    ));
    walpost
        .command(&["init"])
        .expect(4, &[name, "test_decoding"]);
    scene.sql.run(&format!("SELECT pg_drop_replication_slot('{name}'); SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"));
    scene
        .sql
        .run("UPDATE walpost.slot SET system_identifier = '1'");
    walpost
        .command(&["init"])
        .expect(4, &["system identifier|system_identifier"]);
}

//! The main path: which rows arrive, and in which order.

use crate::harness::{
    Scene,
    kafka::Kafka,
    load::{Load, Plan},
    postgres::Cluster,
    records::position,
    sql::Sql,
    until,
};

#[test]
fn rows_of_rolled_back_transactions_and_savepoints_never_arrive() {
    let scene = Scene::new();
    // So little memory that the server spills what it decodes to disk.
    scene.publisher_setting("logical_decoding_work_mem", "'64kB'");
    let walpost = scene.ready(3);
    let _run = scene.started(&walpost);
    let rows = |count: u64, kind: &str| {
        format!(
            "INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 'order', 'k', '{kind}', jsonb_build_object('seq', i) FROM generate_series(1, {count}) i;"
        )
    };
    let (keep, drop) = (rows(100, "keep"), rows(500, "drop"));
    scene.sql.run(&format!(
        "BEGIN; {keep} SAVEPOINT a; {drop} ROLLBACK TO a; {keep} COMMIT"
    ));
    scene
        .sql
        .run(&format!("BEGIN; {} ROLLBACK", rows(20_000, "drop")));
    scene.sql.run(&format!(
        "DO $$ BEGIN {drop} RAISE 'no'; EXCEPTION WHEN raise_exception THEN {keep} END $$"
    ));
    assert!(
        scene
            .sql
            .try_rows(&format!("BEGIN; {drop} SELECT 1 / 0; COMMIT"))
            .is_err()
    );
    scene.sql.run(&format!("ROLLBACK; {keep}"));

    scene.wait_confirmed(60);
    let records = scene.records();
    let dropped = records
        .iter()
        .filter(|r| r.header("event_type") != Some("keep"))
        .count();
    assert_eq!((records.len(), dropped), (400, 0));
}

#[test]
fn updates_and_deletes_never_arrive() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let _run = scene.started(&walpost);
    let ids = scene.insert("a", 2);
    scene.sql.run("UPDATE public.outbox SET event_type = 'U'; DELETE FROM public.outbox; TRUNCATE public.outbox");
    scene.wait_confirmed(60);
    let records = scene.records();
    assert_eq!(
        records.iter().map(|r| r.event_id()).collect::<Vec<_>>(),
        ids
    );
    assert!(records.iter().all(|r| r.header("event_type") == Some("T")));
}

#[test]
fn three_hundred_writers_first_arrive_in_commit_order_of_each_key() {
    let cluster = Cluster::start("max_connections = 350\nshared_buffers = '64MB'");
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let walpost = scene.ready(6);
    let _run = scene.started(&walpost);
    let plan = Plan {
        writers: 300,
        keys: 50,
        transactions: Some(8),
        pause: 0,
        ..Plan::default()
    };
    Load::start(&scene, &plan).finish();
    scene.judge_once(3_000);
}

#[test]
fn positions_are_the_servers_own_and_rows_keep_their_statement_order_on_every_version() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    scene.observe();
    let _run = scene.started(&walpost);
    scene.sql.run(&scene.rows("k", 50, 10));
    // Foreign inserts and every transactional message count, whatever their prefix; rolled back rows don't.
    scene.sql.run("CREATE TABLE other (i int)");
    let (first, second, third) = (scene.row(&[]), scene.rows("k", 1, 0), scene.row(&[]));
    let dropped = "INSERT INTO public.outbox (aggregate_type, event_type) VALUES ('order', 'drop')";
    scene.sql.run(&format!(
        "BEGIN; SELECT pg_logical_emit_message(true, 'theirs', 'x'), pg_logical_emit_message(false, 'theirs', 'y');
         {first}; SAVEPOINT s; {dropped}; ROLLBACK TO s; {second}; SELECT pg_logical_emit_message(true, 'walpost.command', '{{}}');
         INSERT INTO other VALUES (1); {third}; COMMIT"
    ));
    scene.sql.run(&scene.rows("k", 100, 0));

    let records = scene.wait_records(153);
    let seqs: Vec<u64> = records.iter().map(|r| seq(r.value.as_deref())).collect();
    assert_eq!(seqs, (1..=153).collect::<Vec<_>>());
    let truth = scene.positions();
    for record in &records {
        assert_eq!(
            record.header("wal_position").and_then(position),
            truth.get(record.event_id()).copied(),
            "{record:?}"
        );
    }
    let ordinals: Vec<u32> = records[50..53]
        .iter()
        .map(|r| truth[r.event_id()].ordinal)
        .collect();
    assert_eq!(
        ordinals,
        [2, 3, 5],
        "the table outside the publication sends nothing and does not count"
    );
}

fn seq(value: Option<&[u8]>) -> u64 {
    let value: serde_json::Value = serde_json::from_slice(value.expect("a value")).expect("JSON");
    value["seq"].as_u64().expect("a number")
}

#[test]
fn prepared_transactions_arrive_at_their_commit_and_hold_nothing_back() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let _run = scene.started(&walpost);
    for name in ["kept", "dropped"] {
        let row = scene.row(&[("event_type", &format!("'{name}'"))]);
        scene.sql.run(&format!(
            "BEGIN; {row}; PREPARE TRANSACTION '{}-{name}'",
            scene.tag
        ));
    }
    scene.insert_row(&[("event_type", "'between'")]);
    scene.wait_confirmed(60);
    scene
        .sql
        .run(&format!("COMMIT PREPARED '{}-kept'", scene.tag));
    scene
        .sql
        .run(&format!("ROLLBACK PREPARED '{}-dropped'", scene.tag));
    scene.insert_row(&[("event_type", "'after'")]);
    scene.wait_confirmed(60);
    let records = scene.records();
    let kinds: Vec<_> = records
        .iter()
        .filter_map(|r| r.header("event_type"))
        .collect();
    assert_eq!(kinds, ["between", "kept", "after"]);
}

#[test]
fn an_idle_outbox_on_a_busy_server_holds_no_wal() {
    // On a cluster of its own: what is retained is the whole server's.
    let cluster = Cluster::start("");
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.wait_confirmed(60);

    scene.noise(&scene.sql, 200);
    let other = format!("{}_other", scene.tag);
    scene
        .server
        .admin()
        .run(&format!("CREATE DATABASE {other}"));
    scene.noise(&Sql::new(scene.server.superuser(&other)), 200);
    until("the slot is within a megabyte of the end", 60, || {
        (scene.slot()?.lag < 1 << 20).then_some(())
    });
    until("the WAL is released", 60, || {
        scene.sql.run("CHECKPOINT");
        (scene.slot()?.retained < 32 << 20).then_some(())
    });
    run.assert_alive();
    assert_eq!(scene.records().len(), 1);
}

#[test]
fn everything_works_on_qualified_names_whatever_the_search_path() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    let views = [
        "pg_replication_slots",
        "pg_publication",
        "pg_publication_tables",
        "pg_class",
        "pg_namespace",
    ];
    scene.publisher_setting("search_path", "decoy, \"$user\", public, pg_catalog");
    let mut decoys = "CREATE SCHEMA decoy; GRANT ALL ON SCHEMA decoy TO PUBLIC; CREATE TABLE decoy.slot (slot text);
         CREATE FUNCTION decoy.pg_current_wal_lsn() RETURNS pg_lsn LANGUAGE sql AS $$ SELECT '0/1'::pg_lsn $$;"
        .to_owned();
    for view in views {
        decoys += &format!(
            "CREATE VIEW decoy.{view} AS SELECT * FROM pg_catalog.{view} WHERE false; GRANT SELECT ON decoy.{view} TO PUBLIC;"
        );
    }
    scene.sql.run(&decoys);
    let walpost = scene.walpost();
    walpost.init();
    walpost.init();
    assert_eq!(
        scene
            .sql
            .column("SELECT relnamespace::regnamespace FROM pg_class WHERE relname = 'outbox'"),
        ["public"]
    );
    scene.sql.run("CREATE TABLE decoy.outbox (LIKE public.outbox); CREATE TABLE walpost.outbox (LIKE public.outbox)");
    let mut run = scene.started(&walpost);
    scene.insert("a", 3);
    scene.sql.run("INSERT INTO decoy.outbox SELECT * FROM public.outbox; INSERT INTO walpost.outbox SELECT * FROM public.outbox");
    scene.judge_once(3);
    run.stop(0);
    assert_eq!(scene.sql.number("SELECT count(*) FROM decoy.slot"), 0);
}

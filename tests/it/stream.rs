//! What else the stream carries: only inserts that were committed arrive, and the slot passes the rest.

use crate::harness::{Scene, sql::Sql, until};

/// A publication of everything, made before `init`.
fn wide(scene: &Scene) {
    scene.create_table("jsonb");
    let all = "insert, update, delete, truncate";
    scene.sql.run(&format!(
        "CREATE TABLE other (id int PRIMARY KEY, text text);
         CREATE PUBLICATION {} FOR TABLE public.outbox, other WITH (publish = '{all}')",
        scene.tag
    ));
}

#[test]
fn of_a_publication_of_everything_only_the_outbox_inserts_arrive_on_every_version() {
    let scene = Scene::new();
    wide(&scene);
    scene.publisher_setting("logical_decoding_work_mem", "'64kB'");
    scene.create_topic("order", 1, &[]);
    let walpost = scene.walpost();
    walpost
        .command(&["init"])
        .expect(0, &["more than inserts|update"]);
    let mut run = scene.started(&walpost);
    let mut ids = vec![scene.insert("a", 1).remove(0)];

    // Inserted and deleted at once, changed without its large payload, emptied.
    let large = scene.row(&[("payload", "jsonb_build_object('seq', 2, 'pad', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) i))"), ("aggregate_id", "'a'")]);
    let mut changed = scene.sql.column(&format!(
        "BEGIN; {large}; UPDATE public.outbox SET event_type = 'U'; COMMIT; UPDATE public.outbox SET schema_version = 7;
         BEGIN; {}; DELETE FROM public.outbox; COMMIT; TRUNCATE public.outbox, other",
        scene.row(&[("aggregate_id", "'a'")])
    ));
    ids.append(&mut changed);
    // The same row again, by both ways of an upsert.
    let upsert = format!(
        "{} ON CONFLICT (event_id) DO UPDATE SET event_type = 'U'",
        scene
            .row(&[
                ("event_id", &format!("'{}'", ids[0])),
                ("aggregate_id", "'a'")
            ])
            .replace(" RETURNING event_id::text", "")
    );
    scene.sql.run(&format!("{upsert}; {upsert}"));
    ids.push(ids[0].clone());
    // Other tables, messages of others in a transaction and outside, transactions that write nothing of ours.
    scene.sql.run(
        "INSERT INTO other VALUES (1, 'x'); UPDATE other SET text = 'y'; DELETE FROM other;
         SELECT pg_logical_emit_message(false, 'x', 'y'), pg_logical_emit_message(true, 'x', 'z'), pg_logical_emit_message(true, 'walpost', '{}');
         CREATE TABLE unpublished (i int); INSERT INTO unpublished VALUES (1); SELECT txid_current()",
    );
    // More than the server decodes in memory: savepoints, an exception block, a whole rollback.
    let (kept, lost, last) = (
        scene.rows("a", 500, 200),
        scene.rows("lost", 500, 200),
        scene.rows("a", 5, 0),
    );
    let mut big = scene.sql.column(&format!(
        "BEGIN; {kept}; SAVEPOINT a; {}; ROLLBACK TO a; {last}; COMMIT",
        lost.replace(" RETURNING event_id::text", "")
    ));
    ids.append(&mut big);
    scene.sql.run(&format!(
        "DO $$ BEGIN {0}; RAISE EXCEPTION 'no'; EXCEPTION WHEN raise_exception THEN NULL; END $$; BEGIN; {0}; ROLLBACK",
        scene.rows("lost", 3_000, 100).replace(" RETURNING event_id::text", "")
    ));
    ids.append(&mut scene.insert("a", 1));

    scene.wait_confirmed(60);
    let records = scene.records();
    let arrived: Vec<_> = records.iter().map(|r| r.event_id()).collect();
    assert_eq!(arrived, ids);
    assert!(records.iter().all(|r| r.header("event_type") == Some("T")));
    run.assert_alive();
}

#[test]
fn a_message_outside_of_transactions_lets_the_slot_pass_no_waiting_row() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    scene.observe();
    let _run = scene.started(&walpost);
    let late = scene.insert_row(&[("aggregate_type", "'late'"), ("aggregate_id", "'l'")]);
    let limit = scene.positions()[&late].commit;
    // An open transaction's row and a prepared one, with messages and other commits around them.
    let open = Sql::new(scene.server.superuser(&scene.tag));
    open.run(&format!(
        "BEGIN; {}",
        scene.row(&[("aggregate_id", "'open'")])
    ));
    for _ in 0..20 {
        scene
            .sql
            .run("SELECT pg_logical_emit_message(false, 'x', 'y')");
        scene
            .sql
            .run("SELECT pg_logical_emit_message(true, 'x', 'y')");
        scene.insert("a", 1);
        assert!(
            scene.confirmed() <= limit,
            "the slot passed the waiting row"
        );
    }
    scene.wait_records(20);
    assert!(
        scene.confirmed() <= limit,
        "the slot passed the waiting row"
    );
    scene.create_topic("late", 1, &[]);
    // The transaction that is open does not hold the confirmed position.
    scene.wait_confirmed(60);
    open.run("COMMIT");
    scene.judge_once(22);
}

#[test]
fn commit_order_is_what_counts_and_not_the_order_of_ids_on_every_version() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let _run = scene.started(&walpost);
    let first = Sql::new(scene.server.superuser(&scene.tag));
    let early = first
        .column(&format!("BEGIN; {}", scene.row(&[("aggregate_id", "'x'")])))
        .remove(0);
    let late = scene.insert_row(&[("aggregate_id", "'y'")]);
    first.run("COMMIT");
    let one = scene.row(&[("aggregate_id", "'p'")]);
    let name = scene.tag.as_str();
    let prepared = scene
        .sql
        .column(&format!("BEGIN; {one}; PREPARE TRANSACTION '{name}'"))
        .remove(0);
    let between = scene.insert_row(&[("aggregate_id", "'q'")]);
    until("the one between is in Kafka", 60, || {
        (scene.records().len() == 3).then_some(())
    });
    scene.wait_confirmed(60);
    scene.sql.run(&format!("COMMIT PREPARED '{name}'"));
    let records = scene.wait_records(4);
    let arrived: Vec<_> = records.iter().map(|r| r.event_id()).collect();
    assert_eq!(arrived, [&late, &early, &between, &prepared]);
    scene.wait_confirmed(60);
}

//! Any outbox table becomes records as its `[[outbox]]` says: several tables, presets, partitions.

use crate::harness::{Scene, Walpost, sql::quote, uuid};

const LEGACY: &str = "CREATE TABLE public.legacy (id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text, type text NOT NULL, payload jsonb)";

/// A table of the publisher's role.
fn create(scene: &Scene, ddl: &str) {
    let role = scene.server.publisher_name();
    scene
        .sql
        .run(&format!("SET ROLE {role}; {ddl}; RESET ROLE"));
}

/// The scene's own table and `public.legacy`, which has preset debezium.
fn two_tables(scene: &Scene, more: &str) -> Walpost {
    scene.create_table("jsonb");
    create(scene, LEGACY);
    for kind in ["order", "old"] {
        scene.create_topic(kind, 1, &[]);
    }
    let tag = &scene.tag;
    let mut walpost = scene.walpost();
    walpost.outbox(format!(
        "[[outbox]]\ntable = \"public.outbox\"\ntopic = \"{tag}.{{aggregate_type}}\"\n\
         [[outbox]]\ntable = \"public.legacy\"\npreset = \"debezium\"\ntopic = \"{tag}.{{aggregatetype}}\"\n{more}"
    ));
    walpost
}

fn legacy(id: &str, key: &str, payload: Option<&str>) -> String {
    format!(
        "INSERT INTO public.legacy VALUES ('{id}', 'old', {}, 'T', {})",
        quote(Some(key)),
        quote(payload)
    )
}

#[test]
fn two_tables_on_one_slot_are_each_mapped_their_own_way() {
    let scene = Scene::new();
    let walpost = two_tables(&scene, "");
    walpost
        .command(&["init"])
        .expect(0, &["public.outbox, public.legacy"]);
    let mut run = scene.started(&walpost);
    let id = uuid();
    let own = scene.row(&[]);
    scene.sql.run(&format!(
        "BEGIN; {own}; {}; COMMIT",
        legacy(&id, "z", Some("1"))
    ));
    let first = scene.wait_records(1);
    assert_eq!(first[0].header("event_type"), Some("T"));
    let second = scene.kafka.wait(&scene.topic("old"), 1, 60);
    assert_eq!(second[0].texts(), [("id", Some(id.as_str()))]);
    assert_eq!(second[0].key.as_deref(), Some(&b"z"[..]));
    assert_eq!(second[0].value.as_deref(), Some(&b"1"[..]));
    scene.wait_confirmed(60);
    run.stop(0);
    // The publication's hold on each of them is known.
    walpost
        .command(&["init"])
        .expect(0, &["nothing was changed"]);
    let publication = &scene.tag;
    scene.sql.run(&format!(
        "ALTER PUBLICATION {publication} DROP TABLE public.legacy; ALTER PUBLICATION {publication} ADD TABLE public.legacy"
    ));
    walpost
        .run_to_end()
        .expect(4, &["not as it was", "init --accept-publication"]);
    walpost
        .command(&["init", "--accept-publication"])
        .expect(0, &[]);
    let _run = scene.started(&walpost);
    scene.sql.run(&legacy(&uuid(), "z", None));
    let second = scene.kafka.wait(&scene.topic("old"), 2, 60);
    assert_eq!(second[1].value, None, "a NULL payload is a tombstone");
}

#[test]
fn a_table_that_is_missing_or_not_published_is_named() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    let mut walpost = scene.walpost();
    let tables = "[[outbox]]\ntable = \"public.outbox\"\n[[outbox]]\ntable = \"public.second\"\ntopic = \"t\"\n";
    walpost.outbox(tables);
    walpost
        .command(&["init"])
        .expect(2, &["public.second does not exist"]);
    // Made as its preset has it.
    walpost
        .command(&["init", "--create-table"])
        .expect(0, &["made table public.second"]);
    create(&scene, LEGACY);
    walpost.outbox(format!(
        "{tables}[[outbox]]\ntable = \"public.legacy\"\npreset = \"debezium\"\n"
    ));
    walpost.run_to_end().expect(
        4,
        &[
            "does not cover table public.legacy",
            "ADD TABLE public.legacy",
        ],
    );
}

#[test]
fn publishers_of_slots_that_share_one_of_their_tables_wait_for_each_other() {
    let scene = Scene::new();
    let walpost = two_tables(&scene, "");
    walpost.init();
    let mut first = scene.started(&walpost);
    let mut other = scene.walpost();
    other
        .outbox("[[outbox]]\ntable = \"public.legacy\"\npreset = \"debezium\"\n")
        .set("postgres.slot", format!("{}_b", scene.tag))
        .set("postgres.publication", format!("{}_b", scene.tag));
    other.init();
    let mut second = other.start();
    second.wait_says("public.legacy is published by another walpost", 60);
    first.stop(0);
    second.wait_says("replication started", 60);
    second.stop(0);
}

#[test]
fn rows_that_are_there_are_published_of_every_table() {
    let scene = Scene::new();
    let walpost = two_tables(&scene, "order_by = \"id\"\n");
    scene.insert("k", 3);
    let ids = ["a", "b"].map(|_| uuid());
    for id in &ids {
        scene.sql.run(&legacy(id, "z", Some("{}")));
    }
    walpost
        .command(&["init", "--include-existing"])
        .expect(0, &["published 5 rows"]);
    for record in scene.wait_records(3) {
        assert_eq!(record.header("walpost_replay"), Some("backfill"));
    }
    let records = scene.kafka.wait(&scene.topic("old"), 2, 60);
    let mut found: Vec<_> = records.iter().filter_map(|r| r.header("id")).collect();
    let mut expected = ids.each_ref().map(String::as_str);
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    for record in &records {
        assert_eq!(record.texts()[1..], [("walpost_replay", Some("backfill"))]);
    }
    // What the topics have is known by each table's own header.
    scene.insert("k", 1);
    scene.sql.run(&legacy(&uuid(), "z", Some("{}")));
    scene.sql.run(&format!(
        "DELETE FROM walpost.mark; SELECT pg_drop_replication_slot('{}')",
        scene.tag
    ));
    walpost
        .command(&["recover"])
        .expect(0, &["published 2 rows", "5 of the 7 looked at"]);
}

#[test]
fn a_table_without_an_order_is_not_read_and_the_key_is_named() {
    let scene = Scene::new();
    let walpost = two_tables(&scene, "");
    walpost
        .command(&["init", "--include-existing"])
        .expect(2, &["outbox.order_by", "public.legacy"]);
    assert!(scene.slot().is_none());
}

#[test]
fn a_column_gives_the_partition_and_one_that_the_topic_lacks_is_the_events_fault() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    create(&scene, "ALTER TABLE public.outbox ADD part bigint");
    scene.create_topic("order", 4, &[]);
    let mut walpost = scene.walpost();
    let tag = &scene.tag;
    walpost.outbox(format!(
        "[[outbox]]\ntable = \"public.outbox\"\ntopic = \"{tag}.{{aggregate_type}}\"\non_poison = \"stop\"\n\
         additional = [{{ column = \"part\", placement = \"partition\" }}]\n"
    ));
    walpost.init();
    let mut run = scene.started(&walpost);
    let partitions = ["3", "0", "2", "3"];
    for part in partitions {
        scene.insert_row(&[("part", part)]);
    }
    scene.insert_row(&[("part", "NULL")]);
    let records = scene.wait_records(5);
    let mut found: Vec<_> = records
        .iter()
        .map(|r| (r.header("wal_position").map(str::to_owned), r.partition))
        .collect();
    found.sort();
    for (part, (_, partition)) in partitions.iter().zip(&found) {
        assert_eq!(*part, partition.to_string());
    }
    scene.wait_confirmed(60);
    let id = scene.insert_row(&[("part", "4")]);
    run.expect_end(
        5,
        &[&id, "no partition of the number", "UNKNOWN_PARTITION"],
        60,
    );
    assert_eq!(scene.records().len(), 5);
}

#[test]
fn a_partition_that_the_topic_lacks_is_found_in_a_topic_that_is_new_to_the_client() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    scene.create_topic("order", 2, &[]);
    let mut walpost = scene.walpost();
    let tag = &scene.tag;
    walpost.outbox(format!(
        "[[outbox]]\ntable = \"public.outbox\"\ntopic = \"{tag}.{{aggregate_type}}\"\non_poison = \"stop\"\n\
         additional = [{{ column = \"schema_version\", placement = \"partition\" }}]\n"
    ));
    walpost.init();
    let bad = scene.insert_row(&[("schema_version", "7")]);
    scene.insert_row(&[("schema_version", "1")]);
    walpost
        .run_to_end()
        .expect(5, &[&bad, "no partition of the number"]);
}

#[test]
fn what_the_table_lacks_is_named_before_anything_is_made() {
    let scene = Scene::new();
    create(
        &scene,
        "CREATE TABLE public.\"événements\" (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), \"catégorie\" text NOT NULL, \"clé\" text, payload text)",
    );
    scene.create_topic("shop", 1, &[]);
    let tag = &scene.tag;
    let good = format!("topic = \"{tag}.{{catégorie}}\"\nkey = \"clé\"\norder_by = \"id\"\n");
    let off = "aggregate_version = false\nevent_type = false\nschema_version = false\nheaders = false\noccurred_at = false\n";
    let columns = "event_id = \"id\"\naggregate_type = \"catégorie\"\naggregate_id = \"clé\"\n";
    let table = "[[outbox]]\ntable = 'public.événements'\n";
    for (keys, columns, word) in [
        (good.as_str(), "event_id = \"nope\"\n", "nope"),
        ("topic = \"x\"\nkey = \"nope\"\n", columns, "nope"),
        ("topic = \"{nope}\"\n", columns, "nope"),
        ("topic_column = \"nope\"\n", columns, "nope"),
        (
            "topic = \"x\"\ntimestamp_column = \"nope\"\n",
            columns,
            "nope",
        ),
        (
            "topic = \"x\"\ntracing_column = \"nope\"\n",
            columns,
            "nope",
        ),
        (
            "topic = \"x\"\nadditional = [{ column = \"nope\", placement = \"header\" }]\n",
            columns,
            "nope",
        ),
    ] {
        let mut walpost = scene.walpost();
        walpost.outbox(format!("{table}{keys}[outbox.columns]\n{columns}{off}"));
        walpost.command(&["init"]).expect(2, &[word]);
        assert!(scene.slot().is_none());
    }
    let mut walpost = scene.walpost();
    walpost.outbox(format!("{table}{good}[outbox.columns]\n{columns}{off}"));
    walpost.command(&["init"]).expect(0, &[]);
    let _run = scene.started(&walpost);
    scene.sql.run(
        "INSERT INTO public.\"événements\" (\"catégorie\", \"clé\", payload) VALUES ('shop', 'ü', 'été')",
    );
    let records = scene.kafka.wait(&scene.topic("shop"), 1, 60);
    assert_eq!(records[0].key.as_deref(), Some("ü".as_bytes()));
    assert_eq!(records[0].value.as_deref(), Some("été".as_bytes()));
    assert_eq!(records[0].header("aggregate_type"), Some("shop"));
}

#[test]
fn rows_that_waited_behind_a_letter_go_to_the_partition_that_their_column_gives() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    create(&scene, "ALTER TABLE public.outbox ADD part integer");
    scene.create_topic("order", 4, &[]);
    let mut walpost = scene.walpost();
    walpost.outbox(format!(
        "[[outbox]]\ntable = \"public.outbox\"\ntopic = \"{}\"\nadditional = [{{ column = \"part\", placement = \"partition\" }}]\n",
        scene.topic("{aggregate_type}")
    ));
    walpost.init();
    let _run = scene.started(&walpost);
    scene.insert_row(&[("aggregate_id", "'k'"), ("part", "3"), ("headers", "'[]'")]);
    for part in ["0", "1", "2"] {
        scene.insert_row(&[("aggregate_id", "'k'"), ("part", part)]);
    }
    scene.wait_confirmed(60);
    assert_eq!(scene.records().len(), 0);
    let kept = scene
        .sql
        .column("SELECT partition FROM walpost.dead_letter ORDER BY id");
    assert_eq!(kept, ["", "0", "1", "2"]);
    walpost
        .command(&[
            "dead-letters",
            "ignore",
            "--all",
            "--status",
            "pending",
            "--reason",
            "test",
        ])
        .expect(0, &[]);
    let mut records = scene.wait_records(3);
    records.sort_by_key(|r| r.partition);
    let partitions: Vec<_> = records.iter().map(|r| r.partition).collect();
    assert_eq!(partitions, [0, 1, 2]);
}

#[test]
fn an_event_of_a_partition_that_its_topic_lacks_becomes_a_letter_and_the_rest_flows() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    scene.create_topic("order", 2, &[]);
    let mut walpost = scene.walpost();
    walpost.outbox(format!(
        "[[outbox]]\ntable = \"public.outbox\"\ntopic = \"{}\"\nadditional = [{{ column = \"schema_version\", placement = \"partition\" }}]\n",
        scene.topic("{aggregate_type}")
    ));
    walpost.init();
    let _run = scene.started(&walpost);
    for (key, part) in [
        ("'a'", "0"),
        ("'b'", "7"),
        ("'a'", "1"),
        ("'b'", "1"),
        ("'c'", "-1"),
        ("'d'", "1"),
    ] {
        scene.insert_row(&[("aggregate_id", key), ("schema_version", part)]);
    }
    scene.wait_confirmed(60);
    assert_eq!(scene.records().len(), 3);
    let codes = scene.sql.column(
        "SELECT coalesce(error_code, status) FROM walpost.dead_letter ORDER BY position_lsn",
    );
    assert_eq!(codes, ["_UNKNOWN_PARTITION", "held", "partition_invalid"]);
}

#[test]
fn a_column_that_tables_may_lack_is_published_of_a_table_that_has_it() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    create(&scene, "ALTER TABLE public.outbox ADD tenant text");
    scene.create_topic("order", 1, &[]);
    let mut walpost = scene.walpost();
    let optional = |column: &str| {
        format!("{{ column = \"{column}\", placement = \"header\", missing = \"ignore\" }}")
    };
    walpost.outbox(format!(
        "[[outbox]]\ntable = \"public.outbox\"\norder_by = \"seq\"\ntopic = \"{}\"\nadditional = [{}, {}]\n",
        scene.topic("{aggregate_type}"),
        optional("tenant"),
        optional("region")
    ));
    scene.insert_row(&[("tenant", "'before'")]);
    walpost
        .command(&["init", "--include-existing"])
        .expect(0, &[]);
    walpost.command(&["check"]).expect(0, &[]);
    let _run = scene.started(&walpost);
    scene.insert_row(&[("tenant", "'after'")]);
    let records = scene.wait_records(2);
    let tenants: Vec<_> = records.iter().map(|r| r.header("tenant")).collect();
    assert_eq!(tenants, [Some("before"), Some("after")]);
    assert_eq!(records[0].header("region"), None);
}

#[test]
fn each_table_has_its_own_policy_for_poison() {
    let scene = Scene::new();
    let walpost = two_tables(
        &scene,
        "on_poison = \"skip\"\nadditional = [{ column = \"type\", placement = \"partition\" }]\n",
    );
    walpost.init();
    let _run = scene.started(&walpost);
    scene.insert_row(&[("headers", "'[]'")]);
    scene.insert("k", 1);
    for kind in ["no number", "0"] {
        scene.sql.run(&format!(
            "INSERT INTO public.legacy VALUES ('{}', 'old', 'z', '{kind}', '{{}}')",
            uuid()
        ));
    }
    scene.wait_confirmed(60);
    let records = scene.kafka.wait(&scene.topic("old"), 1, 60);
    assert_eq!(records.len(), 1, "its key is not held");
    assert!(scene.kafka.read(&scene.topic("order")).is_empty());
    let letters = scene
        .sql
        .column("SELECT outbox || ' ' || status FROM walpost.dead_letter ORDER BY position_lsn");
    let expected = [
        "public.outbox pending",
        "public.outbox held",
        "public.legacy pending",
    ];
    assert_eq!(letters, expected);
    let status = walpost.command(&["status", "--json"]).expect(0, &[]).json();
    assert_eq!(status["held_keys"], 1);
}

//! Rows of the table before the stream: `init --include-existing`, and `recover` after a lost slot.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{
    Scene, Walpost, always, kafka::Kafka, kafka_server::Breakable, postgres::Cluster,
    records::Record, sql::Sql, until,
};

/// A topic and rows in the table, and nothing else yet.
fn with_rows(keys: &[(&str, u64)]) -> (Scene, Walpost, Vec<String>) {
    let scene = Scene::new();
    scene.create_table("jsonb");
    scene.create_topic("order", 1, &[]);
    let insert = |(key, count): &(&str, u64)| scene.insert(key, *count);
    let ids = keys.iter().flat_map(insert).collect();
    let walpost = scene.walpost();
    (scene, walpost, ids)
}

fn ids(records: &[Record]) -> Vec<&str> {
    records.iter().map(Record::event_id).collect()
}

fn state(scene: &Scene) -> Option<String> {
    scene.sql.value("SELECT state FROM walpost.slot")
}

/// Five rows published and confirmed, three not, then the slot is gone, then two more.
fn with_gap() -> (Scene, Walpost, Vec<String>) {
    with_gap_in(Scene::new())
}

fn with_gap_in(scene: Scene) -> (Scene, Walpost, Vec<String>) {
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.insert("a", 5);
    scene.wait_confirmed(60);
    run.stop(0);
    let mut late = scene.insert("a", 3);
    scene.drop_slot();
    late.extend(scene.insert("a", 2));
    walpost.run_to_end().expect(4, &["walpost recover"]);
    (scene, walpost, late)
}

#[test]
fn existing_rows_come_first_in_order_and_marked() {
    let (scene, walpost, old) = with_rows(&[("a", 3), ("b", 3)]);
    walpost
        .command(&["init", "--include-existing"])
        .expect(0, &["published 6 rows"]);
    let records = scene.records();
    assert_eq!(ids(&records), old);
    let names: Vec<_> = records[0].texts().iter().map(|(name, _)| *name).collect();
    let wanted = [
        "event_id",
        "aggregate_type",
        "event_type",
        "schema_version",
        "walpost_replay",
    ];
    assert_eq!(names, wanted);
    assert_eq!(records[0].header("walpost_replay"), Some("backfill"));
    let _run = scene.started(&walpost);
    scene.insert("a", 2);
    scene.judge_once(8);
    assert!(scene.records()[6].header("wal_position").is_some());
}

#[test]
fn a_row_of_the_table_becomes_the_bytes_that_the_stream_would_send() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let rows = [
        [
            (
                "payload",
                r#"'{"b":  "tab\t line\n \\ \u00e9 漢", "a": 1.50}'"#,
            ),
            ("headers", r#"'{"h": "x\ty", "n": null}'"#),
            ("occurred_at", "'2024-02-29 12:34:56.789+00'"),
        ],
        [
            ("payload", "'null'"),
            ("headers", "NULL"),
            ("aggregate_id", r"E'k\\ey\t\n'"),
        ],
        [
            ("payload", "NULL"),
            ("aggregate_id", "NULL"),
            ("aggregate_version", "7"),
        ],
        [
            ("payload", "'\"\"'"),
            ("aggregate_id", "''"),
            ("event_type", r"'\N'"),
        ],
    ];
    for row in &rows {
        scene.insert_row(row);
    }
    let mut run = scene.started(&walpost);
    let streamed = scene.wait_records(rows.len());
    run.stop(0);

    // The same rows once more, of the table: nothing is known of what was published.
    scene.drop_slot();
    scene.sql.run("DROP SCHEMA walpost CASCADE");
    walpost
        .command(&["init", "--include-existing"])
        .expect(0, &[]);
    let all = scene.wait_records(2 * rows.len());
    for (streamed, reread) in streamed.iter().zip(&all[rows.len()..]) {
        let same = |r: &Record| (r.key.clone(), r.value.clone(), r.partition, r.timestamp);
        assert_eq!(same(streamed), same(reread));
        let mut headers = streamed.headers.clone();
        let position = headers.iter().position(|(name, _)| name == "wal_position");
        headers[position.expect("wal_position")] =
            ("walpost_replay".into(), Some(b"backfill".to_vec()));
        assert_eq!(headers, reread.headers);
    }
}

#[test]
fn what_cannot_be_read_is_refused_before_anything_is_made() {
    let (scene, mut walpost, _) = with_rows(&[("a", 1)]);
    walpost
        .set("outbox.order_by", "place")
        .command(&["init", "--include-existing"])
        .expect(2, &["place", "outbox.order_by"]);
    walpost.unset("outbox.order_by");
    let role = scene.server.publisher_name();
    scene.sql.run(&format!(
        "ALTER TABLE public.outbox OWNER TO CURRENT_USER; REVOKE ALL ON public.outbox FROM {role}"
    ));
    walpost
        .command(&["init", "--include-existing"])
        .expect(1, &["GRANT SELECT ON public.outbox"]);
    assert!(scene.slot().is_none() && scene.sql.rows("SELECT 1 FROM pg_publication").is_empty());
}

#[test]
fn poison_among_existing_rows_ends_with_5_and_can_be_repeated() {
    let (scene, mut walpost, mut old) = with_rows(&[("a", 2)]);
    walpost.set("outbox.on_poison", "stop");
    let bad = scene.insert_row(&[("aggregate_type", "'no topic'")]);
    walpost
        .command(&["init", "--include-existing"])
        .expect(5, &[&bad, "init --include-existing"]);
    assert_eq!(state(&scene).as_deref(), Some("backfilling"));
    assert_eq!(ids(&scene.records()), old, "what is before it");
    walpost
        .run_to_end()
        .expect(4, &["backfilling", "init --include-existing"]);
    scene
        .sql
        .run("UPDATE public.outbox SET aggregate_type = 'order' WHERE aggregate_type = 'no topic'");
    let slot = scene.confirmed();
    walpost.command(&["init"]).expect(0, &["published 3 rows"]);
    assert_eq!(scene.confirmed(), slot, "the slot was made again");
    assert_eq!(scene.sql.number("SELECT life FROM walpost.slot"), 2);
    old.push(bad);
    assert_eq!(ids(&scene.records())[2..], old);
}

#[test]
fn the_letter_of_a_row_of_the_table_tells_no_position() {
    let (scene, mut walpost, _) = with_rows(&[("a", 2)]);
    let bad = scene.insert_row(&[("headers", "'[1]'")]);
    walpost
        .command(&["init", "--include-existing"])
        .expect(0, &["published 3 rows"]);
    // It can be mapped without its headers.
    walpost.outbox(format!(
        "[[outbox]]\ntable = \"public.outbox\"\ntopic = \"{}\"\n[outbox.columns]\nheaders = false\n",
        scene.topic("{aggregate_type}")
    ));
    let mut run = scene.started(&walpost);
    walpost
        .command(&["dead-letters", "replay", "--all"])
        .expect(0, &[]);
    let records = scene.wait_records(3);
    let released = records.iter().find(|record| record.event_id() == bad);
    let released = released.expect("the letter's record");
    assert_eq!(released.header("walpost_replay"), Some("dead-letter"));
    assert_eq!(released.header("wal_position"), None);
    run.stop(0);
}

#[test]
fn existing_rows_wait_for_their_topic_and_a_stop_leaves_them_for_the_next_time() {
    let (scene, walpost, _) = with_rows(&[("a", 2)]);
    scene.insert_row(&[("aggregate_type", "'late'"), ("aggregate_id", "'late'")]);
    let mut init = walpost.spawn(&["init", "--include-existing"]);
    init.wait_says("rows wait for their topic", 60);
    init.signal(Signal::TERM);
    init.expect_end(6, &["init --include-existing"], 60);
    assert_eq!(state(&scene).as_deref(), Some("backfilling"));

    let mut init = walpost.spawn(&["init", "--include-existing"]);
    init.wait_says("rows wait for their topic", 60);
    scene.create_topic("late", 1, &[]);
    init.expect_end(0, &[], 60);
    let _run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.judge(4);
}

#[test]
fn a_fine_slot_has_nothing_to_recover() {
    let scene = Scene::new();
    let walpost = scene.walpost();
    walpost.command(&["recover"]).expect(4, &["walpost init"]);
    walpost.init();
    let before = (
        scene.confirmed(),
        scene.sql.rows("SELECT * FROM walpost.slot"),
    );
    for flags in [
        &["recover"][..],
        &["recover", "--dry-run"],
        &["recover", "--accept-gap"],
    ] {
        walpost.command(flags).expect(0, &["nothing to recover"]);
    }
    assert_eq!(scene.confirmed(), before.0);
    assert_eq!(scene.sql.rows("SELECT * FROM walpost.slot"), before.1);
}

#[test]
fn recover_publishes_what_was_not_and_nothing_twice_on_every_version() {
    let (scene, walpost, late) = with_gap();
    walpost.command(&["init"]).expect(4, &["walpost recover"]);
    walpost
        .command(&["recover", "--dry-run"])
        .expect(0, &["publish 5 rows", "nothing was changed"]);
    assert!(scene.slot().is_none() && scene.records().len() == 5);
    walpost.command(&["recover"]).expect(
        0,
        &[
            "published 5 rows",
            "deleted from the table",
            "there seem to be none",
        ],
    );
    let records = scene.records();
    assert_eq!(ids(&records[5..]), late);
    assert!(
        records[5..]
            .iter()
            .all(|r| r.header("walpost_replay") == Some("recover"))
    );
    let _run = scene.started(&walpost);
    scene.insert("a", 2);
    scene.judge_once(12);
}

#[test]
fn rows_before_the_newest_mark_are_not_even_looked_at() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    scene.insert("old", 3);
    let walpost = scene.ready(1);
    scene.insert("a", 2);
    scene.drop_slot();
    // An older one, which only as text looks newer: F is behind 1000000.
    scene.sql.run(
        "INSERT INTO walpost.mark (lsn, xid, at) SELECT (split_part(max(lsn)::text, '/', 1) || '/F')::pg_lsn, '3', now() FROM walpost.mark",
    );
    // Those from before the slot were never to be published.
    walpost
        .command(&["recover"])
        .expect(0, &["published 2 rows", "0 of the 2 looked at"]);
    assert_eq!(scene.records().len(), 2);
}

#[test]
fn without_a_mark_every_row_is_looked_for_in_its_topic() {
    let (scene, walpost, late) = with_gap();
    scene.sql.run("DELETE FROM walpost.mark");
    walpost
        .command(&["recover"])
        .expect(0, &["no mark", "published 5 rows", "5 of the 10 looked at"]);
    assert_eq!(ids(&scene.records()[5..]), late);
}

#[test]
fn on_another_cluster_the_marks_mean_nothing() {
    let (scene, walpost, late) = with_gap();
    scene
        .sql
        .run("UPDATE walpost.slot SET system_identifier = '1'");
    walpost
        .command(&["recover"])
        .expect(0, &["another cluster", "published 5 rows"]);
    assert_eq!(ids(&scene.records()[5..]), late);
    // One of the new slot's beginning is there.
    assert_eq!(scene.sql.number("SELECT count(*) FROM walpost.mark"), 1);
    let _run = scene.started(&walpost);
    scene.insert("a", 2);
    scene.judge_once(12);
}

#[test]
fn a_slot_made_by_somebody_else_is_replaced_and_the_gap_closed() {
    let (scene, walpost, _) = with_gap();
    scene.sql.run(&format!(
        "SELECT pg_create_logical_replication_slot('{}', 'pgoutput')",
        scene.tag
    ));
    scene.insert("a", 1);
    walpost.run_to_end().expect(4, &["walpost recover"]);
    walpost
        .command(&["recover"])
        .expect(0, &["published 6 rows"]);
    let _run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.judge_once(12);
}

#[test]
fn a_recover_that_was_killed_goes_on_from_the_lost_position() {
    let (scene, walpost, _) = with_gap();
    scene.insert_row(&[("aggregate_type", "'late'"), ("aggregate_id", "'late'")]);
    let mut recover = walpost.spawn(&["recover"]);
    recover.wait_says("rows wait for their topic", 60);
    recover.kill();
    let slot = scene.confirmed();
    assert_eq!(state(&scene).as_deref(), Some("backfilling"));
    for command in ["run", "init"] {
        walpost.command(&[command]).expect(4, &["walpost recover"]);
    }
    // The slot goes on: what is deleted from the table now is in it.
    scene.create_topic("late", 1, &[]);
    scene.insert("a", 1);
    walpost.command(&["recover"]).expect(0, &["goes on"]);
    assert_eq!(scene.confirmed(), slot, "the slot was made again");
    let _run = scene.started(&walpost);
    scene.judge(12);
    // The same where the attempt ended before its slot was made.
    let (scene, walpost, late) = with_gap();
    scene.sql.run(
        "UPDATE walpost.slot SET state = 'backfilling', confirmed_lsn = coalesce(confirmed_lsn, consistent_point), consistent_point = NULL",
    );
    walpost
        .command(&["recover"])
        .expect(0, &["published 5 rows"]);
    assert_eq!(ids(&scene.records()[5..]), late);
}

#[test]
fn a_creation_that_outlived_its_recover_is_waited_for() {
    // Whatever is open when a slot is made, this whole server waits for.
    let cluster = Cluster::start("");
    let (scene, walpost, _) = with_gap_in(Scene::on(cluster.server.clone(), Kafka::shared()));
    let other = Sql::new(scene.server.superuser(&scene.tag));
    other.run("BEGIN; SELECT pg_current_xact_id()");
    let mut killed = walpost.spawn(&["recover"]);
    killed.wait_says("waiting for transactions", 60);
    killed.kill();
    walpost
        .command(&["recover", "--timeout", "1s"])
        .expect(6, &["still goes on", "walpost recover"]);
    let mut recover = walpost.spawn(&["recover"]);
    always("the server still makes the old one", 1, || recover.alive());
    other.run("COMMIT");
    recover.expect_end(0, &[], 60);
    let _run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.judge_once(11);
}

#[test]
fn an_accepted_gap_is_told_and_left_out() {
    let (scene, walpost, _) = with_gap();
    walpost
        .command(&["recover", "--accept-gap"])
        .expect(0, &["at most", "stays unpublished"]);
    assert_eq!(scene.records().len(), 5);
    let fresh = scene.insert("a", 1);
    let _run = scene.started(&walpost);
    scene.wait_confirmed(60);
    assert_eq!(ids(&scene.records()[5..]), fresh);
}

#[test]
fn rows_that_are_gone_are_counted_and_named_and_told_as_json_on_every_version() {
    let (scene, walpost, late) = with_gap();
    // The table's owner may read its sequence. Two rows are gone, and one never was.
    scene
        .sql
        .run("DELETE FROM public.outbox WHERE seq IN (7, 10)");
    scene
        .sql
        .run(&format!("BEGIN; {}; ROLLBACK", scene.row(&[])));
    let gone = serde_json::json!([{
        "table": "public.outbox", "column": "seq", "from": 1, "to": 11, "without_row": 3, "ranges": [[7, 7], [10, 11]],
    }]);
    let output = walpost.command(&["recover", "--dry-run", "--json"]);
    let told = output
        .expect(0, &["at most 3", "7, 10-11", "rolled back"])
        .json();
    let mark = scene.sql.value(
        "SELECT max(lsn) FROM walpost.mark WHERE lsn <= (SELECT confirmed_lsn FROM walpost.slot)",
    );
    assert_eq!(told["outcome"], "would_publish");
    assert_eq!(told["since"]["lsn"].as_str(), mark.as_deref());
    assert_eq!(
        (
            &told["rows"],
            &told["rows_in_topics"],
            &told["rows_missing"]
        ),
        (&8.into(), &5.into(), &3.into())
    );
    assert_eq!(
        (&told["numbers"], &told["consistent_point"]),
        (&gone, &serde_json::Value::Null)
    );
    assert!(scene.slot().is_none());

    let told = walpost
        .command(&["recover", "--json"])
        .expect(0, &[])
        .json();
    assert_eq!(
        (&told["outcome"], &told["rows_missing"]),
        (&"published".into(), &3.into())
    );
    assert_eq!(told["numbers"], gone);
    assert_eq!(told["consistent_point"], scene.confirmed().to_string());
    assert_eq!(ids(&scene.records()[5..]), [&late[0], &late[2], &late[3]]);
    let told = walpost
        .command(&["recover", "--json"])
        .expect(0, &[])
        .json();
    assert_eq!(told["outcome"], "nothing_to_recover");

    // A column that is no number counts nothing, and that is said.
    scene.drop_slot();
    let mut by_time = walpost.twin();
    by_time.set("outbox.order_by", "occurred_at");
    by_time
        .command(&["recover", "--dry-run"])
        .expect(0, &["cannot be counted", "occurred_at", "timestamp"]);
    let told = walpost
        .command(&["recover", "--accept-gap", "--json"])
        .expect(0, &[])
        .json();
    assert_eq!(told["outcome"], "gap_accepted");
}

#[test]
fn an_older_schema_is_refused_until_init_migrates_it() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    // The schema as the version before left it, with the slot's row.
    scene
        .sql
        .run("CREATE TABLE kept AS SELECT * FROM walpost.slot; DROP SCHEMA walpost CASCADE; CREATE SCHEMA walpost AUTHORIZATION walpost");
    let steps = walpost::pg::setup::schema_sql(0, true);
    for step in &steps[..steps.len() - 1] {
        scene.sql.run(&format!("SET ROLE walpost; {step}"));
    }
    let columns = "slot, state, system_identifier, database, plugin, consistent_point, publication, life, epoch, reserved_lsn";
    scene.sql.run(&format!(
        "RESET ROLE; INSERT INTO walpost.slot ({columns}) SELECT {columns} FROM kept"
    ));
    for command in ["run", "status", "recover"] {
        walpost.command(&[command]).expect(2, &["walpost init"]);
    }
    walpost.init();
    let version = i64::from(walpost::pg::schema::VERSION);
    assert_eq!(
        scene.sql.number("SELECT version FROM walpost.meta"),
        version
    );
    let _run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.judge_once(1);
    until("a mark is written", 60, || {
        (scene.sql.number("SELECT count(*) FROM walpost.mark") > 0).then_some(())
    });
}

#[test]
fn a_slot_that_lost_its_wal_is_replaced_and_the_gap_closed() {
    let cluster =
        Cluster::start("max_slot_wal_keep_size = 1MB\nmin_wal_size = 32MB\nmax_wal_size = 48MB");
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.insert("a", 3);
    scene.wait_confirmed(60);
    run.stop(0);
    scene.insert("a", 3);
    let lost = "SELECT 1 FROM pg_replication_slots WHERE wal_status = 'lost'";
    until("the slot is lost", 60, || {
        scene.noise(&scene.sql, 5);
        scene.sql.run("SELECT pg_switch_wal(); CHECKPOINT");
        scene.sql.rows(lost).pop()
    });
    for command in ["run", "status"] {
        let words = ["max_slot_wal_keep_size", "walpost recover"];
        walpost.command(&[command]).expect(4, &words);
    }
    walpost
        .command(&["recover"])
        .expect(0, &["published 3 rows"]);
    let _run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.judge_once(7);
}

#[test]
fn recover_killed_at_any_moment_misses_nothing() {
    let (scene, walpost, _) = with_gap();
    scene.sql.run(&scene.rows("a", 2000, 100));
    for attempt in 0..8 {
        let mut recover = walpost.spawn(&["recover"]);
        std::thread::sleep(Duration::from_millis(40 + 90 * attempt));
        recover.kill();
        scene.insert("a", 2);
    }
    if state(&scene).as_deref() != Some("ready") {
        walpost.run_to_end().expect(4, &["walpost recover"]);
    }
    walpost.command(&["recover"]).expect(0, &[]);
    let _run = scene.started(&walpost);
    scene.insert("a", 2);
    scene.judge(2000);
}

#[test]
fn recover_publishes_what_a_changed_publication_left_out() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.insert("a", 2);
    scene.wait_confirmed(60);
    run.stop(0);
    let name = &scene.tag;
    scene.sql.run(&format!(
        "ALTER PUBLICATION {name} DROP TABLE public.outbox"
    ));
    scene.insert("a", 1);
    scene
        .sql
        .run(&format!("ALTER PUBLICATION {name} ADD TABLE public.outbox"));
    scene.insert("a", 1);
    walpost
        .run_to_end()
        .expect(4, &["publication", "walpost recover"]);
    walpost
        .command(&["recover"])
        .expect(0, &["published 2 rows"]);
    let _run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.judge_once(5);
}

/// Rows 1 to 4 of key `K` were delivered and not confirmed. The next publisher repeated 1 and 2, then
/// the slot was lost. With `mark` there is a mark behind 2, and the slot had passed it.
fn old_events_are_never_the_last_word(mark: bool) {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    walpost
        .set("outbox.on_poison", "stop")
        .set("kafka.properties.compression.type", "none");
    let mut run = scene.started(&walpost);
    scene.insert("b", 1);
    scene.wait_confirmed(60);
    // Without a check no position moves.
    let lock = Sql::new(scene.server.superuser(&scene.tag));
    lock.run("BEGIN; LOCK TABLE walpost.slot");
    scene.insert("K", 2);
    if mark {
        scene.sql.run(
            "INSERT INTO walpost.mark (lsn, xid, at)
             SELECT pg_current_wal_insert_lsn(), pg_snapshot_xmin(pg_current_snapshot()), clock_timestamp()",
        );
        scene.insert("b", 1);
    }
    scene.sql.run(&scene.rows("K", 1, 30_000));
    scene.insert("K", 1);
    let rows = 5 + usize::from(mark);
    scene.wait_records(rows);
    run.kill();
    lock.run("COMMIT");
    until("the slot is free", 60, || {
        scene.slot()?.active_pid.is_none().then_some(())
    });
    // Meanwhile the topic takes less: the third one is where the publisher stops.
    let topic = scene.topic("order");
    scene
        .kafka
        .configure(&topic, &[("max.message.bytes", "20000")]);
    walpost.run_to_end().expect(5, &["too large"]);
    assert_eq!(seqs(&scene, "K"), [1, 2, 3, 4, 1, 2]);
    scene.drop_slot();
    scene
        .kafka
        .configure(&topic, &[("max.message.bytes", "1000000")]);

    walpost
        .command(&["recover", "--dry-run"])
        .expect(0, &["publish 2 rows"]);
    walpost
        .command(&["recover"])
        .expect(0, &["published 2 rows", "older events came behind"]);
    assert_eq!(seqs(&scene, "K"), [1, 2, 3, 4, 1, 2, 3, 4]);
    let _run = scene.started(&walpost);
    scene.insert("b", 1);
    scene.judge(rows + 1);
}

/// The `seq` of each record of the key, in the topic's order.
fn seqs(scene: &Scene, key: &str) -> Vec<u64> {
    let seq = |record: &Record| {
        record.arrived().value.and_then(|value| {
            let value: serde_json::Value = serde_json::from_slice(&value).ok()?;
            value["seq"].as_u64()
        })
    };
    let records = scene.records();
    let of_key = records
        .iter()
        .filter(|record| record.key.as_deref() == Some(key.as_bytes()));
    of_key.filter_map(seq).collect()
}

#[test]
fn a_slot_lost_in_the_middle_of_a_repetition_leaves_no_old_event_as_the_last_word() {
    old_events_are_never_the_last_word(false);
}

#[test]
fn a_slot_lost_in_the_middle_of_a_repetition_behind_a_mark_leaves_no_old_event_as_the_last_word() {
    old_events_are_never_the_last_word(true);
}

/// Rows 1 and 2 of key `K` were on their way to Kafka when 3 became a dead letter and 4 and 5 waited
/// behind it, of which an operator gave 5 up; then the slot was lost. The letters are older than all
/// that the next slot brings, and yet not older than what `recover` reads from the table.
#[test]
fn what_recover_reads_and_the_letters_of_the_lost_slot_arrive_in_order_and_once() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let mut walpost = scene.ready(1);
    walpost.set("dead_letters.retry_after", Vec::<String>::new());
    let mut run = scene.started(&walpost);
    scene.insert("b", 1);
    scene.wait_confirmed(60);
    way.proxy().swallow();
    scene.insert("K", 2);
    let bad = scene.insert_row(&[("aggregate_id", "'K'"), ("headers", "'[1]'")]);
    scene.insert("K", 2);
    let letters = || {
        scene.sql.rows(
            "SELECT id::text, event_id, status FROM walpost.dead_letter ORDER BY life, position_lsn, position_ordinal",
        )
    };
    let kept = until("three letters", 60, || {
        Some(letters()).filter(|kept| kept.len() == 3)
    });
    let ids: Vec<String> = kept.iter().map(|l| l[0].clone().expect("an id")).collect();
    let ignore = |letter: usize| {
        let verb = format!("SELECT walpost.ignore({}, 'not wanted')", ids[letter]);
        scene.sql.run(&verb);
    };
    ignore(2);
    let kept = letters();
    assert_eq!(kept[0][1].as_deref(), Some(bad.as_str()));
    run.kill();
    scene.drop_slot();
    way.proxy().forward();
    scene.insert("K", 1);
    // More than connections buffer.
    scene.sql.run(&scene.rows("b", 200, 60_000));
    walpost.run_to_end().expect(4, &["walpost recover"]);
    // Each attempt has places of its own.
    let mut recover = walpost.spawn(&["recover"]);
    until("a slot is made", 60, || {
        (state(&scene)? == "backfilling" && scene.slot().is_some()).then_some(())
    });
    recover.kill();
    let told = walpost.command(&["recover", "--json"]);
    let told = told.expect(0, &["3 are left to their dead letters"]).json();
    assert_eq!(told["rows_with_letter"], 3, "{told}");
    assert_eq!(seqs(&scene, "K"), [1, 2]);
    let now = letters();
    assert_eq!(now[..3], kept, "the letters and their states are the same");
    ignore(0);
    let _run = scene.started(&walpost);
    scene.insert("K", 1);
    until("all arrived", 60, || {
        (seqs(&scene, "K").last() == Some(&7)).then_some(())
    });
    assert_eq!(seqs(&scene, "K"), [1, 2, 4, 6, 7]);
}

/// Rows 4 and 5 committed behind the beginning of a slot whose `recover` had to be run twice: they
/// became letters of the table's rows, and once more when the stream brought them. Then that slot was
/// lost, too.
#[test]
fn a_letter_of_a_repetition_does_not_come_before_what_the_next_recover_reads() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    walpost
        .set("outbox.on_poison", "hold-key")
        .set("dead_letters.retry_after", Vec::<String>::new());
    let letters = |count| {
        let sql = "SELECT count(*) FROM walpost.dead_letter";
        until(format_args!("{count} letters"), 60, || {
            (scene.sql.number(sql) == count).then_some(())
        });
    };
    let mut run = scene.started(&walpost);
    scene.insert_row(&[("aggregate_id", "'K'"), ("headers", "'[1]'")]);
    scene.insert("K", 2);
    letters(3);
    scene.wait_confirmed(60);
    run.stop(0);
    scene.drop_slot();
    // More than connections buffer.
    scene.sql.run(&scene.rows("b", 200, 60_000));
    let mut recover = walpost.spawn(&["recover"]);
    until("a slot is made", 60, || {
        let at = scene.sql.value("SELECT consistent_point FROM walpost.slot");
        (state(&scene)? == "backfilling" && at.is_some()).then_some(())
    });
    recover.kill();
    scene.insert("K", 2);
    walpost.command(&["recover"]).expect(0, &[]);
    letters(5);
    let mut run = scene.started(&walpost);
    letters(7);
    scene.insert("K", 1);
    letters(8);
    scene.wait_confirmed(60);
    run.stop(0);
    scene.drop_slot();
    scene.sql.run("DELETE FROM walpost.mark");
    scene.insert("K", 1);
    walpost
        .command(&["recover"])
        .expect(0, &["removed dead letters"]);
    letters(7);
    let head = "SELECT walpost.ignore(min(id), 'no object') FROM walpost.dead_letter";
    scene.sql.run(head);
    let _run = scene.started(&walpost);
    scene.insert("K", 1);
    until("all arrived", 60, || {
        (seqs(&scene, "K").last() == Some(&8)).then_some(())
    });
    assert_eq!(seqs(&scene, "K"), [2, 3, 4, 5, 6, 7, 8]);
}

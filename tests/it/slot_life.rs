//! The slot from its beginning to its end: failover, draining, skipping, uninstall.

use crate::harness::{Scene, kafka_server::Breakable, pass, until};

fn major(scene: &Scene) -> i64 {
    let version = "SELECT current_setting('server_version_num')::int / 10000";
    scene.sql.number(version)
}

#[test]
fn drain_ends_when_all_that_was_committed_is_confirmed_on_every_version() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let walpost = scene.ready(1);
    // Nobody reads: waiting would be in vain.
    scene.insert("a", 1);
    walpost
        .command(&["drain"])
        .expect(1, &["nothing reads", "walpost run"]);
    let mut run = scene.started(&walpost);
    // Committed, and perhaps not written yet.
    scene.sql.run("SET synchronous_commit = off");
    scene.insert("a", 200);
    let before = scene.current_lsn();
    let output = walpost.command(&["drain", "--json"]).expect(0, &[]);
    assert_eq!(
        scene.records().len(),
        201,
        "drained before everything was there"
    );
    let drained = output.json();
    assert_eq!(drained["drained"], true);
    assert_eq!(drained["remaining_bytes"], 0);
    assert_eq!(drained["in_flight"]["rows"], 0);
    let target: walpost::lsn::Lsn = drained["target_lsn"].as_str().unwrap().parse().unwrap();
    assert!(target >= before && scene.confirmed() >= target);

    way.proxy().refuse();
    scene.insert("a", 5);
    let output = walpost
        .command(&["drain", "--timeout", "2s", "--json"])
        .expect(6, &["5 rows are in flight", "bytes of WAL"]);
    assert_eq!(output.json()["drained"], false);
    way.proxy().forward();
    walpost.command(&["drain"]).expect(0, &[&scene.tag]);
    scene.judge(206);
    run.stop(0);

    scene.drop_slot();
    walpost.command(&["drain"]).expect(4, &["missing"]);
}

#[test]
fn uninstall_drops_by_exact_name_what_is_ours_and_nothing_else() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let tag = &scene.tag;
    let mut other = walpost.twin();
    other.set("postgres.slot", format!("{tag}_b"));
    other.init();
    let mut run = scene.started(&walpost);
    let pid = scene.walsender().to_string();
    walpost
        .command(&["uninstall", "--yes"])
        .expect(4, &[&pid, tag]);
    run.stop(0);
    scene.insert("a", 4);
    // Shown first; nobody can answer.
    walpost
        .command(&["uninstall"])
        .expect(2, &["bytes of WAL", "holds 4 rows"]);
    walpost
        .command(&["uninstall", "--yes", "--drop-schema"])
        .expect(1, &[&format!("{tag}_b"), "--drop-schema"]);
    assert!(scene.slot().is_some(), "refused, and dropped nevertheless");
    walpost.command(&["uninstall", "--yes"]).expect(
        0,
        &[
            &format!("dropped slot {tag}"),
            &format!("dropped publication {tag}"),
        ],
    );
    assert!(scene.slot().is_none());
    assert!(scene.slot_named(&format!("{tag}_b")).is_some());
    assert_eq!(
        scene.sql.column("SELECT slot FROM walpost.slot"),
        [format!("{tag}_b")]
    );
    // Nothing is left, and that is said.
    walpost
        .command(&["uninstall"])
        .expect(0, &["no slot", "no publication"]);
    other
        .command(&["uninstall", "--yes", "--drop-schema"])
        .expect(0, &["dropped schema walpost"]);
    let schemas = "SELECT 1 FROM pg_namespace WHERE nspname = 'walpost'";
    assert!(scene.sql.rows(schemas).is_empty());
    assert_eq!(scene.sql.number("SELECT count(*) FROM public.outbox"), 4);

    // And again from the beginning.
    walpost.init();
    let _run = scene.started(&walpost);
    let ids = scene.insert("b", 2);
    scene.wait_confirmed(60);
    let arrived = scene.records();
    let arrived: Vec<_> = arrived.iter().map(|record| record.event_id()).collect();
    assert_eq!(arrived, ids);
}

#[test]
fn uninstall_leaves_a_slot_that_is_not_ours() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    let tag = &scene.tag;
    scene.sql.run(&format!(
        "SELECT pg_create_logical_replication_slot('{tag}', 'test_decoding')"
    ));
    scene
        .walpost()
        .command(&["uninstall", "--yes"])
        .expect(4, &["test_decoding"]);
    assert!(scene.slot().is_some());
}

#[test]
fn a_failover_slot_is_made_on_17_and_later_and_refused_before() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    let mut walpost = scene.walpost();
    if major(&scene) < 17 {
        walpost
            .command(&["init", "--create-table", "--failover"])
            .expect(2, &["failover_slot", "17"]);
        assert!(
            scene.slot().is_none() && scene.sql.rows("SELECT 1 FROM pg_publication").is_empty()
        );
        walpost.init();
        walpost.set("postgres.failover_slot", true);
        for command in ["init", "run"] {
            walpost.command(&[command]).expect(2, &["failover_slot"]);
        }
        return;
    }
    let is_failover = || {
        let text = "SELECT failover FROM pg_replication_slots WHERE slot_name";
        scene.sql.value(&format!("{text} = '{}'", scene.tag))
    };
    walpost.init();
    assert_eq!(is_failover().as_deref(), Some("f"));
    walpost.set("postgres.failover_slot", true);
    let mut run = scene.started(&walpost);
    run.wait_says("no failover slot", 10);
    // Not while it is read.
    walpost.command(&["init"]).expect(4, &["is read by pid"]);
    scene.insert("a", 2);
    scene.wait_confirmed(60);
    run.stop(0);
    let before = scene.confirmed();
    walpost.command(&["init"]).expect(0, &["failover slot"]);
    assert_eq!(is_failover().as_deref(), Some("t"));
    assert_eq!(scene.confirmed(), before);
    walpost
        .command(&["init"])
        .expect(0, &["nothing was changed"]);
    let mut run = scene.started(&walpost);
    scene.insert("a", 2);
    scene.judge_once(4);
    assert!(!run.says("no failover slot"));
    run.stop(0);
    // Made as one from the beginning.
    walpost.command(&["uninstall", "--yes"]).expect(0, &[]);
    walpost.unset("postgres.failover_slot");
    walpost.command(&["init", "--failover"]).expect(0, &[]);
    assert_eq!(is_failover().as_deref(), Some("t"));
}

#[test]
fn mapped_columns_that_are_dropped_or_generated_stop_with_their_name_on_every_version() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.insert("a", 2);
    scene.wait_confirmed(60);
    let before = scene.confirmed();
    scene
        .sql
        .run("ALTER TABLE public.outbox DROP COLUMN headers");
    run.expect_end(2, &["headers", "public.outbox"], 60);
    for command in ["run", "init"] {
        walpost.command(&[command]).expect(2, &["headers"]);
    }
    scene.sql.run("ALTER TABLE public.outbox ADD COLUMN headers jsonb GENERATED ALWAYS AS ('{}'::jsonb) STORED");
    for command in ["run", "init"] {
        walpost
            .command(&[command])
            .expect(4, &["headers", "generated"]);
    }
    assert!(scene.confirmed() >= before);
    assert_eq!(scene.records().len(), 2, "published without a column");
    let alter = format!("ALTER PUBLICATION {} SET", scene.tag);
    if major(&scene) >= 18 {
        scene
            .sql
            .run(&format!("{alter} (publish_generated_columns = stored)"));
        walpost
            .command(&["init", "--accept-publication"])
            .expect(0, &[]);
    } else {
        scene
            .sql
            .run("ALTER TABLE public.outbox ALTER COLUMN headers DROP EXPRESSION");
    }
    let _run = scene.started(&walpost);
    scene.insert("a", 1);
    until("the row arrives", 60, || {
        (scene.records().len() >= 3).then_some(())
    });
    pass(100);
}

#[test]
fn one_transaction_that_cannot_be_decoded_is_named_and_passed_on_every_version() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    scene.undecodable_type();
    let mut wanted = scene.insert("a", 3);
    let (first, second) = (scene.row(&[]), scene.row(&[("bad", "'7'")]));
    let of_it = scene
        .sql
        .column(&format!("BEGIN; {first}; {second}; COMMIT"));
    let behind = scene.current_lsn();
    let after = scene.insert("b", 3);

    let mut run = walpost.start();
    run.wait_says("walpost skip --transaction ", 60);
    assert_ne!(walpost.ready(), Some(200));
    let at = &*run.named_transaction();
    let position: walpost::lsn::Lsn = at.parse().expect("an LSN");
    assert!(position < behind, "{position} is not before {behind}");
    assert!(scene.confirmed() < position);
    pass(5_000);
    let lines = run.log().lines().count();
    assert!(lines < 10, "a line per attempt:\n{}", run.log());
    run.kill();

    let skip = |at: &str| walpost.command(&["skip", "--transaction", at, "--reason", "a test's"]);
    walpost
        .command(&["skip", "--transaction", at])
        .expect(2, &["--reason"]);
    let unmoved = scene.confirmed();
    skip("0/1").expect(1, &["has passed it"]);
    skip(&scene.current_lsn().to_string())
        .expect(1, &[&format!("commits at {at} comes before it")]);
    assert_eq!(scene.confirmed(), unmoved);
    let entries = "SELECT count(*) FROM walpost.audit_log";
    assert_eq!(scene.sql.number(entries), 0);

    let command = [
        "skip",
        "--transaction",
        at,
        "--reason",
        "a test's",
        "--json",
    ];
    let passed = walpost.command(&command).expect(0, &[]).json();
    let told = (
        &passed["transaction"],
        &passed["passed"],
        &passed["sqlstate"],
    );
    assert_eq!(told, (&at.into(), &true.into(), &"22P03".into()));
    let entry = scene.sql.rows(
        "SELECT who, verb, detail->>'transaction', detail->>'reason', detail->>'sqlstate' FROM walpost.audit_log",
    );
    let entry: Vec<_> = entry.into_iter().flatten().flatten().collect();
    let who = scene.server.publisher_name();
    assert_eq!(entry, [who, "skip", at, "a test's", "22P03"]);
    skip(at).expect(1, &["has passed it"]);

    // The next one is not passed, whatever is said of it.
    let mut run = scene.started(&walpost);
    scene.wait_confirmed(60);
    // What came before the failure was committed, and may be there, once or more often.
    wanted.extend(after);
    let arrived = scene.records();
    let mut once: Vec<_> = arrived.iter().map(|record| record.event_id()).collect();
    once.retain(|id| *id != of_it[0]);
    let mut seen = std::collections::HashSet::new();
    once.retain(|id| seen.insert(*id));
    assert_eq!(once, wanted);
    let letters =
        "SELECT error_class || ' ' || status || ' ' || position_lsn FROM walpost.dead_letter";
    let letters = scene.sql.column(letters);
    assert!(
        letters.len() == 1 && letters[0].starts_with("skipped ignored "),
        "{letters:?}"
    );
    run.stop(0);
    scene.observe();
    let id = scene.insert("c", 1).remove(0);
    let at = scene.positions()[&id].commit.to_string();
    skip(&at).expect(1, &["can be decoded"]);
    let _run = scene.started(&walpost);
    scene.wait_confirmed(60);
    assert!(
        scene.records().iter().any(|record| record.event_id() == id),
        "skipped"
    );
}

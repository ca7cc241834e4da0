//! `walpost check`: what works passes, what doesn't fails and tells what mends it, and nothing is
//! changed.

use serde_json::Value;

use crate::harness::{Scene, Walpost, free_port, kafka::Kafka, postgres::Cluster, services, until};

#[track_caller]
fn check(walpost: &Walpost, code: i32) -> Vec<Value> {
    let output = walpost.command(&["check", "--json"]).expect(code, &[]);
    let found: Vec<Value> = serde_json::from_str(&output.out).expect("an array");
    for one in &found {
        let keys: Vec<_> = one.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["fix", "id", "level", "message", "subject"]);
        assert_eq!(one["fix"].is_null(), one["level"] == "pass", "{one}");
    }
    found
}

/// The findings that are no pass, but for those that a development cluster always has.
fn wrong(found: &[Value]) -> Vec<(String, String)> {
    const USUAL: [&str; 2] = ["postgres.keep_size", "kafka.copies"];
    let text = |value: &'_ Value| value.as_str().map(str::to_owned).expect("text");
    let found = found
        .iter()
        .map(|one| (text(&one["id"]), text(&one["level"])));
    found
        .filter(|(id, level)| level != "pass" && !USUAL.contains(&id.as_str()))
        .collect()
}

fn told(wrong: &[(&str, &str)]) -> Vec<(String, String)> {
    wrong
        .iter()
        .map(|(id, level)| ((*id).into(), (*level).into()))
        .collect()
}

/// What is wrong is this alone, and its message and fix say so.
#[track_caller]
fn finds(walpost: &Walpost, id: &str, level: &str, message: &str, fix: &str) {
    let found = check(walpost, if level == "fail" { 3 } else { 0 });
    assert_eq!(wrong(&found), told(&[(id, level)]), "{found:#?}");
    let one = found
        .iter()
        .find(|one| one["id"] == id && one["level"] == level)
        .expect("it was found");
    let says = |part: &str, words: &str| {
        let text = one[part].as_str().unwrap_or_default();
        assert!(text.contains(words), "{part} {text:?} lacks {words:?}");
    };
    says("message", message);
    says("fix", fix);
}

fn message<'a>(found: &'a [Value], id: &str, subject: &str) -> &'a str {
    let one = found
        .iter()
        .find(|one| one["id"] == id && one["subject"] == subject);
    one.unwrap_or_else(|| panic!("no {id} of {subject} in {found:#?}"))["message"]
        .as_str()
        .expect("text")
}

#[test]
fn what_is_ready_passes_before_and_while_it_runs_on_every_version() {
    let scene = Scene::new();
    let mut walpost = scene.ready(2);
    walpost.environment("WALPOST_KAFKA__PROPERTIES__LINGER_MS", "7");
    scene.insert("a", 3);
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
    let before = (scene.confirmed(), scene.sql.number(slots));
    let found = check(&walpost, 0);
    assert_eq!(wrong(&found), told(&[]));
    assert_eq!((scene.confirmed(), scene.sql.number(slots)), before);
    let url = message(&found, "config.value", "postgres.url");
    assert!(
        url.contains("not shown") && url.contains("walpost.toml:"),
        "{url}"
    );
    let password = scene.server.publisher_password();
    let properties = message(&found, "config.value", "kafka.properties.linger.ms");
    assert!(properties.contains("WALPOST_KAFKA__PROPERTIES__LINGER_MS"));
    let user = message(&found, "config.connection", "user");
    assert!(user.contains(scene.server.publisher_name()) && user.contains("postgres.url"));
    assert!(!found.iter().any(|one| one.to_string().contains(&password)));
    assert!(message(&found, "table.rows", "public.outbox").contains("each of 3 rows"));
    assert!(message(&found, "kafka.topic", &scene.topic("order")).contains("2 partitions"));

    let mut run = scene.started(&walpost);
    scene.wait_confirmed(60);
    let found = check(&walpost, 0);
    assert_eq!(wrong(&found), told(&[]));
    assert!(message(&found, "slot.there", &scene.tag).contains("read by pid"));
    run.assert_alive();
    let text = walpost.command(&["check"]).expect(0, &[]).out;
    for line in text.lines() {
        assert!(
            line.starts_with("pass  ") || line.starts_with("warn  "),
            "{line}"
        );
    }
    assert_eq!(text.lines().count(), found.len());
}

#[test]
fn what_is_wrong_with_the_table_is_named_with_what_mends_it() {
    let scene = Scene::new();
    let mut walpost = scene.ready(2);
    scene.insert("a", 1);
    let sql = &scene.sql;

    sql.run("ALTER TABLE outbox RENAME aggregate_id TO moved");
    finds(
        &walpost,
        "table.columns",
        "fail",
        "no column aggregate_id",
        "map another one",
    );
    sql.run("ALTER TABLE outbox RENAME moved TO aggregate_id");

    sql.run("ALTER TABLE outbox ALTER headers TYPE text");
    finds(
        &walpost,
        "table.types",
        "warn",
        "headers of type text",
        "jsonb",
    );
    sql.run("ALTER TABLE outbox ALTER headers TYPE boolean USING NULL");
    finds(
        &walpost,
        "table.types",
        "fail",
        "headers of type boolean",
        "jsonb",
    );
    sql.run("ALTER TABLE outbox ALTER headers TYPE jsonb USING NULL");

    walpost.set("outbox.order_by", "nope");
    finds(
        &walpost,
        "table.order_by",
        "fail",
        "no column nope",
        "order_by",
    );
    walpost.set("outbox.order_by", "");
    finds(
        &walpost,
        "table.order_by",
        "warn",
        "no order_by",
        "order_by",
    );
    walpost.unset("outbox.order_by");

    let bad = scene.insert_row(&[("aggregate_type", "'no topic'")]);
    finds(&walpost, "table.rows", "fail", &bad, "`topic`");
    sql.run(&format!("DELETE FROM outbox WHERE event_id = '{bad}'"));
    let bad = scene.insert_row(&[("headers", "'[]'")]);
    finds(&walpost, "table.rows", "warn", &bad, "dead letter");
    sql.run(&format!("DELETE FROM outbox WHERE event_id = '{bad}'"));

    let role = scene.server.publisher_name();
    sql.run(&format!("REVOKE SELECT ON outbox FROM {role}"));
    finds(
        &walpost,
        "table.rights",
        "warn",
        "permission denied",
        "GRANT SELECT",
    );
    sql.run(&format!("GRANT SELECT ON outbox TO {role}"));

    walpost.set("outbox.table", "public.nowhere");
    let found = check(&walpost, 3);
    assert!(
        message(&found, "table.there", "public.nowhere").contains("does not exist"),
        "{found:#?}"
    );
    walpost.set("outbox.table", "public.outbox");
    assert_eq!(wrong(&check(&walpost, 0)), told(&[]));
}

#[test]
fn what_is_wrong_with_slot_and_publication_is_named_with_what_mends_it() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let (sql, tag) = (&scene.sql, &scene.tag);
    sql.run(&format!("ALTER PUBLICATION {tag} DROP TABLE outbox"));
    let found = check(&walpost, 3);
    let expected = told(&[
        ("publication.unchanged", "fail"),
        ("table.published", "fail"),
    ]);
    assert_eq!(wrong(&found), expected);
    sql.run(&format!("ALTER PUBLICATION {tag} ADD TABLE outbox"));
    finds(
        &walpost,
        "publication.unchanged",
        "fail",
        "dropped and made again",
        "`walpost recover`",
    );
    walpost
        .command(&["init", "--accept-publication"])
        .expect(0, &[]);

    sql.run(&format!(
        "CREATE TABLE keyless (i int); ALTER PUBLICATION {tag} ADD TABLE keyless; ALTER PUBLICATION {tag} SET (publish = 'insert, delete')"
    ));
    walpost
        .command(&["init", "--accept-publication"])
        .expect(0, &[]);
    let found = check(&walpost, 0);
    let expected = told(&[
        ("publication.narrow", "warn"),
        ("publication.keyless", "warn"),
    ]);
    assert_eq!(wrong(&found), expected);
    assert!(message(&found, "publication.keyless", tag).contains("public.keyless"));
    sql.run(&format!("DROP PUBLICATION {tag}"));
    finds(
        &walpost,
        "publication.there",
        "fail",
        "is missing",
        "CREATE PUBLICATION",
    );

    scene.drop_slot();
    let found = check(&walpost, 3);
    assert!(message(&found, "slot.there", tag).contains("is missing"));
    let role = scene.server.publisher_name();
    sql.run(&format!("REVOKE DELETE ON walpost.dead_letter FROM {role}"));
    let found = check(&walpost, 3);
    assert!(message(&found, "schema.rights", "schema walpost").contains("dead_letter"));
}

#[test]
fn what_is_wrong_with_topics_is_named_with_what_mends_it() {
    let scene = Scene::new();
    let mut walpost = scene.ready(2);
    scene.insert("a", 1);
    scene.insert_row(&[("aggregate_type", "'missing'")]);
    let missing = scene.topic("missing");
    finds(&walpost, "kafka.topic", "fail", &missing, "--create");
    assert!(!scene.kafka.exists(&missing), "looking made it");
    walpost.set("kafka.properties.allow.auto.create.topics", "true");
    let found = check(&walpost, 3);
    assert_eq!(
        wrong(&found),
        told(&[("config.kafka", "warn"), ("kafka.topic", "fail")])
    );
    assert!(!scene.kafka.exists(&missing), "looking made it");
    walpost.unset("kafka.properties.allow.auto.create.topics");
    scene.create_topic("missing", 1, &[]);
    assert_eq!(wrong(&check(&walpost, 0)), told(&[]));

    for topic in ["no topic", "no topic.{aggregate_type}"] {
        walpost.set("outbox.topic", topic);
        let found = check(&walpost, 3);
        let expected = told(&[("config.topic", "fail"), ("table.rows", "fail")]);
        assert_eq!(wrong(&found), expected, "{topic}");
        assert!(message(&found, "config.topic", "public.outbox").contains("1 to 249 letters"));
    }
    walpost.set("outbox.topic", scene.topic("{aggregate_type}"));

    let letters = scene.topic("letters");
    walpost.set("dead_letters.topic", letters.as_str());
    finds(&walpost, "kafka.topic", "fail", &letters, "--create");
    walpost.unset("dead_letters.topic");

    scene.sql.run("ALTER TABLE outbox ADD part integer");
    let settings = format!(
        "[[outbox]]\ntable = \"public.outbox\"\ntopic = \"{}\"\nadditional = [{{ column = \"part\", placement = \"partition\" }}]\n",
        scene.topic("{aggregate_type}")
    );
    walpost.outbox(settings);
    assert_eq!(
        wrong(&check(&walpost, 0)),
        told(&[]),
        "NULL is any partition"
    );
    let event = scene.insert_row(&[("part", "1")]);
    assert_eq!(wrong(&check(&walpost, 0)), told(&[]));
    scene.sql.run(&format!(
        "UPDATE outbox SET part = 2 WHERE event_id = '{event}'"
    ));
    finds(
        &walpost,
        "kafka.partition",
        "fail",
        &event,
        "--partitions 3",
    );
    scene.sql.run(&format!(
        "UPDATE outbox SET part = 0 WHERE event_id = '{event}'"
    ));

    let settings = |additional: &str| {
        format!(
            "[[outbox]]\ntable = \"public.outbox\"\nmessages = true\ntopic = \"{}\"\nadditional = [{{ column = \"part\", placement = \"header\"{additional} }}]\n",
            scene.topic("{aggregate_type}")
        )
    };
    walpost.outbox(settings(""));
    finds(
        &walpost,
        "table.messages",
        "fail",
        "has no column part",
        "missing = \"ignore\"",
    );
    walpost.outbox(settings(", missing = \"ignore\""));
    let found = check(&walpost, 0);
    assert_eq!(wrong(&found), told(&[]));
    assert!(message(&found, "table.messages", "public.outbox").contains("as its rows"));

    let order = scene.topic("order");
    let set = |settings: &[(&str, &str)]| scene.kafka.configure(&order, settings);
    set(&[("retention.ms", "3600000")]);
    let old = scene.insert_row(&[("occurred_at", "now() - interval '3 days'")]);
    finds(
        &walpost,
        "kafka.retention",
        "warn",
        "3 days old",
        "retention.ms",
    );
    set(&[
        ("retention.ms", "-1"),
        ("message.timestamp.before.max.ms", "3600000"),
    ]);
    finds(&walpost, "kafka.timestamps", "warn", "3 days old", "times");
    scene
        .sql
        .run(&format!("DELETE FROM outbox WHERE event_id = '{old}'"));
    set(&[("message.timestamp.type", "LogAppendTime")]);
    finds(
        &walpost,
        "kafka.timestamps",
        "warn",
        "arrival",
        "CreateTime",
    );
    set(&[("cleanup.policy", "compact")]);
    finds(
        &walpost,
        "kafka.compaction",
        "warn",
        "compacted",
        "cleanup.policy=delete",
    );
    let keyless = scene.insert_row(&[("aggregate_id", "NULL")]);
    finds(&walpost, "kafka.compaction", "fail", &keyless, "key");
}

#[test]
fn servers_that_do_not_answer_are_findings_and_the_rest_is_looked_at() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    let mut walpost = scene.walpost();
    walpost.set("outbox.topic", scene.topic("order"));
    let found = check(&walpost, 3);
    let level = |found: &[Value], id: &str| {
        let one = found.iter().find(|one| one["id"] == id);
        one.map(|one| one["level"].as_str().unwrap_or_default().to_owned())
    };
    assert!(message(&found, "slot.initialised", &scene.tag).contains("never initialised"));
    assert_eq!(level(&found, "kafka.topic").as_deref(), Some("pass"));

    let port = free_port();
    walpost.set(
        "postgres.url",
        scene.server.url_at("127.0.0.1", port, &scene.tag),
    );
    let found = check(&walpost, 3);
    assert_eq!(wrong(&found), told(&[("postgres.connect", "fail")]));
    assert_eq!(
        level(&found, "kafka.topic").as_deref(),
        Some("pass"),
        "by its name alone"
    );

    walpost.set("kafka.brokers", format!("127.0.0.1:{port}"));
    let found = check(&walpost, 3);
    assert_eq!(
        wrong(&found),
        told(&[("postgres.connect", "fail"), ("kafka.connect", "fail")])
    );
    let why = message(&found, "kafka.connect", &format!("127.0.0.1:{port}"));
    assert!(why.contains("refused"), "{why}");
    walpost.set("kafka.properties.no.such.thing", "hunter2");
    let found = check(&walpost, 3);
    assert!(!found.iter().any(|one| one.to_string().contains("hunter2")));
    assert!(
        wrong(&found).contains(&told(&[("kafka.client", "fail")])[0]),
        "{found:#?}"
    );
}

#[test]
fn a_refused_login_and_a_topic_that_may_not_be_seen_are_told() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    scene.insert("a", 1);
    let brokers = services::setting("KAFKA_SASL_BROKERS");
    walpost
        .set("kafka.brokers", brokers)
        .set("kafka.properties.security.protocol", "SASL_PLAINTEXT")
        .set("kafka.properties.sasl.mechanism", "PLAIN")
        .set("kafka.properties.sasl.username", "alice")
        .set("kafka.properties.sasl.password", "alice-secret");
    // With the right to write anywhere a producer may be idempotent.
    scene.kafka.allow("alice", &scene.topic("elsewhere"));
    until("the right is known", 60, || {
        let found = walpost.command(&["check", "--json"]).json();
        let refused = |one: &Value| one["id"] == "kafka.idempotence" && one["level"] == "fail";
        (!found.as_array()?.iter().any(refused)).then_some(())
    });
    finds(
        &walpost,
        "kafka.topic",
        "fail",
        &scene.topic("order"),
        "Describe and Write",
    );
    scene.kafka.allow("alice", &scene.topic("order"));
    // The brokers hear of it one after the other.
    until("the right is known", 60, || {
        (walpost.command(&["check"]).code == Some(0)).then_some(())
    });
    assert_eq!(wrong(&check(&walpost, 0)), told(&[]));
    walpost.set("kafka.properties.sasl.password", "outdated-9182");
    let found = check(&walpost, 3);
    assert_eq!(wrong(&found), told(&[("kafka.connect", "fail")]));
    let why = message(&found, "kafka.connect", brokers).to_lowercase();
    assert!(why.contains("authentication"), "{why}");
    walpost.unset("kafka.properties.sasl.mechanism");
    let found = check(&walpost, 3);
    assert!(
        wrong(&found).contains(&told(&[("kafka.mechanism", "warn")])[0]),
        "{found:#?}"
    );
    assert!(
        !found
            .iter()
            .any(|one| one.to_string().contains("outdated-9182"))
    );
}

#[test]
fn settings_of_the_server_are_judged_on_every_version() {
    let cluster = Cluster::start("max_slot_wal_keep_size = 100MB\nmax_replication_slots = 1");
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let walpost = scene.ready(1);
    finds(
        &walpost,
        "postgres.slots",
        "warn",
        "1 of 1 slots",
        "max_replication_slots",
    );
    cluster.set("wal_sender_timeout", "0");
    cluster.set("synchronous_standby_names", "'*'");
    scene.sql.run("SET synchronous_commit = local");
    let found = check(&walpost, 3);
    let subject = "synchronous_standby_names";
    assert!(message(&found, "postgres.synchronous", subject).contains("commits would wait"));
    let subject = "wal_sender_timeout";
    assert!(message(&found, "postgres.wal_sender_timeout", subject).contains("is 0"));
    cluster.set("synchronous_standby_names", "''");
    scene.drop_slot();
    let other = "SELECT pg_create_physical_replication_slot('other')";
    scene.sql.run(other);
    let found = check(&walpost, 3);
    let subject = "max_replication_slots";
    assert!(message(&found, "postgres.slots", subject).contains("cannot be made"));

    let mut walpost = walpost.twin();
    walpost.set("postgres.failover_slot", true);
    let found = check(&walpost, 3);
    let failover = message(&found, "slot.failover", &scene.tag);
    let is_old = scene
        .sql
        .number("SELECT current_setting('server_version_num')::int")
        < 170_000;
    assert_eq!(
        failover.contains("needs PostgreSQL 17"),
        is_old,
        "{failover}"
    );
}

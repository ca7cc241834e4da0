//! Servers that are not as they must be: the reason is told with the command that mends it.

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
};

use crate::harness::{Scene, Walpost, kafka::Kafka, postgres::Cluster, sql::Sql, until};

/// A role of its own, with this much on the way to `init`; its URL.
fn role(scene: &Scene, attributes: &str) -> (String, String) {
    let name = format!("role_{}", scene.tag);
    scene.sql.run(&format!(
        "CREATE ROLE {name} LOGIN {attributes} PASSWORD 'x'"
    ));
    let (host, port) = scene.server.address();
    let url = format!("postgres://{name}:x@{host}:{port}/{}", scene.tag);
    (name, url)
}

fn drop_role(scene: &Scene, name: &str) {
    scene
        .sql
        .run(&format!("DROP OWNED BY {name}; DROP ROLE {name}"));
}

#[test]
fn each_right_that_init_lacks_is_told_with_the_command_that_gives_it_on_every_version() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    scene.create_topic("order", 1, &[]);
    let (name, url) = role(&scene, "");
    let mut walpost = scene.walpost();
    walpost.set("postgres.url", url);
    let owner = scene.server.publisher_name();
    let tag = &scene.tag;
    // Each said right is given, in turn, until it works.
    let steps: [(&[&str], String); 3] = [
        (
            &["publication", "owner", "create publication"],
            format!("CREATE PUBLICATION {tag} FOR TABLE public.outbox WITH (publish = 'insert')"),
        ),
        (
            &["schema walpost", "create schema walpost authorization"],
            format!("CREATE SCHEMA walpost AUTHORIZATION {name}"),
        ),
        (
            &["replication", "alter role"],
            format!("ALTER ROLE {name} REPLICATION"),
        ),
    ];
    for (words, mend) in steps {
        walpost.command(&["init"]).expect(1, words);
        assert!(scene.slot().is_none(), "a slot was made");
        scene.sql.run(&mend);
    }
    walpost.command(&["init"]).expect(0, &[]);
    // Streaming needs no right on the table and none on its schema.
    scene.sql.run("REVOKE ALL ON SCHEMA public FROM PUBLIC");
    let mut run = scene.started(&walpost);
    scene.insert("a", 3);
    scene.judge_once(3);
    run.stop(0);
    // Another role may look at nothing of ours.
    scene.sql.run(&format!("ALTER SCHEMA walpost OWNER TO {owner}; REVOKE ALL ON ALL TABLES IN SCHEMA walpost FROM {name}; ALTER TABLE walpost.slot OWNER TO {owner}; ALTER TABLE walpost.meta OWNER TO {owner}"));
    walpost
        .run_to_end()
        .expect(1, &["permission|right", "42501"]);
    drop_role(&scene, &name);
}

#[test]
fn a_role_that_may_not_replicate_ends_run_with_the_command_on_every_version() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    let (name, url) = role(&scene, "");
    scene.sql.run(&format!("GRANT USAGE ON SCHEMA walpost TO {name}; GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA walpost TO {name}"));
    walpost.set("postgres.url", url);
    walpost.run_to_end().expect(
        1,
        &[
            "replication",
            &format!("alter role {name} replication"),
            "42501",
        ],
    );
    drop_role(&scene, &name);
}

#[test]
fn wal_level_and_exhausted_slots_and_walsenders_are_told_with_their_setting_on_every_version() {
    let mut cluster =
        Cluster::start("wal_level = replica\nmax_replication_slots = 2\nmax_wal_senders = 1");
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    scene.create_topic("order", 1, &[]);
    let walpost = scene.walpost();
    walpost
        .command(&["init", "--create-table"])
        .expect(1, &["wal_level", "alter system set wal_level"]);
    cluster.set("wal_level", "logical");
    cluster.stop();
    cluster.restart();

    let admin = cluster.server.admin();
    for name in ["theirs", "theirs_too"] {
        admin.run(&format!(
            "SELECT pg_create_physical_replication_slot('{name}')"
        ));
    }
    walpost
        .command(&["init", "--create-table"])
        .expect(1, &["max_replication_slots", "53400"]);
    for name in ["theirs", "theirs_too"] {
        admin.run(&format!("SELECT pg_drop_replication_slot('{name}')"));
    }
    walpost.init();
    let other = Scene::on(cluster.server.clone(), Kafka::shared());
    let second = other.ready(1);
    let mut run = scene.started(&walpost);
    // One that starts up waits for the other one's walsender.
    let mut late = second.start();
    late.wait_says("max_wal_senders", 60);
    assert!(late.says("53300"), "{}", late.log());
    late.assert_alive();
    assert_ne!(second.ready(), Some(200));
    other.insert("a", 2);
    run.stop(0);
    until("the second publishes", 60, || other.slot()?.active_pid);
    other.judge_once(2);
}

#[test]
fn a_pooler_in_between_is_recognised() {
    // It answers as PgBouncer does when it is asked for replication.
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    if buffer[..count] == [0, 0, 0, 8, 4, 210, 22, 47] {
                        let _ = stream.write_all(b"N");
                        continue;
                    }
                    let fields = b"SFATAL\0C08P01\0Munsupported startup parameter: replication\0\0";
                    let _ = stream.write_all(b"E");
                    let _ = stream.write_all(&(fields.len() as u32 + 4).to_be_bytes());
                    let _ = stream.write_all(fields);
                    return;
                }
            });
        }
    });
    let mut walpost = Walpost::new();
    walpost
        .set(
            "postgres.url",
            format!("postgres://walpost:x@127.0.0.1:{port}/app"),
        )
        .set("postgres.slot", "s")
        .set("postgres.publication", "p")
        .set("outbox.table", "public.outbox")
        .set("outbox.topic", "t")
        .set("kafka.brokers", "127.0.0.1:1");
    for command in ["init", "run", "status"] {
        walpost.command(&[command]).expect(1, &["pooler", "08p01"]);
    }
}

#[test]
fn a_server_without_a_free_connection_is_waited_for_with_its_setting_on_every_version() {
    let cluster = Cluster::start("max_connections = 14\nsuperuser_reserved_connections = 6");
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.insert("a", 2);
    scene.wait_confirmed(60);
    // Others take what there is as soon as ours are gone.
    let (name, url) = role(&scene, "");
    let user = scene.server.publisher_name();
    scene.sql.run(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'"
    ));
    let mut others = Vec::new();
    until("no connection is free", 60, || {
        let login: tokio_postgres::Config = url.parse().expect("a URL");
        let other = Sql::new(login);
        if other.try_rows("SELECT 1").is_ok() {
            others.push(other);
            return None;
        }
        let ours =
            "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND usename";
        let some = scene.sql.rows(&format!("{ours} = '{user}'"));
        if some.is_empty() {
            return Some(());
        }
        scene.sql.run(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'"
        ));
        None
    });
    scene.insert("a", 2);
    run.wait_says("max_connections", 60);
    assert!(run.says("53300"), "{}", run.log());
    until("/ready says so", 60, || {
        let (code, body) = walpost.get("/ready")?;
        (code == 503 && body.contains("max_connections")).then_some(())
    });
    // A command that is run by hand is told at once.
    walpost
        .command(&["check"])
        .expect(3, &["max_connections", "53300"]);
    run.assert_alive();
    drop(others);
    scene.judge(4);
    until("/ready answers 200", 60, || {
        (walpost.ready() == Some(200)).then_some(())
    });
    run.assert_alive();
    drop_role(&scene, &name);
}

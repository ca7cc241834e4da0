//! Certificates that expire: told, waited out, and the new ones taken without a restart of ours.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use crate::{
    connection::{cluster, root_file},
    harness::{
        Run, Scene, Walpost, always,
        certificates::{Issued, expired, issue},
        kafka::Kafka,
        kafka_server::KafkaServer,
        postgres::Server,
        process::new_folder,
        until,
    },
};

/// A file that only its owner may read.
fn file(folder: &Path, name: &str, bytes: Vec<u8>) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).expect("write a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    path
}

/// It goes on, not ready, and says this once and not at each attempt.
#[track_caller]
fn waits(walpost: &Walpost, run: &mut Run, words: &str) {
    run.wait_says(words, 60);
    until("/ready tells why", 60, || {
        let (code, body) = walpost.get("/ready")?;
        let body = body.to_lowercase();
        (code == 503 && words.split('|').any(|word| body.contains(word))).then_some(())
    });
    let lines = run.log().lines().count();
    always("it waits", 4, || run.alive());
    let more = run.log().lines().count() - lines;
    assert!(more < 5, "{more} lines more in 4 s:\n{}", run.log());
}

/// All sessions of the publisher end.
fn end_sessions(scene: &Scene) {
    let user = scene.server.publisher_name();
    scene.sql.run(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'"
    ));
}

#[test]
fn an_expired_certificate_of_postgresql_is_waited_out() {
    let authority = issue("walpost tests", None);
    let cluster = cluster("localhost", &authority);
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let (_, port) = scene.server.address();
    let root = root_file(&new_folder("tls"), "root.pem", &authority);
    scene.create_topic("order", 1, &[]);
    let mut walpost = scene.walpost();
    let url = scene.server.url_at("localhost", port, &scene.tag);
    walpost.set(
        "postgres.url",
        format!("{url}?sslmode=verify-full&sslrootcert={root}"),
    );
    walpost.init();
    let serve = |issued: &Issued| {
        cluster.put("server.crt", &issued.pem());
        cluster.put("server.key", &issued.key_pem());
        cluster.reload();
    };
    let mut run = scene.started(&walpost);
    scene.insert("a", 2);
    scene.wait_confirmed(60);
    serve(&expired("localhost", &authority));
    end_sessions(&scene);
    scene.insert("a", 2);
    waits(&walpost, &mut run, "expired");
    serve(&issue("localhost", Some(&authority)));
    scene.judge(4);
    run.stop(0);

    // The same at the first connection of a process.
    serve(&expired("localhost", &authority));
    let mut run = walpost.start();
    scene.insert("a", 1);
    waits(&walpost, &mut run, "expired");
    serve(&issue("localhost", Some(&authority)));
    scene.judge(5);
    run.assert_alive();
}

#[test]
fn an_expired_certificate_of_ours_is_waited_out_and_the_new_file_taken() {
    let authority = issue("walpost tests", None);
    let cluster = cluster("localhost", &authority);
    cluster.access("host all postgres 127.0.0.1/32 trust\nhostssl all all 127.0.0.1/32 cert\n");
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let (_, port) = scene.server.address();
    let (user, folder) = (scene.server.publisher_name(), new_folder("client"));
    let certify = |issued: &Issued| {
        file(&folder, "client.key", issued.key_pem());
        file(&folder, "client.crt", issued.pem())
    };
    let certificate = certify(&issue(user, Some(&authority)));
    scene.create_topic("order", 1, &[]);
    let mut walpost = scene.walpost();
    walpost.set(
        "postgres.url",
        format!(
            "postgres://{user}@localhost:{port}/{}?sslmode=require&sslcert={}&sslkey={}",
            scene.tag,
            certificate.display(),
            folder.join("client.key").display()
        ),
    );
    walpost.init();
    let mut run = scene.started(&walpost);
    scene.insert("a", 2);
    scene.wait_confirmed(60);
    certify(&expired(user, &authority));
    end_sessions(&scene);
    scene.insert("a", 2);
    waits(&walpost, &mut run, "expired");
    certify(&issue(user, Some(&authority)));
    scene.judge(4);
    run.assert_alive();
}

/// Its listener speaks TLS, with the certificate in `server.pem` of the folder.
fn tls_broker(folder: &Path, settings: &str) -> (KafkaServer, String) {
    let place = folder.display();
    KafkaServer::secured(
        "SSL",
        &format!(
            "@ssl.keystore.type=PEM\n@ssl.keystore.location={place}/server.pem\n\
             @ssl.truststore.type=PEM\n@ssl.truststore.location={place}/root.pem\n{settings}"
        ),
    )
}

fn keystore(folder: &Path, issued: &Issued) {
    let both = [issued.key_pem(), issued.pem()].concat();
    fs::write(folder.join("server.pem"), both).expect("write a file");
}

fn by_tls(scene: &Scene, address: &str, root: &str) -> Walpost {
    let mut walpost = scene.walpost();
    walpost
        .set("kafka.brokers", address)
        .set("kafka.properties.security.protocol", "SSL")
        .set("kafka.properties.ssl.ca.location", root)
        .set("kafka.properties.reconnect.backoff.max.ms", 500);
    walpost
}

#[test]
fn an_expired_certificate_of_kafka_is_waited_out() {
    let authority = issue("walpost tests", None);
    let folder = new_folder("kafka-tls");
    let root = root_file(&folder, "root.pem", &authority);
    keystore(&folder, &issue("localhost", Some(&authority)));
    let (mut broker, address) = tls_broker(&folder, "");
    let scene = Scene::on(Server::shared(), broker.kafka.clone());
    scene.create_topic("order", 1, &[]);
    let walpost = by_tls(&scene, &address, &root);
    walpost.init();
    let mut run = scene.started(&walpost);
    let walsender = scene.walsender();
    scene.insert("a", 2);
    scene.wait_confirmed(60);
    broker.stop();
    keystore(&folder, &expired("localhost", &authority));
    broker.restart();
    scene.insert("a", 2);
    waits(&walpost, &mut run, "expired|certificate verify failed");
    broker.stop();
    keystore(&folder, &issue("localhost", Some(&authority)));
    broker.restart();
    scene.judge(4);
    assert_eq!(
        scene.walsender(),
        walsender,
        "connected to PostgreSQL again"
    );
    run.assert_alive();
}

#[test]
fn an_expired_certificate_for_kafka_is_waited_out_and_the_new_file_taken() {
    let authority = issue("walpost tests", None);
    let folder = new_folder("kafka-tls");
    let root = root_file(&folder, "root.pem", &authority);
    keystore(&folder, &issue("localhost", Some(&authority)));
    let (_broker, address) = tls_broker(&folder, "@ssl.client.auth=required");
    let kafka = _broker.kafka.clone();
    let certify = |issued: &Issued| {
        file(&folder, "client.key", issued.key_pem());
        file(&folder, "client.crt", issued.pem());
    };
    let scene = Scene::on(Server::shared(), kafka);
    scene.create_topic("order", 1, &[]);
    // By the names of files, and by files with the values of properties.
    let ways: [[(&str, &str); 2]; 2] = [
        [
            ("kafka.properties.ssl.certificate.location", "client.crt"),
            ("kafka.properties.ssl.key.location", "client.key"),
        ],
        [
            ("kafka.property_files.ssl.certificate.pem", "client.crt"),
            ("kafka.property_files.ssl.key.pem", "client.key"),
        ],
    ];
    for (round, way) in (1..).zip(ways) {
        certify(&expired("walpost", &authority));
        let mut walpost = by_tls(&scene, &address, &root);
        for (name, file) in way {
            walpost.set(name, folder.join(file).display().to_string());
        }
        walpost.init();
        let mut run = scene.started(&walpost);
        scene.insert("a", 2);
        waits(&walpost, &mut run, "expired|certificate|ssl");
        certify(&issue("walpost", Some(&authority)));
        scene.judge(2 * round);
        run.stop(0);
    }
}

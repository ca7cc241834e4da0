//! Secrets in files: read again where they are used, so that rotating them needs no restart.

use std::fs;

use crate::harness::{
    Scene,
    kafka::Kafka,
    kafka_server::KafkaServer,
    pass,
    postgres::{Cluster, Server},
    services, until,
};

#[test]
fn a_refused_kafka_password_is_waited_out_and_the_new_one_in_the_file_is_taken() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    scene.kafka.allow("alice", &scene.topic("order"));
    let mut walpost = scene.walpost();
    let file = walpost.folder.join("kafka-password");
    fs::write(&file, "outdated-9182\n").expect("write a password file");
    walpost
        .set("kafka.brokers", services::setting("KAFKA_SASL_BROKERS"))
        .set("kafka.properties.security.protocol", "SASL_PLAINTEXT")
        .set("kafka.properties.sasl.mechanism", "PLAIN")
        .set("kafka.properties.sasl.username", "alice")
        .set(
            "kafka.property_files.sasl.password",
            file.display().to_string(),
        );
    walpost.init();
    let mut run = scene.started(&walpost);
    scene.insert("a", 10);
    let reason = until("/ready tells of the login", 60, || {
        let (code, body) = walpost.get("/ready")?;
        (code == 503 && body.to_lowercase().contains("authentication")).then_some(body)
    });
    println!("{reason}");
    pass(5_000);
    run.assert_alive();
    let lines = run.log().lines().count();
    assert!(
        lines < 20,
        "one line per change of state, not per attempt:\n{}",
        run.log()
    );
    assert!(scene.records().is_empty());

    fs::write(&file, "alice-secret\n").expect("write a password file");
    scene.judge(10);
    until("/ready answers 200", 60, || {
        (walpost.ready() == Some(200)).then_some(())
    });
    run.assert_alive();
    for secret in ["outdated-9182", "alice-secret"] {
        assert!(!run.says(secret), "a password is in the log");
    }
}

#[test]
fn a_rotated_postgresql_password_is_read_at_the_next_connection() {
    let cluster = Cluster::start("");
    let scene = Scene::on(cluster.server.clone(), Kafka::shared());
    let mut walpost = scene.ready(1);
    let (user, password) = (
        scene.server.publisher_name(),
        scene.server.publisher_password(),
    );
    let file = walpost.folder.join("password");
    let write = |text: &str| fs::write(&file, format!("{text}\n")).expect("write a password file");
    write(&password);
    let (host, port) = scene.server.address();
    walpost
        .set(
            "postgres.url",
            format!("postgres://{user}@{host}:{port}/{}", scene.tag),
        )
        .set("postgres.password_file", file.display().to_string());
    let mut run = scene.started(&walpost);
    scene.insert("a", 3);
    scene.wait_confirmed(60);

    scene
        .sql
        .run(&format!("ALTER ROLE {user} PASSWORD 'rotated-5566'"));
    scene.sql.run(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'"
    ));
    scene.insert("a", 3);
    run.wait_says("password", 60);
    pass(1_000);
    run.assert_alive();
    write("rotated-5566");
    scene.judge(6);
    run.assert_alive();
    for secret in ["rotated-5566", &password] {
        assert!(!run.says(secret), "a password is in the log");
    }
}

#[test]
fn a_right_on_the_cluster_that_kafka_withholds_is_waited_for() {
    let (broker, address) = KafkaServer::secured(
        "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=PLAIN\n@plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_alice=\"alice-secret\";\n\
         authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\nsuper.users=User:ANONYMOUS\nallow.everyone.if.no.acl.found=false",
    );
    let scene = Scene::on(Server::shared(), broker.kafka.clone());
    scene.create_topic("order", 1, &[]);
    // Who may write to no topic at all may be no idempotent producer.
    scene.kafka.allow_to_see("alice", &scene.topic("order"));
    let mut walpost = scene.walpost();
    walpost
        .set("kafka.brokers", address)
        .set("kafka.properties.security.protocol", "SASL_PLAINTEXT")
        .set("kafka.properties.sasl.mechanism", "PLAIN")
        .set("kafka.properties.sasl.username", "alice")
        .set("kafka.properties.sasl.password", "alice-secret")
        .set("delivery.setup_retry_for", "1s");
    walpost.init();
    let mut run = scene.started(&walpost);
    scene.insert("a", 10);
    run.wait_says("cluster authorization failed", 60);
    pass(5_000);
    run.assert_alive();
    assert_eq!(walpost.ready(), Some(503));
    let lines = run.log().lines().count();
    assert!(lines < 20, "one line per change of state:\n{}", run.log());
    assert!(
        scene
            .sql
            .rows("SELECT 1 FROM walpost.dead_letter")
            .is_empty(),
        "the cluster's trouble became a dead letter"
    );
    scene.kafka.allow("alice", &scene.topic("order"));
    scene.judge(10);
    run.assert_alive();
}

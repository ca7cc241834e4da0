//! The command line and the configuration: messages say what is wrong and what to do, the exit code says how.

use crate::harness::{Run, Scene, Walpost, always, free_port, pass, postgres::url, until};

#[test]
fn usage() {
    let walpost = Walpost::new();
    let help = walpost.command(&["--help"]).expect(
        0,
        &[
            "init",
            "run",
            "status",
            "dead-letters",
            "--config",
            "--log-format",
            "--log-level",
        ],
    );
    for later in ["cleanup", "audit", "consume"] {
        assert!(
            !help
                .out
                .lines()
                .any(|line| line.trim_start().starts_with(later)),
            "{later} is in --help and does not exist"
        );
    }
    assert!(
        walpost
            .command(&["--version"])
            .expect(0, &[])
            .out
            .starts_with("walpost ")
    );
    for wrong in [
        &["nonsense"][..],
        &[],
        &["run", "--no-such-flag"],
        &["--log-format", "xml", "status"],
        &["--log-level", "loud", "status"],
        &["init", "--timeout", "soon"],
    ] {
        walpost.command(wrong).expect(2, &[]);
    }
}

#[test]
fn unknown_and_bad_settings_are_named_with_their_place_and_the_nearest() {
    let scene = Scene::new();
    let cases: &[(&str, serde_json::Value, &[&str])] = &[
        (
            "postgres.slott",
            "x".into(),
            &["slott", "`slot`", "walpost.toml:"],
        ),
        (
            "delivry.in_flight_rows",
            5.into(),
            &["delivry", "`delivery`", "walpost.toml:"],
        ),
        (
            "outbox.on_poisson",
            "stop".into(),
            &["on_poisson", "`on_poison`"],
        ),
        ("outbox.on_poison", "maybe".into(), &["on_poison", "stop"]),
        ("outbox.preset", "nothing".into(), &["preset", "walpost"]),
        ("outbox.format", "avro".into(), &["format", "raw"]),
        (
            "delivery.in_flight_bytes",
            "64 apples".into(),
            &["in_flight_bytes"],
        ),
        ("delivery.in_flight_rows", 0.into(), &["in_flight_rows"]),
        (
            "postgres.status_interval",
            "soon".into(),
            &["status_interval"],
        ),
        ("postgres.slot", "No-Slot".into(), &["slot"]),
        ("kafka.properties.acks", 1.into(), &["acks"]),
        (
            "kafka.properties.enable.idempotence",
            false.into(),
            &["enable.idempotence"],
        ),
        (
            "kafka.properties.enable.gapless.guarantee",
            false.into(),
            &["enable.gapless.guarantee"],
        ),
        (
            "kafka.properties.message.timeout.ms",
            5000.into(),
            &["message.timeout.ms"],
        ),
        (
            "kafka.properties.delivery.timeout.ms",
            5000.into(),
            &["delivery.timeout.ms"],
        ),
        (
            "kafka.properties.no.such.property",
            1.into(),
            &["no.such.property"],
        ),
        // These come later; until then they are refused.
        ("cleanup.mode", "delete".into(), &["cleanup"]),
        ("delivery.guarantee", "exactly-once".into(), &["guarantee"]),
    ];
    for (path, value, words) in cases {
        scene
            .walpost()
            .set(path, value.clone())
            .command(&["run"])
            .expect(2, words);
    }
    assert!(scene.slot().is_none());
}

#[test]
fn broken_files_and_unknown_variables_are_named() {
    let scene = Scene::new();
    for (name, words) in [
        (
            "WALPOST_KAFKA__BROKRES",
            &["WALPOST_KAFKA__BROKRES", "brokers"][..],
        ),
        ("WALPOST_SLOT", &["WALPOST_SLOT"]),
        (
            "WALPOST_OUTBOX__0__TABEL",
            &["WALPOST_OUTBOX__0__TABEL", "table"],
        ),
        (
            "WALPOST_DELIVERY__IN_FLIGHT_ROWS",
            &["WALPOST_DELIVERY__IN_FLIGHT_ROWS"],
        ),
    ] {
        scene
            .walpost()
            .environment(name, "x")
            .command(&["init"])
            .expect(2, words);
    }
    let walpost = scene.walpost();
    std::fs::write(walpost.file(), "[postgres\n").expect("write");
    walpost.command(&["run"]).expect(2, &["walpost.toml:1:"]);
    std::fs::remove_file(walpost.file()).expect("remove");
    walpost.command(&["run"]).expect(2, &["walpost.toml"]);
}

#[test]
fn environment_beats_the_file_and_fills_what_it_lacks() {
    let scene = Scene::new();
    scene.create_topic("order", 1, &[]);
    let (host, port) = scene.server.address();
    let password = scene.server.publisher_password();
    let bare = format!(
        "postgres://{}@{host}:{port}/{}",
        scene.server.publisher_name(),
        scene.tag
    );
    let mut walpost = scene.walpost();
    let file = walpost.folder.join("password");
    std::fs::write(&file, format!("{password}\n")).expect("write");
    walpost
        .set("postgres.url", bare.as_str())
        .set("postgres.slot", "not_this_one")
        .set("outbox.topic", "not.this.one");
    walpost.set("postgres.password_file", file.to_str());
    walpost
        .environment("WALPOST_POSTGRES__SLOT", &scene.tag)
        .environment("WALPOST_OUTBOX__0__TOPIC", &scene.topic("order"))
        .environment("WALPOST_KAFKA__PROPERTIES__COMPRESSION_TYPE", "zstd")
        .environment("DATABASE_URL", "postgres://nowhere.invalid/x")
        .environment("KAFKA_BROKERS", "127.0.0.1:1")
        .environment("PGDATABASE", "no_such");
    walpost.init();
    assert!(scene.slot().is_some() && scene.slot_named("not_this_one").is_none());
    let mut run = scene.started(&walpost);
    scene.insert_row(&[("aggregate_type", "'elsewhere'")]);
    scene.wait_records(1);
    run.stop(0);

    // Nothing set elsewhere: the well-known names count.
    let mut walpost = scene.walpost();
    walpost.unset("postgres.url").unset("kafka.brokers");
    walpost
        .environment("DATABASE_URL", &bare)
        .environment("PGPASSWORD", &password)
        .environment("KAFKA_BROKERS", &scene.brokers);
    let _run = scene.started(&walpost);
    scene.insert("a", 1);
    scene.wait_records(2);
}

#[test]
fn refused_logins_and_unknown_databases_end_it_and_no_secret_is_printed() {
    let scene = Scene::new();
    scene.ready(1);
    let (host, port) = scene.server.address();
    let (user, password) = (
        scene.server.publisher_name(),
        scene.server.publisher_password(),
    );
    let wrong = "wrong-secret-8231";
    for (url, words) in [
        (
            url(user, wrong, &host, port, &scene.tag),
            "password|authentication",
        ),
        (
            url(user, &password, &host, port, "no_such_database"),
            "no_such_database",
        ),
        (
            url("nobody_here", wrong, &host, port, &scene.tag),
            "nobody_here",
        ),
    ] {
        let mut walpost = scene.walpost();
        walpost.set("postgres.url", url);
        for command in ["init", "run", "status"] {
            let output = walpost.command(&[command]).expect(1, &[words]);
            let said = format!("{}{}", output.out, output.err);
            assert!(
                !said.contains(wrong) && !said.contains(&password),
                "a password is printed: {said}"
            );
        }
    }
}

#[test]
fn an_unreachable_server_ends_commands_and_keeps_run_waiting() {
    let mut walpost = Walpost::new();
    let port = free_port();
    let nowhere = format!("127.0.0.1:{port}");
    walpost
        .set(
            "postgres.url",
            format!("postgres://walpost:secret-77@{nowhere}/app"),
        )
        .set("outbox.table", "public.outbox")
        .set("outbox.topic", "t");
    for command in ["init", "status"] {
        let output = walpost.command(&[command]).expect(1, &[&port.to_string()]);
        assert!(!output.err.contains("secret-77"), "{}", output.err);
    }
    let mut run = walpost.start();
    run.wait_says(&port.to_string(), 60);
    pass(2_000);
    run.assert_alive();
    assert_eq!(walpost.get("/live").map(|(code, _)| code), Some(200));
    assert_eq!(walpost.ready(), Some(503));
    run.stop(0);
}

#[test]
fn a_wrong_broker_address_loses_nothing() {
    let scene = Scene::new();
    let mut walpost = scene.ready(1);
    let nowhere = format!("127.0.0.1:{}", free_port());
    walpost
        .set("kafka.brokers", nowhere.as_str())
        .set("http.not_ready_after", "2s");
    scene.observe();
    let mut run: Run = scene.started(&walpost);
    let ids = scene.insert("a", 3);
    run.wait_says(&nowhere, 60);
    until("/ready is false", 60, || {
        (walpost.ready() == Some(503)).then_some(())
    });
    run.assert_alive();
    let limit = scene.positions()[&ids[0]].commit;
    always("the slot stays before the rows", 2, || {
        scene.confirmed() <= limit
    });
    run.kill();
    walpost.set("kafka.brokers", scene.brokers.as_str());
    until("the slot is free", 60, || {
        scene.slot()?.active_pid.is_none().then_some(())
    });
    let _run = scene.started(&walpost);
    scene.judge_once(3);
}

#[test]
fn mapped_columns_that_do_not_exist_are_named() {
    let scene = Scene::new();
    scene.create_table("jsonb");
    let mut walpost = scene.walpost();
    walpost
        .set("outbox.topic", "t.{no_such_column}")
        .command(&["init"])
        .expect(2, &["no_such_column"]);
    let mut walpost = scene.walpost();
    walpost
        .set("outbox.table", "public.no_such_table")
        .command(&["init"])
        .expect(2, &["no_such_table"]);
}

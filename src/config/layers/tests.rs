//! Files and variables that are read, and the errors of those that are not.

use std::time::Duration;

use super::*;
use crate::config::{Format, Guard, OnPoison, Preset, TableName};

const OUTBOX: &str = "[[outbox]]\ntable = \"public.outbox\"\n";

fn parse(text: &str, env: &[(&str, &str)]) -> Result<Config, String> {
    parse_with_origins(text, env).map(|(config, _)| config)
}

fn parse_with_origins(text: &str, env: &[(&str, &str)]) -> Result<(Config, Vec<Setting>), String> {
    let env = env.iter().copied().collect();
    read(
        &Source {
            name: "walpost.toml".into(),
            text,
        },
        &env,
    )
    .map_err(|stop| {
        assert_eq!(stop.exit, Exit::Usage);
        stop.to_string()
    })
}

#[test]
fn each_value_is_told_with_its_place_and_no_secret_is() {
    let text = "[postgres]\nurl = \"postgres://u:hunter2@h/d\"\nslot = \"a\"\n[kafka.properties]\n\"sasl.password\" = \"hunter2\"\n\
        [[outbox]]\ntable = \"t\"\ntopic = \"x\"\ncolumns = { headers = false, payload = \"body\" }\n\
        [dead_letters]\nretry_after = [\"1m\", \"5m\"]\n";
    let env = [
        ("WALPOST_POSTGRES__SLOT", "b"),
        ("KAFKA_BROKERS", "k:9092"),
        ("WALPOST_KAFKA__PROPERTIES__SSL_KEY_PASSWORD", "hunter2"),
    ];
    let (_, settings) = parse_with_origins(text, &env).expect("a good configuration");
    let mut told: Vec<_> = settings
        .iter()
        .map(|setting| format!("{} = {setting}", setting.key))
        .collect();
    told.sort();
    assert_eq!(
        told,
        [
            "dead_letters.retry_after = [\"1m\", \"5m\"] (walpost.toml:11:15)",
            "kafka.brokers = \"k:9092\" (KAFKA_BROKERS)",
            "kafka.properties.sasl.password = set, and not shown (walpost.toml:5:19)",
            "kafka.properties.ssl.key.password = set, and not shown (WALPOST_KAFKA__PROPERTIES__SSL_KEY_PASSWORD)",
            "outbox.0.columns.headers = false (walpost.toml:9:23)",
            "outbox.0.columns.payload = \"body\" (walpost.toml:9:40)",
            "outbox.0.table = \"t\" (walpost.toml:7:9)",
            "outbox.0.topic = \"x\" (walpost.toml:8:9)",
            "postgres.slot = \"b\" (WALPOST_POSTGRES__SLOT)",
            "postgres.url = set, and not shown (walpost.toml:2:7)",
        ]
    );
}

fn good(text: &str, env: &[(&str, &str)]) -> Config {
    parse(&format!("{text}\n{OUTBOX}"), env).expect("a good configuration")
}

fn bad(text: &str, env: &[(&str, &str)]) -> String {
    parse(text, env).expect_err("a bad configuration")
}

/// The README's list of keys can't fall behind: it is read here, and every key is in it.
#[test]
fn the_readme_lists_every_key_with_its_default() {
    let readme = include_str!("../../../README.md");
    let blocks = readme.split("```toml\n").skip(1);
    let block = blocks
        .filter_map(|text| text.split("```").next())
        .find(|text| text.contains("not_ready_after"))
        .expect("a block with all keys");
    let shown = parse(block, &[]).expect("the block is a configuration");
    assert_eq!(format!("{shown:?}"), format!("{:?}", good("", &[])));
    for section in [
        "postgres",
        "[outbox]",
        "outbox.columns",
        "kafka",
        "delivery",
        "dead_letters",
        "http",
    ] {
        let unknown = bad(&format!("{OUTBOX}[{section}]\n\"?\" = 0\n"), &[]);
        for key in candidates(&unknown)
            .filter(|key| !matches!(*key, "properties" | "property_files" | "columns"))
        {
            assert!(
                block.contains(&format!("\n{key} = ")),
                "{key} is not in the README"
            );
        }
    }
}

#[test]
fn defaults() {
    let config = good("", &[]);
    assert_eq!(
        (config.postgres.url, config.postgres.password_file),
        (None, None)
    );
    assert_eq!(
        (
            config.postgres.slot.as_str(),
            config.postgres.publication.as_str()
        ),
        ("walpost", "walpost")
    );
    let outbox = &config.outbox[0];
    assert_eq!(
        outbox.table,
        TableName {
            schema: "public".into(),
            name: "outbox".into()
        }
    );
    assert_eq!(
        (outbox.topic.as_str(), outbox.key.as_str()),
        ("outbox.event.{aggregate_type}", "aggregate_id")
    );
    assert_eq!(
        (outbox.preset, outbox.format, outbox.on_poison),
        (Preset::Walpost, Format::Raw, OnPoison::HoldKey)
    );
    assert_eq!(
        (config.kafka.brokers.as_str(), config.kafka.properties.len()),
        ("localhost:9092", 0)
    );
    assert_eq!(
        (
            config.delivery.in_flight_rows,
            config.delivery.in_flight_bytes
        ),
        (20_000, 16 << 20)
    );
    assert_eq!(config.http.listen, "127.0.0.1:9464");
    let letters = config.dead_letters;
    let minutes = [1, 5, 30, 120, 480, 1440].map(|m| Duration::from_secs(m * 60));
    assert_eq!(letters.retry_after, minutes);
    assert_eq!(
        (letters.guard, letters.max_held_rows),
        (guard(1000, 60), 100_000)
    );
    assert_eq!(letters.keep_resolved, Duration::from_secs(30 * 86_400));
    assert_eq!(letters.topic, "");
}

fn guard(count: u64, seconds: u64) -> Guard {
    Guard {
        count,
        within: Duration::from_secs(seconds),
    }
}

#[test]
fn every_key_is_read() {
    let config = good(
        r#"
        [postgres]
        url = "postgres://u@h/d"
        slot = "s"
        publication = "P"
        password_file = "/run/secret"
        status_interval = "2s"
        receive_timeout = "1m"
        [kafka]
        brokers = "a:1,b:2"
        [kafka.properties]
        "linger.ms" = 5
        "compression.type" = "zstd"
        "socket.keepalive.enable" = true
        [delivery]
        in_flight_rows = 7
        in_flight_bytes = "64M"
        shutdown_grace = "0s"
        [dead_letters]
        retry_after = ["1s", "2m"]
        guard = { within = "2s" }
        max_held_rows = 5
        keep_resolved = "1h"
        topic = "letters"
        [http]
        listen = ""
        not_ready_after = "5s"
        admin_token_file = "/run/token"
        "#,
        &[],
    );
    assert_eq!(config.postgres.url.unwrap().reveal(), "postgres://u@h/d");
    assert_eq!(
        (
            config.postgres.slot.as_str(),
            config.postgres.publication.as_str()
        ),
        ("s", "P")
    );
    assert_eq!(
        config.postgres.password_file.unwrap(),
        Path::new("/run/secret")
    );
    assert_eq!(config.postgres.status_interval, Duration::from_secs(2));
    assert_eq!(config.postgres.receive_timeout, Duration::from_secs(60));
    let properties = [
        ("compression.type", "zstd"),
        ("linger.ms", "5"),
        ("socket.keepalive.enable", "true"),
    ];
    assert_eq!(
        config.kafka.properties,
        properties
            .map(|(n, v)| (n.to_string(), v.to_string()))
            .into()
    );
    assert_eq!(
        (
            config.delivery.in_flight_rows,
            config.delivery.in_flight_bytes
        ),
        (7, 64_000_000)
    );
    assert_eq!(config.delivery.shutdown_grace, Duration::ZERO);
    let letters = config.dead_letters;
    assert_eq!(letters.retry_after, [1, 120].map(Duration::from_secs));
    assert_eq!((letters.guard, letters.max_held_rows), (guard(1000, 2), 5));
    assert_eq!(
        (letters.keep_resolved.as_secs(), letters.topic.as_str()),
        (3600, "letters")
    );
    assert_eq!(
        (
            config.http.listen.as_str(),
            config.http.not_ready_after.as_secs()
        ),
        ("", 5)
    );
    assert_eq!(
        config.http.admin_token_file.unwrap(),
        Path::new("/run/token")
    );
}

#[test]
fn errors_of_the_file_name_line_column_and_the_nearest_key() {
    let known = "`url`, `slot`, `publication`, `failover_slot`, `password_file`, `status_interval`, `receive_timeout`, `server_shutdown_grace`";
    for (text, error) in [
        ("[postgres\n", "walpost.toml:1:10: unclosed table, expected `]`".to_string()),
        (
            "[postgres]\n  slott = \"x\"\n",
            format!("walpost.toml:2:3: postgres.slott: unknown field `slott`, expected one of {known}; did you mean `slot`?"),
        ),
        (
            "\n[delivry]\nin_flight_rows = 5\n",
            "walpost.toml:2:2: delivry: unknown field `delivry`, expected one of `postgres`, `outbox`, `kafka`, `delivery`, `dead_letters`, `http`; did you mean `delivery`?".into(),
        ),
        (
            "[postgres]\njudge = true\n",
            format!("walpost.toml:2:1: postgres.judge: unknown field `judge`, expected one of {known}"),
        ),
        (
            "[[outbox]]\ntable = \"a\"\non_poison = \"maybe\"",
            "walpost.toml:3:13: outbox.0.on_poison: unknown variant `maybe`, expected one of `hold-key`, `skip`, `stop`".into(),
        ),
        (
            "[[outbox]]\ntable = \"a\"\non_poison = \"hold_key\"",
            "walpost.toml:3:13: outbox.0.on_poison: unknown variant `hold_key`, expected one of `hold-key`, `skip`, `stop`; did you mean `hold-key`?".into(),
        ),
        (
            "[[outbox]]\ntable = \"a\"\npreset = \"nothing\"",
            "walpost.toml:3:10: outbox.0.preset: unknown variant `nothing`, expected `walpost` or `debezium`".into(),
        ),
        ("[[outbox]]\ntopic = \"a\"\n", "walpost.toml:1:1: outbox.0: missing field `table`".into()),
        (
            "[[outbox]]\ntable = \"a.b.c\"",
            "walpost.toml:2:9: outbox.0.table: `a.b.c` has more than schema and name; write it as in \"public.outbox\"".into(),
        ),
        (
            "[delivery]\nin_flight_bytes = \"64 apples\"",
            "walpost.toml:2:19: delivery.in_flight_bytes: `64 apples` is not a size; write one such as \"16MiB\" or \"64MB\"".into(),
        ),
        (
            "[postgres]\nstatus_interval = \"soon\"",
            "walpost.toml:2:19: postgres.status_interval: `soon` is not a duration; write a duration with its unit, such as \"10s\", \"500ms\" or \"5m\"".into(),
        ),
        (
            "[postgres]\nstatus_interval = 5",
            "walpost.toml:2:19: postgres.status_interval: `5` has no unit; write a duration with its unit, such as \"10s\", \"500ms\" or \"5m\"".into(),
        ),
        (
            "[dead_letters]\nretry_after = [\"1m\", \"soon\"]",
            "walpost.toml:2:22: dead_letters.retry_after.1: `soon` is not a duration; write a duration with its unit, such as \"10s\", \"500ms\" or \"5m\"".into(),
        ),
        (
            "[dead_letters]\nguard = { counts = 1 }",
            "walpost.toml:2:11: dead_letters.guard.counts: unknown field `counts`, expected `count` or `within`; did you mean `count`?".into(),
        ),
        ("kafka = 5", "walpost.toml:1:9: kafka: invalid type: integer `5`, expected a table".into()),
        (
            "[kafka.properties]\nlinger.ms = 5",
            "walpost.toml:2:1: kafka.properties.linger: a property's whole name goes in quotes, as in \"linger.ms\" = 5".into(),
        ),
        (
            "[kafka.properties]\n\"sasl.password\" = 1.5",
            "walpost.toml:2:19: kafka.properties.sasl.password: a property is text, an integer, true or false".into(),
        ),
    ] {
        assert_eq!(bad(text, &[]), error, "{text}");
    }
}

#[test]
fn limits_name_the_place_too() {
    for (text, error) in [
        (
            "[postgres]\nslot = \"Walpost\"",
            "walpost.toml:2:8: postgres.slot: a slot's name has 1 to 63 lower-case letters, digits and underscores",
        ),
        (
            "[delivery]\nin_flight_rows = 0",
            "walpost.toml:2:18: delivery.in_flight_rows: 1 to 2147483647 rows",
        ),
        (
            "[dead_letters]\nretry_after = [\"1m\", \"0s\"]",
            "walpost.toml:2:22: dead_letters.retry_after.1: must be longer than zero",
        ),
        (
            "[dead_letters]\nguard = { count = 5, within = \"0s\" }",
            "walpost.toml:2:31: dead_letters.guard.within: must be longer than zero",
        ),
        (
            "[dead_letters]\nmax_held_rows = 0",
            "walpost.toml:2:17: dead_letters.max_held_rows: at least 1; `on_poison = \"skip\"` holds no rows",
        ),
        (
            "[dead_letters]\nkeep_resolved = \"36501d\"",
            "walpost.toml:2:17: dead_letters.keep_resolved: at most 36500d",
        ),
        (
            "[dead_letters]\ntopic = \"a b\"",
            "walpost.toml:2:9: dead_letters.topic: a topic's name has 1 to 249 letters, digits, dots, underscores and hyphens; \"\" for no copies",
        ),
        (
            "[http]\nlisten = \"9464\"",
            "walpost.toml:2:10: http.listen: write address:port, such as \"127.0.0.1:9464\", or \"\" to switch it off",
        ),
        (
            "[kafka.properties]\n\"transactional.id\" = \"x\"",
            "walpost.toml:2:22: kafka.properties.transactional.id: cannot be set: this version doesn't use transactions; leave it out",
        ),
        (
            "[kafka]\nbrokers = \"\"",
            "walpost.toml:2:11: kafka.brokers: write host:port, several with commas",
        ),
        (
            "[[outbox]]\ntable = \"outbox\"",
            "walpost.toml:4:9: outbox.1.table: table public.outbox is there already: each table once",
        ),
        (
            "[[outbox]]\ntable = \"b\"\nmessages = true\n[[outbox]]\ntable = \"c\"\nmessages = true",
            "walpost.toml:6:12: outbox.1.messages: messages of prefix `walpost` are mapped by one table alone, and an earlier one has `messages = true`",
        ),
    ] {
        assert_eq!(bad(&format!("{text}\n{OUTBOX}"), &[]), error, "{text}");
    }
    assert_eq!(
        bad("", &[]),
        "configuration: outbox: name the table to publish: `[[outbox]]` with `table = \"public.outbox\"`"
    );
    let env = [("WALPOST_POSTGRES__SLOT", "a-b")];
    let error = "WALPOST_POSTGRES__SLOT: postgres.slot: a slot's name has 1 to 63 lower-case letters, digits and underscores";
    assert_eq!(bad(OUTBOX, &env), error);
    let env = [("WALPOST_KAFKA__PROPERTIES__ACKS", "1")];
    assert!(
        bad(OUTBOX, &env)
            .starts_with("WALPOST_KAFKA__PROPERTIES__ACKS: kafka.properties.acks: must stay all")
    );
}

#[test]
fn the_environment_beats_the_file() {
    let config = good(
        "[postgres]\nslot = \"of_file\"\n[kafka.properties]\n\"linger.ms\" = 5",
        &[
            ("WALPOST_POSTGRES__SLOT", "12345"),
            ("WALPOST_POSTGRES__PUBLICATION", "p"),
            ("WALPOST_KAFKA__PROPERTIES__LINGER_MS", "9"),
            ("WALPOST_KAFKA__PROPERTIES__SASL_PASSWORD", "1_000"),
            ("WALPOST_OUTBOX__0__TOPIC", "t"),
            ("WALPOST_HTTP__NOT_READY_AFTER", "7s"),
            ("WALPOST_DELIVERY__IN_FLIGHT_ROWS", "8"),
            ("WALPOST_DELIVERY__IN_FLIGHT_BYTES", "1048576"),
            ("WALPOST_DEAD_LETTERS__GUARD__COUNT", "3"),
            ("WALPOST_DEAD_LETTERS__RETRY_AFTER", "1s, 5m"),
            ("WALPOST_CONFIG", "elsewhere"),
            ("WALPOST_LOG_LEVEL", "debug"),
            ("WALPOST_LOG_FORMAT", "json"),
            ("PATH", "/bin"),
        ],
    );
    assert_eq!(
        (
            config.postgres.slot.as_str(),
            config.postgres.publication.as_str()
        ),
        ("12345", "p")
    );
    assert_eq!(config.kafka.properties["linger.ms"], "9");
    assert_eq!(config.kafka.properties["sasl.password"], "1_000");
    assert_eq!(
        (
            config.outbox[0].topic.as_str(),
            config.outbox[0].table.name.as_str()
        ),
        ("t", "outbox")
    );
    assert_eq!(config.http.not_ready_after, Duration::from_secs(7));
    assert_eq!(
        (
            config.delivery.in_flight_rows,
            config.delivery.in_flight_bytes
        ),
        (8, 1 << 20)
    );
    assert_eq!(config.dead_letters.guard, guard(3, 60));
    let retry_after = [1, 300].map(Duration::from_secs);
    assert_eq!(config.dead_letters.retry_after, retry_after);
    for (list, seconds) in [
        ("[]", vec![]),
        ("", vec![]),
        ("[\"7s\"]", vec![7]),
        ("7s", vec![7]),
    ] {
        let config = good("", &[("WALPOST_DEAD_LETTERS__RETRY_AFTER", list)]);
        let parsed = config
            .dead_letters
            .retry_after
            .iter()
            .map(Duration::as_secs);
        assert_eq!(parsed.collect::<Vec<_>>(), seconds, "{list}");
    }
}

#[test]
fn the_environment_alone_is_enough() {
    let config = parse(
        "",
        &[
            ("WALPOST_OUTBOX__0__TABLE", "sales.outbox"),
            ("WALPOST_OUTBOX__0__KEY", ""),
        ],
    )
    .unwrap();
    assert_eq!(config.outbox[0].table.to_string(), "sales.outbox");
    assert_eq!(config.outbox[0].key, "");
}

#[test]
fn errors_of_a_variable_name_it_and_the_nearest() {
    for (name, value, error) in [
        (
            "WALPOST_KAFKA__BROKRES",
            "x",
            "kafka.brokres: unknown field `brokres`, expected one of `brokers`, `properties`, `property_files`; did you mean `WALPOST_KAFKA__BROKERS`?",
        ),
        (
            "WALPOST_KAFAK__BROKERS",
            "5",
            "kafak: unknown field `kafak`, expected one of `postgres`, `outbox`, `kafka`, `delivery`, `dead_letters`, `http`; did you mean `WALPOST_KAFKA__BROKERS`?",
        ),
        (
            "WALPOST_OUTBOX__0__TABEL",
            "x",
            "outbox.0.tabel: unknown field `tabel`, expected one of `table`, `preset`, `topic`, `topic_column`, `topic_regex`, `topic_replacement`, `key`, `format`, `on_poison`, `order_by`, `messages`, `timestamp_column`, `tracing_column`, `tombstone_on_empty`, `expand_json`, `json_nulls`, `json_empty_arrays`, `cloudevents_source`, `additional`, `columns`; did you mean `WALPOST_OUTBOX__0__TABLE`?",
        ),
        (
            "WALPOST_OUTBOX__2__TABLE",
            "x",
            "there are 1 tables, so the next number is 1",
        ),
        (
            "WALPOST_OUTBOX__X__TABLE",
            "x",
            "`x` is not the number of a table, as in WALPOST_OUTBOX__0__TABLE",
        ),
        (
            "WALPOST_OUTBOX__TABLE",
            "x",
            "write the table's number and the key, as in WALPOST_OUTBOX__0__TABLE",
        ),
        (
            "WALPOST_DELIVERY__IN_FLIGHT_ROWS",
            "many",
            "delivery.in_flight_rows: invalid type: string \"many\", expected usize",
        ),
        (
            "WALPOST_DELIVERY__IN_FLIGHT_ROWS",
            "-5",
            "delivery.in_flight_rows: invalid value: integer `-5`, expected usize",
        ),
        (
            "WALPOST_HTTP__NOT_READY_AFTER",
            "7",
            "http.not_ready_after: `7` has no unit; write a duration with its unit, such as \"10s\", \"500ms\" or \"5m\"",
        ),
        (
            "WALPOST_DEAD_LETTERS__RETRY_AFTER",
            "1m,soon",
            "dead_letters.retry_after: `soon` is not a duration; write a duration with its unit, such as \"10s\", \"500ms\" or \"5m\"",
        ),
        (
            "WALPOST_DEAD_LETTERS__GUARD__COUNTS",
            "1",
            "dead_letters.guard.counts: unknown field `counts`, expected `count` or `within`; did you mean `WALPOST_DEAD_LETTERS__GUARD__COUNT`?",
        ),
        (
            "WALPOST_DEAD_LETTERS_GUARD_COUNT",
            "1",
            "unknown variable; did you mean `WALPOST_DEAD_LETTERS__GUARD__COUNT`?",
        ),
        (
            "WALPOST_POSTGRES__SLOT__NAME",
            "x",
            "postgres.slot: invalid type: map, expected a string",
        ),
        (
            "WALPOST_SLOT",
            "x",
            "unknown variable; did you mean `WALPOST_POSTGRES__SLOT`?",
        ),
        (
            "WALPOST_POSTGRES_SLOT",
            "x",
            "unknown variable; did you mean `WALPOST_POSTGRES__SLOT`?",
        ),
        (
            "WALPOST_LOGLEVEL",
            "x",
            "unknown variable; did you mean `WALPOST_LOG_LEVEL`?",
        ),
        (
            "WALPOST_XYZZY",
            "x",
            "unknown variable; a key's variable is WALPOST_<SECTION>__<KEY>, such as WALPOST_POSTGRES__SLOT",
        ),
        (
            "WALPOST_postgres__slot",
            "x",
            "unknown variable; did you mean `WALPOST_POSTGRES__SLOT`?",
        ),
        (
            "WALPOST_KAFKA__",
            "x",
            "unknown variable; did you mean `WALPOST_KAFKA__BROKERS`?",
        ),
        (
            "WALPOST_PORT_9464_TCP",
            "x",
            "unknown variable; a Kubernetes Service named walpost? set enableServiceLinks: false",
        ),
    ] {
        assert_eq!(bad(OUTBOX, &[(name, value)]), format!("{name}: {error}"));
    }
    assert_eq!(
        bad("", &[("WALPOST_OUTBOX__0__TOPIC", "t")]),
        "WALPOST_OUTBOX__0__TOPIC: outbox.0: missing field `table`"
    );
    let text = format!("postgres = 5\n{OUTBOX}");
    let error = "WALPOST_POSTGRES__SLOT: `postgres` is not a table in the configuration file";
    assert_eq!(bad(&text, &[("WALPOST_POSTGRES__SLOT", "x")]), error);
}

#[test]
fn shared_variables_count_only_where_nothing_else_is_set() {
    let shared = [
        ("DATABASE_URL", "postgres://shared"),
        ("KAFKA_BROKERS", "shared:1"),
    ];
    let url = |config: &Config| {
        config
            .postgres
            .url
            .as_ref()
            .map(|url| url.reveal().to_string())
    };

    let config = good("", &shared);
    assert_eq!(
        (url(&config).as_deref(), config.kafka.brokers.as_str()),
        (Some("postgres://shared"), "shared:1")
    );

    let config = good(
        "[postgres]\nurl = \"postgres://own\"\n[kafka]\nbrokers = \"own:1\"",
        &shared,
    );
    assert_eq!(
        (url(&config).as_deref(), config.kafka.brokers.as_str()),
        (Some("postgres://own"), "own:1")
    );

    let own = [
        ("WALPOST_POSTGRES__URL", "postgres://own"),
        ("WALPOST_KAFKA__BROKERS", "own:1"),
    ];
    let config = good("", &[&shared[..], &own[..]].concat());
    assert_eq!(
        (url(&config).as_deref(), config.kafka.brokers.as_str()),
        (Some("postgres://own"), "own:1")
    );

    // Empty is as good as not set.
    let config = good(
        "[postgres]\nurl = \"\"",
        &[&shared[..], &[("WALPOST_KAFKA__BROKERS", "")]].concat(),
    );
    assert_eq!(
        (url(&config).as_deref(), config.kafka.brokers.as_str()),
        (Some("postgres://shared"), "shared:1")
    );
    assert_eq!(url(&good("", &[("DATABASE_URL", "")])), None);
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.toml");
    let error = load(Some(&missing), &Env::default()).unwrap_err();
    assert_eq!(error.exit, Exit::Usage);
    assert!(error.to_string().starts_with(&format!(
        "cannot read the configuration file {}: No such file",
        missing.display()
    )));

    let latin1 = folder.path().join("latin1.toml");
    fs::write(&latin1, b"[postgres]\nslot = \"\xe9\"\n").unwrap();
    let error = load(Some(&latin1), &Env::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}:2:9: not UTF-8", latin1.display())
    );
}

#[test]
fn secrets_are_not_shown() {
    let config = good(
        "[postgres]\nurl = \"postgres://u:hunter2@h/d\"\n[kafka.properties]\n\"sasl.password\" = \"hunter2\"",
        &[],
    );
    assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
}

//! What a row becomes: topic, key, value, headers, timestamp, byte by byte.

use crate::harness::{
    Scene,
    kafka::Kafka,
    postgres::Server,
    sql::{hex, quote},
};

const STAMP: &str = "2024-02-29 12:34:56.789+00";
const STAMP_MS: i64 = 1_709_210_096_789;

#[test]
fn a_row_becomes_topic_key_value_timestamp_and_headers_and_no_more() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let _run = scene.started(&walpost);
    let payload = r#"{"b": 1, "a": [1, 2.50], "s": "ü"}"#;
    let id = scene.insert_row(&[
        ("aggregate_id", "'o-1'"),
        ("aggregate_version", "7"),
        ("event_type", "'OrderPlaced'"),
        ("schema_version", "2"),
        ("payload", &quote(Some(payload))),
        ("headers", r#"'{"traceparent": "00-aa-bb-01", "n": "é"}'"#),
        ("occurred_at", &quote(Some(STAMP))),
    ]);
    let records = scene.wait_records(1);
    let [record] = &records[..] else {
        panic!("one record: {records:?}")
    };
    assert_eq!(record.key.as_deref(), Some(&b"o-1"[..]));
    let stored = scene
        .sql
        .value("SELECT payload::text FROM public.outbox")
        .expect("a payload");
    assert_eq!(record.value.as_deref(), Some(stored.as_bytes()));
    assert_eq!(record.timestamp, Some(STAMP_MS));
    let position = record.header("wal_position").expect("wal_position");
    assert!(position.ends_with(":1"), "{position}");
    // jsonb keeps short names before long ones: stored order.
    let headers = [
        ("event_id", Some(id.as_str())),
        ("aggregate_type", Some("order")),
        ("aggregate_version", Some("7")),
        ("event_type", Some("OrderPlaced")),
        ("schema_version", Some("2")),
        ("wal_position", Some(position)),
        ("n", Some("é")),
        ("traceparent", Some("00-aa-bb-01")),
    ];
    assert_eq!(record.texts(), headers);
}

#[test]
fn json_headers_are_raw_text_null_or_json_and_never_built_in_names() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let _run = scene.started(&walpost);
    let odd = r#"{"s": "a b", "nil": null, "empty": "", "n": 12.50, "big": 123456789012345678901234567890, "t": true,
                  "o": {"z": [1, 2.0], "a": null}, "é": "漢", "q": "a\"b\\c\nd"}"#;
    let fake = r#"{"event_id": "f", "aggregate_type": "f", "aggregate_version": "f", "event_type": "f", "schema_version": "f",
                   "wal_position": "f", "walpost_replay": "f", "mine": "x"}"#;
    for headers in [
        quote(Some(odd)),
        quote(Some(fake)),
        "'{}'".into(),
        "NULL".into(),
    ] {
        scene.insert_row(&[("headers", &headers)]);
    }
    let records = scene.wait_records(4);
    let spread = scene.sql.rows(
        "SELECT key, CASE WHEN jsonb_typeof(value) IN ('string', 'null') THEN value #>> '{}' ELSE value::text END
         FROM (SELECT headers FROM public.outbox ORDER BY seq LIMIT 1) first, jsonb_each(headers)",
    );
    let spread: Vec<_> = spread
        .iter()
        .map(|row| (row[0].as_deref().unwrap_or(""), row[1].as_deref()))
        .collect();
    assert_eq!(spread.len(), 9);
    let own = [
        "event_id",
        "aggregate_type",
        "event_type",
        "schema_version",
        "wal_position",
    ];
    for (record, more) in records
        .iter()
        .zip([&spread[..], &[("mine", Some("x"))], &[], &[]])
    {
        let texts = record.texts();
        assert_eq!(
            texts[..5].iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            own,
            "a NULL column leaves its header out"
        );
        assert_eq!(&texts[5..], more);
    }
}

#[test]
fn timestamps_are_occurred_at_or_else_the_commit_time() {
    let scene = Scene::new();
    let any = i64::MAX.to_string();
    scene.create_topic(
        "order",
        1,
        &[
            ("message.timestamp.after.max.ms", &any),
            ("message.timestamp.before.max.ms", &any),
        ],
    );
    let walpost = scene.walpost();
    walpost.init();
    let _run = scene.started(&walpost);
    let exact = [
        ("1970-01-01 00:00:00.001+00", 1),
        (STAMP, STAMP_MS),
        ("2024-01-01 00:00:00.0006+05:45", 1_704_046_500_000),
        ("1999-12-31 23:59:59.999999+00", 946_684_799_999),
        ("2262-04-12 00:00:00+00", 9_223_372_800_000),
    ];
    let at_commit = [
        "infinity",
        "-infinity",
        "0044-03-15 12:00:00+00 BC",
        "1970-01-01 00:00:00+00",
        "1969-07-20 20:17:40+00",
    ];
    for (stamp, _) in exact {
        scene.insert_row(&[("occurred_at", &quote(Some(stamp)))]);
    }
    let clock = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let mut bounds = Vec::new();
    for stamp in at_commit.map(Some).into_iter().chain([None]) {
        // The transaction's start must not pass for its commit.
        let row = scene.row(&[("occurred_at", &quote(stamp))]);
        let before = scene.sql.rows(&format!(
            "BEGIN; {row}; SELECT pg_sleep(0.02); SELECT {clock}"
        ));
        let before: i64 = before
            .last()
            .and_then(|row| row[0].as_deref())
            .and_then(|text| text.parse().ok())
            .expect("a time");
        scene.sql.run("COMMIT");
        bounds.push((
            stamp,
            before - 1,
            scene.sql.number(&format!("SELECT {clock}")) + 1,
        ));
    }
    let records = scene.wait_records(exact.len() + bounds.len());
    for (record, (stamp, ms)) in records.iter().zip(exact) {
        assert_eq!(record.timestamp, Some(ms), "{stamp}");
    }
    for (record, (stamp, before, after)) in records[exact.len()..].iter().zip(bounds) {
        let time = record.timestamp.expect("a timestamp");
        assert!(
            (before..=after).contains(&time),
            "{stamp:?} became {time}, committed between {before} and {after}"
        );
    }
}

#[test]
fn null_and_empty_stay_apart() {
    let scene = Scene::new();
    scene.create_table("text");
    let walpost = scene.ready(1);
    let _run = scene.started(&walpost);
    let cases = [
        (None, Some("k")),
        (Some(""), Some("k")),
        (Some("null"), Some("k")),
        (Some("p"), None),
        (Some("p"), Some("")),
        (None, None),
        (Some(""), Some("")),
    ];
    for (payload, key) in cases {
        scene.insert_row(&[("payload", &quote(payload)), ("aggregate_id", &quote(key))]);
    }
    for (record, (payload, key)) in scene.wait_records(cases.len()).iter().zip(cases) {
        assert_eq!(
            record.value.as_deref(),
            payload.map(str::as_bytes),
            "payload {payload:?}"
        );
        assert_eq!(record.key.as_deref(), key.map(str::as_bytes), "key {key:?}");
    }
    // The database tells NULL from empty in headers too.
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let _run = scene.started(&walpost);
    scene.insert_row(&[
        ("headers", r#"'{"null": null, "empty": ""}'"#),
        ("payload", "'null'"),
    ]);
    let records = scene.wait_records(1);
    let headers: Vec<_> = records[0].headers[5..]
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_deref()))
        .collect();
    assert_eq!(headers, [("null", None), ("empty", Some(&b""[..]))]);
    assert_eq!(
        records[0].value.as_deref(),
        Some(&b"null"[..]),
        "jsonb null is the four bytes"
    );
}

#[test]
fn json_text_passes_untouched() {
    for kind in ["json", "jsonb"] {
        let scene = Scene::new();
        scene.create_table(kind);
        let walpost = scene.ready(1);
        let _run = scene.started(&walpost);
        let values = [
            r#"{"a":1,  "a": 2,	"b": 12345678901234567890.1230, "": "\u00e9\/"}"#,
            r#""x""#,
            "[]",
            "  1e400",
            "null",
            "true",
        ];
        for value in values {
            scene.insert_row(&[("payload", &quote(Some(value)))]);
        }
        let records = scene.wait_records(values.len());
        for (record, value) in records.iter().zip(values) {
            let stored = scene
                .sql
                .value(&format!("SELECT {}::{kind}::text", quote(Some(value))))
                .expect("text");
            assert_eq!(
                record.value.as_deref(),
                Some(stored.as_bytes()),
                "{kind} {value}"
            );
            assert!(kind == "jsonb" || stored == value);
        }
    }
}

#[test]
fn bytea_and_text_pass_whatever_the_role_is_set_to() {
    let scene = Scene::new();
    scene.create_table("bytea");
    scene.create_topic("order", 1, &[]);
    let settings = [
        ("bytea_output", "'escape'"),
        ("datestyle", "'SQL, DMY'"),
        ("timezone", "'Asia/Tokyo'"),
        ("intervalstyle", "'sql_standard'"),
        ("extra_float_digits", "-5"),
        ("client_encoding", "'LATIN1'"),
        ("standard_conforming_strings", "off"),
    ];
    for (name, value) in settings {
        scene.publisher_setting(name, value);
    }
    let walpost = scene.walpost();
    walpost.init();
    let _run = scene.started(&walpost);
    let every: Vec<u8> = (0..=255).collect();
    let payloads = [
        every.clone(),
        Vec::new(),
        vec![0],
        every.repeat(40),
        br"\x00".to_vec(),
        br"\\".to_vec(),
    ];
    for payload in &payloads {
        scene.insert_row(&[
            ("payload", &hex(payload)),
            ("occurred_at", &quote(Some(STAMP))),
            ("headers", r#"'{"h": "漢"}'"#),
            ("aggregate_id", "'ключ'"),
        ]);
    }
    for (record, payload) in scene.wait_records(payloads.len()).iter().zip(&payloads) {
        assert_eq!(record.value.as_ref(), Some(payload));
        assert_eq!(record.timestamp, Some(STAMP_MS));
        assert_eq!(record.header("h"), Some("漢"));
        assert_eq!(record.key.as_deref(), Some("ключ".as_bytes()));
    }
}

#[test]
fn invalid_utf8_of_a_sql_ascii_database_passes_as_it_is() {
    let options = "ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'";
    let scene = Scene::with_options(Server::shared(), Kafka::shared(), options);
    scene.create_table("text");
    let walpost = scene.ready(1);
    let _run = scene.started(&walpost);
    let payloads = [&b"caf\xe9 \xff\xfe"[..], b"\xc3", "é".as_bytes()];
    for payload in payloads {
        scene.insert_row(&[(
            "payload",
            &format!("convert_from({}, 'SQL_ASCII')", hex(payload)),
        )]);
    }
    for (record, payload) in scene.wait_records(payloads.len()).iter().zip(payloads) {
        assert_eq!(record.value.as_deref(), Some(payload));
    }
    scene.wait_confirmed(60);
}

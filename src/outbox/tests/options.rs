//! One option at a time: what it does, and what it refuses.

use super::*;

#[test]
fn topics_from_a_template_a_column_or_an_expression() {
    let cells = [
        ("tenant", TEXT, Some("acme")),
        ("target", TEXT, Some("orders_v3")),
    ];
    for (config, topic) in [
        ("", "outbox.event.order"),
        (
            "topic = \"orders.{aggregate_type}.v{schema_version}\"",
            "orders.order.v2",
        ),
        ("topic = \"{tenant}.{{x}}\"", ""),
        ("topic = \"{tenant}-{event_id}\"", "acme-e-1"),
        ("topic_column = \"target\"", "orders_v3"),
        (
            "topic_column = \"target\"\ntopic_regex = '(.*)_v(\\d+)'\ntopic_replacement = \"$1.$2\"",
            "orders.3",
        ),
        (
            "topic_regex = \"(?<routedByValue>.*)\"\ntopic_replacement = \"to.${routedByValue}\"",
            "to.order",
        ),
        ("topic_regex = \"ord\"\ntopic_replacement = \"x\"", "order"),
        (
            "topic = \"a.{tenant}\"\ntopic_regex = 'a\\.(.*)'\ntopic_replacement = \"b.$1\"",
            "b.acme",
        ),
        (
            "columns = { aggregate_type = \"tenant\" }",
            "outbox.event.acme",
        ),
    ] {
        match topic {
            // A brace is no part of a topic's name.
            "" => assert_eq!(code(stream(config, &cells)), "topic_invalid"),
            topic => assert_eq!(stream(config, &cells).unwrap().topic, topic, "{config}"),
        }
    }
    let config = "topic_column = \"target\"";
    assert_eq!(
        code(stream(config, &[("target", TEXT, None)])),
        "topic_null"
    );
}

#[test]
fn keys_from_any_column_or_none() {
    let cells = [("tenant", INT8, Some("77"))];
    for (config, key) in [
        ("", Some("o-1")),
        ("key = \"tenant\"", Some("77")),
        ("key = \"\"", None),
        ("columns = { aggregate_id = \"tenant\" }", Some("77")),
        ("columns = { aggregate_id = false }", None),
        (
            "key = \"event_id\"\ncolumns = { aggregate_id = false }",
            Some("e-1"),
        ),
    ] {
        let told = stream(config, &cells).unwrap();
        assert_eq!(told.key.as_deref(), key.map(str::as_bytes), "{config}");
    }
}

#[test]
fn roles_take_other_columns_or_are_switched_off() {
    let cells = [("Ereignis", TEXT, Some("x-9")), ("art", TEXT, Some("Neu"))];
    let config = "columns = { event_id = \"Ereignis\", event_type = \"art\", aggregate_version = false, schema_version = false, \
                  headers = false, occurred_at = false }";
    let told = stream(config, &cells).unwrap();
    let headers = [
        pair("event_id", "x-9"),
        pair("aggregate_type", "order"),
        pair("event_type", "Neu"),
        pair("wal_position", "0/16B3748:3"),
    ];
    assert_eq!(
        (told.headers, told.timestamp),
        (headers.to_vec(), COMMITTED.unix_millis())
    );
    // One column may have several roles.
    let both = stream("columns = { event_id = \"aggregate_id\" }", &[]).unwrap();
    assert_eq!(
        (both.header("event_id"), both.key.as_deref()),
        (Some("o-1"), Some(&b"o-1"[..]))
    );
}

#[test]
fn timestamps_from_a_column_of_times_or_of_milliseconds() {
    let commit = COMMITTED.unix_millis();
    let config = "timestamp_column = \"at\"";
    for (kind, text, ms) in [
        (
            TIMESTAMPTZ,
            Some("2020-01-01 00:00:00+00"),
            1_577_836_800_000,
        ),
        (1114, Some("2020-01-01 00:00:00"), 1_577_836_800_000),
        (INT8, Some("1577836800123"), 1_577_836_800_123),
        (TEXT, Some("2020-01-01T00:00:00Z"), 1_577_836_800_000),
        (INT8, Some("0"), commit),
        (INT8, Some("-5"), commit),
        (INT8, Some("9223372036854775807"), commit),
        (TIMESTAMPTZ, Some("infinity"), commit),
        (TIMESTAMPTZ, None, commit),
    ] {
        assert_eq!(
            stream(config, &[("at", kind, text)]).unwrap().timestamp,
            ms,
            "{text:?}"
        );
    }
    for (kind, text) in [(TEXT, "soon"), (BOOL, "t"), (2950, "x")] {
        assert_eq!(
            code(stream(config, &[("at", kind, Some(text))])),
            "timestamp_invalid"
        );
    }
}

#[test]
fn additional_columns_go_to_header_envelope_or_partition() {
    let one = |placement: &str, more: &str| {
        format!("additional = [{{ column = \"extra\", placement = \"{placement}\"{more} }}]")
    };
    let cell = |text| [("extra", TEXT, text)];
    let told = stream(&one("header", ""), &cell(Some("x"))).unwrap();
    assert_eq!(
        told.headers[6..],
        [pair("extra", "x"), pair("traceparent", "00-a")]
    );
    let told = stream(&one("header", ", as = \"tenant\""), &cell(Some(""))).unwrap();
    assert_eq!(told.headers[6], pair("tenant", ""));
    let told = stream(&one("header", ""), &cell(None)).unwrap();
    assert_eq!(told.headers.len(), 7, "a NULL column has no header");

    let config = format!(
        "format = \"envelope\"\n{}",
        one("envelope", ", as = \"tenant\"")
    );
    for (kind, text, json) in [
        (TEXT, Some("7"), "\"7\""),
        (INT4, Some("7"), "7"),
        (JSONB, Some("[1,  2]"), "[1,  2]"),
        (BOOL, Some("t"), "true"),
        (TEXT, None, "null"),
    ] {
        let told = stream(&config, &[("extra", kind, text)]).unwrap();
        let expected = format!(",\"tenant\":{json},");
        assert!(told.text().unwrap().contains(&expected), "{told:?}");
    }

    for (kind, text, partition) in [
        (INT4, Some("0"), Ok(Some(0))),
        (INT8, Some("11"), Ok(Some(11))),
        (TEXT, Some("3"), Ok(Some(3))),
        (INT4, None, Ok(None)),
        (INT4, Some("-1"), Err("partition_invalid")),
        (INT8, Some("2147483648"), Err("partition_invalid")),
        (TEXT, Some("first"), Err("partition_invalid")),
    ] {
        let told = stream(&one("partition", ""), &[("extra", kind, text)]);
        assert_eq!(
            told.map(|t| t.partition).map_err(|e| e.code),
            partition,
            "{text:?}"
        );
    }
}

#[test]
fn an_additional_column_that_is_missing_is_an_error_unless_it_may_be() {
    let config = "additional = [{ column = \"extra\", placement = \"header\" }]";
    let error = stream(config, &[]).unwrap_err();
    assert_eq!(error.code, "column_missing");
    assert!(error.text.contains("extra"), "{error}");
    let config =
        "additional = [{ column = \"extra\", placement = \"header\", missing = \"ignore\" }]";
    assert_eq!(stream(config, &[]).unwrap().headers.len(), 7);
    assert_eq!(
        stream(config, &[("extra", TEXT, Some("x"))])
            .unwrap()
            .headers
            .len(),
        8
    );
}

#[test]
fn an_empty_payload_is_a_tombstone_where_it_is_asked_for() {
    let config = "tombstone_on_empty = true";
    for (kind, text) in [(TEXT, ""), (TEXT, " \t\n"), (BYTEA, "\\x"), (JSONB, "null")] {
        let kept = stream("", &[("payload", kind, Some(text))]).unwrap();
        assert!(kept.value.is_some(), "{text:?}");
        let told = stream(config, &[("payload", kind, Some(text))]).unwrap();
        assert_eq!(told.value.is_none(), text != "null", "{text:?}");
    }
    assert_eq!(
        stream(config, &[("payload", JSONB, None)]).unwrap().value,
        None
    );
}

#[test]
fn null_fields_and_empty_arrays_are_dropped_where_it_is_asked_for() {
    let json = r#"{"a": null, "b": [], "c": [null, []], "d": 1.50}"#;
    for (config, kind, expected) in [
        ("json_nulls = \"keep\"", JSONB, json),
        (
            "json_nulls = \"drop\"",
            JSONB,
            r#"{"b":[],"c":[null,[]],"d":1.50}"#,
        ),
        (
            "json_empty_arrays = \"drop\"",
            114,
            r#"{"a":null,"c":[null,[]],"d":1.50}"#,
        ),
        (
            "json_nulls = \"drop\"\njson_empty_arrays = \"drop\"",
            JSONB,
            r#"{"c":[null,[]],"d":1.50}"#,
        ),
        // A text is no JSON unless it is said to be.
        ("json_nulls = \"drop\"", TEXT, json),
        (
            "json_nulls = \"drop\"\nexpand_json = true",
            TEXT,
            r#"{"b":[],"c":[null,[]],"d":1.50}"#,
        ),
    ] {
        let told = stream(config, &[("payload", kind, Some(json))]).unwrap();
        assert_eq!(told.text(), Some(expected), "{config}");
    }
    // What cannot be parsed stays as it is.
    let config = "json_nulls = \"drop\"\nexpand_json = true";
    for text in ["{\"a\": null", "null", "plain"] {
        assert_eq!(
            stream(config, &[("payload", TEXT, Some(text))])
                .unwrap()
                .text(),
            Some(text)
        );
    }
}

#[test]
fn a_serialized_trace_context_becomes_headers() {
    let id = "0af7651916cd43dd8448eb211c80319c";
    let context = format!("#comment\ntraceparent=00-{id}-b7ad6b7169203331-01\ntracestate=a\\=b\n");
    let cells = [
        ("tracingspancontext", TEXT, Some(context.as_str())),
        ("headers", JSONB, None),
    ];
    let config = "tracing_column = \"tracingspancontext\"\nformat = \"envelope\"";
    let told = stream(config, &cells).unwrap();
    assert_eq!(told.names()[6..], ["traceparent", "tracestate"]);
    assert_eq!(told.header("tracestate"), Some("a=b"));
    assert!(
        told.text()
            .unwrap()
            .contains(&format!("\"trace_id\":\"{id}\""))
    );
    let none = [("tracingspancontext", TEXT, None), ("headers", JSONB, None)];
    assert_eq!(stream(config, &none).unwrap().names().len(), 6);
    // It is written by the application too, and cannot pass for walpost.
    let forged = "wal_position=0/1:1\nevent_id=forged\nbaggage=x\n";
    let forged = [("tracingspancontext", TEXT, Some(forged)), cells[1]];
    let told = stream(config, &forged).unwrap();
    assert_eq!(told.names()[6..], ["baggage"]);
    assert_eq!(told.header("event_id"), Some("e-1"));
    assert_eq!(told.header("wal_position"), Some("0/16B3748:3"));
}

#[test]
fn what_would_come_to_nothing_is_refused_by_name() {
    let additional = |inside: &str| format!("additional = [{{ column = \"c\", {inside} }}]");
    for (config, words) in [
        (
            "topic = \"a.{\"".into(),
            "outbox.0.topic: template \"a.{\" opens a brace",
        ),
        (
            "topic = \"x\"\ntopic_column = \"y\"".into(),
            "exclude each other",
        ),
        (
            "topic_regex = \"x\"".into(),
            "outbox.0.topic_regex: needs `topic_replacement`",
        ),
        (
            "topic_replacement = \"x\"".into(),
            "outbox.0.topic_replacement: belongs to `topic_regex`",
        ),
        (
            "columns = { aggregate_type = false }".into(),
            "set `topic` or `topic_column`",
        ),
        (
            "columns = { event_idd = \"x\" }".into(),
            "unknown field `event_idd`",
        ),
        (
            "columns = { event_id = 5 }".into(),
            "expected a column's name, or false",
        ),
        (
            "columns = { event_id = true }".into(),
            "write the column's name",
        ),
        ("columns = { event_id = \"\" }".into(), "not empty"),
        ("format = \"avro\"".into(), "unknown variant `avro`"),
        (
            "expand_json = true".into(),
            "outbox.0.expand_json: changes nothing in format raw",
        ),
        (
            "cloudevents_source = \"x\"".into(),
            "outbox.0.cloudevents_source: is of formats",
        ),
        (
            "format = \"cloudevents\"\ncloudevents_source = \"{\"".into(),
            "outbox.0.cloudevents_source: template",
        ),
        (
            "format = \"cloudevents\"\ncloudevents_source = \"my shop/{c}\"".into(),
            "outbox.0.cloudevents_source: is to be a URI reference, in which ' '",
        ),
        (
            "format = \"cloudevents\"\ncolumns = { event_type = false }".into(),
            "columns.event_type is switched off",
        ),
        (
            additional("placement = \"envelope\""),
            "outbox.0.additional.0: column c has no envelope",
        ),
        (
            additional("placement = \"header\", as = \"event_id\""),
            "set by walpost itself",
        ),
        (
            additional("placement = \"header\", as = \"wal_position\""),
            "set by walpost itself",
        ),
        (
            additional("placement = \"partition\", as = \"x\""),
            "a partition has no name",
        ),
        (additional("placement = \"body\""), "unknown variant `body`"),
        (
            additional("placement = \"header\", missing = \"maybe\""),
            "unknown variant `maybe`",
        ),
        (
            format!(
                "format = \"envelope\"\n{}",
                additional("placement = \"envelope\", as = \"trace_id\"")
            ),
            "key of the envelope itself",
        ),
        (
            format!(
                "format = \"envelope\"\n{}",
                additional("placement = \"envelope\", as = \"payload_base64\"")
            ),
            "key of the envelope itself",
        ),
        (
            format!(
                "format = \"cloudevents\"\n{}",
                additional("placement = \"envelope\", as = \"Tenant\"")
            ),
            "cannot be an extension attribute",
        ),
        (
            format!(
                "format = \"cloudevents\"\n{}",
                additional("placement = \"header\", as = \"ce_x\"")
            ),
            "set by walpost itself",
        ),
    ] {
        let error = try_mapping(&format!("table = \"outbox\"\n{config}")).expect_err(&config);
        assert!(error.contains(words), "{config}: {error}");
    }
}

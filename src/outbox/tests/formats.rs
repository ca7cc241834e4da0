//! The formats, byte by byte. That others read them is tested with their own library, in tests/it.

use serde_json::{Value, json};

use super::*;

const TRACE: &str = "{\"traceparent\": \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\", \"tracestate\": \"a=b\"}";

fn body(told: &Told) -> Value {
    serde_json::from_str(told.text().expect("a value")).expect("JSON")
}

#[test]
fn an_envelope_has_the_events_columns_and_the_payload_as_it_is() {
    let told = stream("format = \"envelope\"", &[("headers", JSONB, Some(TRACE))]).unwrap();
    assert_eq!(
        told.text(),
        Some(
            r#"{"event_id":"e-1","event_type":"Placed","aggregate_type":"order","aggregate_id":"o-1","aggregate_version":7,"schema_version":2,"occurred_at":"2024-02-29T12:34:56.789Z","trace_id":"0af7651916cd43dd8448eb211c80319c","payload":{"b":  1}}"#
        )
    );
    // The headers are there as in format raw.
    assert_eq!(told.names()[..6], stream("", &[]).unwrap().names()[..6]);
    assert_eq!(told.key.as_deref(), Some(&b"o-1"[..]));
}

#[test]
fn an_envelope_tells_null_from_a_role_that_is_switched_off() {
    let cells = [
        ("aggregate_id", TEXT, None),
        ("aggregate_version", INT8, None),
        ("occurred_at", TIMESTAMPTZ, Some("infinity")),
        ("headers", JSONB, None),
    ];
    let value = body(&stream("format = \"envelope\"", &cells).unwrap());
    for null in ["aggregate_id", "aggregate_version", "trace_id"] {
        assert_eq!(value[null], Value::Null);
        assert!(value.as_object().unwrap().contains_key(null), "{null}");
    }
    assert_eq!(
        value["occurred_at"], "2000-01-01T00:00:00.001Z",
        "the commit time"
    );
    let config = "format = \"envelope\"\ncolumns = { aggregate_id = false, aggregate_version = false, headers = false, occurred_at = false }";
    let value = body(&stream(config, &[]).unwrap());
    let keys: Vec<_> = value.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "aggregate_type",
            "event_id",
            "event_type",
            "payload",
            "schema_version"
        ]
    );
}

#[test]
fn a_payload_in_an_envelope_is_json_text_or_bytes() {
    for (kind, text, key, expected) in [
        (JSONB, "null", "payload", Value::Null),
        (JSONB, "[1, \"x\"]", "payload", json!([1, "x"])),
        (TEXT, "{\"a\": 1}", "payload", json!("{\"a\": 1}")),
        (TEXT, "", "payload", json!("")),
        (BYTEA, "\\x00ff", "payload_base64", json!("AP8=")),
    ] {
        let told = stream("format = \"envelope\"", &[("payload", kind, Some(text))]).unwrap();
        assert_eq!(body(&told)[key], expected, "{text}");
    }
    let config = "format = \"envelope\"\nexpand_json = true";
    for (text, expected) in [
        ("{\"a\": 1}", json!({"a": 1})),
        ("1", json!("1")),
        ("{", json!("{")),
    ] {
        let told = stream(config, &[("payload", TEXT, Some(text))]).unwrap();
        assert_eq!(body(&told)["payload"], expected, "{text}");
    }
}

#[test]
fn a_null_payload_is_a_tombstone_in_every_format() {
    for format in ["raw", "envelope", "cloudevents", "cloudevents-structured"] {
        let told = stream(
            &format!("format = \"{format}\""),
            &[("payload", JSONB, None)],
        )
        .unwrap();
        assert_eq!(told.value, None, "{format}");
    }
}

#[test]
fn a_binary_cloudevent_has_its_attributes_in_headers_and_its_own_bytes() {
    let told = stream(
        "format = \"cloudevents\"",
        &[("headers", JSONB, Some(TRACE))],
    )
    .unwrap();
    assert_eq!(told.text(), Some("{\"b\":  1}"));
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert_eq!(
        told.headers[8..],
        [
            pair("ce_specversion", "1.0"),
            pair("ce_id", "e-1"),
            pair("ce_source", "/public.outbox"),
            pair("ce_type", "Placed"),
            pair("ce_subject", "o-1"),
            pair("ce_time", "2024-02-29T12:34:56.789Z"),
            pair("ce_traceparent", parent),
            pair("ce_tracestate", "a=b"),
            pair("content-type", "application/json"),
        ]
    );
    assert_eq!(told.names()[..6], stream("", &[]).unwrap().names()[..6]);
    for (kind, text, media) in [
        (TEXT, Some("x"), Some("text/plain; charset=UTF-8")),
        (BYTEA, Some("\\x00"), Some("application/octet-stream")),
        (JSONB, None, None),
    ] {
        let told = stream("format = \"cloudevents\"", &[("payload", kind, text)]).unwrap();
        assert_eq!(told.header("content-type"), media);
    }
}

#[test]
fn entries_with_a_cloudevents_name_are_dropped_there_alone() {
    let cells = [(
        "headers",
        JSONB,
        Some("{\"ce_id\": \"fake\", \"content-type\": \"x\", \"mine\": \"y\"}"),
    )];
    let told = stream("format = \"cloudevents\"", &cells).unwrap();
    assert_eq!(told.header("ce_id"), Some("e-1"));
    assert_eq!(
        told.names()
            .iter()
            .filter(|n| **n == "content-type")
            .count(),
        1
    );
    assert_eq!(stream("", &cells).unwrap().header("ce_id"), Some("fake"));
}

#[test]
fn a_structured_cloudevent_is_one_json_object() {
    let config = "format = \"cloudevents-structured\"\ncloudevents_source = \"https://shop.example/{tenant}\"\n\
                  additional = [{ column = \"tenant\", placement = \"envelope\" }, { column = \"vip\", placement = \"envelope\" }]";
    let cells = [
        ("headers", JSONB, None),
        ("tenant", TEXT, Some("a b/ü")),
        ("vip", BOOL, Some("t")),
    ];
    let told = stream(config, &cells).unwrap();
    assert_eq!(
        told.text(),
        Some(
            r#"{"specversion":"1.0","id":"e-1","source":"https://shop.example/a%20b%2F%C3%BC","type":"Placed","subject":"o-1","time":"2024-02-29T12:34:56.789Z","tenant":"a b/ü","vip":"true","datacontenttype":"application/json","data":{"b":  1}}"#
        )
    );
    assert_eq!(
        told.header("content-type"),
        Some("application/cloudevents+json; charset=UTF-8")
    );
    for (kind, text, key, expected) in [
        (TEXT, "x", "data", json!("x")),
        (BYTEA, "\\x00ff", "data_base64", json!("AP8=")),
        (JSONB, "null", "data", Value::Null),
    ] {
        let told = stream(
            "format = \"cloudevents-structured\"",
            &[("payload", kind, Some(text))],
        )
        .unwrap();
        assert_eq!(body(&told)[key], expected);
    }
    // Without data it is a tombstone, whose attributes are headers.
    let told = stream(
        "format = \"cloudevents-structured\"",
        &[("payload", JSONB, None)],
    )
    .unwrap();
    assert_eq!(
        (told.header("ce_id"), told.header("content-type")),
        (Some("e-1"), None)
    );
}

#[test]
fn an_event_without_id_or_type_is_no_cloudevent() {
    for format in ["cloudevents", "cloudevents-structured"] {
        for (column, value) in [
            ("event_id", None),
            ("event_id", Some("")),
            ("event_type", None),
        ] {
            let told = stream(&format!("format = \"{format}\""), &[(column, TEXT, value)]);
            assert_eq!(code(told), "cloudevent_incomplete");
        }
        let config = format!("format = \"{format}\"\ncloudevents_source = \"/{{tenant}}\"");
        assert_eq!(
            code(stream(&config, &[("tenant", TEXT, None)])),
            "cloudevent_incomplete"
        );
    }
}

/// A database of encoding SQL_ASCII has such texts.
#[test]
fn attributes_that_are_no_utf8_are_told_in_both_modes() {
    let cells = row(&[("aggregate_id", TEXT, Some("latin1: ?"))]);
    let mut tuple = tuple(&cells);
    let at = tuple.windows(9).position(|text| text == b"latin1: ?");
    tuple[at.expect("the key") + 8] = 0xe9;
    for format in ["cloudevents", "cloudevents-structured"] {
        let mapping = mapping(&format!("table = \"outbox\"\nformat = \"{format}\""));
        let told = tell(&shape(&mapping, &cells), &tuple, Origin::Stream);
        assert_eq!(code(told), "not_utf8", "{format}");
    }
}

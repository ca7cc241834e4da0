//! A message of prefix `walpost` becomes what the row would have become.

use super::*;
use crate::outbox::message::Messages;

fn message(config: &str, content: &[u8]) -> Result<Told, Unmappable> {
    let mapping = mapping(&format!("table = \"outbox\"\nmessages = true\n{config}"));
    let (shape, tuple) = Messages::new(&mapping).row(content);
    tell(&shape, &tuple, Origin::Stream)
}

const LINE: &str = r#"{"v":1,"event_id":"e-1","aggregate_type":"order","aggregate_id":"o-1","aggregate_version":7,"event_type":"Placed","schema_version":2,"occurred_at":"2024-02-29 12:34:56.789+00","headers":{"traceparent": "00-a"},"payload":"json"}"#;

#[test]
fn it_is_mapped_like_the_row() {
    let content = format!("{LINE}\n{{\"b\":  1}}");
    for config in [
        "",
        "format = \"envelope\"",
        "format = \"cloudevents\"",
        "topic = \"{event_type}.{schema_version}\"\nkey = \"event_id\"",
    ] {
        assert_eq!(
            message(config, content.as_bytes()),
            stream(config, &[]),
            "{config}"
        );
    }
    // By the names of the mapping's columns, and without the roles that are switched off.
    let config =
        "columns = { aggregate_type = \"Art\", aggregate_version = false, headers = false }";
    let told = message(config, content.as_bytes()).unwrap();
    assert_eq!(told.topic, "outbox.event.order");
    assert_eq!(
        told.names(),
        [
            "event_id",
            "aggregate_type",
            "event_type",
            "schema_version",
            "wal_position"
        ]
    );
}

#[test]
fn payloads_are_json_bytes_or_null() {
    let bytes = |kind: &str| LINE.replace("\"payload\":\"json\"", kind);
    for (kind, payload, value) in [
        ("\"payload\":\"json\"", &b"null"[..], Some(&b"null"[..])),
        (
            "\"payload\":\"bytes\"",
            &[0, 255, b'\n', b'{'],
            Some(&[0, 255, b'\n', b'{']),
        ),
        ("\"payload\":\"bytes\"", b"", Some(b"")),
        ("\"payload\":null", b"", None),
        ("\"more\":1", b"[1]", Some(b"[1]")),
    ] {
        let content = [bytes(kind).as_bytes(), b"\n", payload].concat();
        assert_eq!(
            message("", &content).unwrap().value.as_deref(),
            value,
            "{kind}"
        );
    }
    let nulls = br#"{"v":1,"aggregate_type":"order","aggregate_id":null,"event_id":null}
1"#;
    let told = message("", nulls).unwrap();
    assert_eq!(
        (&told.key, told.timestamp),
        (&None, COMMITTED.unix_millis())
    );
    assert_eq!(told.names(), ["aggregate_type", "wal_position"]);
}

#[test]
fn what_nobody_but_an_intruder_writes_cannot_be_mapped_and_is_not_shown() {
    for (content, words) in [
        (&b""[..], "no line"),
        (b"secret", "no line"),
        (b"secret\n", "does not begin with the line"),
        (b"[]\n", "does not begin with the line"),
        (b"{\"v\":1\n}", "does not begin with the line"),
        (b"{\"v\":\"secret\"}\n", "does not begin with the line"),
        (b"{\"event_id\":\"x\"}\n1", "does not begin with the line"),
        (b"{\"v\":2}\n1", "version 2"),
        (
            b"{\"v\":1,\"payload\":\"secret\"}\n1",
            "does not begin with the line",
        ),
        (
            b"{\"v\":1,\"schema_version\":\"secret\"}\n1",
            "does not begin with the line",
        ),
        (b"{\"v\":1,\"aggregate_type\":\"x\"}\nsecret", "no JSON"),
        (b"\xff\xfe\n\x00", "does not begin with the line"),
    ] {
        let error = message("", content).unwrap_err();
        assert_eq!(error.code, "message_malformed");
        assert!(
            error.text.contains(words) && !error.text.contains("secret"),
            "{content:?}: {error}"
        );
    }
    let headers = b"{\"v\":1,\"aggregate_type\":\"x\",\"headers\":[1]}\n1";
    assert_eq!(code(message("", headers)), "headers_not_an_object");
}

#[test]
fn columns_that_no_message_has_are_named() {
    let content = format!("{LINE}\n1");
    for config in [
        "topic = \"{tenant}\"",
        "key = \"tenant\"",
        "additional = [{ column = \"tenant\", placement = \"header\" }]",
    ] {
        let error = message(config, content.as_bytes()).unwrap_err();
        assert_eq!(error.code, "column_missing");
        assert!(
            error.text.contains("message, which has no column tenant"),
            "{error}"
        );
        let mapping = mapping(&format!("table = \"outbox\"\n{config}"));
        assert_eq!(Messages::new(&mapping).fault(), Some(&error));
    }
    let config =
        "additional = [{ column = \"tenant\", placement = \"header\", missing = \"ignore\" }]";
    assert_eq!(
        message(config, content.as_bytes()).unwrap().headers.len(),
        7
    );
}

//! The formats as others read them: CloudEvents by the SDK for JavaScript, which has the
//! specification's JSON schema in it.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use crate::harness::{
    Scene,
    records::Record,
    sql::{hex, quote},
};

const TRACE: &str = r#"{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b", "other": "x"}"#;
const AT: &str = "2024-02-29 12:34:56.789+00";

/// The events that the SDK finds in the records.
fn read_by_sdk(records: &[Record]) -> Vec<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/cloudevents");
    let mut sdk = Command::new(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start scripts/cloudevents");
    let mut input = sdk.stdin.take().expect("a pipe");
    for record in records {
        let headers: Map<String, Value> = record
            .texts()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        let key = record.key.as_deref().map(String::from_utf8_lossy);
        let value = STANDARD.encode(record.value.as_deref().expect("a value"));
        writeln!(
            input,
            "{}",
            json!({"key": key, "headers": headers, "value": value})
        )
        .expect("write to scripts/cloudevents");
    }
    drop(input);
    let output = sdk.wait_with_output().expect("scripts/cloudevents");
    assert!(
        output.status.success(),
        "the SDK refuses: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// Rows of this payload type, published in this format.
fn published(format: &str, payload: &str, payloads: &[Option<&str>]) -> (Vec<String>, Vec<Record>) {
    let scene = Scene::new();
    scene.create_table(payload);
    scene.create_topic("order", 1, &[]);
    let mut walpost = scene.walpost();
    walpost.outbox(format!(
        "[[outbox]]\ntable = \"public.outbox\"\ntopic = \"{}\"\nformat = \"{format}\"\n\
         additional = [{{ column = \"aggregate_version\", placement = \"envelope\", as = \"sequence\" }}]\n",
        scene.topic("{aggregate_type}")
    ));
    walpost.command(&["init"]).expect(0, &[]);
    let _run = scene.started(&walpost);
    let ids = payloads
        .iter()
        .map(|payload| {
            scene.insert_row(&[
                ("aggregate_id", "'o-1 ü'"),
                ("event_type", "'com.example.OrderPlaced'"),
                ("aggregate_version", "7"),
                ("payload", payload.unwrap_or("NULL")),
                ("headers", &quote(Some(TRACE))),
                ("occurred_at", &quote(Some(AT))),
            ])
        })
        .collect();
    (ids, scene.wait_records(payloads.len()))
}

fn attributes(id: &str) -> Value {
    json!({
        "specversion": "1.0", "id": id, "source": "/public.outbox", "type": "com.example.OrderPlaced",
        "subject": "o-1 ü", "time": "2024-02-29T12:34:56.789Z", "sequence": "7", "tracestate": "a=b",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    })
}

#[test]
fn cloudevents_are_read_by_an_independent_sdk() {
    let json_payloads = [
        r#"{"a": 1.5, "b": [null, "ü"]}"#,
        "[1, 2]",
        "\"text\"",
        "7",
        "true",
    ];
    for format in ["cloudevents", "cloudevents-structured"] {
        let quoted: Vec<String> = json_payloads.iter().map(|p| quote(Some(p))).collect();
        let payloads: Vec<_> = quoted.iter().map(|p| Some(p.as_str())).collect();
        let (ids, records) = published(format, "jsonb", &payloads);
        for ((event, id), payload) in read_by_sdk(&records).iter().zip(&ids).zip(json_payloads) {
            let mut expected = attributes(id);
            expected["datacontenttype"] = json!("application/json");
            expected["data"] = serde_json::from_str(payload).expect("JSON");
            assert_eq!(*event, expected, "{format} {payload}");
        }

        let (ids, records) = published(format, "text", &[Some("'plain, \"ü\"'")]);
        let mut expected = attributes(&ids[0]);
        expected["datacontenttype"] = json!("text/plain; charset=UTF-8");
        expected["data"] = json!("plain, \"ü\"");
        assert_eq!(read_by_sdk(&records), [expected], "{format}");

        let bytes: Vec<u8> = (0..=255).collect();
        let (ids, records) = published(format, "bytea", &[Some(&hex(&bytes))]);
        let mut event = read_by_sdk(&records).remove(0);
        let mut expected = attributes(&ids[0]);
        expected["datacontenttype"] = json!("application/octet-stream");
        expected["data_base64"] = json!(STANDARD.encode(&bytes));
        event.as_object_mut().expect("an object").remove("data");
        assert_eq!(event, expected, "{format}");
    }
}

#[test]
fn a_cloudevent_without_data_is_a_tombstone_with_its_attributes() {
    for format in ["cloudevents", "cloudevents-structured"] {
        let (ids, records) = published(format, "jsonb", &[None]);
        assert_eq!(records[0].value, None, "{format}");
        assert_eq!(records[0].header("ce_id"), Some(ids[0].as_str()));
        assert_eq!(records[0].header("content-type"), None);
    }
}

#[test]
fn an_envelope_holds_the_event_and_the_headers_stay() {
    let payload = quote(Some(r#"{"b": 1, "a": 1.50}"#));
    let (ids, records) = published("envelope", "json", &[Some(&payload), None]);
    let text = String::from_utf8(records[0].value.clone().expect("a value")).expect("UTF-8");
    assert_eq!(
        text,
        format!(
            r#"{{"event_id":"{}","event_type":"com.example.OrderPlaced","aggregate_type":"order","aggregate_id":"o-1 ü","aggregate_version":7,"schema_version":1,"occurred_at":"2024-02-29T12:34:56.789Z","trace_id":"0af7651916cd43dd8448eb211c80319c","sequence":7,"payload":{{"b": 1, "a": 1.50}}}}"#,
            ids[0]
        )
    );
    assert_eq!(records[0].event_id(), ids[0]);
    assert_eq!(records[0].header("other"), Some("x"));
    assert_eq!(records[1].value, None, "a tombstone");
}

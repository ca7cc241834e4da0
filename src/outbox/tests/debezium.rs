//! Preset `debezium`: what its outbox event router makes of a row, with string and byte-array
//! converters.

use super::*;

fn routed(config: &str, otherwise: &[Cell<'_>]) -> Result<Told, Unmappable> {
    let mut cells = vec![
        ("id", 2950, Some("4d47e190-0402-4048-bc2c-89dd54343cdc")),
        ("aggregatetype", TEXT, Some("order")),
        ("aggregateid", TEXT, Some("1")),
        ("type", TEXT, Some("OrderCreated")),
        ("payload", JSONB, Some("{\"id\": 1}")),
    ];
    for cell in otherwise {
        match cells.iter_mut().find(|(name, ..)| *name == cell.0) {
            Some(known) => *known = *cell,
            None => cells.push(*cell),
        }
    }
    told(
        &format!("preset = \"debezium\"\n{config}"),
        &cells,
        Origin::Stream,
    )
}

fn id() -> (String, Option<String>) {
    pair("id", "4d47e190-0402-4048-bc2c-89dd54343cdc")
}

#[test]
fn a_row_has_the_routers_topic_key_header_and_value() {
    let told = routed("", &[]).unwrap();
    assert_eq!(
        told,
        Told {
            topic: "outbox.event.order".into(),
            key: Some(b"1".to_vec()),
            headers: vec![id()],
            timestamp: COMMITTED.unix_millis(),
            partition: None,
            value: Some(b"{\"id\": 1}".to_vec()),
        }
    );
}

#[test]
fn null_and_empty_are_the_routers() {
    for (column, kind, stored, key, value) in [
        ("payload", JSONB, None, Some("1"), None),
        ("payload", TEXT, Some(""), Some("1"), Some("")),
        ("payload", JSONB, Some("null"), Some("1"), Some("null")),
        ("aggregateid", TEXT, None, None, Some("{\"id\": 1}")),
        ("aggregateid", TEXT, Some(""), Some(""), Some("{\"id\": 1}")),
    ] {
        let told = routed("", &[(column, kind, stored)]).unwrap();
        assert_eq!(
            told.key.as_deref(),
            key.map(str::as_bytes),
            "{column} {stored:?}"
        );
        assert_eq!(told.text(), value, "{column} {stored:?}");
    }
    let told = routed("", &[("payload", BYTEA, Some("\\x00ff"))]).unwrap();
    assert_eq!(told.value.as_deref(), Some(&[0, 255][..]));
    // A column that is NULL is a null header there.
    let told = routed("", &[("id", 2950, None)]).unwrap();
    assert_eq!(told.headers, [("id".into(), None)]);
    let config = "additional = [{ column = \"type\", placement = \"header\", as = \"eventType\" }]";
    let told = routed(config, &[("type", TEXT, None)]).unwrap();
    assert_eq!(told.headers, [id(), ("eventType".into(), None)]);
}

/// An option of the router, and what takes its place here.
#[test]
fn every_option_of_the_router_has_its_like() {
    let json = r#"{"a":null,"b":[],"c":1}"#;
    type Check = fn(&Told) -> bool;
    let cases: &[(&str, &str, &[Cell<'_>], Check)] = &[
        (
            "table.field.event.id",
            "columns = { event_id = \"uid\" }",
            &[("uid", TEXT, Some("u"))],
            |t| t.headers == [pair("id", "u")],
        ),
        (
            "table.field.event.key",
            "columns = { aggregate_id = \"customer\" }",
            &[("customer", TEXT, Some("c"))],
            |t| t.key.as_deref() == Some(b"c"),
        ),
        (
            "table.field.event.payload",
            "columns = { payload = \"body\" }",
            &[("body", TEXT, Some("b"))],
            |t| t.text() == Some("b"),
        ),
        (
            "table.field.event.timestamp",
            "timestamp_column = \"created\"",
            &[("created", TIMESTAMPTZ, Some("2020-01-01 00:00:00+00"))],
            |t| t.timestamp == 1_577_836_800_000,
        ),
        (
            "table.field.event.schema.version",
            "format = \"envelope\"\ncolumns = { schema_version = \"version\" }",
            &[("version", INT4, Some("4"))],
            |t| t.headers == [id()] && t.text().unwrap().contains("\"schema_version\":4"),
        ),
        (
            "table.fields.additional.placement: header, with alias",
            "additional = [{ column = \"type\", placement = \"header\", as = \"eventType\" }]",
            &[],
            |t| t.headers == [id(), pair("eventType", "OrderCreated")],
        ),
        (
            "table.fields.additional.placement: envelope, with alias",
            "format = \"envelope\"\nadditional = [{ column = \"tenant\", placement = \"envelope\", as = \"t\" }]",
            &[("tenant", TEXT, Some("acme"))],
            |t| {
                t.text()
                    .unwrap()
                    .ends_with(r#","t":"acme","payload":{"id": 1}}"#)
            },
        ),
        (
            "table.fields.additional.placement: partition",
            "additional = [{ column = \"part\", placement = \"partition\" }]",
            &[("part", INT4, Some("2"))],
            |t| t.partition == Some(2),
        ),
        (
            "table.fields.additional.error.on.missing",
            "additional = [{ column = \"gone\", placement = \"header\", missing = \"ignore\" }]",
            &[],
            |t| t.headers == [id()],
        ),
        (
            "route.by.field",
            "topic_column = \"target\"",
            &[("target", TEXT, Some("shop"))],
            |t| t.topic == "shop",
        ),
        (
            "route.topic.regex, route.topic.replacement",
            "topic_regex = \"(?<routedByValue>.*)\"\ntopic_replacement = \"events.${routedByValue}\"",
            &[],
            |t| t.topic == "events.order",
        ),
        (
            "route.tombstone.on.empty.payload",
            "tombstone_on_empty = true",
            &[("payload", TEXT, Some("  "))],
            |t| t.value.is_none(),
        ),
        (
            "table.expand.json.payload",
            "format = \"envelope\"\nexpand_json = true",
            &[("payload", TEXT, Some(r#"{"a":1}"#))],
            |t| t.text().unwrap().ends_with(r#""payload":{"a":1}}"#),
        ),
        (
            "table.json.payload.null.behavior = ignore",
            "json_nulls = \"drop\"",
            &[("payload", JSONB, Some(json))],
            |t| t.text() == Some(r#"{"b":[],"c":1}"#),
        ),
        (
            "table.json.payload.null.behavior = optional_bytes",
            "json_nulls = \"keep\"",
            &[("payload", JSONB, Some(json))],
            |t| t.text() == Some(r#"{"a":null,"b":[],"c":1}"#),
        ),
        (
            "table.json.payload.empty.array.behavior = ignore",
            "json_empty_arrays = \"drop\"",
            &[("payload", JSONB, Some(json))],
            |t| t.text() == Some(r#"{"a":null,"c":1}"#),
        ),
        (
            "tracing.span.context.field",
            "tracing_column = \"tracingspancontext\"",
            &[("tracingspancontext", TEXT, Some("traceparent=00-a"))],
            |t| t.headers == [id(), pair("traceparent", "00-a")],
        ),
    ];
    for (option, config, cells, check) in cases {
        let told = routed(config, cells).unwrap_or_else(|error| panic!("{option}: {error}"));
        assert!(check(&told), "{option}: {told:?}");
    }
}

/// The README's table has each of them, and the keys that take their place.
#[test]
fn the_readme_has_every_option_of_the_router() {
    let readme = include_str!("../../../README.md");
    for option in [
        "table.field.event.id",
        "table.field.event.key",
        "table.field.event.type",
        "table.field.event.timestamp",
        "table.field.event.payload",
        "table.field.event.schema.version",
        "table.fields.additional.placement",
        "table.fields.additional.error.on.missing",
        "table.op.invalid.behavior",
        "table.expand.json.payload",
        "table.json.payload.null.behavior",
        "table.json.payload.empty.array.behavior",
        "route.by.field",
        "route.topic.regex",
        "route.topic.replacement",
        "route.tombstone.on.empty.payload",
        "tracing.span.context.field",
        "tracing.operation.name",
        "tracing.with.context.field.only",
        "predicate",
    ] {
        assert!(readme.contains(&format!("| `{option}`")), "{option}");
    }
}

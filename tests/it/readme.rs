//! Every example configuration of the README is run, on the tables that the README makes.

use std::fs;

use serde_json::Value;

use crate::harness::{Scene, Walpost, free_port, records::Record};

const README: &str = include_str!("../../README.md");

/// The contents of the README's blocks in this language.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let blocks = README.split(fence.as_str()).skip(1);
    blocks.filter_map(|text| text.split("```").next()).collect()
}

/// The README's statement that makes this table.
fn create_table(name: &str) -> &'static str {
    let head = format!("CREATE TABLE {name} (");
    let start = README.find(&head).expect("the README makes the table");
    let text = &README[start..];
    &text[..text.find("\n);").expect("its end") + 3]
}

fn text(record: &Record) -> &str {
    std::str::from_utf8(record.value.as_deref().expect("a value")).expect("UTF-8")
}

/// One table of an example, a row of it, and what the row becomes.
struct Table {
    name: &'static str,
    ddl: String,
    /// `{tag}`: a text of this run alone.
    insert: &'static str,
    topic: &'static str,
    id_header: &'static str,
    key: &'static str,
    more: fn(&Record, &str),
}

fn table(name: &'static str, example: &str) -> Table {
    let outbox = create_table("public.outbox");
    let is_cloudevent = example.contains("\"cloudevents\"\n");
    match name {
        "public.outbox" => Table {
            name,
            ddl: outbox.into(),
            insert: "INSERT INTO outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload) \
                     VALUES ('{tag}', 'k', 3, 'T', '{\"n\": 1}') RETURNING event_id",
            topic: "outbox.event.{tag}",
            id_header: "event_id",
            key: "k",
            more: match is_cloudevent {
                true => |record, tag| {
                    let source = format!("https://shop.example.com/{tag}");
                    assert_eq!(record.header("ce_source"), Some(source.as_str()));
                    assert_eq!(record.header("ce_sequence"), Some("3"));
                },
                false => |record, _| assert_eq!(text(record), "{\"n\": 1}"),
            },
        },
        "public.outbox_billing" => Table {
            name,
            ddl: outbox.replace("public.outbox", name),
            insert: "INSERT INTO outbox_billing (aggregate_type, aggregate_id, event_type, payload) \
                     VALUES ('bill', 'k', '{tag}', '{\"n\": 1}') RETURNING event_id",
            topic: "billing.{tag}",
            id_header: "event_id",
            key: "k",
            more: |record, tag| {
                let value: Value = serde_json::from_str(text(record)).expect("an envelope");
                assert_eq!(
                    (&value["event_type"], &value["payload"]["n"]),
                    (&tag.into(), &1.into())
                );
            },
        },
        "sales.events" => Table {
            name,
            ddl: format!("CREATE SCHEMA sales; {}", create_table(name)),
            insert: "INSERT INTO sales.events (kind, customer, tenant, body) VALUES ('K', 7, '{tag}', '{\"n\": 1}') RETURNING uid",
            topic: "sales.{tag}.v1",
            id_header: "event_id",
            key: "7",
            more: |record, tag| {
                assert_eq!(record.header("tenant"), Some(tag));
                assert_eq!(record.header("customer-id"), Some("7"));
            },
        },
        "public.outboxevent" => Table {
            name,
            ddl: create_table(name).into(),
            insert: "INSERT INTO outboxevent VALUES (gen_random_uuid(), '{tag}', 'k', 'T', '{\"n\": 1}') RETURNING id",
            topic: "outbox.event.{tag}",
            id_header: "id",
            key: "k",
            more: |record, _| assert_eq!(record.header("eventType"), Some("T")),
        },
        other => panic!("{other} is in an example and not here"),
    }
}

/// The example's own configuration, with only the servers' addresses and names of this run.
fn configured(scene: &Scene, example: &str) -> Walpost {
    let mut walpost = Walpost::new();
    fs::write(walpost.file(), example).expect("write walpost.toml");
    for (name, value) in [
        ("POSTGRES__URL", scene.server.url(&scene.tag)),
        ("POSTGRES__PASSWORD_FILE", String::new()),
        ("POSTGRES__SLOT", scene.tag.clone()),
        ("POSTGRES__PUBLICATION", scene.tag.clone()),
        ("KAFKA__BROKERS", scene.brokers.clone()),
        ("HTTP__LISTEN", format!("127.0.0.1:{}", free_port())),
    ] {
        walpost.environment(&format!("WALPOST_{name}"), &value);
    }
    walpost
}

fn run(example: &str) {
    println!("{example}");
    let scene = Scene::new();
    let tag = scene.tag.clone();
    let tagged = |text: &str| text.replace("{tag}", &tag);
    let names = [
        "public.outbox",
        "public.outbox_billing",
        "sales.events",
        "public.outboxevent",
    ];
    let is_named = |name: &&&str| example.contains(&format!("table = \"{name}\""));
    let named = names.iter().filter(is_named);
    let tables: Vec<_> = named.map(|name| table(name, example)).collect();
    assert_eq!(tables.len(), example.matches("table = \"").count());
    let role = scene.server.publisher_name();
    for table in &tables {
        scene
            .sql
            .run(&format!("SET ROLE {role}; {}; RESET ROLE", table.ddl));
        scene.kafka.create(&tagged(table.topic), 1, &[]);
    }
    let walpost = configured(&scene, example);
    walpost.command(&["init"]).expect(0, &[]);
    let ids: Vec<_> = tables
        .iter()
        .map(|table| scene.sql.value(&tagged(table.insert)).expect("an id"))
        .collect();
    walpost.command(&["check"]).expect(0, &[]);
    let mut running = scene.started(&walpost);
    for (table, id) in tables.iter().zip(&ids) {
        let records = scene.kafka.wait(&tagged(table.topic), 1, 60);
        let record = &records[0];
        assert_eq!(
            record.header(table.id_header),
            Some(id.as_str()),
            "{}",
            table.name
        );
        assert_eq!(record.key.as_deref(), Some(table.key.as_bytes()));
        (table.more)(record, &tag);
    }
    if example.contains("messages = true") {
        emits(&scene);
    }
    running.stop(0);
    let topics: Vec<_> = tables.iter().map(|table| tagged(table.topic)).collect();
    scene.kafka.delete(&topics);
}

/// The README's own calls, to the topic of this run.
fn emits(scene: &Scene) {
    let calls = blocks("sql").into_iter();
    let calls = calls.filter(|block| block.contains("walpost.emit("));
    let calls: Vec<_> = calls.flat_map(|block| block.trim().lines()).collect();
    assert_eq!(calls.len(), 2);
    for call in &calls {
        scene
            .sql
            .run(&call.replace("'order'", &format!("'{}'", scene.tag)));
    }
    let topic = format!("outbox.event.{}", scene.tag);
    let records = scene.kafka.wait(&topic, 3, 60);
    assert_eq!(records[1].header("source"), Some("shop"));
    assert_eq!(records[2].value.as_deref(), Some(&b"%PDF-"[..]));
}

#[test]
fn every_example_configuration_works() {
    let examples = blocks("toml");
    assert_eq!(examples.len(), 7);
    for example in examples {
        run(example);
    }
}

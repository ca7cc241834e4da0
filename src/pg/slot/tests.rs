//! Facts as the server sends them; other modules' tests begin with these.

use serde_json::json;

use super::*;
use crate::pg::schema;

/// A slot where all is well, 256 bytes behind.
pub fn good() -> serde_json::Value {
    let columns: Vec<_> = COLUMNS
        .iter()
        .map(|name| json!({"name": name, "generated": ""}))
        .collect();
    json!({
        "now": "2026-01-02T03:04:05.678901+00:00", "database": "app",
        "server": {"version": "15.18", "version_num": 150018, "system_identifier": "7713717331013726184", "timeline": 1,
            "in_recovery": false, "wal_lsn": "0/1000200", "synchronous_standby_names": ""},
        "slot": {"slot_name": "walpost", "plugin": "pgoutput", "slot_type": "logical", "database": "app", "active": true, "active_pid": 7,
            "restart_lsn": "0/1000000", "confirmed_flush_lsn": "0/1000100", "wal_status": "reserved", "safe_wal_size": null},
        "holder": {"pid": 7, "client": "127.0.0.1", "application": "walpost:walpost", "since": "2026-01-02T03:00:00+00:00", "sync_state": "async"},
        "tables": [{"table": {"oid": 16387, "kind": "r", "partition": false, "columns": columns},
            "published": {"names_table": true, "names_root": false, "filter": null, "columns": null, "fingerprint": {}}}],
        "publication": {"insert": true, "update": false, "delete": false, "truncate": false, "all_tables": false, "via_root": true, "generated": false},
        "schema_version": schema::VERSION,
        "record": {"slot": "walpost", "state": "ready", "system_identifier": "7713717331013726184", "database": "app", "plugin": "pgoutput",
            "consistent_point": "0/FFFF00", "publication": {}, "life": 1, "epoch": 0, "confirmed_lsn": null}
    })
}

pub fn facts() -> SlotFacts {
    serde_json::from_value(good()).unwrap()
}

const COLUMNS: [&str; 9] = [
    "event_id",
    "aggregate_type",
    "aggregate_id",
    "aggregate_version",
    "event_type",
    "schema_version",
    "payload",
    "headers",
    "occurred_at",
];

pub fn names() -> Names {
    Names {
        slot: "walpost".into(),
        publication: "walpost".into(),
        tables: vec![Outbox {
            table: TableName {
                schema: "public".into(),
                name: "outbox".into(),
            },
            columns: COLUMNS.map(String::from).into(),
        }],
        failover: false,
    }
}

#[test]
fn mapped_columns_are_named_once() {
    let mut config = Config::default();
    config.outbox.push(
        serde_json::from_value(json!({"table": "public.outbox", "topic": "{tenant}.{event_type}"}))
            .unwrap(),
    );
    let names = &Names::of(&config).unwrap().tables[0];
    assert_eq!(
        names.columns.iter().filter(|c| *c == "event_type").count(),
        1
    );
    assert_eq!(names.columns.iter().filter(|c| *c == "tenant").count(), 1);
    assert!(
        COLUMNS.iter().all(|c| names.columns.iter().any(|n| n == c)),
        "{:?}",
        names.columns
    );
}

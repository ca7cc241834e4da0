//! One fact wrong at a time: exit code and what to do.

use serde_json::{Value, json};

use super::*;
use crate::pg::slot::tests::{good, names};

/// The verdict when one thing of a good slot is otherwise.
fn with(pointer: &str, value: Value) -> Result<Vec<String>, Stop> {
    let mut facts = good();
    *facts.pointer_mut(pointer).unwrap() = value;
    verdict(&serde_json::from_value(facts).unwrap(), &names())
}

#[test]
fn what_is_lost_or_waiting_stops_with_its_repair() {
    for (pointer, value, exit, words) in [
        ("/schema_version", json!(9999), Exit::Usage, "version 9999"),
        ("/record", Value::Null, Exit::Slot, "run `walpost init`"),
        (
            "/record/state",
            json!("creating"),
            Exit::Slot,
            "state creating",
        ),
        (
            "/record/state",
            json!("backfilling"),
            Exit::Slot,
            "run `walpost init --include-existing`",
        ),
        (
            "/record/system_identifier",
            json!("1"),
            Exit::Slot,
            "system identifier 1",
        ),
        ("/slot", Value::Null, Exit::Slot, "slot walpost is missing"),
        (
            "/slot/plugin",
            json!("test_decoding"),
            Exit::Slot,
            "plugin test_decoding",
        ),
        ("/slot/plugin", Value::Null, Exit::Slot, "physical"),
        (
            "/slot/database",
            json!("other"),
            Exit::Slot,
            "database other",
        ),
        (
            "/slot/wal_status",
            json!("lost"),
            Exit::Slot,
            "max_slot_wal_keep_size",
        ),
        (
            "/tables/0/table",
            Value::Null,
            Exit::Usage,
            "table public.outbox does not exist",
        ),
        ("/tables/0/table/partition", json!(true), Exit::Slot, ""),
        (
            "/publication",
            Value::Null,
            Exit::Slot,
            "publication walpost is missing",
        ),
        (
            "/publication/insert",
            json!(false),
            Exit::Slot,
            "SET (publish = 'insert')",
        ),
        (
            "/tables/0/published/names_table",
            json!(false),
            Exit::Slot,
            "ADD TABLE public.outbox",
        ),
        (
            "/tables/0/published/filter",
            json!("(a > 1)"),
            Exit::Slot,
            "row filter (a > 1)",
        ),
        (
            "/tables/0/published/columns",
            json!(["seq", "event_id"]),
            Exit::Slot,
            "without aggregate_type, ",
        ),
        (
            "/tables/0/table/columns/0/name",
            json!("other"),
            Exit::Usage,
            "no column event_id",
        ),
        (
            "/tables/0/table/columns/1/generated",
            json!("s"),
            Exit::Slot,
            "column aggregate_type of table public.outbox is mapped and generated",
        ),
        (
            "/holder/sync_state",
            json!("sync"),
            Exit::Slot,
            "synchronous_standby_names",
        ),
    ] {
        if words.is_empty() {
            // A partition that is published under its own name is a table like any other.
            assert!(with(pointer, value).is_ok());
            continue;
        }
        let stop = with(pointer, value).expect_err(pointer);
        assert!(
            stop.exit == exit && stop.to_string().contains(words),
            "{pointer}: {:?} {stop}",
            stop.exit
        );
    }
}

#[test]
fn what_is_only_wider_or_near_warns() {
    assert!(with("/slot/active", json!(false)).unwrap().is_empty());
    for (pointer, value, words) in [
        ("/publication/all_tables", json!(true), "FOR ALL TABLES"),
        ("/publication/delete", json!(true), "publishes delete too"),
        ("/slot/wal_status", json!("unreserved"), "about to be lost"),
    ] {
        let warnings = with(pointer, value).unwrap();
        assert!(
            warnings.len() == 1 && warnings[0].contains(words),
            "{pointer}: {warnings:?}"
        );
    }
}

#[test]
fn partitions_come_under_the_name_that_is_configured() {
    let mut facts = good();
    facts["tables"][0]["table"]["kind"] = json!("p");
    facts["publication"]["via_root"] = json!(false);
    let stop = verdict(&serde_json::from_value(facts).unwrap(), &names()).unwrap_err();
    assert!(
        stop.to_string()
            .contains("publish_via_partition_root = true"),
        "{stop}"
    );
    let mut facts = good();
    facts["tables"][0]["table"]["partition"] = json!(true);
    facts["tables"][0]["published"]["names_root"] = json!(true);
    let stop = verdict(&serde_json::from_value(facts).unwrap(), &names()).unwrap_err();
    assert!(
        stop.to_string()
            .contains("under the partitioned table's name"),
        "{stop}"
    );
}

#[test]
fn from_18_on_a_publication_decides_about_stored_generated_columns() {
    let judged = |kind: &str, published: bool, list: serde_json::Value| {
        let mut facts = good();
        facts["server"]["version_num"] = json!(180_004);
        facts["tables"][0]["table"]["columns"][6]["generated"] = json!(kind);
        facts["publication"]["generated"] = json!(published);
        facts["tables"][0]["published"]["columns"] = list;
        verdict(&serde_json::from_value(facts).unwrap(), &names())
    };
    let all = json!(names().tables[0].columns);
    assert!(judged("s", true, Value::Null).is_ok());
    assert!(judged("s", false, all.clone()).is_ok());
    for (stop, words) in [
        (
            judged("s", false, Value::Null),
            "publish_generated_columns = stored",
        ),
        (judged("v", true, all), "does not publish such a column"),
    ] {
        let stop = stop.unwrap_err();
        let text = stop.to_string();
        assert!(
            stop.exit == Exit::Slot && text.contains("payload") && text.contains(words),
            "{text}"
        );
    }
}

#[test]
fn a_promoted_standby_without_the_slot_is_told_from_a_dropped_slot() {
    let mut facts = good();
    facts["slot"] = Value::Null;
    facts["record"]["timeline"] = json!(1);
    let told = |facts: &Value| {
        let facts = serde_json::from_value(facts.clone()).unwrap();
        verdict(&facts, &names()).unwrap_err().to_string()
    };
    assert!(told(&facts).contains("slot walpost is missing"));
    facts["server"]["timeline"] = json!(2);
    assert!(told(&facts).contains("new server (timeline changed), slot missing"));
}

#[test]
fn a_failover_slot_is_asked_for_and_warned_about() {
    let asked = |version: i32, failover: Value| {
        let mut facts = good();
        facts["server"]["version_num"] = json!(version);
        facts["slot"]["failover"] = failover;
        let names = Names {
            failover: true,
            ..names()
        };
        verdict(&serde_json::from_value(facts).unwrap(), &names)
    };
    assert!(asked(170_005, json!(true)).unwrap().is_empty());
    assert!(asked(170_005, json!(false)).unwrap()[0].contains("no failover slot"));
    let stop = asked(150_018, Value::Null).unwrap_err();
    assert!(
        stop.exit == Exit::Usage && stop.to_string().contains("failover_slot"),
        "{stop}"
    );
}

#[test]
fn every_table_of_several_is_looked_at() {
    let mut names = names();
    let second = crate::pg::slot::Outbox {
        table: crate::config::TableName {
            schema: "sales".into(),
            name: "events".into(),
        },
        ..names.tables[0].clone()
    };
    names.tables.push(second);
    let judged = |change: fn(&mut Value)| {
        let mut facts = good();
        let mut other = facts["tables"][0].clone();
        other["table"]["oid"] = json!(16_999);
        other["published"]["fingerprint"] = json!({"table": 16_999});
        facts["tables"][0]["published"]["fingerprint"] = json!({"table": 16_387});
        facts["record"]["publication"] = json!([{"table": 16_387}, {"table": 16_999}]);
        change(&mut other);
        facts["tables"].as_array_mut().unwrap().push(other);
        let told = verdict(&serde_json::from_value(facts).unwrap(), &names);
        told.map_err(|stop| stop.to_string())
    };
    assert_eq!(judged(|_| {}), Ok(Vec::new()));
    for (change, words) in [
        (
            (|other| other["table"] = Value::Null) as fn(&mut Value),
            "table sales.events does not exist",
        ),
        (
            |other| other["published"]["names_table"] = json!(false),
            "does not cover table sales.events",
        ),
        (
            |other| other["table"]["columns"] = json!([]),
            "table sales.events has no columns",
        ),
        (
            |other| other["published"]["fingerprint"] = json!({"table": 1}),
            "is not as it was",
        ),
    ] {
        let told = judged(change).unwrap_err();
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn an_attached_partition_of_any_table_is_told_and_one_that_went_away_is_not() {
    let mut names = names();
    let second = crate::pg::slot::Outbox {
        table: crate::config::TableName {
            schema: "sales".into(),
            name: "events".into(),
        },
        ..names.tables[0].clone()
    };
    names.tables.push(second);
    let judged = |recorded: Value, first: Value, second: Value| {
        let mut facts = good();
        let mut other = facts["tables"][0].clone();
        facts["tables"][0]["published"]["fingerprint"] = json!({"table": 9, "attached": first});
        other["published"]["fingerprint"] = json!({"table": 5, "attached": second});
        facts["tables"].as_array_mut().unwrap().push(other);
        facts["record"]["publication"] = recorded;
        let told = verdict(&serde_json::from_value(facts).unwrap(), &names);
        told.map_err(|stop| stop.to_string())
    };
    let recorded = || {
        json!([{"table": 5, "attached": {"51": "sales.old"}},
            {"table": 9, "attached": null}])
    };
    let (none, old) = (Value::Null, json!({"51": "sales.old"}));
    assert_eq!(judged(recorded(), none.clone(), old.clone()), Ok(vec![]));
    assert_eq!(judged(recorded(), none.clone(), none.clone()), Ok(vec![]));
    let both = json!({"51": "sales.old", "52": "sales.new"});
    let told = judged(recorded(), none.clone(), both).unwrap_err();
    assert!(
        told.contains("sales.new became a partition of table sales.events"),
        "{told}"
    );
    let told = judged(recorded(), json!({"91": "bulk"}), old.clone()).unwrap_err();
    assert!(
        told.contains("bulk became a partition of table public."),
        "{told}"
    );
    let told = judged(json!({"missed_after": "0/16B3748"}), none, old).unwrap_err();
    assert!(told.contains("behind 0/16B3748"), "{told}");
}

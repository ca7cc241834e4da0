//! May the publisher read this slot? What is lost or waiting, and the command that mends it.

use crate::{
    config::TableName,
    error::{Exit, Stop},
    pg::{
        quote::{ident, literal, table},
        schema,
        slot::{Names, Publication, Record, Slot, SlotFacts, Table},
    },
    stop,
};

/// The check before and during publishing. `Ok` carries warnings; an error is an end with exit
/// code 4, or 2 for a schema of another version and a missing table.
///
/// Says nothing sensible on a standby, where slots and their states are those of the past: callers
/// look at `server.in_recovery` first and wait.
pub fn verdict(facts: &SlotFacts, names: &Names) -> Result<Vec<String>, Stop> {
    let record = initialised(facts, names)?;
    let slot = slot(facts, names, record)?;
    let found = facts.table.as_ref().ok_or_else(|| missing_table(names))?;
    let publication = publication(facts, names)?;
    covers(publication, found, names)?;
    not_waited_for(facts, names)?;
    Ok(pressure(slot, names)
        .into_iter()
        .chain(wider(publication, names))
        .collect())
}

/// The bookkeeping of `init`, whole and of this cluster.
pub fn initialised<'a>(facts: &'a SlotFacts, names: &Names) -> Result<&'a Record, Stop> {
    let Names { slot, .. } = names;
    let database = &facts.database;
    if let Some(version) = facts.schema_version {
        schema::check(version, database)?;
    }
    let Some(record) = &facts.record else {
        return Err(stop!(
            Exit::Slot,
            "slot {slot} was never initialised in database {database}: run `walpost init`"
        ));
    };
    if record.state != "ready" {
        return Err(stop!(
            Exit::Slot,
            "slot {slot} is half-made (state {} in walpost.slot): run `walpost init`, which starts again",
            record.state
        ));
    }
    match &record.system_identifier {
        Some(was) if *was != facts.server.system_identifier => Err(stop!(
            Exit::Slot,
            "slot {slot} was initialised on the cluster with system identifier {was}, this one has {}: \
             the database was restored or copied to another cluster, and what was published there is \
             not known here. {}",
            facts.server.system_identifier,
            start_anew(slot)
        )),
        _ => Ok(record),
    }
}

fn slot<'a>(facts: &'a SlotFacts, names: &Names, record: &Record) -> Result<&'a Slot, Stop> {
    let name = &names.slot;
    let Some(slot) = &facts.slot else {
        let from = record.confirmed_lsn.max(record.consistent_point);
        let last = from.map_or_else(String::new, |lsn| format!(", last known position {lsn}"));
        return Err(stop!(
            Exit::Slot,
            "slot {name} is missing: it was dropped, or the server is one that never had it{last}. \
             Rows committed after its position were not published. {}",
            start_anew(name)
        ));
    };
    ours(slot, &facts.database, name)?;
    if slot.wal_status.as_deref() == Some("lost") {
        let cause = match slot.invalidation_reason.as_deref() {
            Some("idle_timeout") => "the slot was idle longer than idle_replication_slot_timeout",
            Some("wal_level_insufficient") => "wal_level was lowered below logical",
            Some("rows_removed") => "the server removed catalogue rows that it needed",
            _ => "the slot fell behind by more than max_slot_wal_keep_size",
        };
        let at = slot
            .confirmed_flush_lsn
            .map_or_else(String::new, |lsn| format!(" after {lsn}"));
        return Err(stop!(
            Exit::Slot,
            "slot {name} is lost: {cause}, and the server removed the WAL. Rows committed{at} were not \
             published. The slot is left as evidence; `SELECT pg_drop_replication_slot({})` drops it. {}",
            literal(name),
            start_anew(name)
        ));
    }
    Ok(slot)
}

/// The slot is one that pgoutput of this database can be read from.
pub fn ours(slot: &Slot, database: &str, name: &str) -> Result<(), Stop> {
    let other = "choose another name (`postgres.slot`), or drop it if nothing reads it";
    match (&slot.plugin, &slot.database) {
        (None, _) => Err(stop!(
            Exit::Slot,
            "slot {name} is a physical slot, not one of plugin pgoutput: {other}"
        )),
        (Some(plugin), _) if plugin != "pgoutput" => Err(stop!(
            Exit::Slot,
            "slot {name} has plugin {plugin}, not pgoutput: it belongs to another program; {other}"
        )),
        (_, Some(theirs)) if theirs != database => Err(stop!(
            Exit::Slot,
            "slot {name} belongs to database {theirs}, not to {database}: {other}"
        )),
        _ => Ok(()),
    }
}

pub fn missing_table(names: &Names) -> Stop {
    let outbox = table(&names.table);
    stop!(
        Exit::Usage,
        "table {outbox} does not exist: set `outbox.table`, or let `walpost init --create-table` make it"
    )
}

fn publication<'a>(facts: &'a SlotFacts, names: &Names) -> Result<&'a Publication, Stop> {
    facts.publication.as_ref().ok_or_else(|| {
        stop!(
            Exit::Slot,
            "publication {} is missing in database {}: set `postgres.publication`, or make it with \
             `{}`; rows that were written without it are not in the stream",
            names.publication,
            facts.database,
            create_publication(&names.publication, &names.table)
        )
    })
}

/// Every insert into the table comes through the publication, whole and under the table's name.
pub fn covers(publication: &Publication, found: &Table, names: &Names) -> Result<(), Stop> {
    let Names {
        publication: name,
        table: outbox,
        ..
    } = names;
    let (alter, outbox) = (format!("ALTER PUBLICATION {}", ident(name)), table(outbox));
    let again = format!("`BEGIN; {alter} DROP TABLE {outbox}; {alter} ADD TABLE {outbox}; COMMIT`");
    let missed = "rows that were written meanwhile are not in the stream";
    if !publication.insert {
        return Err(stop!(
            Exit::Slot,
            "publication {name} leaves out inserts: `{alter} SET (publish = 'insert')`; {missed}"
        ));
    }
    if !publication.names_table && !publication.names_root {
        return Err(stop!(
            Exit::Slot,
            "publication {name} does not cover table {outbox}: `{alter} ADD TABLE {outbox}`; {missed}"
        ));
    }
    if found.kind == 'p' && !publication.via_root {
        return Err(stop!(
            Exit::Slot,
            "table {outbox} is partitioned and publication {name} publishes its partitions under their \
             own names: `{alter} SET (publish_via_partition_root = true)`"
        ));
    }
    if found.partition && publication.via_root && publication.names_root {
        return Err(stop!(
            Exit::Slot,
            "table {outbox} is a partition and publication {name} publishes its rows under the \
             partitioned table's name: set `outbox.table` to that table"
        ));
    }
    if let Some(filter) = &publication.filter {
        return Err(stop!(
            Exit::Slot,
            "publication {name} has the row filter {filter} on table {outbox}, so rows are left out \
             silently: {again}"
        ));
    }
    let left_out: Vec<_> = match &publication.columns {
        Some(list) => names
            .columns
            .iter()
            .filter(|c| !list.contains(c))
            .map(String::as_str)
            .collect(),
        None => Vec::new(),
    };
    if !left_out.is_empty() {
        return Err(stop!(
            Exit::Slot,
            "publication {name} has a column list on table {outbox} without {}: {again}",
            left_out.join(", ")
        ));
    }
    Ok(())
}

/// As a synchronous standby we would keep the application's commits waiting.
fn not_waited_for(facts: &SlotFacts, names: &Names) -> Result<(), Stop> {
    let holder = facts.holder.as_ref();
    match holder.and_then(|h| h.sync_state.as_deref()) {
        Some("sync" | "quorum") => Err(stop!(
            Exit::Slot,
            "the server takes the reader of slot {} for a synchronous standby, so commits wait for it: \
             synchronous_standby_names is {:?}; name the real standbys there, without * and without {}",
            names.slot,
            facts.server.synchronous_standby_names,
            holder
                .and_then(|h| h.application.as_deref())
                .unwrap_or("ours")
        )),
        _ => Ok(()),
    }
}

/// The slot comes near the limit at which the server drops its WAL.
fn pressure(slot: &Slot, names: &Names) -> Option<String> {
    let left = slot.safe_wal_size.unwrap_or(0).max(0);
    match (slot.wal_status.as_deref()?, slot.safe_wal_size) {
        ("unreserved", _) => Some(format!(
            "slot {} is about to be lost: it is beyond max_slot_wal_keep_size",
            names.slot
        )),
        ("extended", Some(_)) => Some(format!(
            "slot {} holds more WAL than max_wal_size; {left} bytes until max_slot_wal_keep_size",
            names.slot
        )),
        _ => None,
    }
}

/// The publication carries more than it must.
pub fn wider(publication: &Publication, names: &Names) -> Vec<String> {
    let name = &names.publication;
    let mut warnings = Vec::new();
    if publication.all_tables {
        warnings.push(format!(
            "publication {name} is FOR ALL TABLES: the server decodes and sends every table's inserts; \
             they are read and ignored"
        ));
    }
    let more: Vec<_> = [
        ("update", publication.update),
        ("delete", publication.delete),
        ("truncate", publication.truncate),
    ]
    .into_iter()
    .filter_map(|(verb, on)| on.then_some(verb))
    .collect();
    if !more.is_empty() {
        warnings.push(format!(
            "publication {name} publishes {} too, which become no records, and with update or delete a \
             table without primary key refuses those: `ALTER PUBLICATION {} SET (publish = 'insert')`",
            more.join(", "),
            ident(name)
        ));
    }
    warnings
}

pub fn create_publication(name: &str, outbox: &TableName) -> String {
    format!(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert', publish_via_partition_root = true)",
        ident(name),
        table(outbox)
    )
}

/// What can be done when the slot's position is gone for good.
fn start_anew(slot: &str) -> String {
    format!(
        "To go on with rows committed from now on: `DELETE FROM walpost.slot WHERE slot = {}`, then \
         `walpost init`; rows in between have to be inserted again",
        literal(slot)
    )
}

#[cfg(test)]
mod tests {
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
                "/table",
                Value::Null,
                Exit::Usage,
                "table public.outbox does not exist",
            ),
            ("/table/partition", json!(true), Exit::Slot, ""),
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
                "/publication/names_table",
                json!(false),
                Exit::Slot,
                "ADD TABLE public.outbox",
            ),
            (
                "/publication/filter",
                json!("(a > 1)"),
                Exit::Slot,
                "row filter (a > 1)",
            ),
            (
                "/publication/columns",
                json!(["seq", "event_id"]),
                Exit::Slot,
                "without aggregate_type, ",
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
        facts["table"]["kind"] = json!("p");
        facts["publication"]["via_root"] = json!(false);
        let stop = verdict(&serde_json::from_value(facts).unwrap(), &names()).unwrap_err();
        assert!(
            stop.to_string()
                .contains("publish_via_partition_root = true"),
            "{stop}"
        );
        let mut facts = good();
        facts["table"]["partition"] = json!(true);
        facts["publication"]["names_root"] = json!(true);
        let stop = verdict(&serde_json::from_value(facts).unwrap(), &names()).unwrap_err();
        assert!(
            stop.to_string()
                .contains("under the partitioned table's name"),
            "{stop}"
        );
    }
}

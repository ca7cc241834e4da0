//! May the publisher read this slot? What is lost or waiting, and the command that mends it.

use serde_json::Value;

use crate::{
    config::TableName,
    error::{Exit, Stop},
    lsn::Lsn,
    pg::{
        publication::{columns_are_there, covers, create_publication, wider},
        quote::table,
        schema,
        slot::{Names, Publication, Record, Slot, SlotFacts},
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
    tables(facts, names)?;
    let publication = publication(facts, names)?;
    for (found, outbox) in facts.tables.iter().zip(&names.tables) {
        found
            .table
            .as_ref()
            .map_or(Ok(()), |table| columns_are_there(table, outbox))?;
    }
    covers(facts, names)?;
    unchanged(facts, record, slot, names)?;
    not_waited_for(facts, names)?;
    possible_failover(facts, names)?;
    Ok(pressure(slot, names)
        .into_iter()
        .chain(unsynchronised(facts, names))
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
    unfinished(record, slot)?;
    match &record.system_identifier {
        Some(was) if *was != facts.server.system_identifier => Err(stop!(
            Exit::Slot,
            "slot {slot} was initialised on the cluster with system identifier {was}, this one has {}: \
             the database was upgraded, restored or copied to another cluster, and what was published there is \
             not known here. {}",
            facts.server.system_identifier,
            recover()
        )),
        _ => Ok(record),
    }
}

/// A slot that is still being made, or an attempt that ended half-way.
pub fn unfinished(record: &Record, slot: &str) -> Result<(), Stop> {
    let state = record.state.as_str();
    let command = match (state, record.confirmed_lsn) {
        ("ready", _) => return Ok(()),
        // The position that was lost is kept until all behind it is published.
        ("backfilling", Some(_)) => "walpost recover",
        ("backfilling", None) => "walpost init --include-existing",
        _ => "walpost init",
    };
    let doing = match state {
        "backfilling" => "rows of the table are to be published before the stream",
        _ => "half-made",
    };
    Err(stop!(
        Exit::Slot,
        "slot {slot} is not ready ({doing}; state {state} in walpost.slot): run `{command}`, which starts that again"
    ))
}

/// The slot is there, ours, and its WAL is.
pub fn slot<'a>(facts: &'a SlotFacts, names: &Names, record: &Record) -> Result<&'a Slot, Stop> {
    let name = &names.slot;
    let Some(slot) = &facts.slot else {
        let from = record.confirmed_lsn.max(record.consistent_point);
        let last = from.map_or_else(String::new, |lsn| format!(", last known position {lsn}"));
        let cause = match record.timeline {
            Some(was) if was != facts.server.timeline => format!(
                "new server (timeline changed), slot missing: slot {name} was read on timeline {was}, this server is on timeline {}, \
                 so it is a promoted standby or a restored backup, which did not have the slot{last}",
                facts.server.timeline
            ),
            _ => format!(
                "slot {name} is missing: it was dropped, or the server is one that never had it{last}"
            ),
        };
        return Err(stop!(
            Exit::Slot,
            "{cause}. Rows committed after its position were not published. {}",
            recover()
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
             published. {}",
            recover()
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

/// Each configured table exists.
pub fn tables(facts: &SlotFacts, names: &Names) -> Result<(), Stop> {
    let mut tables = names.tables.iter().zip(&facts.tables);
    match tables.find(|(_, found)| found.table.is_none()) {
        None => Ok(()),
        Some((outbox, _)) => Err(missing_table(&outbox.table)),
    }
}

pub fn missing_table(outbox: &TableName) -> Stop {
    stop!(
        Exit::Usage,
        "table {} does not exist: set `outbox.table`, or let `walpost init --create-table` make it",
        table(outbox)
    )
}

pub fn publication<'a>(facts: &'a SlotFacts, names: &Names) -> Result<&'a Publication, Stop> {
    facts.publication.as_ref().ok_or_else(|| {
        stop!(
            Exit::Slot,
            "publication {} is missing in database {}: set `postgres.publication`, or make it with \
             `{}`; rows that were written without it are not in the stream",
            names.publication,
            facts.database,
            create_publication(names)
        )
    })
}

/// The key that a record has in the place of the fingerprint, once the stream showed that the
/// publication was missing.
pub const MISSED_AFTER: &str = "missed_after";

/// The publication's hold on the table is the one that `init` recorded. One that was taken away and
/// put back looks the same, and rows written meanwhile are not in the stream.
pub fn unchanged(
    facts: &SlotFacts,
    record: &Record,
    slot: &Slot,
    names: &Names,
) -> Result<(), Stop> {
    if let Some(after) = record.missed_after() {
        return Err(stop!(
            Exit::Slot,
            "publication {} was missing somewhere in the stream behind {after}: rows that were written then are not streamed, and this \
             slot cannot pass that place without losing them. {}",
            names.publication,
            recover()
        ));
    }
    if let Some((attached, outbox)) = attached_since(record, facts, names) {
        return Err(stop!(
            Exit::Slot,
            "{attached} became a partition of table {}: a stream of PostgreSQL 14 leaves out rows of a table that was written to before \
             that. Nothing behind {} is confirmed. If it never was, `walpost init --accept-publication`; otherwise `walpost recover`, \
             which publishes what the table holds and the topics lack",
            table(outbox),
            slot.confirmed_flush_lsn
                .map_or("the slot's position".into(), |lsn| lsn.to_string()),
        ));
    }
    match &record.publication {
        Some(was)
            if Some(without_attached(was))
                != facts.fingerprint().as_ref().map(without_attached) =>
        {
            Err(stop!(
                Exit::Slot,
                "publication {} is not as it was when `walpost init` recorded it: it was altered, or dropped and made again, and rows \
             written meanwhile may be missing from the stream. Nothing behind {} is confirmed. `walpost recover` publishes \
             what the table holds and the topics lack, and records the publication as it is now; if you know that nothing is missing, \
             `walpost init --accept-publication` only records it",
                names.publication,
                slot.confirmed_flush_lsn
                    .map_or("the slot's position".into(), |lsn| lsn.to_string()),
            ))
        }
        _ => Ok(()),
    }
}

/// Partitions come and go; all else of a fingerprint stays as it was.
fn without_attached(fingerprint: &Value) -> Value {
    let mut rest = fingerprint.clone();
    let of_tables = match &mut rest {
        Value::Array(tables) => tables.as_mut_slice(),
        one => std::slice::from_mut(one),
    };
    for table in of_tables.iter_mut().filter_map(Value::as_object_mut) {
        table.remove("attached");
    }
    rest
}

/// Tables that were attached as partitions of an outbox table since the fingerprint was recorded,
/// where that matters.
fn attached_since<'a>(
    record: &Record,
    facts: &SlotFacts,
    names: &'a Names,
) -> Option<(String, &'a TableName)> {
    let recorded = record.publication.as_ref()?;
    let recorded = recorded
        .as_array()
        .map_or(std::slice::from_ref(recorded), Vec::as_slice);
    let mut tables = names.tables.iter().zip(&facts.tables);
    tables.find_map(|(outbox, found)| {
        let print = &found.published.as_ref()?.fingerprint;
        let was = recorded.iter().find(|was| was["table"] == print["table"])?;
        let was = was.get("attached")?;
        let now = print.get("attached")?.as_object()?;
        let new = now
            .iter()
            .filter(|(oid, _)| was.get(oid).is_none())
            .filter_map(|(_, name)| name.as_str());
        let new: Vec<_> = new.collect();
        (!new.is_empty()).then(|| (new.join(", "), &outbox.table))
    })
}

/// At start: the slot stands where we left it, or before. Beyond what was recorded ahead of
/// confirming it, it was moved, or dropped and made again, by somebody else.
pub fn unmoved(facts: &SlotFacts, names: &Names) -> Result<(), Stop> {
    let stands = facts
        .slot
        .as_ref()
        .and_then(|slot| slot.confirmed_flush_lsn);
    let record = facts.record.as_ref();
    // A standby may have got the slot's position before the row that recorded it. Then the
    // publisher was far behind the end of the log, where the marks are.
    let reserved = record
        .and_then(|record| record.reserved_lsn)
        .map(|reserved| reserved.max(facts.newest_mark.unwrap_or(Lsn::ZERO)));
    match (stands, reserved) {
        (Some(stands), Some(reserved)) if stands > reserved => Err(stop!(
            Exit::Slot,
            "slot {slot} is not as we left it: it stands at {stands}, and nothing beyond {reserved} was ever confirmed by walpost. \
             Somebody moved it, or dropped it and made it again; rows committed in between are not in it. {recover}",
            slot = names.slot,
            recover = recover(),
        )),
        _ => Ok(()),
    }
}

/// As a synchronous standby we would keep the application's commits waiting.
pub fn not_waited_for(facts: &SlotFacts, names: &Names) -> Result<(), Stop> {
    let holder = facts.holder.as_ref();
    let application = format!("walpost:{}", names.slot);
    let waited_for = match holder.and_then(|h| h.sync_state.as_deref()) {
        Some(state) => matches!(state, "sync" | "quorum"),
        // Hidden without pg_read_all_stats: then by the list of names alone.
        None => {
            let listed = &facts.server.synchronous_standby_names;
            let any = listed.contains('*') || listed.contains(&application);
            any && holder.is_some()
        }
    };
    match waited_for {
        true => Err(stop!(
            Exit::Slot,
            "the server takes the reader of slot {} for a synchronous standby, so commits wait for it: \
             synchronous_standby_names is {:?}; name the real standbys there, without * and without {}",
            names.slot,
            facts.server.synchronous_standby_names,
            holder
                .and_then(|h| h.application.as_deref())
                .unwrap_or("ours")
        )),
        false => Ok(()),
    }
}

/// A failover slot is asked for where there are such slots.
pub fn possible_failover(facts: &SlotFacts, names: &Names) -> Result<(), Stop> {
    if !names.failover || facts.server.version_num >= 170_000 {
        return Ok(());
    }
    Err(stop!(
        Exit::Usage,
        "postgres.failover_slot (or --failover) needs PostgreSQL 17 or later, and the server is {}: set failover_slot = false",
        facts.server.version
    ))
}

/// A failover slot is asked for, and the one that is there is none.
pub fn lacks_failover(facts: &SlotFacts, names: &Names) -> bool {
    let slot = facts.slot.as_ref();
    names.failover && slot.is_some_and(|slot| slot.failover == Some(false))
}

pub fn unsynchronised(facts: &SlotFacts, names: &Names) -> Option<String> {
    lacks_failover(facts, names).then(|| {
        format!(
            "postgres.failover_slot is set and slot {} is no failover slot, so a promoted standby will not have it: stop the \
             publisher and run `walpost init`",
            names.slot
        )
    })
}

/// The slot comes near the limit at which the server drops its WAL.
pub fn pressure(slot: &Slot, names: &Names) -> Option<String> {
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

/// What can be done when the slot's position is gone for good.
pub fn recover() -> &'static str {
    "Run `walpost recover`, which makes a new slot and publishes the rows of the table that were not published; \
     `walpost recover --dry-run` counts them"
}

#[cfg(test)]
mod tests;

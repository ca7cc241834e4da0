//! The server: its version, and its settings that concern us.

use super::finding::Findings;
use crate::pg::{
    slot::{Names, SlotFacts},
    surroundings::Surroundings,
    verdict,
};

/// Below it the stream's protocol is another one.
const OLDEST: i32 = 140_000;
/// Newer ones work as far as nothing changed.
const NEWEST: i32 = 190_000;

pub fn check(
    facts: &SlotFacts,
    surroundings: Option<&Surroundings>,
    names: &Names,
    findings: &mut Findings,
) {
    version(facts, findings);
    not_waited_for(facts, names, findings);
    if let Some(surroundings) = surroundings {
        settings(surroundings, findings);
        free_place(facts, surroundings, names, findings);
    }
}

fn version(facts: &SlotFacts, findings: &mut Findings) {
    let version = &facts.server.version;
    let message = format!("server: PostgreSQL {version}");
    match facts.server.version_num {
        ..OLDEST => {
            let fix = "upgrade the server to 14 or later";
            findings.fail("postgres.version", "server", message, fix);
        }
        OLDEST..NEWEST => findings.pass("postgres.version", "server", message),
        _ => {
            let fix = "look for a newer walpost";
            let message = format!("{message}, which is newer than this walpost");
            findings.warn("postgres.version", "server", message, fix);
        }
    }
}

fn settings(surroundings: &Surroundings, findings: &mut Findings) {
    let level = &surroundings.wal_level;
    let message = format!("server: wal_level is {level}");
    match level.as_str() {
        "logical" => findings.pass("postgres.wal_level", "wal_level", message),
        _ => {
            let fix = "let a superuser run `ALTER SYSTEM SET wal_level = 'logical'` and restart the server (of a managed one, set it \
                       in its parameters; some call it rds.logical_replication or cloudsql.logical_decoding)";
            findings.fail("postgres.wal_level", "wal_level", message, fix);
        }
    }
    match surroundings.wal_sender_timeout {
        0 => {
            let message = "server: wal_sender_timeout is 0, so a publisher whose machine is gone keeps the slot, and no other one can \
                           take it over";
            let fix =
                "`ALTER SYSTEM SET wal_sender_timeout = '60s'`, then `SELECT pg_reload_conf()`";
            findings.warn(
                "postgres.wal_sender_timeout",
                "wal_sender_timeout",
                message,
                fix,
            );
        }
        ms => {
            let message = format!("server: wal_sender_timeout is {ms} ms");
            findings.pass("postgres.wal_sender_timeout", "wal_sender_timeout", message);
        }
    }
    let subject = "max_slot_wal_keep_size";
    match surroundings.max_slot_wal_keep_size {
        ..0 => {
            let message = "server: max_slot_wal_keep_size is -1, so the log of a publisher that stands still fills the disk";
            let fix = "watch the metric walpost_slot_retained_wal_bytes; or set a bound, such as `ALTER SYSTEM SET max_slot_wal_keep_size \
                       = '100GB'`, beyond which the slot is lost and `walpost recover` is needed";
            findings.warn("postgres.keep_size", subject, message, fix);
        }
        megabytes => {
            let message = format!("server: max_slot_wal_keep_size is {megabytes} MB");
            findings.pass("postgres.keep_size", subject, message);
        }
    }
}

/// The server would take our reader for a synchronous standby as soon as there is one.
fn not_waited_for(facts: &SlotFacts, names: &Names, findings: &mut Findings) {
    let listed = &facts.server.synchronous_standby_names;
    let (id, subject) = ("postgres.synchronous", "synchronous_standby_names");
    let application = format!("walpost:{}", names.slot);
    if let Err(stop) = verdict::not_waited_for(facts, names) {
        findings.error(id, subject, &stop);
    } else if listed.contains('*') || listed.contains(&application) {
        let message = format!(
            "server: synchronous_standby_names is {listed:?}, so commits would wait for the publisher"
        );
        let fix = format!("name the real standbys there, without * and without {application}");
        findings.fail(id, subject, message, &fix);
    } else {
        findings.pass(
            id,
            subject,
            "server: no commit waits for the publisher (synchronous_standby_names)",
        );
    }
}

/// A slot that is missing has a place.
fn free_place(
    facts: &SlotFacts,
    surroundings: &Surroundings,
    names: &Names,
    findings: &mut Findings,
) {
    let (slots, most) = (surroundings.slots, surroundings.max_replication_slots);
    let (id, subject) = ("postgres.slots", "max_replication_slots");
    let message = format!("server: {slots} of {most} slots are there (max_replication_slots)");
    let fix = "drop a slot that is not needed (`SELECT slot_name, active FROM pg_replication_slots`), or raise \
               max_replication_slots and restart the server";
    match (slots < most, &facts.slot) {
        (true, _) => findings.pass(id, subject, message),
        (false, Some(_)) => {
            let message = format!(
                "{message}, so `walpost preview` cannot copy slot {}",
                names.slot
            );
            findings.warn(id, subject, message, fix);
        }
        (false, None) => {
            let message = format!("{message}, so slot {} cannot be made", names.slot);
            findings.fail(id, subject, message, fix);
        }
    }
}

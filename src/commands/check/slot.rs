//! What is published from: schema, slot, publication.

use bytesize::ByteSize;
use tokio_postgres::Client;

use super::{finding::Findings, server};
use crate::pg::{
    conninfo::ConnInfo,
    publication::wider,
    quote::ident,
    schema,
    setup::{explain, look},
    slot::{Names, SlotFacts},
    surroundings::Surroundings,
    verdict,
};

/// What the server says of our things; `None` if it doesn't.
pub async fn check(
    client: &Client,
    info: &ConnInfo,
    names: &Names,
    findings: &mut Findings,
) -> Option<SlotFacts> {
    let facts = match look(client, names, &info.user).await {
        Ok(facts) => facts,
        Err(error) => {
            let error = format!("{error:#}");
            findings.error("postgres.rights", &names.slot, &error);
            return None;
        }
    };
    let surroundings = match Surroundings::look(client, &names.publication).await {
        Ok(surroundings) => Some(surroundings),
        Err(error) => {
            let error = format!("cannot look at the server: {:#}", explain(error));
            let fix = "mend what the server says";
            findings.fail("postgres.rights", "server", error, fix);
            None
        }
    };
    server::check(&facts, surroundings.as_ref(), names, findings);
    if facts.server.in_recovery {
        let fix = "check the primary: `target_session_attrs=primary` in `postgres.url` looks for it among several hosts";
        let message =
            "server: it is a standby; its slots are those of the past, so none is looked at";
        findings.warn("postgres.primary", "server", message, fix);
        return Some(facts);
    }
    initialised(&facts, surroundings.as_ref(), info, names, findings);
    slot(&facts, names, findings);
    publication(&facts, surroundings.as_ref(), names, findings);
    Some(facts)
}

/// The bookkeeping, and our right to it.
fn initialised(
    facts: &SlotFacts,
    surroundings: Option<&Surroundings>,
    info: &ConnInfo,
    names: &Names,
    findings: &mut Findings,
) {
    let schema = "schema walpost";
    if let Some(version) = facts.schema_version {
        findings.judge(
            "schema.version",
            schema,
            schema::check(version, &facts.database),
            |()| format!("{schema}: it has version {version}, as it must"),
        );
        let denied = surroundings.map_or(&[][..], |surroundings| &surroundings.denied);
        let role = ident(&info.user);
        match denied {
            [] => {
                let message = format!("{schema}: role {role} reads and writes its tables");
                findings.pass("schema.rights", schema, message);
            }
            denied => {
                let message = format!(
                    "{schema}: role {role} may not read and write {}",
                    denied.join(", ")
                );
                let fix = format!(
                    "let its owner run `GRANT USAGE ON SCHEMA walpost TO {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN \
                     SCHEMA walpost TO {role}`"
                );
                findings.fail("schema.rights", schema, message, &fix);
            }
        }
    }
    findings.judge(
        "slot.initialised",
        &names.slot,
        verdict::initialised(facts, names),
        |record| match record.life {
            Some(life) => format!("slot {}: initialised, life {life}", names.slot),
            None => format!("slot {}: initialised", names.slot),
        },
    );
}

fn slot(facts: &SlotFacts, names: &Names, findings: &mut Findings) {
    let name = &names.slot;
    findings.judge(
        "slot.failover",
        name,
        verdict::possible_failover(facts, names),
        |()| format!("slot {name}: the server can keep it as is configured"),
    );
    let Some(record) = &facts.record else {
        // `init` takes over a slot that it finds.
        if let Some(slot) = &facts.slot {
            findings.judge(
                "slot.there",
                name,
                verdict::ours(slot, &facts.database, name),
                |()| format!("slot {name}: it is there, and of plugin pgoutput"),
            );
        }
        return;
    };
    let found = findings.judge(
        "slot.there",
        name,
        verdict::slot(facts, names, record),
        |slot| {
            let at = slot
                .confirmed_flush_lsn
                .map_or("no position yet".into(), |lsn| format!("at {lsn}"));
            let reader = match &facts.holder {
                Some(holder) => format!(
                    "read by pid {}, {}",
                    holder.pid,
                    holder
                        .application
                        .as_deref()
                        .unwrap_or("an unknown application")
                ),
                None => "nobody reads it now".into(),
            };
            format!("slot {name}: it is there, {at}; {reader}")
        },
    );
    let Some(slot) = found else { return };
    findings.judge(
        "slot.position",
        name,
        verdict::unmoved(facts, names),
        |()| format!("slot {name}: it stands where it was left, or before"),
    );
    match verdict::pressure(slot, names) {
        Some(warning) => {
            let fix = "let the publisher catch up, or raise max_slot_wal_keep_size";
            findings.warn("slot.pressure", name, warning, fix);
        }
        None => {
            let kept = ByteSize::b(facts.retained_bytes().unwrap_or_default());
            let message = format!("slot {name}: the server keeps {kept} of WAL for it");
            findings.pass("slot.pressure", name, message);
        }
    }
    if let Some(warning) = verdict::unsynchronised(facts, names) {
        findings.warning("slot.synchronised", name, &warning);
    }
    if facts.publication.is_some() {
        findings.judge(
            "publication.unchanged",
            &names.publication,
            verdict::unchanged(facts, record, slot, names),
            |()| {
                format!(
                    "publication {}: it is as `walpost init` recorded it",
                    names.publication
                )
            },
        );
    }
}

fn publication(
    facts: &SlotFacts,
    surroundings: Option<&Surroundings>,
    names: &Names,
    findings: &mut Findings,
) {
    let name = &names.publication;
    let found = findings.judge(
        "publication.there",
        name,
        verdict::publication(facts, names),
        |_| format!("publication {name}: it is there"),
    );
    let Some(publication) = found else { return };
    let warnings = wider(publication, names);
    if warnings.is_empty() {
        let message = format!("publication {name}: inserts only");
        findings.pass("publication.narrow", name, message);
    }
    for warning in warnings {
        match warning.contains('`') {
            true => findings.warning("publication.narrow", name, &warning),
            false => {
                let fix = "make one of the outbox tables alone, and set `postgres.publication`";
                findings.warn("publication.narrow", name, warning, fix);
            }
        }
    }
    if let Some(surroundings) = surroundings
        && !surroundings.keyless.is_empty()
    {
        let message = format!(
            "publication {name}: it publishes update or delete, and the server refuses those of {}, which have no primary key",
            surroundings.keyless.join(", ")
        );
        let fix = format!(
            "`ALTER PUBLICATION {} SET (publish = 'insert')`",
            ident(name)
        );
        findings.warn("publication.keyless", name, message, &fix);
    }
}

//! What is lost: from which position on, and what is known of it.

use super::Recovery;
use crate::{
    commands::init::{self, warn_all},
    error::Exit,
    lsn::Lsn,
    pg::{
        lost::lost_position,
        mark::{self, Mark},
        publication::{covers, wider},
        schema,
        slot::SlotFacts,
        verdict::{self, initialised, ours, unfinished, unmoved, verdict},
    },
};

/// What is lost.
pub(super) struct Gap {
    /// All that committed before it was published; zero where nothing is known.
    pub position: Lsn,
    /// `None`: any row of the table may lie in the gap.
    pub since: Option<Mark>,
    /// An attempt that ended half-way left a slot, which begins here and goes on.
    pub kept: Option<Lsn>,
    /// The marks are another cluster's.
    pub is_elsewhere: bool,
}

impl Recovery<'_> {
    /// `None`: the slot is fine. What a new slot would not mend is an error.
    pub(super) async fn gap(&self, facts: &SlotFacts) -> anyhow::Result<Option<Gap>> {
        let names = &self.init.names;
        if let Some(version) = facts.schema_version {
            schema::check(version, &facts.database)?;
        }
        let Some(record) = &facts.record else {
            return initialised(facts, names).map(|_| None).map_err(Into::into);
        };
        let is_kept = match record.state.as_str() {
            "ready" => {
                match verdict(facts, names).and_then(|_| unmoved(facts, names)) {
                    Ok(()) => return Ok(None),
                    Err(stop) if stop.exit == Exit::Slot => {}
                    Err(stop) => return Err(stop.into()),
                }
                false
            }
            "backfilling" => {
                let usable = verdict::slot(facts, names, record)
                    .and_then(|_| unmoved(facts, names))
                    .is_ok();
                if usable && record.confirmed_lsn.is_none() {
                    unfinished(record, &names.slot)?;
                }
                usable && record.publication == facts.fingerprint()
            }
            _ => {
                return unfinished(record, &names.slot)
                    .map(|()| None)
                    .map_err(Into::into);
            }
        };
        verdict::tables(facts, names)?;
        let publication = verdict::publication(facts, names)?;
        covers(facts, names)?;
        warn_all(wider(publication, names));
        if let Some(slot) = &facts.slot {
            ours(slot, &facts.database, &names.slot)?;
            // One without a position is being made, by an attempt that ended: it is waited for.
            if slot.active && slot.confirmed_flush_lsn.is_some() {
                return Err(init::held(&names.slot, facts).into());
            }
        }
        let there = record.system_identifier.as_ref();
        let is_elsewhere = there.is_some_and(|there| *there != facts.server.system_identifier);
        let position = if is_elsewhere {
            Lsn::ZERO
        } else {
            lost_position(facts, record)
        };
        Ok(Some(Gap {
            position,
            since: mark::newest(&self.init.client, position).await?,
            kept: record.consistent_point.filter(|_| is_kept),
            is_elsewhere,
        }))
    }
}

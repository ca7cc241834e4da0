//! What `init` did, as the object of `--json`.

use serde::Serialize;

use crate::{
    lsn::Lsn,
    pg::slot::{Names, SlotFacts},
};

/// What `--json` prints.
#[derive(Serialize)]
pub(super) struct Initialised<'a> {
    slot: &'a str,
    publication: &'a str,
    tables: Vec<String>,
    state: Option<String>,
    life: Option<i32>,
    /// Rows committed after it are in the slot.
    consistent_point: Option<Lsn>,
    confirmed_lsn: Option<Lsn>,
    #[serde(flatten)]
    did: Did,
}

/// What one `init` did.
#[derive(Default, Serialize)]
pub(super) struct Did {
    /// `false`: all was there before.
    pub changed: bool,
    /// Rows of the tables that were published; `null` when that was not asked for.
    pub published_rows: Option<u64>,
    /// Rows of the tables that are older than the slot and are not published, each table's counted
    /// to a million; `null` when they were not looked at.
    pub left_out_rows: Option<i64>,
}

impl<'a> Initialised<'a> {
    pub fn of(names: &'a Names, facts: &SlotFacts, did: Did) -> Self {
        let record = facts.record.as_ref();
        let slot = facts.slot.as_ref();
        Initialised {
            slot: &names.slot,
            publication: &names.publication,
            tables: names.tables(),
            state: record.map(|record| record.state.clone()),
            life: record.and_then(|record| record.life),
            consistent_point: record.and_then(|record| record.consistent_point),
            confirmed_lsn: slot.and_then(|slot| slot.confirmed_flush_lsn),
            did,
        }
    }
}

impl Did {
    pub fn published(rows: u64) -> Did {
        Did {
            changed: true,
            published_rows: Some(rows),
            ..Did::default()
        }
    }
}

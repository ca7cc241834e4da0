//! `init --include-existing`: the rows that are there, before the stream. One that ended half-way
//! keeps its slot and publishes again, of a new snapshot: some rows twice, none missed.

use super::{Beginning, Init, slot::held};
use crate::{
    commands::backfill::{Backfill, Publish},
    config::Config,
    lsn::Lsn,
    outbox::{event_ids::EventIds, row::Reread},
    pg::{
        record,
        slot::SlotFacts,
        table::Reader,
        verdict::{self, initialised, unfinished},
    },
};

pub struct Existing {
    readers: Vec<Reader>,
    backfill: Backfill,
}

impl Existing {
    /// What publishing takes is there, before anything is made.
    pub async fn open(init: &Init, config: &Config) -> anyhow::Result<Existing> {
        let command = "walpost init --include-existing";
        let backfill = Backfill::new(config, &init.conninfo, command)?;
        let readers = backfill.readers("walpost:init").await?;
        Ok(Existing { readers, backfill })
    }

    /// As of the slot's beginning: what is not among these rows is in the slot.
    pub async fn publish(&mut self, init: &Init, made: Beginning) -> anyhow::Result<u64> {
        let snapshot = made.snapshot.as_ref();
        for reader in &self.readers {
            reader.begin(snapshot.map(|s| s.name.as_str())).await?;
        }
        let at = made.at;
        drop(made);
        self.rows(init, at).await
    }

    /// After an attempt that ended half-way.
    pub async fn again(&mut self, init: &Init, facts: &SlotFacts) -> anyhow::Result<u64> {
        let name = &init.names.slot;
        let Some(record) = &facts.record else {
            return initialised(facts, &init.names)
                .map(|_| 0)
                .map_err(Into::into);
        };
        if record.confirmed_lsn.is_some() {
            return unfinished(record, name).map(|()| 0).map_err(Into::into);
        }
        let slot = verdict::slot(facts, &init.names, record)?;
        if slot.active {
            return Err(held(name, facts).into());
        }
        record::again(&init.client, name).await?;
        for reader in &self.readers {
            reader.begin(None).await?;
        }
        let at = record.consistent_point.or(slot.confirmed_flush_lsn);
        self.rows(init, at.unwrap_or(Lsn::ZERO)).await
    }

    async fn rows(&mut self, init: &Init, at: Lsn) -> anyhow::Result<u64> {
        self.backfill.listen()?;
        let mut rows = 0;
        for reader in &self.readers {
            rows += self
                .backfill
                .publish(Publish {
                    reader,
                    since: None,
                    except: &EventIds::default(),
                    reread: Reread::Backfill,
                    at,
                    numbered: rows,
                    total: reader.count(None).await?,
                    owner: record::owner(&init.client, &init.names.slot).await?,
                })
                .await?;
        }
        record::finished(&init.client, &init.names.slot).await?;
        init.out.say(&format!(
            "published {rows} rows that {} held; slot {} is ready",
            init.names.listed(),
            init.names.slot
        ))?;
        Ok(rows)
    }
}

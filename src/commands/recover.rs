//! `walpost recover`: a slot whose place in the log is gone is made anew, and what it would have
//! brought is published from the table: the rows that are not older than the newest mark below the
//! lost position, without those whose event the topics have.

mod gap;
pub(super) mod telling;

use self::{
    gap::Gap,
    telling::{Found, Recovered},
};
use crate::{
    cli,
    commands::{
        backfill::{Backfill, Publish},
        init::{Init, possible},
        say::Out,
    },
    config::{Config, Env},
    error::Exit,
    lsn::Lsn,
    outbox::row::Reread,
    pg::{
        conninfo::ConnInfo,
        create_slot::Snapshot,
        mark,
        record::{self, Next},
        slot::{Names, SlotFacts},
        table::Reader,
    },
    stop,
};

const APPLICATION: &str = "walpost:recover";

pub async fn recover(config: &Config, env: &Env, options: &cli::Recover) -> anyhow::Result<Exit> {
    let names = Names::of(config)?;
    let conninfo = ConnInfo::resolve(&config.postgres, env)?;
    let out = Out::new(options.json);
    let init = Init::open(names, conninfo, options.timeout, "walpost recover", out).await?;
    let recovery = Recovery { init, config };
    recovery.init.lock().await?;
    let facts = recovery.init.facts().await?;
    possible(&facts, &recovery.init.session().await?)?;
    let Some(gap) = recovery.gap(&facts).await? else {
        let slot = &recovery.init.names.slot;
        out.say(&format!("slot {slot} is ready; nothing to recover"))?;
        out.object(&Recovered::nothing(slot))?;
        return Ok(Exit::Done);
    };
    let done = if options.dry_run {
        recovery.dry_run(&gap).await?
    } else if options.accept_gap {
        recovery.accept(&facts, &gap).await?
    } else {
        recovery.go(&facts, &gap).await?
    };
    out.object(&done)?;
    Ok(Exit::Done)
}

struct Recovery<'a> {
    init: Init,
    config: &'a Config,
}

impl Recovery<'_> {
    fn backfill(&self, command: &'static str) -> anyhow::Result<Backfill> {
        Backfill::new(self.config, &self.init.conninfo, command)
    }

    async fn dry_run(&self, gap: &Gap) -> anyhow::Result<Recovered<'_>> {
        let backfill = self.backfill("walpost recover --dry-run")?;
        let readers = backfill.readers(APPLICATION).await?;
        self.describe(gap)?;
        let mut found = Found::default();
        for reader in &readers {
            let last = reader.last_number().await?;
            reader.begin(None).await?;
            found.gone(self.count_gone(reader, gap, last).await?);
            let client = &self.init.client;
            found.add(&backfill.survey(reader, gap.since.as_ref(), client).await?);
        }
        self.would_publish(&found)?;
        Ok(Recovered::would_publish(self, gap, found))
    }

    async fn go(&self, facts: &SlotFacts, gap: &Gap) -> anyhow::Result<Recovered<'_>> {
        let mut backfill = self.backfill("walpost recover")?;
        let readers = backfill.readers(APPLICATION).await?;
        self.describe(gap)?;
        let slot = &self.init.names.slot;
        // Of transactions that all end before the slot begins.
        let mut last = Vec::new();
        for reader in &readers {
            last.push(reader.last_number().await?);
        }
        let at = match gap.kept {
            Some(at) => {
                record::again(&self.init.client, slot).await?;
                begin(&readers, None).await?;
                self.say(&format!("goes on with slot {slot}, which begins at {at}"))?;
                at
            }
            None => {
                let (at, snapshot) = self.new_slot(facts, gap, true).await?;
                begin(&readers, snapshot.as_ref()).await?;
                at
            }
        };
        backfill.listen()?;
        let (mut found, mut rows) = (Found::default(), 0);
        for (reader, last) in readers.iter().zip(last) {
            found.gone(self.count_gone(reader, gap, last).await?);
            let client = &self.init.client;
            let survey = backfill.survey(reader, gap.since.as_ref(), client).await?;
            found.add(&survey);
            rows += backfill
                .publish(Publish {
                    reader,
                    since: gap.since.as_ref(),
                    except: &survey.published,
                    reread: Reread::Recover,
                    at,
                    numbered: rows,
                    total: survey.missing(),
                    owner: record::owner(&self.init.client, slot).await?,
                })
                .await?;
        }
        record::finished(&self.init.client, slot).await?;
        self.published(&found, at)?;
        Ok(Recovered::published(self, gap, found, at))
    }

    /// The rows that may lie in the gap.
    async fn count(&self, gap: &Gap) -> anyhow::Result<u64> {
        let mut rows = 0;
        for reader in self
            .backfill("walpost recover")?
            .readers(APPLICATION)
            .await?
        {
            rows += reader.count(gap.since.as_ref()).await?;
        }
        Ok(rows)
    }

    /// A new slot without what lies before it.
    async fn accept(&self, facts: &SlotFacts, gap: &Gap) -> anyhow::Result<Recovered<'_>> {
        let slot = &self.init.names.slot;
        let count = match self.count(gap).await {
            Ok(rows) => Some(rows),
            Err(error) => {
                tracing::warn!("the rows that are left out cannot be counted: {error:#}");
                None
            }
        };
        let at = match gap.kept {
            Some(at) => at,
            None => self.new_slot(facts, gap, false).await?.0,
        };
        record::finished(&self.init.client, slot).await?;
        self.accepted(gap, count, at)?;
        Ok(Recovered::accepted(self, gap, count, at))
    }

    /// The lost position is written down first and stays until all is published: whatever ends
    /// this, the next `recover` knows where the gap begins.
    async fn new_slot(
        &self,
        facts: &SlotFacts,
        gap: &Gap,
        export: bool,
    ) -> anyhow::Result<(Lsn, Option<Snapshot>)> {
        let Init { client, names, .. } = &self.init;
        record::losing(client, &names.slot, gap.position).await?;
        if gap.is_elsewhere {
            mark::forget_all(client).await?;
        }
        if let Some(slot) = &facts.slot {
            self.init.drop_old(slot, &facts.database).await?;
        }
        let before = self.init.facts().await?;
        self.init.covered(&before)?;
        let made = self.init.create(facts, export).await?;
        let facts = self.init.facts().await?;
        if facts.fingerprint() != before.fingerprint() {
            return Err(stop!(
                Exit::Slot,
                "publication {} was changed while the slot was made: run `walpost recover` again",
                names.publication
            )
            .into());
        }
        let at = made.consistent_point;
        record::made(client, &facts, names, at, Next::Backfilling).await?;
        self.say(&format!("made slot {}, which begins at {at}", names.slot))?;
        Ok((at, made.snapshot))
    }
}

/// Every row that follows is of the same moment: an exported snapshot's.
async fn begin(readers: &[Reader], snapshot: Option<&Snapshot>) -> anyhow::Result<()> {
    for reader in readers {
        reader.begin(snapshot.map(|s| s.name.as_str())).await?;
    }
    Ok(())
}

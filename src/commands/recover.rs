//! `walpost recover`: a slot whose place in the log is gone is made anew, and what it would have
//! brought is published from the table: the rows that are not older than the newest mark below the
//! lost position, without those whose event the topics have.

use crate::{
    cli,
    commands::{
        backfill::{Backfill, Publish},
        init::{self, Init, possible, say, warn_all},
    },
    config::{Config, Env},
    error::Exit,
    lsn::Lsn,
    outbox::row::Reread,
    pg::{
        conninfo::ConnInfo,
        create_slot::Snapshot,
        mark::{self, Mark},
        publication::{covers, wider},
        record::{self, Next},
        schema,
        slot::{Names, Record, SlotFacts},
        table::Reader,
        verdict::{self, initialised, ours, unfinished, unmoved, verdict},
    },
    stop,
};

pub async fn recover(config: &Config, env: &Env, options: &cli::Recover) -> anyhow::Result<Exit> {
    let names = Names::of(config)?;
    let conninfo = ConnInfo::resolve(&config.postgres, env)?;
    let init = Init::open(names, conninfo, options.timeout, "walpost recover").await?;
    let recovery = Recovery { init, config };
    recovery.init.lock().await?;
    let facts = recovery.init.facts().await?;
    possible(&facts, &recovery.init.session().await?)?;
    let Some(gap) = recovery.gap(&facts).await? else {
        let slot = &recovery.init.names.slot;
        say(&format!("slot {slot} is ready; nothing to recover"))?;
        return Ok(Exit::Done);
    };
    if options.dry_run {
        recovery.dry_run(&gap).await?;
    } else if options.accept_gap {
        recovery.accept(&facts, &gap).await?;
    } else {
        recovery.go(&facts, &gap).await?;
    }
    Ok(Exit::Done)
}

struct Recovery<'a> {
    init: Init,
    config: &'a Config,
}

/// What is lost.
struct Gap {
    /// All that committed before it was published; zero where nothing is known.
    position: Lsn,
    /// `None`: any row of the table may lie in the gap.
    since: Option<Mark>,
    /// An attempt that ended half-way left a slot, which begins here and goes on.
    kept: Option<Lsn>,
    /// The marks are another cluster's.
    is_elsewhere: bool,
}

impl Recovery<'_> {
    /// `None`: the slot is fine. What a new slot would not mend is an error.
    async fn gap(&self, facts: &SlotFacts) -> anyhow::Result<Option<Gap>> {
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
            if slot.active {
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

    async fn readers(&self, backfill: &Backfill) -> anyhow::Result<Vec<Reader>> {
        backfill
            .readers(&self.init.conninfo, "walpost:recover")
            .await
    }

    /// The rows that may lie in the gap.
    async fn count(&self, gap: &Gap) -> anyhow::Result<u64> {
        let backfill = Backfill::new(self.config, "walpost recover")?;
        let mut rows = 0;
        for reader in self.readers(&backfill).await? {
            rows += reader.count(gap.since.as_ref()).await?;
        }
        Ok(rows)
    }

    async fn dry_run(&self, gap: &Gap) -> anyhow::Result<()> {
        let backfill = Backfill::new(self.config, "walpost recover --dry-run")?;
        let readers = self.readers(&backfill).await?;
        self.describe(gap)?;
        let (mut missing, mut known, mut rows) = (0, 0, 0);
        for reader in &readers {
            reader.begin(None).await?;
            let survey = backfill.survey(reader, gap.since.as_ref()).await?;
            missing += survey.missing();
            known += survey.known;
            rows += survey.rows;
        }
        say(&format!(
            "`walpost recover` would make slot {} and publish {missing} rows of {}; {}",
            self.init.names.slot,
            self.init.names.listed(),
            in_topics(known, rows),
        ))?;
        say("nothing was changed")
    }

    async fn go(&self, facts: &SlotFacts, gap: &Gap) -> anyhow::Result<()> {
        let mut backfill = Backfill::new(self.config, "walpost recover")?;
        let readers = self.readers(&backfill).await?;
        self.describe(gap)?;
        let slot = &self.init.names.slot;
        let at = match gap.kept {
            Some(at) => {
                record::again(&self.init.client, slot).await?;
                begin(&readers, None).await?;
                say(&format!("goes on with slot {slot}, which begins at {at}"))?;
                at
            }
            None => {
                let (at, snapshot) = self.new_slot(facts, gap, true).await?;
                begin(&readers, snapshot.as_ref()).await?;
                at
            }
        };
        backfill.listen()?;
        let (mut rows, mut known, mut looked_at) = (0, 0, 0);
        for reader in &readers {
            let survey = backfill.survey(reader, gap.since.as_ref()).await?;
            known += survey.known;
            looked_at += survey.rows;
            rows += backfill
                .publish(Publish {
                    reader,
                    since: gap.since.as_ref(),
                    except: &survey.published,
                    reread: Reread::Recover,
                    at,
                    numbered: rows,
                    total: survey.missing(),
                })
                .await?;
        }
        record::finished(&self.init.client, slot).await?;
        say(&format!(
            "published {rows} rows of {}; {}. Slot {slot} is ready: `walpost run` goes on after {at}",
            self.init.names.listed(),
            in_topics(known, looked_at),
        ))
    }

    /// A new slot without what lies before it.
    async fn accept(&self, facts: &SlotFacts, gap: &Gap) -> anyhow::Result<()> {
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
        let rows = count.map_or_else(String::new, |rows| {
            format!(
                ": at most {rows} rows that {} holds",
                self.init.names.listed()
            )
        });
        say(&format!(
            "accepted the gap: what committed {} and up to {at} and was not published stays unpublished{rows}. Slot {slot} is ready: \
             `walpost run` goes on after {at}",
            after(gap.position),
        ))
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
        say(&format!("made slot {}, which begins at {at}", names.slot))?;
        Ok((at, made.snapshot))
    }

    fn describe(&self, gap: &Gap) -> anyhow::Result<()> {
        let Names { slot, .. } = &self.init.names;
        let outbox = self.init.names.listed();
        let why = match (&gap.since, gap.is_elsewhere) {
            (Some(mark), _) => {
                say(&format!(
                    "slot {slot}: what committed {} was not published, as far as is known. Looked at are the rows of {outbox} that were \
                     committed since {}, at {}",
                    after(gap.position),
                    mark.lsn,
                    mark.at
                ))?;
                None
            }
            (None, true) => {
                Some("the database is now in another cluster, where positions mean something else")
            }
            (None, false) => Some("there is no mark at or below the position that was lost"),
        };
        if let Some(why) = why {
            say(&format!(
                "slot {slot}: {why}, so every row of {outbox} is looked for in its topic from the beginning; what the topic no longer \
                 keeps is published again"
            ))?;
        }
        say("rows that were deleted from the table before they were published cannot be recovered")
    }
}

/// All that committed before it was published.
fn lost_position(facts: &SlotFacts, record: &Record) -> Lsn {
    if record.state == "backfilling" {
        return record.confirmed_lsn.unwrap_or(Lsn::ZERO);
    }
    let noted = record.confirmed_lsn.max(record.consistent_point);
    // The slot knows better than our notes, unless it was moved.
    let stands = facts
        .slot
        .as_ref()
        .and_then(|slot| slot.confirmed_flush_lsn);
    let stands = stands.filter(|stands| Some(*stands) <= record.reserved_lsn);
    noted.max(stands).unwrap_or(Lsn::ZERO)
}

fn after(position: Lsn) -> String {
    match position {
        Lsn::ZERO => "at an unknown time".into(),
        position => format!("after {position}"),
    }
}

fn in_topics(known: u64, rows: u64) -> String {
    format!("{known} of the {rows} looked at are in the topics already")
}

/// Every row that follows is of the same moment: an exported snapshot's.
async fn begin(readers: &[Reader], snapshot: Option<&Snapshot>) -> anyhow::Result<()> {
    for reader in readers {
        reader.begin(snapshot.map(|s| s.name.as_str())).await?;
    }
    Ok(())
}

//! `walpost init`: publication, schema, slot, in this order; whole or not at all.

mod did;
mod existing;
mod print;
mod slot;

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

pub(super) use self::slot::held;
use self::{
    did::{Did, Initialised},
    existing::Existing,
};
use crate::{
    cli,
    commands::say::Out,
    config::{Config, Env, TableName},
    error::{Exit, Stop},
    lsn::Lsn,
    pg::{
        conninfo::ConnInfo,
        create_slot::{Snapshot, Within},
        mark,
        publication::{covers, wider},
        quote::{literal, table},
        record::{self, Next},
        schema,
        setup::{self, COUNT_TO, Place, explain},
        slot::{Names, SlotFacts},
        sql,
        verdict::{possible_failover, tables, verdict},
    },
    stop,
};

const POLL_EVERY: Duration = Duration::from_millis(200);

pub async fn init(config: &Config, env: &Env, options: &cli::Init) -> anyhow::Result<Exit> {
    let mut names = Names::of(config)?;
    names.failover |= options.failover;
    let conninfo = ConnInfo::resolve(&config.postgres, env)?;
    let out = Out::new(options.json);
    if options.print_sql {
        let (create_table, only) = (options.create_table, options.print_as);
        out.say(&print::script(
            config,
            &names,
            &conninfo,
            create_table,
            only,
        )?)?;
        return Ok(Exit::Done);
    }
    let init = Init::open(names, conninfo, options.timeout, "walpost init", out).await?;
    init.lock().await?;
    let did = init.go(config, options).await?;
    let facts = init.facts().await?;
    out.object(&Initialised::of(&init.names, &facts, did))?;
    Ok(Exit::Done)
}

pub(super) struct Init {
    pub names: Names,
    pub conninfo: ConnInfo,
    pub client: Client,
    pub within: Within,
    pub out: Out,
}

/// Where the slot begins.
struct Beginning {
    at: Lsn,
    /// The database as of then; not of a slot that was there.
    snapshot: Option<Snapshot>,
    is_adopted: bool,
}

/// What the server is set to, and who we are there.
pub(super) struct Session {
    role: String,
    wal_level: String,
}

impl Init {
    pub async fn open(
        names: Names,
        conninfo: ConnInfo,
        timeout: Duration,
        command: &'static str,
        out: Out,
    ) -> anyhow::Result<Init> {
        let application = command.replace(' ', ":");
        let client = sql::connect(&conninfo, &application).await?;
        Ok(Init {
            names,
            conninfo,
            client,
            within: Within {
                timeout,
                deadline: Instant::now() + timeout,
                command,
            },
            out,
        })
    }

    /// One init at a time in a database. Held until the connection ends; waiting for it by trying
    /// keeps no snapshot open.
    pub async fn lock(&self) -> anyhow::Result<()> {
        let lock_timeout = format!("SET lock_timeout = {}", self.within.timeout.as_millis());
        self.client
            .batch_execute(&lock_timeout)
            .await
            .map_err(explain)?;
        let text = "SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtext('walpost.init'), 0)";
        loop {
            let rows = self.client.query_typed(text, &[]).await.map_err(explain)?;
            if rows[0].try_get(0)? {
                return Ok(());
            }
            if Instant::now() >= self.within.deadline {
                return Err(stop!(
                    Exit::Grace,
                    "another `walpost init` or `walpost recover` is under way in this database and did not end within --timeout; \
                     pg_stat_activity shows it as application walpost:init or walpost:recover"
                )
                .into());
            }
            sleep(POLL_EVERY).await;
        }
    }

    async fn go(&self, config: &Config, options: &cli::Init) -> anyhow::Result<Did> {
        let facts = self.facts().await?;
        let session = self.session().await?;
        possible(&facts, &session)?;
        possible_failover(&facts, &self.names)?;
        let database = facts.database.clone();
        let place = Place {
            role: &session.role,
            database: &database,
        };
        let (facts, fresh) = match options.create_table {
            true => self.tables(config, facts, &place).await?,
            false => (facts, Vec::new()),
        };
        tables(&facts, &self.names)?;
        setup::check_table(&facts, &self.names)?;
        match facts.record.as_ref().map(|record| record.state.as_str()) {
            Some("ready") => {
                let migrated = self.migrate(&facts, &place).await?;
                let accepted =
                    options.accept_publication && self.accept(&self.facts().await?).await?;
                let facts = self.facts().await?;
                let changed = self.failover(&facts).await? || accepted;
                if !changed {
                    self.ready(&facts, migrated)?;
                }
                Ok(Did {
                    changed: changed || migrated,
                    ..Did::default()
                })
            }
            None | Some("creating") if options.include_existing => {
                let mut existing = Existing::open(self, config).await?;
                let made = self.publication_and_slot(&facts, &place, true).await?;
                existing.publish(self, made).await.map(Did::published)
            }
            None | Some("creating") => {
                let mut unpublished = Vec::new();
                for outbox in self.names.tables.iter().map(|outbox| &outbox.table) {
                    if !fresh.contains(outbox) {
                        let rows = setup::count_rows(&self.client, outbox).await?;
                        unpublished.extend(rows.map(|rows| (outbox, rows)));
                    }
                }
                let made = self.publication_and_slot(&facts, &place, false).await?;
                if made.is_adopted {
                    unpublished.clear();
                }
                for (outbox, rows) in unpublished.iter().filter(|(_, rows)| *rows > 0) {
                    let more = if *rows == COUNT_TO { " or more" } else { "" };
                    let outbox = table(outbox);
                    tracing::warn!(
                        "{outbox} holds {rows}{more} rows from before the slot, which are not published \
                         (`walpost init --include-existing` would have)"
                    );
                }
                Ok(Did {
                    changed: true,
                    left_out_rows: match unpublished.is_empty() {
                        true => None,
                        false => Some(unpublished.iter().map(|(_, rows)| rows).sum()),
                    },
                    ..Did::default()
                })
            }
            Some("backfilling") => {
                let mut existing = Existing::open(self, config).await?;
                self.migrate(&facts, &place).await?;
                existing.again(self, &facts).await.map(Did::published)
            }
            Some(state) => Err(stop!(
                Exit::Slot,
                "slot {} is in state {state} in walpost.slot, which this walpost does not know; to start again: \
                 `UPDATE walpost.slot SET state = 'creating' WHERE slot = {}`, then `walpost init`",
                self.names.slot,
                literal(&self.names.slot)
            )
            .into()),
        }
    }

    /// `existing`: rows that are there are published next, so it isn't ready yet.
    async fn publication_and_slot(
        &self,
        facts: &SlotFacts,
        place: &Place<'_>,
        existing: bool,
    ) -> anyhow::Result<Beginning> {
        let begun = facts.record.is_some();
        let adopted = match &facts.slot {
            Some(slot) if !begun => Some(self.adopt(slot, facts)?),
            _ => None,
        };
        // In a transaction of its own and before the slot, which knows only what was there before.
        self.publication(facts, place).await?;
        self.migrate(facts, place).await?;
        if let Some(slot) = facts.slot.as_ref().filter(|_| begun) {
            self.drop_half_made(slot, &facts.database).await?;
        }
        let system = &facts.server.system_identifier;
        mark::forget_others(&self.client, &self.names.slot, system).await?;
        let before = self.facts().await?;
        self.covered(&before)?;
        let (at, snapshot) = match adopted {
            Some(at) => (at, None),
            None => {
                let made = self.make(facts, begun, existing).await?;
                (made.consistent_point, made.snapshot)
            }
        };
        let facts = self.facts().await?;
        if facts.fingerprint() != before.fingerprint() {
            return Err(stop!(
                Exit::Slot,
                "publication {} was changed while the slot was made: run `walpost init` again",
                self.names.publication
            )
            .into());
        }
        self.failover(&facts).await?;
        let next = if existing {
            Next::Backfilling
        } else {
            Next::Ready
        };
        record::made(&self.client, &facts, &self.names, at, next).await?;
        let (slot, verb) = (
            &self.names.slot,
            if adopted.is_some() {
                "took over"
            } else {
                "made"
            },
        );
        self.out.say(&format!(
            "{verb} slot {slot}: rows committed after {at} are published by `walpost run`"
        ))?;
        Ok(Beginning {
            at,
            snapshot,
            is_adopted: adopted.is_some(),
        })
    }

    /// Makes the tables that are missing; which ones these were.
    async fn tables(
        &self,
        config: &Config,
        facts: SlotFacts,
        place: &Place<'_>,
    ) -> anyhow::Result<(SlotFacts, Vec<TableName>)> {
        let missing = facts.tables.iter().zip(&config.outbox);
        let missing: Vec<_> = missing
            .filter_map(|(found, outbox)| found.table.is_none().then_some(outbox))
            .collect();
        if missing.is_empty() {
            return Ok((facts, Vec::new()));
        }
        for outbox in &missing {
            setup::create_table(&self.client, outbox, facts.server.version_num, place).await?;
            self.out
                .say(&format!("made table {}", table(&outbox.table)))?;
        }
        let made = missing.iter().map(|outbox| outbox.table.clone()).collect();
        Ok((self.facts().await?, made))
    }

    pub async fn facts(&self) -> anyhow::Result<SlotFacts> {
        setup::look(&self.client, &self.names, &self.conninfo.user).await
    }

    pub async fn session(&self) -> anyhow::Result<Session> {
        let text = "SELECT current_user::text, pg_catalog.current_setting('wal_level')";
        let rows = self.client.query_typed(text, &[]).await.map_err(explain)?;
        Ok(Session {
            role: rows[0].try_get(0)?,
            wal_level: rows[0].try_get(1)?,
        })
    }

    /// Records the publication as it is now, if it covers the table; `false` when it is known.
    async fn accept(&self, facts: &SlotFacts) -> anyhow::Result<bool> {
        self.covered(facts)?;
        let known = facts
            .record
            .as_ref()
            .and_then(|record| record.publication.clone());
        // Told by the check that follows: no look at the publication can mend it.
        let is_missed = facts
            .record
            .as_ref()
            .is_some_and(|r| r.missed_after().is_some());
        if known == facts.fingerprint() || is_missed {
            return Ok(false);
        }
        record::accept(&self.client, facts, &self.names).await?;
        let publication = &self.names.publication;
        self.out
            .say(&format!("accepted publication {publication} as it is now"))?;
        Ok(true)
    }

    /// The slot was made before, and is left as it is.
    fn ready(&self, facts: &SlotFacts, migrated: bool) -> anyhow::Result<()> {
        warn_all(verdict(facts, &self.names)?);
        let also = if migrated { "nothing else" } else { "nothing" };
        self.out.say(&format!(
            "slot {} is ready; {also} was changed",
            self.names.slot
        ))
    }

    async fn publication(&self, facts: &SlotFacts, place: &Place<'_>) -> anyhow::Result<()> {
        if let Some(publication) = &facts.publication {
            warn_all(wider(publication, &self.names));
            return self.covered(facts);
        }
        setup::make_publication(&self.client, &self.names, place).await?;
        self.out.say(&format!(
            "made publication {} of {}, inserts only",
            self.names.publication,
            self.names.listed()
        ))
    }

    /// The publication is there and covers the tables.
    pub fn covered(&self, facts: &SlotFacts) -> anyhow::Result<()> {
        if facts.publication.is_none() || facts.tables.iter().any(|found| found.table.is_none()) {
            anyhow::bail!("table or publication went away meanwhile: run `walpost init` again");
        }
        Ok(covers(facts, &self.names)?)
    }

    /// `false`: the schema is as it must be.
    async fn migrate(&self, facts: &SlotFacts, place: &Place<'_>) -> anyhow::Result<bool> {
        let made = setup::make_schema(&self.client, facts.schema_version, place).await?;
        if let Some(made) = &made {
            self.out.say(&format!("made {made}"))?;
        }
        Ok(made.is_some())
    }
}

/// The server can decode at all, and what is there is not of a newer walpost.
pub(super) fn possible(facts: &SlotFacts, session: &Session) -> Result<(), Stop> {
    if facts.server.in_recovery {
        return Err(stop!(
            Exit::Error,
            "the server is a standby: run `walpost init` on the primary"
        ));
    }
    if session.wal_level != "logical" {
        return Err(stop!(
            Exit::Error,
            "wal_level is {}, and logical decoding needs logical: let a superuser run `ALTER SYSTEM SET wal_level = 'logical'` \
             and restart the server",
            session.wal_level
        ));
    }
    match facts.schema_version {
        Some(newer) if newer > schema::VERSION => schema::check(newer, &facts.database),
        _ => Ok(()),
    }
}

pub(super) fn warn_all(warnings: Vec<String>) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

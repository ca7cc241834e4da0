//! `walpost init`: publication, schema, slot, in this order; whole or not at all.

mod print;

use std::{
    io::{self, Write},
    time::Duration,
};

use anyhow::Context;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use crate::{
    cli,
    config::{Config, Env},
    error::{Exit, Stop},
    lsn::Lsn,
    pg::{
        conninfo::ConnInfo,
        create_slot::create_slot,
        quote::{literal, table},
        schema,
        setup::{self, Place, explain},
        slot::{Names, Slot, SlotFacts, facts},
        sql,
        verdict::{covers, missing_table, ours, verdict, wider},
    },
    stop,
};

const POLL_EVERY: Duration = Duration::from_millis(200);

/// Rows that were there before are counted this far; counting on would take long on a large table.
const COUNT_TO: i64 = 1_000_000;

pub async fn init(config: &Config, env: &Env, options: &cli::Init) -> anyhow::Result<Exit> {
    let names = Names::of(config)?;
    let conninfo = ConnInfo::resolve(&config.postgres, env)?;
    if options.print_sql {
        say(&print::script(&names, &conninfo, options.create_table))?;
        return Ok(Exit::Done);
    }
    let client = sql::connect(&conninfo, "walpost:init").await?;
    let mut init = Init {
        names,
        conninfo,
        client,
        deadline: Instant::now() + options.timeout,
        timeout: options.timeout,
    };
    init.lock().await?;
    init.go(options.create_table).await?;
    Ok(Exit::Done)
}

struct Init {
    names: Names,
    conninfo: ConnInfo,
    client: Client,
    deadline: Instant,
    timeout: Duration,
}

/// What the server is set to, and who we are there.
struct Session {
    role: String,
    wal_level: String,
}

impl Init {
    /// One init at a time in a database. Held until the connection ends; waiting for it by trying
    /// keeps no snapshot open.
    async fn lock(&mut self) -> anyhow::Result<()> {
        let lock_timeout = format!("SET lock_timeout = {}", self.timeout.as_millis());
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
            if Instant::now() >= self.deadline {
                return Err(stop!(
                    Exit::Grace,
                    "another `walpost init` is under way in this database and did not end within --timeout; \
                     pg_stat_activity shows it as application walpost:init"
                )
                .into());
            }
            sleep(POLL_EVERY).await;
        }
    }

    async fn go(&mut self, create_table: bool) -> anyhow::Result<()> {
        let mut facts = self.facts().await?;
        let session = self.session().await?;
        let database = facts.database.clone();
        let place = Place {
            role: &session.role,
            database: &database,
        };
        possible(&facts, &session)?;
        let mut fresh_table = false;
        if facts.table.is_none() {
            if !create_table {
                return Err(missing_table(&self.names).into());
            }
            setup::create_table(
                &self.client,
                &self.names.table,
                facts.server.version_num,
                &place,
            )
            .await?;
            say(&format!("made table {}", table(&self.names.table)))?;
            fresh_table = true;
            facts = self.facts().await?;
        }
        setup::check_table(&self.client, &facts, &self.names).await?;

        let state = facts.record.as_ref().map(|record| record.state.as_str());
        if state == Some("ready") {
            self.migrate(&facts, &place).await?;
            return self.ready(&self.facts().await?);
        }
        if !matches!(state, None | Some("creating")) {
            return Err(stop!(
                Exit::Slot,
                "slot {} is in state {} in walpost.slot, which this walpost does not know; to start again: \
                 `UPDATE walpost.slot SET state = 'creating' WHERE slot = {}`, then `walpost init`",
                self.names.slot,
                state.unwrap_or_default(),
                literal(&self.names.slot)
            )
            .into());
        }
        let begun = state.is_some();
        let adopted = match &facts.slot {
            Some(slot) if begun => {
                self.drop_half_made(slot, &database).await?;
                None
            }
            Some(slot) => Some(self.adopt(slot, &facts)?),
            None => None,
        };
        self.publication(&facts, &place).await?;
        self.migrate(&facts, &place).await?;
        let unpublished = match (&adopted, fresh_table) {
            (None, false) => setup::count_rows(&self.client, &self.names.table, COUNT_TO)
                .await?
                .unwrap_or(0),
            _ => 0,
        };
        let consistent_point = match adopted {
            Some(at) => at,
            None => self.slot(&facts, &session.role, begun).await?,
        };
        let facts = self.facts().await?;
        self.covered(&facts)?;
        setup::record_ready(&self.client, &facts, &self.names, consistent_point).await?;
        let verb = if adopted.is_some() {
            "took over"
        } else {
            "made"
        };
        say(&format!(
            "{verb} slot {}: rows committed after {consistent_point} are published by `walpost run`",
            self.names.slot
        ))?;
        if unpublished > 0 {
            let more = if unpublished == COUNT_TO {
                " or more"
            } else {
                ""
            };
            tracing::warn!(
                "{unpublished}{more} rows were in {} before the slot and are never published",
                table(&self.names.table)
            );
        }
        Ok(())
    }

    async fn facts(&self) -> anyhow::Result<SlotFacts> {
        facts(&self.client, &self.names).await.map_err(explain)
    }

    async fn session(&self) -> anyhow::Result<Session> {
        let text = "SELECT current_user::text, pg_catalog.current_setting('wal_level')";
        let rows = self.client.query_typed(text, &[]).await.map_err(explain)?;
        Ok(Session {
            role: rows[0].try_get(0)?,
            wal_level: rows[0].try_get(1)?,
        })
    }

    /// Everything was made before: nothing is changed.
    fn ready(&self, facts: &SlotFacts) -> anyhow::Result<()> {
        warn_all(verdict(facts, &self.names)?);
        say(&format!(
            "slot {} is ready; nothing was changed",
            self.names.slot
        ))
    }

    async fn publication(&self, facts: &SlotFacts, place: &Place<'_>) -> anyhow::Result<()> {
        if let Some(publication) = &facts.publication {
            warn_all(wider(publication, &self.names));
            return self.covered(facts);
        }
        setup::make_publication(&self.client, &self.names, place).await?;
        say(&format!(
            "made publication {} of {}, inserts only",
            self.names.publication,
            table(&self.names.table)
        ))
    }

    /// The publication is there and covers the table.
    fn covered(&self, facts: &SlotFacts) -> anyhow::Result<()> {
        let (Some(publication), Some(found)) = (&facts.publication, &facts.table) else {
            anyhow::bail!("table or publication went away meanwhile: run `walpost init` again");
        };
        covers(publication, found, &self.names)?;
        Ok(())
    }

    async fn migrate(&self, facts: &SlotFacts, place: &Place<'_>) -> anyhow::Result<()> {
        match setup::make_schema(&self.client, facts.schema_version, place).await? {
            Some(made) => say(&format!("made {made}")),
            None => Ok(()),
        }
    }

    /// A slot that is there without our row: made by hand, with the same rights and SQL.
    fn adopt(&self, slot: &Slot, facts: &SlotFacts) -> Result<Lsn, Stop> {
        let name = &self.names.slot;
        ours(slot, &facts.database, name)?;
        if slot.active {
            return Err(held(name, facts));
        }
        if facts.publication.is_none() {
            return Err(stop!(
                Exit::Slot,
                "slot {name} is there but publication {} is not: what was written since the slot was made could not be \
                 decoded. If nothing reads the slot, drop it with `SELECT pg_drop_replication_slot({})`, then `walpost init` again",
                self.names.publication,
                literal(name)
            ));
        }
        match (slot.confirmed_flush_lsn, slot.wal_status.as_deref()) {
            (Some(at), Some("reserved" | "extended" | "unreserved")) => Ok(at),
            (_, status) => Err(stop!(
                Exit::Slot,
                "slot {name} cannot be read from (WAL {}): drop it with `SELECT pg_drop_replication_slot({})`, then `walpost init` again",
                status.unwrap_or("not reserved"),
                literal(name)
            )),
        }
    }

    /// Of an init that was interrupted, perhaps still at work on the server. Nothing was published
    /// from such a slot.
    async fn drop_half_made(&self, slot: &Slot, database: &str) -> anyhow::Result<()> {
        let name = &self.names.slot;
        ours(slot, database, name)?;
        loop {
            setup::drop_slot(&self.client, name).await?;
            let facts = self.facts().await?;
            if facts.slot.is_none() {
                say(&format!("dropped slot {name}, which was half-made"))?;
                return Ok(());
            }
            if Instant::now() >= self.deadline {
                let held = held(name, &facts);
                return Err(Stop::new(Exit::Grace, held.cause).into());
            }
            sleep(POLL_EVERY).await;
        }
    }

    async fn slot(&self, facts: &SlotFacts, role: &str, begun: bool) -> anyhow::Result<Lsn> {
        let name = &self.names.slot;
        setup::record_creating(&self.client, name).await?;
        let limit = self
            .deadline
            .saturating_duration_since(Instant::now())
            .max(POLL_EVERY);
        let made = create_slot(&self.conninfo, &self.client, name, role, limit).await;
        let made = made.and_then(|made| {
            let (here, there) = (&facts.server.system_identifier, &made.system_identifier);
            anyhow::ensure!(
                here == there,
                "two connections reached two clusters, with system identifiers {here} and {there}"
            );
            Ok(made)
        });
        match made {
            Ok(made) => Ok(made.consistent_point),
            Err(error) => {
                // A row of an earlier attempt stays, with its life: the next init starts again.
                if !begun {
                    let forgotten = setup::forget(&self.client, name).await;
                    forgotten.unwrap_or_else(|why| {
                        tracing::warn!("slot {name} stays marked as half-made: {why:#}")
                    });
                }
                Err(error)
            }
        }
    }
}

/// The server can decode at all, and what is there is not of a newer walpost.
fn possible(facts: &SlotFacts, session: &Session) -> Result<(), Stop> {
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

fn held(slot: &str, facts: &SlotFacts) -> Stop {
    let holder = facts.holder.as_ref();
    stop!(
        Exit::Slot,
        "slot {slot} is read by pid {} ({}): stop that program, or choose another name (`postgres.slot`)",
        holder.map_or(0, |h| h.pid),
        holder
            .and_then(|h| h.application.as_deref())
            .unwrap_or("an unknown application")
    )
}

fn warn_all(warnings: Vec<String>) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

fn say(line: &str) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{line}").context("write to stdout")
}

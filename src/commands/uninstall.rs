//! `walpost uninstall`: drops slot and publication by exact name, after showing what is lost.

use std::io::{self, BufRead, IsTerminal, Write};

use bytesize::ByteSize;
use serde::Serialize;
use tokio_postgres::{Client, types::Type};

use super::say::Out;
use crate::{
    cli,
    config::{Config, Env},
    error::{Exit, Stop},
    lsn::Lsn,
    pg::{
        conninfo::ConnInfo,
        quote::{ident, table},
        record, schema,
        setup::{self, COUNT_TO, explain},
        slot::{Names, SlotFacts},
        sql,
        verdict::ours,
    },
    stop,
};

pub async fn uninstall(
    config: &Config,
    env: &Env,
    options: &cli::Uninstall,
) -> anyhow::Result<Exit> {
    let names = Names::of(config)?;
    let info = ConnInfo::resolve(&config.postgres, env)?;
    let client = sql::connect(&info, "walpost:uninstall").await?;
    let uninstall = Uninstall {
        names,
        role: info.user,
        client,
        out: Out::new(options.json),
    };
    let facts = setup::look_at_rest(&uninstall.client, &uninstall.names, &uninstall.role).await?;
    let plan = uninstall.plan(&facts, options.drop_schema).await?;
    let mut shown = uninstall.show(&facts, &plan).await?;
    if plan.is_empty() {
        uninstall.out.object(&shown)?;
        return Ok(Exit::Done);
    }
    if !options.yes {
        uninstall.out.object(&shown)?;
        if options.json || !agreed(&uninstall.names.slot)? {
            let exit = if options.json {
                Exit::Usage
            } else {
                Exit::Error
            };
            return Err(stop!(
                exit,
                "nothing was dropped; `walpost uninstall --yes` does not ask"
            )
            .into());
        }
    }
    uninstall.go(&plan).await?;
    shown.dropped = plan.names();
    uninstall.out.object(&shown)?;
    Ok(Exit::Done)
}

/// What `--json` prints: what was there, and what was dropped of it.
#[derive(Serialize)]
struct Shown<'a> {
    slot: &'a str,
    publication: &'a str,
    /// `null`: there is no slot, or it was never read from.
    confirmed_lsn: Option<Lsn>,
    /// Bytes of WAL behind it, which are not published.
    unpublished_bytes: Option<u64>,
    tables: Vec<String>,
    /// Rows that the tables hold, published ones included, counted to a million; `null` without
    /// the right to look.
    rows: Option<i64>,
    /// The role that has to drop the publication itself.
    publication_owner: Option<&'a str>,
    dropped: Vec<&'static str>,
}

struct Uninstall {
    names: Names,
    role: String,
    client: Client,
    out: Out,
}

/// What is to be dropped.
struct Plan {
    slot: bool,
    publication: bool,
    /// The publication is of this role, which has to drop it itself.
    owner: Option<String>,
    /// Our row in `walpost.slot`.
    row: bool,
    schema: bool,
}

impl Plan {
    fn is_empty(&self) -> bool {
        !(self.slot || self.publication || self.row || self.schema)
    }

    fn names(&self) -> Vec<&'static str> {
        let parts = [
            (self.slot, "slot"),
            (self.publication, "publication"),
            (self.schema, "schema"),
        ];
        parts
            .into_iter()
            .filter_map(|(is_dropped, name)| is_dropped.then_some(name))
            .collect()
    }
}

impl Uninstall {
    async fn facts(&self) -> anyhow::Result<SlotFacts> {
        setup::look(&self.client, &self.names, &self.role).await
    }

    async fn plan(&self, facts: &SlotFacts, drop_schema: bool) -> anyhow::Result<Plan> {
        if facts.server.in_recovery {
            let text = "the server is a standby: run `walpost uninstall` against the primary";
            return Err(stop!(Exit::Error, "{text}").into());
        }
        if let Some(version) = facts.schema_version {
            schema::check(version, &facts.database)?;
        }
        if let Some(slot) = &facts.slot {
            ours(slot, &facts.database, &self.names.slot)?;
            if slot.active {
                return Err(held(&self.names.slot, facts).into());
            }
        }
        let schema = drop_schema && facts.schema_version.is_some();
        if schema {
            self.alone().await?;
        }
        let owner = match &facts.publication {
            Some(_) => self.owner().await?,
            None => None,
        };
        Ok(Plan {
            slot: facts.slot.is_some(),
            publication: facts.publication.is_some() && owner.is_none(),
            owner,
            row: facts.record.is_some(),
            schema,
        })
    }

    /// No other slot's bookkeeping is in the schema.
    async fn alone(&self) -> anyhow::Result<()> {
        let text = "SELECT pg_catalog.string_agg(slot, ', ' ORDER BY slot) FROM walpost.slot WHERE slot <> $1";
        let slot = &self.names.slot;
        let rows = self.client.query_typed(text, &[(slot, Type::TEXT)]).await;
        let others: Option<String> = rows.map_err(explain)?[0].try_get(0)?;
        match others {
            None => Ok(()),
            Some(others) => Err(stop!(
                Exit::Error,
                "schema walpost also holds the bookkeeping of {others}: leave out --drop-schema"
            )
            .into()),
        }
    }

    /// Whose the publication is, if not ours to drop.
    async fn owner(&self) -> anyhow::Result<Option<String>> {
        let text =
            "SELECT pg_catalog.pg_get_userbyid(pubowner)::text FROM pg_catalog.pg_publication
            WHERE pubname = $1 AND NOT pg_catalog.pg_has_role(pubowner, 'USAGE')";
        let name = &self.names.publication;
        let rows = self.client.query_typed(text, &[(name, Type::TEXT)]).await;
        let rows = rows.map_err(explain)?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
    }

    async fn show<'a>(&'a self, facts: &SlotFacts, plan: &'a Plan) -> anyhow::Result<Shown<'a>> {
        let Names {
            slot, publication, ..
        } = &self.names;
        let confirmed = facts
            .slot
            .as_ref()
            .and_then(|slot| slot.confirmed_flush_lsn);
        match confirmed {
            Some(at) => {
                let lag = facts.confirmed_lag_bytes().unwrap_or(0);
                self.say(&format!(
                    "slot {slot} stands at {at}: {lag} bytes of WAL behind it ({}) are not published, and cannot be once it is gone",
                    ByteSize(lag)
                ))?;
            }
            None if plan.slot => self.say(&format!("slot {slot} was never read from"))?,
            None => self.say(&format!("there is no slot {slot}"))?,
        }
        if facts.publication.is_none() {
            self.say(&format!("there is no publication {publication}"))?;
        }
        let mut total = None;
        for (outbox, found) in self.names.tables.iter().zip(&facts.tables) {
            let rows = match &found.table {
                Some(_) => setup::count_rows(&self.client, &outbox.table).await?,
                None => None,
            };
            if let Some(rows) = rows {
                total = Some(total.unwrap_or(0) + rows);
                let more = if rows == COUNT_TO { " or more" } else { "" };
                let outbox = table(&outbox.table);
                self.say(&format!(
                    "table {outbox} holds {rows}{more} rows, published ones included; it stays"
                ))?;
            }
        }
        if let Some(owner) = &plan.owner {
            let drop = format!("DROP PUBLICATION {}", ident(publication));
            self.say(&format!(
                "publication {publication} belongs to role {owner} and stays; that role drops it with `{drop}`"
            ))?;
        }
        Ok(Shown {
            slot,
            publication,
            confirmed_lsn: confirmed,
            unpublished_bytes: confirmed.and(facts.confirmed_lag_bytes()),
            tables: self.names.tables(),
            rows: total,
            publication_owner: plan.owner.as_deref(),
            dropped: Vec::new(),
        })
    }

    /// The slot first: if somebody has begun to read it meanwhile, nothing is dropped.
    async fn go(&self, plan: &Plan) -> anyhow::Result<()> {
        let Names {
            slot, publication, ..
        } = &self.names;
        if plan.slot {
            record::drop_slot(&self.client, slot).await?;
            let facts = self.facts().await?;
            if facts.slot.is_some() {
                return Err(held(slot, &facts).into());
            }
            self.say(&format!("dropped slot {slot}"))?;
        }
        if plan.publication {
            self.run(&format!("DROP PUBLICATION {}", ident(publication)))
                .await?;
            self.say(&format!("dropped publication {publication}"))?;
        }
        if plan.schema {
            self.run("DROP SCHEMA walpost CASCADE").await?;
            return self.say("dropped schema walpost");
        }
        if plan.row {
            record::remove(&self.client, slot).await?;
            self.say("schema walpost stays, without this slot; --drop-schema drops it")?;
        }
        Ok(())
    }

    fn say(&self, line: &str) -> anyhow::Result<()> {
        self.out.say(line)
    }

    async fn run(&self, statement: &str) -> anyhow::Result<()> {
        let done = self.client.batch_execute(statement).await;
        done.map_err(|error| explain(error).context(format!("cannot `{statement}`")))
    }
}

/// Asks on the terminal; without one nobody can answer.
fn agreed(slot: &str) -> anyhow::Result<bool> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Err(stop!(
            Exit::Usage,
            "nobody can be asked, as standard input is no terminal: nothing was dropped; `walpost uninstall --yes` does not ask"
        )
        .into());
    }
    let mut out = io::stdout();
    write!(out, "drop them? Type the slot's name ({slot}) for yes: ")?;
    out.flush()?;
    let mut answer = String::new();
    input.lock().read_line(&mut answer)?;
    Ok(answer.trim() == slot)
}

fn held(slot: &str, facts: &SlotFacts) -> Stop {
    let holder = facts.holder.as_ref();
    stop!(
        Exit::Slot,
        "slot {slot} is read by pid {} ({}): stop that program first; nothing was dropped",
        holder.map_or(0, |h| h.pid),
        holder
            .and_then(|h| h.application.as_deref())
            .unwrap_or("an unknown application")
    )
}

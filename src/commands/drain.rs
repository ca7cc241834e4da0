//! `walpost drain`: waits until everything that was committed before is confirmed.

use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::{Client, types::Type};

use super::{say::Out, status::publisher};
use crate::{
    cli,
    config::{Config, Env},
    error::Exit,
    lsn::Lsn,
    pg::{
        conninfo::ConnInfo,
        setup::{self, explain},
        slot::{Names, SlotFacts, verdict},
        sql,
    },
    status::{InFlight, PublisherPart},
    stop,
};

const POLL_EVERY: Duration = Duration::from_millis(200);

/// What `--json` prints, when it is done and when the time is over.
#[derive(Serialize)]
struct Drained<'a> {
    slot: &'a str,
    drained: bool,
    /// The end of the WAL when the command began; later writes are not waited for.
    target_lsn: Lsn,
    confirmed_lsn: Option<Lsn>,
    /// Bytes of WAL between the two.
    remaining_bytes: u64,
    /// `null` when no publisher answers at `http.listen`.
    in_flight: Option<InFlight>,
}

pub async fn drain(config: &Config, env: &Env, options: &cli::Drain) -> anyhow::Result<Exit> {
    let deadline = Instant::now() + options.timeout;
    let names = Names::of(config)?;
    let info = ConnInfo::resolve(&config.postgres, env)?;
    // What was seen last, also when the time ends in the middle of a look.
    let mut seen = None;
    let waiting = wait(&names, &info, &config.http.listen, &mut seen);
    let drained = match timeout_at(deadline, waiting).await {
        Ok(ended) => ended.map(|()| true)?,
        Err(_) => false,
    };
    let Some((target, seen)) = seen else {
        let slot = &names.slot;
        let within = options.timeout;
        return Err(stop!(Exit::Grace, "slot {slot} was not seen within {within:?}").into());
    };
    let out = Out::new(options.json);
    out.object(&Drained {
        slot: &names.slot,
        drained,
        target_lsn: target,
        confirmed_lsn: seen.confirmed(),
        remaining_bytes: seen.left(target),
        in_flight: seen.publisher.as_ref().and_then(|p| p.in_flight.clone()),
    })?;
    if !drained {
        return Err(stop!(
            Exit::Grace,
            "slot {} is not drained after {:?}: {} bytes of WAL up to {target} are not confirmed{}. `walpost status` shows \
             how far it is",
            names.slot,
            options.timeout,
            seen.left(target),
            seen.trouble()
        )
        .into());
    }
    out.say(&format!(
        "slot {} is drained: all that was committed up to {target} is confirmed",
        names.slot
    ))?;
    Ok(Exit::Done)
}

/// Ends when nothing is left.
async fn wait(
    names: &Names,
    info: &ConnInfo,
    listen: &str,
    last: &mut Option<(Lsn, Seen)>,
) -> anyhow::Result<()> {
    let drain = Drain {
        names,
        listen,
        role: &info.user,
        client: sql::connect(info, "walpost:drain").await?,
    };
    let target = drain.begin().await?;
    loop {
        let seen = drain.look().await?;
        let done = seen.left(target) == 0 && seen.rows() == 0;
        *last = Some((target, seen));
        if done {
            return Ok(());
        }
        sleep(POLL_EVERY).await;
    }
}

struct Drain<'a> {
    names: &'a Names,
    listen: &'a str,
    role: &'a str,
    client: Client,
}

/// One look at the slot and its publisher.
struct Seen {
    facts: SlotFacts,
    publisher: Option<PublisherPart>,
}

impl Drain<'_> {
    /// Where the WAL ends now. Taken once: on a server where anything at all goes on, a target that
    /// moves along would never be reached.
    async fn begin(&self) -> anyhow::Result<Lsn> {
        let seen = self.look().await?;
        if seen.is_idle() {
            return Err(stop!(
                Exit::Error,
                "nothing reads slot {}: it stands at {}, {} bytes behind; start `walpost run`, then drain",
                self.names.slot,
                seen.confirmed().unwrap_or(Lsn::ZERO),
                seen.facts.confirmed_lag_bytes().unwrap_or(0)
            )
            .into());
        }
        // A transaction with synchronous_commit = off may be committed and still lie behind the
        // written end of the WAL. The commit of a message of our own writes everything before it.
        // It waits for no standby, which we could be taken for ourselves.
        let text = "SELECT pg_catalog.set_config('synchronous_commit', 'local', true),
            pg_catalog.pg_logical_emit_message(true, 'walpost.drain', $1)";
        self.client
            .query_typed(text, &[(&self.names.slot, Type::TEXT)])
            .await
            .map_err(explain)?;
        let text = "SELECT pg_catalog.pg_current_wal_flush_lsn()::text";
        let rows = self.client.query_typed(text, &[]).await.map_err(explain)?;
        Ok(rows[0].try_get::<_, String>(0)?.parse()?)
    }

    async fn look(&self) -> anyhow::Result<Seen> {
        let facts = setup::look(&self.client, self.names, self.role).await?;
        if facts.server.in_recovery {
            let text = "the server is a standby: run `walpost drain` against the primary";
            return Err(stop!(Exit::Error, "{text}").into());
        }
        verdict(&facts, self.names)?;
        let publisher = publisher(self.listen, self.names, &facts).await;
        Ok(Seen { facts, publisher })
    }
}

impl Seen {
    /// Nobody reads, and nobody is about to read again.
    fn is_idle(&self) -> bool {
        let active = self.facts.slot.as_ref().is_some_and(|slot| slot.active);
        !active && self.publisher.is_none()
    }

    fn confirmed(&self) -> Option<Lsn> {
        self.facts.slot.as_ref()?.confirmed_flush_lsn
    }

    /// Bytes of WAL that are still to be confirmed.
    fn left(&self, target: Lsn) -> u64 {
        let confirmed = self.confirmed().unwrap_or(Lsn::ZERO);
        target.bytes().saturating_sub(confirmed.bytes())
    }

    fn rows(&self) -> usize {
        let publisher = self.publisher.as_ref();
        let in_flight = publisher.and_then(|p| p.in_flight.as_ref());
        in_flight.map_or(0, |in_flight| in_flight.rows)
    }

    /// What is in the way, for the end of a sentence.
    fn trouble(&self) -> String {
        let Some(publisher) = &self.publisher else {
            let nobody = ", and nothing reads the slot any more";
            return if self.is_idle() { nobody } else { "" }.into();
        };
        let rows = format!(", {} rows are in flight", self.rows());
        match &publisher.last_error {
            Some(error) => format!("{rows}; last error of the publisher: {error}"),
            None => rows,
        }
    }
}

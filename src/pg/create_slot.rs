//! Makes the slot over a replication connection. The server waits until every transaction that was
//! open before has ended; this ends in time, says who it waits for, and leaves no slot behind.

use std::{pin::pin, str::FromStr, time::Duration};

use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_postgres::{Client, error::SqlState, types::Type};

use crate::{
    error::{Exit, Failure, Stop},
    lsn::Lsn,
    pg::{
        conninfo::ConnInfo, quote::ident, replication, server_error::ServerError, setup::explain,
        slot::Names, tls::Stream, wire::Replication,
    },
    stop,
};

/// How often to look who is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long a cancelled creation may take to answer.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// What the server answered.
pub struct Made {
    pub consistent_point: Lsn,
    pub system_identifier: String,
    pub snapshot: Option<Snapshot>,
}

/// The database as it was where the slot begins: what is not in it is in the slot. To be imported
/// before this is dropped, which ends it.
pub struct Snapshot {
    pub name: String,
    _exporter: Replication<Stream>,
}

/// `client` is an ordinary connection to the same server, which looks and cancels.
pub async fn create_slot(
    conninfo: &ConnInfo,
    client: &Client,
    names: &Names,
    within: Within,
    export: bool,
) -> anyhow::Result<Made> {
    match create(conninfo, client, names, within, export).await {
        Ok(made) => Ok(made),
        Err(failure) => Err(refused(client, failure, &names.slot, within.command).await),
    }
}

/// How long the operator lets it take, and when that is over.
#[derive(Clone, Copy)]
pub struct Within {
    pub timeout: Duration,
    pub deadline: Instant,
    /// What to run again, such as `walpost init`.
    pub command: &'static str,
}

async fn create(
    conninfo: &ConnInfo,
    client: &Client,
    names: &Names,
    within: Within,
    export: bool,
) -> Result<Made, Failure> {
    let slot = &names.slot;
    let deadline = within.deadline;
    let connect = replication::connect(conninfo, "walpost:init");
    let mut replication = timeout_at(deadline, connect)
        .await
        .map_err(|_| stop!(Exit::Grace, "no replication connection within --timeout"))??;
    // Also ends the waiting when this process is gone: the server does not notice a closed socket
    // while it waits for a lock. It counts for each lock anew, so the deadline is kept here too.
    let left = deadline.saturating_duration_since(Instant::now());
    let lock_timeout = format!("SET lock_timeout = {}", left.as_millis().max(1));
    replication.simple_query(&lock_timeout).await?;
    let pid = "SELECT pg_catalog.pg_backend_pid()";
    let pid: i32 = first(&replication.simple_query(pid).await?, 0)?;
    let system = replication.simple_query("IDENTIFY_SYSTEM").await?;
    // An exported snapshot stays open until the next command on this connection. PostgreSQL 14
    // knows only the first form, and failover slots are of 17 and later.
    let options = match (names.failover, export) {
        (false, false) => "NOEXPORT_SNAPSHOT",
        (false, true) => "EXPORT_SNAPSHOT",
        (true, false) => "(SNAPSHOT 'nothing', FAILOVER true)",
        (true, true) => "(SNAPSHOT 'export', FAILOVER true)",
    };
    let create = format!(
        "CREATE_REPLICATION_SLOT {} LOGICAL pgoutput {options}",
        ident(slot)
    );
    let mut waiting_for = Vec::new();
    let answer = {
        let mut creation = pin!(replication.simple_query(&create));
        loop {
            tokio::select! {
                biased;
                answer = &mut creation => break answer,
                () = sleep_until(deadline) => {
                    cancel(client, pid).await.map_err(Failure::Passing)?;
                    let late = timeout_at(Instant::now() + CANCEL_TIMEOUT, &mut creation).await;
                    break late.map_err(|_| stop!(
                        Exit::Grace,
                        "slot {slot}: its creation (pid {pid}) did not end within {:?} and does not answer \
                         a cancel{}",
                        within.timeout,
                        blamed(&waiting_for)
                    ))?;
                }
                () = sleep(LOOK_EVERY) => {
                    let blockers = blockers(client, pid).await.map_err(Failure::Passing)?;
                    if waiting_for.is_empty() && !blockers.is_empty() {
                        let blamed = blamed(&blockers);
                        tracing::info!(slot, "waiting for transactions that were open before{blamed}");
                    }
                    if !blockers.is_empty() {
                        waiting_for = blockers;
                    }
                }
            }
        }
    };
    let rows = answer.map_err(|failure| match code(&failure) {
        Some(SqlState::LOCK_NOT_AVAILABLE | SqlState::QUERY_CANCELED) => stop!(
            Exit::Grace,
            "slot {slot} was not made within {:?}: the server waits until every transaction that was \
             open before has ended{}. Nothing was left behind; end them or wait, then run \
             `{}` again, longer with `--timeout`",
            within.timeout,
            blamed(&waiting_for),
            within.command
        )
        .into(),
        _ => failure,
    })?;
    let snapshot: Option<String> = export.then(|| first(&rows, 2)).transpose()?;
    Ok(Made {
        consistent_point: first(&rows, 1)?,
        system_identifier: first(&system, 0)?,
        snapshot: snapshot.map(|name| Snapshot {
            name,
            _exporter: replication,
        }),
    })
}

/// Lets standbys keep the slot in step, so that it is there after a promotion. PostgreSQL 17 and
/// later; nobody may read the slot meanwhile.
pub async fn make_failover(conninfo: &ConnInfo, slot: &str) -> anyhow::Result<()> {
    let mut replication = replication::connect(conninfo, "walpost:init").await?;
    let alter = format!("ALTER_REPLICATION_SLOT {} (FAILOVER true)", ident(slot));
    let altered = replication.simple_query(&alter).await;
    altered.map(drop).map_err(|failure| {
        let in_use = code(&failure) == Some(SqlState::OBJECT_IN_USE);
        let failure = anyhow::Error::from(failure);
        match in_use {
            true => stop!(
                Exit::Slot,
                "slot {slot} is read meanwhile: {failure:#}; stop that program, then `walpost init` again"
            )
            .into(),
            false => failure.context(format!("cannot make slot {slot} a failover slot")),
        }
    })
}

/// A column of the only row.
fn first<T>(rows: &[Vec<Option<String>>], column: usize) -> Result<T, Failure>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let cell = rows.first().and_then(|row| row.get(column)?.as_deref());
    let text = cell
        .ok_or_else(|| anyhow::anyhow!("the server's answer lacks column {}", column + 1))
        .map_err(Failure::Passing)?;
    text.parse()
        .map_err(|error: T::Err| Failure::Passing(error.into()))
}

fn code(failure: &Failure) -> Option<SqlState> {
    let (Failure::Passing(error) | Failure::Stop(Stop { cause: error, .. })) = failure;
    let server = error.chain().find_map(|e| e.downcast_ref::<ServerError>());
    server.map(|error| error.code.clone())
}

/// What the server refuses for want of a right or a free place, with the command that mends it.
async fn refused(client: &Client, failure: Failure, slot: &str, command: &str) -> anyhow::Error {
    let error = code(&failure);
    let failure = anyhow::Error::from(failure);
    let mend = match error {
        Some(SqlState::INSUFFICIENT_PRIVILEGE) => {
            let rows = client.query_typed("SELECT current_user::text", &[]).await;
            let role = rows
                .ok()
                .and_then(|rows| rows[0].try_get::<_, String>(0).ok());
            let role = role.as_deref().map_or("…".into(), ident);
            format!("let a superuser run `ALTER ROLE {role} REPLICATION`")
        }
        Some(SqlState::CONFIGURATION_LIMIT_EXCEEDED) => {
            let text = "SELECT pg_catalog.current_setting('max_replication_slots')::int";
            let rows = client.query_typed(text, &[]).await;
            let now: i32 = rows
                .ok()
                .and_then(|rows| rows[0].try_get(0).ok())
                .unwrap_or(10);
            format!(
                "drop one that is not needed (`SELECT slot_name, active FROM pg_replication_slots`), or let \
                 a superuser run `ALTER SYSTEM SET max_replication_slots = {}` and restart the server",
                now.saturating_add(10)
            )
        }
        Some(SqlState::DUPLICATE_OBJECT) => {
            let text = "was made by somebody else meanwhile";
            return stop!(
                Exit::Slot,
                "slot {slot} {text}: {failure:#}; run `{command}` again"
            )
            .into();
        }
        _ if Exit::of(&failure) != Exit::Error => return failure,
        _ => return failure.context(format!("cannot make slot {slot}")),
    };
    stop!(Exit::Error, "cannot make slot {slot}: {failure:#}; {mend}").into()
}

async fn cancel(client: &Client, pid: i32) -> anyhow::Result<()> {
    let cancelled = client
        .query_typed(
            "SELECT pg_catalog.pg_cancel_backend($1)",
            &[(&pid, Type::INT4)],
        )
        .await;
    cancelled.map(drop).map_err(explain)
}

/// The transactions that a process waits for, each in words.
pub async fn blockers(client: &Client, pid: i32) -> anyhow::Result<Vec<String>> {
    // A prepared transaction has no process and counts as pid 0.
    let rows = client
        .query_typed(
            "SELECT b.pid, a.usename::text, a.application_name, a.datname::text, a.state,
               pg_catalog.date_trunc('second', pg_catalog.clock_timestamp() - a.xact_start)::text,
               (SELECT pg_catalog.string_agg(pg_catalog.format('%s (database %s)', p.gid, p.database), ', ')
                FROM pg_catalog.pg_prepared_xacts p WHERE b.pid = 0)
             FROM (SELECT DISTINCT unnest(pg_catalog.pg_blocking_pids($1))) AS b (pid)
               LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = b.pid",
            &[(&pid, Type::INT4)],
        )
        .await
        .map_err(explain)?;
    let mut blockers = Vec::new();
    for row in rows {
        let pid: i32 = row.try_get(0)?;
        let text = |column| {
            row.try_get::<_, Option<String>>(column)
                .map(|text| text.filter(|t| !t.is_empty()))
        };
        if pid == 0 {
            blockers.push(format!(
                "prepared transaction {}",
                text(6)?.unwrap_or_default()
            ));
            continue;
        }
        let seen = [
            ("role", text(1)?),
            ("application", text(2)?),
            ("database", text(3)?),
            ("", text(4)?),
            ("open for", text(5)?),
        ];
        let seen: Vec<_> = seen
            .into_iter()
            .filter_map(|(name, value)| Some(format!("{name} {}", value?).trim().to_owned()))
            .collect();
        blockers.push(format!("pid {pid} ({})", seen.join(", ")));
    }
    Ok(blockers)
}

pub fn blamed(blockers: &[String]) -> String {
    if blockers.is_empty() {
        String::new()
    } else {
        format!(": {}", blockers.join("; "))
    }
}

//! Makes the slot over a replication connection. The server waits until every transaction that was
//! open before has ended; this ends in time, says who it waits for, and leaves no slot behind.

use std::{pin::pin, time::Duration};

use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_postgres::{Client, error::SqlState, types::Type};

use crate::{
    error::{Exit, Failure, Stop},
    lsn::Lsn,
    pg::{
        conninfo::ConnInfo, quote::ident, replication, server_error::ServerError, setup::explain,
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
}

/// `client` is an ordinary connection to the same server, which looks and cancels.
pub async fn create_slot(
    conninfo: &ConnInfo,
    client: &Client,
    slot: &str,
    role: &str,
    limit: Duration,
) -> anyhow::Result<Made> {
    let deadline = Instant::now() + limit;
    let refused = |failure| refused(failure, slot, role);
    let connect = replication::connect(conninfo, "walpost:init");
    let mut replication = timeout_at(deadline, connect)
        .await
        .map_err(|_| stop!(Exit::Grace, "no replication connection within --timeout"))?
        .map_err(refused)?;
    // Also ends the waiting when this process is gone: the server does not notice a closed socket
    // while it waits for a lock. It counts for each lock anew, so the deadline is kept here too.
    let lock_timeout = format!("SET lock_timeout = {}", limit.as_millis());
    replication
        .simple_query(&lock_timeout)
        .await
        .map_err(refused)?;
    let pid = first(
        &replication
            .simple_query("SELECT pg_catalog.pg_backend_pid()")
            .await
            .map_err(refused)?,
        0,
    )?;
    let pid: i32 = pid.parse()?;
    let system = replication
        .simple_query("IDENTIFY_SYSTEM")
        .await
        .map_err(refused)?;

    // Not exported: an exported snapshot stays open until the next command.
    let create = format!(
        "CREATE_REPLICATION_SLOT {} LOGICAL pgoutput NOEXPORT_SNAPSHOT",
        ident(slot)
    );
    let mut creation = pin!(replication.simple_query(&create));
    let mut waiting_for = Vec::new();
    let mut told = false;
    let answer = loop {
        tokio::select! {
            biased;
            answer = &mut creation => break answer,
            () = sleep_until(deadline) => {
                cancel(client, pid).await?;
                let late = timeout_at(Instant::now() + CANCEL_TIMEOUT, &mut creation).await;
                break late.map_err(|_| stop!(
                    Exit::Grace,
                    "slot {slot}: its creation (pid {pid}) did not end within --timeout, and does not answer a cancel{}",
                    blamed(&waiting_for)
                ))?;
            }
            () = sleep(LOOK_EVERY) => {
                let blockers = blockers(client, pid).await?;
                if !blockers.is_empty() {
                    waiting_for = blockers;
                    if !std::mem::replace(&mut told, true) {
                        tracing::info!(slot, "the slot waits for transactions that were open before{}", blamed(&waiting_for));
                    }
                }
            }
        }
    };
    let rows = answer.map_err(|failure| match code(&failure) {
        Some(SqlState::LOCK_NOT_AVAILABLE | SqlState::QUERY_CANCELED) => Failure::Stop(stop!(
            Exit::Grace,
            "slot {slot} was not made within {limit:?}: the server waits until every transaction that was open before \
             has ended{}. Nothing was left behind; end them or wait, then run `walpost init` again, longer with `--timeout`",
            blamed(&waiting_for)
        )),
        _ => failure,
    });
    let rows = rows.map_err(refused)?;
    Ok(Made {
        consistent_point: first(&rows, 1)?.parse()?,
        system_identifier: first(&system, 0)?,
    })
}

/// A column of the only row.
fn first(rows: &[Vec<Option<String>>], column: usize) -> anyhow::Result<String> {
    let cell = rows
        .first()
        .and_then(|row| row.get(column))
        .cloned()
        .flatten();
    cell.ok_or_else(|| anyhow::anyhow!("the server's answer lacks column {}", column + 1))
}

fn code(failure: &Failure) -> Option<SqlState> {
    let chain = match failure {
        Failure::Passing(error) | Failure::Stop(Stop { cause: error, .. }) => error,
    };
    chain
        .chain()
        .find_map(|e| e.downcast_ref::<ServerError>())
        .map(|e| e.code.clone())
}

/// What the server refuses for want of a right or a free place, with the command that mends it.
fn refused(failure: Failure, slot: &str, role: &str) -> anyhow::Error {
    let mend = match code(&failure) {
        Some(SqlState::INSUFFICIENT_PRIVILEGE) => format!(
            "let a superuser run `ALTER ROLE {} REPLICATION`",
            ident(role)
        ),
        Some(SqlState::CONFIGURATION_LIMIT_EXCEEDED) => {
            "all replication slots are taken: drop one that is not needed \
            (`SELECT slot_name, active FROM pg_replication_slots`), or raise the limit with \
            `ALTER SYSTEM SET max_replication_slots = …` and restart the server"
                .into()
        }
        Some(SqlState::TOO_MANY_CONNECTIONS) => {
            "all replication connections are taken: end one that is not needed \
            (`SELECT pid, application_name FROM pg_stat_replication`), or raise the limit with \
            `ALTER SYSTEM SET max_wal_senders = …` and restart the server"
                .into()
        }
        Some(SqlState::DUPLICATE_OBJECT) => {
            let error = anyhow::Error::from(failure);
            return stop!(Exit::Slot, "slot {slot} was made by somebody else meanwhile: {error:#}; run `walpost init` again").into();
        }
        _ => return anyhow::Error::from(failure).context(format!("cannot make slot {slot}")),
    };
    stop!(
        Exit::Error,
        "cannot make slot {slot}: {:#}; {mend}",
        anyhow::Error::from(failure)
    )
    .into()
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
async fn blockers(client: &Client, pid: i32) -> anyhow::Result<Vec<String>> {
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

fn blamed(blockers: &[String]) -> String {
    if blockers.is_empty() {
        String::new()
    } else {
        format!(": {}", blockers.join("; "))
    }
}

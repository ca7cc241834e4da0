//! `walpost skip`: passes one transaction that the server cannot decode, after proving that it is
//! this one, that it cannot be decoded, and that nothing unconfirmed lies before it.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{Client, error::SqlState, types::Type};

use crate::{
    cli,
    commands::say::Out,
    config::{Config, Env},
    error::{Exit, Failure, Stop},
    lsn::Lsn,
    pg::{
        conninfo::ConnInfo,
        message::{ServerMessage, StatusUpdate},
        pgoutput::Change,
        quote::literal,
        replication,
        server_error::ServerError,
        setup::{self, explain},
        slot::{Names, verdict},
        sql, tls,
        wire::{Event, Stream},
    },
    stop,
};

/// The server reads from the slot's restart position before it sends anything; a large backlog
/// takes its time.
const DECODE_TIMEOUT: Duration = Duration::from_secs(600);

/// How long the server may take to let go of the slot after it failed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

pub async fn skip(config: &Config, env: &Env, options: &cli::Skip) -> anyhow::Result<Exit> {
    let names = Names::of(config)?;
    let info = ConnInfo::resolve(&config.postgres, env)?;
    let client = sql::connect(&info, "walpost:skip").await?;
    let facts = setup::look_at_rest(&client, &names, &info.user).await?;
    if facts.server.in_recovery {
        let text = "the server is a standby: run `walpost skip` against the primary";
        return Err(stop!(Exit::Error, "{text}").into());
    }
    verdict(&facts, &names)?;
    let slot = facts.slot.as_ref();
    let confirmed = slot.and_then(|slot| slot.confirmed_flush_lsn);
    let skip = Skip {
        names,
        client,
        at: options.transaction,
    };
    if let Some(pid) = slot.and_then(|slot| slot.active_pid) {
        return Err(skip.held(&format!("pid {pid}")).into());
    }
    if let Some(confirmed) = confirmed.filter(|confirmed| *confirmed > skip.at) {
        return Err(skip
            .refuse(&format!("the slot has passed it, it stands at {confirmed}"))
            .into());
    }
    // Held to the end: the lock keeps publishers away.
    let (_stream, proof) = skip.prove(&info).await?;
    skip.record(confirmed, &options.reason, &proof).await?;
    skip.advance().await?;
    let (out, error) = (Out::new(options.json), &proof.error);
    out.say(&format!(
        "slot {} passed the transaction that commits at {}: {error}; recorded in walpost.audit_log. Rows of it that are not in Kafka \
         have to be inserted again",
        skip.names.slot, skip.at
    ))?;
    out.object(&json!({
        "slot": skip.names.slot, "transaction": skip.at, "passed": true, "changes_decoded": proof.decoded,
        "sqlstate": error.code.code(), "error": error.message,
    }))?;
    Ok(Exit::Done)
}

struct Skip {
    names: Names,
    client: Client,
    /// The transaction's commit record.
    at: Lsn,
}

/// The server failed inside the transaction.
struct Proof {
    error: ServerError,
    /// Changes of it that came before.
    decoded: u64,
}

impl Skip {
    /// Reads from the slot without confirming anything. The first transaction with content has to be
    /// the one that is named, and has to fail.
    async fn prove(&self, info: &ConnInfo) -> anyhow::Result<(Stream<tls::Stream>, Proof)> {
        let mut connection = replication::connect(info, "walpost:skip").await?;
        let slot = literal(&self.names.slot);
        let lock = format!(
            "SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtext('walpost.slot'), pg_catalog.hashtext({slot}))"
        );
        let rows = connection.simple_query(&lock).await?;
        if rows.first().and_then(|row| row.first()?.as_deref()) != Some("t") {
            return Err(self.held("another walpost").into());
        }
        connection
            .start_replication(&self.names.slot, &self.names.publication)
            .await?;
        let mut stream = connection.into_stream();
        match timeout(DECODE_TIMEOUT, self.read(&mut stream)).await {
            Ok(proof) => Ok((stream, proof?)),
            Err(_) => {
                let within = DECODE_TIMEOUT;
                Err(self
                    .refuse(&format!("the server did not come to it within {within:?}"))
                    .into())
            }
        }
    }

    async fn read(&self, stream: &mut Stream<tls::Stream>) -> anyhow::Result<Proof> {
        let mut open: Option<Lsn> = None;
        let mut decoded = 0;
        loop {
            let frame = match stream.next(true).await {
                Ok(Event::Data(frame)) => frame,
                Ok(Event::Notice(_)) => continue,
                Err(Failure::Passing(error)) => match (error.downcast::<ServerError>(), open) {
                    (Ok(error), Some(at)) if at == self.at && error.is_of_content() => {
                        return Ok(Proof { error, decoded });
                    }
                    (Ok(error), None) if error.is_of_content() => {
                        let why = "the server fails before it names the transaction, so it is not known that only this one is passed";
                        return Err(self.refuse(&format!("{why}: {error}")).into());
                    }
                    (Ok(error), _) => return Err(error.into()),
                    (Err(error), _) => return Err(error),
                },
                Err(Failure::Stop(stop)) => return Err(stop.into()),
            };
            match ServerMessage::parse(&frame)? {
                ServerMessage::Keepalive { wal_end, .. } => {
                    if open.is_none() && wal_end > self.at {
                        let why = "no such transaction of the publication is in the slot";
                        return Err(self.refuse(why).into());
                    }
                    // Only a sign of life.
                    stream.queue_status(&StatusUpdate {
                        received: Lsn::ZERO,
                        confirmed: None,
                        reply_requested: false,
                    });
                }
                ServerMessage::XLogData { data, .. } => match Change::parse(data)? {
                    Change::Begin { commit_lsn, .. } => {
                        if commit_lsn > self.at {
                            let why = format!("the next one in the slot commits at {commit_lsn}");
                            return Err(self.refuse(&why).into());
                        }
                        open = Some(commit_lsn);
                    }
                    Change::Commit { .. } if open == Some(self.at) => {
                        let why = "it can be decoded: `walpost run` publishes it";
                        return Err(self.refuse(why).into());
                    }
                    // PostgreSQL 14 sends transactions without content too.
                    Change::Commit { .. } => open = None,
                    Change::Relation(_) | Change::Ignored(_) => {}
                    Change::Message {
                        transactional: false,
                        ..
                    } => {}
                    Change::Insert { .. } | Change::Message { .. } => match open {
                        Some(at) if at < self.at => {
                            let why = format!(
                                "the one that commits at {at} comes before it and is not confirmed: let `walpost run` publish it first"
                            );
                            return Err(self.refuse(&why).into());
                        }
                        _ => decoded += 1,
                    },
                },
            }
        }
    }

    /// Before the slot moves: an entry for a transaction that was not passed in the end does no harm.
    async fn record(
        &self,
        confirmed: Option<Lsn>,
        reason: &str,
        proof: &Proof,
    ) -> anyhow::Result<()> {
        let Names { slot, .. } = &self.names;
        let detail = json!({
            "slot": slot, "transaction": self.at, "reason": reason, "confirmed_lsn": confirmed,
            "changes_decoded": proof.decoded, "sqlstate": proof.error.code.code(), "error": proof.error.message,
        });
        // A closed letter: there is nothing in it to be sent.
        let text = "WITH letter AS (INSERT INTO walpost.dead_letter (slot, life, outbox, position_lsn, position_ordinal, status, error_class, error_code,
              error_text, first_failed_at, last_failed_at, acted_by, acted_at)
            SELECT slot, life, '', $4::pg_catalog.pg_lsn, 0, 'ignored', 'skipped', $5, $6, pg_catalog.now(), pg_catalog.now(), session_user, pg_catalog.now()
            FROM walpost.slot WHERE slot = $1
            ON CONFLICT (slot, life, position_lsn, position_ordinal) DO UPDATE SET last_failed_at = pg_catalog.now() RETURNING id),
          entry AS (INSERT INTO walpost.audit_log (verb, dead_letter_id, detail) SELECT 'skip', id, $2::text::jsonb FROM letter)
            UPDATE walpost.slot SET reserved_lsn = greatest(reserved_lsn, $3::pg_catalog.pg_lsn), updated_at = pg_catalog.now()
            WHERE slot = $1";
        let values = [
            (slot as _, Type::TEXT),
            (&detail.to_string() as _, Type::TEXT),
            (&self.behind().to_string() as _, Type::TEXT),
            (&self.at.to_string() as _, Type::TEXT),
            (&proof.error.code.code() as _, Type::TEXT),
            (&proof.error.message as _, Type::TEXT),
        ];
        let recorded = self.client.query_typed(text, &values).await;
        recorded.map_err(|error| {
            explain(error).context("cannot write to walpost.dead_letter and walpost.audit_log")
        })?;
        Ok(())
    }

    /// One byte into its commit record: the server leaves out transactions whose commit record begins
    /// before the slot's position, and the next one begins behind this record's end.
    fn behind(&self) -> Lsn {
        Lsn::new(self.at.bytes() + 1)
    }

    async fn advance(&self) -> anyhow::Result<()> {
        let text = "SELECT pg_catalog.pg_replication_slot_advance($1, $2::pg_catalog.pg_lsn)";
        let to = self.behind().to_string();
        let values = [(&self.names.slot as _, Type::TEXT), (&to as _, Type::TEXT)];
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        loop {
            match self.client.query_typed(text, &values).await {
                Ok(_) => return Ok(()),
                Err(error)
                    if error.code() == Some(&SqlState::OBJECT_IN_USE)
                        && Instant::now() < deadline =>
                {
                    sleep(Duration::from_millis(100)).await;
                }
                Err(error) => {
                    return Err(explain(error).context(format!(
                        "cannot advance slot {}, nothing was passed",
                        self.names.slot
                    )));
                }
            }
        }
    }

    fn refuse(&self, why: &str) -> Stop {
        let slot = &self.names.slot;
        stop!(
            Exit::Error,
            "slot {slot} was not moved, the transaction that commits at {} is not passed: {why}",
            self.at
        )
    }

    fn held(&self, by: &str) -> Stop {
        let slot = &self.names.slot;
        stop!(
            Exit::Slot,
            "slot {slot} is read by {by}: stop the publisher and its standbys first, then `walpost skip` again"
        )
    }
}

//! `walpost run`: connects the parts, and connects them again with a pause when the stream fails.

mod ending;
mod server;
mod standby;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use server::ServerId;
use tracing::{debug, info, warn};

use crate::{
    backoff::Backoff,
    config::{Config, Env, kafka::producer_settings},
    dead_letters::{clerk::Clerk, store::Owner},
    error::{Exit, Failure, Stop},
    http,
    lsn::Lsn,
    metrics::Metrics,
    outbox::{mapping::mappings, relation::Types},
    pg::{
        conninfo::ConnInfo,
        letters, replication,
        slot::{Found, Names, SlotFacts},
        table,
        tls::Stream,
        verdict::unmoved,
        watch::{Answer, Question, Watch},
        wire::Replication,
    },
    relay::{Relay, Start},
    shutdown::Shutdown,
    state::{Role, State},
    stop,
};

/// The server ends a session that holds locks, has no stream yet and asks nothing for so long: its
/// client is gone. More than the checks between two questions take, in ms.
const HOLDS_LOCKS: u32 = 30_000;

/// A stream that lived so long was no failed attempt: the next pause is short again.
const LIVED: Duration = Duration::from_secs(10);

/// Publishes until told to stop. Ends with the exit code of what stopped it.
pub async fn run(config: Config, env: Env) -> anyhow::Result<Exit> {
    let names = Names::of(&config)?;
    let info = ConnInfo::resolve(&config.postgres, &env)?;
    let properties = producer_settings(&config.kafka)?;
    let mappings = mappings(&config)?;
    let listener = http::bind(&config.http.listen).await?;
    let guard = http::Guard::new(&config.http)?;
    let shutdown = Shutdown::on_signals()?;

    let (config, state, metrics) = (
        Arc::new(config),
        Arc::new(State::default()),
        Arc::new(Metrics::new()),
    );
    let relay = Relay::new(
        config.clone(),
        state.clone(),
        metrics.clone(),
        mappings,
        &properties,
        Clerk::of(&config, &info),
    )?;
    let (watch, refresh) = Watch::spawn(info.clone(), names.clone(), state.clone());
    let desk = info.clone();
    let serving = listener.map(|listener| {
        let shared = http::Shared {
            state: state.clone(),
            metrics: metrics.clone(),
            names: Arc::new(names.clone()),
            refresh: Arc::new(move || {
                let refresh = refresh.clone();
                Box::pin(async move { refresh.facts().await })
            }),
            not_ready_after: config.http.not_ready_after,
            desk: Arc::new(http::Desk::new(
                desk,
                names.slot.clone(),
                letters::holding(&config),
            )),
            guard: Arc::new(guard),
        };
        tokio::spawn(http::serve(listener, shared, shutdown.forced.clone()))
    });
    let mut publisher = Publisher {
        patience: config.postgres.receive_timeout,
        info,
        names,
        state,
        metrics,
        relay,
        watch,
        shutdown,
        stuck: None,
        newest: None,
    };
    let result = publisher.publish().await;
    tokio::select! {
        () = publisher.shutdown.forced.cancelled() => {}
        () = publisher.relay.finish_copies() => {}
    }
    publisher.shutdown.forced.cancel();
    if let Some(serving) = serving {
        serving.await.context("http server")?;
    }
    // Ending a producer waits for brokers that may be gone; the process ends without it.
    std::mem::forget(publisher);
    result.map(|()| Exit::Done).map_err(Into::into)
}

struct Publisher {
    info: ConnInfo,
    /// A server that is silent for longer is given up.
    patience: Duration,
    names: Names,
    state: Arc<State>,
    metrics: Arc<Metrics>,
    relay: Relay,
    watch: Watch,
    shutdown: Shutdown,
    /// Commit LSN of a transaction that cannot be decoded, and how often it was tried.
    stuck: Option<(Lsn, u32)>,
    /// Where the slot was read last.
    newest: Option<ServerId>,
}

impl Publisher {
    /// Stream after stream, until one ends for good.
    async fn publish(&mut self) -> Result<(), Stop> {
        let mut pauses = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        let mut said = None;
        loop {
            let began = Instant::now();
            let stop = self.shutdown.requested.clone();
            let failure = match self.connect(&stop).await {
                Ok(None) => return Ok(()),
                Ok(Some((connection, start))) => {
                    // A stream that breaks each time at the same place is no change of state.
                    if self.stuck.is_none() {
                        info!(slot = self.names.slot, start_lsn = %start.confirmed, "replication started");
                        said = None;
                    }
                    self.set_role(Role::Publisher, None);
                    let epoch = start.epoch;
                    let stream = connection.into_stream();
                    match self
                        .relay
                        .run(stream, start, &mut self.watch, &self.shutdown)
                        .await
                    {
                        Ok(confirmed) => {
                            self.release(epoch, confirmed).await;
                            return Ok(());
                        }
                        Err(failure) => match self.relay.take_undecodable() {
                            Some(left) => self.undecodable(failure, left, epoch).await,
                            None => {
                                self.stuck = None;
                                self.explain(failure).await
                            }
                        },
                    }
                }
                Err(failure) => failure,
            };
            let error = match failure {
                Failure::Stop(stop) => return Err(self.last_words(stop).await),
                Failure::Passing(error) => format!("{error:#}"),
            };
            if said.as_ref() != Some(&error) {
                warn!("{error}; trying again");
            } else {
                debug!("{error}; trying again");
            }
            self.metrics.restart("stream");
            self.set_role(Role::None, Some(error.clone()));
            said = Some(error);
            if began.elapsed() >= LIVED {
                pauses.reset();
            }
            if stop.is_cancelled() {
                return self.stopped_early();
            }
            tokio::select! {
                () = stop.cancelled() => return self.stopped_early(),
                () = tokio::time::sleep(pauses.pause()) => {}
            }
        }
    }

    /// Told to stop without a stream: what was in flight is sent again by the next one.
    fn stopped_early(&self) -> Result<(), Stop> {
        let rows = self.state.lock().in_flight_rows;
        if rows == 0 {
            info!(unconfirmed = 0, "stopped while not connected");
            return Ok(());
        }
        Err(stop!(
            Exit::Grace,
            "stopped without a replication stream, with {rows} rows that are not confirmed; the next `walpost run` sends them again"
        ))
    }

    fn set_role(&self, role: Role, trouble: Option<String>) {
        let mut state = self.state.lock();
        state.role = role;
        if trouble.is_some() {
            state.last_error.clone_from(&trouble);
        }
        state.trouble = trouble;
    }

    /// Checks, connects, takes the locks and the slot over, and starts to stream. `None`: told to
    /// stop meanwhile.
    async fn connect(
        &mut self,
        stop: &tokio_util::sync::CancellationToken,
    ) -> Result<Option<(Replication<Stream>, Start)>, Failure> {
        tokio::select! {
            biased;
            () = stop.cancelled() => Ok(None),
            started = self.start() => started.map(Some),
        }
    }

    async fn start(&mut self) -> Result<(Replication<Stream>, Start), Failure> {
        let facts = self.check().await?;
        let server = ServerId::of(&facts);
        server.not_older_than(self.newest.as_ref())?;
        let application = format!("walpost:{}", self.names.slot);
        let mut connection = replication::connect(&self.info, &application).await?;
        server.same(&self.in_time(ServerId::identify(&mut connection)).await?)?;
        let oids = table_oids(&facts)?;
        let limit = format!("SET idle_session_timeout = {HOLDS_LOCKS}");
        self.in_time(connection.simple_query(&limit)).await?;
        self.take_locks(&mut connection, oids).await?;
        // Only now nobody else changes what was seen.
        let facts = self.check().await?;
        server.same(&ServerId::of(&facts))?;
        unmoved(&facts, &self.names)?;
        let (epoch, reserved) = match self.watch.ask_now(Question::TakeOver).await {
            Answer::TakenOver { epoch, reserved } => (epoch, reserved),
            other => return Err(unanswered(other)),
        };
        let confirmed = facts
            .slot
            .as_ref()
            .and_then(|slot| slot.confirmed_flush_lsn);
        let confirmed = confirmed
            .context("the slot has no position")
            .map_err(Failure::Passing)?;
        let owner = Owner {
            slot: self.names.slot.clone(),
            epoch,
            life: facts
                .record
                .as_ref()
                .and_then(|record| record.life)
                .unwrap_or_default(),
        };
        let letters = self.relay.load_letters(owner, confirmed).await?;
        let wal_sender_timeout = self.in_time(wal_sender_timeout(&mut connection)).await?;
        let types = self.in_time(types(&mut connection)).await?;
        self.start_replication(&mut connection).await?;
        self.newest = Some(server);
        let start = Start {
            reserved,
            confirmed,
            letters,
            table_oids: table_oids(&facts)?,
            types,
            epoch,
            pid: connection.pid(),
            wal_sender_timeout,
        };
        Ok((connection, start))
    }

    async fn check(&mut self) -> Result<SlotFacts, Failure> {
        match self.watch.ask_now(Question::Check(None)).await {
            Answer::Fine(facts) => Ok(*facts),
            other => Err(unanswered(other)),
        }
    }

    /// Before the stream nobody else notices that the replication connection fell silent.
    async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let silent = |_| {
            Err(Failure::Passing(anyhow!(
                "PostgreSQL was silent for {} s on the replication connection",
                self.patience.as_secs()
            )))
        };
        tokio::time::timeout(self.patience, answer)
            .await
            .unwrap_or_else(silent)
    }
}

fn unanswered(answer: Answer) -> Failure {
    match answer {
        Answer::Broken(stop) => stop.into(),
        Answer::Lost(error) => Failure::Passing(error),
        Answer::ServerStopping => Failure::Passing(anyhow!("the server is starting or stopping")),
        Answer::Fine(_)
        | Answer::TakenOver { .. }
        | Answer::Released
        | Answer::Advanced
        | Answer::Heard(_)
        | Answer::Reconnected
        | Answer::Noted => Failure::Passing(anyhow!("internal: an answer to another question")),
    }
}

fn table_oids(facts: &SlotFacts) -> Result<Vec<u32>, Failure> {
    let oid = |found: &Found| Some(found.table.as_ref()?.oid);
    let oids: Option<_> = facts.tables.iter().map(oid).collect();
    oids.context("a table is gone").map_err(Failure::Passing)
}

/// What the catalogue says of types.
async fn types(connection: &mut Replication<Stream>) -> Result<Types, Failure> {
    let rows = connection.simple_query(&table::types()).await?;
    let users = rows.iter().filter_map(|row| {
        let oid = |column: usize| row.get(column)?.as_deref()?.parse().ok();
        Some((oid(0)?, oid(1)?))
    });
    Ok(Types::new(users))
}

/// Milliseconds; 0 is no timeout.
async fn wal_sender_timeout(
    connection: &mut Replication<Stream>,
) -> Result<Option<Duration>, Failure> {
    let sql = "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'";
    let rows = connection.simple_query(sql).await?;
    let setting = rows
        .first()
        .and_then(|row| row.first()?.as_deref()?.parse().ok());
    Ok(setting.filter(|ms| *ms > 0).map(Duration::from_millis))
}

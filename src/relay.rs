//! The loop: frames in, records out, reports back, status to PostgreSQL. Only this file knows that
//! both servers exist.
//!
//! No branch of the loop waits for Kafka or for SQL: a full producer leaves its row in the ledger,
//! checks are made by a task of their own, and status reports go on while reading is paused.

mod ending;
mod factory;
mod inquirer;
mod rate;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{MissedTickBehavior, interval},
};
use tracing::{debug, info, warn};

use self::{
    ending::{Ending, Stage, Told, Why},
    factory::{Factory, Made},
    inquirer::{Inquirer, Replies},
    rate::Rate,
};
use crate::{
    config::Config,
    error::{Exit, Failure},
    kafka::{
        context::{self, Deliveries, Settled, Source},
        failure::code_name,
        producer::Producer,
        topics::{Topic, TopicState},
    },
    ledger::{ConfirmedLsn, Ledger},
    lsn::{Lsn, PgTime},
    metrics::{Metrics, TopicCounter},
    outbox::relation::{Mapping, Relations, Table},
    pg::{
        message::{ServerMessage, StatusUpdate},
        pgoutput::{Change, Tuple},
        server_error::ServerError,
        slot::SlotFacts,
        verdict::start_anew,
        watch::{Answer, Progress, Question, Watch},
        wire::{Event, Stream},
    },
    sender::{Report, Sender},
    shutdown::Shutdown,
    state::{State, WaitingTopic},
    stop,
};

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);

/// The slot is looked at this often although nothing is to be confirmed.
const IDLE_CHECK: Duration = Duration::from_secs(10);

/// Progress goes into `walpost.slot` at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Confirmed positions are reported at once, but not more often than this.
const PROGRESS_REPORTS: Duration = Duration::from_millis(20);

/// Messages taken from the read buffer before reports of Kafka are looked at again.
const BATCH: usize = 512;

/// The slot is looked at this soon when rows come and nothing is to be confirmed: if we were taken
/// for a synchronous standby, the application's commits would be waiting for us.
const TRAFFIC_CHECK: Duration = Duration::from_secs(2);

/// A failed producer that owes reports may have got records back into its queue.
const PURGE_AGAIN: Duration = Duration::from_secs(1);

/// A failed producer that owes reports for longer is worth a word.
const DRAIN_WARNING: Duration = Duration::from_secs(30);

/// Where a stream starts.
pub struct Start {
    /// Where the slot stands.
    pub confirmed: Lsn,
    pub table_oid: u32,
    /// bytea and the domains over it.
    pub bytea_types: Vec<u32>,
    pub epoch: i64,
    /// Of our walsender.
    pub pid: i32,
    /// `None`: the server never ends a silent connection.
    pub wal_sender_timeout: Option<Duration>,
}

/// What belongs to one stream.
struct Session<S> {
    stream: Stream<S>,
    start: Start,
    status_interval: Duration,
    /// A message whose row has no room yet.
    held: Option<Bytes>,
    /// The boundary that the check under way will vouch for.
    asked: Option<Option<Lsn>>,
    /// When the last check began.
    checked: Instant,
    /// The newest position then.
    checked_received: Lsn,
    check_now: bool,
    /// When the server last said anything.
    heard: Instant,
    /// When the last status was sent, and what it confirmed.
    reported: Instant,
    reported_confirmed: Option<ConfirmedLsn>,
    reply_wanted: bool,
    /// Where the slot stood at the last look.
    stands: Option<Lsn>,
    /// Since when the server refuses connections.
    server_stopping: Option<Instant>,
    ending: Option<Ending>,
    draining: Draining,
}

/// A failed producer whose last reports are awaited.
struct Draining {
    since: Option<Instant>,
    purged: Instant,
    warned: bool,
}

impl Default for Draining {
    fn default() -> Self {
        Draining {
            since: None,
            purged: Instant::now(),
            warned: false,
        }
    }
}

/// Everything that outlives a stream.
pub struct Relay {
    config: Arc<Config>,
    state: Arc<State>,
    metrics: Arc<Metrics>,
    deliveries: Arc<Deliveries>,
    ledger: Ledger,
    relations: Relations,
    sender: Sender<Producer>,
    factory: Factory,
    inquirer: Inquirer,
    counters: Vec<TopicCounter>,
    reports: Vec<Settled>,
    latest_settled: Option<PgTime>,
    noted: Instant,
    rate: Rate,
    warned: Vec<String>,
    /// Of this turn of the loop.
    now: jiff::Timestamp,
}

impl Relay {
    /// `properties` are the user's for Kafka, checked. Fails when librdkafka doesn't take them.
    pub fn new(
        config: Arc<Config>,
        state: Arc<State>,
        metrics: Arc<Metrics>,
        mapping: Mapping,
        properties: &[(String, String)],
    ) -> anyhow::Result<Self> {
        let deliveries = Arc::new(Deliveries::default());
        let factory = Factory::new(config.clone(), properties, deliveries.clone());
        let make = |source| {
            let made = factory.make(source);
            made.map_err(|error| stop!(Exit::Usage, "kafka.properties: {error:#}"))
        };
        let sender = Sender::new(make(Source::Main)?, make(Source::Probe)?);
        let delivery = &config.delivery;
        Ok(Relay {
            ledger: Ledger::new(delivery.in_flight_rows, delivery.in_flight_bytes),
            relations: Relations::new(mapping, 0),
            sender,
            factory,
            inquirer: Inquirer::new(),
            counters: Vec::new(),
            reports: Vec::new(),
            latest_settled: None,
            noted: Instant::now(),
            rate: Rate::default(),
            warned: Vec::new(),
            now: jiff::Timestamp::now(),
            config,
            state,
            metrics,
            deliveries,
        })
    }

    /// Publishes until the stream fails or a stop is done.
    pub async fn run<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: Stream<S>,
        start: Start,
        watch: &mut Watch,
        shutdown: &Shutdown,
    ) -> Result<(), Failure> {
        self.ledger.restart(start.confirmed);
        self.relations
            .restart(start.table_oid, start.bytea_types.clone());
        self.sender.restart(&mut self.ledger);
        let now = Instant::now();
        let limit = start.wal_sender_timeout.map_or(Duration::MAX, |t| t / 4);
        let mut session = Session {
            status_interval: self.config.postgres.status_interval.min(limit).max(TICK),
            stream,
            start,
            held: None,
            asked: None,
            checked: now,
            checked_received: Lsn::ZERO,
            check_now: true,
            heard: now,
            reported: now,
            reported_confirmed: None,
            reply_wanted: false,
            server_stopping: None,
            ending: None,
            draining: Draining::default(),
            stands: None,
        };
        let result = self.stream(&mut session, watch, shutdown).await;
        let mut state = self.state.lock();
        state.streaming = false;
        result
    }

    async fn stream<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        session: &mut Session<S>,
        watch: &mut Watch,
        shutdown: &Shutdown,
    ) -> Result<(), Failure> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.advance(session, watch)?;
            if self.is_over(session)? {
                return Ok(());
            }
            let reading = self.is_reading(session);
            tokio::select! {
                biased; // The order below is the priority: memory falls before it rises.
                () = shutdown.forced.cancelled() => return Err(self.unconfirmed("told twice to stop")),
                () = shutdown.requested.cancelled(), if session.ending.is_none() => {
                    session.ending = Some(Ending::signal(self.config.delivery.shutdown_grace));
                }
                () = self.deliveries.ready() => self.take_reports()?,
                answer = watch.answer() => self.on_answer(session, answer)?,
                made = self.factory.made() => self.on_producer(made),
                replies = self.inquirer.replies() => self.on_replies(replies),
                _ = ticks.tick() => self.on_tick(session)?,
                event = session.stream.next(reading) => self.on_events(session, event?)?,
            }
        }
    }

    /// A stop is done; one that could not be finished is an error with its exit code.
    fn is_over<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        session: &mut Session<S>,
    ) -> Result<bool, Failure> {
        let Some(ending) = &mut session.ending else {
            return Ok(false);
        };
        let poison = self.sender.poison();
        let told = Told {
            confirmed: session.reported_confirmed.map(ConfirmedLsn::lsn),
            stands: session.stands,
        };
        match (
            ending.look(&self.ledger, poison.map(|p| p.seq), &told),
            ending.why,
        ) {
            (Stage::Reading | Stage::Flushing | Stage::Confirming, _) => Ok(false),
            (Stage::Done | Stage::TimedOut, Why::Poison) => Err(self.stopped_by_poison()),
            (Stage::Done, Why::Signal) if self.ledger.in_transaction() => {
                Err(self.unconfirmed("half of the grace ended inside a transaction"))
            }
            (Stage::Done, Why::Signal) => {
                let at = told
                    .confirmed
                    .map_or("the slot's position".into(), |l| l.to_string());
                info!(confirmed = at, unconfirmed = 0, "stopped");
                Ok(true)
            }
            (Stage::TimedOut, Why::Signal) => Err(self.unconfirmed("the grace ended")),
        }
    }

    fn unconfirmed(&self, why: &str) -> Failure {
        stop!(
            Exit::Grace,
            "stopped with {} rows in flight that are not confirmed ({why}); the next `walpost run` sends them again",
            self.ledger.rows(),
        )
        .into()
    }

    fn stopped_by_poison(&self) -> Failure {
        let poison = self
            .sender
            .poison()
            .map(ToString::to_string)
            .unwrap_or_default();
        stop!(
            Exit::Policy,
            "{poison}. Nothing behind it was sent, and slot {} stands before it. Mend the cause and start `walpost run` again",
            self.config.postgres.slot,
        )
        .into()
    }

    /// What follows from the state as it is now: rows move on, questions are asked, positions told.
    fn advance<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        session: &mut Session<S>,
        watch: &mut Watch,
    ) -> Result<(), Failure> {
        if let Some(frame) = session.held.take() {
            self.on_data(session, frame)?;
        }
        self.now = jiff::Timestamp::now();
        self.sender.pump(&mut self.ledger, self.now);
        if self.sender.has_many_oversized() && self.factory.halve_batches() {
            self.sender.clear_suspects(&mut self.ledger);
        }
        if self.sender.batches_are_too_large() && self.factory.halve_batches() {
            self.sender.abandon_main();
        }
        self.factory.renew(&mut self.sender, &self.metrics);
        self.inquirer.ask(&self.sender);
        if session.ending.is_none()
            && let Some(poison) = self.sender.poison()
        {
            warn!(event_id = %poison.event_id, position = %poison.position, code = %poison.code, "poison event: stopping");
            session.ending = Some(Ending::poison(self.config.delivery.shutdown_grace));
        }
        self.ask_check(session, watch);
        self.report(session);
        self.publish_state(session);
        Ok(())
    }

    /// Reading pauses at the cap and behind a poison event, and ends with the open transaction
    /// when a stop was asked for.
    fn is_reading<S>(&self, session: &Session<S>) -> bool {
        let stopped = session.ending.as_ref().is_some_and(|e| !e.is_reading());
        session.held.is_none()
            && self.ledger.has_room(0)
            && self.sender.poison().is_none()
            && session.server_stopping.is_none()
            && !stopped
    }

    fn on_events<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        session: &mut Session<S>,
        first: Event,
    ) -> Result<(), Failure> {
        self.on_event(session, first)?;
        for _ in 1..BATCH {
            if !self.is_reading(session) {
                break;
            }
            match session.stream.buffered() {
                None => break,
                Some(event) => self.on_event(session, event?)?,
            }
        }
        Ok(())
    }

    fn on_event<S>(&mut self, session: &mut Session<S>, event: Event) -> Result<(), Failure> {
        session.heard = Instant::now();
        match event {
            Event::Data(frame) => self.on_data(session, frame),
            Event::Notice(notice) => self.on_notice(session, &notice),
        }
    }

    fn on_notice<S>(
        &mut self,
        session: &mut Session<S>,
        notice: &ServerError,
    ) -> Result<(), Failure> {
        if notice.severity != "WARNING" {
            debug!(%notice, "notice from the server");
            return Ok(());
        }
        warn!(%notice, routine = notice.routine, "warning from the server");
        match notice.routine.as_deref() {
            // From 18 on rows are skipped with this warning alone.
            Some("LoadPublications") => Err(stop!(
                Exit::Slot,
                "publication {} did not exist at this position of the stream (after {}): rows written while it was missing are not \
                 streamed, and nothing behind that position was confirmed. {}",
                self.config.postgres.publication,
                self.ledger.received(),
                start_anew(&self.config.postgres.slot),
            )
            .into()),
            // A standby that must have the WAL first lags behind: the stream waits, that is all.
            Some("StandbySlotsHaveCaughtup") => Ok(()),
            _ => {
                session.check_now = true;
                Ok(())
            }
        }
    }

    /// One CopyData message. A row without room stays in `held`, and reading stops until it has.
    fn on_data<S>(&mut self, session: &mut Session<S>, frame: Bytes) -> Result<(), Failure> {
        let message = ServerMessage::parse(&frame).map_err(|e| misread(&e))?;
        match message {
            ServerMessage::Keepalive {
                wal_end,
                reply_requested,
                ..
            } => {
                self.ledger.keepalive(wal_end);
                session.reply_wanted |= reply_requested;
                Ok(())
            }
            ServerMessage::XLogData {
                wal_start, data, ..
            } => {
                let change = Change::parse(data).map_err(|e| misread(&e))?;
                if let Change::Insert { relation, tuple } = change {
                    if !self.on_insert(relation, tuple)? {
                        session.held = Some(frame);
                        return Ok(());
                    }
                } else {
                    self.on_change(change)?;
                }
                self.ledger.receive(wal_start);
                Ok(())
            }
        }
    }

    /// `false`: the row is ours and has no room.
    fn on_insert(&mut self, relation: u32, tuple: Tuple<'_>) -> Result<bool, Failure> {
        let table = self.relations.table(relation);
        let shape = match table {
            Some(Table::Other) => None,
            Some(Table::Ours(shape)) => Some(shape.clone()),
            None => {
                return Err(misread(&anyhow!(
                    "a row of table {relation}, which was not described"
                )));
            }
        };
        if shape.is_some() && !self.ledger.has_room(tuple.bytes().len()) {
            return Ok(false);
        }
        self.ledger.next_position().map_err(|e| misread(&e))?;
        if let Some(shape) = shape {
            if self.ledger.rows() == 0 {
                self.state.lock().last_progress = Instant::now();
            }
            self.ledger
                .open_row(shape, tuple.bytes().into())
                .map_err(|e| misread(&e))?;
            self.sender.pump(&mut self.ledger, self.now);
        }
        Ok(true)
    }

    fn on_change(&mut self, change: Change<'_>) -> Result<(), Failure> {
        let turn = match change {
            Change::Begin {
                commit_lsn,
                committed_at,
                ..
            } => self.ledger.begin(commit_lsn, committed_at),
            Change::Commit { end_lsn, .. } => self.ledger.commit(end_lsn),
            Change::Relation(relation) => {
                self.relations.learn(&relation);
                Ok(())
            }
            Change::Message {
                transactional: true,
                ..
            } => self.ledger.next_position().map(drop),
            Change::Message { .. } | Change::Ignored(_) | Change::Insert { .. } => Ok(()),
        };
        turn.map_err(|e| misread(&e))
    }

    /// Outcomes of records, and what the client library says of itself.
    fn take_reports(&mut self) -> Result<(), Failure> {
        let mut reports = std::mem::take(&mut self.reports);
        let news = self.deliveries.take(&mut reports);
        let now = PgTime::now();
        let mut delivered = 0;
        for settled in reports.drain(..) {
            match self.sender.settled(&mut self.ledger, settled) {
                Report::Delivered(row) => {
                    delivered += 1;
                    self.latest_settled = self.latest_settled.max(Some(row.committed_at));
                    self.metrics
                        .latency
                        .observe(row.committed_at.seconds_until(now).max(0.0));
                    self.metrics.published_bytes.inc_by(row.sent_bytes);
                    if let Some(number) = row.topic {
                        self.counter(number).inc();
                    }
                }
                Report::Failed(failed) => {
                    let code = code_name(failed.code);
                    debug!(seq = settled.seq.0, code, "not delivered");
                    self.metrics.delivery_failure(failed.class.name(), &code);
                    self.state.lock().last_error =
                        Some(format!("a record was not delivered: {code}"));
                }
                Report::Stale => {}
            }
        }
        self.reports = reports;
        if delivered > 0 {
            self.rate.count(delivered);
            self.factory.worked();
            let mut state = self.state.lock();
            state.settled_rows += delivered;
            state.last_progress = Instant::now();
            if let Some(trouble) = state.kafka_trouble.take() {
                info!(was = trouble, "kafka takes records again");
            }
        }
        for report in news {
            self.on_report(report);
        }
        Ok(())
    }

    fn counter(&mut self, number: usize) -> &TopicCounter {
        while self.counters.len() <= number {
            let name = &self.sender.topics.get(self.counters.len()).name;
            self.counters.push(self.metrics.topic(name));
        }
        &self.counters[number]
    }

    fn on_report(&mut self, report: context::Report) {
        match report {
            context::Report::Error(Source::Main) => {
                if let Some(reason) = self.sender.main().and_then(Producer::fatal_error) {
                    info!(reason, "the producer can't go on; making a new one");
                    self.sender.abandon_main();
                }
            }
            context::Report::Error(Source::Probe) => {
                if let Some(reason) = self.sender.probe().fatal_error() {
                    debug!(reason, "the probe producer can't go on");
                    self.factory.start_probe();
                }
            }
            context::Report::Down(reason) => self.kafka_trouble(reason),
            context::Report::Refused(reason) => {
                self.kafka_trouble(reason);
                // The files may hold other credentials by now: only a new client reads them.
                if self.factory.has_files() {
                    self.sender.abandon_main();
                    self.factory.start_probe();
                }
            }
        }
    }

    fn kafka_trouble(&mut self, reason: String) {
        let mut state = self.state.lock();
        if state.kafka_trouble.is_none() {
            warn!(
                brokers = self.config.kafka.brokers,
                reason, "kafka cannot be reached; waiting"
            );
        }
        let text = format!("{}: {reason}", self.config.kafka.brokers);
        state.last_error = Some(text.clone());
        state.kafka_trouble = Some(text);
    }

    fn on_producer(&mut self, made: Made) {
        match made {
            Made::Main(producer) => {
                info!(
                    rows = self.ledger.rows(),
                    "new producer; unsettled rows are sent again"
                );
                self.metrics
                    .duplicates_possible
                    .inc_by(self.ledger.rows() as u64);
                self.sender.install_main(producer, &mut self.ledger);
            }
            Made::Probe(producer) => {
                let old = self.sender.install_probe(producer, &mut self.ledger);
                factory::discard(old);
            }
            Made::Failed(source, error) => {
                self.kafka_trouble(format!("no new producer: {error:#}"));
                self.factory.start(source);
            }
        }
    }

    fn on_replies(&mut self, replies: Replies) {
        for (number, reply) in replies {
            match reply {
                Ok(state) => {
                    if self.sender.answered(&mut self.ledger, number, state) {
                        let topic = self.sender.topics.get(number);
                        info!(topic = %topic.name, rows = topic.waiting.len(), state = ?topic.state, "topic answered");
                    }
                    if let Some(was) = self.state.lock().kafka_trouble.take() {
                        info!(was, "kafka answers again");
                    }
                }
                Err(error) => {
                    debug!(%error, "no answer about a topic");
                }
            }
        }
    }

    fn on_answer<S>(&mut self, session: &mut Session<S>, answer: Answer) -> Result<(), Failure> {
        match answer {
            Answer::Fine(facts) => {
                if let Some(asked) = session.asked.take() {
                    self.verify_ours(session, &facts)?;
                    self.ledger.raise_ceiling(asked);
                    session.stands = facts
                        .slot
                        .as_ref()
                        .and_then(|slot| slot.confirmed_flush_lsn);
                }
                session.server_stopping = None;
                if let Some(trouble) = self.state.lock().trouble.take() {
                    debug!(was = trouble, "slot checked");
                }
                Ok(())
            }
            Answer::Broken(stop) => Err(stop.into()),
            Answer::TakenOver(_) => Ok(()),
            Answer::Lost(error) => {
                session.asked = None;
                let text = format!("slot check: {error:#}");
                let mut state = self.state.lock();
                if state.trouble.is_none() {
                    warn!("{text}");
                }
                state.last_error = Some(text.clone());
                state.trouble = Some(text);
                Ok(())
            }
            Answer::ServerStopping => {
                session.asked = None;
                if session.server_stopping.is_none() {
                    info!(
                        rows = self.ledger.rows(),
                        "the server is stopping; releasing the slot"
                    );
                    session.server_stopping = Some(Instant::now());
                }
                Ok(())
            }
        }
    }

    /// The slot is read by our own connection, in our epoch.
    fn verify_ours<S>(&self, session: &Session<S>, facts: &SlotFacts) -> Result<(), Failure> {
        let pid = facts.slot.as_ref().and_then(|slot| slot.active_pid);
        if pid.is_some_and(|pid| pid != session.start.pid) {
            return Err(Failure::Passing(anyhow!(
                "slot {} is read by another connection (pid {}); ours is gone",
                self.config.postgres.slot,
                pid.unwrap_or_default(),
            )));
        }
        let epoch = facts.record.as_ref().and_then(|record| record.epoch);
        if epoch != Some(session.start.epoch) {
            return Err(stop!(
                Exit::Error,
                "fenced: another publisher took slot {} over (epoch {}, ours is {})",
                self.config.postgres.slot,
                epoch.map_or("unknown".into(), |e| e.to_string()),
                session.start.epoch,
            )
            .into());
        }
        Ok(())
    }

    fn ask_check<S>(&mut self, session: &mut Session<S>, watch: &mut Watch) {
        if watch.is_waiting() || session.server_stopping.is_some() {
            return;
        }
        let since = session.checked.elapsed();
        let due = match &session.ending {
            // Each look also shows how far the slot is.
            Some(ending) => ending.stage == Stage::Confirming && since >= PROGRESS_REPORTS,
            None => {
                (self.ledger.wants_check() && since >= self.config.postgres.status_interval)
                    || (self.ledger.received() > session.checked_received && since >= TRAFFIC_CHECK)
            }
        };
        if !(session.check_now || due || since >= IDLE_CHECK) {
            return;
        }
        let progress = self.progress(session);
        if watch.ask(Question::Check(progress)) {
            session.asked = Some(self.ledger.boundary());
            session.checked = Instant::now();
            session.check_now = false;
            session.checked_received = self.ledger.received();
        }
    }

    /// Worth noting: rows were settled since the last time, and the position that passes them was
    /// told to the server.
    fn progress<S>(&mut self, session: &Session<S>) -> Option<Progress> {
        let confirmed = session.reported_confirmed?.lsn();
        let due = session.ending.is_some() || self.noted.elapsed() >= PROGRESS_INTERVAL;
        let committed_at = if due {
            self.latest_settled.take()?
        } else {
            return None;
        };
        self.noted = Instant::now();
        Some(Progress {
            epoch: session.start.epoch,
            confirmed,
            committed_at,
        })
    }

    /// Status by the timer, on progress, and at once when asked.
    fn report<S: AsyncRead + AsyncWrite + Unpin>(&mut self, session: &mut Session<S>) {
        let confirmed = self.ledger.confirmed();
        let since = session.reported.elapsed();
        let progress = confirmed > session.reported_confirmed && since >= PROGRESS_REPORTS;
        if !(session.reply_wanted || progress || since >= session.status_interval) {
            return;
        }
        let silence = session.heard.elapsed();
        session.stream.queue_status(&StatusUpdate {
            received: self.ledger.received(),
            confirmed,
            reply_requested: silence >= self.config.postgres.receive_timeout / 2,
        });
        session.reported = Instant::now();
        session.reported_confirmed = confirmed;
        session.reply_wanted = false;
    }

    fn on_tick<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        session: &mut Session<S>,
    ) -> Result<(), Failure> {
        let silence = session.heard.elapsed();
        if !self.is_reading(session) {
            // What isn't read can't be heard.
            session.heard = Instant::now();
        } else if silence >= self.config.postgres.receive_timeout {
            return Err(Failure::Passing(anyhow!(
                "PostgreSQL was silent for {} s",
                silence.as_secs()
            )));
        }
        let deaf =
            self.sender.probe().is_deaf() || self.sender.main().is_some_and(Producer::is_deaf);
        if deaf {
            return Err(stop!(
                Exit::Error,
                "internal: a thread that polls Kafka's reports ended"
            )
            .into());
        }
        if let Some(since) = session.server_stopping {
            // What the last check covers may still be confirmed; the rest is sent again.
            let covered = self.ledger.frontier() >= self.ledger.ceiling();
            if (covered && session.stream.is_sent())
                || since.elapsed() >= self.config.postgres.server_shutdown_grace
            {
                return Err(Failure::Passing(anyhow!(
                    "the server is shutting down; released the slot with {} unconfirmed rows",
                    self.ledger.rows()
                )));
            }
        }
        self.give_up_on_topics();
        if let Some(owed) = self.sender.draining() {
            if session.draining.purged.elapsed() >= PURGE_AGAIN {
                session.draining.purged = Instant::now();
                self.sender.purge_again();
            }
            let since = session.draining.since.get_or_insert_with(Instant::now);
            if since.elapsed() >= DRAIN_WARNING && !session.draining.warned {
                session.draining.warned = true;
                self.kafka_trouble(format!("{owed} records without an outcome"));
            }
        } else {
            session.draining = Draining::default();
        }
        let rate = self.rate.per_second();
        self.state.lock().events_per_second = rate;
        Ok(())
    }

    /// Topics that stayed closed for too long.
    fn give_up_on_topics(&mut self) {
        let limit = self.config.delivery.setup_retry_for;
        let overdue = |topic: &Topic| {
            let waited = Duration::try_from(self.now.duration_since(topic.since?)).ok()?;
            (topic.state != TopicState::Unasked && waited >= limit).then_some(waited)
        };
        let found = self
            .sender
            .topics
            .to_ask()
            .find_map(|(n, topic)| Some((n, overdue(topic)?)));
        if let Some((number, waited)) = found {
            self.sender.give_up(&self.ledger, number, waited);
        }
    }

    fn publish_state<S>(&mut self, session: &Session<S>) {
        let waiting: Vec<_> = self
            .sender
            .topics
            .to_ask()
            .filter(|(_, topic)| topic.state != TopicState::Unasked)
            .filter_map(|(_, topic)| {
                Some(WaitingTopic {
                    topic: topic.name.to_string(),
                    reason: topic.reason().to_owned(),
                    rows: topic.waiting.len(),
                    since: topic.since?,
                })
            })
            .collect();
        for topic in &waiting {
            if !self.warned.contains(&topic.topic) {
                warn!(
                    topic = topic.topic,
                    reason = topic.reason,
                    "rows wait for their topic"
                );
                self.warned.push(topic.topic.clone());
            }
        }
        self.warned
            .retain(|name| waiting.iter().any(|t| t.topic == *name));
        let mut state = self.state.lock();
        state.streaming = true;
        state.received = Some(self.ledger.received());
        state.confirmed = session.reported_confirmed.map(ConfirmedLsn::lsn);
        state.in_flight_rows = self.ledger.rows();
        state.in_flight_bytes = self.ledger.bytes();
        state.oldest_unsettled = self.ledger.oldest().map(|row| row.committed_at);
        state.last_server_message = Some(session.heard);
        state.waiting_topics = waiting;
    }
}

/// The stream isn't what the protocol says: ours or the server's fault, and no reason to guess.
fn misread(error: &impl std::fmt::Display) -> Failure {
    stop!(
        Exit::Error,
        "internal: the replication stream cannot be read: {error}"
    )
    .into()
}

//! The loop: frames in, records out, reports back, status to PostgreSQL. While rows flow, only this
//! file and its folder know that both servers exist.
//!
//! No branch of the loop waits for Kafka or for SQL: a full producer leaves its row in the ledger,
//! checks are made by a task of their own, and status reports go on while reading is paused.

mod checks;
mod ending;
mod factory;
mod files;
mod frames;
mod inquirer;
mod letters;
mod limits;
mod orphan;
mod pace;
mod rate;
mod replay;
mod reports;
mod session;
mod table;
mod telling;
mod undecodable;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use self::{
    ending::Ending,
    factory::Factory,
    inquirer::Inquirer,
    letters::Letters,
    limits::Limits,
    rate::Rate,
    reports::Trouble,
    session::{Draining, Session, Wire},
};
pub use self::{
    pace::Pace,
    replay::{Replay, Sieve, Tally},
    session::Start,
    table::{Backfill, place},
    undecodable::Undecodable,
};
use crate::{
    config::Config,
    dead_letters::{
        clerk::{self, Clerk},
        copies::Copies,
    },
    error::{Exit, Failure},
    kafka::{
        context::{Deliveries, Settled, Source},
        partitions::Partitioner,
        producer::Producer,
        settings,
    },
    ledger::{ConfirmedLsn, Ledger},
    lsn::{Lsn, PgTime},
    metrics::{Metrics, TopicCounter},
    outbox::relation::{Mapping, Relations},
    pg::{watch::Watch, wire::Stream},
    sender::{Parking, Sender},
    shutdown::Shutdown,
    state::State,
    stop,
};

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);

/// A failed producer that owes reports may have got records back into its queue.
const PURGE_AGAIN: Duration = Duration::from_secs(1);

/// A failed producer that owes reports for longer is worth a word.
const DRAIN_WARNING: Duration = Duration::from_secs(30);

/// A broker forgets a producer that sent nothing to a partition for a day, or for as long as its
/// `producer.id.expiration.ms` says.
const PRODUCER_REMEMBERED: Duration = Duration::from_secs(3600);

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
    limits: Limits,
    letters: Letters,
    /// Of dead letters, where a topic for them is configured.
    copies: Option<Copies>,
    counters: Vec<TopicCounter>,
    reports: Vec<Settled>,
    latest_settled: Option<PgTime>,
    noted: Instant,
    /// When the brokers were last supposed to know nothing of our producer.
    cooled: Instant,
    /// How many rows were settled when the last mark was written.
    marked: u64,
    rate: Rate,
    /// Of bytes of WAL.
    confirmed_rate: Rate,
    kafka_trouble: Option<Trouble>,
    warned: Vec<String>,
    undecodable: Option<Undecodable>,
    /// Of this turn of the loop.
    now: jiff::Timestamp,
}

impl Relay {
    /// `properties` are the user's for Kafka, checked. Fails when librdkafka doesn't take them.
    pub fn new(
        config: Arc<Config>,
        state: Arc<State>,
        metrics: Arc<Metrics>,
        mappings: Vec<Arc<Mapping>>,
        properties: &[(String, String)],
        clerk: Clerk,
    ) -> anyhow::Result<Self> {
        let deliveries = Arc::new(Deliveries::default());
        let factory = Factory::new(config.clone(), properties, deliveries.clone());
        let make = |source| {
            let made = factory.make(source);
            made.map_err(|error| stop!(Exit::Usage, "kafka.properties: {error:#}"))
        };
        let partitioner = properties.iter().find(|(name, _)| name == "partitioner");
        let partitioner = partitioner.map_or(settings::PARTITIONER, |(_, value)| value);
        let sender = Sender::new(
            make(Source::Main)?,
            make(Source::Probe)?,
            Partitioner::named(partitioner),
            Parking::new(&config.dead_letters, &config.delivery),
        );
        let topic = &config.dead_letters.topic;
        let copies = (!topic.is_empty()).then(|| {
            let settings = Box::new(factory.copy_settings());
            Copies::to(topic, settings, metrics.clone())
        });
        let delivery = &config.delivery;
        Ok(Relay {
            ledger: Ledger::new(delivery.in_flight_rows, delivery.in_flight_bytes),
            relations: Relations::new(mappings),
            sender,
            factory,
            inquirer: Inquirer::new(),
            limits: Limits::new(),
            letters: Letters::new(clerk),
            copies,
            counters: Vec::new(),
            reports: Vec::new(),
            latest_settled: None,
            noted: Instant::now(),
            cooled: Instant::now(),
            marked: 0,
            rate: Rate::default(),
            confirmed_rate: Rate::default(),
            kafka_trouble: None,
            warned: Vec::new(),
            undecodable: None,
            now: jiff::Timestamp::now(),
            config,
            state,
            metrics,
            deliveries,
        })
    }

    /// Publishes until the stream fails or a stop is done: then tells where the slot stands.
    pub async fn run<S: Wire>(
        &mut self,
        stream: Stream<S>,
        mut start: Start,
        watch: &mut Watch,
        shutdown: &Shutdown,
    ) -> Result<Lsn, Failure> {
        self.metrics
            .duplicates_possible
            .inc_by(self.ledger.enqueued() as u64);
        self.ledger.restart(start.confirmed, start.reserved);
        self.sender.suspend(false);
        self.relations
            .restart(&start.table_oids, start.types.clone());
        self.sender.restart(&mut self.ledger);
        self.use_letters(std::mem::take(&mut start.letters));
        let now = Instant::now();
        let limit = start.wal_sender_timeout.map_or(Duration::MAX, |t| t / 4);
        let mut session = Session {
            status_interval: self.config.postgres.status_interval.min(limit).max(TICK),
            stream,
            start,
            held: None,
            asked: None,
            checked: now,
            vouched: now,
            checked_received: Lsn::ZERO,
            check_now: true,
            superseded: None,
            doubted: false,
            orphaned: None,
            turned: now,
            heard: now,
            reported: now,
            reported_confirmed: None,
            reply_wanted: false,
            server_stopping: None,
            ending: None,
            broken: None,
            draining: Draining::default(),
            stands: None,
            marked: now,
        };
        let result = self.stream(&mut session, watch, shutdown).await;
        let mut state = self.state.lock();
        state.streaming = false;
        result
    }

    async fn stream<S: Wire>(
        &mut self,
        session: &mut Session<S>,
        watch: &mut Watch,
        shutdown: &Shutdown,
    ) -> Result<Lsn, Failure> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.advance(session, watch)?;
            if self.is_over(session)? {
                let confirmed = session.reported_confirmed.map(ConfirmedLsn::lsn);
                return Ok(confirmed.unwrap_or(session.start.confirmed));
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
                limit = self.limits.answered() => self.on_limit(limit),
                done = self.letters.clerk.answer(), if !self.letters.clerk.is_free() => match done {
                    Err(clerk::Trouble::Fenced) => self.superseded(session),
                    done => self.on_clerk(done)?,
                },
                _ = ticks.tick() => self.on_tick(session)?,
                event = session.stream.next(reading), if session.broken.is_none() => {
                    let done = event.and_then(|event| self.on_events(session, event));
                    if let Err(failure) = done {
                        self.on_failure(session, failure)?;
                    }
                }
            }
        }
    }

    /// What follows from the state as it is now: rows move on, questions are asked, positions told.
    fn advance<S: Wire>(
        &mut self,
        session: &mut Session<S>,
        watch: &mut Watch,
    ) -> Result<(), Failure> {
        self.notice_pause(session);
        self.alternate(session);
        if let Some(frame) = session.held.take_if(|_| self.may_open(session.orphaned)) {
            self.on_data(session, frame)?;
        }
        self.send();
        if session.ending.is_none()
            && let Some(poison) = self.sender.poison()
        {
            warn!(event_id = %poison.event_id, position = %poison.position, code = %poison.code, "poison event: stopping");
            session.ending = Some(Ending::poison(self.config.delivery.shutdown_grace));
        }
        self.tell_clerk(session.ending.is_some());
        self.ask_check(session, watch);
        self.report(session);
        self.publish_state(session);
        Ok(())
    }

    /// Rows move on to the producers; new ones are made and topics asked about as needed.
    fn send(&mut self) {
        self.now = jiff::Timestamp::now();
        self.sender.pump(&mut self.ledger, self.now);
        let limit = self.sender.topics.smallest_limit();
        if self.sender.has_many_oversized() && self.factory.halve_batches(limit) {
            self.sender.clear_suspects(&mut self.ledger);
        }
        if self.sender.batches_are_too_large() && self.factory.halve_batches(limit) {
            self.sender.abandon_main();
        }
        // It may have been left at a record that it refused, before its own report came.
        if let Some(reason) = self.factory.renew(&mut self.sender, &self.metrics) {
            self.kafka_trouble(Trouble::ProducerEnded, &reason);
        }
        self.inquirer.ask(&self.sender);
        self.ask_limits();
    }

    /// Reading pauses at the cap and behind a poison event, and ends with the open transaction
    /// when a stop was asked for.
    fn is_reading<S>(&self, session: &Session<S>) -> bool {
        let stopped = session.ending.as_ref().is_some_and(|e| !e.is_reading());
        session.held.is_none()
            && self.ledger.has_room(0)
            && self.sender.poison().is_none()
            && !self.sender.parking.pauses_reading()
            && session.server_stopping.is_none()
            && self.may_open(session.orphaned)
            && !stopped
    }

    fn on_tick<S: Wire>(&mut self, session: &mut Session<S>) -> Result<(), Failure> {
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
        self.give_up_orphan(session)?;
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
        self.tend(&mut session.draining)?;
        let rate = self.rate.per_second();
        let bytes = self.confirmed_rate.per_second();
        let mut state = self.state.lock();
        state.events_per_second = rate;
        state.confirmed_bytes_per_second = bytes;
        Ok(())
    }

    /// What Kafka's side needs looking at from time to time.
    fn tend(&mut self, draining: &mut Draining) -> Result<(), Failure> {
        let deaf =
            self.sender.probe().is_deaf() || self.sender.main().is_some_and(Producer::is_deaf);
        if deaf {
            return Err(stop!(
                Exit::Error,
                "internal: a thread that polls Kafka's reports ended"
            )
            .into());
        }
        self.give_up_on_topics();
        if self.cooled.elapsed() >= PRODUCER_REMEMBERED {
            self.cooled = Instant::now();
            self.sender.topics.cool();
        }
        if let Some(owed) = self.sender.draining() {
            if draining.purged.elapsed() >= PURGE_AGAIN {
                draining.purged = Instant::now();
                self.sender.purge_again();
            }
            let since = draining.since.get_or_insert_with(Instant::now);
            if since.elapsed() >= DRAIN_WARNING && !draining.warned {
                draining.warned = true;
                self.kafka_trouble(Trouble::OwesReports, &owed.to_string());
            }
        } else {
            *draining = Draining::default();
        }
        Ok(())
    }
}

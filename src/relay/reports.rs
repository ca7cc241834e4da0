//! What Kafka's side reports: outcomes of records, troubles, new producers, answers about topics.

use std::time::{Duration, Instant};

use rdkafka::types::RDKafkaErrorCode;
use tracing::{debug, info, warn};

use super::{
    Relay,
    factory::{self, Made},
    inquirer::Replies,
};
use crate::{
    error::Failure,
    kafka::{
        context::{self, Source},
        failure::{Class, code_name},
        producer::Producer,
        topics::{Limit, Topic},
    },
    lsn::PgTime,
    metrics::TopicCounter,
    sender::Report,
};

/// Rows of a topic that is closed for so long make room for others, should they take half of it.
const CROWDED_FOR: Duration = Duration::from_secs(30);

/// Why Kafka doesn't take records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Down,
    Refused,
    NoProducer,
    ProducerEnded,
    OwesReports,
}

impl Trouble {
    fn text(self) -> &'static str {
        match self {
            Trouble::Down => "cannot be reached",
            Trouble::Refused => "refuses the login (authentication)",
            Trouble::NoProducer => "no new producer",
            Trouble::ProducerEnded => "the producer can't go on",
            Trouble::OwesReports => "records without an outcome",
        }
    }
}

impl Relay {
    /// Outcomes of records, and what the client library says of itself.
    pub(super) fn take_reports(&mut self) -> Result<(), Failure> {
        let mut reports = std::mem::take(&mut self.reports);
        let news = self.deliveries.take(&mut reports);
        let now = PgTime::now();
        let mut delivered = 0;
        for settled in reports.drain(..) {
            match self.sender.settled(&mut self.ledger, settled) {
                Report::Delivered(row) => {
                    delivered += 1;
                    if row.is_row {
                        self.latest_settled = self.latest_settled.max(Some(row.committed_at));
                    }
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
                    // A refusal is certain; anything else may hide a record that arrived.
                    let may_have_arrived = failed.class == Class::Passing
                        && failed.code != RDKafkaErrorCode::PurgeQueue;
                    self.metrics
                        .duplicates_possible
                        .inc_by(may_have_arrived.into());
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
            drop(state);
            self.kafka_works();
        }
        for report in news {
            self.on_report(report);
        }
        Ok(())
    }

    pub(super) fn counter(&mut self, number: usize) -> &TopicCounter {
        while self.counters.len() <= number {
            let name = &self.sender.topics.get(self.counters.len()).name;
            self.counters.push(self.metrics.topic(name));
        }
        &self.counters[number]
    }

    pub(super) fn on_report(&mut self, report: context::Report) {
        match report {
            context::Report::Error(Source::Main) => {
                if let Some((code, reason)) = self.sender.main().and_then(Producer::fatal_error) {
                    // A refused record ends the producer too, and is no trouble of the cluster.
                    if code == RDKafkaErrorCode::GaplessGuarantee {
                        info!(reason, "the producer can't go on; making a new one");
                    } else {
                        self.kafka_trouble(Trouble::ProducerEnded, &reason);
                    }
                    self.sender.abandon_main();
                }
            }
            context::Report::Error(Source::Probe) => {
                if let Some((_, reason)) = self.sender.probe().fatal_error() {
                    debug!(reason, "the probe producer can't go on");
                    self.factory.start_probe();
                }
            }
            context::Report::Down(reason) => {
                self.kafka_trouble(Trouble::Down, &reason);
                if self.factory.have_files_changed() {
                    self.renew_clients();
                }
            }
            context::Report::Refused(reason) => {
                self.kafka_trouble(Trouble::Refused, &reason);
                // The files may hold other credentials by now: only a new client reads them.
                if self.factory.has_files() {
                    self.renew_clients();
                }
            }
        }
    }

    fn renew_clients(&mut self) {
        self.sender.abandon_main();
        self.factory.start_probe();
    }

    /// Notes and says that Kafka doesn't take records; each kind of trouble is said once.
    pub(super) fn kafka_trouble(&mut self, kind: Trouble, reason: &str) {
        let now = self.kafka_trouble;
        // Brokers that refuse the login count as down right after: the refusal says more.
        if now == Some(Trouble::Refused) && kind == Trouble::Down {
            return;
        }
        let brokers = &self.config.kafka.brokers;
        let text = format!("{brokers}: {}: {reason}", kind.text());
        if now != Some(kind) {
            warn!("kafka {text}; waiting");
        }
        self.kafka_trouble = Some(kind);
        let mut state = self.state.lock();
        state.last_error = Some(text.clone());
        state.kafka_trouble = Some(text);
    }

    /// A record arrived, or the brokers answered.
    pub(super) fn kafka_works(&mut self) {
        if self.kafka_trouble.take().is_some() {
            self.state.lock().kafka_trouble = None;
            info!(brokers = self.config.kafka.brokers, "kafka works again");
        }
    }

    pub(super) fn on_producer(&mut self, made: Made) {
        match made {
            Made::Main(producer) => {
                let rows = self.ledger.rows();
                if self.kafka_trouble.is_none() {
                    info!(rows, "new producer; unsettled rows are sent again");
                } else {
                    debug!(rows, "new producer");
                }
                self.sender.install_main(producer, &mut self.ledger);
            }
            Made::Probe(producer) => {
                let old = self.sender.install_probe(producer, &mut self.ledger);
                factory::discard(old);
            }
            Made::Failed(source, error) => {
                self.kafka_trouble(Trouble::NoProducer, &format!("{error:#}"));
                self.factory.start(source);
            }
        }
    }

    pub(super) fn on_replies(&mut self, replies: Replies) {
        for (number, reply) in replies {
            match reply {
                Ok(state) => {
                    if self.sender.answered(&mut self.ledger, number, state) {
                        let topic = self.sender.topics.get(number);
                        info!(topic = %topic.name, rows = topic.waiting.len(), state = ?topic.state, "topic answered");
                    }
                    self.kafka_works();
                }
                Err(error) => {
                    debug!(%error, "no answer about a topic");
                }
            }
        }
    }

    pub(super) fn on_limit(&mut self, (number, limit): (usize, Limit)) {
        self.sender.topics.limited(number, limit);
    }

    /// Topics that stayed closed for too long, or whose rows leave no room for the others.
    pub(super) fn give_up_on_topics(&mut self) {
        self.sender.topics.watch_closed(self.now);
        let limit = self.config.delivery.setup_retry_for;
        let (rows, bytes) = (
            self.config.delivery.in_flight_rows,
            self.config.delivery.in_flight_bytes,
        );
        let waiting = self.sender.topics.waiting_closed();
        let crowded = waiting > 0 && (2 * waiting >= rows || 2 * self.ledger.bytes() >= bytes);
        let overdue = |topic: &Topic| {
            let waited = Duration::try_from(self.now.duration_since(topic.since?)).ok()?;
            let closed = Duration::try_from(self.now.duration_since(topic.closed_since?)).ok()?;
            (!topic.waiting.is_empty() && (waited >= limit || (crowded && closed >= CROWDED_FOR)))
                .then_some(waited)
        };
        let found = self
            .sender
            .topics
            .to_ask()
            .find_map(|(n, topic)| Some((n, overdue(topic)?)));
        if let Some((number, waited)) = found {
            self.sender.give_up(&mut self.ledger, number, Some(waited));
        }
    }
}

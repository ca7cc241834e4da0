//! Every metric once: name, unit, help; the text of `/metrics`.
//!
//! Counters are kept here as they happen. Gauges are read from the publisher's state at the moment
//! of a scrape, so what is not known is left out and never stale or zero.

use prometheus_client::{
    encoding::{EncodeLabelSet, prometheus_text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::Registry,
};

use crate::{
    lsn::PgTime,
    pg::slot::SlotFacts,
    state::{Role, Snapshot, State},
};

/// What `/metrics` answers with.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// Upper bounds in seconds: from a local broker's acknowledgement to an outage of ten minutes. Close
/// together around the default linger of 5 ms.
const LATENCY_BUCKETS: [f64; 19] = [
    0.001, 0.002, 0.003, 0.005, 0.006, 0.007, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 15.0, 60.0, 600.0,
];

/// Values of `pg_replication_slots.wal_status`.
const WAL_STATUSES: [&str; 4] = ["reserved", "extended", "unreserved", "lost"];

/// A topic's counter of published records: take it once, `inc` it per record.
pub type TopicCounter = Counter;

pub struct Metrics {
    registry: Registry,
    published: Family<Topic, Counter>,
    delivery_failures: Family<Failure, Counter>,
    restarts: Family<Restart, Counter>,
    /// Bytes of keys and values that Kafka acknowledged.
    pub published_bytes: Counter,
    /// Seconds from a row's commit to Kafka's acknowledgement; observed once a record.
    pub latency: Histogram,
    /// Records that were sent again although an earlier attempt may have arrived.
    pub duplicates_possible: Counter,
    /// Entries of the JSON column that were left out for their built-in name.
    pub dropped_headers: Counter,
    copy_failures: Family<CopyFailure, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Topic {
    topic: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failure {
    class: String,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CopyFailure {
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Restart {
    reason: String,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

impl Metrics {
    pub fn new() -> Self {
        let metrics = Metrics {
            registry: Registry::with_prefix("walpost"),
            published: Family::default(),
            delivery_failures: Family::default(),
            restarts: Family::default(),
            published_bytes: Counter::default(),
            latency: Histogram::new(LATENCY_BUCKETS),
            duplicates_possible: Counter::default(),
            dropped_headers: Counter::default(),
            copy_failures: Family::default(),
        };
        metrics.registered()
    }

    fn registered(mut self) -> Self {
        // The encoder adds `_total` to counters and a full stop to each help.
        let r = &mut self.registry;
        r.register(
            "events_published",
            "Records that Kafka acknowledged",
            self.published.clone(),
        );
        r.register(
            "published_bytes",
            "Bytes of keys and values that Kafka acknowledged",
            self.published_bytes.clone(),
        );
        r.register(
            "publish_latency_seconds",
            "Seconds from a row's commit to Kafka's acknowledgement",
            self.latency.clone(),
        );
        r.register(
            "delivery_failures",
            "Records that Kafka or its client refused, by what is done about it and the error code",
            self.delivery_failures.clone(),
        );
        r.register(
            "restarts",
            "Times that the replication stream or the producer was started again",
            self.restarts.clone(),
        );
        r.register(
            "duplicates_possible",
            "Records sent again although an earlier attempt may have arrived",
            self.duplicates_possible.clone(),
        );
        r.register(
            "dropped_headers",
            "Entries of the JSON headers that were left out because only walpost sets their names",
            self.dropped_headers.clone(),
        );
        r.register(
            "dead_letter_copy_failures",
            "Copies of dead letters that Kafka did not take, by the error code",
            self.copy_failures.clone(),
        );
        self
    }

    /// Keep the handle: looking a topic up costs more than counting.
    pub fn topic(&self, topic: &str) -> TopicCounter {
        self.published.get_or_create_owned(&Topic {
            topic: topic.to_owned(),
        })
    }

    /// `class`: passing, setup or event; `code`: librdkafka's name of the error.
    pub fn delivery_failure(&self, class: &str, code: &str) {
        let labels = Failure {
            class: class.to_owned(),
            code: code.to_owned(),
        };
        self.delivery_failures.get_or_create_owned(&labels).inc();
    }

    /// `code`: librdkafka's name of the error.
    pub fn copy_failure(&self, code: &str) {
        let code = code.to_owned();
        self.copy_failures
            .get_or_create_owned(&CopyFailure { code })
            .inc();
    }

    pub fn restart(&self, reason: &str) {
        self.restarts
            .get_or_create_owned(&Restart {
                reason: reason.to_owned(),
            })
            .inc();
    }

    /// The body of `/metrics`.
    pub fn text(&self, state: &State) -> String {
        let now = gauges(&state.lock());
        let mut text = String::new();
        for registry in [&self.registry, &now] {
            // Writing to a String does not fail.
            let _ = prometheus_text::encode(&mut text, registry);
        }
        text
    }
}

/// What is known at this moment.
fn gauges(state: &Snapshot) -> Registry {
    let mut all = Gauges(Registry::with_prefix("walpost"));
    all.labelled(
        "build_info",
        "The version that runs",
        [([("version", env!("CARGO_PKG_VERSION"))], 1)],
    );
    all.labelled(
        "role",
        "What this process is: publisher, or standby waiting for another to end",
        [("publisher", Role::Publisher), ("standby", Role::Standby)]
            .map(|(name, role)| ([("role", name)], (state.role == role).into())),
    );
    if let Some(letters) = &state.dead_letters {
        all.labelled(
            "dead_letters",
            "Events that could not be published, by what became of them",
            [
                ("pending", letters.pending),
                ("replaying", letters.replaying),
                ("held", letters.held),
                ("dead", letters.dead),
                ("resolved", letters.resolved),
                ("ignored", letters.ignored),
            ]
            .map(|(name, count)| ([("status", name)], count)),
        );
    }
    all.number(
        "held_keys",
        "Keys whose later rows wait behind a dead letter",
        state.held_keys,
    );
    all.number(
        "in_flight_rows",
        "Rows read and not yet settled",
        Some(state.in_flight_rows as u64),
    );
    all.number(
        "in_flight_bytes",
        "Bytes of the rows read and not yet settled",
        Some(state.in_flight_bytes),
    );
    all.number(
        "received_lsn_bytes",
        "Newest WAL position received",
        state.received.map(|lsn| lsn.bytes()),
    );
    all.number(
        "confirmed_lsn_bytes",
        "WAL position reported to the server as done",
        state.confirmed.map(|lsn| lsn.bytes()),
    );
    all.seconds(
        "oldest_unpublished_seconds",
        "Age of the oldest row that is not settled; 0 without one",
        Some(
            state
                .oldest_unsettled
                .map_or(0.0, |at| at.seconds_until(PgTime::now()).max(0.0)),
        ),
    );
    all.seconds(
        "last_server_message_seconds",
        "Seconds since the server last said anything on the stream",
        state
            .last_server_message
            .map(|at| at.elapsed().as_secs_f64()),
    );
    if let Some((facts, _)) = &state.slot {
        all.slot(facts);
    }
    all.0
}

struct Gauges(Registry);

/// One label: name and value.
type Labels = [(&'static str, &'static str); 1];

impl Gauges {
    fn slot(&mut self, facts: &SlotFacts) {
        let slot = facts.slot.as_ref();
        self.number(
            "slot_confirmed_lag_bytes",
            "WAL written since the slot's confirmed position",
            facts.confirmed_lag_bytes(),
        );
        self.number(
            "slot_retained_wal_bytes",
            "WAL that the server keeps for the slot",
            facts.retained_bytes(),
        );
        self.number(
            "slot_safe_wal_size_bytes",
            "WAL that may still be written before the slot is lost; absent without a limit",
            slot.and_then(|s| s.safe_wal_size)
                .map(|bytes| bytes.max(0) as u64),
        );
        self.number(
            "slot_active",
            "1 while a process reads the slot",
            slot.map(|s| s.active.into()),
        );
        if let Some(status) = slot.and_then(|s| s.wal_status.as_deref()) {
            self.labelled(
                "slot_wal_status",
                "1 for the state that the slot's WAL is in",
                WAL_STATUSES.map(|known| ([("status", known)], (status == known).into())),
            );
        }
    }

    fn number(&mut self, name: &str, help: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.0.register(name, help, ConstGauge::new(value));
        }
    }

    fn seconds(&mut self, name: &str, help: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.0.register(name, help, ConstGauge::new(value));
        }
    }

    fn labelled<const N: usize>(&mut self, name: &str, help: &str, values: [(Labels, u64); N]) {
        let family = Family::<Labels, Gauge>::default();
        for (label, value) in values {
            family.get_or_create_owned(&label).set(value.cast_signed());
        }
        self.0.register(name, help, family);
    }
}

#[cfg(test)]
mod tests;

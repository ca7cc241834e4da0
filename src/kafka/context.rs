//! What the client library reports from its own thread: outcomes of records, and its state. The
//! relay collects both; nothing here waits, and nothing here panics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::{
    ClientContext,
    config::RDKafkaLogLevel,
    error::KafkaError,
    message::DeliveryResult,
    producer::{NoCustomPartitioner, ProducerContext},
    types::RDKafkaErrorCode as Code,
};
use tokio::sync::Notify;
use tracing::{debug, warn};

use crate::ledger::Seq;

/// Which producer reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Main,
    /// The one that sends suspects, alone.
    Probe,
}

/// What became of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The brokers have it, as `acks=all` means it.
    Delivered,
    /// It isn't settled: refused, purged, or its fate is unknown.
    Failed(Code),
}

#[derive(Clone, Copy, Debug)]
pub struct Settled {
    pub source: Source,
    pub seq: Seq,
    pub outcome: Outcome,
}

/// What the client library says of itself, apart from records.
#[derive(Clone, Debug)]
pub enum Report {
    /// The producer of this source can't go on.
    Fatal(Source, String),
    /// No broker can be reached, or none lets us in.
    Down(String),
}

#[derive(Default)]
struct Inbox {
    settled: Vec<Settled>,
    reports: Vec<Report>,
    /// The newest connection error: the reason when no broker is left.
    last_error: Option<String>,
}

/// Where all producers of the process leave their reports.
#[derive(Default)]
pub struct Deliveries {
    inbox: Mutex<Inbox>,
    wake: Notify,
}

impl Deliveries {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settled(&self, settled: Settled) {
        let mut inbox = self.lock();
        inbox.settled.push(settled);
        // One wake-up for all that arrives before the relay looks.
        let first = inbox.settled.len() == 1;
        drop(inbox);
        if first {
            self.wake.notify_one();
        }
    }

    fn report(&self, report: Report) {
        self.lock().reports.push(report);
        self.wake.notify_one();
    }

    /// Waits until something was reported; cancel-safe.
    pub async fn ready(&self) {
        self.wake.notified().await;
    }

    /// Swaps `settled`, which must be empty, for what was reported; both keep their memory.
    pub fn take(&self, settled: &mut Vec<Settled>) -> Vec<Report> {
        let mut inbox = self.lock();
        std::mem::swap(&mut inbox.settled, settled);
        std::mem::take(&mut inbox.reports)
    }
}

/// One producer's context.
pub struct Context {
    source: Source,
    deliveries: Arc<Deliveries>,
}

impl Context {
    pub fn new(source: Source, deliveries: Arc<Deliveries>) -> Self {
        Context { source, deliveries }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // The library repeats itself with every attempt to connect; the relay logs changes of state.
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                warn!(target: "walpost::kafka", facility, "{message}");
            }
            _ => debug!(target: "walpost::kafka", facility, "{message}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        debug!(target: "walpost::kafka", %error, "{reason}");
        match error.rdkafka_error_code() {
            Some(Code::Fatal) => {
                self.deliveries
                    .report(Report::Fatal(self.source, reason.to_owned()));
            }
            Some(Code::AllBrokersDown) => {
                let last = self.deliveries.lock().last_error.clone();
                let reason = last.unwrap_or_else(|| reason.to_owned());
                self.deliveries.report(Report::Down(reason));
            }
            // A login that is refused is told at once: other brokers will refuse it too.
            Some(Code::Authentication | Code::SSL | Code::SaslAuthenticationFailed) => {
                self.deliveries.lock().last_error = Some(reason.to_owned());
                self.deliveries.report(Report::Down(reason.to_owned()));
            }
            _ => self.deliveries.lock().last_error = Some(reason.to_owned()),
        }
    }
}

impl ProducerContext<NoCustomPartitioner> for Context {
    /// The row's sequence number itself: no allocation.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, seq: usize) {
        let outcome = match result {
            Ok(_) => Outcome::Delivered,
            Err((error, _)) => Outcome::Failed(error.rdkafka_error_code().unwrap_or(Code::Unknown)),
        };
        self.deliveries.settled(Settled {
            source: self.source,
            seq: Seq(seq as u64),
            outcome,
        });
    }
}

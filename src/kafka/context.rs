//! What the client library reports from its own thread: outcomes of records, and its state. The
//! relay collects both; nothing here waits, and nothing here panics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::{
    ClientContext, Message as _,
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
    /// Where it went, or was to go; -1 when that is unknown.
    pub partition: i32,
    pub outcome: Outcome,
}

/// What the client library says of itself, apart from records.
#[derive(Clone, Debug)]
pub enum Report {
    /// A producer of this source reported an error of its own: perhaps it can't go on.
    Error(Source),
    /// No broker can be reached.
    Down(String),
    /// A broker doesn't let us in.
    Refused(String),
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
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert => {
                warn!(facility, "{message}");
            }
            _ => debug!(facility, "{message}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        debug!(%error, "{reason}");
        let mut inbox = self.deliveries.lock();
        let news = match error.rdkafka_error_code() {
            Some(Code::AllBrokersDown) => {
                let last = inbox.last_error.clone();
                Some(Report::Down(last.unwrap_or_else(|| reason.to_owned())))
            }
            code => {
                inbox.last_error = Some(reason.to_owned());
                // A login that is refused is told at once: other brokers will refuse it too.
                let refused = [
                    Code::Authentication,
                    Code::SSL,
                    Code::SaslAuthenticationFailed,
                ];
                let is_refusal = code.is_some_and(|code| refused.contains(&code));
                is_refusal.then(|| Report::Refused(reason.to_owned()))
            }
        };
        inbox.reports.extend(news);
        inbox.reports.push(Report::Error(self.source));
        drop(inbox);
        self.deliveries.wake.notify_one();
    }
}

impl ProducerContext<NoCustomPartitioner> for Context {
    /// The row's sequence number itself: no allocation.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, seq: usize) {
        let (message, outcome) = match result {
            Ok(message) => (message, Outcome::Delivered),
            Err((error, message)) => {
                let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
                (message, Outcome::Failed(code))
            }
        };
        self.deliveries.settled(Settled {
            source: self.source,
            seq: Seq(seq as u64),
            partition: message.partition(),
            outcome,
        });
    }
}

//! Copies of dead letters, to a topic of their own: best effort, beside everything else. A copy that
//! is not delivered is counted and stops nothing; the letter itself is in the database.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rdkafka::{
    ClientConfig, ClientContext,
    config::RDKafkaLogLevel,
    error::KafkaError,
    message::{DeliveryResult, Header, OwnedHeaders},
    producer::{BaseRecord, NoCustomPartitioner, ProducerContext, ThreadedProducer},
    types::RDKafkaErrorCode as Code,
};
use tokio::sync::{
    OwnedSemaphorePermit, Semaphore,
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};
use tracing::{debug, info, warn};

use super::copy::Copy;
use crate::{
    kafka::{failure::code_name, settings::COPIES_KIBIBYTES as ROOM},
    metrics::Metrics,
};

/// Its part of the room, in KiB; given back when the copy's fate is known.
type Permit = Box<OwnedSemaphorePermit>;

/// Settings of the producer, made anew for each: files may hold other credentials by then.
pub type Settings = Box<dyn Fn() -> anyhow::Result<ClientConfig> + Send + Sync>;

/// Takes copies as long as there is room for them.
pub struct Copies {
    /// In KiB; a copy takes at least one. What bounds the channel, too.
    room: Arc<Semaphore>,
    orders: UnboundedSender<(Copy, Permit)>,
    fate: Arc<Fate>,
}

impl Copies {
    pub fn to(topic: &str, settings: Settings, metrics: Arc<Metrics>) -> Copies {
        let (orders, ordered) = unbounded_channel();
        let fate = Arc::new(Fate {
            topic: topic.to_owned(),
            metrics,
            fails: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        tokio::spawn(publish(ordered, settings, fate.clone()));
        Copies {
            room: Arc::new(Semaphore::new(ROOM as usize)),
            orders,
            fate,
        }
    }

    /// Never waits.
    pub fn publish(&self, copy: Copy) {
        let kibibytes = (copy.weight() >> 10) as u32 + 1;
        match self
            .room
            .clone()
            .try_acquire_many_owned(kibibytes.min(ROOM))
        {
            // The other end lives as long as we do.
            Ok(permit) => drop(self.orders.send((copy, Box::new(permit)))),
            Err(_) => self.fate.failed(Code::QueueFull),
        }
    }

    /// Waits until no copy is on its way, or for at most `limit`.
    pub async fn finish(&self, limit: Duration) {
        let all = tokio::time::timeout(limit, self.room.acquire_many(ROOM)).await;
        if all.is_err() {
            warn!("copies of dead letters are still on their way; they are not waited for");
        }
    }
}

/// What became of copies, for log and metrics.
struct Fate {
    topic: String,
    metrics: Arc<Metrics>,
    /// Each change is said once.
    fails: AtomicBool,
    /// The producer can't go on, or could not deliver for a long time.
    is_over: AtomicBool,
}

impl Fate {
    fn failed(&self, code: Code) {
        let code = code_name(code);
        self.metrics.copy_failure(&code);
        self.say(&code);
    }

    fn say(&self, reason: &str) {
        if !self.fails.swap(true, Ordering::Relaxed) {
            warn!(
                topic = self.topic,
                reason, "a copy of a dead letter was not published"
            );
        }
    }

    fn delivered(&self) {
        if self.fails.swap(false, Ordering::Relaxed) {
            info!(
                topic = self.topic,
                "copies of dead letters are published again"
            );
        }
    }
}

type Producer = ThreadedProducer<Context>;

async fn publish(
    mut orders: UnboundedReceiver<(Copy, Permit)>,
    settings: Settings,
    fate: Arc<Fate>,
) {
    let settings = Arc::new(settings);
    let mut producer: Option<Producer> = None;
    while let Some((copy, permit)) = orders.recv().await {
        if fate.is_over.swap(false, Ordering::Relaxed)
            && let Some(old) = producer.take()
        {
            // Ending a client waits for its threads.
            tokio::task::spawn_blocking(move || drop(old));
        }
        if producer.is_none() {
            let (settings, context) = (settings.clone(), Context(fate.clone()));
            let made = tokio::task::spawn_blocking(move || {
                let made: Producer = settings()?.create_with_context(context)?;
                anyhow::Ok(made)
            });
            producer = match made.await {
                Ok(Ok(producer)) => Some(producer),
                Ok(Err(error)) => {
                    fate.metrics.copy_failure("no_producer");
                    fate.say(&format!("{error:#}"));
                    continue;
                }
                Err(_) => return,
            };
        }
        if let Some(producer) = &producer {
            send(producer, copy, permit, &fate);
        }
    }
}

fn send(producer: &Producer, copy: Copy, permit: Permit, fate: &Fate) {
    let mut headers = OwnedHeaders::new_with_capacity(copy.headers.len());
    for (key, value) in &copy.headers {
        let value = value.as_ref();
        headers = headers.insert(Header { key, value });
    }
    let mut record = BaseRecord::<[u8], [u8], Permit>::with_opaque_to(&fate.topic, permit);
    record = record.headers(headers);
    if let Some(key) = &copy.key {
        record = record.key(key);
    }
    if let Some(value) = &copy.value {
        record = record.payload(value);
    }
    if let Err((error, _)) = producer.send(record) {
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        if code == Code::Fatal {
            fate.is_over.store(true, Ordering::Relaxed);
        }
        fate.failed(code);
    }
}

struct Context(Arc<Fate>);

impl ClientContext for Context {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        debug!(facility, "copies of dead letters: {message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        debug!(%error, "copies of dead letters: {reason}");
    }
}

impl ProducerContext<NoCustomPartitioner> for Context {
    type DeliveryOpaque = Permit;

    fn delivery(&self, result: &DeliveryResult<'_>, _: Permit) {
        match result {
            Ok(_) => self.0.delivered(),
            Err((error, _)) => {
                let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
                // Perhaps it was never let in: the next one reads its credentials anew.
                if code == Code::MessageTimedOut {
                    self.0.is_over.store(true, Ordering::Relaxed);
                }
                self.0.failed(code);
            }
        }
    }
}

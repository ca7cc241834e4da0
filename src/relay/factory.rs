//! New producers, made off the loop: creating one is quick, ending one is not.

use std::{sync::Arc, time::Duration};

use rdkafka::{ClientConfig, error::KafkaResult};
use tokio::sync::mpsc;

use crate::{
    backoff::Backoff,
    config::Config,
    kafka::{
        context::{Deliveries, Source},
        producer::Producer,
        settings,
    },
    metrics::Metrics,
    sender::Sender,
};

pub enum Made {
    Main(Producer),
    Probe(Producer),
    Failed(Source, rdkafka::error::KafkaError),
}

#[derive(Clone)]
struct Recipe {
    main: ClientConfig,
    probe: ClientConfig,
    deliveries: Arc<Deliveries>,
}

pub struct Factory {
    recipe: Recipe,
    made: mpsc::Receiver<Made>,
    deliver: mpsc::Sender<Made>,
    /// A producer that fails at once must not be replaced at once.
    pauses: Backoff,
    making_probe: bool,
}

impl Factory {
    pub fn new(
        config: &Config,
        properties: &[(String, String)],
        deliveries: Arc<Deliveries>,
    ) -> Self {
        let brokers = &config.kafka.brokers;
        let client_id = format!("walpost-{}", config.postgres.slot);
        let main = settings::main_producer(brokers, properties, &config.delivery, &client_id);
        let probe = settings::probe_producer(brokers, properties, &client_id);
        let (deliver, made) = mpsc::channel(2);
        Factory {
            recipe: Recipe {
                main,
                probe,
                deliveries,
            },
            made,
            deliver,
            pauses: Backoff::new(Duration::from_millis(100), Duration::from_secs(10)),
            making_probe: false,
        }
    }

    /// Makes one here and now.
    pub fn make(&self, source: Source) -> KafkaResult<Producer> {
        self.recipe.make(source)
    }

    /// The next one that was made; cancel-safe.
    pub async fn made(&mut self) -> Made {
        match self.made.recv().await {
            Some(made) => {
                self.making_probe &= !matches!(made, Made::Probe(_));
                made
            }
            // Our own end of the channel keeps it open.
            None => std::future::pending().await,
        }
    }

    /// Replaces the main producer once it has told the fate of every record.
    pub fn renew(&mut self, sender: &mut Sender<Producer>, metrics: &Metrics) {
        if let Some(old) = sender.take_drained() {
            metrics.restart("producer");
            discard(old);
            self.start(Source::Main);
        }
    }

    /// Replaces the probe producer; once, however often it complains.
    pub fn start_probe(&mut self) {
        if !std::mem::replace(&mut self.making_probe, true) {
            self.start(Source::Probe);
        }
    }

    pub fn start(&mut self, source: Source) {
        let (recipe, deliver, pause) = (
            self.recipe.clone(),
            self.deliver.clone(),
            self.pauses.pause(),
        );
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let made = tokio::task::spawn_blocking(move || match (recipe.make(source), source) {
                (Ok(producer), Source::Main) => Made::Main(producer),
                (Ok(producer), Source::Probe) => Made::Probe(producer),
                (Err(error), source) => Made::Failed(source, error),
            });
            if let Ok(made) = made.await {
                // Nobody listens when the relay is gone.
                let _ = deliver.send(made).await;
            }
        });
    }

    /// Records arrive: the next failure is a new one.
    pub fn worked(&mut self) {
        self.pauses.reset();
    }
}

impl Recipe {
    fn make(&self, source: Source) -> KafkaResult<Producer> {
        let settings = match source {
            Source::Main => &self.main,
            Source::Probe => &self.probe,
        };
        Producer::new(settings, source, &self.deliveries)
    }
}

/// Ends a producer in the background: it waits for its threads.
pub fn discard(producer: Producer) {
    tokio::task::spawn_blocking(move || drop(producer));
}

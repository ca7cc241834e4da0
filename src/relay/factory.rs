//! New producers, made off the loop: creating one is quick, ending one is not.

use std::{sync::Arc, time::Duration};

use rdkafka::{
    ClientConfig, admin::AdminClient, client::DefaultClientContext, error::RDKafkaErrorCode,
};
use tokio::sync::mpsc;
use tracing::info;

use super::files::Files;
use crate::{
    backoff::Backoff,
    config::{Config, kafka::read_property_files},
    kafka::{
        context::{Deliveries, Source},
        failure::no_producer,
        producer::Producer,
        settings::{self, SMALLEST_BATCH},
    },
    metrics::Metrics,
    sender::Sender,
};

pub enum Made {
    Main(Producer),
    Probe(Producer),
    Failed(Source, anyhow::Error),
}

/// All that a producer is made from; files are read anew for each.
#[derive(Clone)]
struct Recipe {
    config: Arc<Config>,
    properties: Vec<(String, String)>,
    /// Smaller than the user's once batches were refused for their size.
    batch_size: Option<u32>,
    deliveries: Arc<Deliveries>,
}

pub struct Factory {
    recipe: Recipe,
    made: mpsc::Receiver<Made>,
    deliver: mpsc::Sender<Made>,
    /// A producer that fails at once must not be replaced at once.
    pauses: Backoff,
    making_probe: bool,
    files: Files,
}

impl Factory {
    pub fn new(
        config: Arc<Config>,
        properties: &[(String, String)],
        deliveries: Arc<Deliveries>,
    ) -> Self {
        let (deliver, made) = mpsc::channel(2);
        let properties = properties.to_vec();
        let files = Files::of(&config.kafka);
        Factory {
            recipe: Recipe {
                config,
                properties,
                batch_size: None,
                deliveries,
            },
            made,
            deliver,
            pauses: Backoff::new(Duration::from_millis(100), Duration::from_secs(10)),
            making_probe: false,
            files,
        }
    }

    /// Makes one here and now.
    pub fn make(&self, source: Source) -> anyhow::Result<Producer> {
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

    /// Replaces the main producer once it has told the fate of every record. Why it ended, if that is
    /// a trouble of the cluster.
    pub fn renew(&mut self, sender: &mut Sender<Producer>, metrics: &Metrics) -> Option<String> {
        let old = sender.take_drained()?;
        metrics.restart("producer");
        let ended = old.fatal_error();
        discard(old);
        self.start(Source::Main);
        let (_, reason) = ended.filter(|(code, _)| *code != RDKafkaErrorCode::GaplessGuarantee)?;
        Some(reason)
    }

    /// Replaces the probe producer; once, however often it complains.
    pub fn start_probe(&mut self) {
        if !std::mem::replace(&mut self.making_probe, true) {
            self.start(Source::Probe);
        }
    }

    pub fn start(&mut self, source: Source) {
        let (recipe, deliver) = (self.recipe.clone(), self.deliver.clone());
        let pause = self.pauses.pause();
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

    /// Batches were refused for their size although no record of them was too large: the next
    /// producer makes them half as large, or as large as the topic's `limit` lets them be, in bytes.
    /// `false` when they can't be smaller.
    pub fn halve_batches(&mut self, limit: Option<u32>) -> bool {
        let now = self
            .recipe
            .batch_size
            .unwrap_or_else(|| self.recipe.configured_batch_size());
        let smallest = limit.map_or(SMALLEST_BATCH, |limit| SMALLEST_BATCH.min(limit / 2).max(1));
        if now <= smallest {
            return false;
        }
        // A batch has a head of its own, so what fits exactly may still be too large.
        let half = (now / 2).min(limit.unwrap_or(u32::MAX)).max(smallest);
        info!(
            batch_size = half,
            "batches are larger than a topic takes; making smaller ones"
        );
        self.recipe.batch_size = Some(half);
        true
    }

    /// A client that asks and changes nothing.
    pub fn admin(&self) -> anyhow::Result<AdminClient<DefaultClientContext>> {
        let config = &self.recipe.config;
        let mut properties = self.recipe.properties.clone();
        properties.extend(read_property_files(&config.kafka)?);
        let client_id = format!("walpost-{}", config.postgres.slot);
        let settings = settings::reader(&config.kafka.brokers, &properties, &client_id);
        settings.create().map_err(no_producer)
    }

    /// What a producer of copies of dead letters is made of, read anew for each.
    pub fn copy_settings(&self) -> impl Fn() -> anyhow::Result<ClientConfig> + Send + Sync + use<> {
        let recipe = self.recipe.clone();
        move || {
            let config = &recipe.config;
            let mut properties = recipe.properties.clone();
            properties.extend(read_property_files(&config.kafka)?);
            let client_id = format!("walpost-{}", config.postgres.slot);
            let brokers = &config.kafka.brokers;
            Ok(settings::copy_producer(brokers, &properties, &client_id))
        }
    }

    /// Whether a new client could log in where the old one could not.
    pub fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// Whether it would read something else than the old one.
    pub fn have_files_changed(&mut self) -> bool {
        self.files.changed()
    }
}

impl Recipe {
    fn make(&self, source: Source) -> anyhow::Result<Producer> {
        let config = &self.config;
        let client_id = format!("walpost-{}", config.postgres.slot);
        let brokers = &config.kafka.brokers;
        let mut properties = self.properties.clone();
        properties.extend(read_property_files(&config.kafka)?);
        if let Some(size) = self.batch_size {
            properties.push(("batch.size".into(), size.to_string()));
        }
        let settings = match source {
            Source::Main => {
                settings::main_producer(brokers, &properties, &config.delivery, &client_id)
            }
            Source::Probe => settings::probe_producer(brokers, &properties, &client_id),
        };
        Producer::new(&settings, source, &self.deliveries).map_err(no_producer)
    }

    fn configured_batch_size(&self) -> u32 {
        let set = self
            .properties
            .iter()
            .find(|(name, _)| name == "batch.size");
        set.and_then(|(_, size)| size.parse().ok())
            .unwrap_or(settings::DEFAULT_BATCH_SIZE)
    }
}

/// Ends a producer in the background: it waits for its threads.
pub fn discard(producer: Producer) {
    tokio::task::spawn_blocking(move || drop(producer));
}

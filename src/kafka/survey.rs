//! Looks at the cluster and its topics and changes nothing. Blocks, so it is used off the loop.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rdkafka::{
    ClientConfig, ClientContext,
    admin::{AdminClient, AdminOptions, OwnedResourceSpecifier, ResourceSpecifier},
    client::DefaultClientContext,
    config::RDKafkaLogLevel,
    error::{KafkaError, KafkaResult},
    message::DeliveryResult,
    metadata::Metadata,
    producer::{BaseProducer, Producer as _, ProducerContext},
    types::RDKafkaErrorCode as Code,
};
use tracing::debug;

use super::{
    failure::no_producer,
    producer::answer,
    topics::{Answer, TopicState},
};

/// Keeps what the client library complains of.
#[derive(Default)]
struct Ear(Mutex<Option<String>>);

impl ClientContext for Ear {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        debug!(facility, "{message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        debug!(%error, "{reason}");
        // It says only that nobody answers; what came before says why.
        if error.rdkafka_error_code() != Some(Code::AllBrokersDown) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
        }
    }
}

impl ProducerContext for Ear {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

/// A producer that sends nothing, and a client that asks for settings.
pub struct Survey {
    producer: BaseProducer<Ear>,
    admin: AdminClient<DefaultClientContext>,
}

/// What there is of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub state: TopicState,
    pub partitions: usize,
    /// Copies of the partition that has the fewest.
    pub replicas: usize,
}

/// A topic's settings in force, by name.
pub type Settings = BTreeMap<String, String>;

impl Survey {
    /// With the settings of a producer, so that what refuses that one refuses this too.
    pub fn open(settings: &ClientConfig) -> anyhow::Result<Survey> {
        let mut settings = settings.clone();
        // Looking must make nothing.
        settings.set("allow.auto.create.topics", "false");
        Ok(Survey {
            producer: settings
                .create_with_context(Ear::default())
                .map_err(no_producer)?,
            admin: settings.create().map_err(no_producer)?,
        })
    }

    /// How many brokers there are. An error is the client's own reason, where it has one.
    pub fn brokers(&self, timeout: Duration) -> Result<usize, String> {
        let metadata = self.producer.client().fetch_metadata(None, timeout);
        self.hear();
        match metadata {
            Ok(metadata) => Ok(metadata.brokers().len()),
            Err(error) => Err(self.complaint().unwrap_or(error.to_string())),
        }
    }

    pub fn topic(&self, name: &str, timeout: Duration) -> KafkaResult<Found> {
        let client = self.producer.client();
        let metadata = client.fetch_metadata(Some(name), timeout)?;
        let Answer { state, partitions } = answer(&metadata, name)?;
        Ok(Found {
            state,
            partitions,
            replicas: replicas(&metadata, name),
        })
    }

    /// The settings of topics; one that may not be asked for is left out.
    pub async fn settings(
        &self,
        topics: &[&str],
        timeout: Duration,
    ) -> KafkaResult<BTreeMap<String, Settings>> {
        let options = AdminOptions::new().request_timeout(Some(timeout));
        let resources: Vec<_> = topics.iter().map(|t| ResourceSpecifier::Topic(t)).collect();
        let answers = self.admin.describe_configs(&resources, &options).await?;
        let mut found = BTreeMap::new();
        for resource in answers.into_iter().flatten() {
            if let OwnedResourceSpecifier::Topic(name) = resource.specifier {
                let entries = resource.entries.into_iter();
                let settings = entries.filter_map(|entry| Some((entry.name, entry.value?)));
                found.insert(name, settings.collect());
            }
        }
        Ok(found)
    }

    /// Why a producer with these settings could not go on.
    pub fn fatal(&self) -> Option<String> {
        self.hear();
        let (_, text) = self.producer.client().fatal_error()?;
        Some(text)
    }

    /// Lets the client tell what it has to tell.
    fn hear(&self) {
        for _ in 0..10 {
            self.producer.poll(Duration::from_millis(5));
        }
    }

    fn complaint(&self) -> Option<String> {
        let ear = self.producer.context();
        ear.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn replicas(metadata: &Metadata, name: &str) -> usize {
    let topic = metadata.topics().iter().find(|t| t.name() == name);
    let partitions = topic.map_or(&[][..], |topic| topic.partitions());
    let copies = partitions.iter().map(|p| p.replicas().len());
    copies.min().unwrap_or(0)
}

//! The brokers, and the topics that records go to.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use rdkafka::ClientConfig;
use tokio::{runtime::Handle, task::spawn_blocking};

use super::{PATIENCE, finding::Findings, rows::AtHand, topic::Topic};
use crate::{
    config::{
        Config,
        kafka::{producer_settings, read_property_files},
    },
    kafka::{
        settings::main_producer,
        survey::{Found, Settings, Survey},
        topics::TopicState,
    },
};

/// One topic is not waited for any longer.
const TOPIC_PATIENCE: Duration = Duration::from_secs(5);

pub async fn check(config: &Config, at_hand: &AtHand, findings: &mut Findings) {
    let mut topics = at_hand.topics.clone();
    let letters = &config.dead_letters.topic;
    if !letters.is_empty() {
        topics.entry(letters.clone()).or_default();
    }
    mechanism(config, findings);
    let settings = match settings(config) {
        Ok(settings) => settings,
        Err(error) => {
            let message = format!("brokers: {error:#}");
            let fix = "correct `kafka.properties` and `kafka.property_files`";
            findings.fail("kafka.client", "kafka.properties", message, fix);
            return;
        }
    };
    let names: Vec<String> = topics.keys().cloned().collect();
    let brokers = &config.kafka.brokers;
    let looked = match spawn_blocking(move || look(&settings, &names)).await {
        Ok(Ok(looked)) => looked,
        Ok(Err(error)) => {
            let message = format!("brokers {brokers}: no producer: {error:#}");
            let fix = "correct `kafka.properties`";
            findings.fail("kafka.client", brokers, message, fix);
            return;
        }
        Err(error) => {
            findings.fail(
                "kafka.client",
                brokers,
                format!("internal: {error}"),
                "report it",
            );
            return;
        }
    };
    match &looked.brokers {
        Ok(count) => {
            let message = format!("brokers {brokers}: {count} answer");
            findings.pass("kafka.connect", brokers, message);
        }
        Err(error) => {
            let message = format!("brokers {brokers}: no answer: {error}");
            let fix = "correct `kafka.brokers` and the security settings of `kafka.properties`, or let the network reach them";
            findings.fail("kafka.connect", brokers, message, fix);
            return;
        }
    }
    if let Some(error) = &looked.fatal {
        let message = format!("brokers {brokers}: they refuse an idempotent producer: {error}");
        let fix = "give the principal the operation IdempotentWrite on the cluster, or Write on the topics (Kafka 3.0 and later)";
        findings.fail("kafka.idempotence", brokers, message, fix);
    }
    if at_hand.more {
        let message = format!(
            "brokers {brokers}: the rows at hand name more topics than these {}",
            topics.len()
        );
        findings.warn(
            "kafka.topics",
            brokers,
            message,
            "look at `walpost preview`",
        );
    }
    for (name, seen) in &topics {
        match looked.topics.get(name) {
            Some(Ok(found)) => {
                let settings = looked.settings.get(name);
                let topic = Topic {
                    name,
                    seen,
                    found,
                    settings,
                    is_letters: name == letters,
                };
                topic.judge(Timestamp::now(), findings);
            }
            Some(Err(error)) => {
                let message = format!("topic {name}: no answer: {error}");
                let fix = "run `walpost check` again";
                findings.warn("kafka.topic", name, message, fix);
            }
            None => {}
        }
    }
}

/// SASL without a mechanism would be Kerberos, whose error nobody understands.
fn mechanism(config: &Config, findings: &mut Findings) {
    let kafka = &config.kafka;
    let is_set =
        |name: &str| kafka.properties.contains_key(name) || kafka.property_files.contains_key(name);
    let protocol = kafka.properties.get("security.protocol");
    let asks = protocol.is_some_and(|protocol| protocol.to_lowercase().starts_with("sasl"));
    if asks && !is_set("sasl.mechanism") && !is_set("sasl.mechanisms") {
        let message = "brokers: security.protocol asks for SASL and no sasl.mechanism is set, which means Kerberos";
        let fix =
            "set `kafka.properties.\"sasl.mechanism\"`, such as \"SCRAM-SHA-512\" or \"PLAIN\"";
        findings.warn("kafka.mechanism", "kafka.properties", message, fix);
    }
}

fn settings(config: &Config) -> anyhow::Result<ClientConfig> {
    let mut properties = producer_settings(&config.kafka)?;
    properties.extend(read_property_files(&config.kafka)?);
    let client_id = format!("walpost-{}", config.postgres.slot);
    Ok(main_producer(
        &config.kafka.brokers,
        &properties,
        &config.delivery,
        &client_id,
    ))
}

/// What the brokers said.
struct Looked {
    brokers: Result<usize, String>,
    fatal: Option<String>,
    topics: BTreeMap<String, Result<Found, String>>,
    /// Of the topics whose settings may be asked for.
    settings: BTreeMap<String, Settings>,
}

fn look(settings: &ClientConfig, names: &[String]) -> anyhow::Result<Looked> {
    let survey = Survey::open(settings)?;
    let mut looked = Looked {
        brokers: survey.brokers(PATIENCE),
        fatal: None,
        topics: BTreeMap::new(),
        settings: BTreeMap::new(),
    };
    if looked.brokers.is_ok() {
        for name in names {
            let found = survey.topic(name, TOPIC_PATIENCE);
            let silent = found.is_err();
            looked
                .topics
                .insert(name.clone(), found.map_err(|error| error.to_string()));
            if silent {
                break;
            }
        }
        let open = looked.topics.iter().filter(|(_, found)| {
            found
                .as_ref()
                .is_ok_and(|found| found.state == TopicState::Open)
        });
        let open: Vec<&str> = open.map(|(name, _)| name.as_str()).collect();
        if !open.is_empty() {
            // Without the right to ask there is nothing to judge.
            let asked = survey.settings(&open, TOPIC_PATIENCE);
            looked.settings = Handle::current().block_on(asked).unwrap_or_default();
        }
        looked.fatal = survey.fatal();
    }
    Ok(looked)
}

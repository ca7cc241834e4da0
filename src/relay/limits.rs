//! Asks the brokers what a topic's records may weigh, off the loop, once one was too large.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ConfigSource, ResourceSpecifier};
use tokio::sync::mpsc;

use super::Relay;
use crate::kafka::topics::Limit;

const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Limits {
    answers: mpsc::Receiver<(usize, Limit)>,
    answer: mpsc::Sender<(usize, Limit)>,
    busy: bool,
}

impl Limits {
    pub fn new() -> Self {
        let (answer, answers) = mpsc::channel(1);
        Limits {
            answers,
            answer,
            busy: false,
        }
    }

    /// The next answer; cancel-safe.
    pub async fn answered(&mut self) -> (usize, Limit) {
        match self.answers.recv().await {
            Some(answer) => {
                self.busy = false;
                answer
            }
            // Our own end of the channel keeps it open.
            None => std::future::pending().await,
        }
    }
}

impl Relay {
    pub(super) fn ask_limits(&mut self) {
        if self.limits.busy {
            return;
        }
        let Some(number) = self.sender.topics.take_wanted_limit() else {
            return;
        };
        self.limits.busy = true;
        let name = self.sender.topics.get(number).name.to_string();
        let (client, answer) = (self.factory.admin(), self.limits.answer.clone());
        tokio::spawn(async move {
            let limit = match client {
                Ok(client) => {
                    let asked = tokio::time::timeout(TIMEOUT, ask(&client, &name)).await;
                    // Ending a client waits for its threads.
                    tokio::task::spawn_blocking(move || drop(client));
                    asked.ok().flatten()
                }
                Err(_) => None,
            };
            let limit = limit.unwrap_or(Limit::Unknown);
            // Nobody listens when the relay is gone.
            let _ = answer.send((number, limit)).await;
        });
    }
}

/// `None`: nobody may tell us, or nobody answers.
async fn ask(
    client: &AdminClient<rdkafka::client::DefaultClientContext>,
    topic: &str,
) -> Option<Limit> {
    let options = AdminOptions::new().request_timeout(Some(TIMEOUT));
    let resource = ResourceSpecifier::Topic(topic);
    let results = client.describe_configs([&resource], &options).await.ok()?;
    let config = results.into_iter().next()?.ok()?;
    let entry = config.get("max.message.bytes")?;
    let bytes = entry.value.as_ref()?.parse().ok()?;
    let text = match entry.source {
        ConfigSource::DynamicTopic => format!("the topic's max.message.bytes of {bytes}"),
        _ => format!("the broker's message.max.bytes of {bytes}"),
    };
    Some(Limit::Known { bytes, text })
}

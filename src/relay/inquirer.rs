//! Asks the brokers about topics whose rows wait, off the loop.

use std::time::{Duration, Instant};

use rand::RngExt as _;
use rdkafka::error::KafkaResult;
use tokio::sync::mpsc;

use crate::{
    kafka::{
        producer::Producer,
        topics::{Answer, TopicState},
    },
    sender::Sender,
};

/// One question waits no longer for its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A topic that is closed is asked for again after something between these.
const AGAIN: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(5);

/// Without an answer at all the next question comes sooner: the producer reconnects by itself.
const UNANSWERED: Duration = Duration::from_millis(500);

/// What was said of the topics with these numbers.
pub type Replies = Vec<(usize, KafkaResult<Answer>)>;

pub struct Inquirer {
    replies: mpsc::Receiver<Replies>,
    reply: mpsc::Sender<Replies>,
    busy: bool,
    /// Topics below this number were asked for at least once.
    asked: usize,
    next: Instant,
}

impl Inquirer {
    pub fn new() -> Self {
        let (reply, replies) = mpsc::channel(1);
        Inquirer {
            replies,
            reply,
            busy: false,
            asked: 0,
            next: Instant::now(),
        }
    }

    /// Asks if it is time: at once for a new topic, otherwise every few seconds.
    pub fn ask(&mut self, sender: &Sender<Producer>) {
        let known = sender.topics.len();
        if self.busy || (known == self.asked && Instant::now() < self.next) {
            return;
        }
        let Some(main) = sender.main() else { return };
        let topics: Vec<_> = sender
            .topics
            .to_ask()
            .map(|(n, t)| (n, t.name.clone(), t.state.clone()))
            .collect();
        if topics.is_empty() {
            return;
        }
        self.asked = known;
        self.busy = true;
        let (main, probe, reply) = (main.inquiry(), sender.probe().inquiry(), self.reply.clone());
        tokio::task::spawn_blocking(move || {
            let mut replies = Replies::new();
            for (number, name, state) in topics {
                let mut answer = main.ask(&name, ANSWER_TIMEOUT);
                // Both clients remember a denial until they hear of the topic again, and the probe
                // producer is the one that tries it.
                if answer.is_ok() && state == TopicState::Denied {
                    answer = probe.ask(&name, ANSWER_TIMEOUT);
                }
                let unanswered = answer.is_err();
                replies.push((number, answer));
                if unanswered {
                    break;
                }
            }
            // Nobody listens when the relay is gone.
            let _ = reply.blocking_send(replies);
        });
    }

    /// The next answers; cancel-safe.
    pub async fn replies(&mut self) -> Replies {
        match self.replies.recv().await {
            Some(replies) => {
                self.busy = false;
                let failed = replies.iter().any(|(_, answer)| answer.is_err());
                let pause = if failed {
                    UNANSWERED
                } else {
                    rand::rng().random_range(AGAIN)
                };
                self.next = Instant::now() + pause;
                replies
            }
            // Our own end of the channel keeps it open.
            None => std::future::pending().await,
        }
    }
}

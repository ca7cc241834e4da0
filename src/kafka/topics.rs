//! Which topics take records: the gate. A record is enqueued only when its topic is known to exist
//! and not known to refuse us; otherwise its row waits here, and rows of other topics flow. No
//! socket, no clock.

use std::collections::{HashMap, VecDeque};

use super::partitions::{Partitioner, Partitions};
use crate::ledger::Seq;

/// What the brokers say of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub state: TopicState,
    /// How many partitions it has; 0 when nobody said so.
    pub partitions: usize,
}

impl From<TopicState> for Answer {
    fn from(state: TopicState) -> Self {
        let partitions = 0;
        Answer { state, partitions }
    }
}

/// What is known of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicState {
    /// Not answered yet. Unasked isn't missing.
    Unasked,
    Open,
    /// The brokers don't know it.
    Missing,
    /// We may not write to it, or not even see it.
    Denied,
}

#[derive(Debug)]
pub struct Topic {
    pub name: Box<str>,
    pub state: TopicState,
    /// Its rows that wait, in commit order. A newer row goes behind them.
    pub waiting: VecDeque<Seq>,
    /// Its rows in the main producer, those of the present stream.
    pub enqueued: usize,
    partitions: Partitions,
    /// The first waiting row's partition, where another row goes alone now.
    blocked_on: Option<usize>,
    /// When the first of its rows began to wait, or the topic was found closed.
    pub since: Option<jiff::Timestamp>,
}

impl Topic {
    /// Records may be enqueued behind those that wait.
    fn is_open(&self) -> bool {
        self.state == TopicState::Open
    }

    /// The first waiting row may try to leave.
    fn is_releasable(&self) -> bool {
        let is_free = |partition| self.partitions.takes(partition);
        self.is_open() && !self.waiting.is_empty() && self.blocked_on.is_none_or(is_free)
    }

    /// What a person is told.
    pub fn reason(&self) -> &'static str {
        match self.state {
            TopicState::Unasked => "the brokers have not answered yet",
            TopicState::Open => "its rows are being sent",
            TopicState::Missing => "the topic does not exist",
            TopicState::Denied => "not authorised to write to the topic",
        }
    }
}

/// The topics that rows were routed to, numbered in the order of their first row.
#[derive(Debug)]
pub struct Topics {
    partitioner: Partitioner,
    topics: Vec<Topic>,
    numbers: HashMap<Box<str>, usize>,
    /// Rows that wait, over all topics.
    waiting: usize,
}

impl Topics {
    pub fn new(partitioner: Partitioner) -> Self {
        Topics {
            partitioner,
            topics: Vec::new(),
            numbers: HashMap::new(),
            waiting: 0,
        }
    }

    /// The topic's number; nothing is allocated for a known one.
    pub fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.topics.len();
        let state = TopicState::Unasked;
        let name: Box<str> = name.into();
        self.topics.push(Topic {
            name: name.clone(),
            state,
            waiting: VecDeque::new(),
            enqueued: 0,
            partitions: Partitions::default(),
            blocked_on: None,
            since: None,
        });
        self.numbers.insert(name, number);
        number
    }

    pub fn get(&self, number: usize) -> &Topic {
        &self.topics[number]
    }

    pub fn len(&self) -> usize {
        self.topics.len()
    }

    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &Topic)> {
        self.topics.iter().enumerate()
    }

    /// Whether rows of this topic can be enqueued now, with nothing of the topic waiting.
    pub fn takes(&self, number: usize) -> bool {
        let topic = &self.topics[number];
        topic.is_open() && topic.waiting.is_empty()
    }

    /// The partition of a row whose order counts while there are cold ones.
    pub fn cold_partition(
        &self,
        number: usize,
        key: Option<&[u8]>,
        chosen: Option<i32>,
    ) -> Option<usize> {
        let partitions = &self.topics[number].partitions;
        if partitions.are_warm() {
            return None;
        }
        match chosen {
            Some(partition) => usize::try_from(partition).ok(),
            None => self.partitioner.partition(key, partitions.count()),
        }
    }

    /// Whether a row goes alone there now: the next one of the topic waits for it.
    pub fn is_blocked(&mut self, number: usize, partition: Option<usize>) -> bool {
        let topic = &mut self.topics[number];
        topic.blocked_on = partition.filter(|p| !topic.partitions.takes(*p));
        topic.blocked_on.is_some()
    }

    /// Lets a row wait behind the others of its topic.
    pub fn wait(&mut self, number: usize, seq: Seq, now: jiff::Timestamp) {
        let topic = &mut self.topics[number];
        topic.since.get_or_insert(now);
        topic.waiting.push_back(seq);
        self.waiting += 1;
    }

    pub fn enqueued(&mut self, number: usize, partition: Option<usize>, seq: Seq) {
        let topic = &mut self.topics[number];
        topic.enqueued += 1;
        if let Some(partition) = partition {
            topic.partitions.enqueued(partition, seq);
        }
    }

    /// The main producer told what became of one of them.
    pub fn reported(&mut self, number: usize) {
        self.topics[number].enqueued -= 1;
    }

    /// The main producer delivered one of them to this partition.
    pub fn delivered(&mut self, number: usize, partition: i32, seq: Seq) {
        let topic = &mut self.topics[number];
        let partition = usize::try_from(partition).unwrap_or_default();
        if !topic.partitions.delivered(partition, seq) && topic.is_open() {
            // Partitions were added: how many there are is asked for before the next row goes.
            topic.state = TopicState::Unasked;
        }
    }

    /// A new producer, or one that the brokers may have forgotten: they know nothing of it.
    pub fn cool(&mut self) {
        for topic in &mut self.topics {
            topic.partitions.cool();
        }
    }

    /// No report will come for what was enqueued: a new producer or a new stream.
    pub fn forget_enqueued(&mut self) {
        for topic in &mut self.topics {
            topic.enqueued = 0;
            topic.blocked_on = None;
            topic.partitions.forget_trying();
        }
    }

    /// Notes what the brokers said; `true` when it is news.
    pub fn answer(&mut self, number: usize, answer: Answer) -> bool {
        let Answer { state, partitions } = answer;
        let topic = &mut self.topics[number];
        if partitions > 0 {
            topic.partitions.resize(partitions);
        }
        let news = topic.state != state;
        if state == TopicState::Open && topic.waiting.is_empty() {
            topic.since = None;
        }
        topic.state = state;
        news
    }

    /// An open topic with rows that may leave now.
    pub fn releasable(&self) -> Option<usize> {
        if self.waiting == 0 {
            return None;
        }
        self.topics.iter().position(Topic::is_releasable)
    }

    pub fn first_waiting(&self, number: usize) -> Option<Seq> {
        self.topics[number].waiting.front().copied()
    }

    /// The first waiting row left.
    pub fn leave(&mut self, number: usize) {
        let topic = &mut self.topics[number];
        self.waiting -= usize::from(topic.waiting.pop_front().is_some());
        if topic.waiting.is_empty() {
            topic.since = None;
        }
    }

    /// Nothing waits any more: the rows are walked again from the oldest one. How long the topic
    /// has been closed is not forgotten.
    pub fn forget_waiting(&mut self) {
        self.waiting = 0;
        for topic in &mut self.topics {
            topic.waiting.clear();
        }
    }

    /// Topics whose rows wait for an answer.
    pub fn to_ask(&self) -> impl Iterator<Item = (usize, &Topic)> {
        self.iter()
            .filter(|(_, topic)| !topic.is_open() && !topic.waiting.is_empty())
    }
}

//! Which topics take records: the gate. A record is enqueued only when its topic is known to exist
//! and not known to refuse us; otherwise its row waits here, and rows of other topics flow. No
//! socket, no clock.

use std::collections::{HashMap, VecDeque};

use crate::ledger::Seq;

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
    /// This producer has delivered a record of it. Until then one row goes alone: a broker that knows
    /// nothing of a producer takes any first sequence number, so a batch behind a refused first one
    /// would be appended.
    warm: bool,
    /// When the first of its rows began to wait, or the topic was found closed.
    pub since: Option<jiff::Timestamp>,
}

impl Topic {
    /// Records may be enqueued behind those that wait.
    fn is_open(&self) -> bool {
        self.state == TopicState::Open
    }

    /// One more record may be enqueued now.
    fn has_room(&self) -> bool {
        self.is_open() && (self.warm || self.enqueued == 0)
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
#[derive(Debug, Default)]
pub struct Topics {
    topics: Vec<Topic>,
    numbers: HashMap<Box<str>, usize>,
    /// Rows that wait, over all topics.
    waiting: usize,
}

impl Topics {
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
            warm: false,
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

    /// Whether a row of this topic can be enqueued now, with nothing of the topic waiting.
    pub fn takes(&self, number: usize) -> bool {
        let topic = &self.topics[number];
        topic.has_room() && topic.waiting.is_empty()
    }

    /// Lets a row wait behind the others of its topic.
    pub fn wait(&mut self, number: usize, seq: Seq, now: jiff::Timestamp) {
        let topic = &mut self.topics[number];
        topic.since.get_or_insert(now);
        topic.waiting.push_back(seq);
        self.waiting += 1;
    }

    pub fn enqueued(&mut self, number: usize) {
        self.topics[number].enqueued += 1;
    }

    /// The main producer told what became of one of them.
    pub fn reported(&mut self, number: usize) {
        self.topics[number].enqueued -= 1;
    }

    /// The main producer delivered one of them.
    pub fn delivered(&mut self, number: usize) {
        self.topics[number].warm = true;
    }

    /// A new producer: the brokers know nothing of it.
    pub fn cool(&mut self) {
        for topic in &mut self.topics {
            topic.warm = false;
        }
    }

    /// A new stream: reports of older rows are nobody's.
    pub fn forget_enqueued(&mut self) {
        for topic in &mut self.topics {
            topic.enqueued = 0;
        }
    }

    /// Notes what the brokers said; `true` when it is news.
    pub fn answer(&mut self, number: usize, state: TopicState) -> bool {
        let topic = &mut self.topics[number];
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
        self.topics
            .iter()
            .position(|t| t.has_room() && !t.waiting.is_empty())
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

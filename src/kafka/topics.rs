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

/// The largest batch that a topic takes, and whose setting that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    Unasked,
    Known {
        /// As it bounds a batch.
        bytes: u32,
        /// As a person is told.
        text: String,
    },
    /// Nobody may tell us.
    Unknown,
}

/// How long a limit is believed without asking again, in seconds: it may be changed.
const LIMIT_HOLDS: i64 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    None,
    /// To be asked.
    Wanted,
    Asked,
}

impl Limit {
    pub fn known(&self) -> Option<&str> {
        match self {
            Limit::Known { text, .. } => Some(text),
            _ => None,
        }
    }
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
    /// Since when it is answered as closed without a break.
    pub closed_since: Option<jiff::Timestamp>,
    /// It has dead letters for being closed: while it stays so, its new rows become letters at once.
    pub parking: bool,
    /// A letter waits for its first answer.
    pub wanted: bool,
    /// What its records may weigh, asked for once one was too large.
    pub limit: Limit,
    limit_question: Question,
    limit_asked: Option<jiff::Timestamp>,
    /// The brokers showed it the last time they were asked.
    visible: bool,
}

impl Topic {
    /// Records may be enqueued behind those that wait.
    fn is_open(&self) -> bool {
        self.state == TopicState::Open
    }

    /// Answered as missing or denied.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, TopicState::Missing | TopicState::Denied)
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
    /// Topics with dead letters that take records again.
    opened: Vec<Box<str>>,
}

impl Topics {
    pub fn new(partitioner: Partitioner) -> Self {
        Topics {
            partitioner,
            topics: Vec::new(),
            numbers: HashMap::new(),
            waiting: 0,
            opened: Vec::new(),
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
            closed_since: None,
            parking: false,
            wanted: false,
            limit: Limit::Unasked,
            limit_question: Question::None,
            limit_asked: None,
            visible: false,
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
        if state == TopicState::Open && std::mem::take(&mut topic.parking) {
            self.opened.push(topic.name.clone());
        }
        topic.wanted = false;
        topic.state = state;
        news
    }

    /// A topic that denied us can be seen now: perhaps it takes records, and its letters are tried.
    pub fn seen(&mut self, number: usize, visible: bool) {
        let topic = &mut self.topics[number];
        let news = visible && !std::mem::replace(&mut topic.visible, visible);
        if news && topic.parking {
            self.opened.push(topic.name.clone());
        }
    }

    /// Has dead letters for being closed.
    pub fn park(&mut self, number: usize) {
        self.topics[number].parking = true;
    }

    /// Only these have dead letters for being closed; rows of the others wait again.
    pub fn keep_parking(&mut self, names: &[String]) {
        for topic in self.topics.iter_mut().filter(|topic| topic.parking) {
            topic.parking = names.iter().any(|name| **name == *topic.name);
        }
    }

    /// A letter waits for the topic's first answer.
    pub fn want(&mut self, number: usize) {
        self.topics[number].wanted = true;
    }

    /// A record of it was too large.
    pub fn want_limit(&mut self, number: usize, now: jiff::Timestamp) {
        let topic = &mut self.topics[number];
        let is_old = |asked: jiff::Timestamp| now.as_second() - asked.as_second() >= LIMIT_HOLDS;
        if topic.limit_question == Question::None && topic.limit_asked.is_none_or(is_old) {
            topic.limit_question = Question::Wanted;
            topic.limit_asked = Some(now);
        }
    }

    /// The next topic to ask for its limit.
    pub fn take_wanted_limit(&mut self) -> Option<usize> {
        let is_wanted = |topic: &Topic| topic.limit_question == Question::Wanted;
        let number = self.topics.iter().position(is_wanted)?;
        self.topics[number].limit_question = Question::Asked;
        Some(number)
    }

    pub fn limited(&mut self, number: usize, limit: Limit) {
        let topic = &mut self.topics[number];
        topic.limit = limit;
        topic.limit_question = Question::None;
    }

    /// The smallest limit that is known, in bytes.
    pub fn smallest_limit(&self) -> Option<u32> {
        let known = self.topics.iter().filter_map(|topic| match topic.limit {
            Limit::Known { bytes, .. } => Some(bytes),
            _ => None,
        });
        known.min()
    }

    /// Its limit is not known, and will be soon.
    pub fn awaits_limit(&self, number: Option<usize>) -> bool {
        number.is_some_and(|number| {
            let topic = &self.topics[number];
            topic.limit == Limit::Unasked && topic.limit_question != Question::None
        })
    }

    /// Notes how long topics are closed without a break.
    pub fn watch_closed(&mut self, now: jiff::Timestamp) {
        for topic in &mut self.topics {
            topic.closed_since = topic.is_closed().then(|| topic.closed_since.unwrap_or(now));
        }
    }

    /// The next topic whose letters are due now.
    pub fn take_opened(&mut self) -> Option<Box<str>> {
        self.opened.pop()
    }

    /// Rows that wait at closed topics.
    pub fn waiting_closed(&self) -> usize {
        let closed = self.topics.iter().filter(|topic| topic.is_closed());
        closed.map(|topic| topic.waiting.len()).sum()
    }

    /// Rows leave the gate in no order: they aren't sent.
    pub fn take_waiting(&mut self, number: usize, mut takes: impl FnMut(Seq) -> bool) -> Vec<Seq> {
        let topic = &mut self.topics[number];
        let (taken, left) = topic.waiting.drain(..).partition(|seq| takes(*seq));
        let taken: VecDeque<Seq> = taken;
        topic.waiting = left;
        self.waiting -= taken.len();
        if topic.waiting.is_empty() {
            topic.since = None;
        }
        taken.into()
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
            .filter(|(_, topic)| !topic.is_open() && !topic.name.is_empty())
            .filter(|(_, topic)| !topic.waiting.is_empty() || topic.parking || topic.wanted)
    }
}

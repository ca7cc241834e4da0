//! What lies in a topic, read by an ordinary consumer.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use rdkafka::{
    ClientConfig, Message, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
    error::KafkaError,
    message::Headers,
};
use walpost::{lsn::Position, verdict::Arrived};

/// A record as the broker has it; null and empty stay apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    /// In their order, repeated names included.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    pub timestamp: Option<i64>,
}

impl Record {
    /// The text of the header of this name; `None` when there is none or it is null.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(header, _)| header == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }

    /// All headers, with `None` for null.
    pub fn texts(&self) -> Vec<(&str, Option<&str>)> {
        let text = |bytes| std::str::from_utf8(bytes).expect("a header in UTF-8");
        self.headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref().map(text)))
            .collect()
    }

    pub fn event_id(&self) -> &str {
        self.header("event_id")
            .unwrap_or_else(|| panic!("no event_id in {self:?}"))
    }

    pub fn arrived(&self) -> Arrived {
        Arrived {
            id: self.header("event_id").map(str::to_owned),
            key: self.key.clone(),
            value: self.value.clone(),
            topic: self.topic.clone(),
            partition: self.partition,
            offset: self.offset,
            position: self
                .header("wal_position")
                .map(|text| position(text).unwrap_or_else(|| panic!("wal_position {text:?}"))),
        }
    }
}

/// `0/16B3748:3`.
pub fn position(text: &str) -> Option<Position> {
    let (lsn, ordinal) = text.rsplit_once(':')?;
    Some(Position {
        commit: lsn.parse().ok()?,
        ordinal: ordinal.parse().ok()?,
    })
}

/// Reads one topic from its beginning.
pub struct Tail {
    consumer: BaseConsumer,
    topic: String,
    partitions: HashSet<i32>,
    ended: HashSet<i32>,
    pub records: Vec<Record>,
    /// The client's last error: told when reading comes to no end.
    trouble: Option<KafkaError>,
}

impl Tail {
    pub(super) fn new(brokers: &str, topic: &str, partitions: &[i32]) -> Tail {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("group.id", "walpost-tests")
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", "error")
            .set("fetch.wait.max.ms", "50")
            .set("fetch.error.backoff.ms", "50")
            .set("log_level", "2")
            .create()
            .expect("a consumer");
        let mut all = TopicPartitionList::new();
        for partition in partitions {
            all.add_partition_offset(topic, *partition, Offset::Offset(0))
                .expect("a partition");
        }
        consumer.assign(&all).expect("assign partitions");
        let partitions = partitions.iter().copied().collect();
        Tail {
            consumer,
            topic: topic.to_owned(),
            partitions,
            ended: HashSet::new(),
            records: Vec::new(),
            trouble: None,
        }
    }

    /// Takes in what comes within the time; false when nothing came.
    pub fn poll(&mut self, limit: Duration) -> bool {
        match self.consumer.poll(limit) {
            None => return false,
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                self.ended.insert(partition);
            }
            // The client connects again by itself; a deadline of the caller's ends what never mends.
            Some(Err(error)) => self.trouble = Some(error),
            Some(Ok(message)) => {
                self.ended.remove(&message.partition());
                let headers = message.headers().map_or_else(Vec::new, |headers| {
                    headers
                        .iter()
                        .map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec)))
                        .collect()
                });
                self.records.push(Record {
                    topic: self.topic.clone(),
                    partition: message.partition(),
                    offset: message.offset(),
                    key: message.key().map(<[u8]>::to_vec),
                    value: message.payload().map(<[u8]>::to_vec),
                    headers,
                    timestamp: message.timestamp().to_millis(),
                });
            }
        }
        true
    }

    /// Whether every partition was read to what was its end then.
    pub fn is_at_end(&self) -> bool {
        self.ended == self.partitions
    }

    /// Up to the end of every partition.
    #[track_caller]
    pub fn read_to_end(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(90);
        while !self.is_at_end() {
            assert!(
                Instant::now() < deadline,
                "topic {} could not be read to its end",
                self.topic
            );
            self.poll(Duration::from_millis(200));
        }
    }

    /// Up to where the partitions end at the time of the call, also when called again.
    #[track_caller]
    pub fn catch_up(&mut self) {
        let limit = Duration::from_secs(60);
        for partition in self.partitions.clone() {
            let (_, end) = self
                .consumer
                .fetch_watermarks(&self.topic, partition, limit)
                .expect("the partition's end");
            let deadline = Instant::now() + limit;
            let is_there = |r: &Record| r.partition == partition && r.offset + 1 >= end;
            while end > 0 && !self.records.iter().rev().any(is_there) {
                assert!(
                    Instant::now() < deadline,
                    "topic {} could not be read to offset {end} of partition {partition}; last offset \
                     {:?}, the client said {:?}",
                    self.topic,
                    self.records
                        .iter()
                        .rev()
                        .find(|r| r.partition == partition)
                        .map(|r| r.offset),
                    self.trouble
                );
                self.poll(Duration::from_millis(50));
            }
        }
    }

    /// At least `count` records.
    #[track_caller]
    pub fn wait(&mut self, count: usize, seconds: u64) -> &[Record] {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        while self.records.len() < count {
            assert!(
                Instant::now() < deadline,
                "after {seconds} s {} of {count} records in topic {}",
                self.records.len(),
                self.topic
            );
            self.poll(Duration::from_millis(200));
        }
        &self.records
    }
}

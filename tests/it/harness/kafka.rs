//! Kafka from outside: topics, rights, and what lies in a topic, read by an ordinary consumer.

use std::{
    collections::HashSet,
    path::Path,
    process::Command,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use rdkafka::{
    ClientConfig, Message, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer},
    error::KafkaError,
    message::Headers,
};
use walpost::{lsn::Position, verdict::Arrived};

use super::{block_on, services, until};

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

/// A cluster, seen by a user who may do everything.
pub struct Kafka {
    pub brokers: String,
    admin: AdminClient<DefaultClientContext>,
}

const LIMIT: Duration = Duration::from_secs(20);

impl Kafka {
    /// The one all tests share.
    pub fn shared() -> Arc<Kafka> {
        static SHARED: LazyLock<Arc<Kafka>> =
            LazyLock::new(|| Arc::new(Kafka::at(services::setting("KAFKA_BROKERS"))));
        SHARED.clone()
    }

    pub fn at(brokers: &str) -> Kafka {
        let admin = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("log_level", "2")
            .create()
            .expect("an admin client");
        Kafka {
            brokers: brokers.to_owned(),
            admin,
        }
    }

    /// Makes a topic and waits until every partition has a leader.
    pub fn create(&self, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
        let new = NewTopic {
            name: topic,
            num_partitions: partitions,
            replication: TopicReplication::Fixed(1),
            config: settings.to_vec(),
        };
        let results = block_on(
            self.admin
                .create_topics([&new], &AdminOptions::new().operation_timeout(Some(LIMIT))),
        );
        for result in results.expect("create a topic") {
            result.unwrap_or_else(|(topic, error)| panic!("create topic {topic}: {error}"));
        }
        until(format_args!("topic {topic} has leaders"), 20, || {
            let partitions = self.partitions(topic)?;
            partitions
                .iter()
                .all(|(_, leader)| *leader >= 0)
                .then_some(())
        });
    }

    /// (number, leader) of each partition; `None` without the topic or an answer.
    fn partitions(&self, topic: &str) -> Option<Vec<(i32, i32)>> {
        let metadata = self
            .admin
            .inner()
            .fetch_metadata(Some(topic), Duration::from_secs(5))
            .ok()?;
        let found = metadata
            .topics()
            .iter()
            .find(|t| t.name() == topic && t.error().is_none())?;
        let partitions: Vec<_> = found
            .partitions()
            .iter()
            .map(|p| (p.id(), p.leader()))
            .collect();
        (!partitions.is_empty()).then_some(partitions)
    }

    pub fn exists(&self, topic: &str) -> bool {
        let metadata = self
            .admin
            .inner()
            .fetch_metadata(None, LIMIT)
            .expect("metadata of Kafka");
        metadata.topics().iter().any(|t| t.name() == topic)
    }

    pub fn answers(&self) -> bool {
        self.admin
            .inner()
            .fetch_metadata(None, Duration::from_secs(2))
            .is_ok()
    }

    /// Best effort: a broker that is gone needs no tidying.
    pub fn delete(&self, topics: &[String]) {
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        let options = AdminOptions::new()
            .operation_timeout(Some(Duration::from_secs(5)))
            .request_timeout(Some(Duration::from_secs(5)));
        let _ = block_on(self.admin.delete_topics(&names, &options));
    }

    /// Lets a user write to the topic, with Kafka's own tool: the client library has no call for it.
    pub fn allow(&self, user: &str, topic: &str) {
        let libraries = Path::new(services::setting("WALPOST_TEST_KAFKA_LIBS")).join("*");
        let output = Command::new("java")
            .args(["-XX:TieredStopAtLevel=1", "-cp"])
            .arg(libraries)
            .args([
                "org.apache.kafka.tools.AclCommand",
                "--bootstrap-server",
                &self.brokers,
                "--add",
                "--producer",
            ])
            .args([
                "--allow-principal",
                &format!("User:{user}"),
                "--topic",
                topic,
            ])
            .output()
            .expect("run java");
        assert!(
            output.status.success(),
            "AclCommand: {}",
            String::from_utf8_lossy(&output.stdout)
        );
    }

    pub fn tail(&self, topic: &str) -> Tail {
        Tail::new(
            &self.brokers,
            topic,
            &until(format_args!("metadata of topic {topic}"), 20, || {
                self.partitions(topic)
            }),
        )
    }

    /// Every record of the topic up to its present end, by partition and offset.
    pub fn read(&self, topic: &str) -> Vec<Record> {
        let mut tail = self.tail(topic);
        tail.read_to_end();
        tail.records.sort_by_key(|r| (r.partition, r.offset));
        tail.records
    }

    /// The records of the topic once there are so many; more may be among them.
    #[track_caller]
    pub fn wait(&self, topic: &str, count: usize, seconds: u64) -> Vec<Record> {
        let mut tail = self.tail(topic);
        tail.wait(count, seconds);
        tail.records
    }
}

/// Reads one topic from its beginning.
pub struct Tail {
    consumer: BaseConsumer,
    topic: String,
    partitions: HashSet<i32>,
    ended: HashSet<i32>,
    pub records: Vec<Record>,
}

impl Tail {
    fn new(brokers: &str, topic: &str, partitions: &[(i32, i32)]) -> Tail {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("group.id", "walpost-tests")
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true")
            .set("fetch.wait.max.ms", "50")
            .set("fetch.error.backoff.ms", "50")
            .set("log_level", "2")
            .create()
            .expect("a consumer");
        let mut all = TopicPartitionList::new();
        for (partition, _) in partitions {
            all.add_partition_offset(topic, *partition, Offset::Offset(0))
                .expect("a partition");
        }
        consumer.assign(&all).expect("assign partitions");
        let partitions = partitions.iter().map(|(partition, _)| *partition).collect();
        Tail {
            consumer,
            topic: topic.to_owned(),
            partitions,
            ended: HashSet::new(),
            records: Vec::new(),
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
            Some(Err(_)) => {}
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

    /// Up to the end of every partition.
    #[track_caller]
    pub fn read_to_end(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(90);
        while self.ended != self.partitions {
            assert!(
                Instant::now() < deadline,
                "topic {} could not be read to its end",
                self.topic
            );
            self.poll(Duration::from_millis(200));
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

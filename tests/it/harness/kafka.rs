//! Kafka from outside: topics, rights.

use std::{
    path::Path,
    process::Command,
    sync::{Arc, LazyLock},
    time::Duration,
};

use rdkafka::{
    ClientConfig,
    admin::{
        AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication,
    },
    client::DefaultClientContext,
};

use super::{
    block_on,
    records::{Record, Tail},
    services, until,
};

/// A cluster, seen by a user who may do everything.
pub struct Kafka {
    pub brokers: String,
    admin: AdminClient<DefaultClientContext>,
}

const LIMIT: Duration = Duration::from_secs(60);

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
        self.create_all(&[topic.to_owned()], partitions, settings);
    }

    pub fn create_all(&self, topics: &[String], partitions: i32, settings: &[(&str, &str)]) {
        let new: Vec<_> = topics
            .iter()
            .map(|name| NewTopic {
                name,
                num_partitions: partitions,
                replication: TopicReplication::Fixed(1),
                config: settings.to_vec(),
            })
            .collect();
        let results = block_on(
            self.admin
                .create_topics(&new, &AdminOptions::new().operation_timeout(Some(LIMIT))),
        );
        for result in results.expect("create topics") {
            result.unwrap_or_else(|(topic, error)| panic!("create topic {topic}: {error}"));
        }
        for topic in topics {
            until(format_args!("topic {topic} has leaders"), 60, || {
                let partitions = self.partitions(topic)?;
                partitions
                    .iter()
                    .all(|(_, leader)| *leader >= 0)
                    .then_some(())
            });
        }
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

    /// How many brokers the cluster has.
    pub fn count_brokers(&self) -> usize {
        let metadata = self.admin.inner().fetch_metadata(None, LIMIT);
        metadata.map_or(0, |metadata| metadata.brokers().len())
    }

    /// Makes a topic with its first partition on broker 1 and its second on broker 2; or, `copied`, with one that is led
    /// by broker 2 and copied to broker 1.
    pub fn create_on_two(&self, topic: &str, copied: bool) {
        let replicas: &[&[i32]] = if copied { &[&[2, 1]] } else { &[&[1], &[2]] };
        let new = NewTopic {
            name: topic,
            num_partitions: replicas.len() as i32,
            replication: TopicReplication::Variable(replicas),
            config: Vec::new(),
        };
        let options = AdminOptions::new().operation_timeout(Some(LIMIT));
        for result in block_on(self.admin.create_topics([&new], &options)).expect("create topics") {
            result.unwrap_or_else(|(topic, error)| panic!("create topic {topic}: {error}"));
        }
        until(format_args!("topic {topic} has its leaders"), 60, || {
            let leaders: Vec<_> = self
                .partitions(topic)?
                .iter()
                .map(|(_, leader)| *leader)
                .collect();
            let wanted: Vec<_> = replicas.iter().map(|nodes| nodes[0]).collect();
            (leaders == wanted).then_some(())
        });
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

    /// Lets a user write to the topic.
    pub fn allow(&self, user: &str, topic: &str) {
        self.change_rights(&["--producer", "--add"], user, topic);
    }

    /// Takes back what `allow` gave.
    pub fn forbid(&self, user: &str, topic: &str) {
        self.change_rights(&["--producer", "--remove", "--force"], user, topic);
    }

    /// The user may see the topic, and no more.
    pub fn allow_to_see(&self, user: &str, topic: &str) {
        self.change_rights(&["--operation", "Describe", "--add"], user, topic);
    }

    /// With Kafka's own tool: the client library has no call for it.
    fn change_rights(&self, how: &[&str], user: &str, topic: &str) {
        let libraries = Path::new(services::setting("WALPOST_TEST_KAFKA_LIBS")).join("*");
        let output = Command::new("java")
            .args(["-XX:TieredStopAtLevel=1", "-cp"])
            .arg(libraries)
            .args([
                "org.apache.kafka.tools.AclCommand",
                "--bootstrap-server",
                &self.brokers,
            ])
            .args(how)
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

    /// The topic's settings, all of them: what isn't given goes back to its default. The broker knows
    /// of them.
    pub fn configure(&self, topic: &str, settings: &[(&str, &str)]) {
        if let Err(error) = self.try_configure(topic, settings) {
            panic!("configure topic {topic}: {error}");
        }
        let options = AdminOptions::new().operation_timeout(Some(LIMIT));
        let topic = ResourceSpecifier::Topic(topic);
        until(format_args!("{topic:?} is configured"), 60, || {
            let described = block_on(self.admin.describe_configs([&topic], &options)).ok()?;
            let described = described.into_iter().next()?.ok()?;
            let is_set = |(name, value): &(&str, &str)| {
                let entry = described.get(name);
                entry.and_then(|entry| entry.value.as_deref()) == Some(*value)
            };
            settings.iter().all(is_set).then_some(())
        });
        // The partition follows what is described, without a word.
        std::thread::sleep(Duration::from_millis(100));
    }

    /// The same where the broker may be away, and soon rather than now.
    pub fn try_configure(&self, topic: &str, settings: &[(&str, &str)]) -> Result<(), String> {
        let mut change = AlterConfig::new(ResourceSpecifier::Topic(topic));
        for (name, value) in settings {
            change = change.set(name, value);
        }
        let options = AdminOptions::new()
            .operation_timeout(Some(LIMIT))
            .request_timeout(Some(LIMIT));
        let results = block_on(self.admin.alter_configs([&change], &options));
        for result in results.map_err(|error| error.to_string())? {
            result.map_err(|(_, error)| error.to_string())?;
        }
        Ok(())
    }

    /// How many records the topic ever took; `None` without an answer.
    pub fn count(&self, topic: &str) -> Option<i64> {
        let end = |partition| {
            let limit = Duration::from_secs(1);
            let client = self.admin.inner();
            let (_, end) = client.fetch_watermarks(topic, partition, limit).ok()?;
            Some(end)
        };
        let partitions = self.partitions(topic)?;
        partitions
            .iter()
            .map(|(partition, _)| end(*partition))
            .sum()
    }

    pub fn tail(&self, topic: &str) -> Tail {
        let partitions = until(format_args!("metadata of topic {topic}"), 60, || {
            self.partitions(topic)
        });
        let partitions: Vec<_> = partitions.iter().map(|(number, _)| *number).collect();
        self.tail_of(topic, &partitions)
    }

    /// Of these partitions only.
    pub fn tail_of(&self, topic: &str, partitions: &[i32]) -> Tail {
        Tail::new(&self.brokers, topic, partitions)
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

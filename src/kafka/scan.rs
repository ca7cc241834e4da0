//! Reads topics to find which events they have already. Takes part in no consumer group and commits
//! nothing. Blocks, so it is used off the loop.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use rdkafka::{
    ClientConfig, ClientContext, Message as _, Offset, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext},
    error::{KafkaError, KafkaResult},
    message::{BorrowedMessage, Headers as _},
    types::RDKafkaErrorCode as Code,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    error::{Exit, Stop},
    stop,
};

/// One question waits no longer for its answer; the next attempt follows.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(500);

/// How long one call waits for a record.
const POLL: Duration = Duration::from_millis(100);

/// Silence for so long is said once.
const SILENCE: Duration = Duration::from_secs(5);

struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        // Among others: that a producer's setting means nothing here.
        debug!(facility, "{message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        debug!(%error, "{reason}");
    }
}

impl ConsumerContext for Quiet {}

/// Reads topics one after the other.
pub struct Scan {
    consumer: BaseConsumer<Quiet>,
    stop: CancellationToken,
    /// Waiting was said.
    warned: bool,
}

impl Scan {
    /// `settings` are those of `settings::reader`.
    pub fn new(settings: &ClientConfig, stop: CancellationToken) -> KafkaResult<Self> {
        Ok(Scan {
            consumer: settings.create_with_context(Quiet)?,
            stop,
            warned: false,
        })
    }

    /// All records of the topic with a timestamp of `since` (in
    /// milliseconds since 1970) and in those behind the first of them. Waits without limit for
    /// brokers that cannot be reached. A topic that doesn't exist has none.
    pub fn topic(
        &mut self,
        topic: &str,
        since: Option<i64>,
        mut seen: impl FnMut(&BorrowedMessage<'_>),
    ) -> Result<(), Stop> {
        let mut open = self.bounds(topic, since)?;
        if open.is_empty() {
            return Ok(());
        }
        let mut assignment = TopicPartitionList::new();
        for (partition, (start, _)) in &open {
            // Fails for a partition that is not in the list, which was just put in.
            let offset = Offset::Offset(*start);
            let _ = assignment.add_partition_offset(topic, *partition, offset);
        }
        self.consumer
            .assign(&assignment)
            .map_err(|error| stop!(Exit::Error, "cannot read topic {topic}: {error}"))?;
        let mut heard = Instant::now();
        while !open.is_empty() {
            self.go_on()?;
            let done = match self.consumer.poll(POLL) {
                None => {
                    self.waits(topic, heard, "no record arrives");
                    continue;
                }
                Some(Ok(record)) => {
                    seen(&record);
                    let end = open.get(&record.partition()).map(|(_, end)| *end);
                    // Records that others write meanwhile don't keep us.
                    let last = end.is_some_and(|end| record.offset() + 1 >= end);
                    last.then(|| record.partition())
                }
                Some(Err(KafkaError::PartitionEOF(partition))) => Some(partition),
                Some(Err(error)) => {
                    refused(topic, error.rdkafka_error_code())?;
                    self.waits(topic, heard, &error.to_string());
                    continue;
                }
            };
            heard = Instant::now();
            if let Some(partition) = done {
                open.remove(&partition);
            }
        }
        Ok(())
    }

    /// Partition → where to begin, and its end now; those with nothing to read are left out.
    fn bounds(
        &mut self,
        topic: &str,
        since: Option<i64>,
    ) -> Result<BTreeMap<i32, (i64, i64)>, Stop> {
        let mut bounds = BTreeMap::new();
        for partition in self.partitions(topic)? {
            let (low, high) = self.ask(topic, |consumer| {
                consumer.fetch_watermarks(topic, partition, ANSWER_TIMEOUT)
            })?;
            let start = match since {
                None => low,
                Some(since) => self.first_since(topic, partition, since)?.unwrap_or(high),
            };
            if start.max(low) < high {
                bounds.insert(partition, (start.max(low), high));
            }
        }
        Ok(bounds)
    }

    fn partitions(&mut self, topic: &str) -> Result<Vec<i32>, Stop> {
        self.ask(topic, |consumer| {
            let metadata = consumer.fetch_metadata(Some(topic), ANSWER_TIMEOUT)?;
            let Some(found) = metadata.topics().iter().find(|t| t.name() == topic) else {
                return Ok(Vec::new());
            };
            match found.error().map(Code::from) {
                None => Ok(found.partitions().iter().map(|p| p.id()).collect()),
                Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::InvalidTopic) => {
                    Ok(Vec::new())
                }
                Some(code) => Err(KafkaError::MetadataFetch(code)),
            }
        })
    }

    /// The offset of the first record with this timestamp or a later one; `None`: there is none.
    fn first_since(
        &mut self,
        topic: &str,
        partition: i32,
        since: i64,
    ) -> Result<Option<i64>, Stop> {
        self.ask(topic, |consumer| {
            let mut asked = TopicPartitionList::new();
            asked.add_partition_offset(topic, partition, Offset::Offset(since))?;
            let answer = consumer.offsets_for_times(asked, ANSWER_TIMEOUT)?;
            let found = answer.find_partition(topic, partition);
            let found = found.ok_or(KafkaError::MetadataFetch(Code::UnknownPartition))?;
            found.error()?;
            Ok(match found.offset() {
                Offset::Offset(offset) => Some(offset),
                _ => None,
            })
        })
    }

    fn ask<T>(
        &mut self,
        topic: &str,
        question: impl Fn(&BaseConsumer<Quiet>) -> KafkaResult<T>,
    ) -> Result<T, Stop> {
        let began = Instant::now();
        loop {
            self.go_on()?;
            match question(&self.consumer) {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    refused(topic, error.rdkafka_error_code())?;
                    self.waits(topic, began, &error.to_string());
                    std::thread::sleep(AGAIN);
                }
            }
        }
    }

    fn waits(&mut self, topic: &str, since: Instant, why: &str) {
        if since.elapsed() >= SILENCE && !std::mem::replace(&mut self.warned, true) {
            warn!(topic, "kafka: {why}; waiting");
        }
    }

    fn go_on(&self) -> Result<(), Stop> {
        match self.stop.is_cancelled() {
            true => Err(stop!(Exit::Grace, "stopped while reading the topics")),
            false => Ok(()),
        }
    }
}

/// The first value of the header.
pub fn header<'a>(record: &'a BorrowedMessage<'_>, name: &str) -> Option<&'a [u8]> {
    let mut headers = record.headers()?.iter();
    headers.find(|found| found.key == name)?.value
}

/// What waiting can't mend.
fn refused(topic: &str, code: Option<Code>) -> Result<(), Stop> {
    match code {
        Some(Code::TopicAuthorizationFailed) => Err(stop!(
            Exit::Error,
            "not authorised to read topic {topic}, which tells what was published already: allow READ and DESCRIBE on it"
        )),
        _ => Ok(()),
    }
}

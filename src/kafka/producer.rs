//! A producer with the thread that polls its reports. `enqueue` copies a record into librdkafka
//! and nothing else; each enqueued record is reported exactly once.
//!
//! Why librdkafka's own calls: rdkafka's `send` allocates the topic's name and each header's name
//! for every record and looks the topic up by name; here a topic is looked up once.

use std::{
    collections::HashMap,
    ffi::{CString, c_void},
    ptr,
    sync::Arc,
    time::Duration,
};

use rdkafka::{
    ClientConfig,
    bindings::{
        RD_KAFKA_MSG_F_COPY, rd_kafka_header_add, rd_kafka_headers_destroy, rd_kafka_headers_new,
        rd_kafka_producev, rd_kafka_topic_destroy, rd_kafka_topic_new, rd_kafka_topic_t,
        rd_kafka_vtype_t as V,
    },
    error::{KafkaError, KafkaResult},
    metadata::Metadata,
    producer::{BaseProducer, Producer as _, PurgeConfig},
    types::{RDKafkaErrorCode as Code, RDKafkaRespErr},
};

use super::{
    context::{Context, Deliveries, Source},
    poller::Poller,
    settings::DEFAULT_MESSAGE_MAX_BYTES,
    topics::{Answer, TopicState},
};
use crate::{ledger::Seq, outbox::record::Record};

/// librdkafka's `RD_KAFKA_PARTITION_UA`: the partitioner chooses by the key.
const UNASSIGNED: i32 = -1;

/// A topic's handle inside librdkafka.
struct NativeTopic(*mut rd_kafka_topic_t);

// SAFETY: librdkafka's handles may be used from any thread.
unsafe impl Send for NativeTopic {}

impl Drop for NativeTopic {
    fn drop(&mut self) {
        // SAFETY: made by rd_kafka_topic_new and destroyed once; the client outlives it, see `Producer`.
        unsafe { rd_kafka_topic_destroy(self.0) };
    }
}

pub struct Producer {
    /// Before the client: handles must go first.
    topics: HashMap<Box<str>, NativeTopic>,
    /// Before the client, as the handles.
    poller: Poller,
    client: Arc<BaseProducer<Context>>,
    /// In bytes.
    largest: usize,
}

impl Producer {
    /// Takes about a millisecond and no connection; unknown properties and values are errors.
    pub fn new(
        settings: &ClientConfig,
        source: Source,
        deliveries: &Arc<Deliveries>,
    ) -> KafkaResult<Self> {
        let context = Context::new(source, deliveries.clone());
        let client: Arc<BaseProducer<Context>> = Arc::new(settings.create_with_context(context)?);
        Ok(Producer {
            topics: HashMap::new(),
            poller: Poller::start(client.clone())?,
            client,
            largest: settings
                .get("message.max.bytes")
                .and_then(|bytes| bytes.parse().ok())
                .unwrap_or(DEFAULT_MESSAGE_MAX_BYTES as usize),
        })
    }

    /// Copies the record into the producer's queue. Refused with `QueueFull`, with the record's own
    /// fault, or with `Fatal` when this producer can't go on; a refused record has no report.
    pub fn enqueue(&mut self, record: &Record<'_>, seq: Seq) -> Result<(), Code> {
        let topic = self.topic(record.topic)?;
        let bytes = |part: Option<&[u8]>| match part {
            None => (ptr::null(), 0),
            Some(bytes) => (bytes.as_ptr().cast::<c_void>(), bytes.len()),
        };
        let (key, key_length) = bytes(record.key);
        let (value, value_length) = bytes(record.payload);
        // SAFETY: every pointer is valid for its length during the call, which copies what they
        // point to (`F_COPY`); the header list is given away only on success and destroyed here
        // otherwise; the topic handle belongs to this client.
        let error = unsafe {
            let headers = rd_kafka_headers_new(record.headers.len());
            for (name, value) in record.headers.iter() {
                let (value, length) = bytes(value);
                // Fails for a read-only list alone, which a new one isn't.
                rd_kafka_header_add(
                    headers,
                    name.as_ptr().cast(),
                    name.len() as isize,
                    value,
                    length as isize,
                );
            }
            let error = rd_kafka_producev(
                self.client.client().native_ptr(),
                V::RD_KAFKA_VTYPE_RKT,
                topic,
                V::RD_KAFKA_VTYPE_MSGFLAGS,
                RD_KAFKA_MSG_F_COPY,
                V::RD_KAFKA_VTYPE_VALUE,
                value,
                value_length,
                V::RD_KAFKA_VTYPE_KEY,
                key,
                key_length,
                V::RD_KAFKA_VTYPE_OPAQUE,
                seq.0 as usize as *mut c_void,
                V::RD_KAFKA_VTYPE_PARTITION,
                record.partition.unwrap_or(UNASSIGNED),
                V::RD_KAFKA_VTYPE_TIMESTAMP,
                record.timestamp,
                V::RD_KAFKA_VTYPE_HEADERS,
                headers,
                V::RD_KAFKA_VTYPE_END,
            );
            if error != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
                rd_kafka_headers_destroy(headers);
            }
            error
        };
        match error {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(()),
            error => Err(error.into()),
        }
    }

    fn topic(&mut self, name: &str) -> Result<*mut rd_kafka_topic_t, Code> {
        if let Some(topic) = self.topics.get(name) {
            return Ok(topic.0);
        }
        let text = CString::new(name).map_err(|_| Code::InvalidTopic)?;
        // SAFETY: the client is alive, the name ends with a zero byte, no configuration is given.
        let topic = unsafe {
            rd_kafka_topic_new(
                self.client.client().native_ptr(),
                text.as_ptr(),
                ptr::null_mut(),
            )
        };
        if topic.is_null() {
            return Err(Code::InvalidTopic);
        }
        self.topics.insert(name.into(), NativeTopic(topic));
        Ok(topic)
    }

    /// The largest message that it takes, in bytes.
    pub fn largest(&self) -> usize {
        self.largest
    }

    /// Drops what was not sent yet; each such record is reported as purged.
    pub fn purge_queue(&self) {
        self.client.purge(PurgeConfig::default().queue());
    }

    /// What answers questions about topics: blocks, so it is used off the loop.
    pub fn inquiry(&self) -> Inquiry {
        Inquiry(self.client.clone())
    }

    /// Why this producer can't go on, if it can't.
    pub fn fatal_error(&self) -> Option<(Code, String)> {
        self.client.client().fatal_error()
    }

    /// The thread that polls the reports ended though nobody asked it to.
    pub fn is_deaf(&self) -> bool {
        self.poller.is_over()
    }
}

/// Asks the brokers about topics.
pub struct Inquiry(Arc<BaseProducer<Context>>);

impl Inquiry {
    /// What the brokers say of a topic; blocks for at most `timeout`. An error is no answer.
    pub fn ask(&self, topic: &str, timeout: Duration) -> KafkaResult<Answer> {
        let metadata = self.0.client().fetch_metadata(Some(topic), timeout)?;
        answer(&metadata, topic)
    }
}

/// What the brokers say of a topic that they were asked for. An error is no answer.
pub fn answer(metadata: &Metadata, topic: &str) -> KafkaResult<Answer> {
    let found = metadata.topics().iter().find(|t| t.name() == topic);
    let Some(found) = found else {
        return Ok(TopicState::Missing.into());
    };
    let partitions = found.partitions().len();
    let state = match found.error().map(Code::from) {
        None if partitions == 0 => TopicState::Missing,
        None => TopicState::Open,
        Some(Code::TopicAuthorizationFailed) => TopicState::Denied,
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::InvalidTopic) => {
            TopicState::Missing
        }
        // A new topic has no leaders for a moment; the producer waits for them by itself.
        Some(Code::LeaderNotAvailable) if partitions > 0 => TopicState::Open,
        Some(code) => return Err(KafkaError::MetadataFetch(code)),
    };
    Ok(Answer { state, partitions })
}

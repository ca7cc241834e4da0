//! The producer's settings: what the promise rests on, and the bounds that follow ours.

use rdkafka::{ClientConfig, config::RDKafkaLogLevel};

use crate::config;

/// A producer queue holds the headers too, which the ledger doesn't count.
const HEADERS_PER_ROW: u64 = 1024;

/// librdkafka's own default.
pub const DEFAULT_MESSAGE_MAX_BYTES: u64 = 1_000_000;

/// librdkafka's own default.
pub const DEFAULT_BATCH_SIZE: u32 = 1_000_000;

/// Java's default: producers of other services and we agree on a key's partition.
pub const PARTITIONER: &str = "murmur2_random";

/// Batches aren't made smaller than this, whatever a topic refuses.
pub const SMALLEST_BATCH: u32 = 16 << 10;

/// Settings of the main producer. `properties` are the user's, checked to contradict none of ours.
pub fn main_producer(
    brokers: &str,
    properties: &[(String, String)],
    delivery: &config::Delivery,
    client_id: &str,
) -> ClientConfig {
    let mut settings = common(brokers, properties, client_id);
    let largest = settings
        .get("message.max.bytes")
        .and_then(|n| n.parse().ok());
    let largest: u64 = largest.unwrap_or(DEFAULT_MESSAGE_MAX_BYTES);
    let bytes =
        delivery.in_flight_bytes.max(largest) + delivery.in_flight_rows as u64 * HEADERS_PER_ROW;
    let kilobytes = (bytes >> 10).clamp(1, i32::MAX as u64);
    settings
        // A record that can't be delivered stops the producer: nothing behind it overtakes.
        .set("enable.gapless.guarantee", "true")
        .set(
            "queue.buffering.max.messages",
            delivery.in_flight_rows.to_string(),
        )
        .set("queue.buffering.max.kbytes", kilobytes.to_string());
    settings
}

/// Settings of the producer that sends one suspect at a time: a refusal there isn't fatal.
pub fn probe_producer(
    brokers: &str,
    properties: &[(String, String)],
    client_id: &str,
) -> ClientConfig {
    let mut settings = common(brokers, properties, client_id);
    settings
        .set("enable.gapless.guarantee", "false")
        .set("linger.ms", "0");
    settings
}

/// Copies of dead letters that may be on their way, in KiB.
pub const COPIES_KIBIBYTES: u32 = 16 << 10;

/// Settings of the producer of copies of dead letters: nothing waits for them for long.
pub fn copy_producer(
    brokers: &str,
    properties: &[(String, String)],
    client_id: &str,
) -> ClientConfig {
    let mut settings = common(brokers, properties, client_id);
    settings
        .set("enable.gapless.guarantee", "false")
        .set("message.timeout.ms", "60000")
        // Their number and size are bounded before they come here.
        .set("queue.buffering.max.messages", COPIES_KIBIBYTES.to_string())
        .set(
            "queue.buffering.max.kbytes",
            (2 * COPIES_KIBIBYTES).to_string(),
        );
    settings
}

/// Settings of a reader of topics. The user's are a producer's; what doesn't concern a reader is
/// passed over by the client library.
pub fn reader(brokers: &str, properties: &[(String, String)], client_id: &str) -> ClientConfig {
    let mut settings = ClientConfig::new();
    settings
        .set("client.id", client_id)
        .set("socket.keepalive.enable", "true");
    pass_on(properties, &mut settings);
    settings
        .set("bootstrap.servers", brokers)
        // Needed to read at all; no group is joined, and nothing is committed.
        .set("group.id", client_id)
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        .set("queued.max.messages.kbytes", "16384");
    settings
}

/// The user's own. The wrapper would keep from us what `debug` asks the library to tell.
fn pass_on(properties: &[(String, String)], settings: &mut ClientConfig) {
    for (name, value) in properties {
        settings.set(name, value);
    }
    if settings
        .get("debug")
        .is_some_and(|topics| !topics.is_empty())
    {
        settings.set_log_level(RDKafkaLogLevel::Debug);
    }
}

fn common(brokers: &str, properties: &[(String, String)], client_id: &str) -> ClientConfig {
    let mut settings = ClientConfig::new();
    settings
        .set("client.id", client_id)
        .set("partitioner", PARTITIONER)
        .set("allow.auto.create.topics", "false")
        // A half-open connection is noticed without waiting for a request to time out.
        .set("socket.keepalive.enable", "true");
    pass_on(properties, &mut settings);
    settings
        .set("bootstrap.servers", brokers)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        // An outage pauses; it never fails a record.
        .set("message.timeout.ms", "0");
    settings
}

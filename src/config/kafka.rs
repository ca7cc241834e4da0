//! Which of the user's librdkafka properties would break the promise that a confirmed row is in
//! Kafka, in order. Those are refused here, before anything is connected.

use std::path::PathBuf;

use anyhow::Context as _;
use tracing::warn;

use super::{Kafka, Problem};
use crate::{
    error::{Exit, Stop},
    kafka::settings::PARTITIONER,
    stop,
};

/// The user's properties for a producer, with our default compression. Warns of what is allowed
/// but unwise, so call it once per process and keep the answer.
pub fn producer_settings(kafka: &Kafka) -> Result<Vec<(String, String)>, Stop> {
    refuse(kafka).map_err(|problem| stop!(Exit::Usage, "{problem}"))?;
    let mut settings: Vec<_> = kafka
        .properties
        .iter()
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if !settings
        .iter()
        .any(|(name, _)| matches!(canonical(name), "compression.type" | "compression.codec"))
    {
        settings.push(("compression.type".into(), "lz4".into()));
    }
    for (_, warning) in unwise(kafka) {
        warn!("{warning}");
    }
    Ok(settings)
}

/// Properties that are allowed, and what speaks against them.
pub fn unwise(kafka: &Kafka) -> Vec<(&str, String)> {
    let warning = |(name, value): (&'_ String, &String)| match canonical(name) {
        "partitioner" if value != PARTITIONER => Some(format!(
            "kafka.properties: partitioner = {value}: keys go to other partitions than with the Java client"
        )),
        "allow.auto.create.topics" if !is_false(value) => Some(format!(
            "kafka.properties: allow.auto.create.topics = {value}: a misspelt topic is created instead of reported"
        )),
        _ => None,
    };
    let properties = kafka.properties.iter();
    properties
        .filter_map(|property| Some((property.0.as_str(), warning(property)?)))
        .collect()
}

/// The first property that must not be set so.
pub(super) fn refuse(kafka: &Kafka) -> Result<(), Problem> {
    for (name, value) in &kafka.properties {
        if let Some(why) = objection(canonical(name), value) {
            return Err(Problem::new(format!("kafka.properties.{name}"), why));
        }
    }
    for name in kafka.property_files.keys() {
        let path = format!("kafka.property_files.{name}");
        if kafka.properties.contains_key(name) {
            return Err(Problem::new(
                path,
                "is set by kafka.properties too; leave one out",
            ));
        }
        // What decides over the promise is not left to a file that may change.
        if let Some(why) = objection(canonical(name), "a file") {
            return Err(Problem::new(path, why));
        }
    }
    Ok(())
}

/// The properties whose values are in files, as the files are now. A line's end behind a value is
/// not part of it.
pub fn read_property_files(kafka: &Kafka) -> anyhow::Result<Vec<(String, String)>> {
    let read = |(name, file): (&String, &PathBuf)| {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("read kafka.property_files.{name} from {}", file.display()))?;
        Ok((name.clone(), text.trim_end_matches(['\r', '\n']).to_owned()))
    };
    kafka.property_files.iter().map(read).collect()
}

/// librdkafka takes topic properties with the prefix `topic.` too.
fn canonical(name: &str) -> &str {
    name.strip_prefix("topic.").unwrap_or(name)
}

/// Why this property cannot have this value. No value is repeated here: it may be a secret.
fn objection(name: &str, value: &str) -> Option<&'static str> {
    let value = value.trim();
    match name {
        "enable.idempotence" | "enable.gapless.guarantee" if !is_true(value) => Some(
            "must stay true: without it a failed record could be overtaken by later ones of its key; leave it out",
        ),
        "acks" | "request.required.acks" if !matches!(value, "all" | "-1") => Some(
            "must stay all: with fewer acknowledgements a confirmed row can be lost with its broker; leave it out",
        ),
        "message.timeout.ms" | "delivery.timeout.ms" if value != "0" => Some(
            "must stay 0 (without limit): an outage pauses the publisher, it never fails a record; leave it out",
        ),
        "retries" | "message.send.max.retries" => Some(
            "cannot be set: records are retried without limit, or one could be given up; leave it out",
        ),
        "max.in.flight" | "max.in.flight.requests.per.connection"
            if !matches!(value.parse(), Ok(1..=5_u8)) =>
        {
            Some(
                "must be 1 to 5: the broker keeps order and refuses repeats for no more than 5 requests",
            )
        }
        "delivery.report.only.error" if !is_false(value) => Some(
            "must stay false: a row is confirmed only by its successful delivery report; leave it out",
        ),
        "transactional.id" => {
            Some("cannot be set: this version doesn't use transactions; leave it out")
        }
        "queue.buffering.max.ms" => Some("is written linger.ms"),
        name if name.starts_with("queue.buffering.") => Some(
            "cannot be set: the queue's bounds follow delivery.in_flight_rows and delivery.in_flight_bytes",
        ),
        "bootstrap.servers" | "metadata.broker.list" => Some("is set by kafka.brokers"),
        _ => None,
    }
}

// The spellings of librdkafka.
fn is_true(value: &str) -> bool {
    ["true", "t", "1"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

fn is_false(value: &str) -> bool {
    ["false", "f", "0"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kafka(name: &str, value: &str) -> Kafka {
        Kafka {
            properties: [(name.to_string(), value.to_string())].into(),
            ..Kafka::default()
        }
    }

    #[test]
    fn what_breaks_the_promise_is_refused_by_any_name() {
        for (name, value) in [
            ("enable.idempotence", "false"),
            ("enable.idempotence", ""),
            ("enable.gapless.guarantee", "f"),
            ("acks", "1"),
            ("request.required.acks", "0"),
            ("topic.acks", "1"),
            ("message.timeout.ms", "5000"),
            ("topic.delivery.timeout.ms", "5000"),
            ("retries", "3"),
            ("message.send.max.retries", "2147483647"),
            ("max.in.flight", "6"),
            ("max.in.flight.requests.per.connection", "0x10"),
            ("delivery.report.only.error", "true"),
            ("transactional.id", "x"),
            ("queue.buffering.max.messages", "100"),
            ("queue.buffering.max.kbytes", "1000"),
            ("queue.buffering.max.ms", "5"),
            ("queue.buffering.backpressure.threshold", "1"),
            ("bootstrap.servers", "a:1"),
            ("metadata.broker.list", "a:1"),
        ] {
            let stop = producer_settings(&kafka(name, value)).expect_err(name);
            assert_eq!(stop.exit, Exit::Usage);
            assert!(
                stop.to_string()
                    .starts_with(&format!("kafka.properties.{name}: ")),
                "{stop}"
            );
        }
    }

    #[test]
    fn harmless_properties_pass_unchanged() {
        for (name, value) in [
            ("enable.idempotence", "TRUE"),
            ("acks", "all"),
            ("acks", "-1"),
            ("message.timeout.ms", "0"),
            ("max.in.flight", "5"),
            ("delivery.report.only.error", "false"),
            ("linger.ms", "100"),
            ("partitioner", "consistent_random"),
            ("allow.auto.create.topics", "true"),
        ] {
            let settings = producer_settings(&kafka(name, value)).unwrap();
            assert_eq!(
                settings,
                [
                    (name.into(), value.into()),
                    ("compression.type".into(), "lz4".into())
                ]
            );
        }
    }

    #[test]
    fn lz4_is_only_the_default_compression() {
        for name in [
            "compression.type",
            "compression.codec",
            "topic.compression.type",
        ] {
            assert_eq!(
                producer_settings(&kafka(name, "none")).unwrap(),
                [(name.into(), "none".into())]
            );
        }
    }
}

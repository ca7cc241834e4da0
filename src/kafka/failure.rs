//! Which error code is whose fault. What isn't known is passing: waiting loses nothing.

use anyhow::anyhow;
use rdkafka::{
    error::KafkaError,
    types::{RDKafkaConfRes, RDKafkaErrorCode as Code},
};

/// What to do about a record that was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The cluster's or the connection's trouble: wait and send again.
    Passing,
    /// The topic doesn't exist or may not be written: its rows wait.
    Setup,
    /// The record itself, or a neighbour in its batch, can never be delivered.
    Event,
}

impl Class {
    /// The class's name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Class::Passing => "passing",
            Class::Setup => "setup",
            Class::Event => "event",
        }
    }
}

/// <https://kafka.apache.org/protocol#protocol_error_codes>; negative ones are librdkafka's own.
pub fn class(code: Code) -> Class {
    match code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::TopicAuthorizationFailed => {
            Class::Setup
        }
        // Of a topic that is known, a partition that its column names and that it lacks.
        Code::UnknownPartition
        | Code::MessageSizeTooLarge
        | Code::InvalidMessageSize
        | Code::MessageBatchTooLarge
        | Code::InvalidTimestamp
        | Code::InvalidRecord
        | Code::InvalidTopic
        | Code::BadMessage
        | Code::UnsupportedForMessageFormat
        | Code::PolicyViolation => Class::Event,
        _ => Class::Passing,
    }
}

/// The code as Kafka's documentation writes it: `MESSAGE_TOO_LARGE` for broker codes, a leading
/// underscore for the client library's own.
pub fn code_name(code: Code) -> String {
    let mut name = String::new();
    if (code as i32) < 0 {
        name.push('_');
    }
    for (index, letter) in format!("{code:?}").char_indices() {
        if letter.is_ascii_uppercase() && index > 0 {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// What the client library refuses itself, before anything is sent.
pub fn over_client_limit(value: usize, limit: usize) -> String {
    format!(
        "its value of {value} bytes is larger than kafka.properties \"message.max.bytes\" of {limit} allows"
    )
}

/// Why there is no producer. librdkafka's own text repeats the value of a property, which may be a
/// secret under a misspelt name.
pub fn no_producer(error: KafkaError) -> anyhow::Error {
    match error {
        KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, _, name, _) => {
            anyhow!("{name}: librdkafka has no such property")
        }
        KafkaError::ClientConfig(_, _, name, _) => {
            anyhow!("{name}: librdkafka doesn't take this value")
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_codes_wait() {
        assert_eq!(class(Code::MessageSizeTooLarge), Class::Event);
        assert_eq!(class(Code::TopicAuthorizationFailed), Class::Setup);
        for code in [
            Code::ClusterAuthorizationFailed,
            Code::Authentication,
            Code::PurgeQueue,
            Code::PurgeInflight,
            Code::MessageTimedOut,
            Code::NotEnoughReplicas,
            Code::GaplessGuarantee,
            Code::Unknown,
        ] {
            assert_eq!(class(code), Class::Passing, "{code:?}");
        }
    }

    #[test]
    fn codes_have_readable_names() {
        assert_eq!(
            code_name(Code::MessageSizeTooLarge),
            "MESSAGE_SIZE_TOO_LARGE"
        );
        assert_eq!(code_name(Code::PurgeQueue), "_PURGE_QUEUE");
    }

    #[test]
    fn a_refused_property_is_named_without_its_value() {
        let refused = |name: &str, value: &str| {
            let made = rdkafka::ClientConfig::new()
                .set(name, value)
                .create_native_config();
            no_producer(made.err().expect("refused")).to_string()
        };
        assert_eq!(
            refused("sasl.passwrd", "hunter2"),
            "sasl.passwrd: librdkafka has no such property"
        );
        assert_eq!(
            refused("compression.type", "hunter2"),
            "compression.type: librdkafka doesn't take this value"
        );
    }
}

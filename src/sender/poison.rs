//! Why a record was not enqueued, and the row that can never be delivered: told with all that an
//! operator needs to find it.

use std::fmt;

use rdkafka::types::RDKafkaErrorCode as Code;

use crate::{
    dead_letters::store::Fault,
    kafka::{
        failure::{Class, class, code_name, over_client_limit},
        topics::{Topic, TopicState},
    },
    ledger::{Row, Seq},
    lsn::Position,
    outbox::{
        record::Record,
        row::{Origin, Unmappable},
    },
};

/// A row that can never be delivered: all that an operator needs to find it.
#[derive(Clone, Debug)]
pub struct Poison {
    pub seq: Seq,
    pub origin: Origin,
    pub position: Position,
    pub event_id: String,
    pub topic: Option<String>,
    pub code: String,
    pub text: String,
}

impl fmt::Display for Poison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {}", self.event_id)?;
        match self.origin {
            Origin::Stream | Origin::Letter => write!(f, " at {}", self.position)?,
            Origin::TableLetter | Origin::Table(_) => write!(f, " of the table")?,
        }
        self.topic
            .iter()
            .try_for_each(|topic| write!(f, " for topic {topic}"))?;
        write!(f, " cannot be delivered: {} ({})", self.text, self.code)
    }
}

/// Why a record was not enqueued.
pub(super) enum Refusal {
    Full,
    Fatal,
    Closed(TopicState),
    /// The row's key is held.
    Held,
    /// A letter that belongs behind one that failed since.
    Behind,
    /// Like records that failed of late: to be tried alone first.
    Suspicious,
    Fault(Box<Fault>),
}

pub(super) fn unmappable(fault: &Unmappable) -> Refusal {
    Refusal::Fault(Box::new(event_fault(fault.code, fault.text.clone())))
}

pub(super) fn event_fault(code: impl Into<String>, text: String) -> Fault {
    let code = code.into();
    Fault {
        class: Class::Event.name(),
        code,
        text,
    }
}

/// Of a topic that is closed.
pub(super) fn setup_fault(topic: &Topic) -> Fault {
    let code = match topic.state {
        TopicState::Denied => Code::TopicAuthorizationFailed,
        _ => Code::UnknownTopicOrPartition,
    };
    Fault {
        class: Class::Setup.name(),
        code: code_name(code),
        text: topic.reason().to_owned(),
    }
}

/// `limit`: the largest message that the producer takes, in bytes.
pub(super) fn refusal(code: Code, record: &Record<'_>, limit: usize) -> Refusal {
    match (code, class(code)) {
        (Code::QueueFull, _) => Refusal::Full,
        (_, Class::Setup) => Refusal::Closed(closed_by(code)),
        (_, Class::Event) => {
            let text = match code {
                Code::MessageSizeTooLarge => {
                    over_client_limit(record.payload.map_or(0, <[u8]>::len), limit)
                }
                code => broker_text(code),
            };
            Refusal::Fault(Box::new(event_fault(code_name(code), text)))
        }
        (_, Class::Passing) => Refusal::Fatal,
    }
}

pub(super) fn is_size(code: Code) -> bool {
    matches!(
        code,
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize
    )
}

pub(super) fn closed_by(code: Code) -> TopicState {
    match code {
        Code::TopicAuthorizationFailed => TopicState::Denied,
        _ => TopicState::Missing,
    }
}

pub(super) fn broker_text(code: Code) -> String {
    match code {
        code if is_size(code) => {
            "too large for the topic's max.message.bytes or the broker's message.max.bytes".into()
        }
        Code::InvalidTimestamp => {
            "the broker refuses its timestamp (message.timestamp.before.max.ms, after.max.ms)"
                .into()
        }
        Code::UnknownPartition => {
            "its topic has no partition of the number that its column gives".into()
        }
        code => format!("the broker refuses it: {code}"),
    }
}

pub(super) fn poison(
    seq: Seq,
    row: &Row,
    topic: Option<String>,
    code: String,
    text: String,
) -> Poison {
    Poison {
        seq,
        origin: row.origin,
        position: row.position,
        event_id: event_id(row),
        topic,
        code,
        text,
    }
}

/// The event's id, as it is told.
pub(super) fn event_id(row: &Row) -> String {
    super::parts::event_id_of(row).unwrap_or_else(|| "without an id".into())
}

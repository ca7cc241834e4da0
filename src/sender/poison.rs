//! Why a record was not enqueued, and the row that can never be delivered: told with all that an
//! operator needs to find it.

use std::fmt;

use rdkafka::types::RDKafkaErrorCode as Code;

use crate::{
    kafka::{
        failure::{Class, class, code_name},
        topics::TopicState,
    },
    ledger::{Row, Seq},
    lsn::Position,
    outbox::{
        record::Record,
        row::{Origin, OutboxRow, Unmappable},
    },
    pg::pgoutput::Tuple,
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
            Origin::Stream => write!(f, " at {}", self.position)?,
            Origin::Table(_) => write!(f, " of the table")?,
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
    Poison(Box<Poison>),
}

pub(super) fn unmappable(seq: Seq, row: &Row, fault: &Unmappable) -> Refusal {
    Refusal::Poison(Box::new(poison(
        seq,
        row,
        None,
        fault.code.into(),
        fault.text.clone(),
    )))
}

pub(super) fn refusal(code: Code, seq: Seq, row: &Row, record: &Record<'_>) -> Refusal {
    match (code, class(code)) {
        (Code::QueueFull, _) => Refusal::Full,
        (_, Class::Setup) => Refusal::Closed(closed_by(code)),
        (_, Class::Event) => {
            let text = match code {
                Code::MessageSizeTooLarge => {
                    let size = record.payload.map_or(0, <[u8]>::len);
                    format!(
                        "its value of {size} bytes is larger than kafka.properties \"message.max.bytes\" allows"
                    )
                }
                code => broker_text(code),
            };
            let topic = Some(record.topic.to_owned());
            Refusal::Poison(Box::new(poison(seq, row, topic, code_name(code), text)))
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

/// The event's id, also of a row that has no record.
fn event_id(row: &Row) -> String {
    let id = OutboxRow::new(&row.shape, Tuple::from_bytes(&row.tuple));
    let id = id.ok().and_then(|mapped| mapped.event_id());
    id.map_or("without an id".into(), |id| {
        String::from_utf8_lossy(id).into_owned()
    })
}

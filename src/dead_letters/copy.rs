//! The copy of a letter for a topic of Kafka: the original record, with headers that tell why it is a
//! letter.

use serde_json::Value;

use super::{
    letter::{Header, Kept, Place},
    store::{Fault, Noted},
};
use crate::outbox::headers::{Headers, trace_id};

/// A record for the topic of copies.
#[derive(Debug, PartialEq, Eq)]
pub struct Copy {
    pub key: Option<Vec<u8>>,
    /// The original's, then those that tell of the letter.
    pub headers: Vec<Header>,
    pub value: Option<Vec<u8>>,
}

/// What is known of a letter.
pub struct Told<'a> {
    pub outbox: &'a str,
    pub event_id: Option<&'a str>,
    /// `None`: an operator sends an event once more.
    pub place: Option<Place>,
    /// Empty where no topic could be made of the row.
    pub topic: &'a str,
    pub partition: Option<i32>,
    pub key: Option<&'a [u8]>,
    /// `None`: no record could be made of the row.
    pub kept: Option<&'a Kept>,
    pub raw: Option<&'a Value>,
    pub fault: &'a Fault,
    pub noted: &'a Noted,
}

impl Copy {
    /// Without a record the value is the row: a JSON object of its columns' texts.
    pub fn of(told: &Told<'_>) -> Copy {
        let mut headers = told.kept.map_or_else(Vec::new, |kept| kept.headers.clone());
        let trace = trace(&headers);
        let (noted, fault) = (told.noted, told.fault);
        let mut tell = |name: &str, text: Option<String>| {
            let text = text.map(String::into_bytes);
            headers.extend(text.map(|text| (format!("dead_letter_{name}"), Some(text))));
        };
        tell("id", Some(noted.id.to_string()));
        tell("event_id", told.event_id.map(str::to_owned));
        tell("outbox", Some(told.outbox.to_owned()));
        tell(
            "topic",
            Some(told.topic.to_owned()).filter(|topic| !topic.is_empty()),
        );
        tell("partition", told.partition.map(|number| number.to_string()));
        tell(
            "position",
            told.place.map(|place| place.position.to_string()),
        );
        tell("class", Some(fault.class.to_owned()));
        tell("code", Some(fault.code.clone()));
        tell("text", Some(fault.text.clone()));
        tell("attempts", Some(noted.attempts.to_string()));
        tell(
            "first_failed_at",
            noted.first_failed_at.map(|at| at.to_string()),
        );
        tell(
            "last_failed_at",
            noted.last_failed_at.map(|at| at.to_string()),
        );
        tell("trace_id", trace);
        Copy {
            key: told.key.map(<[u8]>::to_vec),
            headers,
            value: match told.kept {
                Some(kept) => kept.payload.clone(),
                None => told.raw.map(|raw| raw.to_string().into_bytes()),
            },
        }
    }

    /// What it weighs in memory, in bytes.
    pub fn weight(&self) -> usize {
        let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| name.len() + length(value) + 48);
        length(&self.key) + length(&self.value) + headers.sum::<usize>()
    }
}

fn trace(of: &[Header]) -> Option<String> {
    let mut headers = Headers::default();
    for (name, value) in of {
        headers.push_entry(name, value.as_deref());
    }
    trace_id(&headers).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lsn::{Lsn, Position};

    fn fault() -> Fault {
        Fault {
            class: "event",
            code: "MESSAGE_SIZE_TOO_LARGE".into(),
            text: "too large for the topic's max.message.bytes of 20000".into(),
        }
    }

    fn noted() -> Noted {
        Noted {
            id: 17,
            attempts: 2,
            first_failed_at: Some("2026-01-02T03:04:05.5Z".parse().unwrap()),
            last_failed_at: Some("2026-01-02T04:04:05Z".parse().unwrap()),
        }
    }

    fn text(headers: &[Header]) -> Vec<String> {
        let value = |value: &Option<Vec<u8>>| {
            value
                .as_deref()
                .map_or("-".into(), |v| String::from_utf8_lossy(v).into_owned())
        };
        headers
            .iter()
            .map(|(name, v)| format!("{name}={}", value(v)))
            .collect()
    }

    #[test]
    fn a_copy_is_the_record_with_what_is_known_of_its_letter() {
        let kept = Kept {
            topic: "orders".into(),
            key: Some(b"K".to_vec()),
            headers: vec![
                ("event_id".into(), Some(b"e".to_vec())),
                ("nothing".into(), None),
                (
                    "traceparent".into(),
                    Some(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_vec()),
                ),
            ],
            timestamp: 1,
            partition: None,
            payload: Some(b"{}".to_vec()),
        };
        let position = Position {
            commit: Lsn::new(0x16B_3748),
            ordinal: 3,
        };
        let copy = Copy::of(&Told {
            outbox: "public.outbox",
            event_id: Some("e"),
            place: Some(Place { life: 1, position }),
            topic: "orders",
            partition: Some(4),
            key: kept.key.as_deref(),
            kept: Some(&kept),
            raw: None,
            fault: &fault(),
            noted: &noted(),
        });
        assert_eq!(
            (copy.key.as_deref(), copy.value.as_deref()),
            (Some(&b"K"[..]), Some(&b"{}"[..]))
        );
        assert_eq!(
            text(&copy.headers),
            [
                "event_id=e",
                "nothing=-",
                "traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                "dead_letter_id=17",
                "dead_letter_event_id=e",
                "dead_letter_outbox=public.outbox",
                "dead_letter_topic=orders",
                "dead_letter_partition=4",
                "dead_letter_position=0/16B3748:3",
                "dead_letter_class=event",
                "dead_letter_code=MESSAGE_SIZE_TOO_LARGE",
                "dead_letter_text=too large for the topic's max.message.bytes of 20000",
                "dead_letter_attempts=2",
                "dead_letter_first_failed_at=2026-01-02T03:04:05.5Z",
                "dead_letter_last_failed_at=2026-01-02T04:04:05Z",
                "dead_letter_trace_id=0af7651916cd43dd8448eb211c80319c",
            ]
        );
    }

    #[test]
    fn without_a_record_it_is_the_row_and_what_is_unknown_is_left_out() {
        let raw = json!({"headers": "[1]", "payload": null});
        let copy = Copy::of(&Told {
            outbox: "public.outbox",
            event_id: None,
            place: None,
            topic: "",
            partition: None,
            key: None,
            kept: None,
            raw: Some(&raw),
            fault: &fault(),
            noted: &noted(),
        });
        assert_eq!(copy.key, None);
        assert_eq!(
            copy.value.as_deref(),
            Some(&br#"{"headers":"[1]","payload":null}"#[..])
        );
        let headers = text(&copy.headers).join(" ");
        for absent in ["event_id", "topic", "partition", "position", "trace_id"] {
            assert!(!headers.contains(&format!("_{absent}=")), "{headers}");
        }
    }

    #[test]
    fn the_readme_has_every_header() {
        let readme = include_str!("../../README.md");
        for name in [
            "id",
            "event_id",
            "outbox",
            "topic",
            "partition",
            "position",
            "class",
            "code",
            "text",
            "attempts",
            "first_failed_at",
            "last_failed_at",
            "trace_id",
        ] {
            assert!(readme.contains(&format!("`dead_letter_{name}`")), "{name}");
        }
    }
}

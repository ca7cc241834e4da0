//! A row as a line of JSON: the record that it becomes, or why it becomes none.

use rdkafka::types::RDKafkaErrorCode as Code;

use crate::{
    config::Config,
    kafka::{
        failure::{code_name, over_client_limit},
        settings::DEFAULT_MESSAGE_MAX_BYTES,
    },
    lsn::{PgTime, Position},
    outbox::{
        headers::Headers,
        json::{self, Object},
        moment::own_time,
        record::{Mapper, Record},
        relation::Shape,
        row::{Origin, OutboxRow, Unmappable},
    },
    pg::pgoutput::Tuple,
};

/// What librdkafka adds to a record's own bytes at most.
const OVERHEAD: usize = 36;

pub struct Lines {
    mapper: Mapper,
    /// Larger records are refused by the client itself.
    max_bytes: usize,
}

/// Why a record would not be published.
struct Poison {
    code: String,
    text: String,
}

impl Lines {
    pub fn new(config: &Config) -> Lines {
        let limit = config.kafka.properties.get("message.max.bytes");
        let limit = limit.and_then(|text| text.parse().ok());
        Lines {
            mapper: Mapper::default(),
            max_bytes: limit.unwrap_or(DEFAULT_MESSAGE_MAX_BYTES as usize),
        }
    }

    /// Appends the line, without its end.
    pub fn row(
        &mut self,
        shape: &Shape,
        tuple: Tuple<'_>,
        position: Position,
        committed_at: PgTime,
        to: &mut Vec<u8>,
    ) {
        let row = OutboxRow::new(shape, tuple);
        let mut line = Object::new(to);
        json::text(line.key("position"), &position.to_string());
        json::text(line.key("outbox"), &shape.mapping.table.to_string());
        let event_id = row.as_ref().ok().and_then(OutboxRow::event_id);
        bytes(&mut line, "event_id", event_id);
        let row = match row {
            Ok(row) => row,
            Err(fault) => return broken(line, None, None, committed_at.unix_millis(), &fault),
        };
        let fault = match self
            .mapper
            .record(&row, Origin::Stream, position, committed_at)
        {
            Ok(record) => {
                let poison = too_large(&record, self.max_bytes);
                return whole(line, &record, poison);
            }
            Err(fault) => fault,
        };
        let time = own_time(&row).unwrap_or_else(|| committed_at.unix_millis());
        let topic = self.mapper.topic(&row).ok().map(str::to_owned);
        let key = self.mapper.key(&row).ok().flatten();
        broken(line, topic.as_deref(), key, time, &fault);
    }
}

fn whole(mut line: Object<'_>, record: &Record<'_>, poison: Option<Poison>) {
    json::text(line.key("topic"), record.topic);
    bytes(&mut line, "key", record.key);
    headers(line.key("headers"), record.headers);
    bytes(&mut line, "value", record.payload);
    line.key("timestamp")
        .extend(record.timestamp.to_string().into_bytes());
    match record.partition {
        None => line.key("partition").extend(b"null"),
        Some(partition) => line
            .key("partition")
            .extend(partition.to_string().into_bytes()),
    }
    tell(line, poison);
}

fn broken(
    mut line: Object<'_>,
    topic: Option<&str>,
    key: Option<&[u8]>,
    timestamp: i64,
    fault: &Unmappable,
) {
    match topic {
        Some(topic) => json::text(line.key("topic"), topic),
        None => line.key("topic").extend(b"null"),
    }
    bytes(&mut line, "key", key);
    line.key("headers").extend(b"null");
    line.key("value").extend(b"null");
    line.key("timestamp")
        .extend(timestamp.to_string().into_bytes());
    line.key("partition").extend(b"null");
    let (code, text) = (fault.code.to_owned(), fault.text.clone());
    tell(line, Some(Poison { code, text }));
}

fn tell(mut line: Object<'_>, poison: Option<Poison>) {
    let to = line.key("poison");
    match poison {
        None => to.extend(b"null"),
        Some(Poison { code, text }) => {
            let mut object = Object::new(to);
            json::text(object.key("class"), "event");
            json::text(object.key("code"), &code);
            json::text(object.key("text"), &text);
            object.end();
        }
    }
    line.end();
}

/// Bytes that aren't UTF-8 go under `<name>_base64`.
fn bytes(line: &mut Object<'_>, name: &str, value: Option<&[u8]>) {
    match value.map(|value| (value, std::str::from_utf8(value))) {
        None => line.key(name).extend(b"null"),
        Some((_, Ok(text))) => json::text(line.key(name), text),
        Some((value, Err(_))) => json::base64(line.key(&format!("{name}_base64")), value),
    }
}

fn headers(to: &mut Vec<u8>, headers: &Headers) {
    to.push(b'[');
    for (number, (name, value)) in headers.iter().enumerate() {
        if number > 0 {
            to.push(b',');
        }
        to.push(b'[');
        json::text(to, &String::from_utf8_lossy(name));
        to.push(b',');
        match value.map(|value| (value, std::str::from_utf8(value))) {
            None => to.extend(b"null"),
            Some((_, Ok(text))) => json::text(to, text),
            Some((value, Err(_))) => {
                let mut object = Object::new(to);
                json::base64(object.key("base64"), value);
                object.end();
            }
        }
        to.push(b']');
    }
    to.push(b']');
}

/// As librdkafka counts it before it takes a record.
fn too_large(record: &Record<'_>, max_bytes: usize) -> Option<Poison> {
    let length = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
    let headers = record.headers.iter();
    let headers: usize = headers
        .map(|(name, value)| name.len() + length(value) + 4)
        .sum();
    let size = length(record.key) + length(record.payload) + headers + OVERHEAD;
    (size > max_bytes).then(|| Poison {
        code: code_name(Code::MessageSizeTooLarge),
        text: over_client_limit(length(record.payload), max_bytes),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        lsn::Lsn,
        outbox::{relation::Relations, tests::mapping},
        pg::pgoutput::{Column, Relation},
    };

    fn line(values: &[(&str, u32, Option<&str>)], max_bytes: usize) -> Value {
        let mapping = mapping(
            "table = \"outbox\"\ntopic = \"t.{event_type}\"\ncolumns = { aggregate_type = false, aggregate_version = false, \
             schema_version = false, occurred_at = false }",
        );
        let mut relations = Relations::new(vec![mapping]);
        let column = |(name, type_oid, _): &(&str, u32, Option<&str>)| Column {
            name: (*name).into(),
            type_oid: *type_oid,
        };
        let _ = relations.learn(&Relation {
            id: 1,
            namespace: "public".into(),
            name: "outbox".into(),
            columns: values.iter().map(column).collect(),
        });
        let Some(crate::outbox::relation::Table::Ours(shape)) = relations.table(1) else {
            panic!()
        };
        let mut tuple = (values.len() as u16).to_be_bytes().to_vec();
        for (_, _, value) in values {
            match value {
                None => tuple.push(b'n'),
                Some(text) => {
                    tuple.push(b't');
                    tuple.extend((text.len() as u32).to_be_bytes());
                    tuple.extend(text.as_bytes());
                }
            }
        }
        let position = Position {
            commit: Lsn::new(0x16B_3748),
            ordinal: 3,
        };
        let mut lines = Lines {
            mapper: Mapper::default(),
            max_bytes,
        };
        let mut to = Vec::new();
        lines.row(
            shape,
            Tuple::from_bytes(&tuple),
            position,
            PgTime::new(0),
            &mut to,
        );
        serde_json::from_slice(&to).unwrap()
    }

    fn row<'a>(
        payload: Option<&'a str>,
        headers: Option<&'a str>,
        kind: Option<&'a str>,
    ) -> [(&'a str, u32, Option<&'a str>); 5] {
        [
            ("event_id", 25, Some("e")),
            ("aggregate_id", 25, Some("k")),
            ("event_type", 25, kind),
            ("payload", 17, payload),
            ("headers", 3802, headers),
        ]
    }

    #[test]
    fn a_line_tells_the_record_or_why_there_is_none() {
        let good = row(Some("\\x61"), Some("{\"h\": null}"), Some("x"));
        assert_eq!(
            line(&good, 1000),
            json!({
                "position": "0/16B3748:3", "outbox": "public.outbox", "event_id": "e", "topic": "t.x", "key": "k",
                "headers": [["event_id", "e"], ["event_type", "x"], ["wal_position", "0/16B3748:3"], ["h", null]],
                "value": "a", "timestamp": 946_684_800_000i64, "partition": null, "poison": null,
            })
        );
        let bytes = line(&row(Some("\\xff00"), None, Some("x")), 1000);
        assert_eq!(
            (&bytes["value_base64"], bytes.get("value")),
            (&json!("/wA="), None)
        );
        let null = line(&row(None, None, Some("x")), 1000);
        assert_eq!(null["value"], Value::Null);

        let large = line(&good, 90);
        assert_eq!(large["poison"]["code"], "MESSAGE_SIZE_TOO_LARGE");
        assert_eq!(large["value"], "a");
        let bad = line(&row(None, Some("[]"), Some("x")), 1000);
        let expected = json!({"class": "event", "code": "headers_not_an_object", "text": "headers is not a JSON object"});
        assert_eq!(bad["poison"], expected);
        assert_eq!(
            (&bad["topic"], &bad["key"], &bad["headers"]),
            (&json!("t.x"), &json!("k"), &Value::Null)
        );
        let nowhere = line(&row(None, None, None), 1000);
        assert_eq!(
            (&nowhere["topic"], &nowhere["poison"]["code"]),
            (&Value::Null, &json!("topic_null"))
        );
    }
}

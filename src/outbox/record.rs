//! OutboxRow → Record: topic, key, headers, timestamp, partition, value. The mapper's buffers are
//! used again for every row, so nothing is allocated once they have grown.

use jiff::Timestamp;

use super::{
    cloudevents::CloudEvents,
    envelope,
    headers::Headers,
    mapping::{WAL_POSITION, WALPOST_REPLAY},
    moment::{Moments, millis},
    payload::{bytes, payload},
    prune::Pruner,
    relation::{Role, Slot},
    row::{Origin, OutboxRow, Reread, Unmappable},
    template::{TOPIC_NAMES, is_valid_topic},
    tracing_context,
};
use crate::{
    config::{Format, outbox::Placement},
    dead_letters::letter::{DEAD_LETTER, Kept, put_headers},
    lsn::{PgTime, Position},
};

/// What goes to Kafka. `None` is a null key or a null value, not an empty one.
pub struct Record<'a> {
    pub topic: &'a str,
    pub key: Option<&'a [u8]>,
    pub headers: &'a Headers,
    /// Milliseconds since 1970; never 0, which the client library takes for "now".
    pub timestamp: i64,
    /// `None`: the partition that the key gives.
    pub partition: Option<i32>,
    pub payload: Option<&'a [u8]>,
}

/// Makes records out of rows.
#[derive(Default)]
pub struct Mapper {
    topic: String,
    /// What the topic is made of, where an expression makes it.
    routed: String,
    headers: Headers,
    moments: Moments,
    key: Vec<u8>,
    payload: Vec<u8>,
    value: Vec<u8>,
    pruner: Pruner,
    cloudevents: CloudEvents,
    dropped_headers: u64,
}

impl Mapper {
    /// The record of a row; one of the stream stands at `position`, one of the table has none.
    pub fn record<'a>(
        &'a mut self,
        row: &OutboxRow<'a>,
        origin: Origin,
        position: Position,
        committed_at: PgTime,
    ) -> Result<Record<'a>, Unmappable> {
        let (shape, mapping) = (row.shape, &row.shape.mapping);
        if let Some(fault) = &shape.fault {
            return Err(fault.clone());
        }
        self.render_topic(row)?;
        self.make_headers(row, origin, position)?;
        let partition = partition(row)?;
        let moments = &mut self.moments;
        let occurred_at = moments.of(row, shape.role(Role::OccurredAt), "role occurred_at")?;
        let timestamp = match mapping.timestamp {
            Some(_) => millis(
                moments.of(row, shape.timestamp, "timestamp_column")?,
                committed_at,
            ),
            None => millis(occurred_at, committed_at),
        };
        let key = key(row, &mut self.key)?;
        let payload = payload(row, &mut self.payload, &mut self.pruner)?;
        let headers = &mut self.headers;
        let happened_at = || {
            let recorded = Timestamp::from_millisecond(timestamp).unwrap_or(Timestamp::UNIX_EPOCH);
            occurred_at.unwrap_or(recorded)
        };
        self.value.clear();
        let payload = match (mapping.format, payload) {
            (Format::Raw, payload) => payload.map(|payload| payload.bytes),
            (Format::Envelope, None) => None,
            (Format::Envelope, Some(payload)) => {
                envelope::write(row, &payload, headers, happened_at(), &mut self.value)?;
                Some(&self.value[..])
            }
            (Format::CloudeventsStructured, Some(payload)) => {
                let (event, value) = (&mut self.cloudevents, &mut self.value);
                event.structured(row, &payload, happened_at(), headers, value)?;
                Some(&self.value[..])
            }
            // A structured event without data would be no tombstone.
            (Format::Cloudevents | Format::CloudeventsStructured, payload) => {
                let content = payload.as_ref().map(|payload| payload.content);
                self.cloudevents
                    .binary(row, content, happened_at(), headers)?;
                payload.map(|payload| payload.bytes)
            }
        };
        Ok(Record {
            topic: &self.topic,
            key,
            headers: &self.headers,
            timestamp,
            partition,
            payload,
        })
    }

    /// The record that a letter keeps, with the reason why it goes out once more.
    pub fn kept<'a>(&'a mut self, kept: &'a Kept, resend: bool) -> Record<'a> {
        let reason = if resend {
            Reread::Resend.name()
        } else {
            DEAD_LETTER
        };
        self.headers.clear();
        put_headers(&kept.headers, reason, !resend, &mut self.headers);
        Record {
            topic: &kept.topic,
            key: kept.key.as_deref(),
            headers: &self.headers,
            timestamp: kept.timestamp,
            partition: kept.partition,
            payload: kept.payload.as_deref(),
        }
    }

    /// The row's key, also of one that no record can be made of.
    pub fn key<'a>(&'a mut self, row: &OutboxRow<'a>) -> Result<Option<&'a [u8]>, Unmappable> {
        key(row, &mut self.key)
    }

    /// The name of the row's topic. Also of a row that no record can be made of, if it has the topic's
    /// columns.
    pub fn topic(&mut self, row: &OutboxRow<'_>) -> Result<&str, Unmappable> {
        self.render_topic(row)?;
        Ok(&self.topic)
    }

    /// Those of roles, of walpost's own knowledge, of additional columns, and the JSON column's.
    fn make_headers(
        &mut self,
        row: &OutboxRow<'_>,
        origin: Origin,
        position: Position,
    ) -> Result<(), Unmappable> {
        let (shape, mapping) = (row.shape, &row.shape.mapping);
        let headers = &mut self.headers;
        let nulls = mapping.sends_null_headers();
        headers.clear();
        for (role, name) in mapping.headers() {
            let value = row.role(*role)?;
            if value.is_some() || (nulls && shape.role(*role).is_some()) {
                headers.push_entry(name, value);
            }
        }
        if mapping.tells_position() && matches!(origin, Origin::Stream | Origin::Letter) {
            headers.push_with(
                |to| to.extend_from_slice(WAL_POSITION.as_bytes()),
                |to| position.append_to(to),
            );
        }
        match origin {
            Origin::Stream => {}
            Origin::Letter | Origin::TableLetter => {
                headers.push(WALPOST_REPLAY, DEAD_LETTER.as_bytes())
            }
            Origin::Table(reread) => headers.push(WALPOST_REPLAY, reread.name().as_bytes()),
        }
        for (one, field) in mapping.additional.iter().zip(&shape.additional) {
            if one.placement == Placement::Header && field.is_some() {
                let value = row.field(*field)?;
                if value.is_some() || nulls {
                    headers.push_entry(one.name(), value);
                }
            }
        }
        if let Some(context) = row.field(shape.tracing)? {
            let context = std::str::from_utf8(context).map_err(|_| {
                Unmappable::new("tracing_context", "the tracing column's text is not UTF-8")
            })?;
            let is_built_in = |name: &[u8]| mapping.is_built_in(name);
            self.dropped_headers += tracing_context::spread(context, headers, is_built_in);
        }
        if let Some(json) = row.role(Role::Headers)? {
            self.dropped_headers += headers.spread(json, |name| mapping.is_built_in(name))?;
        }
        Ok(())
    }

    fn render_topic(&mut self, row: &OutboxRow<'_>) -> Result<(), Unmappable> {
        self.topic.clear();
        if let Some(fault) = &row.shape.fault
            && row.shape.topic.len() < row.shape.mapping.route.template.parts().len()
        {
            return Err(fault.clone());
        }
        let rewrite = row.shape.mapping.route.rewrite.as_ref();
        let to = match rewrite {
            None => &mut self.topic,
            Some(_) => {
                self.routed.clear();
                &mut self.routed
            }
        };
        for part in &row.shape.topic {
            match part {
                Slot::Literal(text) => to.push_str(text),
                Slot::Column { field, name } => {
                    let text = row.column(field.index)?.ok_or_else(|| {
                        let text = format!("column {name} is NULL and part of the topic's name");
                        Unmappable::new("topic_null", text)
                    })?;
                    let text = std::str::from_utf8(text).map_err(|_| {
                        let text =
                            format!("column {name} is not UTF-8 and part of the topic's name");
                        Unmappable::new("topic_invalid", text)
                    })?;
                    to.push_str(text);
                }
            }
        }
        if let Some(rewrite) = rewrite {
            rewrite.append(&self.routed, &mut self.topic);
        }
        if is_valid_topic(&self.topic) {
            return Ok(());
        }
        let text = format!("{:?} is no name for a topic: {TOPIC_NAMES}", self.topic);
        Err(Unmappable::new("topic_invalid", text))
    }

    /// Entries of the JSON column that were dropped for their built-in name, since the last call.
    pub fn take_dropped_headers(&mut self) -> u64 {
        std::mem::take(&mut self.dropped_headers)
    }
}

fn key<'a>(row: &OutboxRow<'a>, buffer: &'a mut Vec<u8>) -> Result<Option<&'a [u8]>, Unmappable> {
    let Some(field) = row.shape.key else {
        return Ok(None);
    };
    match row.column(field.index)? {
        Some(text) if bytes(text, field, "key", buffer)? => Ok(Some(buffer)),
        text => Ok(text),
    }
}

/// The number that a column gives; whether the topic has such a partition, the producer says.
fn partition(row: &OutboxRow<'_>) -> Result<Option<i32>, Unmappable> {
    let mapping = &row.shape.mapping;
    let mut columns = mapping.additional.iter().zip(&row.shape.additional);
    let Some((one, field)) = columns.find(|(one, _)| one.placement == Placement::Partition) else {
        return Ok(None);
    };
    let Some(text) = row.field(*field)? else {
        return Ok(None);
    };
    let text = std::str::from_utf8(text).unwrap_or_default();
    match text.parse() {
        Ok(number @ 0..) => Ok(Some(number)),
        Ok(_) | Err(_) => {
            let text = format!(
                "column {} is to give the partition, and its value is no number from 0 to {}",
                one.column,
                i32::MAX
            );
            Err(Unmappable::new("partition_invalid", text))
        }
    }
}

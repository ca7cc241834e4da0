//! CloudEvents 1.0: the attributes of an event, as headers (binary mode) or with its data in one JSON
//! object (structured mode).
//! <https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md>

use std::fmt::Write as _;

use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use super::{
    headers::Headers,
    json::{self, Object},
    payload::{Content, Payload},
    relation::{Role, Slot},
    row::{OutboxRow, Unmappable},
    types::Form,
};
use crate::config::outbox::Placement;

/// All but the unreserved characters of a URI.
pub const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

const CONTENT_TYPE: &str = "content-type";
const STRUCTURED: &str = "application/cloudevents+json; charset=UTF-8";

/// What the data is, as a media type.
fn media_type(content: Content) -> &'static str {
    match content {
        Content::Json => "application/json",
        Content::Text => "text/plain; charset=UTF-8",
        Content::Bytes => "application/octet-stream",
    }
}

/// Buffers that are used again for every event.
#[derive(Default)]
pub struct CloudEvents {
    attributes: Headers,
    text: String,
}

impl CloudEvents {
    /// Adds the attributes to the record's headers; the value is the data itself. Without data the
    /// record is a tombstone, which only this mode has.
    pub fn binary(
        &mut self,
        row: &OutboxRow<'_>,
        content: Option<Content>,
        happened_at: Timestamp,
        headers: &mut Headers,
    ) -> Result<(), Unmappable> {
        self.collect(row, happened_at, headers)?;
        for (name, value) in self.attributes.iter() {
            let value = value.unwrap_or_default();
            // The binding wants UTF-8 of each header.
            json::utf8(value, std::str::from_utf8(name).unwrap_or_default())?;
            headers.push_with(
                |to| {
                    to.extend(b"ce_");
                    to.extend(name);
                },
                |to| to.extend(value),
            );
        }
        if let Some(content) = content {
            headers.push(CONTENT_TYPE, media_type(content).as_bytes());
        }
        Ok(())
    }

    /// Appends the event as one JSON object and adds the header that says so.
    pub fn structured(
        &mut self,
        row: &OutboxRow<'_>,
        payload: &Payload<'_>,
        happened_at: Timestamp,
        headers: &mut Headers,
        to: &mut Vec<u8>,
    ) -> Result<(), Unmappable> {
        self.collect(row, happened_at, headers)?;
        let mut event = Object::new(to);
        for (name, value) in self.attributes.iter() {
            let name = std::str::from_utf8(name).unwrap_or_default();
            json::string(event.key(name), value.unwrap_or_default(), name)?;
        }
        json::text(event.key("datacontenttype"), media_type(payload.content));
        match payload.content {
            Content::Json => {
                let text = json::utf8(payload.bytes, "payload")?;
                event.key("data").extend(text.as_bytes());
            }
            Content::Text => json::string(event.key("data"), payload.bytes, "payload")?,
            Content::Bytes => json::base64(event.key("data_base64"), payload.bytes),
        }
        event.end();
        headers.push(CONTENT_TYPE, STRUCTURED.as_bytes());
        Ok(())
    }

    /// Every attribute but the data's type.
    fn collect(
        &mut self,
        row: &OutboxRow<'_>,
        happened_at: Timestamp,
        headers: &Headers,
    ) -> Result<(), Unmappable> {
        let (shape, mapping) = (row.shape, &row.shape.mapping);
        let attributes = &mut self.attributes;
        attributes.clear();
        attributes.push("specversion", b"1.0");
        attributes.push("id", needed(row, Role::EventId)?);
        self.text.clear();
        source(row, &mut self.text)?;
        attributes.push("source", self.text.as_bytes());
        attributes.push("type", needed(row, Role::EventType)?);
        if let Some(subject) = row.role(Role::AggregateId)?.filter(|s| !s.is_empty()) {
            attributes.push("subject", subject);
        }
        self.text.clear();
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{happened_at}");
        attributes.push("time", self.text.as_bytes());
        for name in ["traceparent", "tracestate"] {
            if let Some(value) = headers.get(name) {
                attributes.push(name, value);
            }
        }
        for (one, field) in mapping.additional.iter().zip(&shape.additional) {
            if let Some(field) = field
                && one.placement == Placement::Envelope
                && let Some(value) = row.column(field.index)?
            {
                let value = match field.form {
                    Form::Boolean => json::boolean(value).as_bytes(),
                    _ => value,
                };
                attributes.push(one.name(), value);
            }
        }
        Ok(())
    }
}

/// The text of a role that an event cannot be without.
fn needed<'a>(row: &OutboxRow<'a>, role: Role) -> Result<&'a [u8], Unmappable> {
    let value = row.role(role)?.filter(|value| !value.is_empty());
    value.ok_or_else(|| {
        let column = row.shape.mapping.column(role).unwrap_or(role.name());
        let text = format!("column {column} is NULL or empty, and a CloudEvent needs it");
        Unmappable::new("cloudevent_incomplete", text)
    })
}

/// A column's text in it is made fit for a URI.
fn source(row: &OutboxRow<'_>, to: &mut String) -> Result<(), Unmappable> {
    for part in &row.shape.source {
        match part {
            Slot::Literal(text) => to.push_str(text),
            Slot::Column { field, name } => {
                let text = row.column(field.index)?.ok_or_else(|| {
                    let text = format!("column {name} is NULL and part of the CloudEvent's source");
                    Unmappable::new("cloudevent_incomplete", text)
                })?;
                to.extend(percent_encode(text, RESERVED));
            }
        }
    }
    match to.is_empty() {
        true => Err(Unmappable::new(
            "cloudevent_incomplete",
            "the CloudEvent's source is empty",
        )),
        false => Ok(()),
    }
}

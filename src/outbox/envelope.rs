//! Format `envelope`: a JSON object of the event's columns and its payload.

use jiff::Timestamp;

use super::{
    headers::{Headers, trace_id},
    json::{self, Object},
    mapping::{PAYLOAD_BASE64, TRACE_ID},
    payload::{Content, Payload},
    relation::Role,
    row::{OutboxRow, Unmappable},
};
use crate::config::outbox::Placement;

/// Appends the envelope. `headers` are the record's, which have the trace's context.
pub fn write(
    row: &OutboxRow<'_>,
    payload: &Payload<'_>,
    headers: &Headers,
    happened_at: Timestamp,
    to: &mut Vec<u8>,
) -> Result<(), Unmappable> {
    let (shape, mapping) = (row.shape, &row.shape.mapping);
    let mut envelope = Object::new(to);
    for role in [
        Role::EventId,
        Role::EventType,
        Role::AggregateType,
        Role::AggregateId,
        Role::AggregateVersion,
        Role::SchemaVersion,
    ] {
        let Some(field) = shape.role(role) else {
            continue;
        };
        let (value, to) = (row.role(role)?, envelope.key(role.name()));
        match (role, value) {
            (Role::AggregateVersion | Role::SchemaVersion, value) => {
                json::value(to, value, field.form, role.name())?;
            }
            // Names and ids are texts, also those that are numbers in the table.
            (_, Some(value)) => json::string(to, value, role.name())?,
            (_, None) => to.extend(b"null"),
        }
    }
    if shape.role(Role::OccurredAt).is_some() {
        json::text(
            envelope.key(Role::OccurredAt.name()),
            &happened_at.to_string(),
        );
    }
    if shape.role(Role::Headers).is_some() || shape.tracing.is_some() {
        let to = envelope.key(TRACE_ID);
        match trace_id(headers) {
            Some(id) => json::text(to, id),
            None => to.extend(b"null"),
        }
    }
    for (one, field) in mapping.additional.iter().zip(&shape.additional) {
        if let Some(field) = field
            && one.placement == Placement::Envelope
        {
            let value = row.column(field.index)?;
            json::value(envelope.key(one.name()), value, field.form, &one.column)?;
        }
    }
    match payload.content {
        Content::Json => {
            let text = json::utf8(payload.bytes, "payload")?;
            envelope.key("payload").extend(text.as_bytes());
        }
        Content::Text => json::string(envelope.key("payload"), payload.bytes, "payload")?,
        Content::Bytes => json::base64(envelope.key(PAYLOAD_BASE64), payload.bytes),
    }
    envelope.end();
    Ok(())
}

//! A row's payload: its bytes, and what they are.

use super::{
    prune::Pruner,
    relation::{Field, Role},
    row::{OutboxRow, Unmappable},
    types::Form,
};

/// What the bytes of a payload are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Json,
    Text,
    Bytes,
}

pub struct Payload<'a> {
    pub bytes: &'a [u8],
    pub content: Content,
}

/// The row's payload; `None` is a tombstone. `buffer` takes what has to be written anew.
pub fn payload<'a>(
    row: &OutboxRow<'a>,
    buffer: &'a mut Vec<u8>,
    pruner: &mut Pruner,
) -> Result<Option<Payload<'a>>, Unmappable> {
    let mapping = &row.shape.mapping;
    let Some(field) = row.shape.role(Role::Payload) else {
        return Ok(None);
    };
    let Some(text) = row.column(field.index)? else {
        return Ok(None);
    };
    let (is_decoded, content) = match field.form {
        Form::Bytea | Form::Gone => match bytes(text, field, "payload", buffer)? {
            true => (true, Content::Bytes),
            false => (false, Content::Text),
        },
        Form::Json => (false, Content::Json),
        _ if mapping.expand_json && is_json(text) => (false, Content::Json),
        _ => (false, Content::Text),
    };
    let is_blank = |bytes: &[u8]| bytes.iter().all(|b| *b <= b' ');
    if mapping.tombstone_on_empty && is_blank(if is_decoded { buffer } else { text }) {
        return Ok(None);
    }
    let is_pruned = content == Content::Json && (mapping.drop_nulls || mapping.drop_empty_arrays);
    if is_pruned {
        buffer.clear();
        pruner.prune(text, mapping.drop_nulls, mapping.drop_empty_arrays, buffer);
    }
    let bytes = match is_decoded || is_pruned {
        true => &buffer[..],
        false => text,
    };
    Ok(Some(Payload { bytes, content }))
}

/// An object or an array. Other texts that JSON knows, such as `1`, stay texts, as the router has it.
fn is_json(text: &[u8]) -> bool {
    matches!(text.first(), Some(b'{' | b'['))
        && serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

/// What the text of a bytea stands for, in `buffer`; `false`: the text is itself.
pub fn bytes(
    text: &[u8],
    field: Field,
    what: &str,
    buffer: &mut Vec<u8>,
) -> Result<bool, Unmappable> {
    match field.form {
        Form::Bytea => {
            decode_bytea(text, buffer).ok_or_else(|| {
                let text = format!("the {what}'s bytea is not in hexadecimal form");
                Unmappable::new("bytea_form", text)
            })?;
            Ok(true)
        }
        // A text that looks like that by accident is less likely than a domain over bytea.
        Form::Gone => Ok(decode_bytea(text, buffer).is_some()),
        _ => Ok(false),
    }
}

/// `\x` and two digits a byte, as `bytea_output = hex` writes it.
pub fn decode_bytea(text: &[u8], to: &mut Vec<u8>) -> Option<()> {
    let digit = |c: u8| (c as char).to_digit(16).map(|d| d as u8);
    let digits = text
        .strip_prefix(b"\\x")
        .filter(|digits| digits.len() % 2 == 0)?;
    to.clear();
    to.reserve(digits.len() / 2);
    for pair in digits.chunks_exact(2) {
        to.push(digit(pair[0])? << 4 | digit(pair[1])?);
    }
    Some(())
}

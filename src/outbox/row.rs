//! A row of the outbox table: its tuple, by the shape that it was written in. Nothing is parsed
//! that isn't mapped.

use super::relation::{Role, Shape};
use crate::pg::pgoutput::{Tuple, Value};

/// A row that no record can be made from, or that no topic will take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Unmappable {
    /// A stable name for metrics and filters.
    pub code: &'static str,
    pub text: String,
}

impl Unmappable {
    pub fn new(code: &'static str, text: impl Into<String>) -> Self {
        Unmappable {
            code,
            text: text.into(),
        }
    }
}

/// Where a row was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the log: its record tells its position.
    Stream,
    /// From its dead letter: its record tells its position, and that it comes from there.
    Letter,
    /// From the table itself: its record tells why.
    Table(Reread),
}

/// Why a row was read from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reread {
    /// It was there before the slot.
    Backfill,
    /// Its place in the log is lost.
    Recover,
    /// An operator wants the rows of some time once more.
    Replay,
    /// An operator wants the event once more.
    Resend,
}

impl Reread {
    /// The value of header `walpost_replay`.
    pub fn name(self) -> &'static str {
        match self {
            Reread::Backfill => "backfill",
            Reread::Recover => "recover",
            Reread::Replay => "replay",
            Reread::Resend => "resend",
        }
    }
}

/// The text of the mapped columns; `None` is NULL.
pub struct OutboxRow<'a> {
    pub shape: &'a Shape,
    tuple: Tuple<'a>,
    roles: [Option<&'a [u8]>; Role::ALL.len()],
}

impl<'a> OutboxRow<'a> {
    pub fn new(shape: &'a Shape, tuple: Tuple<'a>) -> Result<Self, Unmappable> {
        let mut roles = [None; Role::ALL.len()];
        let mut count = 0;
        for (value, role) in tuple.values().zip(&shape.roles) {
            if let Some(role) = role {
                roles[*role as usize] = text(value)?;
            }
            count += 1;
        }
        if count < shape.roles.len() {
            let text = format!(
                "the row has {count} of its table's {} columns",
                shape.roles.len()
            );
            return Err(Unmappable::new("row_shape", text));
        }
        Ok(OutboxRow {
            shape,
            tuple,
            roles,
        })
    }

    pub fn role(&self, role: Role) -> Option<&'a [u8]> {
        self.roles[role as usize]
    }

    /// Any column, by its place in the tuple.
    pub fn column(&self, index: usize) -> Result<Option<&'a [u8]>, Unmappable> {
        match self.shape.roles.get(index) {
            Some(Some(role)) => Ok(self.role(*role)),
            _ => self.tuple.values().nth(index).map_or(Ok(None), text),
        }
    }
}

fn text(value: Value<'_>) -> Result<Option<&[u8]>, Unmappable> {
    match value {
        Value::Null => Ok(None),
        Value::Text(text) => Ok(Some(text)),
        // Neither is part of an Insert in text mode; a marker is never sent as data.
        Value::Unchanged => Err(Unmappable::new(
            "row_shape",
            "a value was left out of the stream",
        )),
        Value::Binary(_) => Err(Unmappable::new("row_shape", "a value came in binary form")),
    }
}

//! A row of the outbox table: its tuple, by the shape that it was written in. Nothing is parsed
//! that isn't mapped.

use super::relation::{Field, Role, Shape};
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
    /// From the dead letter of a row that was read from the table, which has no position: its record
    /// tells only that it comes from there.
    TableLetter,
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

/// The first columns of a row are found once; those of a wider table are looked for when asked for.
const NEAR: usize = 24;

/// A row's columns: each one's text, or `None` for NULL.
pub struct OutboxRow<'a> {
    pub shape: &'a Shape,
    tuple: Tuple<'a>,
    near: [Value<'a>; NEAR],
}

impl<'a> OutboxRow<'a> {
    pub fn new(shape: &'a Shape, tuple: Tuple<'a>) -> Result<Self, Unmappable> {
        let mut near = [Value::Null; NEAR];
        for (value, place) in tuple.values().zip(&mut near) {
            *place = value;
        }
        let (count, expected) = (tuple.count(), shape.columns.len());
        if count < expected {
            let text = format!("the row has {count} of its table's {expected} columns");
            return Err(Unmappable::new("row_shape", text));
        }
        Ok(OutboxRow { shape, tuple, near })
    }

    /// The column with this role; `None` too where no column has it.
    pub fn role(&self, role: Role) -> Result<Option<&'a [u8]>, Unmappable> {
        self.field(self.shape.role(role))
    }

    pub fn field(&self, field: Option<Field>) -> Result<Option<&'a [u8]>, Unmappable> {
        field.map_or(Ok(None), |field| self.column(field.index))
    }

    /// Any column, by its place in the tuple.
    pub fn column(&self, index: usize) -> Result<Option<&'a [u8]>, Unmappable> {
        match self.near.get(index) {
            Some(value) => text(*value),
            None => self.tuple.values().nth(index).map_or(Ok(None), text),
        }
    }

    /// What identifies the event; `None` where nothing does.
    pub fn event_id(&self) -> Option<&'a [u8]> {
        self.role(Role::EventId).ok().flatten()
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

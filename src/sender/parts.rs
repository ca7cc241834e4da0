//! What a row is kept with as a letter: the record that it became, or its columns.

use serde_json::Value;

use super::{Enqueue, Sender, map};
use crate::{
    dead_letters::letter::{Kept, raw_of},
    ledger::{Content, Row},
    outbox::row::{OutboxRow, Unmappable},
    pg::pgoutput::Tuple,
};

/// What a row is kept with: a record, or the raw row where none could be made of it.
pub struct Parts {
    pub topic: String,
    pub key: Option<Vec<u8>>,
    pub kept: Option<Kept>,
    pub raw: Option<Value>,
    pub(super) unmappable: Option<Unmappable>,
}

impl<P: Enqueue> Sender<P> {
    pub(super) fn parts(&mut self, row: &Row) -> Parts {
        let unmappable = match map(&mut self.mapper, row) {
            Ok(record) => {
                let kept = Kept::of(&record);
                return Parts {
                    topic: kept.topic.clone(),
                    key: kept.key.clone(),
                    kept: Some(kept),
                    raw: None,
                    unmappable: None,
                };
            }
            Err(unmappable) => unmappable,
        };
        let mut parts = Parts {
            topic: String::new(),
            key: None,
            kept: None,
            raw: None,
            unmappable: Some(unmappable),
        };
        if let Content::Tuple { shape, tuple } = &row.content {
            let tuple = Tuple::from_bytes(tuple);
            parts.raw = Some(raw_of(shape, tuple));
            if let Ok(row) = OutboxRow::new(shape, tuple) {
                parts.topic = self.mapper.topic(&row).unwrap_or_default().to_owned();
                parts.key = self.mapper.key(&row).ok().flatten().map(<[u8]>::to_vec);
            }
        }
        parts
    }

    /// What a letter that was sent holds.
    pub fn parts_of_letter(&mut self, row: &Row) -> Parts {
        match &row.content {
            // As it was kept, without what tells of its replay.
            Content::Kept(kept) => Parts {
                topic: kept.topic.clone(),
                key: kept.key.clone(),
                kept: Some(Kept::clone(kept)),
                raw: None,
                unmappable: None,
            },
            Content::Tuple { .. } => self.parts(row),
        }
    }
}

pub(super) fn outbox_name(row: &Row) -> String {
    match (&row.letter, &row.content) {
        (Some(letter), _) => letter.outbox.to_string(),
        (None, Content::Tuple { shape, .. }) => shape.mapping.table.to_string(),
        (None, Content::Kept(_)) => String::new(),
    }
}

/// The event's id, also of a row that has no record.
pub(super) fn event_id_of(row: &Row) -> Option<String> {
    if let Some(letter) = &row.letter {
        return letter.event_id.clone();
    }
    let Content::Tuple { shape, tuple } = &row.content else {
        return None;
    };
    let row = OutboxRow::new(shape, Tuple::from_bytes(tuple)).ok()?;
    let id = row.event_id()?;
    Some(String::from_utf8_lossy(id).into_owned())
}

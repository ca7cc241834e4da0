//! Which events a topic has, and behind which of them an older one of the key came: a publisher that
//! ends while it repeats 1,2,3,4 leaves 1,2,3,4,1,2. Who reads the topic then takes 2 for the news.

use std::collections::HashMap;

use super::event_ids::{Digest, EventIds};
use crate::lsn::Position;

/// Of one topic, in the topic's order. First arrivals of a key are in the order of the stream, so
/// they tell which event is older, whatever numbers the rows have.
pub struct Arrivals<'a> {
    wanted: &'a EventIds,
    ids: HashMap<Digest, First>,
    keys: HashMap<Digest, usize>,
    lines: Vec<Line>,
    published: EventIds,
}

/// The first arrival of an event: the how manyth of which key.
struct First {
    line: usize,
    number: u64,
}

/// The events of one key.
#[derive(Default)]
struct Line {
    arrived: u64,
    /// The number of the one that came last; 0: another one, older than any of them.
    last: u64,
    /// The farthest that a record of the key came from.
    farthest: Option<Position>,
}

impl<'a> Arrivals<'a> {
    pub fn of(wanted: &'a EventIds) -> Self {
        Arrivals {
            wanted,
            ids: HashMap::new(),
            keys: HashMap::new(),
            lines: Vec::new(),
            published: EventIds::like(wanted),
        }
    }

    /// The next record of the topic, with its key (without one it has no order), event id, and
    /// header `wal_position`.
    pub fn next(&mut self, key: Option<&[u8]>, id: &[u8], position: Option<&[u8]>) {
        let text = position.and_then(|text| std::str::from_utf8(text).ok());
        let position: Option<Position> = text.and_then(|text| text.parse().ok());
        if !self.wanted.contains(id) {
            return self.pass(key, position);
        }
        let Some(key) = key else {
            self.published.insert(id);
            return;
        };
        let line = *self.keys.entry(self.wanted.digest(key)).or_insert_with(|| {
            self.lines.push(Line::default());
            self.lines.len() - 1
        });
        let first = self.ids.entry(self.wanted.digest(id)).or_insert_with(|| {
            let line_of = &mut self.lines[line];
            line_of.arrived += 1;
            First {
                line,
                number: line_of.arrived,
            }
        });
        if first.line == line {
            let line = &mut self.lines[line];
            line.last = first.number;
            line.farthest = line.farthest.max(position);
        }
    }

    /// An event that nobody asks for. Only its position tells whether it is old.
    fn pass(&mut self, key: Option<&[u8]>, position: Option<Position>) {
        let line = key.and_then(|key| self.keys.get(&self.wanted.digest(key)));
        let (Some(line), Some(position)) = (line, position) else {
            return;
        };
        let line = &mut self.lines[*line];
        line.last = match line.farthest {
            Some(farthest) if position < farthest => 0,
            _ => line.arrived,
        };
        line.farthest = line.farthest.max(Some(position));
    }

    /// The events that need not be published again, and how many would be although they arrived:
    /// those behind the last word on their key.
    pub fn published(self) -> (EventIds, u64) {
        let (mut published, mut behind) = (self.published, 0);
        for (id, first) in self.ids {
            if first.number <= self.lines[first.line].last {
                published.add(id);
            } else {
                behind += 1;
            }
        }
        (published, behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records as key and number; `x` and `X` are events of key `a` that nobody asks for, the first
    /// ones older than all. The events that count as published, and how many do not.
    fn published(records: &[&str]) -> (Vec<String>, u64) {
        let mut wanted = EventIds::default();
        for record in records
            .iter()
            .filter(|record| !record.starts_with(['x', 'X']))
        {
            wanted.insert(record.as_bytes());
        }
        let mut arrivals = Arrivals::of(&wanted);
        for record in records {
            let (key, commit) = match &record[..1] {
                "-" => (None, 20),
                "x" => (Some("a"), 10),
                "X" => (Some("a"), 30),
                key => (Some(key), 20),
            };
            let position = format!("0/{commit}:{}", &record[1..]);
            arrivals.next(
                key.map(str::as_bytes),
                record.as_bytes(),
                Some(position.as_bytes()),
            );
        }
        let (ids, behind) = arrivals.published();
        let mut found: Vec<String> = records
            .iter()
            .filter(|record| ids.contains(record.as_bytes()))
            .map(|record| (*record).to_owned())
            .collect();
        found.sort();
        found.dedup();
        (found, behind)
    }

    #[test]
    fn what_a_whole_suffix_was_repeated_of_counts_as_published() {
        let (ids, behind) = published(&["a1", "a2", "b1", "a3", "a2", "a3", "X9"]);
        assert_eq!(
            (ids, behind),
            (vec!["a1".into(), "a2".into(), "a3".into(), "b1".into()], 0)
        );
    }

    #[test]
    fn what_is_behind_the_last_word_on_its_key_does_not() {
        let records = ["a1", "b1", "a2", "a3", "b2", "a4", "a1", "a2", "b1", "b2"];
        let (ids, behind) = published(&records);
        assert_eq!(
            (ids, behind),
            (vec!["a1".into(), "a2".into(), "b1".into(), "b2".into()], 2)
        );
    }

    #[test]
    fn rows_without_a_key_have_no_order() {
        let (ids, behind) = published(&["-1", "-2", "-1"]);
        assert_eq!((ids, behind), (vec!["-1".into(), "-2".into()], 0));
    }

    #[test]
    fn older_is_what_arrived_first_whatever_its_number() {
        let (ids, behind) = published(&["a2", "a1", "a3", "a2"]);
        assert_eq!((ids, behind), (vec!["a2".into()], 2));
    }

    #[test]
    fn an_older_event_may_be_the_last_word_though_nobody_asks_for_it() {
        let (ids, behind) = published(&["x1", "x2", "a3", "b1", "a4", "x1", "x2"]);
        assert_eq!((ids, behind), (vec!["b1".into()], 2));
        let (ids, behind) = published(&["x1", "x2", "a3", "X4", "x2", "a3", "X4"]);
        assert_eq!((ids, behind), (vec!["a3".into()], 0));
    }
}

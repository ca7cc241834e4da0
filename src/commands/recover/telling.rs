//! What `recover` says: lines for people, and the object of `--json`.

use jiff::Timestamp;
use serde::Serialize;

use super::{Recovery, gap::Gap};
use crate::{
    commands::backfill::Survey,
    lsn::Lsn,
    pg::{mark::Mark, numbers::Numbers, quote::table, slot::Names, table::Reader},
};

/// What `--json` prints. `null` is what is not known, or what does not apply.
#[derive(Serialize)]
pub(super) struct Recovered<'a> {
    slot: &'a str,
    outcome: Outcome,
    /// What committed up to here was published before.
    lost_lsn: Option<Lsn>,
    /// The mark from which on rows of the table were looked at; `null`: all of them.
    since: Option<Since>,
    /// Rows of the table that were looked at.
    rows: Option<u64>,
    /// Those whose event was in its topic already, and not behind an older one of its key.
    rows_in_topics: Option<u64>,
    /// Others whose event has a dead letter, open or ignored: they are left to it.
    rows_with_letter: Option<u64>,
    /// Those that were published, or with `--dry-run` would be; with `--accept-gap`, at most so
    /// many are left out.
    rows_missing: Option<u64>,
    /// Of the tables whose numbers could be counted.
    numbers: Vec<Gone>,
    /// Where the new slot begins.
    consistent_point: Option<Lsn>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    NothingToRecover,
    WouldPublish,
    Published,
    GapAccepted,
}

#[derive(Serialize)]
struct Since {
    lsn: Lsn,
    at: Timestamp,
}

/// What tables and topics say together, of all tables.
#[derive(Default)]
pub(super) struct Found {
    rows: u64,
    known: u64,
    with_letter: u64,
    missing: u64,
    numbers: Vec<Gone>,
}

impl Found {
    pub fn add(&mut self, survey: &Survey) {
        self.rows += survey.rows;
        self.known += survey.known;
        self.with_letter += survey.with_letter;
        self.missing += survey.missing();
    }

    pub fn gone(&mut self, gone: Option<Gone>) {
        self.numbers.extend(gone);
    }
}

/// Numbers of `order_by` that no row has: rows that are gone, or transactions that were rolled back.
#[derive(Serialize)]
pub(in crate::commands) struct Gone {
    table: String,
    column: String,
    from: i64,
    to: i64,
    without_row: u64,
    /// The first ones, each first and last.
    ranges: Vec<(i64, i64)>,
}

impl<'a> Recovered<'a> {
    pub fn nothing(slot: &'a str) -> Self {
        Recovered {
            slot,
            outcome: Outcome::NothingToRecover,
            lost_lsn: None,
            since: None,
            rows: None,
            rows_in_topics: None,
            rows_with_letter: None,
            rows_missing: None,
            numbers: Vec::new(),
            consistent_point: None,
        }
    }

    fn of(recovery: &'a Recovery<'_>, outcome: Outcome, gap: &Gap) -> Self {
        let since = |mark: &Mark| Since {
            lsn: mark.lsn,
            at: mark.at,
        };
        Recovered {
            outcome,
            lost_lsn: Some(gap.position).filter(|position| *position > Lsn::ZERO),
            since: gap.since.as_ref().map(since),
            ..Recovered::nothing(&recovery.init.names.slot)
        }
    }

    fn with(self, found: Found) -> Self {
        Recovered {
            rows: Some(found.rows),
            rows_in_topics: Some(found.known),
            rows_with_letter: Some(found.with_letter),
            rows_missing: Some(found.missing),
            numbers: found.numbers,
            ..self
        }
    }

    pub fn would_publish(recovery: &'a Recovery<'_>, gap: &Gap, found: Found) -> Self {
        Self::of(recovery, Outcome::WouldPublish, gap).with(found)
    }

    pub fn published(recovery: &'a Recovery<'_>, gap: &Gap, found: Found, at: Lsn) -> Self {
        Recovered {
            consistent_point: Some(at),
            ..Self::of(recovery, Outcome::Published, gap).with(found)
        }
    }

    pub fn accepted(recovery: &'a Recovery<'_>, gap: &Gap, count: Option<u64>, at: Lsn) -> Self {
        Recovered {
            rows_missing: count,
            consistent_point: Some(at),
            ..Self::of(recovery, Outcome::GapAccepted, gap)
        }
    }
}

impl Gone {
    pub fn of(table: String, numbers: Numbers) -> Gone {
        Gone {
            table,
            column: numbers.column,
            from: numbers.from,
            to: numbers.to,
            without_row: numbers.missing,
            ranges: numbers.ranges,
        }
    }
}

impl Recovery<'_> {
    pub(super) fn say(&self, line: &str) -> anyhow::Result<()> {
        self.init.out.say(line)
    }

    fn outbox(&self) -> String {
        self.init.names.listed()
    }

    pub(super) fn describe(&self, gap: &Gap) -> anyhow::Result<()> {
        let (Names { slot, .. }, outbox) = (&self.init.names, self.outbox());
        let why = match (&gap.since, gap.is_elsewhere) {
            (Some(mark), _) => {
                return self.say(&format!(
                    "slot {slot}: what committed {} was not published, as far as is known. Looked at are the rows of {outbox} that were \
                     committed since {}, at {}",
                    after(gap.position),
                    mark.lsn,
                    mark.at
                ));
            }
            (None, true) => {
                "the database is now in another cluster, where positions mean something else"
            }
            (None, false) => "there is no mark at or below the position that was lost",
        };
        self.say(&format!(
            "slot {slot}: {why}, so every row of {outbox} is looked for in its topic from the beginning; what the topic no longer \
             keeps is published again"
        ))
    }

    /// Tells what is gone for good, as far as the table's numbers show it.
    pub(super) async fn count_gone(
        &self,
        reader: &Reader,
        gap: &Gap,
        last: Option<i64>,
    ) -> anyhow::Result<Option<Gone>> {
        let outbox = table(&reader.shape.mapping.table);
        let lost = format!(
            "rows that were deleted from the table {outbox} before they were published cannot be recovered"
        );
        match reader.numbers(gap.since.as_ref(), last).await? {
            Err(why) => {
                self.say(&format!("{lost}, and cannot be counted: {why}"))?;
                Ok(None)
            }
            Ok(numbers) => {
                self.say(&format!("{lost}: {}", counted(&numbers)))?;
                Ok(Some(Gone::of(outbox, numbers)))
            }
        }
    }

    pub(super) fn would_publish(&self, found: &Found) -> anyhow::Result<()> {
        self.say(&format!(
            "`walpost recover` would make slot {} and publish {} rows of {}; {}",
            self.init.names.slot,
            found.missing,
            self.outbox(),
            not_missing(found),
        ))?;
        self.say("nothing was changed")
    }

    pub(super) fn published(&self, found: &Found, at: Lsn) -> anyhow::Result<()> {
        self.say(&format!(
            "published {} rows of {}; {}. Slot {} is ready: `walpost run` goes on after {at}",
            found.missing,
            self.outbox(),
            not_missing(found),
            self.init.names.slot,
        ))
    }

    pub(super) fn accepted(&self, gap: &Gap, rows: Option<u64>, at: Lsn) -> anyhow::Result<()> {
        let rows = rows.map_or_else(String::new, |rows| {
            format!(": at most {rows} rows that {} holds", self.outbox())
        });
        self.say(&format!(
            "accepted the gap: what committed {} and up to {at} and was not published stays unpublished{rows}. Slot {} is ready: \
             `walpost run` goes on after {at}",
            after(gap.position),
            self.init.names.slot,
        ))
    }
}

fn after(position: Lsn) -> String {
    match position {
        Lsn::ZERO => "at an unknown time".into(),
        position => format!("after {position}"),
    }
}

fn not_missing(found: &Found) -> String {
    let letters = match found.with_letter {
        0 => String::new(),
        rows => format!(", {rows} are left to their dead letters, open or ignored"),
    };
    format!(
        "{} of the {} looked at are in the topics already{letters}",
        found.known, found.rows
    )
}

/// How many, which ones, and how that is known.
fn counted(numbers: &Numbers) -> String {
    let Numbers {
        column,
        from,
        to,
        missing,
        ranges,
        ..
    } = numbers;
    let mut text = match missing {
        0 => format!(
            "there seem to be none, for every number of column {column} from {from} to {to} has its row"
        ),
        _ => format!(
            "at most {missing}. So many numbers of column {column} from {from} to {to} have no row: {}. Transactions that were rolled \
             back or are still open, a crash or promotion of the server (up to 32 numbers), and rows that were deleted after they were \
             published leave the same gaps",
            named(ranges, *missing)
        ),
    };
    if numbers.is_open_below {
        text += &format!("; no older row is left, so below {from} nothing is known");
    }
    if numbers.is_open_above {
        text += &format!("; the column's sequence cannot be read, so above {to} nothing is known");
    }
    text
}

/// The ranges, as far as they are known.
pub(in crate::commands) fn named(ranges: &[(i64, i64)], missing: u64) -> String {
    let each: Vec<_> = ranges
        .iter()
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            _ => format!("{first}-{last}"),
        })
        .collect();
    let shown: u64 = ranges
        .iter()
        .map(|(first, last)| last.abs_diff(*first) + 1)
        .sum();
    let more = if shown < missing { ", …" } else { "" };
    format!("{}{more}", each.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_row_are_counted_and_named() {
        let mut numbers = Numbers {
            column: "seq".into(),
            from: 4,
            to: 12,
            missing: 3,
            ranges: vec![(5, 6), (9, 9)],
            is_open_below: false,
            is_open_above: true,
        };
        let text = counted(&numbers);
        assert!(
            text.starts_with("at most 3. ") && text.contains("from 4 to 12 have no row: 5-6, 9."),
            "{text}"
        );
        assert!(text.ends_with("above 12 nothing is known"), "{text}");
        numbers.missing = 40;
        assert!(counted(&numbers).contains("5-6, 9, …"));
    }
}

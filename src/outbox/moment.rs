//! When an event happened, by a column of its row.

use jiff::Timestamp;

use super::{
    relation::{Field, Role},
    row::{OutboxRow, Unmappable},
    types::Form,
};
use crate::lsn::PgTime;

/// Reads times. It remembers the last one: the rows of a transaction mostly have the same, its `now()`.
#[derive(Default)]
pub struct Moments {
    text: String,
    moment: Option<Timestamp>,
}

impl Moments {
    /// The column's time; `None` where it is NULL or no time that can be told: infinity, BC, beyond the
    /// year 9999. A number is milliseconds since 1970. `name` is the column's role or key, for messages.
    pub fn of(
        &mut self,
        row: &OutboxRow<'_>,
        field: Option<Field>,
        name: &str,
    ) -> Result<Option<Timestamp>, Unmappable> {
        moment(row, field, name, |text| self.parse(text))
    }

    fn parse(&mut self, text: &str) -> Option<Timestamp> {
        if self.text != text {
            self.text.clear();
            self.text.push_str(text);
            self.moment = parse(text);
        }
        self.moment
    }
}

fn moment(
    row: &OutboxRow<'_>,
    field: Option<Field>,
    name: &str,
    mut parse: impl FnMut(&str) -> Option<Timestamp>,
) -> Result<Option<Timestamp>, Unmappable> {
    let Some(text) = row.field(field)? else {
        return Ok(None);
    };
    let text = std::str::from_utf8(text).unwrap_or_default();
    match field.map(|field| field.form) {
        Some(Form::Time) => Ok(parse(text)),
        Some(Form::Integer) => {
            let millis = text.parse().ok();
            Ok(millis.and_then(|ms| Timestamp::from_millisecond(ms).ok()))
        }
        // A text may be a time.
        _ => parse(text).map(Some).ok_or_else(|| {
            let text = format!(
                "the column of {name} is of no type for times and its text is none: use timestamptz, or bigint for milliseconds \
                 since 1970"
            );
            Unmappable::new("timestamp_invalid", text)
        }),
    }
}

fn parse(text: &str) -> Option<Timestamp> {
    if text.ends_with("BC") {
        return None;
    }
    // A column without a time zone is read as UTC.
    text.parse().ok().or_else(|| {
        let civil: jiff::civil::DateTime = text.parse().ok()?;
        jiff::tz::TimeZone::UTC.to_timestamp(civil).ok()
    })
}

/// The time in milliseconds that the row itself gives its record, if it gives one.
pub fn own_time(row: &OutboxRow<'_>) -> Option<i64> {
    let shape = row.shape;
    let field = match shape.mapping.timestamp {
        Some(_) => shape.timestamp,
        None => shape.role(Role::OccurredAt),
    };
    let moment = moment(row, field, "the timestamp", parse).ok()??;
    Some(moment.as_millisecond()).filter(|ms| *ms > 0)
}

/// The record's timestamp in milliseconds: the row's time, or that of its commit where there is none
/// that a record can have. 0 and less are none: the client library takes 0 for "now".
pub fn millis(moment: Option<Timestamp>, committed_at: PgTime) -> i64 {
    moment
        .map(Timestamp::as_millisecond)
        .filter(|ms| *ms > 0)
        .unwrap_or_else(|| committed_at.unix_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_no_record_can_have_become_the_commit_time() {
        let committed = PgTime::new(1_500);
        let commit = committed.unix_millis();
        let mut moments = Moments::default();
        for (text, expected) in [
            ("1970-01-01 00:00:00.001+00", 1),
            ("2024-01-01 00:00:00.0006+00", 1_704_067_200_000),
            ("2262-04-12 00:00:00+00", 9_223_372_800_000),
            ("2024-02-29 12:34:56.789", 1_709_210_096_789),
            ("2024-02-29", 1_709_164_800_000),
            ("infinity", commit),
            ("-infinity", commit),
            ("0044-03-15 12:00:00+00 BC", commit),
            ("1970-01-01 00:00:00+00", commit),
            ("1969-07-20 20:17:40+00", commit),
            ("10000-01-01 00:00:00+00", commit),
        ] {
            for _ in 0..2 {
                assert_eq!(millis(moments.parse(text), committed), expected, "{text}");
            }
        }
        assert_eq!(millis(None, committed), commit);
    }
}

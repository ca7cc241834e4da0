//! Which letters: by id, event, key, topic, error code, status, time.

use clap::ValueEnum;
use jiff::{Timestamp, civil::Date};
use serde::Deserialize;
use tokio_postgres::{
    Client, Error,
    types::{ToSql, Type},
};

use super::letter::{Listed, columns};
use crate::config::parse_duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Failed; sent again by itself at its next retry, if it has one
    Pending,
    /// About to be sent
    Replaying,
    /// Waits behind an older letter of its key
    Held,
    /// Failed at the last retry
    Dead,
    /// In Kafka
    Resolved,
    /// Given up by an operator
    Ignored,
}

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Replaying => "replaying",
            Status::Held => "held",
            Status::Dead => "dead",
            Status::Resolved => "resolved",
            Status::Ignored => "ignored",
        }
    }
}

/// Letters of one slot that have all of these; what is left out excludes none.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub slot: String,
    pub ids: Option<Vec<i64>>,
    pub event_id: Option<String>,
    /// The record's key, as text.
    pub key: Option<String>,
    pub topic: Option<String>,
    pub code: Option<String>,
    pub statuses: Option<Vec<Status>>,
    /// Of the first failure; of a row that is only held, of its commit.
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    /// The first so many by id.
    pub limit: Option<u64>,
}

const WHERE: &str = "l.slot = $1 AND ($2::bigint[] IS NULL OR l.id = ANY ($2)) AND ($3::text IS NULL OR l.event_id = $3)
    AND ($4::bytea IS NULL OR l.key = $4) AND ($5::text IS NULL OR l.topic = $5) AND ($6::text IS NULL OR l.error_code = $6)
    AND ($7::text[] IS NULL OR l.status = ANY ($7))
    AND ($8::text IS NULL OR coalesce(l.first_failed_at, l.committed_at, l.acted_at) >= $8::timestamptz)
    AND ($9::text IS NULL OR coalesce(l.first_failed_at, l.committed_at, l.acted_at) < $9::timestamptz)
    AND l.id > $10 ORDER BY l.id LIMIT $11";

impl Selection {
    async fn query(
        &self,
        client: &Client,
        columns: &str,
        after: i64,
        limit: Option<i64>,
    ) -> Result<Vec<tokio_postgres::Row>, Error> {
        let text = format!("SELECT {columns} FROM walpost.dead_letter l WHERE {WHERE}");
        let key = self.key.as_ref().map(|key| key.as_bytes());
        let statuses = self.statuses.as_ref();
        let statuses: Option<Vec<&str>> = statuses.map(|s| s.iter().map(|s| s.name()).collect());
        let time = |at: Option<Timestamp>| at.map(|at| at.to_string());
        let (since, until) = (time(self.since), time(self.until));
        let values: &[(&(dyn ToSql + Sync), Type)] = &[
            (&self.slot, Type::TEXT),
            (&self.ids, Type::INT8_ARRAY),
            (&self.event_id, Type::TEXT),
            (&key, Type::BYTEA),
            (&self.topic, Type::TEXT),
            (&self.code, Type::TEXT),
            (&statuses, Type::TEXT_ARRAY),
            (&since, Type::TEXT),
            (&until, Type::TEXT),
            (&after, Type::INT8),
            (&limit, Type::INT8),
        ];
        client.query_typed(&text, values).await
    }
}

/// Ids of all that are selected, in order.
pub async fn ids(client: &Client, selection: &Selection) -> Result<Vec<i64>, Error> {
    let limit = selection
        .limit
        .map(|limit| i64::try_from(limit).unwrap_or(i64::MAX));
    let rows = selection.query(client, "l.id", 0, limit).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Letters at once: few enough that large payloads stay within some megabytes.
const PAGE: i64 = 1000;
const PAGE_WITH_CONTENT: i64 = 20;

/// The next letters by id after `after`; empty when `so_far` of them were all.
pub async fn page(
    client: &Client,
    selection: &Selection,
    with_content: bool,
    after: i64,
    so_far: u64,
) -> Result<Vec<Listed>, Error> {
    let page = if with_content {
        PAGE_WITH_CONTENT
    } else {
        PAGE
    };
    let left = selection
        .limit
        .map_or(u64::MAX, |limit| limit.saturating_sub(so_far));
    let limit = i64::try_from(left).unwrap_or(i64::MAX).min(page);
    if limit == 0 {
        return Ok(Vec::new());
    }
    let rows = selection
        .query(client, &columns(with_content), after, Some(limit))
        .await?;
    rows.iter()
        .map(|row| Listed::of(row, with_content))
        .collect()
}

const FIRST: Timestamp = Timestamp::constant(-62_135_596_800, 0);

/// A moment: `2026-01-02T03:04:05Z`, a day (its start in UTC), or how long ago, such as `2h`.
pub fn moment(text: &str) -> Result<Timestamp, String> {
    let day = || {
        format!("{}T00:00:00Z", text.parse::<Date>().ok()?)
            .parse()
            .ok()
    };
    if let Some(at) = text.parse::<Timestamp>().ok().or_else(day) {
        return Some(at)
            .filter(|at| *at >= FIRST)
            .ok_or_else(|| format!("`{text}` is too long ago"));
    }
    let ago = parse_duration(text).map_err(|_| {
        format!("`{text}` is no time: write 2026-01-02T03:04:05Z, 2026-01-02, or how long ago, such as 2h")
    })?;
    // PostgreSQL writes years before the first one differently.
    let at = Timestamp::now().checked_sub(ago).ok();
    at.filter(|at| *at >= FIRST)
        .ok_or_else(|| format!("`{text}` is too long ago"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_moment_a_day_or_an_age() {
        let at = |text: &str| moment(text).map(|at| at.to_string());
        assert_eq!(
            at("2026-01-02T03:04:05+01:00").unwrap(),
            "2026-01-02T02:04:05Z"
        );
        assert_eq!(at("2026-01-02").unwrap(), "2026-01-02T00:00:00Z");
        let hours = Timestamp::now()
            .duration_since(moment("2h").unwrap())
            .as_secs_f64()
            / 3600.0;
        assert!((1.99..2.01).contains(&hours), "{hours}");
        for bad in ["yesterday", "", "5", "9999999d", "800000d", "-000001-01-01"] {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }
}

//! The table `walpost.dead_letter` as the publisher reads and writes it. Every transaction that
//! writes begins with proof that the slot is still ours, so that a publisher that was paused and
//! superseded changes nothing.

mod fetch;
mod find;
mod reread;
mod take;
mod write;

use std::{collections::HashSet, time::Duration};

use tokio_postgres::{Client, Row, Transaction};

use super::letter::Place;
use crate::{
    lsn::{Lsn, Position},
    state::LetterCounts,
};

pub use self::{
    fetch::{Body, Letter, fetch},
    find::{Source, find_event},
    reread::{Moved, OfEvent, of_events, replace},
    take::{Candidate, Choice, Take, Taken, choose, take},
    write::{Failure, Noted, Park, Write, write},
};

/// Why nothing was written.
#[derive(Debug)]
pub enum Refused {
    /// Another publisher took the slot over.
    Fenced,
    Sql(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for Refused {
    fn from(error: tokio_postgres::Error) -> Self {
        Refused::Sql(error)
    }
}

/// Whose letters, and in whose epoch.
#[derive(Clone, Debug)]
pub struct Owner {
    pub slot: String,
    pub epoch: i64,
    pub life: i32,
}

/// Why an event cannot be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `event` or `setup`.
    pub class: &'static str,
    pub code: String,
    pub text: String,
}

/// A held key as the table has it.
#[derive(Debug)]
pub struct HeldKey {
    pub outbox: String,
    pub topic: String,
    pub key: Vec<u8>,
    /// Its first open letter.
    pub first: Place,
    pub letters: usize,
    /// Rows wait behind it.
    pub holds: bool,
}

/// What a publisher must know before it reads the stream.
#[derive(Debug, Default)]
pub struct Loaded {
    pub keys: Vec<HeldKey>,
    /// Rows at these positions are kept already: open or ignored.
    pub known: HashSet<Position>,
    /// Topics with open letters of class `setup`.
    pub closed_topics: Vec<String>,
    pub counts: LetterCounts,
}

/// A letter that may have to be sent, without its bytes.
#[derive(Debug)]
pub struct Wanted {
    pub id: i64,
    pub outbox: String,
    pub topic: String,
    pub key: Option<Vec<u8>>,
    pub place: Option<Place>,
}

/// What a look found.
#[derive(Debug, Default)]
pub struct Looked {
    /// Letters that are `replaying`.
    pub replaying: Vec<Wanted>,
    /// The first open letter of a key, where it is `held` or `replaying`: it may be sent.
    pub first: Vec<Wanted>,
    pub counts: LetterCounts,
    /// Topics with open letters of class `setup`.
    pub closed_topics: Vec<String>,
    /// Until the next one is due.
    pub next_due: Option<Duration>,
}

const OPEN: &str = "status IN ('pending', 'replaying', 'held', 'dead')";

/// The order of letters, of `walpost.dead_letter d`. Without the `d` a position that is selected as
/// text would be ordered as text, and 0/10000000 come before 0/F000000.
const BY_PLACE: &str = "d.life, d.position_lsn, d.position_ordinal";

const COLUMNS: &str = "d.id, d.outbox, d.topic, d.key, d.life, d.position_lsn::text, d.position_ordinal, d.event_id,
    (extract(epoch FROM d.committed_at) * 1000000)::bigint - 946684800000000, d.attempts, d.error_class, d.headers, d.record_ms, d.payload, d.raw, d.partition";

/// The slot is ours for the length of the transaction.
async fn begin<'a>(client: &'a mut Client, owner: &Owner) -> Result<Transaction<'a>, Refused> {
    let transaction = client.transaction().await?;
    let text = "SELECT 1 FROM walpost.slot WHERE slot = $1 AND epoch = $2 FOR SHARE";
    let ours = transaction
        .query_opt(text, &[&owner.slot, &owner.epoch])
        .await?;
    ours.map(|_| transaction).ok_or(Refused::Fenced)
}

fn lsn(text: Option<String>) -> Option<Lsn> {
    text?.parse().ok()
}

fn place(life: Option<i32>, commit: Option<String>, ordinal: Option<i32>) -> Option<Place> {
    let position = Position {
        commit: lsn(commit)?,
        ordinal: u32::try_from(ordinal?).ok()?,
    };
    Some(Place {
        life: life?,
        position,
    })
}

/// What must be known before the stream is read from `confirmed` on.
pub async fn load(client: &Client, owner: &Owner, confirmed: Lsn) -> Result<Loaded, Refused> {
    let held = format!(
        "SELECT DISTINCT ON (outbox, topic, key) outbox, topic, key, life, position_lsn::text, position_ordinal,
           count(*) OVER w, bool_or(status = 'held' OR held_behind IS NOT NULL) OVER w
         FROM walpost.dead_letter d WHERE slot = $1 AND {OPEN} AND key IS NOT NULL AND position_lsn IS NOT NULL
         WINDOW w AS (PARTITION BY outbox, topic, key)
         ORDER BY outbox, topic, key, {BY_PLACE}"
    );
    let known = format!(
        "SELECT position_lsn::text, position_ordinal FROM walpost.dead_letter
         WHERE slot = $1 AND life = $2 AND position_lsn >= $3::text::pg_catalog.pg_lsn AND ({OPEN} OR status = 'ignored')"
    );
    let mut loaded = Loaded::default();
    for row in client.query(&held, &[&owner.slot]).await? {
        let first = place(row.try_get(3)?, row.try_get(4)?, row.try_get(5)?);
        let letters: i64 = row.try_get(6)?;
        loaded.keys.extend(first.map(|first| HeldKey {
            outbox: row.get(0),
            topic: row.get(1),
            key: row.get(2),
            first,
            letters: usize::try_from(letters).unwrap_or_default(),
            holds: row.get(7),
        }));
    }
    let confirmed = confirmed.to_string();
    for row in client
        .query(&known, &[&owner.slot, &owner.life, &confirmed])
        .await?
    {
        let place = place(Some(owner.life), row.try_get(0)?, row.try_get(1)?);
        loaded.known.extend(place.map(|place| place.position));
    }
    loaded.closed_topics = closed_topics(client, &owner.slot).await?;
    loaded.counts = counts(client, &owner.slot).await?;
    Ok(loaded)
}

/// Events of the table that were not published, and are a matter of their letters.
pub async fn events_with_letters(
    client: &Client,
    slot: &str,
    outbox: &str,
) -> Result<Vec<String>, Refused> {
    let text = format!(
        "SELECT DISTINCT event_id FROM walpost.dead_letter WHERE slot = $1 AND outbox = $2 AND event_id IS NOT NULL
           AND ({OPEN} OR status = 'ignored') AND error_class IS DISTINCT FROM 'resend'"
    );
    let rows = client.query(&text, &[&slot, &outbox]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn closed_topics(client: &Client, slot: &str) -> Result<Vec<String>, tokio_postgres::Error> {
    let text = format!(
        "SELECT DISTINCT topic FROM walpost.dead_letter WHERE slot = $1 AND {OPEN} AND error_class = 'setup'"
    );
    let rows = client.query(&text, &[&slot]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

async fn counts(client: &Client, slot: &str) -> Result<LetterCounts, tokio_postgres::Error> {
    let text = "SELECT status, count(*) FROM walpost.dead_letter WHERE slot = $1 GROUP BY status";
    let mut counts = LetterCounts::default();
    for row in client.query(text, &[&slot]).await? {
        let count = u64::try_from(row.try_get::<_, i64>(1)?).unwrap_or_default();
        match row.try_get(0)? {
            "pending" => counts.pending = count,
            "replaying" => counts.replaying = count,
            "held" => counts.held = count,
            "dead" => counts.dead = count,
            "resolved" => counts.resolved = count,
            _ => counts.ignored += count,
        }
    }
    Ok(counts)
}

/// Letters whose time has come are `replaying` from now on; then what there is to do.
pub async fn look(client: &mut Client, owner: &Owner, limit: i64) -> Result<Looked, Refused> {
    let transaction = begin(client, owner).await?;
    let due = "UPDATE walpost.dead_letter SET status = 'replaying', next_retry_at = NULL, acted_by = session_user, acted_at = pg_catalog.clock_timestamp()
        WHERE id IN (SELECT id FROM walpost.dead_letter WHERE slot = $1 AND status = 'pending' AND next_retry_at <= pg_catalog.clock_timestamp()
          ORDER BY next_retry_at LIMIT $2 FOR UPDATE SKIP LOCKED)";
    transaction.execute(due, &[&owner.slot, &limit]).await?;
    transaction.commit().await?;
    let wanted = |row: &Row| -> Result<Wanted, tokio_postgres::Error> {
        Ok(Wanted {
            id: row.try_get(0)?,
            outbox: row.try_get(1)?,
            topic: row.try_get(2)?,
            key: row.try_get(3)?,
            place: place(row.try_get(4)?, row.try_get(5)?, row.try_get(6)?),
        })
    };
    let replaying = format!(
        "SELECT id, outbox, topic, key, life, position_lsn::text, position_ordinal FROM walpost.dead_letter d
         WHERE slot = $1 AND status = 'replaying' ORDER BY {BY_PLACE}, id"
    );
    let first = format!(
        "SELECT id, outbox, topic, key, life, position_lsn::text, position_ordinal
         FROM (SELECT DISTINCT ON (outbox, topic, key) * FROM walpost.dead_letter d
           WHERE slot = $1 AND {OPEN} AND key IS NOT NULL AND position_lsn IS NOT NULL
           ORDER BY outbox, topic, key, {BY_PLACE}) f
         WHERE status IN ('held', 'replaying')"
    );
    let next = "SELECT extract(epoch FROM min(next_retry_at) - pg_catalog.clock_timestamp())::float8 FROM walpost.dead_letter
        WHERE slot = $1 AND status = 'pending'";
    let mut looked = Looked::default();
    for row in client.query(&replaying, &[&owner.slot]).await? {
        looked.replaying.push(wanted(&row)?);
    }
    for row in client.query(&first, &[&owner.slot]).await? {
        looked.first.push(wanted(&row)?);
    }
    let row = client.query_one(next, &[&owner.slot]).await?;
    let seconds: Option<f64> = row.try_get(0)?;
    looked.next_due =
        seconds.map(|s| Duration::try_from_secs_f64(s.max(0.0)).unwrap_or(Duration::MAX));
    looked.counts = counts(client, &owner.slot).await?;
    looked.closed_topics = closed_topics(client, &owner.slot).await?;
    Ok(looked)
}

/// The topic takes records again: its letters of class `setup` are due within a minute.
pub async fn opened(client: &mut Client, owner: &Owner, topic: &str) -> Result<(), Refused> {
    let transaction = begin(client, owner).await?;
    let text = "UPDATE walpost.dead_letter SET status = 'pending', next_retry_at = pg_catalog.clock_timestamp() + pg_catalog.random() * interval '60 seconds'
        WHERE slot = $1 AND topic = $2 AND error_class = 'setup' AND status IN ('pending', 'dead')";
    transaction.execute(text, &[&owner.slot, &topic]).await?;
    transaction.commit().await?;
    Ok(())
}

/// Removes closed letters and entries of the audit log older than `keep`, a bounded number.
pub async fn retire(client: &mut Client, owner: &Owner, keep: Duration) -> Result<u64, Refused> {
    let transaction = begin(client, owner).await?;
    let letters = "DELETE FROM walpost.dead_letter WHERE id IN (SELECT id FROM walpost.dead_letter WHERE slot = $1 AND status IN ('resolved', 'ignored')
        AND greatest(acted_at, last_failed_at, committed_at) < pg_catalog.now() - $2::float8 * interval '1 second'
        -- The slot may go back to where it was written: a letter behind it is still looked up.
        AND (position_lsn IS NULL OR position_lsn < (SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = $1)) LIMIT 10000)";
    let log = "DELETE FROM walpost.audit_log WHERE id IN (SELECT id FROM walpost.audit_log WHERE at < pg_catalog.now() - $1::float8 * interval '1 second' LIMIT 10000)";
    let keep = keep.as_secs_f64();
    let gone = transaction.execute(letters, &[&owner.slot, &keep]).await?;
    let log = transaction.execute(log, &[&keep]).await?;
    transaction.commit().await?;
    Ok(gone + log)
}

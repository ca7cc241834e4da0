//! The table `walpost.dead_letter` as the publisher reads and writes it. Every transaction that
//! writes begins with proof that the slot is still ours, so that a publisher that was paused and
//! superseded changes nothing.

use std::{
    borrow::Cow,
    collections::HashSet,
    time::{Duration, SystemTime},
};

use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio_postgres::{Client, Row, Statement, Transaction, types::ToSql};

use super::letter::{Kept, Place, as_ascii, headers_from_json, headers_to_json, tuple_of};
use crate::{
    lsn::{Lsn, PgTime, Position},
    outbox::{
        mapping::WALPOST_REPLAY,
        row::{Origin, Reread},
    },
    pg::quote::ident,
    state::LetterCounts,
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

/// A row to be kept.
#[derive(Debug)]
pub struct Park {
    pub place: Place,
    pub outbox: String,
    pub event_id: Option<String>,
    pub committed_at: PgTime,
    pub topic: String,
    pub partition: Option<i32>,
    pub key: Option<Vec<u8>>,
    /// `None`: no record could be made of it.
    pub kept: Option<Kept>,
    pub raw: Option<Value>,
    /// Why it was read from the table; `None`: it was read from the log.
    pub reread: Option<Reread>,
    pub fault: Option<Fault>,
    /// It waits behind this letter of its key.
    pub behind: Option<Place>,
    /// Until it is sent again by itself.
    pub retry_after: Option<Duration>,
}

/// What became of a letter that was sent.
#[derive(Debug)]
pub struct Failure {
    pub id: i64,
    /// How often it had been sent before.
    pub attempts: i32,
    pub fault: Fault,
    /// `None`: `dead`, or left to operators.
    pub retry_after: Option<Duration>,
    pub is_dead: bool,
    /// Held rows of its key wait behind it now.
    pub holds: bool,
}

/// What is written, in order, in one transaction.
#[derive(Debug)]
pub enum Write {
    Park(Box<Park>),
    Resolve {
        id: i64,
    },
    Fail(Box<Failure>),
    /// A letter of its key before it failed.
    Return {
        id: i64,
        behind: Place,
    },
}

/// A letter as it was written.
#[derive(Debug)]
pub struct Noted {
    pub id: i64,
    pub attempts: i32,
    /// `None` of a row that is only held.
    pub first_failed_at: Option<jiff::Timestamp>,
    pub last_failed_at: Option<jiff::Timestamp>,
}

impl Noted {
    /// It failed for the first time.
    pub fn is_new(&self) -> bool {
        self.first_failed_at.is_some() && self.first_failed_at == self.last_failed_at
    }
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

/// The bytes of a letter.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    Kept(Kept),
    /// Columns with their types' OIDs, and the row in the tuple format of the stream: mapped again
    /// by today's configuration.
    Row {
        columns: Vec<(String, u32)>,
        tuple: Vec<u8>,
        origin: Origin,
    },
    /// Why it cannot be sent at all.
    Broken(String),
}

/// A letter to be sent.
#[derive(Clone, Debug)]
pub struct Letter {
    pub id: i64,
    pub outbox: String,
    pub topic: String,
    pub key: Option<Vec<u8>>,
    pub place: Option<Place>,
    pub event_id: Option<String>,
    pub committed_at: PgTime,
    pub attempts: i32,
    /// It failed by its own fault before.
    pub failed: bool,
    /// Sent once more for an operator; not a letter of an event that failed.
    pub resend: bool,
    pub body: Body,
}

/// A letter of a key, as far as the choice of a batch needs it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub id: i64,
    pub place: Place,
    /// `pending` or `dead`: it waits itself.
    pub waits: bool,
    /// It failed by its own fault before: it goes alone.
    pub failed: bool,
    pub bytes: u64,
}

/// What to do with a key's open letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// There are none.
    Nothing,
    /// The first one waits itself.
    WaitsFor(Place),
    /// The stream has not been read up to the first one, or one before it is not written yet.
    NotYet,
    /// The first so many.
    Take(usize),
}

/// Chooses among a key's open letters, in order. `bound`: only those before it.
pub fn choose(letters: &[Candidate], bound: Place, max_bytes: u64) -> Choice {
    let Some(first) = letters.first() else {
        return Choice::Nothing;
    };
    if first.waits {
        return Choice::WaitsFor(first.place);
    }
    if first.place >= bound {
        return Choice::NotYet;
    }
    if first.failed {
        return Choice::Take(1);
    }
    let mut bytes = 0;
    let fits = |letter: &&Candidate| {
        bytes += letter.bytes;
        let first = letter.id == first.id;
        !letter.waits && !letter.failed && letter.place < bound && (first || bytes <= max_bytes)
    };
    Choice::Take(letters.iter().take_while(fits).count())
}

/// The letters of one key that were taken.
#[derive(Debug)]
pub struct Taken {
    pub letters: Vec<Letter>,
    /// Open ones that were not.
    pub left: usize,
    /// The first open letter, where it waits itself.
    pub waits_for: Option<Place>,
}

const OPEN: &str = "status IN ('pending', 'replaying', 'held', 'dead')";

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
         FROM walpost.dead_letter WHERE slot = $1 AND {OPEN} AND key IS NOT NULL AND position_lsn IS NOT NULL
         WINDOW w AS (PARTITION BY outbox, topic, key)
         ORDER BY outbox, topic, key, life, position_lsn, position_ordinal"
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

/// Writes all of it or nothing; where the log stood when it was durable, and each letter that failed.
/// Written twice it is the same as written once. `ascii`: the database may have no character for
/// what letters say.
pub async fn write(
    client: &mut Client,
    owner: &Owner,
    writes: &[Write],
    ascii: bool,
) -> Result<(Lsn, Vec<Option<Noted>>), Refused> {
    let transaction = begin(client, owner).await?;
    let park = transaction.prepare(PARK).await?;
    // All on their way at once, in order: one round trip for the batch.
    let each = writes.iter().map(|write| {
        let (transaction, park) = (&transaction, &park);
        async move {
            match write {
                Write::Park(row) => write_park(transaction, park, owner, row, ascii).await,
                Write::Resolve { id } => transaction.execute(RESOLVE, &[id]).await.map(|_| None),
                Write::Fail(failure) => write_failure(transaction, failure, ascii).await,
                Write::Return { id, behind } => {
                    let (life, commit, ordinal) = parts(behind);
                    let values: &[&(dyn ToSql + Sync)] = &[id, &life, &commit, &ordinal];
                    transaction.execute(RETURN, values).await.map(|_| None)
                }
            }
        }
    });
    let noted = try_join_all(each).await?;
    transaction.commit().await?;
    let text = "SELECT pg_catalog.pg_current_wal_insert_lsn()::text";
    let row = client.query_one(text, &[]).await?;
    Ok((lsn(row.try_get(0)?).unwrap_or(Lsn::ZERO), noted))
}

fn parts(place: &Place) -> (i32, String, i32) {
    let ordinal = i32::try_from(place.position.ordinal).unwrap_or(i32::MAX);
    (place.life, place.position.commit.to_string(), ordinal)
}

const RESOLVE: &str = "UPDATE walpost.dead_letter SET status = 'resolved', next_retry_at = NULL, held_behind = NULL, attempts = attempts + 1
    WHERE id = $1 AND status = 'replaying'";

const RETURN: &str = "UPDATE walpost.dead_letter d SET status = 'held', held_behind = (SELECT c.id FROM walpost.dead_letter c
      WHERE c.slot = d.slot AND c.life = $2 AND c.position_lsn = $3::text::pg_catalog.pg_lsn AND c.position_ordinal = $4)
    WHERE d.id = $1 AND d.status = 'replaying'";

/// A row that was read again and whose letter is resolved is kept once more: its key is held again.
const PARK: &str = "INSERT INTO walpost.dead_letter AS d (slot, life, outbox, event_id, position_lsn, position_ordinal, committed_at, topic, partition, key,
          headers, record_ms, payload, raw, status, error_class, error_code, error_text, first_failed_at, last_failed_at, next_retry_at, held_behind)
        SELECT $1, $2, $3, $4, $5::text::pg_catalog.pg_lsn, $6, '2000-01-01 00:00:00+00'::timestamptz + $7::bigint * interval '1 microsecond', $8, $9, $10,
          $11::jsonb, $12, $13, $14::jsonb, $15, $16, $17, $18, f.at, f.at, pg_catalog.clock_timestamp() + $19::float8 * interval '1 second',
          (SELECT c.id FROM walpost.dead_letter c
           WHERE c.slot = $1 AND c.life = $20 AND c.position_lsn = $21::text::pg_catalog.pg_lsn AND c.position_ordinal = $22)
        FROM (SELECT CASE WHEN $16::text IS NOT NULL THEN pg_catalog.clock_timestamp() END AS at) f
        ON CONFLICT (slot, life, position_lsn, position_ordinal) DO UPDATE SET status = excluded.status, error_class = excluded.error_class,
          error_code = excluded.error_code, error_text = excluded.error_text, attempts = 0,
          first_failed_at = coalesce(d.first_failed_at, excluded.first_failed_at), last_failed_at = excluded.last_failed_at,
          next_retry_at = excluded.next_retry_at, held_behind = excluded.held_behind
        WHERE d.status = 'resolved'
        RETURNING d.id, d.attempts, d.first_failed_at, d.last_failed_at";

fn noted(row: Option<Row>) -> Result<Option<Noted>, tokio_postgres::Error> {
    let Some(row) = row else { return Ok(None) };
    let time = |index| -> Result<Option<jiff::Timestamp>, tokio_postgres::Error> {
        let at: Option<SystemTime> = row.try_get(index)?;
        Ok(at.and_then(|at| at.try_into().ok()))
    };
    Ok(Some(Noted {
        id: row.try_get(0)?,
        attempts: row.try_get(1)?,
        first_failed_at: time(2)?,
        last_failed_at: time(3)?,
    }))
}

/// With what the database does not take as `\u{…}`.
fn plain(text: &str, ascii: bool) -> Cow<'_, str> {
    let takes = |c: char| c != '\0' && (!ascii || c.is_ascii());
    if text.chars().all(takes) {
        return text.into();
    }
    let mut plain = String::new();
    for c in text.chars() {
        match takes(c) {
            true => plain.push(c),
            false => plain.extend(c.escape_unicode()),
        }
    }
    plain.into()
}

async fn write_park(
    transaction: &Transaction<'_>,
    statement: &Statement,
    owner: &Owner,
    park: &Park,
    ascii: bool,
) -> Result<Option<Noted>, tokio_postgres::Error> {
    let (life, commit, ordinal) = parts(&park.place);
    let kept = park.kept.as_ref();
    let as_stored = |json| if ascii { as_ascii(json) } else { json };
    // A raw row has no headers yet, but what its record is to say of where it was read.
    let reread = park.raw.as_ref().and(park.reread);
    let reread = reread.map(|reread| json!([[WALPOST_REPLAY, reread.name()]]));
    let headers = kept.map(|kept| as_stored(headers_to_json(&kept.headers)));
    let headers = headers.or(reread);
    let raw = park.raw.clone().map(as_stored);
    let event_id = park.event_id.as_deref().map(|id| plain(id, ascii));
    let fault = park.fault.as_ref();
    let status = if park.behind.is_some() {
        "held"
    } else {
        "pending"
    };
    let behind = park.behind.as_ref().map(parts);
    let values: &[&(dyn ToSql + Sync)] = &[
        &owner.slot,
        &life,
        &park.outbox,
        &event_id,
        &commit,
        &ordinal,
        &park.committed_at.micros(),
        &park.topic,
        &kept.and_then(|kept| kept.partition).or(park.partition),
        &park.key,
        &headers,
        &kept.map(|kept| kept.timestamp),
        &kept.and_then(|kept| kept.payload.as_deref()),
        &raw,
        &status,
        &fault.map(|fault| fault.class),
        &fault.map(|fault| fault.code.as_str()),
        &fault.map(|fault| plain(&fault.text, ascii)),
        &park.retry_after.map(|after| after.as_secs_f64()),
        &behind.as_ref().map(|behind| behind.0),
        &behind.as_ref().map(|behind| behind.1.as_str()),
        &behind.as_ref().map(|behind| behind.2),
    ];
    noted(transaction.query_opt(statement, values).await?)
}

async fn write_failure(
    transaction: &Transaction<'_>,
    failure: &Failure,
    ascii: bool,
) -> Result<Option<Noted>, tokio_postgres::Error> {
    let text = "UPDATE walpost.dead_letter d SET status = $2, attempts = attempts + 1, error_class = $3, error_code = $4, error_text = $5,
          first_failed_at = coalesce(first_failed_at, f.at), last_failed_at = f.at,
          next_retry_at = f.at + $6::float8 * interval '1 second', held_behind = NULL
        FROM (SELECT pg_catalog.clock_timestamp() AS at) f
        WHERE id = $1 AND status = 'replaying' AND attempts = $7
        RETURNING d.id, d.attempts, d.first_failed_at, d.last_failed_at";
    let status = if failure.is_dead { "dead" } else { "pending" };
    let fault = &failure.fault;
    let retry_after = failure.retry_after.map(|after| after.as_secs_f64());
    let values: &[&(dyn ToSql + Sync)] = &[
        &failure.id,
        &status,
        &fault.class,
        &fault.code,
        &plain(&fault.text, ascii),
        &retry_after,
        &failure.attempts,
    ];
    let changed = noted(transaction.query_opt(text, values).await?)?;
    if changed.is_some() && failure.holds {
        let text = "UPDATE walpost.dead_letter d SET held_behind = f.id FROM walpost.dead_letter f
            WHERE f.id = $1 AND d.slot = f.slot AND d.outbox = f.outbox AND d.topic = f.topic AND d.key = f.key AND d.status = 'held'
              AND d.held_behind IS DISTINCT FROM f.id";
        transaction.execute(text, &[&failure.id]).await?;
    }
    Ok(changed)
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
    let replaying = "SELECT id, outbox, topic, key, life, position_lsn::text, position_ordinal FROM walpost.dead_letter
        WHERE slot = $1 AND status = 'replaying' ORDER BY life, position_lsn, position_ordinal, id";
    let first = format!(
        "SELECT id, outbox, topic, key, life, position_lsn::text, position_ordinal
         FROM (SELECT DISTINCT ON (outbox, topic, key) * FROM walpost.dead_letter
           WHERE slot = $1 AND {OPEN} AND key IS NOT NULL AND position_lsn IS NOT NULL
           ORDER BY outbox, topic, key, life, position_lsn, position_ordinal) f
         WHERE status IN ('held', 'replaying')"
    );
    let next = "SELECT extract(epoch FROM min(next_retry_at) - pg_catalog.clock_timestamp())::float8 FROM walpost.dead_letter
        WHERE slot = $1 AND status = 'pending'";
    let mut looked = Looked::default();
    for row in client.query(replaying, &[&owner.slot]).await? {
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

/// The key whose letters are taken, and which.
#[derive(Clone, Debug)]
pub struct Take {
    pub outbox: String,
    pub topic: String,
    pub key: Vec<u8>,
    pub bound: Place,
    pub max_rows: usize,
    pub max_bytes: u64,
    /// Letters in flight.
    pub except: Vec<i64>,
}

/// Takes letters of one key, in order: they are `replaying` from now on.
pub async fn take(client: &mut Client, owner: &Owner, take: &Take) -> Result<Taken, Refused> {
    let transaction = begin(client, owner).await?;
    let text = format!(
        "SELECT id, life, position_lsn::text, position_ordinal, status IN ('pending', 'dead'), error_class IS NOT NULL,
           coalesce(pg_catalog.octet_length(payload), 0) + coalesce(pg_catalog.length(raw::text), 0)
         FROM walpost.dead_letter
         WHERE slot = $1 AND outbox = $2 AND topic = $3 AND key = $4 AND {OPEN} AND position_lsn IS NOT NULL AND id <> ALL ($5)
         ORDER BY outbox, topic, key, life, position_lsn, position_ordinal LIMIT $6 FOR UPDATE"
    );
    let limit = take.max_rows as i64 + 1;
    let values: &[&(dyn ToSql + Sync)] = &[
        &owner.slot,
        &take.outbox,
        &take.topic,
        &take.key,
        &take.except,
        &limit,
    ];
    let mut candidates = Vec::new();
    for row in transaction.query(&text, values).await? {
        let at = place(row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
        candidates.extend(at.map(|place| Candidate {
            id: row.get(0),
            place,
            waits: row.get(4),
            failed: row.get(5),
            bytes: u64::try_from(row.get::<_, i32>(6)).unwrap_or_default(),
        }));
    }
    let mut taken = Taken {
        letters: Vec::new(),
        left: candidates.len(),
        waits_for: None,
    };
    match choose(&candidates, take.bound, take.max_bytes) {
        Choice::Nothing | Choice::NotYet => {}
        Choice::WaitsFor(place) => taken.waits_for = Some(place),
        Choice::Take(count) => {
            let count = count.min(take.max_rows);
            let ids: Vec<i64> = candidates[..count].iter().map(|letter| letter.id).collect();
            let text = format!(
                "UPDATE walpost.dead_letter d SET status = 'replaying', held_behind = NULL WHERE id = ANY ($1) RETURNING {COLUMNS}"
            );
            let rows = transaction.query(&text, &[&ids]).await?;
            taken.letters = letters(&transaction, &rows).await?;
            taken.letters.sort_by_key(|letter| letter.place);
            taken.left = count_left(&transaction, owner, take, &ids).await?;
        }
    }
    transaction.commit().await?;
    Ok(taken)
}

/// More than two batches are as good as many.
async fn count_left(
    transaction: &Transaction<'_>,
    owner: &Owner,
    take: &Take,
    taken: &[i64],
) -> Result<usize, tokio_postgres::Error> {
    let text = format!(
        "SELECT count(*) FROM (SELECT FROM walpost.dead_letter WHERE slot = $1 AND outbox = $2 AND topic = $3 AND key = $4 AND {OPEN}
           AND position_lsn IS NOT NULL AND id <> ALL ($5) AND id <> ALL ($6) LIMIT $7) l"
    );
    let limit = 2 * take.max_rows as i64;
    let values: &[&(dyn ToSql + Sync)] = &[
        &owner.slot,
        &take.outbox,
        &take.topic,
        &take.key,
        &take.except,
        &taken,
        &limit,
    ];
    let row = transaction.query_one(&text, values).await?;
    Ok(usize::try_from(row.try_get::<_, i64>(0)?).unwrap_or_default())
}

/// Letters that are still `replaying`, with their bytes.
pub async fn fetch(
    client: &mut Client,
    owner: &Owner,
    ids: &[i64],
) -> Result<Vec<Letter>, Refused> {
    let transaction = begin(client, owner).await?;
    let text = format!(
        "SELECT {COLUMNS} FROM walpost.dead_letter d WHERE slot = $1 AND id = ANY ($2) AND status = 'replaying'
         ORDER BY life, position_lsn, position_ordinal, id"
    );
    let rows = transaction.query(&text, &[&owner.slot, &ids]).await?;
    let letters = letters(&transaction, &rows).await?;
    transaction.commit().await?;
    Ok(letters)
}

async fn letters(
    transaction: &Transaction<'_>,
    rows: &[Row],
) -> Result<Vec<Letter>, tokio_postgres::Error> {
    let mut letters = Vec::with_capacity(rows.len());
    for row in rows {
        letters.push(letter(transaction, row).await?);
    }
    Ok(letters)
}

async fn letter(transaction: &Transaction<'_>, row: &Row) -> Result<Letter, tokio_postgres::Error> {
    let class: Option<&str> = row.try_get(10)?;
    let mut letter = Letter {
        id: row.try_get(0)?,
        outbox: row.try_get(1)?,
        topic: row.try_get(2)?,
        key: row.try_get(3)?,
        place: place(row.try_get(4)?, row.try_get(5)?, row.try_get(6)?),
        event_id: row.try_get(7)?,
        committed_at: PgTime::new(row.try_get::<_, Option<i64>>(8)?.unwrap_or_default()),
        attempts: row.try_get(9)?,
        failed: class.is_some(),
        resend: class == Some("resend"),
        body: Body::Broken("it holds neither a record nor a row".into()),
    };
    letter.body = body(transaction, &letter, row).await?;
    Ok(letter)
}

async fn body(
    transaction: &Transaction<'_>,
    letter: &Letter,
    row: &Row,
) -> Result<Body, tokio_postgres::Error> {
    let raw: Option<Value> = row.try_get(14)?;
    if let Some(raw) = raw {
        return Ok(match tuple_of(&raw) {
            Err(text) => Body::Broken(text),
            Ok((names, tuple)) => Body::Row {
                columns: typed(transaction, &letter.outbox, names).await?,
                tuple,
                origin: match row.try_get::<_, Option<Value>>(11)? {
                    _ if letter.resend => Origin::Table(Reread::Resend),
                    Some(_) => Origin::TableLetter,
                    None => Origin::Letter,
                },
            },
        });
    }
    let headers: Option<Value> = row.try_get(11)?;
    let timestamp: Option<i64> = row.try_get(12)?;
    let (Some(headers), Some(timestamp)) = (headers, timestamp) else {
        return Ok(Body::Broken("it holds neither a record nor a row".into()));
    };
    Ok(match headers_from_json(&headers) {
        Err(text) => Body::Broken(text),
        Ok(headers) => Body::Kept(Kept {
            topic: letter.topic.clone(),
            key: letter.key.clone(),
            headers,
            timestamp,
            partition: row.try_get(15)?,
            payload: row.try_get(13)?,
        }),
    })
}

/// Column names with the OIDs of their types today; a column that is gone has none, 0xFFFFFFFF.
async fn typed(
    transaction: &Transaction<'_>,
    outbox: &str,
    names: Vec<String>,
) -> Result<Vec<(String, u32)>, tokio_postgres::Error> {
    let text = "SELECT a.attname::text, a.atttypid FROM pg_catalog.pg_attribute a
          JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname || '.' || c.relname = $1 AND a.attnum > 0 AND NOT a.attisdropped";
    let rows = transaction.query(text, &[&outbox]).await?;
    let of = |name: &String| {
        let found = rows.iter().find(|row| row.get::<_, &str>(0) == name);
        found.map_or(u32::MAX, |row| row.get(1))
    };
    Ok(names
        .into_iter()
        .map(|name| {
            let oid = of(&name);
            (name, oid)
        })
        .collect())
}

/// Where rows of an event may still be: an outbox table and its column with the event's id.
#[derive(Clone, Debug)]
pub struct Source {
    pub outbox: String,
    pub schema: String,
    pub table: String,
    pub event_id: String,
}

/// What a letter that an operator asked for sends: the bytes of an older letter of the event, or
/// the event's row in an outbox table.
pub async fn find_event(
    client: &Client,
    sources: &[Source],
    letter: &mut Letter,
) -> Result<(), Refused> {
    let event = letter.event_id.clone().unwrap_or_default();
    let text = format!(
        "SELECT {COLUMNS} FROM walpost.dead_letter d WHERE event_id = $1 AND id < $2 AND (headers IS NOT NULL OR raw IS NOT NULL) ORDER BY id DESC LIMIT 1"
    );
    if let Some(row) = client.query_opt(&text, &[&event, &letter.id]).await? {
        let outbox: String = row.try_get(1)?;
        (letter.topic, letter.key) = (row.try_get(2)?, row.try_get(3)?);
        letter.outbox.clone_from(&outbox);
        let headers: Option<Value> = row.try_get(11)?;
        let timestamp: Option<i64> = row.try_get(12)?;
        if let (Some(headers), Some(timestamp)) = (headers, timestamp) {
            letter.body = match headers_from_json(&headers) {
                Err(text) => Body::Broken(text),
                Ok(headers) => Body::Kept(Kept {
                    topic: letter.topic.clone(),
                    key: letter.key.clone(),
                    headers,
                    timestamp,
                    partition: row.try_get(15)?,
                    payload: row.try_get(13)?,
                }),
            };
            return Ok(());
        }
    }
    for source in sources {
        let text = format!(
            "SELECT t.* FROM {}.{} t WHERE t.{}::text = $1 LIMIT 1",
            ident(&source.schema),
            ident(&source.table),
            ident(&source.event_id)
        );
        // As text, as the stream has it: the simple protocol gives nothing else.
        let text = text.replace("$1", &literal(&event));
        let found = client.simple_query(&text).await;
        let rows = match found {
            Ok(rows) => rows,
            Err(error) => {
                letter.body = Body::Broken(format!(
                    "table {} cannot be read: {}",
                    source.outbox,
                    reason(&error)
                ));
                continue;
            }
        };
        let row = rows.into_iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let Some(row) = row else { continue };
        let names: Vec<String> = row.columns().iter().map(|c| c.name().to_owned()).collect();
        let mut tuple = u16::try_from(names.len())
            .unwrap_or(u16::MAX)
            .to_be_bytes()
            .to_vec();
        for index in 0..names.len() {
            match row.get(index) {
                None => tuple.push(b'n'),
                Some(value) => {
                    tuple.push(b't');
                    tuple.extend((value.len() as u32).to_be_bytes());
                    tuple.extend(value.as_bytes());
                }
            }
        }
        let types = "SELECT a.attname::text, a.atttypid FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0";
        let types = client
            .query(types, &[&source.schema, &source.table])
            .await?;
        let of = |name: &String| {
            let found = types.iter().find(|row| row.get::<_, &str>(0) == name);
            found.map_or(u32::MAX, |row| row.get(1))
        };
        let columns = names.into_iter().map(|name| {
            let oid = of(&name);
            (name, oid)
        });
        letter.outbox.clone_from(&source.outbox);
        letter.body = Body::Row {
            columns: columns.collect(),
            tuple,
            origin: Origin::Table(Reread::Resend),
        };
        return Ok(());
    }
    if !matches!(&letter.body, Body::Broken(text) if text.starts_with("table ")) {
        letter.body = Body::Broken(format!("event {event} is in no letter and no outbox table"));
    }
    Ok(())
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn reason(error: &tokio_postgres::Error) -> String {
    error
        .as_db_error()
        .map_or_else(|| error.to_string(), |db| db.message().to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_database_does_not_take_is_written_as_an_escape() {
        assert_eq!(plain("aé\0", false), "aé\\u{0}");
        assert_eq!(plain("aé\0", true), "a\\u{e9}\\u{0}");
        assert!(matches!(plain("plain", true), Cow::Borrowed("plain")));
    }
}

//! Which letters of a key are released next.

use tokio_postgres::{Client, Transaction, types::ToSql};

use super::{
    super::letter::Place, BY_PLACE, COLUMNS, Letter, OPEN, Owner, Refused, begin, fetch::letters,
    place,
};

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
         FROM walpost.dead_letter d
         WHERE slot = $1 AND outbox = $2 AND topic = $3 AND key = $4 AND {OPEN} AND position_lsn IS NOT NULL AND id <> ALL ($5)
         ORDER BY outbox, topic, key, {BY_PLACE} LIMIT $6 FOR UPDATE"
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

//! One transaction of a writer, as SQL.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::SinkExt;
use tokio_postgres::{Client, Error};

use super::{Kind, Plan};
use crate::harness::Dice;

/// What the rows of one transaction are made of.
pub struct Script<'a> {
    dice: &'a mut Dice,
    plan: &'a Plan,
    /// In their order, so that writers never wait for each other in a ring.
    keys: Vec<u64>,
}

/// The statement that inserts so many rows of a key, with the numbers that the key's lock gave.
pub fn rows(key: u64, kind: &str, count: u64, text: &str) -> String {
    format!(
        "WITH next AS (UPDATE keys SET seq = seq + {count} WHERE key = 'key-{key}' RETURNING seq - {count} AS last)
         INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT '{kind}', 'key-{key}', 'T', jsonb_build_object('seq', last + i, 'text', '{text}')
         FROM next, generate_series(1, {count}) i ORDER BY i RETURNING event_id::text;"
    )
}

/// Letters that the large rows of one transaction have together, if one row has not more.
const TOGETHER: u64 = 150_000;

/// So many letters that no codec makes much smaller.
pub fn noise(dice: &mut Dice, length: u64) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-";
    let mut text = String::new();
    while (text.len() as u64) < length {
        let mut bits = dice.next();
        for _ in 0..10 {
            text.push(char::from(LETTERS[(bits & 63) as usize]));
            bits >>= 6;
        }
    }
    text.truncate(usize::try_from(length).expect("a length"));
    text
}

impl<'a> Script<'a> {
    pub fn new(dice: &'a mut Dice, plan: &'a Plan) -> Script<'a> {
        let mut keys: Vec<u64> = (0..dice.between(1, 4))
            .map(|_| dice.between(0, plan.keys))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        Script { dice, plan, keys }
    }

    /// The key's type and its longest text.
    fn kind(&self, key: u64) -> (&'static str, u64) {
        self.plan.types[(key % self.plan.types.len() as u64) as usize]
    }

    /// So many rows of a key, one after the other.
    fn some(&self, key: u64, count: usize) -> String {
        rows(key, self.kind(key).0, 1, "ä\"").repeat(count)
    }

    fn some_of_each(&self, count: usize) -> String {
        self.keys.iter().map(|key| self.some(*key, count)).collect()
    }

    pub async fn run(self, kind: Kind, client: &Client, name: &str) -> Result<(), Error> {
        let key = self.keys[0];
        let statements = match kind {
            Kind::Plain => self.some(key, 1),
            Kind::Multi => self.some_of_each(3),
            Kind::Rollback => format!("BEGIN; {} ROLLBACK", self.some_of_each(2)),
            Kind::Savepoint => {
                let (one, two) = (self.some(key, 1), self.some(key, 2));
                format!("BEGIN; {one} SAVEPOINT s; {two} ROLLBACK TO s; {one} COMMIT")
            }
            Kind::Copy => return self.copy(client, key).await,
            Kind::Prepared => {
                let rows = self.some(key, 2);
                let phase = format!("BEGIN; {rows} PREPARE TRANSACTION '{name}'");
                client.batch_execute(&phase).await?;
                format!("COMMIT PREPARED '{name}'")
            }
            Kind::Long => {
                let one = self.some(key, 1);
                client.batch_execute(&format!("BEGIN; {one}")).await?;
                tokio::time::sleep(Duration::from_millis(self.dice.between(500, 5_000))).await;
                format!("{one} COMMIT")
            }
            Kind::Bulk => rows(key, self.kind(key).0, self.dice.between(100, 600), "b"),
            Kind::Large => {
                let (kind, longest) = self.kind(key);
                // Every size, and the limit itself now and then.
                let length = *self.dice.pick(&[longest, longest / 2, longest / 10, 5_000]);
                // Small ones come in numbers, so batches reach their limits too.
                let count = self.dice.between(1, 2 + TOGETHER / length);
                let row = |_| rows(key, kind, 1, &noise(self.dice, length));
                (0..count).map(row).collect()
            }
            Kind::Keyless => format!(
                "INSERT INTO public.outbox (aggregate_type, event_type, payload) VALUES ('{}', 'T', '{{}}')",
                self.kind(key).0
            ),
            Kind::Foreign => {
                "INSERT INTO foreign_rows SELECT repeat('f', 1000) FROM generate_series(1, 100)"
                    .to_owned()
            }
            Kind::Messages => format!(
                "BEGIN; SELECT pg_logical_emit_message(true, 'app', 'm'), pg_logical_emit_message(false, 'app', 'm');
                 {} SELECT pg_logical_emit_message(true, 'app', 'm'); COMMIT",
                self.some(key, 1)
            ),
            Kind::Hasty => {
                let one = self.some(key, 1);
                format!("BEGIN; SET LOCAL synchronous_commit = off; {one} COMMIT")
            }
            Kind::Poison => self.poison(key),
            Kind::Alter => self.alter(key),
        };
        client.batch_execute(&statements).await
    }

    fn poison(self, key: u64) -> String {
        let one = self.some(key, 1);
        if self.dice.between(0, 12) > 0 {
            return one;
        }
        let (kind, _) = self.kind(key);
        let (too_long, length) = self.plan.too_long;
        let bad = if kind == too_long && *self.dice.pick(&[true, true, false]) {
            rows(key, kind, 1, &noise(self.dice, length))
        } else {
            // Headers that are no object.
            one.replace("payload)", "payload, headers)")
                .replace("FROM next", ", '[1]'::jsonb FROM next")
        };
        let shapes = [
            bad.clone(),
            format!("{one}{bad}{one}{one}"),
            format!("BEGIN; {one}{bad}{one} COMMIT"),
            format!("BEGIN; {bad}{bad}{one} COMMIT"),
            format!("BEGIN; {one}{bad}{one} ROLLBACK"),
        ];
        self.dice.pick(&shapes).clone()
    }

    fn alter(self, key: u64) -> String {
        const OUTBOX: &str = "public.outbox";
        let one = self.some(key, 1);
        // A column that isn't there to be renamed is no failure.
        let rename = |old, new| {
            format!(
                "DO $$ BEGIN ALTER TABLE {OUTBOX} RENAME COLUMN {old} TO {new};
                 EXCEPTION WHEN undefined_column OR duplicate_column THEN NULL; END $$;"
            )
        };
        let change = match self.dice.between(0, 7) {
            0 | 1 => {
                format!("ALTER TABLE {OUTBOX} ADD COLUMN IF NOT EXISTS more text DEFAULT 'm';")
            }
            2 => format!("ALTER TABLE {OUTBOX} DROP COLUMN IF EXISTS more;"),
            3 => format!("ALTER TABLE {OUTBOX} DROP COLUMN IF EXISTS other;"),
            4 => rename("more", "other"),
            5 => rename("other", "more"),
            _ => {
                let renamed = one.replace(OUTBOX, "public.outbox_renamed");
                format!(
                    "ALTER TABLE {OUTBOX} RENAME TO outbox_renamed; {renamed} ALTER TABLE public.outbox_renamed RENAME TO outbox;"
                )
            }
        };
        // Whoever waits for this lock lets nobody pass.
        format!("BEGIN; SET LOCAL lock_timeout = '100ms'; {one} {change} {one} COMMIT")
    }

    async fn copy(self, client: &Client, key: u64) -> Result<(), Error> {
        let count = self.dice.between(5, 40);
        client.batch_execute("BEGIN").await?;
        let reserve =
            format!("UPDATE keys SET seq = seq + {count} WHERE key = 'key-{key}' RETURNING seq");
        let last: i64 = client.query_one(&reserve, &[]).await?.get(0);
        let (count, kind) = (count.cast_signed(), self.kind(key).0);
        let mut text = String::new();
        for seq in last - count + 1..=last {
            text += &format!("{kind}\tkey-{key}\tT\t{{\"seq\": {seq}}}\n");
        }
        let sink = client
            .copy_in(
                "COPY public.outbox (aggregate_type, aggregate_id, event_type, payload) FROM STDIN",
            )
            .await?;
        let mut sink = pin!(sink);
        sink.send(Bytes::from(text)).await?;
        sink.finish().await?;
        client.batch_execute("COMMIT").await
    }
}

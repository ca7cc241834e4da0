//! Writers whose truth is known: each key has a row whose lock orders the transactions that write
//! it, so `seq` in the payload is the commit order of the key.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::SinkExt;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, Error};

use super::{Dice, Scene, block_on, runtime, sql::connect};

/// What one transaction does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// One row.
    Plain,
    /// Three rows each of up to three keys.
    Multi,
    /// Rows that are rolled back.
    Rollback,
    /// A row, two rolled back to a savepoint, a row.
    Savepoint,
    /// Up to forty rows by COPY.
    Copy,
    /// Two rows, committed in two phases.
    Prepared,
}

pub const ALL: &[Kind] = &[
    Kind::Plain,
    Kind::Multi,
    Kind::Rollback,
    Kind::Savepoint,
    Kind::Copy,
    Kind::Prepared,
];

#[derive(Clone)]
pub struct Plan {
    pub writers: usize,
    pub keys: u64,
    /// Of each writer; without it they write until told to stop.
    pub transactions: Option<u64>,
    /// Mean pause after a transaction, in ms.
    pub pause: u64,
    pub kinds: &'static [Kind],
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            writers: 4,
            keys: 10,
            transactions: None,
            pause: 5,
            kinds: ALL,
        }
    }
}

/// Running writers; stopped when dropped.
pub struct Load {
    halt: Arc<AtomicBool>,
    writers: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn start(scene: &Scene, plan: &Plan) -> Load {
        scene.sql.run(&format!(
            "CREATE TABLE keys (key text PRIMARY KEY, seq bigint NOT NULL DEFAULT 0);
             INSERT INTO keys SELECT 'key-' || i FROM generate_series(0, {}) i",
            plan.keys - 1
        ));
        let halt = Arc::new(AtomicBool::new(false));
        let mut dice = Dice::new();
        let writer = |number| {
            let writer = Writer {
                login: scene.server.superuser(&scene.tag),
                plan: plan.clone(),
                dice: Dice::from_seed(dice.next()),
                name: format!("{}-{number}", scene.tag),
                halt: halt.clone(),
            };
            runtime().spawn(writer.write())
        };
        let writers = (0..plan.writers).map(writer).collect();
        Load { halt, writers }
    }

    /// Waits until every writer has done its transactions.
    pub fn finish(mut self) {
        for writer in std::mem::take(&mut self.writers) {
            block_on(writer).expect("a writer does not panic");
        }
    }

    /// Lets each writer end the transaction it is in.
    pub fn stop(self) {
        self.halt.store(true, Relaxed);
        self.finish();
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.halt.store(true, Relaxed);
    }
}

struct Writer {
    login: Config,
    plan: Plan,
    dice: Dice,
    name: String,
    halt: Arc<AtomicBool>,
}

impl Writer {
    async fn write(mut self) {
        let mut done = 0;
        let mut client = None;
        while !self.halt.load(Relaxed) && self.plan.transactions.is_none_or(|limit| done < limit) {
            // A server that stops takes the session along; the table tells what was committed.
            if client.as_ref().is_none_or(Client::is_closed) {
                client = connect(&self.login).await.ok();
            }
            let written = match &client {
                Some(client) => self.transaction(client, done).await.is_ok(),
                None => false,
            };
            if written {
                done += 1;
                let pause = self.dice.between(0, 2 * self.plan.pause + 1);
                if pause > 0 {
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            } else {
                client = None;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// The number that the key's lock gave, and the rows, in one statement.
    fn rows(key: u64, count: u64) -> String {
        let row = format!(
            "WITH next AS (UPDATE keys SET seq = seq + 1 WHERE key = 'key-{key}' RETURNING seq)
             INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 'order', 'key-{key}', 'T', jsonb_build_object('seq', seq, 'text', 'ä\"') FROM next;"
        );
        row.repeat(usize::try_from(count).expect("a small number"))
    }

    async fn transaction(&mut self, client: &Client, number: u64) -> Result<(), Error> {
        let kind = *self.dice.pick(self.plan.kinds);
        // Keys in their order, so that writers never wait for each other in a ring.
        let mut keys: Vec<u64> = (0..self.dice.between(1, 4))
            .map(|_| self.dice.between(0, self.plan.keys))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let key = keys[0];
        let all = |count| {
            keys.iter()
                .map(|key| Self::rows(*key, count))
                .collect::<String>()
        };
        let statements = match kind {
            Kind::Plain => format!("BEGIN; {} COMMIT", Self::rows(key, 1)),
            Kind::Multi => format!("BEGIN; {} COMMIT", all(3)),
            Kind::Rollback => format!("BEGIN; {} ROLLBACK", all(2)),
            Kind::Savepoint => {
                let (one, two) = (Self::rows(key, 1), Self::rows(key, 2));
                format!("BEGIN; {one} SAVEPOINT s; {two} ROLLBACK TO s; {one} COMMIT")
            }
            Kind::Prepared => {
                let name = format!("{}-{number}", self.name);
                let phase = format!("BEGIN; {} PREPARE TRANSACTION '{name}'", Self::rows(key, 2));
                client.batch_execute(&phase).await?;
                format!("COMMIT PREPARED '{name}'")
            }
            Kind::Copy => return self.copy(client, key).await,
        };
        client.batch_execute(&statements).await
    }

    async fn copy(&mut self, client: &Client, key: u64) -> Result<(), Error> {
        let count = self.dice.between(5, 40);
        client.batch_execute("BEGIN").await?;
        let reserve =
            format!("UPDATE keys SET seq = seq + {count} WHERE key = 'key-{key}' RETURNING seq");
        let last: i64 = client.query_one(&reserve, &[]).await?.get(0);
        let count = count.cast_signed();
        let mut text = String::new();
        for seq in last - count + 1..=last {
            text += &format!("order\tkey-{key}\tT\t{{\"seq\": {seq}}}\n");
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

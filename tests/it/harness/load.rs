//! Writers whose truth is known: each key has a row whose lock orders the transactions that write
//! it, so `seq` in the payload is the commit order of the key.

mod transaction;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, Error};

use self::transaction::Script;
pub use self::transaction::{noise, rows};
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
    /// A row, a pause of some seconds, a row.
    Long,
    /// Hundreds of rows of one key.
    Bulk,
    /// Rows of incompressible text, up to the longest that the type takes.
    Large,
    /// A row without a key: it has no order.
    Keyless,
    /// Rows of a table that nobody publishes.
    Foreign,
    /// A row between logical messages of the application's own, which have ordinals too.
    Messages,
    /// A row whose commit is acknowledged before it is on disk: a crash may take it back.
    Hasty,
    /// Now and then a row that the topic does not take, or that no record can be made of, between others
    /// of its key; otherwise a row.
    Poison,
    /// The outbox table gets another column, loses it, gives it another name, or has another name
    /// itself for a while, with a row before, behind and meanwhile.
    Alter,
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
    /// Aggregate types, each with the length of the longest text in its payloads; a key is of one type.
    pub types: &'static [(&'static str, u64)],
    /// The aggregate type whose topic does not take texts of this length.
    pub too_long: (&'static str, u64),
    /// `None`: a new one, printed.
    pub seed: Option<u64>,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            writers: 4,
            keys: 10,
            transactions: None,
            pause: 5,
            kinds: ALL,
            types: &[("order", 100_000)],
            too_long: ("", 0),
            seed: None,
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
             INSERT INTO keys SELECT 'key-' || i FROM generate_series(0, {}) i;
             CREATE TABLE foreign_rows (text text)",
            plan.keys - 1
        ));
        let halt = Arc::new(AtomicBool::new(false));
        let mut dice = plan.seed.map_or_else(Dice::new, Dice::from_seed);
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
                client = self.connect().await.ok();
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
        if client.is_none() {
            // Nothing prepared stays behind; a server that is gone for good has nothing to end.
            let _ = self.connect().await;
        }
    }

    /// What an earlier session left prepared is ended first: it holds the locks of its keys.
    async fn connect(&mut self) -> Result<Client, Error> {
        let client = connect(&self.login).await?;
        let left = format!(
            "SELECT gid FROM pg_prepared_xacts WHERE gid LIKE '{}-%' ORDER BY gid",
            self.name
        );
        for row in client.query(&left, &[]).await? {
            let (gid, end): (&str, _) = (row.get(0), self.dice.pick(&["COMMIT", "ROLLBACK"]));
            client
                .batch_execute(&format!("{end} PREPARED '{gid}'"))
                .await?;
        }
        Ok(client)
    }

    async fn transaction(&mut self, client: &Client, number: u64) -> Result<(), Error> {
        let kind = *self.dice.pick(self.plan.kinds);
        let name = format!("{}-{number}", self.name);
        Script::new(&mut self.dice, &self.plan)
            .run(kind, client, &name)
            .await
    }
}

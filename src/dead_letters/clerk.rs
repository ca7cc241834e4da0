//! A task with a connection of its own that reads and writes dead letters. The relay never waits
//! for it; its answers arrive like any other event.

use std::{collections::HashMap, time::Duration};

use anyhow::anyhow;
use tokio::{sync::mpsc, time::timeout};
use tokio_postgres::Client;
use tracing::debug;

use super::store::{
    self, Letter, Loaded, Looked, Moved, Noted, OfEvent, Owner, Refused, Source, Take, Taken,
    Write, find_event,
};
use crate::{
    config::{Config, Outbox},
    error::Failure,
    lsn::Lsn,
    outbox::row::Reread,
    pg::{conninfo::ConnInfo, failure::of_statement, sql},
};

/// A statement that takes longer is given up and the connection with it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Nothing here waits for locks of others for long.
const LOCK_TIMEOUT: &str = "SET lock_timeout = '5s'";

/// Whether the database lacks characters that UTF-8 has. One without an encoding takes any.
const ENCODING: &str =
    "SELECT pg_catalog.current_setting('server_encoding') NOT IN ('UTF8', 'SQL_ASCII')";

/// What is asked of the task; one order at a time.
#[derive(Debug)]
pub enum Order {
    /// What must be known before the stream is read from here.
    Load(Lsn),
    /// The letters of this table's events that are open or ignored.
    OfEvents(String),
    /// Letters whose rows are read from the table: where they stand now.
    Replace(Vec<Moved>, Reread),
    Write(Vec<Write>),
    Take(Take),
    Look {
        limit: i64,
    },
    Fetch(Vec<i64>),
    /// The topic takes records again.
    Opened(String),
    /// Removes what was closed longer ago than this.
    Retire(Duration),
}

#[derive(Debug)]
pub enum Done {
    Loaded(Loaded),
    /// By event id.
    OfEvents(HashMap<String, OfEvent>),
    Replaced,
    Written(Written),
    Taken(Taken),
    Looked(Looked),
    Fetched(Vec<Letter>),
    Opened,
    Retired(u64),
}

#[derive(Debug)]
pub struct Written {
    /// Where the log stood when it was durable.
    pub durable: Lsn,
    pub writes: Vec<Write>,
    /// Of each write that made a letter fail, what the letter is now.
    pub noted: Vec<Option<Noted>>,
}

/// Why an order was not carried out.
#[derive(Debug)]
pub enum Trouble {
    /// Another publisher took the slot over.
    Fenced,
    /// It can be tried again. What was to be written comes back.
    Passing(anyhow::Error, Option<Vec<Write>>),
}

/// The relay's end of the task.
pub struct Clerk {
    orders: mpsc::Sender<(u64, Owner, Order)>,
    answers: mpsc::Receiver<(u64, Result<Done, Trouble>)>,
    asked: u64,
    waiting: bool,
}

impl Clerk {
    /// For the configured outbox tables.
    pub fn of(config: &Config, info: &ConnInfo) -> Clerk {
        let source = |outbox: &Outbox| {
            Some(Source {
                outbox: outbox.table.to_string(),
                schema: outbox.table.schema.clone(),
                table: outbox.table.name.clone(),
                event_id: outbox.columns.event_id.clone()?,
            })
        };
        let application = format!("walpost:{}", config.postgres.slot);
        let sources = config.outbox.iter().filter_map(source).collect();
        Clerk::spawn(info.clone(), application, sources)
    }

    fn spawn(info: ConnInfo, application: String, sources: Vec<Source>) -> Clerk {
        let (orders, ordered) = mpsc::channel(1);
        let (answer, answers) = mpsc::channel(1);
        let task = Task {
            info,
            application,
            sources,
            client: None,
            ascii: false,
        };
        tokio::spawn(task.run(ordered, answer));
        Clerk {
            orders,
            answers,
            asked: 0,
            waiting: false,
        }
    }

    pub fn is_free(&self) -> bool {
        !self.waiting
    }

    /// Gives an order; only to a clerk that is free.
    pub fn order(&mut self, owner: Owner, order: Order) {
        debug_assert!(self.is_free());
        self.asked += 1;
        // The channel has room: the last answer was taken.
        self.waiting = self.orders.try_send((self.asked, owner, order)).is_ok();
    }

    /// What became of the order. Cancel-safe.
    pub async fn answer(&mut self) -> Result<Done, Trouble> {
        loop {
            match self.answers.recv().await {
                Some((number, answer)) if number == self.asked => {
                    self.waiting = false;
                    return answer;
                }
                Some(_) => {}
                None => {
                    self.waiting = false;
                    let ended = anyhow!("internal: the task that writes dead letters ended");
                    return Err(Trouble::Passing(ended, None));
                }
            }
        }
    }

    /// Orders and waits, once what is being done is done.
    pub async fn order_now(&mut self, owner: Owner, order: Order) -> Result<Done, Trouble> {
        if self.waiting {
            let _ = self.answer().await;
        }
        self.order(owner, order);
        self.answer().await
    }
}

struct Task {
    info: ConnInfo,
    application: String,
    sources: Vec<Source>,
    client: Option<Client>,
    /// The database may have no character for what letters say.
    ascii: bool,
}

impl Task {
    async fn run(
        mut self,
        mut orders: mpsc::Receiver<(u64, Owner, Order)>,
        answers: mpsc::Sender<(u64, Result<Done, Trouble>)>,
    ) {
        while let Some((number, owner, order)) = orders.recv().await {
            let done = match timeout(TIMEOUT, self.carry_out(&owner, &order)).await {
                Ok(done) => done,
                Err(_) => Err(Failure::Passing(anyhow!(
                    "PostgreSQL did not answer within {} s",
                    TIMEOUT.as_secs()
                ))
                .into()),
            };
            let answer = match (done, order) {
                (Ok(Step::Written(durable, noted)), Order::Write(writes)) => {
                    Ok(Done::Written(Written {
                        durable,
                        writes,
                        noted,
                    }))
                }
                (Ok(Step::Written(..)), _) => Ok(Done::Opened),
                (Ok(Step::Done(done)), _) => Ok(done),
                (Err(Unable::Fenced), _) => Err(Trouble::Fenced),
                (Err(Unable::Failed(error)), order) => {
                    self.client = None;
                    debug!("dead letters: {error:#}");
                    let writes = match order {
                        Order::Write(writes) => Some(writes),
                        _ => None,
                    };
                    Err(Trouble::Passing(error, writes))
                }
            };
            if answers.send((number, answer)).await.is_err() {
                return;
            }
        }
    }

    async fn carry_out(&mut self, owner: &Owner, order: &Order) -> Result<Step, Unable> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let client = sql::connect(&self.info, &self.application).await?;
            let refused = |error| of_statement(error, "write dead letters", &self.info);
            client.batch_execute(LOCK_TIMEOUT).await.map_err(refused)?;
            let row = client.query_one(ENCODING, &[]).await.map_err(refused)?;
            self.ascii = row.get(0);
            self.client = Some(client);
        }
        let Some(client) = &mut self.client else {
            return Err(Failure::Passing(anyhow!("no connection")).into());
        };
        let done = match order {
            Order::Load(confirmed) => store::load(client, owner, *confirmed)
                .await
                .map(|loaded| Step::Done(Done::Loaded(loaded))),
            Order::OfEvents(outbox) => store::of_events(client, owner, outbox)
                .await
                .map(|letters| Step::Done(Done::OfEvents(letters))),
            Order::Replace(places, reread) => store::replace(client, owner, places, *reread)
                .await
                .map(|()| Step::Done(Done::Replaced)),
            Order::Write(writes) => store::write(client, owner, writes, self.ascii)
                .await
                .map(|(durable, noted)| Step::Written(durable, noted)),
            Order::Take(take) => store::take(client, owner, take)
                .await
                .map(|taken| Step::Done(Done::Taken(taken))),
            Order::Look { limit } => store::look(client, owner, *limit)
                .await
                .map(|looked| Step::Done(Done::Looked(looked))),
            Order::Fetch(ids) => fetch(client, owner, &self.sources, ids)
                .await
                .map(|letters| Step::Done(Done::Fetched(letters))),
            Order::Opened(topic) => store::opened(client, owner, topic)
                .await
                .map(|()| Step::Done(Done::Opened)),
            Order::Retire(keep) => store::retire(client, owner, *keep)
                .await
                .map(|gone| Step::Done(Done::Retired(gone))),
        };
        done.map_err(|refused| match refused {
            Refused::Fenced => Unable::Fenced,
            Refused::Sql(error) => of_statement(error, "write dead letters", &self.info).into(),
        })
    }
}

async fn fetch(
    client: &mut Client,
    owner: &Owner,
    sources: &[Source],
    ids: &[i64],
) -> Result<Vec<Letter>, Refused> {
    let mut letters = store::fetch(client, owner, ids).await?;
    for letter in letters.iter_mut().filter(|letter| letter.resend) {
        find_event(client, sources, letter).await?;
    }
    Ok(letters)
}

enum Step {
    Written(Lsn, Vec<Option<Noted>>),
    Done(Done),
}

enum Unable {
    Fenced,
    Failed(anyhow::Error),
}

/// Also a missing right passes: nothing is lost while somebody grants it.
impl From<Failure> for Unable {
    fn from(failure: Failure) -> Self {
        Unable::Failed(match failure {
            Failure::Passing(error) => error,
            Failure::Stop(stop) => stop.into(),
        })
    }
}

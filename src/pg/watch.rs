//! The side connection: a task that checks slot and publication when asked, takes the slot over
//! and notes progress. The relay never waits for it; its answers arrive like any other event.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use tokio::{
    sync::{mpsc, oneshot},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_postgres::{Client, types::Type};
use tracing::debug;

use super::{
    conninfo::ConnInfo,
    failure::{CannotConnectNow, of_statement},
    mark,
    slot::{Names, SlotFacts, facts, verdict},
    sql,
};
use crate::{
    error::{Exit, Failure, Stop},
    ledger::ConfirmedLsn,
    lsn::{Lsn, PgTime},
    state::State,
};

/// How far ahead of what was received positions are recorded as ours, in bytes of WAL. A slot that
/// stands beyond the record was moved or made by somebody else.
pub const RESERVE: u64 = 64 << 20;

/// A statement that takes longer is given up and the connection with it.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// How soon the end of an idle side connection is noticed: a server that shuts down ends it first.
const CLOSED_POLL: Duration = Duration::from_millis(200);

/// What is asked of the task; one question at a time.
#[derive(Debug)]
pub enum Question {
    /// Look, and note progress first if there is any.
    Check(Option<Note>),
    /// A clean stop: no position beyond this one is ours.
    Release { epoch: i64, confirmed: Lsn },
    /// What is settled, where the stream that would tell it broke.
    Advance { epoch: i64, to: ConfirmedLsn },
    /// We hold the locks: the epochs before this one have passed.
    TakeOver,
}

/// What is to be written into `walpost.slot`, if it is still ours.
#[derive(Clone, Debug)]
pub struct Note {
    pub epoch: i64,
    pub progress: Option<Progress>,
    /// Positions up to here may be confirmed once it is written.
    pub reserve: Option<Lsn>,
    /// Worth a mark of this moment.
    pub mark: bool,
}

/// How far the publisher is.
#[derive(Clone, Debug)]
pub struct Progress {
    pub confirmed: Lsn,
    /// Of the newest settled row.
    pub committed_at: PgTime,
}

#[derive(Debug)]
pub enum Answer {
    /// Slot and publication are as they must be.
    Fine(Box<SlotFacts>),
    /// The new epoch, and how far positions are recorded as ours.
    TakenOver {
        epoch: i64,
        reserved: Lsn,
    },
    Released,
    Advanced,
    /// They aren't, or nobody may look: no position may move.
    Broken(Stop),
    /// Nothing is known: the connection failed. Also told when nobody asked.
    Lost(anyhow::Error),
    /// The server refuses new connections because it stops (or starts).
    ServerStopping,
}

/// The relay's end of the task.
pub struct Watch {
    questions: mpsc::Sender<(u64, Question)>,
    answers: mpsc::Receiver<(Option<u64>, Answer)>,
    /// The number of the last question.
    asked: u64,
    waiting: bool,
}

/// Anybody's way to fresh facts; the regular check isn't disturbed.
#[derive(Clone)]
pub struct Refresh(mpsc::Sender<oneshot::Sender<SlotFacts>>);

impl Refresh {
    /// `None` when the side connection has no answer.
    pub async fn facts(&self) -> Option<SlotFacts> {
        let (ask, answer) = oneshot::channel();
        self.0.send(ask).await.ok()?;
        answer.await.ok()
    }
}

impl Watch {
    pub fn spawn(info: ConnInfo, names: Names, state: Arc<State>) -> (Watch, Refresh) {
        let (questions, questioned) = mpsc::channel(1);
        let (answer, answers) = mpsc::channel(4);
        let (refresh, refreshes) = mpsc::channel(4);
        let task = Task {
            info,
            names,
            state,
            client: None,
        };
        tokio::spawn(task.run(questioned, answer, refreshes));
        (
            Watch {
                questions,
                answers,
                asked: 0,
                waiting: false,
            },
            Refresh(refresh),
        )
    }

    /// Asks; `false` when an answer is still awaited.
    pub fn ask(&mut self, question: Question) -> bool {
        let next = self.asked + 1;
        let asked = !self.waiting && self.questions.try_send((next, question)).is_ok();
        if asked {
            (self.asked, self.waiting) = (next, true);
        }
        asked
    }

    pub fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// The next answer, and whether it is to the question: a loss of the connection is told unasked
    /// too. Cancel-safe.
    pub async fn answer(&mut self) -> (bool, Answer) {
        match self.answers.recv().await {
            Some((None, answer)) => (false, answer),
            Some((Some(_), answer)) => {
                self.waiting = false;
                (true, answer)
            }
            None => {
                let ended = anyhow!("internal: the task of the side connection ended");
                (false, Answer::Broken(Stop::new(Exit::Error, ended)))
            }
        }
    }

    /// Asks and waits; an answer to an older question is left aside.
    pub async fn ask_now(&mut self, question: Question) -> Answer {
        let mut question = Some(question);
        loop {
            if !self.waiting
                && let Some(question) = question.take()
            {
                self.ask(question);
            }
            match self.answer().await {
                (true, answer) if question.is_none() => return answer,
                (false, Answer::Broken(stop)) => return Answer::Broken(stop),
                _ => {}
            }
        }
    }
}

struct Task {
    info: ConnInfo,
    names: Names,
    state: Arc<State>,
    client: Option<Client>,
}

impl Task {
    async fn run(
        mut self,
        mut questions: mpsc::Receiver<(u64, Question)>,
        answers: mpsc::Sender<(Option<u64>, Answer)>,
        mut refreshes: mpsc::Receiver<oneshot::Sender<SlotFacts>>,
    ) {
        let mut closed = interval(CLOSED_POLL);
        closed.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let answer = tokio::select! {
                question = questions.recv() => match question {
                    None => return,
                    Some((number, question)) => (Some(number), self.answer(question).await),
                },
                Some(ask) = refreshes.recv() => {
                    if let Answer::Fine(facts) = self.answer(Question::Check(None)).await {
                        // Nobody waits for it any more: then nobody needs it.
                        let _ = ask.send(*facts);
                    }
                    continue;
                }
                _ = closed.tick() => match &self.client {
                    Some(client) if client.is_closed() => {
                        self.client = None;
                        match self.connect().await {
                            Ok(()) => continue,
                            Err(answer) => (None, self.heard(answer)),
                        }
                    }
                    _ => continue,
                },
            };
            if answers.send(answer).await.is_err() {
                return;
            }
        }
    }

    /// What was seen before is not told on when the server says nothing any more.
    fn heard(&self, answer: Answer) -> Answer {
        if matches!(answer, Answer::Lost(_) | Answer::ServerStopping) {
            self.state.lock().slot = None;
        }
        answer
    }

    async fn answer(&mut self, question: Question) -> Answer {
        let answer = match timeout(STATEMENT_TIMEOUT, self.ask_server(question)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(answer)) => {
                self.client = None;
                answer
            }
            Err(_) => {
                self.client = None;
                Answer::Lost(anyhow!(
                    "the check of slot {} had no answer within {} s",
                    self.names.slot,
                    STATEMENT_TIMEOUT.as_secs()
                ))
            }
        };
        self.heard(answer)
    }

    async fn ask_server(&mut self, question: Question) -> Result<Answer, Answer> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            self.connect().await?;
        }
        let client = self.client.as_ref().expect("connected above");
        let answer = match question {
            Question::TakeOver => take_over(client, &self.names.slot)
                .await
                .map(|(epoch, reserved)| Answer::TakenOver { epoch, reserved }),
            Question::Release { epoch, confirmed } => {
                let slot = &self.names.slot;
                release(client, slot, epoch, confirmed)
                    .await
                    .map(|()| Answer::Released)
            }
            Question::Advance { epoch, to } => {
                let slot = &self.names.slot;
                advance(client, slot, epoch, to)
                    .await
                    .map(|()| Answer::Advanced)
            }
            Question::Check(note) => {
                if let Some(note) = note {
                    write(client, &self.names.slot, &note)
                        .await
                        .map_err(|error| self.lost(error))?;
                }
                let facts = facts(client, &self.names)
                    .await
                    .map_err(|error| self.lost(error))?;
                self.state.lock().slot = Some((facts.clone(), Instant::now()));
                if facts.server.in_recovery {
                    // Slots and their states are those of the past there.
                    return Err(Answer::Lost(anyhow!(
                        "database {} is on a standby in recovery, not on the primary",
                        self.info.database
                    )));
                }
                Ok(match verdict(&facts, &self.names) {
                    // The relay logs warnings when they change; a check repeats them.
                    Ok(_) => Answer::Fine(Box::new(facts)),
                    Err(stop) => Answer::Broken(stop),
                })
            }
        };
        answer.map_err(|error| self.lost(error))
    }

    /// A missing right is an end; everything else passes.
    fn lost(&self, error: tokio_postgres::Error) -> Answer {
        match of_statement(error, "check the slot", &self.info) {
            Failure::Passing(error) => Answer::Lost(error),
            Failure::Stop(stop) => Answer::Broken(stop),
        }
    }

    async fn connect(&mut self) -> Result<(), Answer> {
        let application = format!("walpost:{}", self.names.slot);
        match sql::connect(&self.info, &application).await {
            Ok(client) => {
                debug!("side connection open");
                self.client = Some(client);
                Ok(())
            }
            Err(Failure::Stop(stop)) => Err(Answer::Broken(stop)),
            Err(Failure::Passing(error)) if error.is::<CannotConnectNow>() => {
                Err(Answer::ServerStopping)
            }
            Err(Failure::Passing(error)) => Err(Answer::Lost(error)),
        }
    }
}

/// Bookkeeping lets no position pass, so it waits for no standby: if we were taken for one
/// ourselves, it would wait for us.
const LOCAL: &str =
    "WITH local AS (SELECT pg_catalog.set_config('synchronous_commit', 'local', true))";

/// The same for several statements.
const LOCAL_FIRST: &str = "BEGIN; SET LOCAL synchronous_commit = local";

/// Of a primary. The control file follows a promotion only at the next checkpoint.
const TIMELINE: &str = "('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::int";

/// Reserves at once and writes a mark: confirming the first rows then writes nothing.
async fn take_over(client: &Client, slot: &str) -> Result<(i64, Lsn), tokio_postgres::Error> {
    let rows = client
        .query_typed(
            &format!(
                "{LOCAL} UPDATE walpost.slot SET epoch = epoch + 1, updated_at = pg_catalog.now(),
                   holder = pg_catalog.current_setting('application_name'), timeline = {TIMELINE},
                   reserved_lsn = greatest(reserved_lsn, pg_catalog.pg_current_wal_insert_lsn() + {RESERVE})
                 FROM local WHERE slot = $1 RETURNING epoch, reserved_lsn::text"
            ),
            &[(&slot, Type::TEXT)],
        )
        .await?;
    // The check before this one saw the row; without one nothing can be confirmed.
    let Some(row) = rows.first() else {
        return Ok((0, Lsn::ZERO));
    };
    let reserved: String = row.try_get(1)?;
    write_mark(client).await?;
    Ok((row.try_get(0)?, reserved.parse().unwrap_or(Lsn::ZERO)))
}

async fn write_mark(client: &Client) -> Result<(), tokio_postgres::Error> {
    let write = format!("{LOCAL_FIRST}; {}; {}; COMMIT", mark::WRITE, mark::PRUNE);
    client.batch_execute(&write).await
}

/// Writes nothing when there is nothing to write. PostgreSQL's clock starts in 2000.
async fn write(client: &Client, slot: &str, note: &Note) -> Result<(), tokio_postgres::Error> {
    if note.mark {
        write_mark(client).await?;
    }
    if note.progress.is_none() && note.reserve.is_none() {
        return Ok(());
    }
    let progress = note.progress.as_ref();
    let confirmed = progress.map(|p| p.confirmed.to_string());
    let committed_at = progress.map(|p| p.committed_at.micros());
    let reserve = note.reserve.map(|lsn| lsn.to_string());
    client
        .query_typed(
            &format!(
                "{LOCAL} UPDATE walpost.slot SET updated_at = pg_catalog.now(),
                   confirmed_lsn = coalesce($3::pg_catalog.pg_lsn, confirmed_lsn),
                   committed_at = coalesce('2000-01-01 00:00:00+00'::timestamptz + $4 * interval '1 microsecond', committed_at),
                   reserved_lsn = greatest($5::pg_catalog.pg_lsn, reserved_lsn)
                 FROM local WHERE slot = $1 AND epoch = $2"
            ),
            &[
                (&slot, Type::TEXT),
                (&note.epoch, Type::INT8),
                (&confirmed, Type::TEXT),
                (&committed_at, Type::INT8),
                (&reserve, Type::TEXT),
            ],
        )
        .await
        .map(drop)
}

/// Only while nobody reads the slot and it is still ours.
async fn advance(
    client: &Client,
    slot: &str,
    epoch: i64,
    to: ConfirmedLsn,
) -> Result<(), tokio_postgres::Error> {
    client
        .query_typed(
            "SELECT pg_catalog.pg_replication_slot_advance(r.slot_name, $3::pg_catalog.pg_lsn)
             FROM pg_catalog.pg_replication_slots r JOIN walpost.slot s ON s.slot = r.slot_name AND s.epoch = $2
             WHERE r.slot_name = $1 AND NOT r.active AND r.confirmed_flush_lsn < $3::pg_catalog.pg_lsn",
            &[
                (&slot, Type::TEXT),
                (&epoch, Type::INT8),
                (&to.to_string(), Type::TEXT),
            ],
        )
        .await
        .map(drop)
}

async fn release(
    client: &Client,
    slot: &str,
    epoch: i64,
    confirmed: Lsn,
) -> Result<(), tokio_postgres::Error> {
    client
        .query_typed(
            &format!(
                "{LOCAL} UPDATE walpost.slot SET updated_at = pg_catalog.now(), holder = NULL,
                   reserved_lsn = $3::pg_catalog.pg_lsn
                 FROM local WHERE slot = $1 AND epoch = $2"
            ),
            &[
                (&slot, Type::TEXT),
                (&epoch, Type::INT8),
                (&confirmed.to_string(), Type::TEXT),
            ],
        )
        .await
        .map(drop)
}

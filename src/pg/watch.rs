//! The side connection: a task that checks slot and publication when asked, takes the slot over
//! and notes progress. The relay never waits for it; its answers arrive like any other event.

mod statements;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_postgres::{Client, Notification};
use tracing::{debug, warn};

use self::statements::{advance, heard, listen, missed, release, take_over, write};
use super::{
    conninfo::ConnInfo,
    failure::{CannotConnectNow, of_statement},
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
    /// The publication was missing somewhere in the stream behind this position, and the catalogue
    /// of now does not show it.
    Missed { after: Lsn },
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
    Noted,
    /// Unasked: somebody says that he took the slot over and began this epoch.
    Heard(i64),
    /// Unasked: the connection was lost, and there is a new one.
    Reconnected,
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
    /// The newest epoch that was heard of.
    heard: watch::Receiver<i64>,
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
        let (hear, heard) = watch::channel(0);
        let task = Task {
            info,
            names,
            state,
            hear,
            client: None,
            warned: Vec::new(),
        };
        tokio::spawn(task.run(questioned, answer, refreshes));
        (
            Watch {
                questions,
                answers,
                heard,
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
        let answer = tokio::select! {
            biased;
            Ok(()) = self.heard.changed() => {
                return (false, Answer::Heard(*self.heard.borrow_and_update()));
            }
            answer = self.answers.recv() => answer,
        };
        match answer {
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
    hear: watch::Sender<i64>,
    client: Option<Client>,
    /// What was warned of last, without its figures.
    warned: Vec<String>,
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
                            Ok(()) => (None, Answer::Reconnected),
                            Err(answer) => (None, self.unseen(answer)),
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
    fn unseen(&self, answer: Answer) -> Answer {
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
        self.unseen(answer)
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
            Question::Missed { after } => missed(client, &self.names.slot, after)
                .await
                .map(|()| Answer::Noted),
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
                    Ok(warnings) => {
                        self.warn(&warnings);
                        Answer::Fine(Box::new(facts))
                    }
                    Err(stop) => Answer::Broken(stop),
                })
            }
        };
        answer.map_err(|error| self.lost(error))
    }

    /// Each of them once, until it is over.
    fn warn(&mut self, warnings: &[String]) {
        let kind = |text: &String| text.replace(|c: char| c.is_ascii_digit(), "");
        let kinds: Vec<_> = warnings.iter().map(kind).collect();
        for (warning, kind) in warnings.iter().zip(&kinds) {
            if !self.warned.contains(kind) {
                warn!("{warning}");
            }
        }
        self.warned = kinds;
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
        let (hear, slot) = (self.hear.clone(), self.names.slot.clone());
        let hear = move |notification: Notification| {
            if let Some(epoch) = heard(&notification, &slot) {
                // Nobody listens any more when the publisher ends.
                let _ = hear.send(epoch);
            }
        };
        match sql::connect_and_hear(&self.info, &application, hear).await {
            Ok(client) => {
                listen(&client).await.map_err(|error| self.lost(error))?;
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

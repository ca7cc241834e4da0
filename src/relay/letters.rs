//! The relay's dealings with the table of dead letters: what is to be written goes to the clerk in
//! order, released letters come back. The loop never waits for either.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use tracing::{debug, info, warn};

use super::Relay;
use crate::{
    backoff::Backoff,
    config::OnPoison,
    dead_letters::{
        clerk::{Clerk, Done, Order, Trouble, Written},
        copy::{Copy, Told},
        held::Identity,
        store::{Loaded, Looked, Moved, Noted, OfEvent, Owner, Write},
    },
    error::{Exit, Failure},
    ledger::{Row, Seq},
    lsn::Lsn,
    outbox::row::Reread,
    stop,
};

/// Letters are looked at this often although nobody calls: a call may be lost.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// A call is answered by a look at once, and by two more.
const ECHOES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];

/// But not more often than this.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// A letter that waits for the stream is looked at again after this.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Letters whose time has come that are sent at once, at most.
const DUE: i64 = 200;

/// Closed letters are removed this often.
const RETIRE_INTERVAL: Duration = Duration::from_secs(600);

/// Reading pauses no longer than this for the last letters of a key.
const HAND_OVER: Duration = Duration::from_secs(5);

/// How long a publisher that ends waits for copies of letters.
const COPIES_WITHIN: Duration = Duration::from_secs(2);

/// Writes in one transaction.
const BATCH: usize = 2000;

/// Letters that get another place in one transaction.
const REPLACED: usize = 10_000;

/// What the clerk is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Writing,
    Taking,
    Fetching,
    Looking,
    Opening,
    Retiring,
}

pub(super) struct Letters {
    pub clerk: Clerk,
    /// Whose letters; `None` while nothing is known of them.
    owner: Option<Owner>,
    doing: Doing,
    /// The rows of what is being written, in order.
    writing: Vec<(Seq, Option<Identity>)>,
    /// What could not be written and is tried again.
    again: Option<Vec<Write>>,
    look: bool,
    calls: [Option<Instant>; 2],
    looked: Instant,
    /// When the next letter is due.
    due: Option<Instant>,
    fetch: Vec<i64>,
    opening: Option<Box<str>>,
    retired: Option<Instant>,
    hand_over: Option<Instant>,
    pauses: Backoff,
    pause_until: Instant,
    is_failing: bool,
}

impl Letters {
    pub fn new(clerk: Clerk) -> Self {
        let now = Instant::now();
        Letters {
            clerk,
            owner: None,
            doing: Doing::Nothing,
            writing: Vec::new(),
            again: None,
            look: false,
            calls: [None; 2],
            looked: now,
            due: None,
            fetch: Vec::new(),
            opening: None,
            retired: None,
            hand_over: None,
            pauses: Backoff::new(Duration::from_millis(200), Duration::from_secs(10)),
            pause_until: now,
            is_failing: false,
        }
    }

    /// Somebody may have acted on a letter. A commit is streamed a moment before others can see what
    /// it did, so one look may come too soon.
    pub fn wake(&mut self) {
        self.look = true;
        let now = Instant::now();
        self.calls = ECHOES.map(|after| Some(now + after));
    }

    fn is_called(&mut self, now: Instant) -> bool {
        for call in &mut self.calls {
            if call.is_some_and(|at| now >= at) {
                *call = None;
                self.look = true;
            }
        }
        self.look
    }

    /// The slot is another's: nothing more is ordered.
    pub(super) fn disown(&mut self) {
        self.owner = None;
    }

    fn order(&mut self, doing: Doing, order: Order) {
        if let Some(owner) = self.owner.clone() {
            self.doing = doing;
            self.clerk.order(owner, order);
        }
    }
}

fn other_answer() -> Failure {
    Failure::Passing(anyhow::anyhow!("internal: an answer to another order"))
}

impl Relay {
    /// Reads what must be known of letters before the stream is read from `confirmed` on. What was
    /// to be written for an older stream is forgotten: its rows come again.
    pub async fn load_letters(&mut self, owner: Owner, confirmed: Lsn) -> Result<Loaded, Failure> {
        let letters = &mut self.letters;
        letters.writing.clear();
        letters.again = None;
        letters.fetch.clear();
        (letters.doing, letters.hand_over) = (Doing::Nothing, None);
        letters.owner = Some(owner.clone());
        match self.ask_clerk(owner, Order::Load(confirmed)).await? {
            Done::Loaded(loaded) => Ok(loaded),
            _ => Err(other_answer()),
        }
    }

    /// The letters of a table's events that are open or ignored, by event id.
    pub async fn letters_of_events(
        &mut self,
        owner: Owner,
        outbox: String,
    ) -> Result<HashMap<String, OfEvent>, Failure> {
        match self.ask_clerk(owner, Order::OfEvents(outbox)).await? {
            Done::OfEvents(letters) => Ok(letters),
            _ => Err(other_answer()),
        }
    }

    /// These letters stand where their rows are in the table, so that rows before them are sent and
    /// rows behind them wait. Ended half-way it is done again: each attempt is another life.
    pub async fn replace_letters(
        &mut self,
        owner: &Owner,
        moved: &[Moved],
        reread: Reread,
    ) -> Result<(), Failure> {
        for some in moved.chunks(REPLACED) {
            let order = Order::Replace(some.to_vec(), reread);
            self.ask_clerk(owner.clone(), order).await?;
        }
        Ok(())
    }

    async fn ask_clerk(&mut self, owner: Owner, order: Order) -> Result<Done, Failure> {
        let answer = self.letters.clerk.order_now(owner, order).await;
        answer.map_err(|trouble| match trouble {
            Trouble::Passing(error, _) => {
                Failure::Passing(error.context("cannot read walpost.dead_letter"))
            }
            // Our locks went with a connection whose end is not seen yet.
            Trouble::Fenced => Failure::Passing(anyhow::anyhow!(
                "another publisher took slot {} over before it was read",
                self.config.postgres.slot
            )),
        })
    }

    /// A new stream begins with what was read.
    pub(super) fn use_letters(&mut self, loaded: Loaded) {
        let life = self.letters.owner.as_ref().map_or(0, |owner| owner.life);
        let mut state = self.state.lock();
        state.dead_letters = Some(loaded.counts);
        drop(state);
        let policies: Vec<(String, OnPoison)> = self
            .config
            .outbox
            .iter()
            .map(|outbox| (outbox.table.to_string(), outbox.on_poison))
            .collect();
        let policy = |outbox: &str| {
            let found = policies.iter().find(|(name, _)| name == outbox);
            found.map_or(OnPoison::HoldKey, |(_, policy)| *policy)
        };
        self.sender.load(life, loaded, policy);
        self.letters.look = true;
    }

    fn fenced(&self) -> Failure {
        stop!(
            Exit::Error,
            "fenced: another publisher took slot {} over; nothing more is sent, confirmed or dead-lettered",
            self.config.postgres.slot
        )
        .into()
    }

    /// Gives the clerk what is next: writing first, what operators wait for last. `ending`: only
    /// what lets the slot pass.
    pub(super) fn tell_clerk(&mut self, ending: bool) {
        let now = Instant::now();
        self.watch_hand_over(now);
        let letters = &mut self.letters;
        if !letters.clerk.is_free() || letters.owner.is_none() || now < letters.pause_until {
            return;
        }
        if let Some(writes) = letters.again.take() {
            return letters.order(Doing::Writing, Order::Write(writes));
        }
        if self.sender.parking.has_tasks() {
            let tasks = self.sender.parking.take_tasks(BATCH);
            let writes = tasks.into_iter().map(|task| {
                letters.writing.push((task.seq, task.identity));
                task.write
            });
            let writes = writes.collect();
            return letters.order(Doing::Writing, Order::Write(writes));
        }
        if ending {
            return;
        }
        if let Some(take) = self.sender.next_take(&self.ledger) {
            return letters.order(Doing::Taking, Order::Take(take));
        }
        if !letters.fetch.is_empty() {
            let ids = letters.fetch.clone();
            return letters.order(Doing::Fetching, Order::Fetch(ids));
        }
        let opened = letters
            .opening
            .take()
            .or_else(|| self.sender.topics.take_opened());
        if let Some(topic) = opened {
            letters.opening = Some(topic.clone());
            return letters.order(Doing::Opening, Order::Opened(topic.into()));
        }
        let since = now.duration_since(letters.looked);
        let again = self.sender.parking.looks_again() && since >= LOOK_AGAIN;
        let called = letters.is_called(now) && since >= LOOK_PAUSE;
        let is_due = letters.due.is_some_and(|due| now >= due);
        if called || is_due || again || since >= LOOK_INTERVAL {
            (letters.look, letters.due) = (false, None);
            letters.looked = now;
            return letters.order(Doing::Looking, Order::Look { limit: DUE });
        }
        let retired = letters.retired.map(|at| now.duration_since(at));
        if retired.is_none_or(|since| since >= RETIRE_INTERVAL) {
            letters.retired = Some(now);
            let keep = self.config.dead_letters.keep_resolved;
            letters.order(Doing::Retiring, Order::Retire(keep));
        }
    }

    fn watch_hand_over(&mut self, now: Instant) {
        if !self.sender.parking.pauses_reading() {
            self.letters.hand_over = None;
            return;
        }
        let since = *self.letters.hand_over.get_or_insert(now);
        if now.duration_since(since) >= HAND_OVER {
            self.letters.hand_over = None;
            self.sender.parking.give_up_hand_over();
            self.letters.pause_until = now + LOOK_AGAIN;
        }
    }

    /// What became of an order.
    pub(super) fn on_clerk(&mut self, done: Result<Done, Trouble>) -> Result<(), Failure> {
        let doing = std::mem::replace(&mut self.letters.doing, Doing::Nothing);
        let done = match done {
            Ok(done) => done,
            Err(Trouble::Fenced) => return Err(self.fenced()),
            Err(Trouble::Passing(error, writes)) => {
                self.clerk_trouble(doing, &error);
                self.letters.again = writes;
                if doing == Doing::Taking {
                    self.sender.not_taken();
                }
                return Ok(());
            }
        };
        self.letters.pauses.reset();
        if std::mem::take(&mut self.letters.is_failing) {
            self.state.lock().letter_trouble = None;
            info!("dead letters can be written and read again");
        }
        match done {
            Done::Written(written) => self.on_written(&written),
            Done::Taken(taken) => self.sender.taken(&mut self.ledger, &self.relations, taken),
            Done::Fetched(letters) => {
                self.letters.fetch.clear();
                self.sender
                    .fetched(&mut self.ledger, &self.relations, letters);
            }
            Done::Looked(looked) => self.on_looked(&looked),
            Done::Opened => {
                self.letters.opening = None;
                self.letters.look = true;
            }
            Done::Retired(gone) => {
                if gone > 0 {
                    debug!(
                        gone,
                        "removed closed letters and old entries of the audit log"
                    );
                }
            }
            // Only asked for before a stream.
            Done::Loaded(_) | Done::OfEvents(_) | Done::Replaced => {}
        }
        Ok(())
    }

    fn on_written(&mut self, written: &Written) {
        let rows = std::mem::take(&mut self.letters.writing);
        let (mut settled, mut held) = (0, 0);
        let writes = written.writes.iter().zip(&written.noted);
        for ((seq, identity), (write, noted)) in rows.iter().zip(writes) {
            match write {
                Write::Park(park) => {
                    if let Some(fault) = &park.fault {
                        let event_id = park.event_id.as_deref().unwrap_or("without an id");
                        let code = &fault.code;
                        warn!(event_id, position = %park.place.position, topic = park.topic, class = fault.class, code, "dead letter written");
                    }
                    self.letters.look |= park.behind.is_none();
                    held += u64::from(park.behind.is_some() && noted.is_some());
                }
                Write::Fail(failure) => {
                    let (class, code) = (failure.fault.class, &failure.fault.code);
                    warn!(
                        id = failure.id,
                        class,
                        code,
                        dead = failure.is_dead,
                        "dead letter failed again"
                    );
                    self.letters.look = true;
                }
                Write::Resolve { id } => {
                    debug!(id, "dead letter resolved");
                    self.letters.look = true;
                }
                Write::Return { .. } => {}
            }
            let (of, durable) = (identity.as_ref(), written.durable);
            let row = self
                .sender
                .written(&mut self.ledger, *seq, of, write, durable);
            if let (Some(row), Some(noted)) = (&row, noted) {
                self.copy(write, row, noted);
            }
            if let Some(row) = row.filter(|row| row.letter.is_none()) {
                settled += 1;
                self.latest_settled = self.latest_settled.max(Some(row.committed_at));
            }
        }
        let mut state = self.state.lock();
        state.settled_rows += settled;
        state.last_progress = Instant::now();
        // Of what else changes a look follows.
        if let Some(counts) = &mut state.dead_letters {
            counts.held += held;
        }
    }

    /// A letter that failed for the first time is copied to its topic, and so is one that is dead now.
    fn copy(&mut self, write: &Write, row: &Row, noted: &Noted) {
        let Some(copies) = &self.copies else { return };
        let told = |outbox, fault| Told {
            outbox,
            event_id: None,
            place: None,
            topic: "",
            partition: None,
            key: None,
            kept: None,
            raw: None,
            fault,
            noted,
        };
        match write {
            Write::Park(park) if noted.is_new() => {
                let Some(fault) = &park.fault else { return };
                copies.publish(Copy::of(&Told {
                    event_id: park.event_id.as_deref(),
                    place: Some(park.place),
                    topic: &park.topic,
                    partition: park.partition,
                    key: park.key.as_deref(),
                    kept: park.kept.as_ref(),
                    raw: park.raw.as_ref(),
                    ..told(&park.outbox, fault)
                }));
            }
            Write::Fail(failure) if noted.is_new() || failure.is_dead => {
                let Some(letter) = &row.letter else { return };
                let parts = self.sender.parts_of_letter(row);
                copies.publish(Copy::of(&Told {
                    event_id: letter.event_id.as_deref(),
                    place: letter.place,
                    topic: &parts.topic,
                    key: parts.key.as_deref(),
                    kept: parts.kept.as_ref(),
                    raw: parts.raw.as_ref(),
                    ..told(&letter.outbox, &failure.fault)
                }));
            }
            _ => {}
        }
    }

    /// Waits for copies of dead letters that are on their way, for at most a moment.
    pub async fn finish_copies(&self) {
        if let Some(copies) = &self.copies {
            copies.finish(COPIES_WITHIN).await;
        }
    }

    fn on_looked(&mut self, looked: &Looked) {
        self.letters.due = looked
            .next_due
            .and_then(|after| Instant::now().checked_add(after));
        self.letters.fetch = self.sender.looked(&self.ledger, looked);
        let mut state = self.state.lock();
        state.dead_letters = Some(looked.counts);
    }

    fn clerk_trouble(&mut self, doing: Doing, error: &anyhow::Error) {
        let text = if doing == Doing::Writing {
            format!("cannot dead-letter: {error:#}")
        } else {
            format!("cannot read dead letters: {error:#}")
        };
        if self.letters.is_failing {
            debug!("{text}");
        } else {
            warn!("{text}; trying again");
        }
        self.letters.is_failing = true;
        self.letters.pause_until = Instant::now() + self.letters.pauses.pause();
        let mut state = self.state.lock();
        state.last_error = Some(text.clone());
        if doing == Doing::Writing {
            state.letter_trouble = Some(text);
        }
    }
}

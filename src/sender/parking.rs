//! What becomes of events that cannot be published now: dead letters, the rows behind them, and
//! letters on their way out again. The table itself is the relay's to ask.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use super::{
    Enqueue, Sender,
    parts::{event_id_of, outbox_name},
};
use crate::{
    config::{self, OnPoison},
    dead_letters::{
        guard::Guard,
        held::{BATCH, Held, Identity},
        letter::{Kept, Place},
        store::{Fault, Loaded, Park, Write},
    },
    ledger::{Content, Ledger, Row, RowState, Seq},
    lsn::Position,
    outbox::row::Origin,
};

/// Keys named when too many rows are held.
const TOLD: usize = 3;

/// What is to be written, and whose row it settles.
pub struct Task {
    pub seq: Seq,
    /// The key whose parked row it is.
    pub identity: Option<Identity>,
    pub write: Write,
}

/// How a row that isn't sent goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parked {
    Yes,
    /// The publisher stops there.
    Stop,
}

/// All that is known of dead letters in memory.
pub struct Parking {
    pub(super) retry_after: Vec<Duration>,
    pub(super) max_held_rows: u64,
    pub(super) max_bytes: u64,
    /// Letters that are taken at once; twice as many may be in flight.
    pub(super) batch: usize,
    pub(super) guard: Guard,
    pub(super) life: i32,
    pub(super) held: Held,
    pub(super) held_rows: u64,
    /// Rows at these positions are kept already.
    pub(super) known: HashSet<Position>,
    /// Letters that are in the ledger.
    pub(super) flying: HashSet<i64>,
    pub(super) tasks: Vec<Task>,
    /// Letters that go through the probe producer, each alone.
    pub(super) retries: VecDeque<Seq>,
    /// The row that the first of them waits for.
    pub(super) blocker: Option<Seq>,
    /// The key whose letters are being taken, and whether they are the last ones.
    pub(super) asked: Option<(Identity, bool)>,
    /// The key whose last letters are to be taken: nothing is read meanwhile.
    pub(super) hand_over: Option<Identity>,
    /// A letter could not be sent yet, because the stream was not read so far.
    pub(super) look_again: bool,
    /// Letters are written, and none is sent.
    keeps_only: bool,
    /// How often the table was looked at.
    pub(super) looks: u64,
    /// Rows to be held that find no room, in order.
    crowd: VecDeque<Task>,
    /// How often the table had been looked at when the first of them came.
    full: Option<u64>,
}

impl Parking {
    pub fn new(config: &config::DeadLetters, delivery: &config::Delivery) -> Self {
        Parking {
            retry_after: config.retry_after.clone(),
            max_held_rows: config.max_held_rows,
            max_bytes: delivery.in_flight_bytes / 2,
            batch: (delivery.in_flight_rows / 2).clamp(1, BATCH),
            guard: Guard::new(config.guard.count, config.guard.within),
            life: 0,
            held: Held::default(),
            held_rows: 0,
            known: HashSet::new(),
            flying: HashSet::new(),
            tasks: Vec::new(),
            retries: VecDeque::new(),
            blocker: None,
            asked: None,
            hand_over: None,
            look_again: false,
            keeps_only: false,
            looks: 0,
            crowd: VecDeque::new(),
            full: None,
        }
    }

    /// Full jitter.
    pub(super) fn pause(&self, attempt: usize) -> Option<Duration> {
        let longest = self.retry_after.get(attempt)?;
        Some(longest.mul_f64(rand::random()))
    }

    pub(super) fn place(&self, row: &Row) -> Place {
        Place {
            life: self.life,
            position: row.position,
        }
    }

    /// What is to be written next, in order; at most so many.
    pub fn take_tasks(&mut self, most: usize) -> Vec<Task> {
        let count = self.tasks.len().min(most);
        self.tasks.drain(..count).collect()
    }

    /// From now on nothing is released.
    pub fn keep_only(&mut self) {
        self.keeps_only = true;
    }

    pub fn has_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }

    pub fn held_keys(&self) -> usize {
        self.held.len()
    }

    /// The last letters of a key are about to be taken: no row of it may come between.
    pub fn pauses_reading(&self) -> bool {
        self.hand_over.is_some()
    }

    /// Without SQL nobody waits for a hand-over for long.
    pub fn give_up_hand_over(&mut self) {
        if self.asked.is_none() && self.hand_over.take().is_some() {
            self.held.put_off();
        }
    }

    /// A letter that belongs behind one that failed since it was taken.
    pub(super) fn goes_behind(&self, row: &Row) -> bool {
        let Some(letter) = &row.letter else {
            return false;
        };
        let (Some(taken), Some(place)) = (&letter.taken, letter.place) else {
            return false;
        };
        self.held
            .is_behind(&taken.identity, place, taken.generation)
    }

    /// The row's key is held by a letter before it.
    pub(super) fn holds(&self, row: &Row, topic: usize, key: Option<&[u8]>) -> bool {
        if self.held.is_empty() || row.letter.is_some() {
            return false;
        }
        let (Some(key), Content::Tuple { shape, .. }) = (key, &row.content) else {
            return false;
        };
        let outbox = self.held.known_outbox(&shape.mapping.table);
        let cause = outbox.and_then(|outbox| self.held.cause(outbox, topic, key));
        cause.is_some_and(|cause| self.place(row) > cause)
    }

    pub fn is_known(&self, position: Position) -> bool {
        !self.known.is_empty() && self.known.contains(&position)
    }

    /// A letter waits for the stream, or a row for room.
    pub fn looks_again(&self) -> bool {
        self.look_again || self.full == Some(self.looks)
    }

    /// Rows that are to be held find no room.
    pub(super) fn is_crowded(&self) -> bool {
        !self.crowd.is_empty()
    }

    fn has_room(&self) -> bool {
        self.held_rows < self.max_held_rows && self.crowd.is_empty()
    }

    fn admit(&mut self) {
        while self.held_rows < self.max_held_rows
            && let Some(task) = self.crowd.pop_front()
        {
            self.held_rows += 1;
            self.tasks.push(task);
        }
        if self.crowd.is_empty() {
            self.full = None;
        }
    }

    /// As many rows are held as may be; `true` as long as there could be fewer of them soon: what
    /// operators did is not known yet, or is being done.
    fn may_release(&mut self) -> bool {
        if self.keeps_only {
            return false;
        }
        let since = *self.full.get_or_insert(self.looks);
        since == self.looks || !self.flying.is_empty() || self.held.is_releasing()
    }
}

impl<P: Enqueue> Sender<P> {
    /// A new stream: what the table says of this life of the slot.
    pub fn load(&mut self, life: i32, loaded: Loaded, on_poison: impl Fn(&str) -> OnPoison) {
        let parking = &mut self.parking;
        parking.life = life;
        parking.known = loaded.known;
        parking.held_rows = loaded.counts.held;
        for key in loaded.keys {
            if !key.holds && on_poison(&key.outbox) != OnPoison::HoldKey {
                continue;
            }
            let identity = Identity {
                outbox: parking.held.outbox(&key.outbox),
                topic: self.topics.number(&key.topic),
                key: key.key.into(),
            };
            parking.held.load(&identity, key.first, key.letters);
        }
        for topic in loaded.closed_topics {
            let number = self.topics.number(&topic);
            self.topics.park(number);
        }
    }

    /// Nothing of the old stream is written or heard of any more.
    pub(super) fn forget_letters(&mut self) {
        let parking = &mut self.parking;
        parking.held.clear();
        parking.known.clear();
        parking.flying.clear();
        parking.tasks.clear();
        parking.retries.clear();
        (parking.blocker, parking.asked, parking.hand_over) = (None, None, None);
        parking.crowd.clear();
        parking.full = None;
    }

    /// The row, or the letter, can't be sent as it is.
    pub(super) fn fails(
        &mut self,
        ledger: &mut Ledger,
        seq: Seq,
        fault: Fault,
        partition: Option<i32>,
    ) -> Parked {
        let Some(row) = ledger.row(seq) else {
            return Parked::Yes;
        };
        if row.letter.is_some() {
            self.letter_fails(ledger, seq, fault);
            return Parked::Yes;
        }
        let guarded = fault.class == "event" && on_poison(row) != OnPoison::Stop;
        if guarded {
            let what = || format!("event {}: {}", super::poison::event_id(row), fault.text);
            if self.parking.guard.fails(self.now, what) {
                let text = format!("{}; {}", fault.text, self.parking.guard.text());
                return self.stops_at(ledger, seq, fault.code, text);
            }
        }
        self.park(ledger, seq, Some(fault), partition)
    }

    /// Nothing more is sent from this row on.
    pub(super) fn stops_at(
        &mut self,
        ledger: &Ledger,
        seq: Seq,
        code: String,
        text: String,
    ) -> Parked {
        if let Some(row) = ledger.row(seq) {
            let topic = row
                .topic
                .map(|number| self.topics.get(number).name.to_string());
            let poison = super::poison::poison(seq, row, topic, code, text);
            self.found(poison);
        }
        Parked::Stop
    }

    /// Keeps a row that failed, or one whose key is held.
    pub(super) fn park(
        &mut self,
        ledger: &mut Ledger,
        seq: Seq,
        fault: Option<Fault>,
        partition: Option<i32>,
    ) -> Parked {
        let Some(row) = ledger.row(seq) else {
            return Parked::Yes;
        };
        let (policy, place) = (on_poison(row), self.parking.place(row));
        let parts = self.parts(row);
        let topic = self.topics.number(&parts.topic);
        let outbox = outbox_name(row);
        let identity = parts.key.as_deref().map(|key| Identity {
            outbox: self.parking.held.outbox(&outbox),
            topic,
            key: key.into(),
        });
        let cause = identity
            .as_ref()
            .and_then(|of| self.parking.held.cause(of.outbox, of.topic, &of.key));
        let behind = cause.filter(|cause| place > *cause);
        // A row that waits for its key's letter may have a fault of its own, too.
        let fault = fault.or_else(|| {
            let unmappable = parts.unmappable.as_ref()?;
            Some(Fault {
                class: "event",
                code: unmappable.code.into(),
                text: unmappable.text.clone(),
            })
        });
        if behind.is_none() && policy == OnPoison::Stop {
            let fault = fault.unwrap_or_else(|| Fault {
                class: "event",
                code: "unknown".into(),
                text: "it cannot be sent".into(),
            });
            return self.stops_at(ledger, seq, fault.code, fault.text);
        }
        if behind.is_some() && !self.parking.has_room() && !self.parking.may_release() {
            return self.stops_for_room(ledger, seq);
        }
        if let Some(identity) = &identity {
            match behind {
                Some(_) => self.parking.held.park(identity, place),
                None if policy == OnPoison::HoldKey => {
                    self.parking.held.park_cause(identity, place)
                }
                None => {}
            }
        }
        let Some(row) = ledger.row(seq) else {
            return Parked::Yes;
        };
        let write = Write::Park(Box::new(Park {
            place,
            outbox,
            event_id: event_id_of(row),
            committed_at: row.committed_at,
            topic: parts.topic,
            partition,
            key: parts.key,
            kept: parts.kept,
            raw: parts.raw,
            reread: match row.origin {
                Origin::Table(reread) => Some(reread),
                Origin::Stream | Origin::Letter | Origin::TableLetter => None,
            },
            fault,
            behind,
            retry_after: if behind.is_none() {
                self.parking.pause(0)
            } else {
                None
            },
        }));
        let task = Task {
            seq,
            identity,
            write,
        };
        if behind.is_some() {
            self.parking.crowd.push_back(task);
            self.parking.admit();
        } else {
            self.parking.tasks.push(task);
        }
        ledger.set_state(seq, RowState::Parked);
        Parked::Yes
    }

    /// Rows that no room was found for are held as soon as there is some. Without hope for any the
    /// publisher stops at the first of them.
    pub(super) fn hold_crowd(&mut self, ledger: &Ledger) {
        self.parking.admit();
        if let Some(first) = self.parking.crowd.front().map(|task| task.seq)
            && self.poison.is_none()
            && !self.parking.may_release()
        {
            self.stops_for_room(ledger, first);
        }
    }

    fn stops_for_room(&mut self, ledger: &Ledger, seq: Seq) -> Parked {
        let text = self.too_many_held();
        self.stops_at(ledger, seq, "max_held_rows".into(), text)
    }

    pub(super) fn too_many_held(&self) -> String {
        let keys = self.parking.held.largest(TOLD).into_iter();
        let keys: Vec<_> = keys
            .map(|(of, rows)| {
                let topic = &self.topics.get(of.topic).name;
                format!("{} in {topic} ({rows})", String::from_utf8_lossy(&of.key))
            })
            .collect();
        format!(
            "its key is held, and {} rows are held already (dead_letters.max_held_rows); the keys with the most: {}. Replay or \
             ignore what they wait behind: `walpost dead-letters list --status pending`",
            self.parking.held_rows,
            keys.join(", ")
        )
    }

    /// Parks a suspect whose key is held meanwhile.
    pub(super) fn parks_suspect(&mut self, ledger: &mut Ledger, seq: Seq) -> Option<Parked> {
        if self.parking.held.is_empty() {
            return None;
        }
        let row = ledger.row(seq)?;
        let parts = self.parts(row);
        let topic = self.topics.number(&parts.topic);
        let held = self.parking.holds(row, topic, parts.key.as_deref());
        held.then(|| self.park(ledger, seq, None, None))
    }
}

pub(super) fn nothing() -> Content {
    Content::Kept(Box::new(Kept {
        topic: String::new(),
        key: None,
        headers: Vec::new(),
        timestamp: 0,
        partition: None,
        payload: None,
    }))
}

pub(super) fn on_poison(row: &Row) -> OnPoison {
    match &row.content {
        Content::Tuple { shape, .. } => shape.mapping.on_poison,
        Content::Kept(_) => OnPoison::Skip,
    }
}

//! Which rows are open, with their bytes, and how far the slot may move: the only maker of
//! [`ConfirmedLsn`]. No socket, no task, no clock.
//!
//! Why no list of transactions: a row remembers the newest boundary (a commit's end, or a
//! keepalive between transactions) that was received before its transaction began. The slot may
//! stand at the oldest unsettled row's boundary, or, with no row open, at the newest one. So what
//! is settled costs nothing, however long one row in front of it waits.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
};

use crate::{
    dead_letters::{
        held::Identity,
        letter::{Kept, Place},
    },
    lsn::{Lsn, PgTime, Position},
    outbox::{relation::Shape, row::Origin},
};

/// Every row committed at or before it is in Kafka. Only [`Ledger`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfirmedLsn(Lsn);

impl ConfirmedLsn {
    pub fn lsn(self) -> Lsn {
        self.0
    }
}

impl fmt::Display for ConfirmedLsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A row's number, counted from 1 over the life of the process; rdkafka carries it as the opaque.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

/// Where an unsettled row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowState {
    /// To be sent.
    Waiting,
    /// In the producer; its outcome will come.
    Enqueued,
    /// Its topic does not take records now.
    Gated,
    /// Failed by its own fault or a neighbour's: to be sent alone.
    Suspect,
    /// A letter to be sent alone, once nothing of its topic before it is on its way.
    Retry,
    /// In the probe producer, alone.
    Probing,
    /// What became of it is being written into the table of dead letters.
    Parked,
}

/// What a row's record is made of.
#[derive(Debug)]
pub enum Content {
    /// A row of an outbox table, in the shape that its table had when it was written. The tuple is
    /// its own copy, so that it pins no read buffer.
    Tuple { shape: Arc<Shape>, tuple: Box<[u8]> },
    /// A record as a dead letter keeps it.
    Kept(Box<Kept>),
}

impl Content {
    /// In bytes.
    fn weight(&self) -> usize {
        match self {
            Content::Tuple { tuple, .. } => tuple.len(),
            Content::Kept(kept) => kept.weight(),
        }
    }
}

/// A dead letter that is sent.
#[derive(Debug)]
pub struct Letter {
    pub id: i64,
    /// How often it was sent before.
    pub attempts: i32,
    pub outbox: Box<str>,
    pub event_id: Option<String>,
    /// `None`: an operator sends an event once more.
    pub place: Option<Place>,
    /// The held key that it was taken of.
    pub taken: Option<Taken>,
    /// Sent once more for an operator.
    pub resend: bool,
}

/// The hold that a letter was taken of.
#[derive(Debug)]
pub struct Taken {
    pub identity: Identity,
    pub born: u64,
    pub generation: u64,
}

/// An unsettled row: all that is needed to send it again.
#[derive(Debug)]
pub struct Row {
    pub origin: Origin,
    /// Of a row of the table: where the slot begins, and the row's running number.
    pub position: Position,
    /// Of a row of the table: when it was read.
    pub committed_at: PgTime,
    pub content: Content,
    pub letter: Option<Box<Letter>>,
    /// The number of its topic, known once it was mapped.
    pub topic: Option<usize>,
    /// Bytes of key and value in Kafka, known once it was enqueued.
    pub sent_bytes: u64,
    pub state: RowState,
    /// The newest boundary before its transaction.
    floor: Option<Lsn>,
}

/// What a row costs beside its bytes: its slot here and the allocation's overhead.
const ROW_OVERHEAD: u64 = 96;

impl Row {
    fn cost(content: usize) -> u64 {
        content as u64 + ROW_OVERHEAD
    }
}

#[derive(Debug)]
struct Transaction {
    commit_lsn: Lsn,
    committed_at: PgTime,
    ordinal: u32,
}

/// The stream breaks its own order; the server or our reading of it is at fault.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfTurn {
    #[error("a transaction begins inside another one")]
    Begin,
    #[error("a change or a commit outside of a transaction")]
    NoTransaction,
    #[error("a transaction ends at {end}, but {boundary} was reached before")]
    Backwards { end: Lsn, boundary: Lsn },
}

#[derive(Debug)]
pub struct Ledger {
    max_rows: usize,
    max_bytes: u64,
    /// Rows `base..base + window.len()`, settled ones empty.
    base: u64,
    window: VecDeque<Option<Row>>,
    /// Unsettled rows older than the window: it does not grow behind one that waits.
    stragglers: BTreeMap<u64, Row>,
    rows: usize,
    bytes: u64,
    enqueued: usize,
    transaction: Option<Transaction>,
    /// Boundaries below the slot's own position come from where the server starts to read.
    start: Lsn,
    boundary: Option<Lsn>,
    received: Lsn,
    /// The newest boundary that a check of slot and publication vouches for.
    ceiling: Option<Lsn>,
    /// No position beyond it is confirmed before the server's own record of it is raised.
    reserved: Lsn,
    /// Boundaries before rows that are in the table of dead letters, and where the log stood when
    /// that was durable, in this order. A position that passes such a row is at or above the latter: a
    /// standby that has the position has the letter too.
    kept: VecDeque<(Option<Lsn>, Lsn)>,
    confirmed: Option<ConfirmedLsn>,
}

impl Ledger {
    /// `max_rows` and `max_bytes` bound what is open; a single larger row is taken alone.
    pub fn new(max_rows: usize, max_bytes: u64) -> Self {
        Ledger {
            max_rows,
            max_bytes,
            base: 1,
            window: VecDeque::new(),
            stragglers: BTreeMap::new(),
            rows: 0,
            bytes: 0,
            enqueued: 0,
            transaction: None,
            start: Lsn::ZERO,
            boundary: None,
            received: Lsn::ZERO,
            ceiling: None,
            reserved: Lsn::ZERO,
            kept: VecDeque::new(),
            confirmed: None,
        }
    }

    /// A new stream from a slot that stands at `start`, with positions up to `reserved` recorded as
    /// ours: open rows are forgotten, the server will send them again. Sequence numbers go on, so
    /// outcomes of the old rows find nobody.
    pub fn restart(&mut self, start: Lsn, reserved: Lsn) {
        let base = self.next_seq().0;
        *self = Ledger {
            base,
            start,
            reserved,
            ..Ledger::new(self.max_rows, self.max_bytes)
        };
    }

    pub fn begin(&mut self, commit_lsn: Lsn, committed_at: PgTime) -> Result<(), OutOfTurn> {
        if self.transaction.is_some() {
            return Err(OutOfTurn::Begin);
        }
        self.transaction = Some(Transaction {
            commit_lsn,
            committed_at,
            ordinal: 0,
        });
        Ok(())
    }

    /// Counts an Insert or a transactional Message, ours or not.
    pub fn next_position(&mut self) -> Result<Position, OutOfTurn> {
        let open = self.transaction.as_mut().ok_or(OutOfTurn::NoTransaction)?;
        open.ordinal += 1;
        Ok(Position {
            commit: open.commit_lsn,
            ordinal: open.ordinal,
        })
    }

    /// Keeps the row at the position counted last until it is settled.
    pub fn open_row(&mut self, shape: Arc<Shape>, tuple: Box<[u8]>) -> Result<Seq, OutOfTurn> {
        let open = self.transaction.as_ref().ok_or(OutOfTurn::NoTransaction)?;
        let position = Position {
            commit: open.commit_lsn,
            ordinal: open.ordinal,
        };
        let content = Content::Tuple { shape, tuple };
        Ok(self.open(Origin::Stream, position, open.committed_at, content))
    }

    /// Keeps a letter that is sent until what became of it is written.
    pub fn open_letter(
        &mut self,
        origin: Origin,
        committed_at: PgTime,
        content: Content,
        letter: Letter,
        state: RowState,
    ) -> Seq {
        let nowhere = Position {
            commit: Lsn::ZERO,
            ordinal: 0,
        };
        let position = letter.place.map_or(nowhere, |place| place.position);
        let seq = self.open(origin, position, committed_at, content);
        if let Some(row) = self.row_mut(seq) {
            row.letter = Some(Box::new(letter));
            row.state = state;
        }
        seq
    }

    /// Keeps a row, of whatever origin, until it is settled.
    pub fn open(
        &mut self,
        origin: Origin,
        position: Position,
        committed_at: PgTime,
        content: Content,
    ) -> Seq {
        let seq = self.next_seq();
        self.rows += 1;
        self.bytes += Row::cost(content.weight());
        self.window.push_back(Some(Row {
            origin,
            position,
            committed_at,
            content,
            letter: None,
            topic: None,
            sent_bytes: 0,
            state: RowState::Waiting,
            floor: self.boundary,
        }));
        self.shorten_window();
        seq
    }

    /// A row that waits long is moved out of the window once the window holds half as much again as
    /// may be open; each row moves at most once.
    fn shorten_window(&mut self) {
        while self.window.len() > self.max_rows + self.max_rows / 2 {
            if let Some(Some(row)) = self.window.pop_front() {
                self.stragglers.insert(self.base, row);
            }
            self.base += 1;
        }
    }

    /// The end of the open transaction: the position just behind its commit record. The commit
    /// record's own position would have the server send the transaction again.
    pub fn commit(&mut self, end: Lsn) -> Result<(), OutOfTurn> {
        self.transaction.take().ok_or(OutOfTurn::NoTransaction)?;
        if let Some(boundary) = self.boundary.filter(|b| end < *b) {
            return Err(OutOfTurn::Backwards { end, boundary });
        }
        self.reach(end);
        Ok(())
    }

    /// All that committed at or before `wal_end` was sent. Within a transaction it says nothing.
    pub fn keepalive(&mut self, wal_end: Lsn) {
        self.receive(wal_end);
        if self.transaction.is_none() {
            self.reach(wal_end);
            #[cfg(feature = "faults")]
            if crate::faults::is_on(crate::faults::CONFIRM_KEEPALIVES) {
                let rows = self.window.iter_mut().flatten();
                rows.for_each(|row| row.floor = self.boundary);
            }
        }
    }

    /// The newest position the stream was received up to.
    pub fn receive(&mut self, position: Lsn) {
        self.received = self.received.max(position);
    }

    fn reach(&mut self, boundary: Lsn) {
        self.receive(boundary);
        if boundary >= self.start {
            self.boundary = self.boundary.max(Some(boundary));
        }
    }

    /// The row is in Kafka. `None` when it isn't open: settled before, or of an older stream.
    pub fn settle(&mut self, seq: Seq) -> Option<Row> {
        let row = match seq.0.checked_sub(self.base) {
            Some(index) => self.window.get_mut(usize::try_from(index).ok()?)?.take()?,
            None => self.stragglers.remove(&seq.0)?,
        };
        while let Some(None) = self.window.front() {
            self.window.pop_front();
            self.base += 1;
        }
        self.rows -= 1;
        self.bytes -= Row::cost(row.content.weight());
        self.enqueued -= usize::from(row.state == RowState::Enqueued);
        Some(row)
    }

    /// The row is in the table of dead letters, or what became of its letter is; that was durable
    /// when the log stood at `durable`.
    pub fn settle_written(&mut self, seq: Seq, durable: Lsn) -> Option<Row> {
        let row = self.settle(seq)?;
        match self.kept.back_mut() {
            Some((floor, at)) if *at == durable => *floor = (*floor).min(row.floor),
            _ => self.kept.push_back((row.floor, durable)),
        }
        Some(row)
    }

    pub fn row(&self, seq: Seq) -> Option<&Row> {
        match seq.0.checked_sub(self.base) {
            Some(index) => self.window.get(usize::try_from(index).ok()?)?.as_ref(),
            None => self.stragglers.get(&seq.0),
        }
    }

    fn row_mut(&mut self, seq: Seq) -> Option<&mut Row> {
        match seq.0.checked_sub(self.base) {
            Some(index) => self.window.get_mut(usize::try_from(index).ok()?)?.as_mut(),
            None => self.stragglers.get_mut(&seq.0),
        }
    }

    /// Notes where an open row went; `false` when it isn't open.
    pub fn set_state(&mut self, seq: Seq, state: RowState) -> bool {
        let Some(row) = self.row_mut(seq) else {
            return false;
        };
        let was = std::mem::replace(&mut row.state, state);
        self.enqueued += usize::from(state == RowState::Enqueued);
        self.enqueued -= usize::from(was == RowState::Enqueued);
        true
    }

    pub fn set_topic(&mut self, seq: Seq, topic: usize, sent_bytes: u64) {
        if let Some(row) = self.row_mut(seq) {
            row.topic = Some(topic);
            row.sent_bytes = sent_bytes;
        }
    }

    /// The first open row at or after `from`, in commit order.
    pub fn first_from(&self, from: Seq) -> Option<Seq> {
        if from.0 < self.base
            && let Some((seq, _)) = self.stragglers.range(from.0..).next()
        {
            return Some(Seq(*seq));
        }
        let skip = usize::try_from(from.0.saturating_sub(self.base)).ok()?;
        let found = self
            .window
            .range(skip.min(self.window.len())..)
            .position(Option::is_some)?;
        Some(Seq(self.base + (skip + found) as u64))
    }

    /// The oldest open row.
    pub fn oldest(&self) -> Option<&Row> {
        match self.stragglers.first_key_value() {
            Some((_, row)) => Some(row),
            // Settling leaves no empty place in front.
            None => self.window.front().and_then(Option::as_ref),
        }
    }

    /// The number that the next row gets.
    pub fn next_seq(&self) -> Seq {
        Seq(self.base + self.window.len() as u64)
    }

    /// Whether a row of so many bytes may be opened now.
    pub fn has_room(&self, tuple: usize) -> bool {
        self.rows == 0
            || (self.rows < self.max_rows && self.bytes + Row::cost(tuple) <= self.max_bytes)
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Rows in the producer.
    pub fn enqueued(&self) -> usize {
        self.enqueued
    }

    pub fn in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// Commit record of the open transaction.
    pub fn open_commit(&self) -> Option<Lsn> {
        self.transaction.as_ref().map(|open| open.commit_lsn)
    }

    pub fn received(&self) -> Lsn {
        self.received
    }

    /// The newest boundary received, settled or not; a check that begins now vouches for it.
    pub fn boundary(&self) -> Option<Lsn> {
        self.boundary
    }

    /// The newest boundary with every row before it settled.
    pub fn frontier(&self) -> Option<Lsn> {
        #[cfg(feature = "faults")]
        if crate::faults::is_on(crate::faults::CONFIRM_BEFORE_DELIVERY) {
            let mut rows = self.stragglers.values().chain(self.window.iter().flatten());
            let oldest = rows.find(|row| row.state != RowState::Enqueued);
            return self.before_letters(oldest.map_or(self.boundary, |row| row.floor));
        }
        self.before_letters(self.oldest().map_or(self.boundary, |row| row.floor))
    }

    /// As far as letters let it: see `kept`.
    fn before_letters(&self, mut position: Option<Lsn>) -> Option<Lsn> {
        for (floor, durable) in self.kept.iter().rev() {
            if position.is_none_or(|position| position >= *durable) {
                break;
            }
            position = position.min(*floor);
        }
        position
    }

    /// A check of slot and publication that began when `boundary` was the newest one succeeded.
    pub fn raise_ceiling(&mut self, boundary: Option<Lsn>) {
        assert!(
            boundary <= self.boundary,
            "{boundary:?} was not received: {:?}",
            self.boundary
        );
        self.ceiling = self.ceiling.max(boundary);
    }

    pub fn ceiling(&self) -> Option<Lsn> {
        self.ceiling
    }

    /// Something is settled that no check vouches for yet.
    pub fn wants_check(&self) -> bool {
        self.frontier() > self.ceiling
    }

    pub fn reserved(&self) -> Lsn {
        self.reserved
    }

    /// The record on the server reaches so far now.
    pub fn reserve(&mut self, reserved: Lsn) {
        self.reserved = self.reserved.max(reserved);
    }

    /// What the server may be told. Both bounds are boundaries received on this connection, and
    /// all before the lower one is settled.
    pub fn confirmed(&mut self) -> Option<ConfirmedLsn> {
        let now = self
            .before_letters(self.frontier().min(self.ceiling))
            .map(ConfirmedLsn);
        if now.is_some_and(|now| now.lsn() > self.reserved) {
            return self.confirmed;
        }
        assert!(
            now >= self.confirmed,
            "the confirmed position would move back: {:?} -> {now:?}",
            self.confirmed
        );
        self.confirmed = now;
        while let Some((_, durable)) = self.kept.front()
            && now.is_some_and(|now| now.lsn() >= *durable)
        {
            self.kept.pop_front();
        }
        now
    }
}

#[cfg(test)]
mod tests;

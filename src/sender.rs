//! Open rows → producers, in commit order: the first time, after a failure, and out of the topic
//! gate. No socket, no task, no clock: the relay owns those and calls in here.
//!
//! One walk serves all three. The cursor passes the open rows in commit order; every row behind it
//! is in the producer or at its topic's gate. After a failure the cursor goes back to the oldest
//! open row, and rows that failed by their own or a neighbour's fault (suspects) are sent alone,
//! through the probe producer, when nothing enqueued before them is open.

mod landing;
mod lives;
mod outcomes;
mod parking;
mod parts;
mod poison;
mod releasing;
mod retries;
mod suspicion;

use std::time::Duration;

use rdkafka::types::RDKafkaErrorCode as Code;

use crate::{
    dead_letters::store::Fault,
    kafka::{
        failure::Class,
        partitions::Partitioner,
        producer::Producer,
        topics::{Answer, TopicState, Topics},
    },
    ledger::{Content, Ledger, Row, RowState, Seq},
    lsn::PgTime,
    outbox::{
        record::{Mapper, Record},
        row::{OutboxRow, Unmappable},
    },
    pg::pgoutput::Tuple,
};

use self::{
    parking::Parked,
    poison::{Refusal, refusal, setup_fault, unmappable},
    suspicion::Suspicions,
};
pub use self::{
    parking::{Parking, Task},
    parts::Parts,
    poison::Poison,
};

/// What the walk needs of a producer.
pub trait Enqueue {
    fn enqueue(&mut self, record: &Record<'_>, seq: Seq) -> Result<(), Code>;
    fn purge_queue(&self);
    /// The largest message that it takes, in bytes.
    fn largest(&self) -> usize;
}

impl Enqueue for Producer {
    fn enqueue(&mut self, record: &Record<'_>, seq: Seq) -> Result<(), Code> {
        Producer::enqueue(self, record, seq)
    }

    fn purge_queue(&self) {
        Producer::purge_queue(self);
    }

    fn largest(&self) -> usize {
        Producer::largest(self)
    }
}

/// The main producer's life.
enum Main<P> {
    Ready(P),
    /// It failed: its queue is purged, its last reports are awaited.
    Draining(P),
    /// The next one is being made.
    Absent,
}

/// Why a row is in the probe producer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Probe {
    Suspect,
    /// The first row of a topic that denied us.
    Gate(usize),
    /// A letter on its own.
    Letter,
}

/// How one attempt to send ended.
enum Sent {
    Enqueued,
    Gated,
    /// No room in the producer: again after the next report.
    Full,
    /// The producer can't go on.
    Fatal,
    /// It is kept, or goes back to where it was kept.
    Parked,
    /// To be tried alone first.
    Suspicious,
    Poison,
}

/// A record that was not delivered, for log and metrics.
pub struct Failed {
    pub class: Class,
    pub code: Code,
}

/// A record that the brokers have, for log and metrics.
pub struct Delivered {
    pub committed_at: PgTime,
    pub sent_bytes: u64,
    pub topic: Option<usize>,
    /// It was read from the stream, and is settled.
    pub is_row: bool,
}

/// What a report came to.
pub enum Report {
    /// The brokers have it.
    Delivered(Delivered),
    Failed(Failed),
    /// Of an older stream: the server sends it again.
    Stale,
}

pub struct Sender<P> {
    mapper: Mapper,
    pub topics: Topics,
    main: Main<P>,
    probe: P,
    probing: Option<(Seq, Probe)>,
    /// Records that the main producer has not reported, those of older streams included.
    in_main: usize,
    cursor: Seq,
    /// The oldest row known to be undeliverable: from now on nothing from it on is sent. Rows behind
    /// it that were on their way already, of other keys, may have arrived; they come again.
    poison: Option<Poison>,
    /// The newest row of a batch that was refused for its size.
    oversized: Option<Seq>,
    /// How many rows were refused so since the last producer was made.
    oversized_rows: usize,
    /// The process was paused, and nobody knows yet whether another one took over.
    suspended: bool,
    pub parking: Parking,
    suspicions: Suspicions,
    /// Of the last walk.
    now: jiff::Timestamp,
}

/// A probe takes a round trip; more suspects than this are better cleared by smaller batches.
const MANY_SUSPECTS: usize = 256;

impl<P: Enqueue> Sender<P> {
    pub fn new(main: P, probe: P, partitioner: Partitioner, parking: Parking) -> Self {
        Sender {
            mapper: Mapper::default(),
            topics: Topics::new(partitioner),
            main: Main::Ready(main),
            probe,
            probing: None,
            in_main: 0,
            cursor: Seq(0),
            poison: None,
            oversized: None,
            oversized_rows: 0,
            suspended: false,
            parking,
            suspicions: Suspicions::default(),
            now: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    /// Sends nothing until told that the slot is still ours.
    pub fn suspend(&mut self, suspended: bool) {
        self.suspended = suspended;
    }

    pub fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// Sends what can be sent now.
    pub fn pump(&mut self, ledger: &mut Ledger, now: jiff::Timestamp) {
        self.now = now;
        if self.suspended || self.is_probe_stale(ledger) {
            return;
        }
        self.walk(ledger, now);
        self.hold_crowd(ledger);
        if self.poison.is_none() {
            self.send_retries(ledger);
        }
    }

    /// What an older stream had in the probe producer may still arrive, beside the main producer's
    /// records: those of this stream wait until its report is in, or it would come between them.
    fn is_probe_stale(&self, ledger: &Ledger) -> bool {
        self.probing
            .is_some_and(|(seq, _)| ledger.row(seq).is_none())
    }

    fn walk(&mut self, ledger: &mut Ledger, now: jiff::Timestamp) {
        self.release_gates(ledger);
        while let Some(seq) = ledger.first_from(self.cursor) {
            if !matches!(self.main, Main::Ready(_)) || self.is_beyond_poison(seq) {
                return;
            }
            match ledger.row(seq).map(|row| row.state) {
                Some(RowState::Waiting) => match self.send(ledger, seq, now) {
                    Sent::Enqueued | Sent::Gated | Sent::Parked => {}
                    Sent::Suspicious => {
                        ledger.set_state(seq, RowState::Suspect);
                        continue;
                    }
                    Sent::Full | Sent::Poison => return,
                    Sent::Fatal => return self.abandon_main(),
                },
                Some(RowState::Suspect) if self.is_topic_closed(ledger, seq) => {
                    // Behind the rows of its topic that wait. A guilty one will fail again.
                    self.wait_at_gate(ledger, seq, now);
                }
                // Rows before it wait for their partition's first record alone, which will arrive:
                // with them it would only make a batch fail again.
                Some(RowState::Suspect) if self.is_behind_waiting(ledger, seq) => return,
                Some(RowState::Suspect) => {
                    if self.goes_back(ledger, seq) {
                        continue;
                    }
                    match self.parks_suspect(ledger, seq) {
                        Some(Parked::Yes) => continue,
                        Some(Parked::Stop) => return,
                        None => {}
                    }
                    // In order and alone: what was enqueued before it must have arrived. Should it be
                    // too large, what is too large is known by then.
                    if ledger.enqueued() == 0
                        && self.probing.is_none()
                        && !self
                            .topics
                            .awaits_limit(ledger.row(seq).and_then(|row| row.topic))
                    {
                        self.send_to_probe(ledger, seq, Probe::Suspect);
                    }
                    return;
                }
                Some(RowState::Retry) => self.queue_retry(seq),
                Some(RowState::Probing) if self.probing_letter() == Some(seq) => {}
                Some(RowState::Probing) => return,
                Some(RowState::Enqueued | RowState::Gated | RowState::Parked) | None => {}
            }
            self.cursor = seq.next();
        }
    }

    /// Rows leave an opened gate in commit order, before newer rows of their topic.
    fn release_gates(&mut self, ledger: &mut Ledger) {
        while let Some(number) = self.topics.releasable() {
            let Some(seq) = self.topics.first_waiting(number) else {
                return;
            };
            if !matches!(self.main, Main::Ready(_)) || self.is_beyond_poison(seq) {
                return;
            }
            match ledger.row(seq).map(|row| row.state) {
                None => {
                    self.topics.leave(number);
                    continue;
                }
                // Its own report decides; those behind it wait for it.
                Some(RowState::Probing) => return,
                Some(RowState::Parked) => {
                    self.topics.leave(number);
                    continue;
                }
                Some(_) => {}
            }
            match self.send(ledger, seq, self.now) {
                Sent::Enqueued | Sent::Parked => self.topics.leave(number),
                Sent::Gated | Sent::Suspicious => {}
                Sent::Full | Sent::Poison => return,
                Sent::Fatal => return self.abandon_main(),
            }
        }
    }

    fn is_beyond_poison(&self, seq: Seq) -> bool {
        self.poison.as_ref().is_some_and(|poison| seq >= poison.seq)
    }

    fn send(&mut self, ledger: &mut Ledger, seq: Seq, now: jiff::Timestamp) -> Sent {
        match self.enqueue(ledger, seq) {
            Ok(()) => Sent::Enqueued,
            Err(Refusal::Full) => Sent::Full,
            Err(Refusal::Fatal) => Sent::Fatal,
            Err(Refusal::Suspicious) => Sent::Suspicious,
            Err(Refusal::Behind) => {
                self.goes_back(ledger, seq);
                Sent::Parked
            }
            Err(Refusal::Held) => sent(self.park(ledger, seq, None, None)),
            Err(Refusal::Fault(fault)) => sent(self.fails(ledger, seq, *fault, None)),
            Err(Refusal::Closed(state)) => {
                let row = ledger.row(seq);
                let is_letter = row.is_some_and(|row| row.letter.is_some());
                let Some(number) = row.and_then(|row| row.topic) else {
                    return Sent::Full;
                };
                self.topics.answer(number, state.into());
                let topic = self.topics.get(number);
                if topic.is_closed() && (is_letter || topic.parking) {
                    let fault = setup_fault(topic);
                    return sent(self.fails(ledger, seq, fault, None));
                }
                if ledger.row(seq).map(|row| row.state) != Some(RowState::Gated) {
                    self.wait_at_gate(ledger, seq, now);
                }
                Sent::Gated
            }
        }
    }

    fn is_topic_closed(&self, ledger: &Ledger, seq: Seq) -> bool {
        let topic = ledger.row(seq).and_then(|row| row.topic);
        topic.is_some_and(|number| self.topics.get(number).state != TopicState::Open)
    }

    fn is_behind_waiting(&self, ledger: &Ledger, seq: Seq) -> bool {
        let topic = ledger.row(seq).and_then(|row| row.topic);
        topic.is_some_and(|number| !self.topics.takes(number))
    }

    fn wait_at_gate(&mut self, ledger: &mut Ledger, seq: Seq, now: jiff::Timestamp) {
        if let Some(number) = ledger.row(seq).and_then(|row| row.topic) {
            self.topics.wait(number, seq, now);
            ledger.set_state(seq, RowState::Gated);
        }
    }

    /// The one place where a row goes into the main producer.
    fn enqueue(&mut self, ledger: &mut Ledger, seq: Seq) -> Result<(), Refusal> {
        let Main::Ready(main) = &mut self.main else {
            return Err(Refusal::Full);
        };
        let Some(row) = ledger.row(seq) else {
            return Ok(());
        };
        let waited = row.state == RowState::Gated;
        let record = map(&mut self.mapper, row).map_err(|fault| unmappable(&fault))?;
        let number = self.topics.number(record.topic);
        if self.parking.goes_behind(row) {
            return Err(Refusal::Behind);
        }
        if self.parking.holds(row, number, record.key) {
            ledger.set_topic(seq, number, 0);
            return Err(Refusal::Held);
        }
        if !waited && self.suspicions.of(&record, number, self.now) {
            ledger.set_topic(seq, number, 0);
            return Err(Refusal::Suspicious);
        }
        let topic = self.topics.get(number);
        // A gated row is asked for when its gate is open and it is the first that waits.
        if !waited && !self.topics.takes(number) {
            let state = topic.state.clone();
            ledger.set_topic(seq, number, 0);
            return Err(Refusal::Closed(state));
        }
        let partition = self
            .topics
            .cold_partition(number, record.key, record.partition);
        if self.topics.is_blocked(number, partition) {
            ledger.set_topic(seq, number, 0);
            return Err(Refusal::Closed(TopicState::Open));
        }
        let sizes = [record.key, record.payload].map(|part| part.map_or(0, <[u8]>::len));
        let size = sizes.iter().sum::<usize>() as u64;
        let result = main
            .enqueue(&record, seq)
            .map_err(|code| refusal(code, &record, main.largest()));
        ledger.set_topic(seq, number, size);
        result?;
        self.in_main += 1;
        self.topics.enqueued(number, partition, seq);
        ledger.set_state(seq, RowState::Enqueued);
        Ok(())
    }

    fn send_to_probe(&mut self, ledger: &mut Ledger, seq: Seq, purpose: Probe) {
        let Some(row) = ledger.row(seq) else { return };
        let sent = match map(&mut self.mapper, row) {
            Err(fault) => Err(unmappable(&fault)),
            Ok(record) => self
                .probe
                .enqueue(&record, seq)
                .map_err(|code| refusal(code, &record, self.probe.largest())),
        };
        match sent {
            Ok(()) => {
                self.probing = Some((seq, purpose));
                ledger.set_state(seq, RowState::Probing);
            }
            Err(Refusal::Fault(fault)) => drop(self.fails(ledger, seq, *fault, None)),
            Err(Refusal::Closed(state)) if purpose == Probe::Letter => {
                let number = ledger.row(seq).and_then(|row| row.topic);
                if let Some(number) = number {
                    self.topics.answer(number, state.into());
                    let fault = setup_fault(self.topics.get(number));
                    self.letter_fails(ledger, seq, fault);
                }
            }
            // A topic that the client library knows to refuse us, or its own passing trouble: the
            // row stays what it is and is tried again.
            Err(_) => {}
        }
    }

    /// The letter in the probe producer.
    fn probing_letter(&self) -> Option<Seq> {
        let (seq, purpose) = self.probing?;
        (purpose == Probe::Letter).then_some(seq)
    }

    /// Takes what the brokers said of a topic; `true` when it is news. What denied us is believed
    /// to take records again only when one was delivered: a topic may be seen and not written to.
    pub fn answered(&mut self, ledger: &mut Ledger, number: usize, answer: Answer) -> bool {
        let denied = self.topics.get(number).state == TopicState::Denied;
        self.topics.seen(number, answer.state == TopicState::Open);
        if !(denied && answer.state == TopicState::Open) {
            let news = self.topics.answer(number, answer);
            if self.topics.get(number).is_closed() {
                self.expel_letters(ledger, number);
                if self.topics.get(number).parking {
                    self.give_up(ledger, number, None);
                }
            }
            return news;
        }
        // In order: the gate's first row is the topic's oldest only when the walk has been here and
        // no row of the topic is still in the main producer.
        if self.probing.is_none()
            && !self.suspended
            && matches!(self.main, Main::Ready(_))
            && self.topics.get(number).enqueued == 0
            && let Some(seq) = self.topics.first_waiting(number)
            && !self.is_beyond_poison(seq)
        {
            self.send_to_probe(ledger, seq, Probe::Gate(number));
        }
        false
    }

    /// The oldest row that can never be delivered.
    pub fn poison(&self) -> Option<&Poison> {
        self.poison.as_ref()
    }

    /// So many rows are suspects for their batches' size that the failed producer told all: with
    /// smaller batches most are cleared at once, each alone would cost a round trip.
    pub fn has_many_oversized(&self) -> bool {
        self.oversized_rows > MANY_SUSPECTS
            && self.in_main == 0
            && matches!(self.main, Main::Draining(_))
    }

    /// Smaller batches come: nobody is a suspect yet.
    pub fn clear_suspects(&mut self, ledger: &mut Ledger) {
        (self.oversized, self.oversized_rows) = (None, 0);
        let mut from = Seq(0);
        while let Some(seq) = ledger.first_from(from) {
            if ledger
                .row(seq)
                .is_some_and(|row| row.state == RowState::Suspect)
            {
                ledger.set_state(seq, RowState::Waiting);
            }
            from = seq.next();
        }
    }

    /// Batches were refused for their size, all their records were tried alone, and none was too
    /// large: told once.
    pub fn batches_are_too_large(&mut self) -> bool {
        // After a failure the cursor is where it was until the next producer comes.
        let walks = matches!(self.main, Main::Ready(_));
        let tried = walks && self.oversized.is_some_and(|last| last < self.cursor);
        if tried && self.poison.is_none() {
            self.oversized = None;
        }
        tried && self.poison.is_none()
    }

    /// Rows have waited too long for their topic: the first of them is where the publisher stops.
    /// They become letters, and so do its new rows while it stays closed.
    pub fn give_up(&mut self, ledger: &mut Ledger, number: usize, waited: Option<Duration>) {
        let topic = self.topics.get(number);
        let mut fault = setup_fault(topic);
        if let Some(waited) = waited {
            fault.text = format!(
                "{}; {} rows have waited for it for {} s (delivery.setup_retry_for). Create the topic or grant the right to write to it",
                fault.text,
                topic.waiting.len(),
                waited.as_secs(),
            );
        }
        // One that is being tried is decided by its own report.
        let is_free = |seq: Seq| ledger.row(seq).map(|row| row.state) != Some(RowState::Probing);
        for seq in self.topics.take_waiting(number, is_free) {
            if self.park_at_gate(ledger, seq, &fault) == Parked::Stop {
                return;
            }
        }
        self.topics.park(number);
    }

    fn park_at_gate(&mut self, ledger: &mut Ledger, seq: Seq, fault: &Fault) -> Parked {
        let parked = self.fails(ledger, seq, fault.clone(), None);
        if parked == Parked::Stop {
            // It waits on, for what it is told with.
            self.wait_at_gate(ledger, seq, self.now);
        }
        parked
    }

    pub fn main(&self) -> Option<&P> {
        match &self.main {
            Main::Ready(main) => Some(main),
            Main::Draining(_) | Main::Absent => None,
        }
    }

    pub fn probe(&self) -> &P {
        &self.probe
    }

    pub fn take_dropped_headers(&mut self) -> u64 {
        self.mapper.take_dropped_headers()
    }
}

fn sent(parked: Parked) -> Sent {
    match parked {
        Parked::Yes => Sent::Parked,
        Parked::Stop => Sent::Poison,
    }
}

fn map<'a>(mapper: &'a mut Mapper, row: &'a Row) -> Result<Record<'a>, Unmappable> {
    match &row.content {
        Content::Kept(kept) => {
            let resend = row.letter.as_ref().is_some_and(|letter| letter.resend);
            Ok(mapper.kept(kept, resend))
        }
        Content::Tuple { shape, tuple } => {
            let mapped = OutboxRow::new(shape, Tuple::from_bytes(tuple))?;
            mapper.record(&mapped, row.origin, row.position, row.committed_at)
        }
    }
}

#[cfg(test)]
mod held_tests;
#[cfg(test)]
mod tests;

//! Held keys against a model of the table, the brokers and an operator: the publisher is killed at
//! any step, its slot goes back, orders to the database are carried out or not. Whatever happens, a
//! key's rows arrive in order, each of them, and a repetition is a suffix: an old record is never
//! the last word on its key. Seeds are printed by proptest.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    rc::Rc,
    sync::Arc,
};

use proptest::prelude::*;

use super::{tests::shape_of, *};
use crate::{
    config::{DeadLetters, Delivery, OnPoison},
    dead_letters::{
        letter::{Kept, Place},
        store::{
            self, Body, Candidate, Choice, HeldKey, Loaded, Looked, Take, Taken, Wanted, Write,
        },
    },
    kafka::{
        context::{Outcome, Settled, Source},
        topics::{Answer, Limit},
    },
    lsn::{Lsn, PgTime, Position},
    outbox::relation::{Relations, Shape},
    state::LetterCounts,
};

const KEYS: [&str; 3] = ["a", "b", "c"];
const TOPIC: &str = "t";
/// Between two commits, in bytes of WAL: what else is written lies there.
const STRIDE: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Pending,
    Replaying,
    Held,
    Resolved,
    Ignored,
}

impl Status {
    fn is_open(self) -> bool {
        !matches!(self, Status::Resolved | Status::Ignored)
    }
}

/// A dead letter as the table has it; its id is the row's number.
#[derive(Clone, Debug)]
struct Stored {
    status: Status,
    failed: bool,
    attempts: i32,
    kept: Kept,
}

/// What outlives the publisher.
#[derive(Default)]
struct World {
    /// Key and whether it is refused, by number.
    rows: Vec<(usize, bool)>,
    /// Refused once, and good from now on.
    healed: HashSet<usize>,
    letters: BTreeMap<usize, Stored>,
    arrived: Vec<usize>,
    /// How much had arrived when an operator gave a row up.
    ignored: HashMap<usize, usize>,
    confirmed: Option<usize>,
    sent: HashMap<Seq, usize>,
    written: u64,
    /// More rows than this are not held.
    bound: Option<u64>,
}

impl World {
    fn is_refused(&self, row: usize) -> bool {
        self.rows[row].1 && !self.healed.contains(&row)
    }

    fn counts(&self) -> LetterCounts {
        let held = self.letters.values();
        let held = held.filter(|letter| letter.status == Status::Held).count();
        LetterCounts {
            held: held as u64,
            ..LetterCounts::default()
        }
    }

    fn wal_end(&self) -> Lsn {
        let rows = self.rows.len() as u64;
        Lsn::new((rows + 1) * STRIDE + self.written)
    }
}

fn commit_of(row: usize) -> Lsn {
    Lsn::new((row as u64 + 1) * STRIDE)
}

fn place_of(row: usize) -> Place {
    let position = Position {
        commit: commit_of(row),
        ordinal: 1,
    };
    Place { life: 1, position }
}

fn row_of(place: Place) -> usize {
    (place.position.commit.bytes() / STRIDE) as usize - 1
}

#[derive(Clone)]
struct Fake {
    world: Rc<RefCell<World>>,
    queue: Rc<RefCell<VecDeque<Seq>>>,
    dead: Rc<RefCell<bool>>,
}

impl Fake {
    fn new(world: &Rc<RefCell<World>>) -> Self {
        Fake {
            world: world.clone(),
            queue: Rc::default(),
            dead: Rc::default(),
        }
    }
}

impl Enqueue for Fake {
    fn enqueue(&mut self, record: &Record<'_>, seq: Seq) -> Result<(), Code> {
        if *self.dead.borrow() {
            return Err(Code::Fatal);
        }
        let number = std::str::from_utf8(record.payload.unwrap()).unwrap();
        let number = number.parse().unwrap();
        self.world.borrow_mut().sent.insert(seq, number);
        self.queue.borrow_mut().push_back(seq);
        Ok(())
    }

    fn largest(&self) -> usize {
        1_000_000
    }

    fn purge_queue(&self) {
        *self.dead.borrow_mut() = true;
    }
}

/// What the database was asked, not answered yet.
enum Order {
    Write(Vec<Task>),
    Take(Take),
    Look,
    Fetch(Vec<i64>),
}

struct Run {
    world: Rc<RefCell<World>>,
    ledger: Ledger,
    sender: Sender<Fake>,
    main: Fake,
    probe: Fake,
    shape: Arc<Shape>,
    relations: Relations,
    order: Option<Order>,
    fetch: Vec<i64>,
    look: bool,
    next: usize,
}

impl Run {
    fn start(world: Rc<RefCell<World>>) -> Self {
        let (shape, relations) = shape_of("hold-key");
        let (main, probe) = (Fake::new(&world), Fake::new(&world));
        let config = DeadLetters {
            retry_after: Vec::new(),
            max_held_rows: world.borrow().bound.unwrap_or(100_000),
            ..DeadLetters::default()
        };
        let parking = Parking::new(&config, &Delivery::default());
        let partitioner = Partitioner::named("murmur2_random");
        let sender = Sender::new(main.clone(), probe.clone(), partitioner, parking);
        let mut run = Run {
            ledger: Ledger::new(12, 1 << 20),
            sender,
            main,
            probe,
            shape,
            relations,
            order: None,
            fetch: Vec::new(),
            look: true,
            next: 0,
            world,
        };
        run.begin();
        run
    }

    /// The stream begins where the slot stands, with what the table says.
    fn begin(&mut self) {
        let from = self.world.borrow().confirmed.map_or(0, |row| row + 1);
        let at = if from == 0 {
            Lsn::new(1)
        } else {
            Lsn::new(commit_of(from - 1).bytes() + 1)
        };
        self.ledger.restart(at, Lsn::new(u64::MAX));
        self.sender.restart(&mut self.ledger);
        (self.next, self.look, self.order) = (from, true, None);
        self.fetch.clear();
        let loaded = self.load(at);
        self.sender.load(1, loaded, |_| OnPoison::HoldKey);
    }

    fn load(&self, confirmed: Lsn) -> Loaded {
        let world = self.world.borrow();
        let mut loaded = Loaded::default();
        for (key, name) in KEYS.iter().enumerate() {
            let open: Vec<_> = world
                .letters
                .iter()
                .filter(|(row, letter)| world.rows[**row].0 == key && letter.status.is_open())
                .collect();
            if let Some((first, _)) = open.first() {
                loaded.keys.push(HeldKey {
                    outbox: "s.t".into(),
                    topic: TOPIC.into(),
                    key: name.as_bytes().to_vec(),
                    first: place_of(**first),
                    letters: open.len(),
                    holds: true,
                });
            }
        }
        let known = world.letters.iter().filter(|(row, letter)| {
            letter.status != Status::Resolved && commit_of(**row) >= confirmed
        });
        loaded.counts = world.counts();
        loaded.known = known.map(|(row, _)| place_of(*row).position).collect();
        loaded
    }

    /// The next row of the stream, or a keepalive at its end.
    fn read(&mut self) -> bool {
        if self.sender.parking.pauses_reading() || !self.ledger.has_room(100) {
            return false;
        }
        let rows = self.world.borrow().rows.clone();
        let Some((key, _)) = rows.get(self.next) else {
            let end = self.world.borrow().wal_end();
            let news = self.ledger.boundary() < Some(end);
            self.ledger.keepalive(end);
            return news;
        };
        let commit = commit_of(self.next);
        self.ledger.begin(commit, PgTime::new(0)).unwrap();
        let position = self.ledger.next_position().unwrap();
        if !self.sender.parking.is_known(position) {
            let tuple = super::tests::tuple(TOPIC, Some(KEYS[*key]), &self.next.to_string());
            self.ledger
                .open_row(self.shape.clone(), tuple.into())
                .unwrap();
        }
        self.ledger.commit(Lsn::new(commit.bytes() + 1)).unwrap();
        self.next += 1;
        true
    }

    /// Whether a topic was asked for.
    fn pump(&mut self) -> bool {
        self.sender
            .pump(&mut self.ledger, jiff::Timestamp::UNIX_EPOCH);
        while let Some(number) = self.sender.topics.take_wanted_limit() {
            self.sender.topics.limited(number, Limit::Unknown);
        }
        let asked: Vec<_> = self
            .sender
            .topics
            .to_ask()
            .map(|(number, _)| number)
            .collect();
        for number in asked.iter().copied() {
            let answer = Answer {
                state: TopicState::Open,
                partitions: 1,
            };
            self.sender.answered(&mut self.ledger, number, answer);
        }
        !asked.is_empty()
    }

    fn settle(&mut self, source: Source, seq: Seq, outcome: Outcome) {
        if outcome == Outcome::Delivered {
            let mut world = self.world.borrow_mut();
            let row = world.sent[&seq];
            world.arrived.push(row);
        }
        let settled = Settled {
            source,
            seq,
            partition: 0,
            outcome,
        };
        self.sender.settled(&mut self.ledger, settled);
    }

    /// The main producer's next batch, of up to `size` records.
    fn main_batch(&mut self, size: usize) -> bool {
        let count = if *self.main.dead.borrow() { 1 } else { size };
        let mut queue = self.main.queue.borrow_mut();
        let count = count.min(queue.len());
        let batch: Vec<Seq> = queue.drain(..count).collect();
        drop(queue);
        if batch.is_empty() {
            return false;
        }
        let refused = {
            let world = self.world.borrow();
            batch.iter().any(|seq| world.is_refused(world.sent[seq]))
        };
        let outcome = if *self.main.dead.borrow() {
            Outcome::Failed(Code::PurgeQueue)
        } else if refused {
            *self.main.dead.borrow_mut() = true;
            Outcome::Failed(Code::MessageSizeTooLarge)
        } else {
            Outcome::Delivered
        };
        for seq in batch {
            self.settle(Source::Main, seq, outcome);
        }
        true
    }

    fn probe_report(&mut self) -> bool {
        let Some(seq) = self.probe.queue.borrow_mut().pop_front() else {
            return false;
        };
        let refused = {
            let world = self.world.borrow();
            world.is_refused(world.sent[&seq])
        };
        let outcome = if refused {
            Outcome::Failed(Code::MessageSizeTooLarge)
        } else {
            Outcome::Delivered
        };
        self.settle(Source::Probe, seq, outcome);
        true
    }

    fn renew(&mut self) -> bool {
        let drained = self.sender.take_drained().is_some();
        if drained {
            self.main = Fake::new(&self.world);
            self.sender
                .install_main(self.main.clone(), &mut self.ledger);
        }
        drained
    }

    fn confirm(&mut self) {
        self.ledger.raise_ceiling(self.ledger.boundary());
        if let Some(confirmed) = self.ledger.confirmed() {
            let mut world = self.world.borrow_mut();
            let passed = (0..world.rows.len()).rfind(|row| commit_of(*row) < confirmed.lsn());
            world.confirmed = world.confirmed.max(passed);
        }
    }

    /// Gives the database its next order.
    fn ask(&mut self) -> bool {
        if self.order.is_some() {
            return false;
        }
        self.order = if self.sender.parking.has_tasks() {
            Some(Order::Write(self.sender.parking.take_tasks(3)))
        } else if let Some(take) = self.sender.next_take(&self.ledger) {
            Some(Order::Take(take))
        } else if !self.fetch.is_empty() {
            Some(Order::Fetch(std::mem::take(&mut self.fetch)))
        } else if std::mem::take(&mut self.look) || self.sender.parking.looks_again() {
            Some(Order::Look)
        } else {
            None
        };
        self.order.is_some()
    }

    /// The database does what it was told, and answers.
    fn answer(&mut self) -> bool {
        match self.order.take() {
            None => return false,
            Some(Order::Write(tasks)) => {
                self.write(&tasks);
                let durable = {
                    let mut world = self.world.borrow_mut();
                    world.written += 1;
                    world.wal_end()
                };
                for task in &tasks {
                    let Task {
                        seq,
                        identity,
                        write,
                    } = task;
                    self.sender
                        .written(&mut self.ledger, *seq, identity.as_ref(), write, durable);
                }
                self.look = true;
            }
            Some(Order::Take(take)) => {
                let taken = self.take(&take);
                self.sender.taken(&mut self.ledger, &self.relations, taken);
            }
            Some(Order::Fetch(ids)) => {
                let letters = ids.iter().map(|id| self.letter(*id as usize)).collect();
                self.sender
                    .fetched(&mut self.ledger, &self.relations, letters);
            }
            Some(Order::Look) => {
                let looked = self.looked();
                self.fetch = self.sender.looked(&self.ledger, &looked);
            }
        }
        true
    }

    fn write(&self, tasks: &[Task]) {
        let mut world = self.world.borrow_mut();
        for task in tasks {
            match &task.write {
                Write::Park(park) => {
                    let row = row_of(park.place);
                    let known = world.letters.get(&row).map(|letter| letter.status);
                    if known.is_none_or(|status| status == Status::Resolved) {
                        let status = if park.behind.is_some() {
                            Status::Held
                        } else {
                            Status::Pending
                        };
                        let letter = Stored {
                            status,
                            failed: park.fault.is_some(),
                            attempts: 0,
                            kept: park.kept.clone().unwrap(),
                        };
                        world.letters.insert(row, letter);
                    }
                }
                Write::Resolve { id } => self.change(&mut world, *id, |letter| {
                    letter.status = Status::Resolved;
                }),
                Write::Fail(failure) => self.change(&mut world, failure.id, |letter| {
                    letter.status = Status::Pending;
                    letter.failed = true;
                    letter.attempts += 1;
                }),
                Write::Return { id, .. } => {
                    self.change(&mut world, *id, |letter| letter.status = Status::Held);
                }
            }
        }
    }

    fn change(&self, world: &mut World, id: i64, change: impl FnOnce(&mut Stored)) {
        let letter = world.letters.get_mut(&(id as usize)).unwrap();
        if letter.status == Status::Replaying {
            change(letter);
        }
    }

    fn open_of(&self, key: &[u8], except: &[i64]) -> Vec<(usize, Stored)> {
        let world = self.world.borrow();
        let of_key = world.letters.iter().filter(|(row, letter)| {
            let is_key = KEYS[world.rows[**row].0].as_bytes() == key;
            is_key && letter.status.is_open() && !except.contains(&(**row as i64))
        });
        of_key.map(|(row, letter)| (*row, letter.clone())).collect()
    }

    fn take(&self, take: &Take) -> Taken {
        let open = self.open_of(&take.key, &take.except);
        let candidates: Vec<_> = open
            .iter()
            .map(|(row, letter)| Candidate {
                id: *row as i64,
                place: place_of(*row),
                waits: letter.status == Status::Pending,
                failed: letter.failed,
                bytes: 1,
            })
            .collect();
        let mut taken = Taken {
            letters: Vec::new(),
            left: candidates.len(),
            waits_for: None,
        };
        match store::choose(&candidates, take.bound, 2) {
            Choice::Nothing | Choice::NotYet => {}
            Choice::WaitsFor(place) => taken.waits_for = Some(place),
            Choice::Take(count) => {
                for (row, _) in &open[..count] {
                    let mut world = self.world.borrow_mut();
                    world.letters.get_mut(row).unwrap().status = Status::Replaying;
                    drop(world);
                    taken.letters.push(self.letter(*row as i64 as usize));
                }
                taken.left -= count;
            }
        }
        taken
    }

    fn letter(&self, row: usize) -> store::Letter {
        let world = self.world.borrow();
        let letter = &world.letters[&row];
        store::Letter {
            id: row as i64,
            outbox: "s.t".into(),
            topic: TOPIC.into(),
            key: letter.kept.key.clone(),
            place: Some(place_of(row)),
            event_id: None,
            committed_at: PgTime::new(0),
            attempts: letter.attempts,
            failed: letter.failed,
            resend: false,
            body: Body::Kept(letter.kept.clone()),
        }
    }

    fn looked(&self) -> Looked {
        let wanted = |row: usize, key: &str| Wanted {
            id: row as i64,
            outbox: "s.t".into(),
            topic: TOPIC.into(),
            key: Some(key.as_bytes().to_vec()),
            place: Some(place_of(row)),
        };
        let mut looked = Looked {
            counts: self.world.borrow().counts(),
            ..Looked::default()
        };
        for key in KEYS {
            let open = self.open_of(key.as_bytes(), &[]);
            let replaying = open
                .iter()
                .filter(|(_, letter)| letter.status == Status::Replaying);
            looked
                .replaying
                .extend(replaying.map(|(row, _)| wanted(*row, key)));
            if let Some((row, first)) = open.first()
                && first.status != Status::Pending
            {
                looked.first.push(wanted(*row, key));
            }
        }
        looked
    }

    /// An operator does something about a letter, sensible or not.
    fn operate(&mut self, dice: u64) {
        let mut world = self.world.borrow_mut();
        let choices: Vec<usize> = world
            .letters
            .iter()
            .filter(|(_, letter)| {
                letter.status == Status::Pending
                    || (letter.status == Status::Held && dice.is_multiple_of(10))
            })
            .map(|(row, _)| *row)
            .collect();
        if choices.is_empty() {
            return;
        }
        let row = choices[dice as usize / 10 % choices.len()];
        let ignores = (dice / 1000).is_multiple_of(4);
        let heals = dice / 4000 % 10 < 7;
        let status = world.letters[&row].status;
        if ignores {
            world.letters.get_mut(&row).unwrap().status = Status::Ignored;
            let arrived = world.arrived.len();
            world.ignored.insert(row, arrived);
        } else if status == Status::Pending {
            if heals {
                world.healed.insert(row);
            }
            world.letters.get_mut(&row).unwrap().status = Status::Replaying;
        }
        drop(world);
        self.look = true;
    }

    /// Killed: part of what was queued arrives, an order to the database is carried out or not, and
    /// the slot may stand where it stood before.
    fn kill(self, dice: u64) -> Run {
        let queue = self.main.queue.borrow().clone();
        if !*self.main.dead.borrow() {
            for seq in queue.iter().take(dice as usize % (queue.len() + 1)) {
                let mut world = self.world.borrow_mut();
                let row = world.sent[seq];
                if world.is_refused(row) {
                    break;
                }
                world.arrived.push(row);
            }
        }
        if (dice / 100).is_multiple_of(2) {
            match &self.order {
                Some(Order::Write(tasks)) => self.write(tasks),
                Some(Order::Take(take)) => drop(self.take(take)),
                _ => {}
            }
        }
        if (dice / 1000).is_multiple_of(3) {
            let mut world = self.world.borrow_mut();
            let back = 1 + dice as usize / 10_000 % 6;
            world.confirmed = world.confirmed.and_then(|row| row.checked_sub(back));
        }
        Run::start(self.world)
    }

    /// The stream breaks and starts again in the same process: what was sent may still arrive.
    fn restart(&mut self) {
        if matches!(self.order, Some(Order::Write(_)))
            && let Some(Order::Write(tasks)) = self.order.take()
        {
            self.write(&tasks);
        }
        // Of the queue nothing is sent any more, and its reports find nobody.
        let purged: Vec<Seq> = self.main.queue.borrow_mut().drain(..).collect();
        self.begin();
        for seq in purged {
            self.settle(Source::Main, seq, Outcome::Failed(Code::PurgeQueue));
        }
    }

    /// One that stopped, because more rows would be held than may be, is started again.
    fn begins_again(&mut self) -> bool {
        let stopped = self.sender.poison().is_some();
        if stopped {
            self.restart();
        }
        stopped
    }

    /// No more faults: everything that can move moves, and the operator heals all.
    fn finish(&mut self) {
        for _ in 0..20_000 {
            let mut moved = self.begins_again();
            moved |= self.read();
            moved |= self.pump();
            moved |= self.main_batch(2);
            moved |= self.probe_report();
            moved |= self.renew();
            moved |= self.ask();
            moved |= self.answer();
            moved |= self.pump();
            self.confirm();
            let pending: Vec<usize> = {
                let world = self.world.borrow();
                let pending = world.letters.iter();
                pending
                    .filter(|(_, letter)| letter.status == Status::Pending)
                    .map(|(row, _)| *row)
                    .collect()
            };
            for row in pending {
                let mut world = self.world.borrow_mut();
                world.healed.insert(row);
                world.letters.get_mut(&row).unwrap().status = Status::Replaying;
                drop(world);
                (self.look, moved) = (true, true);
            }
            if !moved {
                return;
            }
        }
        panic!("it never comes to rest");
    }
}

fn judge(world: &World) -> Result<(), String> {
    let open = world.letters.values().any(|letter| letter.status.is_open());
    let last = world.rows.len().checked_sub(1);
    if open || world.confirmed != last {
        return Err(format!(
            "stuck: confirmed {:?} of {:?}, letters {:?}",
            world.confirmed, last, world.letters
        ));
    }
    let is_ignored = |row: &usize| {
        let letter = world.letters.get(row);
        letter.is_some_and(|letter| letter.status == Status::Ignored)
    };
    for (row, arrived) in &world.ignored {
        if world.arrived[*arrived..].contains(row) {
            return Err(format!("row {row} was given up, and arrived"));
        }
    }
    for (key, name) in KEYS.iter().enumerate() {
        let rows = (0..world.rows.len()).filter(|row| world.rows[*row].0 == key);
        let wanted: Vec<usize> = rows.filter(|row| !is_ignored(row)).collect();
        let order = |row: usize| wanted.iter().position(|wanted| *wanted == row);
        let log: Vec<usize> = world.arrived.iter().copied().filter_map(order).collect();
        for (index, row) in wanted.iter().enumerate() {
            if !log.contains(&index) {
                return Err(format!("row {row} of key {name} is lost"));
            }
        }
        let (mut seen, mut current) = (None::<usize>, None::<usize>);
        for at in &log {
            let follows = |before: Option<usize>| *at <= before.map_or(0, |before| before + 1);
            if !follows(seen) {
                return Err(format!(
                    "first arrivals of key {name} are out of order: {log:?}"
                ));
            }
            if !follows(current) {
                return Err(format!("a repetition of key {name} is no suffix: {log:?}"));
            }
            (seen, current) = (seen.max(Some(*at)), Some(*at));
        }
    }
    Ok(())
}

/// The first batch is refused for its size, and all is sent again until it is done: whether smaller
/// batches were asked for.
fn asks_for_smaller_batches(rows: Vec<(usize, bool)>) -> bool {
    let world = World {
        rows,
        ..World::default()
    };
    let mut run = Run::start(Rc::new(RefCell::new(world)));
    while run.read() {}
    while run.main.queue.borrow().is_empty() {
        run.pump();
        run.renew();
    }
    let batch: Vec<Seq> = run.main.queue.borrow_mut().drain(..).collect();
    *run.main.dead.borrow_mut() = true;
    for seq in batch {
        run.settle(
            Source::Main,
            seq,
            Outcome::Failed(Code::MessageSizeTooLarge),
        );
    }
    let mut asked = run.sender.batches_are_too_large();
    assert!(!asked, "nobody was tried alone yet");
    loop {
        let mut moved = run.renew();
        run.pump();
        moved |= run.main_batch(3) | run.probe_report() | run.ask() | run.answer();
        run.pump();
        asked |= run.sender.batches_are_too_large();
        if !moved {
            return asked;
        }
    }
}

#[test]
fn a_guilty_record_is_found_at_once_also_where_its_neighbours_are_told_apart() {
    // The brokers name the record that is no good, and those beside it are to be sent again.
    let rows = (0..12).map(|row| (row % 2, row == 7)).collect();
    let world = World {
        rows,
        ..World::default()
    };
    let mut run = Run::start(Rc::new(RefCell::new(world)));
    let mut producers = 0;
    for _ in 0..1_000 {
        while run.read() {}
        run.pump();
        // All but a producer's first record go in one batch.
        let batch: Vec<Seq> = run.main.queue.borrow_mut().drain(..).collect();
        let is_refused = |seq: &Seq| {
            let world = run.world.borrow();
            world.is_refused(world.sent[seq])
        };
        let is_dead = *run.main.dead.borrow();
        let (guilty, code) = match batch.iter().find(|seq| is_refused(seq)).copied() {
            _ if is_dead => (None, Some(Code::PurgeQueue)),
            None => (None, None),
            guilty => (guilty, Some(Code::InvalidDifferentRecord)),
        };
        *run.main.dead.borrow_mut() |= guilty.is_some();
        for seq in batch {
            let outcome = match code {
                _ if guilty == Some(seq) => Outcome::Failed(Code::InvalidRecord),
                Some(code) => Outcome::Failed(code),
                None => Outcome::Delivered,
            };
            run.settle(Source::Main, seq, outcome);
        }
        run.probe_report();
        producers += usize::from(run.renew());
        run.ask();
        run.answer();
    }
    let world = run.world.borrow();
    assert_eq!(
        world.letters.len(),
        3,
        "the guilty one, and those behind it"
    );
    assert_eq!(world.arrived.len(), 9, "{:?}", world.arrived);
    // The stream's start takes one, see `begin`.
    assert!(producers <= 2, "{producers} producers");
}

#[test]
fn batches_get_smaller_when_all_their_records_are_taken_alone() {
    assert!(asks_for_smaller_batches(vec![
        (0, false),
        (0, false),
        (0, false)
    ]));
}

#[test]
fn a_record_that_is_too_large_itself_makes_no_batches_smaller() {
    assert!(!asks_for_smaller_batches(vec![
        (1, true),
        (0, false),
        (0, false)
    ]));
}

#[derive(Clone, Debug)]
enum Step {
    Read,
    Main(usize),
    Probe,
    Renew,
    Ask,
    Answer,
    Confirm,
    Operate(u64),
    FailMain,
    Restart,
    Kill(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => Just(Step::Read),
        8 => (1usize..3).prop_map(Step::Main),
        6 => Just(Step::Probe),
        5 => Just(Step::Renew),
        6 => Just(Step::Ask),
        5 => Just(Step::Answer),
        4 => Just(Step::Confirm),
        3 => (0u64..1_000_000).prop_map(Step::Operate),
        1 => Just(Step::FailMain),
        1 => Just(Step::Restart),
        1 => (0u64..1_000_000).prop_map(Step::Kill),
    ]
}

fn rows() -> impl Strategy<Value = Vec<(usize, bool)>> {
    prop::collection::vec((0..KEYS.len(), prop::bool::weighted(0.15)), 5..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_repetition_is_a_suffix_and_nothing_is_lost(
        rows in rows(),
        bound in prop::option::weighted(0.3, 1u64..6),
        steps in prop::collection::vec(step(), 50..400),
    ) {
        let world = World { rows, bound, ..World::default() };
        let mut run = Run::start(Rc::new(RefCell::new(world)));
        for step in steps {
            match step {
                Step::Read => drop(run.read()),
                Step::Main(size) => drop(run.main_batch(size)),
                Step::Probe => drop(run.probe_report()),
                Step::Renew => drop(run.renew()),
                Step::Ask => drop(run.ask()),
                Step::Answer => drop(run.answer()),
                Step::Confirm => run.confirm(),
                Step::Operate(dice) => run.operate(dice),
                Step::FailMain => run.sender.abandon_main(),
                Step::Restart => run.restart(),
                Step::Kill(dice) => run = run.kill(dice),
            }
            run.pump();
            run.begins_again();
        }
        run.finish();
        let verdict = judge(&run.world.borrow());
        prop_assert!(verdict.is_ok(), "{}\narrived {:?}", verdict.unwrap_err(), run.world.borrow().arrived);
    }
}

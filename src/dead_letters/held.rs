//! Held keys: behind a key's first open letter its later rows are parked, and released in order
//! when that letter is resolved or ignored. Only what is known in memory; no SQL, no clock.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::letter::Place;
use crate::config::TableName;

/// Letters of a key that are taken at once, at most.
pub const BATCH: usize = 500;

/// Whose order counts: the key of one outbox table in one topic. A NULL key has no order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The number of the outbox table's name, see [`Held::outbox`].
    pub outbox: usize,
    /// The number of the topic; where none could be made of the row, that of the empty name.
    pub topic: usize,
    pub key: Box<[u8]>,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// On an operator or the next retry.
    Waits,
    /// Its letters may be taken.
    Ready,
    /// They are being taken, or in flight.
    Busy,
}

#[derive(Debug)]
struct Hold {
    /// A key that was released and is held again is another hold.
    born: u64,
    /// The first open letter: rows behind it are parked, one before it is a repetition.
    cause: Place,
    /// Open letters in the table that are not in flight, as far as known.
    waiting: usize,
    /// Parked, and not in the table yet.
    unwritten: BTreeSet<Place>,
    flying: usize,
    /// Another one whenever a letter of the key fails: those taken before belong behind it.
    generation: u64,
    step: Step,
}

/// A key to take letters of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    pub identity: Identity,
    /// Only letters before it: one behind is not in the table yet.
    pub below: Option<Place>,
    /// What is left may fit one batch: then the key is free once it is taken, provided that no row
    /// of it comes meanwhile.
    pub last: bool,
    /// Nothing is in the table to take, as far as known.
    pub is_empty: bool,
}

/// The held keys of one table in one topic.
type Line = HashMap<Box<[u8]>, Hold>;

#[derive(Debug, Default)]
pub struct Held {
    /// By outbox table and topic.
    lines: HashMap<(usize, usize), Line>,
    outboxes: Vec<Box<str>>,
    keys: usize,
    ready: VecDeque<Identity>,
    generation: u64,
}

impl Held {
    /// A number for the outbox table of this name.
    pub fn outbox(&mut self, name: &str) -> usize {
        let known = self.outboxes.iter().position(|known| **known == *name);
        known.unwrap_or_else(|| {
            self.outboxes.push(name.into());
            self.outboxes.len() - 1
        })
    }

    /// The number of a table that has one; nothing is allocated.
    pub fn known_outbox(&self, table: &TableName) -> Option<usize> {
        self.outboxes.iter().position(|known| {
            let name = known.strip_prefix(&*table.schema);
            name.and_then(|name| name.strip_prefix('.')) == Some(&*table.name)
        })
    }

    pub fn outbox_name(&self, number: usize) -> &str {
        self.outboxes.get(number).map_or("", |name| name)
    }

    /// Held keys.
    pub fn len(&self) -> usize {
        self.keys
    }

    pub fn is_empty(&self) -> bool {
        self.keys == 0
    }

    fn get(&self, outbox: usize, topic: usize, key: &[u8]) -> Option<&Hold> {
        self.lines.get(&(outbox, topic))?.get(key)
    }

    fn get_mut(&mut self, of: &Identity) -> Option<&mut Hold> {
        self.lines.get_mut(&(of.outbox, of.topic))?.get_mut(&of.key)
    }

    /// The letter that rows of this key wait behind.
    pub fn cause(&self, outbox: usize, topic: usize, key: &[u8]) -> Option<Place> {
        self.get(outbox, topic, key).map(|hold| hold.cause)
    }

    pub fn contains(&self, of: &Identity) -> bool {
        self.get(of.outbox, of.topic, &of.key).is_some()
    }

    /// The mark of letters that are taken now.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// A letter that was taken belongs behind another one that failed since.
    pub fn is_behind(&self, of: &Identity, place: Place, generation: u64) -> bool {
        let hold = self.get(of.outbox, of.topic, &of.key);
        hold.is_some_and(|hold| hold.generation > generation && place > hold.cause)
    }

    /// The key is held from now on, with `cause` as its first open letter if it is older than what
    /// is known.
    fn hold(&mut self, of: &Identity, cause: Place) -> &mut Hold {
        let line = self.lines.entry((of.outbox, of.topic)).or_default();
        let (keys, generation) = (&mut self.keys, &mut self.generation);
        let hold = line.entry(of.key.clone()).or_insert_with(|| {
            *keys += 1;
            *generation += 1;
            Hold {
                born: *generation,
                cause,
                waiting: 0,
                unwritten: BTreeSet::new(),
                flying: 0,
                generation: 0,
                step: Step::Waits,
            }
        });
        hold.cause = hold.cause.min(cause);
        hold
    }

    /// As the table says at the start: the first open letter, and how many there are.
    pub fn load(&mut self, of: &Identity, cause: Place, waiting: usize) {
        self.hold(of, cause).waiting = waiting;
    }

    /// A row failed: the key is held from now on.
    pub fn park_cause(&mut self, of: &Identity, place: Place) {
        self.hold(of, place).unwritten.insert(place);
    }

    /// A row of a held key.
    pub fn park(&mut self, of: &Identity, place: Place) {
        if let Some(hold) = self.get_mut(of) {
            hold.unwritten.insert(place);
        }
    }

    /// A parked row is in the table.
    pub fn written(&mut self, of: &Identity, place: Place) {
        if let Some(hold) = self.get_mut(of) {
            hold.waiting += usize::from(hold.unwritten.remove(&place));
        }
    }

    /// A letter that was sent failed by its own fault: it is the cause now, and those of the key
    /// that were taken with it belong behind it. It stays in flight until that is written.
    pub fn failed(&mut self, of: &Identity, place: Place) {
        self.generation += 1;
        let generation = self.generation;
        let hold = self.hold(of, place);
        (hold.cause, hold.generation) = (place, generation);
    }

    /// What became of a letter that was taken is in the table; `open`: it is an open one again.
    /// `born`: the hold that it was taken of.
    pub fn landed(&mut self, of: &Identity, born: u64, open: bool) {
        let Some(hold) = self.get_mut(of) else { return };
        hold.waiting += usize::from(open);
        if hold.born != born {
            return;
        }
        hold.flying = hold.flying.saturating_sub(1);
        if hold.flying == 0 && hold.step == Step::Busy {
            self.make_ready(of);
        }
    }

    /// Its first open letter may be sent, or was closed.
    pub fn make_ready(&mut self, of: &Identity) {
        if let Some(hold) = self
            .get_mut(of)
            .filter(|hold| hold.step != Step::Ready && hold.flying == 0)
        {
            hold.step = Step::Ready;
            self.ready.push_back(of.clone());
        }
    }

    /// As [`Held::make_ready`], unless something is being done about it already.
    pub fn wake(&mut self, of: &Identity) {
        if self
            .get_mut(of)
            .is_some_and(|hold| hold.step == Step::Waits)
        {
            self.make_ready(of);
        }
    }

    /// How many keys have letters to take.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// The key whose turn it is.
    /// `batch`: letters that are taken at once.
    pub fn turn(&self, batch: usize) -> Option<Turn> {
        let identity = self.ready.front()?;
        let hold = self.get(identity.outbox, identity.topic, &identity.key)?;
        Some(Turn {
            identity: identity.clone(),
            below: hold.unwritten.first().copied(),
            last: hold.waiting + hold.unwritten.len() <= batch,
            is_empty: hold.waiting == 0,
        })
    }

    /// Letters of a key are being taken or sent.
    pub fn is_releasing(&self) -> bool {
        let mut holds = self.lines.values().flat_map(HashMap::values);
        holds.any(|hold| hold.step != Step::Waits && hold.waiting + hold.flying > 0)
    }

    pub fn has_unwritten(&self, of: &Identity) -> bool {
        let hold = self.get(of.outbox, of.topic, &of.key);
        hold.is_some_and(|hold| !hold.unwritten.is_empty())
    }

    /// Its letters are being taken.
    pub fn take_turn(&mut self) {
        if let Some(identity) = self.ready.pop_front()
            && let Some(hold) = self.get_mut(&identity)
        {
            hold.step = Step::Busy;
        }
    }

    /// Not now: the others first.
    pub fn put_off(&mut self) {
        if !self.ready.is_empty() {
            self.ready.rotate_left(1);
        }
    }

    /// So many letters were taken, and so many open ones are left in the table. Returns the hold's
    /// number.
    pub fn taken(&mut self, of: &Identity, taken: usize, left: usize) -> u64 {
        self.get_mut(of).map_or(0, |hold| {
            (hold.flying, hold.waiting) = (taken, left);
            hold.step = Step::Busy;
            hold.born
        })
    }

    /// Nothing can be taken: the first open letter waits itself.
    pub fn waits_for(&mut self, of: &Identity, cause: Place) {
        if let Some(hold) = self.get_mut(of) {
            (hold.cause, hold.step) = (cause, Step::Waits);
        }
    }

    /// The stream has not been read so far: the next look wakes it.
    pub fn waits_for_stream(&mut self, of: &Identity) {
        if let Some(hold) = self.get_mut(of) {
            hold.step = Step::Waits;
        }
    }

    /// Nothing can be taken yet.
    pub fn not_yet(&mut self, of: &Identity) {
        if let Some(hold) = self.get_mut(of) {
            hold.step = Step::Busy;
            hold.flying = 0;
            self.make_ready(of);
        }
    }

    /// The key is free: its rows follow its letters.
    pub fn release(&mut self, of: &Identity) {
        if let Some(line) = self.lines.get_mut(&(of.outbox, of.topic)) {
            self.keys -= usize::from(line.remove(&of.key).is_some());
            if line.is_empty() {
                self.lines.remove(&(of.outbox, of.topic));
            }
        }
        self.ready.retain(|ready| ready != of);
    }

    /// A new stream: what is held is read from the table.
    pub fn clear(&mut self) {
        let generation = self.generation + 1;
        *self = Held {
            outboxes: std::mem::take(&mut self.outboxes),
            generation,
            ..Held::default()
        };
    }

    /// The keys with the most letters, and how many those are.
    pub fn largest(&self, count: usize) -> Vec<(Identity, usize)> {
        let lines = self.lines.iter();
        let mut keys: Vec<_> = lines
            .flat_map(|((outbox, topic), line)| {
                line.iter().map(|(key, hold)| {
                    let (outbox, topic, key) = (*outbox, *topic, key.clone());
                    let identity = Identity { outbox, topic, key };
                    (identity, hold.waiting + hold.unwritten.len())
                })
            })
            .collect();
        keys.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.key.cmp(&b.0.key)));
        keys.truncate(count);
        keys
    }
}

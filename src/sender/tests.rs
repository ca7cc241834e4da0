//! The walk against a model of brokers: batches refused for one guilty record, brokers that know
//! nothing of a producer, topics that come, go and deny, producers that end, streams that start again. Seeds are printed by proptest.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    rc::Rc,
    sync::Arc,
};

use proptest::prelude::*;

use super::*;
use crate::{
    config::{DeadLetters, Delivery},
    kafka::{
        context::{Outcome, Settled, Source},
        topics::Limit,
    },
    lsn::{Lsn, PgTime},
    outbox::relation::{Relations, Role, Shape, Table},
    pg::pgoutput::{Column, Relation},
};

const TOPICS: usize = 3;
const PARTITIONS: usize = 2;
/// One for each topic's row: some share a partition. The last one is no key.
const KEYS: [Option<&str>; 4] = [Some("a"), Some("b"), Some("c"), None];

/// What an outbox row says: its topic, its key's index and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    topic: usize,
    key: usize,
    number: u64,
}

impl Event {
    /// Records without a key go where chance sends them.
    fn partition(self) -> usize {
        let chosen = partitioner().partition(KEYS[self.key].map(str::as_bytes), PARTITIONS);
        chosen.unwrap_or(self.number as usize / 2 % PARTITIONS)
    }
}

fn parking() -> Parking {
    Parking::new(&DeadLetters::default(), &Delivery::default())
}

fn partitioner() -> Partitioner {
    Partitioner::named("murmur2_random")
}

/// The brokers: what they hold, and whom they let in.
#[derive(Default)]
struct World {
    /// Events in the order in which they arrived.
    arrived: Vec<Event>,
    closed: HashMap<usize, TopicState>,
    guilty: BTreeSet<u64>,
    sent: HashMap<Seq, Event>,
    /// Partitions that acknowledged a record of the present main producer.
    known: HashSet<(usize, usize)>,
}

impl World {
    fn state(&self, topic: usize) -> TopicState {
        self.closed.get(&topic).cloned().unwrap_or(TopicState::Open)
    }
}

/// A producer as librdkafka's: in order, and with `gapless` ended by the first refusal.
struct Fake {
    world: Rc<RefCell<World>>,
    queue: Rc<RefCell<VecDeque<Seq>>>,
    dead: Rc<RefCell<bool>>,
    room: usize,
}

impl Fake {
    fn new(world: &Rc<RefCell<World>>) -> Self {
        Fake {
            world: world.clone(),
            queue: Rc::default(),
            dead: Rc::default(),
            room: 6,
        }
    }

    fn handle(&self) -> (Rc<RefCell<VecDeque<Seq>>>, Rc<RefCell<bool>>) {
        (self.queue.clone(), self.dead.clone())
    }
}

impl Enqueue for Fake {
    fn enqueue(&mut self, record: &Record<'_>, seq: Seq) -> Result<(), Code> {
        if *self.dead.borrow() {
            return Err(Code::Fatal);
        }
        if self.queue.borrow().len() >= self.room {
            return Err(Code::QueueFull);
        }
        let number = std::str::from_utf8(record.payload.unwrap()).unwrap();
        let event = Event {
            topic: record.topic[1..].parse().unwrap(),
            key: KEYS
                .iter()
                .position(|key| key.map(str::as_bytes) == record.key)
                .unwrap(),
            number: number.parse().unwrap(),
        };
        self.world.borrow_mut().sent.insert(seq, event);
        self.queue.borrow_mut().push_back(seq);
        Ok(())
    }

    // The model reports what is left after the end one by one, purged or not.
    fn largest(&self) -> usize {
        1_000_000
    }

    fn purge_queue(&self) {
        *self.dead.borrow_mut() = true;
    }
}

struct Run {
    world: Rc<RefCell<World>>,
    ledger: Ledger,
    sender: Sender<Fake>,
    main: (Rc<RefCell<VecDeque<Seq>>>, Rc<RefCell<bool>>),
    probe: Rc<RefCell<VecDeque<Seq>>>,
    shape: Arc<Shape>,
    /// Every event that was opened, in order.
    events: Vec<Event>,
}

impl Run {
    fn new() -> Self {
        let world = Rc::<RefCell<World>>::default();
        let (main, probe) = (Fake::new(&world), Fake::new(&world));
        let (main_handle, probe_queue) = (main.handle(), probe.queue.clone());
        Run {
            ledger: Ledger::new(8, 1 << 20),
            sender: Sender::new(main, probe, partitioner(), parking()),
            main: main_handle,
            probe: probe_queue,
            shape: shape(),
            events: Vec::new(),
            world,
        }
    }

    fn open(&mut self, topic: usize, key: usize, guilty: bool) {
        if !self.ledger.has_room(100) || self.sender.poison().is_some() {
            return;
        }
        let number = self.events.len() as u64;
        let event = Event { topic, key, number };
        self.events.push(event);
        if guilty {
            self.world.borrow_mut().guilty.insert(number);
        }
        self.open_event(event);
    }

    fn open_event(&mut self, event: Event) {
        let Event { topic, key, number } = event;
        self.ledger
            .begin(Lsn::new(number + 1), PgTime::new(0))
            .unwrap();
        self.ledger.next_position().unwrap();
        let tuple = tuple(&format!("t{topic}"), KEYS[key], &number.to_string());
        self.ledger
            .open_row(self.shape.clone(), tuple.into())
            .unwrap();
        self.ledger.commit(Lsn::new(number + 2)).unwrap();
    }

    fn pump(&mut self) {
        self.sender
            .pump(&mut self.ledger, jiff::Timestamp::UNIX_EPOCH);
    }

    fn settle(&mut self, source: Source, seq: Seq, outcome: Outcome) {
        let event = self.world.borrow().sent[&seq];
        let (topic, partition) = (event.topic, event.partition());
        if outcome == Outcome::Delivered {
            let mut world = self.world.borrow_mut();
            world.arrived.push(event);
            if source == Source::Main {
                world.known.insert((topic, partition));
            }
        }
        self.sender.settled(
            &mut self.ledger,
            Settled {
                source,
                seq,
                partition: partition as i32,
                outcome,
            },
        );
    }

    /// Takes the main producer's next batch of up to `size` records of one partition.
    fn take_batch(&self, of: Option<(usize, usize)>, size: usize) -> Vec<Seq> {
        let mut queue = self.main.0.borrow_mut();
        let world = self.world.borrow();
        let place = |seq: &Seq| (world.sent[seq].topic, world.sent[seq].partition());
        let Some(of) = of.or_else(|| queue.front().map(place)) else {
            return Vec::new();
        };
        let of_it = queue.iter().copied().filter(|seq| place(seq) == of);
        let batch: Vec<Seq> = of_it.take(size).collect();
        queue.retain(|seq| !batch.contains(seq));
        batch
    }

    /// Why the brokers refuse a batch.
    fn refusal(&self, batch: &[Seq]) -> Option<Code> {
        let world = self.world.borrow();
        let events = batch.iter().map(|seq| world.sent[seq]);
        match world.state(events.clone().next()?.topic) {
            TopicState::Missing => Some(Code::UnknownTopicOrPartition),
            TopicState::Denied => Some(Code::TopicAuthorizationFailed),
            _ => {
                let mut guilty = events.map(|event| world.guilty.contains(&event.number));
                guilty
                    .any(|guilty| guilty)
                    .then_some(Code::MessageSizeTooLarge)
            }
        }
    }

    /// The main producer sends a batch, and perhaps the partition's next one right behind it. Behind
    /// a refused batch that one is refused for its sequence number, unless the broker knows nothing
    /// of the producer.
    fn main_batch(&mut self, size: usize, pipelined: bool) {
        let dead = self.main.1.clone();
        if *dead.borrow() {
            let first = self.main.0.borrow_mut().pop_front();
            if let Some(first) = first {
                self.settle(Source::Main, first, Outcome::Failed(Code::PurgeQueue));
            }
            return;
        }
        let batch = self.take_batch(None, size);
        let Some(first) = batch.first() else { return };
        let event = self.world.borrow().sent[first];
        let place = (event.topic, event.partition());
        let behind = pipelined.then(|| self.take_batch(Some(place), size));
        for batch in [Some(batch), behind].into_iter().flatten() {
            let gap = *dead.borrow() && self.world.borrow().known.contains(&place);
            let gap = gap.then_some(Code::OutOfOrderSequenceNumber);
            let refused = gap.or_else(|| self.refusal(&batch));
            if refused.is_some() {
                *dead.borrow_mut() = true;
            }
            for seq in batch {
                let outcome = refused.map_or(Outcome::Delivered, Outcome::Failed);
                self.settle(Source::Main, seq, outcome);
            }
        }
    }

    fn probe_report(&mut self) {
        let Some(seq) = self.probe.borrow_mut().pop_front() else {
            return;
        };
        let outcome = {
            let world = self.world.borrow();
            let event = world.sent[&seq];
            match world.state(event.topic) {
                TopicState::Missing => Outcome::Failed(Code::UnknownTopicOrPartition),
                TopicState::Denied => Outcome::Failed(Code::TopicAuthorizationFailed),
                _ if world.guilty.contains(&event.number) => {
                    Outcome::Failed(Code::MessageSizeTooLarge)
                }
                _ => Outcome::Delivered,
            }
        };
        self.settle(Source::Probe, seq, outcome);
    }

    fn answer_topics(&mut self) {
        while let Some(number) = self.sender.topics.take_wanted_limit() {
            self.sender.topics.limited(number, Limit::Unknown);
        }
        let ask: Vec<_> = self
            .sender
            .topics
            .to_ask()
            .map(|(n, t)| (n, t.name.clone()))
            .collect();
        for (number, name) in ask {
            let topic: usize = name[1..].parse().unwrap();
            // A denied topic can still be seen.
            let state = match self.world.borrow().state(topic) {
                TopicState::Denied => TopicState::Open,
                state => state,
            };
            let partitions = PARTITIONS;
            let answer = Answer { state, partitions };
            self.sender.answered(&mut self.ledger, number, answer);
        }
    }

    fn renew(&mut self) {
        if self.sender.take_drained().is_some() {
            let main = Fake::new(&self.world);
            self.main = main.handle();
            self.world.borrow_mut().known.clear();
            self.sender.install_main(main, &mut self.ledger);
        }
    }

    /// The stream starts again at what is confirmed: open rows come once more.
    fn restart(&mut self) {
        let from = self
            .ledger
            .oldest()
            .map(|row| row.position.commit.bytes() - 1);
        let from = from.unwrap_or(self.events.len() as u64) as usize;
        self.ledger.restart(Lsn::ZERO, Lsn::ZERO);
        self.sender.restart(&mut self.ledger);
        for at in from..self.events.len() {
            self.open_event(self.events[at]);
        }
    }

    /// Everything that can move moves.
    fn finish(&mut self) {
        self.world.borrow_mut().closed.clear();
        for _ in 0..5000 {
            self.pump();
            self.main_batch(3, true);
            self.probe_report();
            self.answer_topics();
            self.renew();
            let done = match self.sender.poison() {
                None => self.ledger.rows() == 0,
                Some(poison) => self.ledger.first_from(Seq(0)) == Some(poison.seq),
            };
            if done {
                return;
            }
        }
        panic!(
            "stuck with {} rows: {:?}",
            self.ledger.rows(),
            self.sender.topics
        );
    }
}

fn shape() -> Arc<Shape> {
    shape_of("stop").0
}

/// The shape of table `s.t`, whose topic is its aggregate type.
pub(super) fn shape_of(on_poison: &str) -> (Arc<Shape>, Relations) {
    let mapping = crate::outbox::tests::mapping(&format!(
        "table = \"s.t\"\ntopic = \"{{aggregate_type}}\"\non_poison = \"{on_poison}\"",
    ));
    let mut relations = Relations::new(vec![mapping]);
    let column = |role: Role| Column {
        name: role.name().into(),
        type_oid: 25,
    };
    let (namespace, name) = ("s".into(), "t".into());
    let columns = Role::ALL.into_iter().map(column).collect();
    let _ = relations.learn(&Relation {
        id: 1,
        namespace,
        name,
        columns,
    });
    let Some(Table::Ours(shape)) = relations.table(1) else {
        panic!()
    };
    (shape.clone(), relations)
}

pub(super) fn tuple(topic: &str, key: Option<&str>, payload: &str) -> Vec<u8> {
    let mut bytes = (Role::ALL.len() as u16).to_be_bytes().to_vec();
    for role in Role::ALL {
        let text = match role {
            Role::AggregateType => Some(topic),
            Role::AggregateId => key,
            Role::Payload => Some(payload),
            _ => None,
        };
        let Some(text) = text else {
            bytes.push(b'n');
            continue;
        };
        bytes.push(b't');
        bytes.extend((text.len() as u32).to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    Open {
        topic: usize,
        key: usize,
        guilty: bool,
    },
    MainBatch(usize, bool),
    ProbeReport,
    AnswerTopics,
    Renew,
    Close {
        topic: usize,
        denied: bool,
    },
    Reopen(usize),
    FailMain,
    Restart,
    Cool,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..TOPICS, 0..KEYS.len(), prop::bool::weighted(0.01))
            .prop_map(|(topic, key, guilty)| Step::Open { topic, key, guilty }),
        8 => (1usize..4, any::<bool>()).prop_map(|(size, pipelined)| Step::MainBatch(size, pipelined)),
        4 => Just(Step::ProbeReport),
        4 => Just(Step::AnswerTopics),
        3 => Just(Step::Renew),
        1 => (0..TOPICS, any::<bool>()).prop_map(|(topic, denied)| Step::Close { topic, denied }),
        2 => (0..TOPICS).prop_map(Step::Reopen),
        1 => Just(Step::FailMain),
        1 => Just(Step::Restart),
        1 => Just(Step::Cool),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Whatever fails: every event before the first guilty one arrives, first arrivals of a key are
    /// in commit order, and of the guilty one's key nothing behind it arrives.
    #[test]
    fn everything_arrives_in_order_up_to_the_first_guilty_event(steps in prop::collection::vec(step(), 1..150)) {
        let mut run = Run::new();
        for step in steps {
            match step {
                Step::Open { topic, key, guilty } => run.open(topic, key, guilty),
                Step::MainBatch(size, pipelined) => run.main_batch(size, pipelined),
                Step::ProbeReport => run.probe_report(),
                Step::AnswerTopics => run.answer_topics(),
                Step::Renew => run.renew(),
                Step::Close { topic, denied } => {
                    let state = if denied { TopicState::Denied } else { TopicState::Missing };
                    run.world.borrow_mut().closed.insert(topic, state);
                }
                Step::Reopen(topic) => drop(run.world.borrow_mut().closed.remove(&topic)),
                Step::FailMain => run.sender.abandon_main(),
                Step::Restart => run.restart(),
                Step::Cool => run.sender.topics.cool(),
            }
            run.pump();
        }
        run.finish();
        let world = run.world.borrow();
        let poison = run.sender.poison().map(|p| p.position.commit.bytes() - 1);
        prop_assert_eq!(poison, world.guilty.first().copied());
        let wanted = |event: &Event| poison.is_none_or(|poison| event.number < poison);
        for event in run.events.iter().filter(|event| wanted(event)) {
            prop_assert!(world.arrived.contains(event), "{:?} is lost", event);
        }
        for (topic, key) in (0..TOPICS).flat_map(|topic| (0..KEYS.len() - 1).map(move |key| (topic, key))) {
            let mut first = Vec::new();
            for event in world.arrived.iter().filter(|e| (e.topic, e.key) == (topic, key)) {
                if !first.contains(&event.number) {
                    first.push(event.number);
                }
            }
            prop_assert!(first.is_sorted(), "key {} of topic {}: {:?}", key, topic, first);
            let poison = poison.map(|poison| run.events[poison as usize]).filter(|p| (p.topic, p.key) == (topic, key));
            if let Some(poison) = poison {
                prop_assert!(first.iter().all(|event| *event < poison.number), "behind {:?}: {:?}", poison, first);
            }
        }
    }
}

//! The walk against a model of brokers: batches refused for one guilty record, topics that come,
//! go and deny, producers that end, streams that start again. Seeds are printed by proptest.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap, VecDeque},
    rc::Rc,
    sync::Arc,
};

use proptest::prelude::*;

use super::*;
use crate::{
    lsn::{Lsn, PgTime},
    outbox::relation::{Relations, Role, Shape, Table},
    pg::pgoutput::{Column, Relation},
};

const TOPICS: usize = 3;

/// The brokers: what they hold, and whom they let in.
#[derive(Default)]
struct World {
    /// Events in the order in which they arrived, by topic.
    arrived: [Vec<u64>; TOPICS],
    closed: HashMap<usize, TopicState>,
    guilty: BTreeSet<u64>,
    /// Sequence number → (topic, event).
    sent: HashMap<Seq, (usize, u64)>,
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
        let topic = record.topic[1..].parse().unwrap();
        let event = std::str::from_utf8(record.payload.unwrap())
            .unwrap()
            .parse()
            .unwrap();
        self.world.borrow_mut().sent.insert(seq, (topic, event));
        self.queue.borrow_mut().push_back(seq);
        Ok(())
    }

    // The model reports what is left after the end one by one, purged or not.
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
    /// Every event that was opened, in order: (topic, event).
    events: Vec<(usize, u64)>,
}

impl Run {
    fn new() -> Self {
        let world = Rc::<RefCell<World>>::default();
        let (main, probe) = (Fake::new(&world), Fake::new(&world));
        let (main_handle, probe_queue) = (main.handle(), probe.queue.clone());
        Run {
            ledger: Ledger::new(8, 1 << 20),
            sender: Sender::new(main, probe),
            main: main_handle,
            probe: probe_queue,
            shape: shape(),
            events: Vec::new(),
            world,
        }
    }

    fn open(&mut self, topic: usize, guilty: bool) {
        if !self.ledger.has_room(100) || self.sender.poison().is_some() {
            return;
        }
        let event = self.events.len() as u64;
        self.events.push((topic, event));
        if guilty {
            self.world.borrow_mut().guilty.insert(event);
        }
        self.open_event(topic, event);
    }

    fn open_event(&mut self, topic: usize, event: u64) {
        self.ledger
            .begin(Lsn::new(event + 1), PgTime::new(0))
            .unwrap();
        self.ledger.next_position().unwrap();
        let tuple = tuple(&format!("t{topic}"), &event.to_string());
        self.ledger
            .open_row(self.shape.clone(), tuple.into())
            .unwrap();
        self.ledger.commit(Lsn::new(event + 2)).unwrap();
    }

    fn pump(&mut self) {
        self.sender
            .pump(&mut self.ledger, jiff::Timestamp::UNIX_EPOCH);
    }

    fn settle(&mut self, source: Source, seq: Seq, outcome: Outcome) {
        if outcome == Outcome::Delivered {
            let mut world = self.world.borrow_mut();
            let (topic, event) = world.sent[&seq];
            world.arrived[topic].push(event);
        }
        self.sender.settled(
            &mut self.ledger,
            Settled {
                source,
                seq,
                outcome,
            },
        );
    }

    /// The main producer's next batch of up to `size` records of one topic.
    fn main_batch(&mut self, size: usize) {
        let (queue, dead) = self.main.clone();
        let Some(first) = queue.borrow().front().copied() else {
            return;
        };
        if *dead.borrow() {
            queue.borrow_mut().pop_front();
            return self.settle(Source::Main, first, Outcome::Failed(Code::PurgeQueue));
        }
        let topic = self.world.borrow().sent[&first].0;
        let in_topic = |seq: &Seq| self.world.borrow().sent[seq].0 == topic;
        let batch: Vec<Seq> = queue
            .borrow()
            .iter()
            .copied()
            .filter(in_topic)
            .take(size)
            .collect();
        queue.borrow_mut().retain(|seq| !batch.contains(seq));
        let guilty = |seq: &Seq| {
            let world = self.world.borrow();
            world.guilty.contains(&world.sent[seq].1)
        };
        let refused = match self.world.borrow().state(topic) {
            TopicState::Missing => Some(Code::UnknownTopicOrPartition),
            TopicState::Denied => Some(Code::TopicAuthorizationFailed),
            _ => batch
                .iter()
                .any(guilty)
                .then_some(Code::MessageSizeTooLarge),
        };
        if refused.is_some() {
            *dead.borrow_mut() = true;
        }
        for seq in batch {
            let outcome = refused.map_or(Outcome::Delivered, Outcome::Failed);
            self.settle(Source::Main, seq, outcome);
        }
    }

    fn probe_report(&mut self) {
        let Some(seq) = self.probe.borrow_mut().pop_front() else {
            return;
        };
        let outcome = {
            let world = self.world.borrow();
            let (topic, event) = world.sent[&seq];
            match world.state(topic) {
                TopicState::Missing => Outcome::Failed(Code::UnknownTopicOrPartition),
                TopicState::Denied => Outcome::Failed(Code::TopicAuthorizationFailed),
                _ if world.guilty.contains(&event) => Outcome::Failed(Code::MessageSizeTooLarge),
                _ => Outcome::Delivered,
            }
        };
        self.settle(Source::Probe, seq, outcome);
    }

    fn answer_topics(&mut self) {
        let ask: Vec<_> = self
            .sender
            .topics
            .to_ask()
            .map(|(n, t)| (n, t.name.clone()))
            .collect();
        for (number, name) in ask {
            let topic: usize = name[1..].parse().unwrap();
            // A denied topic can still be seen.
            let answer = match self.world.borrow().state(topic) {
                TopicState::Denied => TopicState::Open,
                state => state,
            };
            self.sender.answered(&mut self.ledger, number, answer);
        }
    }

    fn renew(&mut self) {
        if self.sender.take_drained().is_some() {
            let main = Fake::new(&self.world);
            self.main = main.handle();
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
            let (topic, event) = self.events[at];
            self.open_event(topic, event);
        }
    }

    /// Everything that can move moves.
    fn finish(&mut self) {
        self.world.borrow_mut().closed.clear();
        for _ in 0..5000 {
            self.pump();
            self.main_batch(3);
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
    let mapping =
        crate::outbox::tests::mapping("table = \"s.t\"\ntopic = \"{aggregate_type}\"\nkey = \"\"");
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
    shape.clone()
}

fn tuple(topic: &str, payload: &str) -> Vec<u8> {
    let mut bytes = (Role::ALL.len() as u16).to_be_bytes().to_vec();
    for role in Role::ALL {
        let text = match role {
            Role::AggregateType => topic,
            Role::Payload => payload,
            _ => {
                bytes.push(b'n');
                continue;
            }
        };
        bytes.push(b't');
        bytes.extend((text.len() as u32).to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    Open { topic: usize, guilty: bool },
    MainBatch(usize),
    ProbeReport,
    AnswerTopics,
    Renew,
    Close { topic: usize, denied: bool },
    Reopen(usize),
    FailMain,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..TOPICS, prop::bool::weighted(0.01)).prop_map(|(topic, guilty)| Step::Open { topic, guilty }),
        8 => (1usize..4).prop_map(Step::MainBatch),
        4 => Just(Step::ProbeReport),
        4 => Just(Step::AnswerTopics),
        3 => Just(Step::Renew),
        1 => (0..TOPICS, any::<bool>()).prop_map(|(topic, denied)| Step::Close { topic, denied }),
        2 => (0..TOPICS).prop_map(Step::Reopen),
        1 => Just(Step::FailMain),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Whatever fails: every event before the first guilty one arrives, first arrivals of a topic
    /// are in commit order, and of the guilty one's topic nothing behind it arrives.
    #[test]
    fn everything_arrives_in_order_up_to_the_first_guilty_event(steps in prop::collection::vec(step(), 1..150)) {
        let mut run = Run::new();
        for step in steps {
            match step {
                Step::Open { topic, guilty } => run.open(topic, guilty),
                Step::MainBatch(size) => run.main_batch(size),
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
            }
            run.pump();
        }
        run.finish();
        let world = run.world.borrow();
        let poison = run.sender.poison().map(|p| p.position.commit.bytes() - 1);
        prop_assert_eq!(poison, world.guilty.first().copied());
        for topic in 0..TOPICS {
            let mut first = Vec::new();
            for event in &world.arrived[topic] {
                if !first.contains(event) {
                    first.push(*event);
                }
            }
            prop_assert!(first.is_sorted(), "topic {}: {:?}", topic, world.arrived[topic]);
            let expected = run.events.iter().filter(|(t, e)| *t == topic && poison.is_none_or(|p| *e < p));
            for (_, event) in expected {
                prop_assert!(first.contains(event), "event {} of topic {} is lost", event, topic);
            }
            if let Some(poison) = poison.filter(|p| run.events[*p as usize].0 == topic) {
                prop_assert!(first.iter().all(|e| *e < poison), "behind {}: {:?}", poison, first);
            }
        }
    }
}

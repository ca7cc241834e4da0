//! Rows of the table once more, for an operator, beside the publisher: what cannot be published is
//! told and nothing else, and the rest goes on.

use std::{collections::HashSet, sync::Arc, time::Instant};

use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use super::{Relay, TICK, pace::Pace, session::Draining};
use crate::{
    dead_letters::store::{Fault, Write},
    error::{Exit, Failure},
    ledger::{Content, Seq},
    lsn::{Lsn, PgTime, Position},
    outbox::{
        event_ids::EventIds,
        record::Mapper,
        relation::Shape,
        row::{Origin, OutboxRow, Reread},
    },
    pg::{pgoutput::Tuple, table::Rows},
    shutdown::Shutdown,
    stop,
};

/// Rows that are not published once more, because they are a matter of their dead letters.
#[derive(Default)]
pub struct Sieve {
    /// Topic and key of each held key of the table.
    pub held: HashSet<(String, Vec<u8>)>,
    /// Events whose letters are open or ignored.
    pub letters: EventIds,
    mapper: Mapper,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sieved {
    Passes,
    /// Its key is held: it may not overtake what comes before it.
    Held,
    /// It is a dead letter itself.
    Letter,
}

impl Sieve {
    pub fn new(held: HashSet<(String, Vec<u8>)>, letters: EventIds) -> Sieve {
        Sieve {
            held,
            letters,
            mapper: Mapper::default(),
        }
    }

    pub fn look(&mut self, shape: &Shape, tuple: &[u8]) -> Sieved {
        if self.held.is_empty() && self.letters.is_empty() {
            return Sieved::Passes;
        }
        let Ok(row) = OutboxRow::new(shape, Tuple::from_bytes(tuple)) else {
            return Sieved::Passes;
        };
        let key = self.mapper.key(&row).ok().flatten().map(<[u8]>::to_vec);
        if let Some(key) = key {
            let topic = self.mapper.topic(&row).unwrap_or_default().to_owned();
            if self.held.contains(&(topic, key)) {
                return Sieved::Held;
            }
        }
        match row.event_id() {
            Some(id) if self.letters.contains(id) => Sieved::Letter,
            _ => Sieved::Passes,
        }
    }
}

/// What became of the rows.
#[derive(Debug, Default)]
pub struct Tally {
    /// All that were read.
    pub rows: u64,
    pub published: u64,
    pub held: u64,
    pub letters: u64,
    pub failed: u64,
    /// The first of those.
    pub failures: Vec<Failed>,
}

/// A row that could not be published.
#[derive(Clone, Debug)]
pub struct Failed {
    pub event_id: Option<String>,
    /// Empty where no topic could be made of it.
    pub topic: String,
    pub fault: Fault,
}

/// So many are named.
const NAMED: usize = 100;

impl Tally {
    /// `true`: the row is to be published.
    pub fn takes(&mut self, sieved: Sieved) -> bool {
        self.rows += 1;
        match sieved {
            Sieved::Passes => {}
            Sieved::Held => self.held += 1,
            Sieved::Letter => self.letters += 1,
        }
        sieved == Sieved::Passes
    }
}

/// Which rows to publish, and how fast.
pub struct Replay {
    pub rows: Rows,
    pub shape: Arc<Shape>,
    pub sieve: Sieve,
    pub pace: Pace,
}

impl Relay {
    /// Publishes them and tells what became of each. `told` hears from time to time how many were
    /// done so far. Writes nothing to the database.
    pub async fn replay(
        &mut self,
        mut from: Replay,
        shutdown: &Shutdown,
        mut told: impl FnMut(u64),
    ) -> Result<Tally, Failure> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut draining = Draining::default();
        let (mut opened, mut is_end, mut held) = (0, false, None::<Vec<u8>>);
        let mut tally = Tally::default();
        loop {
            let fits = |tuple: &mut Vec<u8>| self.ledger.has_room(tuple.len());
            if let Some(tuple) =
                held.take_if(|tuple| fits(tuple) && from.pace.takes(Instant::now()))
            {
                opened += 1;
                self.open_again(&from.shape, opened, tuple);
            }
            self.send();
            self.tell_failures(&mut tally);
            let in_flight = self.ledger.rows() as u64;
            tally.published = opened - in_flight - tally.failed;
            if is_end && held.is_none() && in_flight == 0 {
                told(tally.rows);
                return Ok(tally);
            }
            if let Some(poison) = self.sender.poison() {
                return Err(stop!(
                    Exit::Policy,
                    "{poison}. {} rows were published before it",
                    tally.published
                )
                .into());
            }
            let reading = !is_end && held.is_none();
            tokio::select! {
                biased;
                () = shutdown.requested.cancelled() => return Err(interrupted(&tally)),
                () = self.deliveries.ready() => self.take_reports()?,
                made = self.factory.made() => self.on_producer(made),
                replies = self.inquirer.replies() => self.on_replies(replies),
                limit = self.limits.answered() => self.on_limit(limit),
                _ = ticks.tick() => {
                    self.tend(&mut draining)?;
                    self.waiting_topics();
                    told(tally.rows - in_flight);
                }
                row = from.rows.next(), if reading => match row.map_err(Failure::Passing)? {
                    Some(tuple) if tally.takes(from.sieve.look(&from.shape, &tuple)) => held = Some(tuple),
                    Some(_) => {}
                    None => is_end = true,
                },
            }
        }
    }

    fn open_again(&mut self, shape: &Arc<Shape>, number: u64, tuple: Vec<u8>) {
        let position = Position {
            commit: Lsn::ZERO,
            ordinal: u32::try_from(number).unwrap_or(u32::MAX),
        };
        let content = Content::Tuple {
            shape: shape.clone(),
            tuple: tuple.into(),
        };
        let origin = Origin::Table(Reread::Replay);
        self.ledger.open(origin, position, PgTime::now(), content);
    }

    /// What the publisher would write letters of is told, and is done with.
    fn tell_failures(&mut self, tally: &mut Tally) {
        for task in self.sender.parking.take_tasks(usize::MAX) {
            if let Write::Park(park) = &task.write
                && let Some(fault) = &park.fault
            {
                let event_id = park.event_id.as_deref().unwrap_or("without an id");
                let (topic, code) = (&park.topic, &fault.code);
                warn!(event_id, topic, code, "row not published: {}", fault.text);
                tally.failed += 1;
                if tally.failures.len() < NAMED {
                    tally.failures.push(Failed {
                        event_id: park.event_id.clone(),
                        topic: topic.clone(),
                        fault: fault.clone(),
                    });
                }
            }
            let (seq, of): (Seq, _) = (task.seq, task.identity.as_ref());
            self.sender
                .written(&mut self.ledger, seq, of, &task.write, Lsn::ZERO);
        }
    }
}

fn interrupted(tally: &Tally) -> Failure {
    stop!(
        Exit::Grace,
        "stopped after {} rows were published; run it again for the rest, the first ones are then published once more",
        tally.published
    )
    .into()
}

//! Letters on their way out again: of held keys, in order, and of others as operators or the time
//! ask for them.

use super::{Enqueue, Main, Parking, Sender, parking::nothing, poison::event_fault};
use crate::{
    dead_letters::{
        held::{Identity, Turn},
        letter::Place,
        store::{self, Body, Looked, Take, Taken, Wanted},
    },
    kafka::topics::{TopicState, Topics},
    ledger::{self, Content, Ledger, Letter, RowState},
    lsn::{Lsn, Position},
    outbox::{relation::Relations, row::Origin},
};

impl<P: Enqueue> Sender<P> {
    /// Letters of a key to take now, if any. The stream was read up to `ledger`'s boundary.
    pub fn next_take(&mut self, ledger: &Ledger) -> Option<Take> {
        let parking = &mut self.parking;
        if parking.asked.is_some() || parking.flying.len() > parking.batch {
            return None;
        }
        parking.hand_over = None;
        let crowded = parking.is_crowded();
        let mut turn = next_turn(parking, &mut self.topics, crowded)?;
        let of = &turn.identity;
        let topic = self.topics.get(of.topic);
        // A hand-over would wait for rows that find no room.
        turn.last &= !crowded;
        // Where the topic is closed they fail, and nothing is handed over.
        turn.last &= !topic.is_closed();
        if turn.last {
            // With no producer nothing moves, and reading must not wait for it.
            if !matches!(self.main, Main::Ready(_)) {
                return None;
            }
            parking.hand_over = Some(of.clone());
            let is_walked = ledger.first_from(self.cursor).is_none();
            if parking.held.has_unwritten(of) || !is_walked || !topic.waiting.is_empty() {
                return None;
            }
        }
        let read = Place {
            life: parking.life,
            position: Position {
                commit: ledger.boundary().unwrap_or(Lsn::ZERO),
                ordinal: 0,
            },
        };
        let take = Take {
            outbox: parking.held.outbox_name(of.outbox).to_owned(),
            topic: self.topics.get(of.topic).name.to_string(),
            key: of.key.to_vec(),
            bound: turn.below.map_or(read, |below| below.min(read)),
            max_rows: parking.batch,
            max_bytes: parking.max_bytes,
            except: parking.flying.iter().copied().collect(),
        };
        parking.asked = Some((turn.identity, turn.last));
        parking.held.take_turn();
        Some(take)
    }

    /// They were not taken: the database didn't answer.
    pub fn not_taken(&mut self) {
        if let Some((of, _)) = self.parking.asked.take() {
            self.parking.held.not_yet(&of);
        }
        self.parking.hand_over = None;
    }

    /// Letters of the key that was asked for.
    pub fn taken(&mut self, ledger: &mut Ledger, relations: &Relations, taken: Taken) {
        let parking = &mut self.parking;
        parking.hand_over = None;
        let Some((of, last)) = parking.asked.take() else {
            return;
        };
        // What goes alone goes beside the others: rows of the key wait until it has arrived.
        let alone = taken.letters.iter().any(|letter| letter.failed);
        let is_free = last && !alone && taken.left == 0 && !parking.held.has_unwritten(&of);
        if taken.letters.is_empty() {
            match taken.waits_for {
                Some(cause) => parking.held.waits_for(&of, cause),
                None if is_free => parking.held.release(&of),
                // It is handed over at its next turn.
                None if taken.left == 0 => {
                    parking.held.taken(&of, 0, 0);
                    parking.held.not_yet(&of);
                }
                None => {
                    parking.look_again = true;
                    parking.held.waits_for_stream(&of);
                }
            }
            return;
        }
        let born = parking.held.taken(&of, taken.letters.len(), taken.left);
        let generation = parking.held.generation();
        parking.held_rows = parking.held_rows.saturating_sub(taken.letters.len() as u64);
        for letter in taken.letters {
            let from = ledger::Taken {
                identity: of.clone(),
                born,
                generation,
            };
            let alone = letter.failed;
            self.open_letter(ledger, relations, letter, Some(from), alone);
        }
        if is_free {
            self.parking.held.release(&of);
        }
    }

    /// What there is to do in the table: keys wake up, and letters of keys that aren't held are named
    /// to be fetched.
    pub fn looked(&mut self, ledger: &Ledger, looked: &Looked) -> Vec<i64> {
        self.parking.look_again = false;
        self.parking.looks += 1;
        self.parking.held_rows = looked.counts.held;
        // What is parked and not written yet is not in the table.
        if !self.parking.has_tasks() {
            self.topics.keep_parking(&looked.closed_topics);
        }
        let boundary = ledger.boundary();
        let read = |place: Option<Place>, life: i32| {
            place.is_none_or(|place| place.life < life || Some(place.position.commit) < boundary)
        };
        for wanted in &looked.first {
            if let Some(of) = self.identity(wanted)
                && self.parking.held.contains(&of)
            {
                self.parking.held.wake(&of);
            }
        }
        let mut fetch = Vec::new();
        for wanted in &looked.replaying {
            if self.parking.flying.contains(&wanted.id) {
                continue;
            }
            // Letters that an operator made to send an event once more have no place and no order.
            let of = wanted.place.and_then(|_| self.identity(wanted));
            if of.is_some_and(|of| self.parking.held.contains(&of)) {
                continue;
            }
            if !read(wanted.place, self.parking.life) {
                self.parking.look_again = true;
                continue;
            }
            if self.parking.flying.len() + fetch.len() >= self.parking.batch {
                self.parking.look_again = true;
                break;
            }
            fetch.push(wanted.id);
        }
        fetch
    }

    pub(super) fn identity(&mut self, wanted: &Wanted) -> Option<Identity> {
        Some(Identity {
            outbox: self.parking.held.outbox(&wanted.outbox),
            topic: self.topics.number(&wanted.topic),
            key: wanted.key.as_deref()?.into(),
        })
    }

    /// Letters whose order doesn't count.
    pub fn fetched(
        &mut self,
        ledger: &mut Ledger,
        relations: &Relations,
        letters: Vec<store::Letter>,
    ) {
        for letter in letters {
            if !self.parking.flying.contains(&letter.id) {
                self.open_letter(ledger, relations, letter, None, true);
            }
        }
    }

    /// A letter is in the ledger until what became of it is written.
    pub(super) fn open_letter(
        &mut self,
        ledger: &mut Ledger,
        relations: &Relations,
        letter: store::Letter,
        taken: Option<ledger::Taken>,
        alone: bool,
    ) {
        self.parking.flying.insert(letter.id);
        let (origin, content, broken) = match letter.body {
            Body::Kept(mut kept) => {
                // Kept is also where a record failed that its key had sent there.
                let mapping = relations.mapping_of(&letter.outbox);
                kept.partition = kept
                    .partition
                    .filter(|_| mapping.is_some_and(|mapping| mapping.chooses_partition()));
                (Origin::Letter, Content::Kept(Box::new(kept)), None)
            }
            Body::Broken(text) => (Origin::Letter, nothing(), Some(text)),
            Body::Row {
                columns,
                tuple,
                origin,
            } => match relations.shape_of_kept(&letter.outbox, &columns) {
                Some(shape) => {
                    let tuple = tuple.into();
                    (origin, Content::Tuple { shape, tuple }, None)
                }
                None => {
                    let text = format!("{} is no outbox table of this publisher", letter.outbox);
                    (origin, nothing(), Some(text))
                }
            },
        };
        let state = if alone {
            RowState::Retry
        } else {
            RowState::Waiting
        };
        let committed_at = letter.committed_at;
        let letter = Letter {
            id: letter.id,
            attempts: letter.attempts,
            outbox: letter.outbox.into(),
            event_id: letter.event_id,
            place: letter.place,
            taken,
            resend: letter.resend,
        };
        let seq = ledger.open_letter(origin, committed_at, content, letter, state);
        if let Some(text) = broken {
            let fault = event_fault("letter_broken", text);
            self.letter_fails(ledger, seq, fault);
        }
    }
}

/// The next key whose topic was asked for; what cannot be routed has none to ask for.
fn next_turn(parking: &mut Parking, topics: &mut Topics, crowded: bool) -> Option<Turn> {
    let (held, batch) = (&mut parking.held, parking.batch);
    for _ in 0..held.ready() {
        let turn = held.turn(batch)?;
        // What is released makes room; to free a key does not.
        if crowded && turn.is_empty {
            held.put_off();
            continue;
        }
        let topic = topics.get(turn.identity.topic);
        if topic.state != TopicState::Unasked || topic.name.is_empty() {
            return Some(turn);
        }
        topics.want(turn.identity.topic);
        held.put_off();
    }
    None
}

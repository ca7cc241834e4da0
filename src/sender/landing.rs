//! Letters that were sent: how they fared, and what is written of that.

use super::{Enqueue, Sender, parking::Task};
use crate::{
    dead_letters::{
        held::Identity,
        store::{Failure, Fault, Write},
    },
    ledger::{Ledger, Row, RowState, Seq},
    lsn::Lsn,
};

impl<P: Enqueue> Sender<P> {
    /// A letter was sent, or could not even be: an attempt is spent.
    pub(super) fn letter_fails(&mut self, ledger: &mut Ledger, seq: Seq, fault: Fault) {
        let Some(letter) = ledger.row(seq).and_then(|row| row.letter.as_ref()) else {
            return;
        };
        let sent = usize::try_from(letter.attempts)
            .unwrap_or(usize::MAX)
            .saturating_add(1);
        let is_dead = letter.resend || sent >= self.parking.retry_after.len();
        if let (Some(taken), Some(place)) = (&letter.taken, letter.place) {
            self.parking.held.failed(&taken.identity, place);
        }
        let write = Write::Fail(Box::new(Failure {
            id: letter.id,
            attempts: letter.attempts,
            fault,
            retry_after: if is_dead {
                None
            } else {
                self.parking.pause(sent)
            },
            is_dead,
            holds: letter.taken.is_some(),
        }));
        self.task(ledger, seq, write);
    }

    /// A letter of its key before it failed.
    pub(super) fn letter_returns(&mut self, ledger: &mut Ledger, seq: Seq) {
        let Some(letter) = ledger.row(seq).and_then(|row| row.letter.as_ref()) else {
            return;
        };
        let cause = letter.taken.as_ref().and_then(|taken| {
            let of = &taken.identity;
            self.parking.held.cause(of.outbox, of.topic, &of.key)
        });
        if let Some(behind) = cause {
            let id = letter.id;
            self.task(ledger, seq, Write::Return { id, behind });
        }
    }

    /// A letter arrived: it is settled when that is written.
    pub(super) fn letter_arrives(&mut self, ledger: &mut Ledger, seq: Seq) {
        if let Some(letter) = ledger.row(seq).and_then(|row| row.letter.as_ref()) {
            let id = letter.id;
            self.task(ledger, seq, Write::Resolve { id });
        }
    }

    pub(super) fn task(&mut self, ledger: &mut Ledger, seq: Seq, write: Write) {
        self.parking.tasks.push(Task {
            seq,
            identity: None,
            write,
        });
        ledger.set_state(seq, RowState::Parked);
    }

    /// A letter whose key has another failed letter since it was taken goes back behind it.
    pub(super) fn goes_back(&mut self, ledger: &mut Ledger, seq: Seq) -> bool {
        let behind = ledger
            .row(seq)
            .is_some_and(|row| self.parking.goes_behind(row));
        if behind {
            self.letter_returns(ledger, seq);
        }
        behind
    }

    /// A task was carried out; that was durable when the log stood at `durable`. The settled row.
    pub fn written(
        &mut self,
        ledger: &mut Ledger,
        seq: Seq,
        identity: Option<&Identity>,
        write: &Write,
        durable: Lsn,
    ) -> Option<Row> {
        let row = ledger.settle_written(seq, durable)?;
        let open = match write {
            Write::Park(park) => {
                if let Some(identity) = identity {
                    self.parking.held.written(identity, park.place);
                }
                return Some(row);
            }
            Write::Resolve { id } => {
                self.parking.flying.remove(id);
                false
            }
            Write::Fail(failure) => {
                self.parking.flying.remove(&failure.id);
                true
            }
            Write::Return { id, .. } => {
                self.parking.flying.remove(id);
                self.parking.held_rows += 1;
                true
            }
        };
        let taken = row.letter.as_ref().and_then(|letter| letter.taken.as_ref());
        if let Some(taken) = taken {
            self.parking.held.landed(&taken.identity, taken.born, open);
        }
        Some(row)
    }
}

//! Producers come and go, and streams begin again: what is open is walked from its oldest row.

use super::{Enqueue, Main, Probe, Sender};
use crate::ledger::{Ledger, RowState, Seq};

impl<P: Enqueue> Sender<P> {
    /// The main producer failed, or must end: what it didn't send is purged, and its last reports
    /// are awaited.
    pub fn abandon_main(&mut self) {
        self.main = match std::mem::replace(&mut self.main, Main::Absent) {
            Main::Ready(main) => {
                main.purge_queue();
                Main::Draining(main)
            }
            other => other,
        };
    }

    /// What was on its way when a connection broke came back into the queue of the failed producer.
    pub fn purge_again(&self) {
        if let Main::Draining(main) = &self.main {
            main.purge_queue();
        }
    }

    /// A producer that told the fate of every record that it took: only then may the next one be
    /// made, or old records could land behind newer ones.
    pub fn take_drained(&mut self) -> Option<P> {
        if self.in_main > 0 || !matches!(self.main, Main::Draining(_)) {
            return None;
        }
        match std::mem::replace(&mut self.main, Main::Absent) {
            Main::Draining(main) => Some(main),
            _ => None,
        }
    }

    /// Records that a failed producer has not reported yet.
    pub fn draining(&self) -> Option<usize> {
        matches!(self.main, Main::Draining(_)).then_some(self.in_main)
    }

    /// Goes on with a new producer: every open row is walked again.
    pub fn install_main(&mut self, main: P, ledger: &mut Ledger) {
        assert_eq!(
            (self.in_main, ledger.enqueued()),
            (0, 0),
            "records without an outcome"
        );
        self.main = Main::Ready(main);
        self.topics.cool();
        self.topics.forget_enqueued();
        self.oversized_rows = 0;
        self.rewind(ledger);
    }

    /// A new probe producer after the old one failed. What it had is tried again.
    pub fn install_probe(&mut self, probe: P, ledger: &mut Ledger) -> P {
        if let Some((seq, purpose)) = self.probing.take() {
            let state = match purpose {
                Probe::Suspect => RowState::Suspect,
                Probe::Letter => {
                    self.queue_retry(seq);
                    RowState::Retry
                }
                Probe::Gate(_) if self.is_at_gate(seq, purpose) => RowState::Gated,
                Probe::Gate(_) => RowState::Waiting,
            };
            ledger.set_state(seq, state);
        }
        std::mem::replace(&mut self.probe, probe)
    }

    /// Whether the row still waits at the gate that it was sent to try; the walk that began again
    /// meanwhile stands before it and knows nothing of the gate.
    pub(super) fn is_at_gate(&self, seq: Seq, purpose: Probe) -> bool {
        matches!(purpose, Probe::Gate(number) if self.topics.first_waiting(number) == Some(seq))
    }

    pub(super) fn rewind(&mut self, ledger: &mut Ledger) {
        self.topics.forget_waiting();
        self.forget_retries();
        self.cursor = Seq(0);
        let mut from = Seq(0);
        while let Some(seq) = ledger.first_from(from) {
            if ledger
                .row(seq)
                .is_some_and(|row| row.state == RowState::Gated)
            {
                ledger.set_state(seq, RowState::Waiting);
            }
            from = seq.next();
        }
    }

    /// The stream starts again and the ledger was emptied: what the producer didn't send yet is
    /// purged. What it did send precedes what comes next, so a suffix repeats.
    pub fn restart(&mut self, ledger: &mut Ledger) {
        if let Main::Ready(main) = &self.main {
            main.purge_queue();
        }
        self.poison = None;
        (self.oversized, self.oversized_rows) = (None, 0);
        self.topics.forget_enqueued();
        self.forget_letters();
        self.rewind(ledger);
    }
}

//! Letters that failed by their own fault go through the probe producer, each alone, once nothing of
//! their topic before them is on its way.

use super::{
    Enqueue, Probe, Sender, map,
    poison::{event_fault, setup_fault},
};
use crate::{
    kafka::topics::TopicState,
    ledger::{Ledger, RowState, Seq},
};

impl<P: Enqueue> Sender<P> {
    /// A letter of its own fault goes alone, once nothing of its topic before it is on its way.
    pub(super) fn queue_retry(&mut self, seq: Seq) {
        self.parking.retries.push_back(seq);
    }

    pub(super) fn forget_retries(&mut self) {
        self.parking.retries.clear();
        self.parking.blocker = None;
    }

    pub(super) fn send_retries(&mut self, ledger: &mut Ledger) {
        for _ in 0..self.parking.retries.len() {
            if self.probing.is_some() {
                return;
            }
            let Some(seq) = self.parking.retries.front().copied() else {
                return;
            };
            let waits = ledger.row(seq).map(|row| row.state) == Some(RowState::Retry);
            if !waits || self.goes_back(ledger, seq) {
                self.next_retry(false);
                continue;
            }
            if !self.try_letter(ledger, seq) {
                return;
            }
        }
    }

    pub(super) fn next_retry(&mut self, again: bool) {
        self.parking.blocker = None;
        if let Some(seq) = self.parking.retries.pop_front()
            && again
        {
            self.parking.retries.push_back(seq);
        }
    }

    /// `false`: it is its turn, and it has to wait.
    pub(super) fn try_letter(&mut self, ledger: &mut Ledger, seq: Seq) -> bool {
        let Some(row) = ledger.row(seq) else {
            return false;
        };
        let topic = match map(&mut self.mapper, row) {
            Ok(record) => self.topics.number(record.topic),
            Err(unmappable) => {
                self.next_retry(false);
                let fault = event_fault(unmappable.code, unmappable.text);
                self.letter_fails(ledger, seq, fault);
                return true;
            }
        };
        ledger.set_topic(seq, topic, 0);
        match self.topics.get(topic).state {
            TopicState::Unasked => {
                self.topics.want(topic);
                self.next_retry(true);
                return true;
            }
            TopicState::Missing => {
                self.next_retry(false);
                let fault = setup_fault(self.topics.get(topic));
                self.letter_fails(ledger, seq, fault);
                return true;
            }
            // Only trying tells.
            TopicState::Denied | TopicState::Open => {}
        }
        if self.is_blocked(ledger, seq, topic) {
            return false;
        }
        self.next_retry(false);
        self.send_to_probe(ledger, seq, Probe::Letter);
        if self.probing.is_none() && ledger.row(seq).map(|row| row.state) == Some(RowState::Retry) {
            self.parking.retries.push_back(seq);
            return false;
        }
        true
    }

    /// Whether a row of the topic before it is on its way, or on its way to be.
    pub(super) fn is_blocked(&mut self, ledger: &Ledger, seq: Seq, topic: usize) -> bool {
        let mut from = self.parking.blocker.unwrap_or(Seq(0));
        while let Some(before) = ledger.first_from(from).filter(|before| *before < seq) {
            let blocks = ledger.row(before).is_some_and(|row| {
                let settled = matches!(row.state, RowState::Parked | RowState::Retry);
                !settled && row.topic.is_none_or(|of| of == topic)
            });
            if blocks {
                self.parking.blocker = Some(before);
                return true;
            }
            from = before.next();
        }
        false
    }

    /// Letters don't wait at a closed gate.
    pub(super) fn expel_letters(&mut self, ledger: &mut Ledger, topic: usize) {
        let is_letter = |seq: Seq| ledger.row(seq).is_some_and(|row| row.letter.is_some());
        for seq in self.topics.take_waiting(topic, is_letter) {
            let fault = setup_fault(self.topics.get(topic));
            self.letter_fails(ledger, seq, fault);
        }
    }
}

//! What the producers report of a record, and what that makes of its row.

use rdkafka::types::RDKafkaErrorCode as Code;

use super::{
    Delivered, Enqueue, Failed, Poison, Probe, Report, Sender, map,
    poison::{broker_text, closed_by, event_fault, is_size, setup_fault},
};
use crate::{
    kafka::{
        context::{Outcome, Settled, Source},
        failure::{Class, class, code_name},
        topics::TopicState,
    },
    ledger::{Ledger, RowState, Seq},
};

impl<P: Enqueue> Sender<P> {
    /// Takes one report.
    pub fn settled(&mut self, ledger: &mut Ledger, settled: Settled) -> Report {
        let Settled {
            source,
            seq,
            partition,
            outcome,
        } = settled;
        let purpose = match source {
            Source::Main => {
                assert!(
                    self.in_main > 0,
                    "a report for a record that was not enqueued: {seq:?}"
                );
                self.in_main -= 1;
                if let Some(number) = ledger.row(seq).and_then(|row| row.topic) {
                    self.topics.reported(number);
                    if outcome == Outcome::Delivered {
                        self.topics.delivered(number, partition, seq);
                    }
                }
                None
            }
            Source::Probe => self
                .probing
                .take_if(|(probed, _)| *probed == seq)
                .map(|(_, p)| p),
        };
        #[cfg(feature = "faults")]
        if crate::faults::is_on(crate::faults::DROP_OUTCOME)
            && matches!(outcome, Outcome::Failed(_))
        {
            return self.arrived(ledger, seq);
        }
        match outcome {
            Outcome::Delivered => {
                if let Some(Probe::Gate(number)) = purpose {
                    self.topics.answer(number, TopicState::Open.into());
                    if self.topics.first_waiting(number) == Some(seq) {
                        self.topics.leave(number);
                    }
                }
                if purpose == Some(Probe::Letter)
                    && let Some(number) = ledger.row(seq).and_then(|row| row.topic)
                {
                    self.topics.answer(number, TopicState::Open.into());
                }
                self.arrived(ledger, seq)
            }
            Outcome::Failed(code) => self.failed(ledger, source, purpose, seq, partition, code),
        }
    }

    /// A row is settled; a letter once that is written.
    pub(super) fn arrived(&mut self, ledger: &mut Ledger, seq: Seq) -> Report {
        let Some(row) = ledger.row(seq) else {
            return Report::Stale;
        };
        let delivered = Delivered {
            committed_at: row.committed_at,
            sent_bytes: row.sent_bytes,
            topic: row.topic,
            is_row: row.letter.is_none(),
        };
        if delivered.is_row {
            ledger.settle(seq);
        } else {
            self.letter_arrives(ledger, seq);
        }
        Report::Delivered(delivered)
    }

    pub(super) fn failed(
        &mut self,
        ledger: &mut Ledger,
        source: Source,
        purpose: Option<Probe>,
        seq: Seq,
        partition: i32,
        code: Code,
    ) -> Report {
        let class = class(code);
        let Some(row) = ledger.row(seq) else {
            return Report::Stale;
        };
        let topic = row.topic;
        if class == Class::Setup
            && let Some(number) = topic
        {
            self.topics.answer(number, closed_by(code).into());
        }
        let state = match (source, class, purpose) {
            // Alone in its batch and refused: guilty.
            (Source::Probe, Class::Event, _) => {
                self.suspect_like(ledger, seq, code);
                if is_size(code) {
                    // It may be why its batch was refused.
                    self.oversized = None;
                }
                ledger.set_state(seq, RowState::Suspect);
                let partition = Some(partition).filter(|partition| *partition >= 0);
                let text = self.refused_text(topic, code);
                let fault = event_fault(code_name(code), text);
                self.fails(ledger, seq, fault, partition);
                return Report::Failed(Failed { class, code });
            }
            (Source::Probe, Class::Setup, Some(Probe::Letter)) => {
                let fault = topic.map(|number| setup_fault(self.topics.get(number)));
                let fault =
                    fault.unwrap_or_else(|| event_fault(code_name(code), broker_text(code)));
                self.letter_fails(ledger, seq, fault);
                return Report::Failed(Failed { class, code });
            }
            (Source::Probe, Class::Passing, Some(Probe::Letter)) => {
                self.queue_retry(seq);
                RowState::Retry
            }
            (Source::Probe, _, Some(purpose)) if self.is_at_gate(seq, purpose) => RowState::Gated,
            (Source::Probe, _, Some(Probe::Gate(_))) => RowState::Waiting,
            (Source::Probe, Class::Setup, _) => RowState::Waiting,
            (Source::Probe, Class::Passing, _) => RowState::Suspect,
            (Source::Main, Class::Event, _) => {
                if is_size(code) {
                    if let Some(number) = topic {
                        self.topics.want_limit(number, self.now);
                    }
                    self.oversized = self.oversized.max(Some(seq));
                    self.oversized_rows += 1;
                }
                RowState::Suspect
            }
            (Source::Main, _, _) => RowState::Waiting,
        };
        ledger.set_state(seq, state);
        if source == Source::Main {
            self.abandon_main();
        }
        Report::Failed(Failed { class, code })
    }

    /// Others like it are tried alone for a while.
    pub(super) fn suspect_like(&mut self, ledger: &Ledger, seq: Seq, code: Code) {
        if let Some(row) = ledger.row(seq)
            && let Ok(record) = map(&mut self.mapper, row)
        {
            let topic = self.topics.number(record.topic);
            self.suspicions.refused(code, &record, topic, self.now);
        }
    }

    /// What the broker means, with the limit where it is known.
    pub(super) fn refused_text(&self, topic: Option<usize>, code: Code) -> String {
        let limit = topic.and_then(|number| self.topics.get(number).limit.known());
        match limit {
            Some(limit) if is_size(code) => format!("too large for {limit}"),
            _ => broker_text(code),
        }
    }

    pub(super) fn found(&mut self, poison: Poison) {
        if self
            .poison
            .as_ref()
            .is_none_or(|known| poison.seq < known.seq)
        {
            self.poison = Some(poison);
        }
    }
}

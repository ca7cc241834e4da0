//! What others are told of the state: `/ready`, `/metrics`, `/api/status`, and one log line per change.

use tracing::warn;

use super::{Relay, session::Session};
use crate::{kafka::topics::TopicState, ledger::ConfirmedLsn, state::WaitingTopic};

impl Relay {
    pub(super) fn publish_state<S>(&mut self, session: &Session<S>) {
        let waiting = self.waiting_topics();
        let dropped = self.sender.take_dropped_headers();
        self.metrics.dropped_headers.inc_by(dropped);
        let mut state = self.state.lock();
        state.streaming = true;
        state.received = Some(self.ledger.received());
        state.confirmed = session.reported_confirmed.map(ConfirmedLsn::lsn);
        state.in_flight_rows = self.ledger.rows();
        state.in_flight_bytes = self.ledger.bytes();
        state.oldest_unsettled = self.ledger.oldest().map(|row| row.committed_at);
        state.last_server_message = Some(session.heard);
        state.waiting_topics = waiting;
        state.held_keys = Some(self.sender.parking.held_keys() as u64);
    }

    /// Topics that rows wait for; each is warned of once.
    pub(super) fn waiting_topics(&mut self) -> Vec<WaitingTopic> {
        let waiting: Vec<_> = self
            .sender
            .topics
            .to_ask()
            .filter(|(_, topic)| topic.state != TopicState::Unasked)
            .filter_map(|(_, topic)| {
                Some(WaitingTopic {
                    topic: topic.name.to_string(),
                    reason: topic.reason().to_owned(),
                    rows: topic.waiting.len(),
                    since: topic.since?,
                })
            })
            .collect();
        for topic in &waiting {
            if !self.warned.contains(&topic.topic) {
                warn!(
                    topic = topic.topic,
                    reason = topic.reason,
                    "rows wait for their topic"
                );
                self.warned.push(topic.topic.clone());
            }
        }
        self.warned
            .retain(|name| waiting.iter().any(|t| t.topic == *name));
        waiting
    }
}

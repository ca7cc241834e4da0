//! The one object that `walpost status --json` prints and `GET /api/status` answers with.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    lsn::{Lsn, PgTime},
    pg::{
        letters::Counted,
        slot::{Names, SlotFacts},
    },
    state::{LetterCounts, Role, Snapshot},
};

/// Lags and sizes in bytes; `null` is what nobody knows at the moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatusObject {
    pub slot: String,
    pub publication: String,
    pub role: RoleName,
    pub holder: Option<Holder>,
    pub server: Option<Server>,
    pub received_lsn: Option<Lsn>,
    pub confirmed_lsn: Option<Lsn>,
    pub confirmed_lag_bytes: Option<u64>,
    pub retained_bytes: Option<u64>,
    pub wal_status: Option<String>,
    pub safe_wal_size: Option<i64>,
    pub oldest_unpublished_seconds: Option<f64>,
    pub events_per_second: Option<f64>,
    pub drain_eta_seconds: Option<f64>,
    pub in_flight: Option<InFlight>,
    pub waiting_topics: Option<Vec<WaitingTopic>>,
    pub dead_letters: Option<LetterCounts>,
    pub held_keys: Option<u64>,
    pub last_error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoleName {
    Publisher,
    Standby,
    /// Not connected yet, or no process answers.
    None,
}

/// The process that reads the slot; what the server does not let us see is `null`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Holder {
    pub pid: i32,
    pub client: Option<String>,
    pub application: Option<String>,
    pub since: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Server {
    pub version: String,
    pub system_identifier: String,
    pub timeline: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InFlight {
    pub rows: usize,
    pub bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WaitingTopic {
    pub topic: String,
    pub reason: String,
    pub rows: usize,
    pub since: Timestamp,
}

/// What only the publisher's own process knows.
#[derive(Clone, Debug)]
pub struct PublisherPart {
    pub role: RoleName,
    pub received_lsn: Option<Lsn>,
    pub oldest_unpublished_seconds: Option<f64>,
    pub events_per_second: Option<f64>,
    pub drain_eta_seconds: Option<f64>,
    pub in_flight: Option<InFlight>,
    pub waiting_topics: Option<Vec<WaitingTopic>>,
    pub last_error: Option<String>,
}

impl PublisherPart {
    /// In the publisher's process. `lag_bytes`: WAL behind the slot's confirmed position.
    pub fn of(state: &Snapshot, lag_bytes: Option<u64>) -> Self {
        let age = |at: PgTime| at.seconds_until(PgTime::now()).max(0.0);
        let rate = state.confirmed_bytes_per_second;
        let eta = lag_bytes
            .filter(|_| state.in_flight_rows > 0 && rate > 0.0)
            .map(|lag| lag as f64 / rate);
        let topics = state.waiting_topics.iter().map(|t| WaitingTopic {
            topic: t.topic.clone(),
            reason: t.reason.clone(),
            rows: t.rows,
            since: t.since,
        });
        PublisherPart {
            role: match state.role {
                Role::None => RoleName::None,
                Role::Standby => RoleName::Standby,
                Role::Publisher => RoleName::Publisher,
            },
            received_lsn: state.received,
            oldest_unpublished_seconds: state.oldest_unsettled.map(age),
            events_per_second: Some(state.events_per_second),
            drain_eta_seconds: eta,
            in_flight: Some(InFlight {
                rows: state.in_flight_rows,
                bytes: state.in_flight_bytes,
            }),
            waiting_topics: Some(topics.collect()),
            last_error: state.last_error.clone(),
        }
    }

    /// In another process, which asked the publisher. `None` when what answered watches another
    /// slot or another cluster.
    pub fn from_answer(answer: StatusObject, names: &Names, facts: &SlotFacts) -> Option<Self> {
        let same = answer.slot == names.slot
            && answer
                .server
                .as_ref()
                .is_some_and(|s| s.system_identifier == facts.server.system_identifier);
        same.then_some(PublisherPart {
            role: answer.role,
            received_lsn: answer.received_lsn,
            oldest_unpublished_seconds: answer.oldest_unpublished_seconds,
            events_per_second: answer.events_per_second,
            drain_eta_seconds: answer.drain_eta_seconds,
            in_flight: answer.in_flight,
            waiting_topics: answer.waiting_topics,
            last_error: answer.last_error,
        })
    }
}

/// Puts together what the server says of slot and letters and what the publisher says, each `None`
/// when it is silent.
pub fn object(
    names: &Names,
    facts: Option<&SlotFacts>,
    letters: Option<Counted>,
    publisher: Option<&PublisherPart>,
) -> StatusObject {
    let slot = facts.and_then(|f| f.slot.as_ref());
    StatusObject {
        slot: names.slot.clone(),
        publication: names.publication.clone(),
        role: publisher.map_or(RoleName::None, |p| p.role),
        holder: facts.and_then(|f| f.holder.as_ref()).map(|h| Holder {
            pid: h.pid,
            client: h.client.clone(),
            application: h.application.clone(),
            since: h.since,
        }),
        server: facts.map(|f| Server {
            version: f.server.version.clone(),
            system_identifier: f.server.system_identifier.clone(),
            timeline: f.server.timeline,
        }),
        received_lsn: publisher.and_then(|p| p.received_lsn),
        confirmed_lsn: slot.and_then(|s| s.confirmed_flush_lsn),
        confirmed_lag_bytes: facts.and_then(SlotFacts::confirmed_lag_bytes),
        retained_bytes: facts.and_then(SlotFacts::retained_bytes),
        wal_status: slot.and_then(|s| s.wal_status.clone()),
        safe_wal_size: slot.and_then(|s| s.safe_wal_size),
        oldest_unpublished_seconds: publisher.and_then(|p| p.oldest_unpublished_seconds),
        events_per_second: publisher.and_then(|p| p.events_per_second),
        drain_eta_seconds: publisher.and_then(|p| p.drain_eta_seconds),
        in_flight: publisher.and_then(|p| p.in_flight.clone()),
        waiting_topics: publisher.and_then(|p| p.waiting_topics.clone()),
        dead_letters: letters.map(|counted| counted.letters),
        held_keys: letters.map(|counted| counted.held_keys),
        last_error: publisher.and_then(|p| p.last_error.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        pg::slot::tests::{facts, names},
        state::State,
    };

    fn publisher() -> PublisherPart {
        let state = State::default();
        let mut now = state.lock();
        now.role = Role::Publisher;
        now.received = Some(Lsn::new(0x0100_0200));
        now.in_flight_rows = 2;
        now.confirmed_bytes_per_second = 128.0;
        PublisherPart::of(&now, facts().confirmed_lag_bytes())
    }

    fn letters() -> Counted {
        Counted {
            letters: LetterCounts {
                dead: 1,
                held: 3,
                ..LetterCounts::default()
            },
            held_keys: 1,
        }
    }

    #[test]
    fn the_object_has_the_promised_form() {
        let all = serde_json::to_value(object(
            &names(),
            Some(&facts()),
            Some(letters()),
            Some(&publisher()),
        ))
        .unwrap();
        let expected = json!({
            "slot": "walpost", "publication": "walpost", "role": "publisher",
            "holder": {"pid": 7, "client": "127.0.0.1", "application": "walpost:walpost", "since": "2026-01-02T03:00:00Z"},
            "server": {"version": "15.18", "system_identifier": "7713717331013726184", "timeline": 1},
            "received_lsn": "0/1000200", "confirmed_lsn": "0/1000100", "confirmed_lag_bytes": 256, "retained_bytes": 512,
            "wal_status": "reserved", "safe_wal_size": null, "oldest_unpublished_seconds": null, "events_per_second": 0.0,
            "drain_eta_seconds": 2.0, "in_flight": {"rows": 2, "bytes": 0}, "waiting_topics": [],
            "dead_letters": {"pending": 0, "replaying": 0, "held": 3, "dead": 1, "resolved": 0, "ignored": 0},
            "held_keys": 1, "last_error": null,
        });
        assert_eq!(all, expected);
    }

    #[test]
    fn without_a_publisher_only_the_server_speaks() {
        let alone =
            serde_json::to_value(object(&names(), Some(&facts()), Some(letters()), None)).unwrap();
        assert_eq!(alone["role"], "none");
        for field in [
            "received_lsn",
            "events_per_second",
            "in_flight",
            "waiting_topics",
        ] {
            assert_eq!(alone[field], Value::Null, "{field}");
        }
        assert_eq!(
            (&alone["confirmed_lag_bytes"], &alone["held_keys"]),
            (&json!(256), &json!(1))
        );
        assert_eq!(
            serde_json::to_value(object(&names(), None, None, None)).unwrap()["server"],
            Value::Null
        );
    }

    #[test]
    fn an_answer_of_another_slot_or_cluster_is_not_taken() {
        let answer = object(&names(), Some(&facts()), None, Some(&publisher()));
        let taken = PublisherPart::from_answer(answer.clone(), &names(), &facts()).unwrap();
        assert_eq!(taken.in_flight, Some(InFlight { rows: 2, bytes: 0 }));
        let mut other = answer.clone();
        other.slot = "other".into();
        assert!(PublisherPart::from_answer(other, &names(), &facts()).is_none());
        let mut other = answer;
        other.server.as_mut().unwrap().system_identifier = "1".into();
        assert!(PublisherPart::from_answer(other, &names(), &facts()).is_none());
    }
}

//! What becomes of events that cannot be published: `[dead_letters]`, and each table's `on_poison`.

use std::time::Duration;

use serde::Deserialize;

use super::{Problem, units};
use crate::outbox::template::is_valid_topic;

/// What a record that can never be delivered does to the rows behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnPoison {
    /// Later rows of its key wait behind its letter, in order.
    #[default]
    HoldKey,
    /// Later rows of its key pass.
    Skip,
    /// Settle what is before it and end with exit code 5.
    Stop,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct DeadLetters {
    /// Pauses before a pending letter is sent again by itself, each with full jitter; after the
    /// last one it is dead. Empty leaves it to operators.
    #[serde(deserialize_with = "units::durations")]
    pub retry_after: Vec<Duration>,
    pub guard: Guard,
    /// Rows that may wait behind letters of their keys; beyond it the publisher ends with exit
    /// code 5. At least 1.
    pub max_held_rows: u64,
    /// How long resolved and ignored letters and entries of the audit log are kept.
    #[serde(deserialize_with = "units::duration")]
    pub keep_resolved: Duration,
    /// A Kafka topic for a copy of each letter; empty for none.
    pub topic: String,
}

/// More event failures than `count` within `within` stop the publisher with exit code 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct Guard {
    pub count: u64,
    #[serde(deserialize_with = "units::duration")]
    pub within: Duration,
}

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Far longer than anybody waits, and well inside PostgreSQL's range of times.
const LONGEST: Duration = Duration::from_secs(36_500 * 24 * 60 * 60);

impl Default for DeadLetters {
    fn default() -> Self {
        DeadLetters {
            // The first ones outlast a deployment that mends the cause, the last a night.
            retry_after: vec![
                MINUTE,
                5 * MINUTE,
                30 * MINUTE,
                2 * HOUR,
                8 * HOUR,
                24 * HOUR,
            ],
            guard: Guard::default(),
            max_held_rows: 100_000,
            keep_resolved: 30 * DAY,
            topic: String::new(),
        }
    }
}

impl Default for Guard {
    fn default() -> Self {
        // So many bad events at once are a mistake of everybody's, not of one event.
        Guard {
            count: 1000,
            within: MINUTE,
        }
    }
}

impl DeadLetters {
    /// The limits that types don't express.
    pub fn check(&self) -> Result<(), Problem> {
        let length = |path: &str, duration: Duration| match duration {
            Duration::ZERO => Err(Problem::new(path, "must be longer than zero")),
            long if long > LONGEST => Err(Problem::new(path, "at most 36500d")),
            _ => Ok(()),
        };
        for (n, &pause) in self.retry_after.iter().enumerate() {
            length(&format!("dead_letters.retry_after.{n}"), pause)?;
        }
        length("dead_letters.guard.within", self.guard.within)?;
        length("dead_letters.keep_resolved", self.keep_resolved)?;
        if self.max_held_rows == 0 {
            let message = "at least 1; `on_poison = \"skip\"` holds no rows";
            return Err(Problem::new("dead_letters.max_held_rows", message));
        }
        if !self.topic.is_empty() && !is_valid_topic(&self.topic) {
            return Err(Problem::new(
                "dead_letters.topic",
                "a topic's name has 1 to 249 letters, digits, dots, underscores and hyphens; \"\" for no copies",
            ));
        }
        Ok(())
    }
}

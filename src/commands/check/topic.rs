//! One topic: whether it is there, and whether it keeps what its records are.

use jiff::{SignedDuration, Timestamp};

use super::{finding::Findings, rows::Use};
use crate::kafka::{
    survey::{Found, Settings},
    topics::TopicState,
};

/// One topic, what it is like, and what its records ask.
pub struct Topic<'a> {
    pub name: &'a str,
    pub seen: &'a Use,
    pub found: &'a Found,
    /// `None`: nobody may tell.
    pub settings: Option<&'a Settings>,
    /// It takes copies of dead letters.
    pub is_letters: bool,
}

impl Topic<'_> {
    pub fn judge(&self, now: Timestamp, findings: &mut Findings) {
        let (name, found) = (self.name, self.found);
        match found.state {
            TopicState::Open => {
                let partitions = found.partitions;
                let message = format!("topic {name}: it is there, with {partitions} partitions");
                findings.pass("kafka.topic", name, message);
            }
            TopicState::Denied => {
                let message = format!("topic {name}: we may not see it");
                let fix = "give the principal the operations Describe and Write on it";
                findings.fail("kafka.topic", name, message, fix);
                return;
            }
            TopicState::Missing | TopicState::Unasked => {
                let message = format!("topic {name}: it does not exist, so its rows would wait");
                let fix = format!(
                    "make it, such as with `kafka-topics.sh --create --topic {name} --partitions N`"
                );
                findings.fail("kafka.topic", name, message, &fix);
                return;
            }
        }
        self.partition(findings);
        if let Some(settings) = self.settings {
            self.copies(settings, findings);
            self.keys(settings, findings);
            self.times(settings, now, findings);
        }
    }

    fn partition(&self, findings: &mut Findings) {
        let (name, partitions) = (self.name, self.found.partitions);
        let Some((largest, event)) = &self.seen.partition else {
            return;
        };
        let id = "kafka.partition";
        if usize::try_from(*largest).is_ok_and(|largest| largest < partitions) {
            let message = format!("topic {name}: each partition that a row at hand names is there");
            findings.pass(id, name, message);
            return;
        }
        let message = format!(
            "topic {name}: event {event} names partition {largest}, and there are 0 to {}",
            partitions.saturating_sub(1)
        );
        let fix = format!(
            "write smaller numbers, or give it more, such as with `kafka-topics.sh --alter --topic {name} --partitions {}`",
            i64::from(*largest) + 1
        );
        findings.fail(id, name, message, &fix);
    }

    /// A record that one broker alone has is lost with it.
    fn copies(&self, settings: &Settings, findings: &mut Findings) {
        let (name, replicas) = (self.name, self.found.replicas);
        let least = number(settings, "min.insync.replicas").unwrap_or(1);
        let message = format!(
            "topic {name}: {replicas} replicas, of which {least} confirm a record (min.insync.replicas)"
        );
        if replicas > 1 && least > 1 {
            findings.pass("kafka.copies", name, message);
            return;
        }
        let message = format!("{message}, so a confirmed record may be lost with its broker");
        let fix = "3 replicas and min.insync.replicas = 2 survive a broker's end";
        findings.warn("kafka.copies", name, message, fix);
    }

    fn keys(&self, settings: &Settings, findings: &mut Findings) {
        let name = self.name;
        let policy = settings.get("cleanup.policy").map_or("", String::as_str);
        if !policy.contains("compact") {
            return;
        }
        match &self.seen.keyless {
            Some(event) => {
                let message = format!(
                    "topic {name}: it is compacted, which takes no record without key, and event {event} has none"
                );
                let fix = "give each row a key, or make it a topic with `cleanup.policy=delete`";
                findings.fail("kafka.compaction", name, message, fix);
            }
            None => {
                let message = format!(
                    "topic {name}: it is compacted (cleanup.policy), so only the last event of each key stays"
                );
                let fix = "where each event counts, set `cleanup.policy=delete`";
                findings.warn("kafka.compaction", name, message, fix);
            }
        }
    }

    fn times(&self, settings: &Settings, now: Timestamp, findings: &mut Findings) {
        let name = self.name;
        if self.is_letters {
            return;
        }
        if settings.get("message.timestamp.type").map(String::as_str) == Some("LogAppendTime") {
            let message = format!(
                "topic {name}: the broker stamps its records with the time of their arrival (message.timestamp.type)"
            );
            let fix = "`message.timestamp.type=CreateTime` keeps the rows' times";
            findings.warn("kafka.timestamps", name, message, fix);
            return;
        }
        let Some((first, last)) = self.seen.times else {
            return;
        };
        let (now, age) = (
            now.as_millisecond(),
            now.as_millisecond().saturating_sub(first),
        );
        let ahead = last.saturating_sub(now);
        let retention = number(settings, "retention.ms").filter(|ms| *ms >= 0);
        let deletes = settings
            .get("cleanup.policy")
            .is_none_or(|policy| policy.contains("delete"));
        match retention.filter(|ms| deletes && age > *ms) {
            Some(ms) => {
                let message = format!(
                    "topic {name}: it keeps records for {}, counted from the row's time, and the oldest row at hand is {} old: published \
                     now, such rows are deleted soon after their arrival",
                    length(ms),
                    length(age)
                );
                let fix = "raise retention.ms before rows that are already there are published, or switch the role off with \
                           `occurred_at = false`, so that the commit's time is taken";
                findings.warn("kafka.retention", name, message, fix);
            }
            None => {
                let message = format!(
                    "topic {name}: it keeps records longer than the oldest row at hand is old"
                );
                findings.pass("kafka.retention", name, message);
            }
        }
        let fix =
            "correct the rows' times, raise it, or switch the role off with `occurred_at = false`";
        let before = number(settings, "message.timestamp.before.max.ms");
        if let Some(ms) = before.filter(|ms| age > *ms) {
            let message = format!(
                "topic {name}: it refuses records older than {} (message.timestamp.before.max.ms), and the oldest row at hand is {} old",
                length(ms),
                length(age)
            );
            findings.warn("kafka.timestamps", name, message, fix);
        }
        let after = number(settings, "message.timestamp.after.max.ms");
        if let Some(ms) = after.filter(|ms| ahead > *ms) {
            let message = format!(
                "topic {name}: it refuses records more than {} ahead (message.timestamp.after.max.ms), and a row at hand is {} ahead",
                length(ms),
                length(ahead)
            );
            findings.warn("kafka.timestamps", name, message, fix);
        }
    }
}

fn number(settings: &Settings, name: &str) -> Option<i64> {
    settings.get(name)?.parse().ok()
}

/// Milliseconds, for people.
fn length(millis: i64) -> String {
    const DAY: i64 = 24 * 3600;
    match millis / 1000 {
        seconds if seconds >= 2 * DAY => format!("{} days", seconds / DAY),
        seconds => format!("{:#}", SignedDuration::from_secs(seconds)),
    }
}

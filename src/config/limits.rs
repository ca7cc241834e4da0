//! The limits of the configuration that its types don't express.

use std::time::Duration;

use super::{Config, kafka};
use crate::outbox::mapping::Mapping;

/// A value that cannot work: which key, and why.
#[derive(Debug)]
pub struct Problem {
    pub path: String,
    pub message: String,
}

impl Problem {
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem {
            path: path.into(),
            message: message.into(),
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl Config {
    /// The limits that types don't express. `load` has called it.
    pub fn check(&self) -> Result<(), Problem> {
        let sound = |path: &str, holds: bool, message: &str| match holds {
            true => Ok(()),
            false => Err(Problem::new(path, message)),
        };
        let Config {
            postgres,
            outbox,
            kafka,
            delivery,
            dead_letters,
            http,
        } = self;
        let name = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
        sound(
            "postgres.slot",
            (1..=63).contains(&postgres.slot.len()) && postgres.slot.bytes().all(name),
            "a slot's name has 1 to 63 lower-case letters, digits and underscores",
        )?;
        sound(
            "postgres.publication",
            (1..=63).contains(&postgres.publication.len()) && !postgres.publication.contains('\0'),
            "a publication's name has 1 to 63 bytes",
        )?;
        let tick = Duration::from_millis(10);
        sound(
            "postgres.status_interval",
            postgres.status_interval >= tick,
            "at least 10ms, so that reporting doesn't fill the time",
        )?;
        sound(
            "postgres.receive_timeout",
            postgres.receive_timeout > postgres.status_interval,
            "must be longer than postgres.status_interval, or each silence between two reports is a dead connection",
        )?;
        sound(
            "outbox",
            !outbox.is_empty(),
            "name the table to publish: `[[outbox]]` with `table = \"public.outbox\"`",
        )?;
        for (index, one) in outbox.iter().enumerate() {
            let earlier = &outbox[..index];
            sound(
                &format!("outbox.{index}.table"),
                earlier.iter().all(|other| other.table != one.table),
                &format!("table {} is there already: each table once", one.table),
            )?;
            sound(
                &format!("outbox.{index}.messages"),
                !(one.messages && earlier.iter().any(|other| other.messages)),
                "messages of prefix `walpost` are mapped by one table alone, and an earlier one has `messages = true`",
            )?;
            Mapping::new(one, index)?;
        }
        sound(
            "kafka.brokers",
            !kafka.brokers.trim().is_empty(),
            "write host:port, several with commas",
        )?;
        kafka::refuse(kafka)?;
        // librdkafka's queue bounds are 32-bit numbers: of messages, and of KiB.
        let most = i32::MAX as u64;
        sound(
            "delivery.in_flight_rows",
            (1..=most).contains(&(delivery.in_flight_rows as u64)),
            "1 to 2147483647 rows",
        )?;
        sound(
            "delivery.in_flight_bytes",
            (1..=most * 1024).contains(&delivery.in_flight_bytes),
            "1 byte to 2 TiB",
        )?;
        dead_letters.check()?;
        let port = |address: &str| {
            address
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        sound(
            "http.listen",
            http.listen.is_empty() || port(&http.listen),
            "write address:port, such as \"127.0.0.1:9464\", or \"\" to switch it off",
        )?;
        sound(
            "http.not_ready_after",
            !http.not_ready_after.is_zero(),
            "must be longer than zero",
        )
    }
}

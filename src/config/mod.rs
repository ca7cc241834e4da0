//! The configuration as one tree of typed structs: defaults with their reasons, units, limits.
//! `layers` reads it from file, environment and flags.

mod env;
pub mod kafka;
mod layers;
mod units;

mod variables;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::Deserialize;

pub use env::Env;
pub use layers::load;
pub use units::parse_duration;

/// The whole of walpost.toml.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct Config {
    pub postgres: Postgres,
    /// The tables to publish; exactly one.
    pub outbox: Vec<Outbox>,
    pub kafka: Kafka,
    pub delivery: Delivery,
    pub http: Http,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct Postgres {
    /// libpq connection string or URL. Falls back to `DATABASE_URL`, then to `PG*` alone.
    #[serde(deserialize_with = "units::secret_or_empty")]
    pub url: Option<Secret>,
    /// Lower case, digits, underscore; at most 63.
    pub slot: String,
    pub publication: String,
    /// A file whose first line is the password, read again at each connection.
    #[serde(deserialize_with = "units::path_or_empty")]
    pub password_file: Option<PathBuf>,
    /// Longest pause between two status reports.
    #[serde(deserialize_with = "units::duration")]
    pub status_interval: Duration,
    /// Silence longer than this is a dead connection.
    #[serde(deserialize_with = "units::duration")]
    pub receive_timeout: Duration,
}

/// Text that is never printed: `Debug` shows `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl Default for Postgres {
    fn default() -> Self {
        Postgres {
            url: None,
            slot: "walpost".into(),
            publication: "walpost".into(),
            password_file: None,
            status_interval: Duration::from_secs(1),
            receive_timeout: Duration::from_secs(30),
        }
    }
}

/// A table's name in two parts, unquoted, exactly as the catalogue has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableName {
    pub schema: String,
    pub name: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct Outbox {
    pub table: TableName,
    #[serde(default)]
    pub preset: Preset,
    /// Template: `{column}` is that column's text, doubled braces are literal.
    #[serde(default = "default_topic")]
    pub topic: String,
    /// The column that becomes the record's key; empty for none.
    #[serde(default = "default_key")]
    pub key: String,
    #[serde(default)]
    pub format: Format,
    #[serde(default)]
    pub on_poison: OnPoison,
}

fn default_topic() -> String {
    "outbox.event.{aggregate_type}".into()
}

fn default_key() -> String {
    "aggregate_id".into()
}

/// Which columns the table has and what becomes of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    #[default]
    Walpost,
}

/// What the record's value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// The payload's bytes, exactly as PostgreSQL gives them.
    #[default]
    Raw,
}

/// What a record that can never be delivered does to the publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnPoison {
    /// Settle what is before it and end with exit code 5.
    #[default]
    Stop,
}

#[derive(Clone, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct Kafka {
    /// `host:port`, comma-separated. Falls back to `KAFKA_BROKERS`.
    pub brokers: String,
    /// librdkafka producer properties, passed on.
    #[serde(deserialize_with = "units::properties")]
    pub properties: BTreeMap<String, String>,
}

impl std::fmt::Debug for Kafka {
    /// Names of properties only: many values are secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.properties.keys().collect();
        f.debug_struct("Kafka")
            .field("brokers", &self.brokers)
            .field("properties", &names)
            .finish()
    }
}

impl Default for Kafka {
    fn default() -> Self {
        Kafka {
            brokers: "localhost:9092".into(),
            properties: BTreeMap::new(),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct Delivery {
    /// Rows read and not yet settled; at this many, reading pauses. At least 1.
    pub in_flight_rows: usize,
    /// Bytes of those rows; a larger row is sent alone. At least 1.
    #[serde(deserialize_with = "units::size")]
    pub in_flight_bytes: u64,
    /// How long a stop may take to finish, flush and confirm.
    #[serde(deserialize_with = "units::duration")]
    pub shutdown_grace: Duration,
}

impl Default for Delivery {
    fn default() -> Self {
        // 20,000 was twice as fast as librdkafka's own 100,000 and needed 75 MB less.
        Delivery {
            in_flight_rows: 20_000,
            in_flight_bytes: 16 << 20,
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct Http {
    /// `address:port`; empty switches it off.
    pub listen: String,
    /// Rows open and nothing settled for so long: `/ready` says no.
    #[serde(deserialize_with = "units::duration")]
    pub not_ready_after: Duration,
}

impl Default for Http {
    fn default() -> Self {
        Http {
            listen: "127.0.0.1:9464".into(),
            not_ready_after: Duration::from_secs(60),
        }
    }
}

/// A value that cannot work: which key, and why.
#[derive(Debug)]
pub struct Problem {
    pub path: String,
    pub message: String,
}

impl Problem {
    fn new(path: impl Into<String>, message: impl Into<String>) -> Problem {
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
        match outbox.len() {
            0 => sound(
                "outbox",
                false,
                "name the table to publish: `[[outbox]]` with `table = \"public.outbox\"`",
            )?,
            1 => {}
            n => sound(
                "outbox",
                false,
                &format!("{n} tables; this version publishes exactly one"),
            )?,
        }
        sound(
            "outbox.0.topic",
            !outbox[0].topic.is_empty(),
            "a topic's name cannot be empty",
        )?;
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

//! The configuration as one tree of typed structs: defaults with their reasons, units, limits.
//! `layers` reads it from file, environment and flags.

mod dead_letters;
mod env;
pub mod kafka;
mod layers;
mod limits;
mod origins;
pub mod outbox;
mod units;
mod variables;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::Deserialize;

pub use dead_letters::{DeadLetters, Guard, OnPoison};
pub use env::Env;
pub use layers::{load, load_with_origins};
pub use limits::Problem;
pub use origins::Setting;
pub use outbox::{Format, Outbox, Preset};
pub use units::parse_duration;

/// The whole of walpost.toml.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct Config {
    pub postgres: Postgres,
    /// The tables to publish; one or more, each once.
    pub outbox: Vec<Outbox>,
    pub kafka: Kafka,
    pub delivery: Delivery,
    pub dead_letters: DeadLetters,
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
    /// `init` makes a slot that standbys keep in step, so that a promoted one has it. PostgreSQL 17+.
    pub failover_slot: bool,
    /// A file whose first line is the password, read again at each connection.
    #[serde(deserialize_with = "units::path_or_empty")]
    pub password_file: Option<PathBuf>,
    /// Longest pause between two status reports.
    #[serde(deserialize_with = "units::duration")]
    pub status_interval: Duration,
    /// Silence longer than this is a dead connection.
    #[serde(deserialize_with = "units::duration")]
    pub receive_timeout: Duration,
    /// A server that shuts down while rows are not settled waits for us no longer than this.
    #[serde(deserialize_with = "units::duration")]
    pub server_shutdown_grace: Duration,
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
            failover_slot: false,
            password_file: None,
            status_interval: Duration::from_secs(1),
            receive_timeout: Duration::from_secs(30),
            server_shutdown_grace: Duration::from_secs(10),
        }
    }
}

/// A table's name in two parts, unquoted, exactly as the catalogue has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableName {
    pub schema: String,
    pub name: String,
}

#[derive(Clone, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct Kafka {
    /// `host:port`, comma-separated. Falls back to `KAFKA_BROKERS`.
    pub brokers: String,
    /// librdkafka producer properties, passed on.
    #[serde(deserialize_with = "units::properties")]
    pub properties: BTreeMap<String, String>,
    /// Properties whose values are in files, read again for each new client; an authentication
    /// failure makes a new client.
    pub property_files: BTreeMap<String, PathBuf>,
}

impl std::fmt::Debug for Kafka {
    /// Names of properties only: many values are secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.properties.keys().collect();
        f.debug_struct("Kafka")
            .field("brokers", &self.brokers)
            .field("properties", &names)
            .field("property_files", &self.property_files)
            .finish()
    }
}

impl Default for Kafka {
    fn default() -> Self {
        Kafka {
            brokers: "localhost:9092".into(),
            properties: BTreeMap::new(),
            property_files: BTreeMap::new(),
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
    /// How long rows wait for a topic that is missing or forbidden.
    #[serde(deserialize_with = "units::duration")]
    pub setup_retry_for: Duration,
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
            setup_retry_for: Duration::from_secs(300),
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
    /// A file whose first line is the token that changes need, read again at each of them. Without
    /// one, changes are accepted from loopback only.
    #[serde(deserialize_with = "units::path_or_empty")]
    pub admin_token_file: Option<PathBuf>,
}

impl Default for Http {
    fn default() -> Self {
        Http {
            listen: "127.0.0.1:9464".into(),
            not_ready_after: Duration::from_secs(60),
            admin_token_file: None,
        }
    }
}

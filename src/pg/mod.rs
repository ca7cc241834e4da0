//! PostgreSQL: connections, the replication stream, slot and publication. Knows nothing of Kafka.

pub mod bytes;
pub mod conninfo;
pub mod create_slot;
pub mod failure;
pub mod letters;
pub mod lost;
pub mod mark;
pub mod message;
pub mod numbers;
pub mod open;
pub mod pgoutput;
pub mod publication;
pub mod quote;
pub mod record;
pub mod replication;
pub mod schema;
pub mod server_error;
pub mod setup;
pub mod slot;
pub mod sql;
pub mod surroundings;
pub mod table;
pub mod tls;
pub mod verdict;
pub mod watch;
pub mod wire;

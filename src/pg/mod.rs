//! PostgreSQL: connections, the replication stream, slot and publication. Knows nothing of Kafka.

pub mod bytes;
pub mod conninfo;
pub mod failure;
pub mod message;
pub mod open;
pub mod pgoutput;
pub mod replication;
pub mod server_error;
pub mod sql;
pub mod tls;
pub mod wire;

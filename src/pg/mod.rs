//! PostgreSQL: connections, the replication stream, slot and publication. Knows nothing of Kafka.

pub mod bytes;
pub mod message;
pub mod pgoutput;
pub mod server_error;
pub mod wire;

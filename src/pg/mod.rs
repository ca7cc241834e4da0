//! PostgreSQL: connections, the replication stream, slot and publication. Knows nothing of Kafka.

pub mod bytes;
pub mod message;
pub mod pgoutput;
pub mod quote;
pub mod schema;
pub mod slot;
pub mod verdict;

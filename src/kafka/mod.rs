//! Kafka: producers and what they report, topics and whether they take records. Knows nothing of
//! positions in the WAL: a record is known by its row's sequence number.

pub mod context;
pub mod failure;
pub mod partitions;
mod poller;
pub mod producer;
pub mod scan;
pub mod settings;
pub mod survey;
pub mod topics;

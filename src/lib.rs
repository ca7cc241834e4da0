pub mod config;
pub mod error;
pub mod kafka;
pub mod lsn;
pub mod outbox;
pub mod pg;
pub mod verdict;

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod backoff;
pub mod cli;
pub mod commands;
pub mod config;
pub mod error;
#[cfg(feature = "faults")]
pub mod faults;
pub mod http;
pub mod kafka;
pub mod ledger;
pub mod logging;
pub mod lsn;
pub mod metrics;
pub mod outbox;
pub mod pg;
pub mod relay;
pub mod sender;
pub mod shutdown;
pub mod state;
pub mod status;
pub mod verdict;

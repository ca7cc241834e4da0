//! walpost publishes a PostgreSQL outbox table to Kafka from the write-ahead log.
//!
//! **The path of a row.** [`pg::wire`] reads a frame, [`pg::message`] and [`pg::pgoutput`] parse it,
//! [`outbox::relation`] knows its table's shape, [`ledger`] keeps the row's bytes and numbers it,
//! [`sender`] maps it to a record ([`outbox::record`]) and hands it to [`kafka::producer`], whose
//! report comes back through [`kafka::context`] to the relay; [`ledger`] settles the row and says how
//! far the slot may move, and a status update ([`pg::message`]) tells the server. [`relay`] is the
//! loop around it, and alone knows both servers.
//!
//! **Who may use whom**: `main` → [`cli`] → [`commands`] → [`relay`], [`http`], `pg::*` →
//! `pg::wire`, [`outbox`], [`kafka`], [`sender`], [`ledger`]. [`lsn`], `pg::message`,
//! `pg::pgoutput`, [`outbox`], [`ledger`] and [`sender`] have no socket, no task and no clock.
//!
//! **The five invariants**, asserted where they can break:
//! 1. The confirmed position never moves back. It is a commit's end or, between transactions, a
//!    keepalive's position, received on this connection, vouched for by a check of slot and
//!    publication that began after it was received, and within what is recorded as ours.
//! 2. A row is settled by a successful delivery report, and by nothing else.
//! 3. A row whose outcome isn't known is not settled; a producer is replaced only when every record
//!    that it took has an outcome.
//! 4. Reading may pause; reporting never does, and reports oftener than half of `wal_sender_timeout`.
//! 5. Rows and bytes in flight never exceed their bounds; a larger row goes alone.

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

//! walpost publishes a PostgreSQL outbox table to Kafka from the write-ahead log.
//!
//! # The path of a row, from WAL bytes to the confirmed position
//!
//! Each step changes the type; none only passes on.
//!
//! | step | gives |
//! |---|---|
//! | [`pg::wire`]: `Stream::next` | a frame: the body of one CopyData message |
//! | [`pg::message`]: `ServerMessage::parse` | `XLogData` or a keepalive |
//! | [`pg::pgoutput`]: `Change::parse` | `Begin`, `Relation`, `Insert`, `Commit`, … |
//! | [`outbox::relation`]: `Relations::table` | the shape that our table had when the row was written |
//! | [`ledger`]: `Ledger::open_row` | `Seq`; the ledger keeps the row's bytes until it is settled |
//! | [`outbox::row`], [`outbox::record`]: `Mapper::record` | `Record`: topic, key, headers, timestamp, value |
//! | [`sender`]: `Sender::pump` → [`kafka::producer`]: `enqueue` | a copy in librdkafka that carries the `Seq` |
//! | [`kafka::context`]: the delivery callback | `Settled { seq, outcome }` |
//! | [`sender`]: `Sender::settled` → `Ledger::settle` | the row is settled, or goes back to be sent again |
//! | [`relay`]'s checks, [`pg::watch`], [`pg::verdict`] | slot and publication are as they must be up to here |
//! | [`ledger`]: `Ledger::confirmed` | [`ledger::ConfirmedLsn`] |
//! | [`pg::message`]: `StatusUpdate` → `Stream::queue_status` | the server's `confirmed_flush_lsn` |
//!
//! Rows that are read from the table itself ([`pg::table`]) join this path at the ledger.
//!
//! # The five invariants
//!
//! 1. The confirmed position never moves back on a connection. It is a commit's end or, between
//!    transactions, a keepalive's position; it was received on this connection, every row before it
//!    is settled, a check of slot and publication that began after it was received vouches for it,
//!    and it lies within what `walpost.slot` records as ours. Asserted in `Ledger::confirmed`.
//! 2. A row is settled by its successful delivery report or by its committed dead letter, and by
//!    nothing else.
//! 3. A row whose outcome isn't known is not settled. A producer is replaced only when every record
//!    that it took has an outcome: asserted in `Sender::install_main`.
//! 4. Reading may pause; reporting never does, and comes at least four times in a
//!    `wal_sender_timeout`. So no branch of the relay's loop waits for Kafka or for SQL.
//! 5. Rows and bytes in flight stay within `in_flight_rows` and `in_flight_bytes`; a row larger than
//!    that goes alone.
//!
//! # The modules
//!
//! - [`cli`], [`commands`]: the command line, and one file per command. [`config`], [`logging`],
//!   [`shutdown`], [`backoff`], [`error`]: what every command needs.
//! - [`pg`] knows PostgreSQL and nothing of Kafka. [`kafka`] knows Kafka and nothing of positions in
//!   the log. [`outbox`] knows the table and neither server.
//! - [`ledger`] and [`sender`] decide: which rows are open, what is sent next, how far the slot may
//!   move. With [`outbox`], [`lsn`], [`pg::message`] and [`pg::pgoutput`] they have no socket, no task
//!   and no clock.
//! - [`relay`] is the loop around them, and alone knows both servers while rows flow.
//! - [`state`], [`status`], [`metrics`], [`http`]: what others are told. Nothing is decided there.
//! - [`verdict`]: the judgement of a whole run, for tests: what was committed against what arrived.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod backoff;
pub mod cli;
pub mod commands;
pub mod config;
pub mod dead_letters;
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

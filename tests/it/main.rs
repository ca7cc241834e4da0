//! The promises, kept on a real PostgreSQL and a real Kafka by the real binary.
//!
//! The servers are those of `scripts/services up`; `harness` tells how they are found. A test whose
//! name ends in `_on_every_version` looks at what differs between PostgreSQL's major versions, and
//! runs on all of them.

mod harness;

mod brokers;
mod certificates;
mod check;
mod cli;
mod connection;
mod credentials;
mod dead_letters;
mod dead_letters_verbs;
mod faults;
mod formats;
mod hostage;
mod init;
mod kills;
mod limits;
mod mapping;
mod marks;
mod messages;
mod moved;
mod nodes;
mod poison;
mod preview;
mod random_rows;
mod readme;
mod recover;
mod relay;
mod replay;
mod restart;
mod rights;
mod schema;
mod slot;
mod slot_life;
mod standby;
mod status;
mod stream;
mod surroundings;
mod take_over;
mod topics;
mod torture;
mod types;
mod values;

//! The promises, kept on a real PostgreSQL and a real Kafka by the real binary.
//!
//! The servers are those of `scripts/services up`; `harness` tells how they are found.

mod harness;

mod cli;
mod connection;
mod credentials;
mod faults;
mod hostage;
mod init;
mod limits;
mod nodes;
mod poison;
mod recover;
mod relay;
mod restart;
mod slot;
mod standby;
mod status;
mod topics;
mod values;

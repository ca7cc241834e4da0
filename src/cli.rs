//! The command line: commands and flags, nothing of what they do.

pub mod dead_letters;
mod replay;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum, builder::NonEmptyStringValueParser};

pub use replay::Replay;

use crate::{config::parse_duration, lsn::Lsn};

/// Publishes a PostgreSQL outbox table to Kafka from the write-ahead log.
///
/// Ends with 0 done, 1 error, 2 usage or configuration, 3 check found failures, 4 the slot or
/// publication needs the operator, 5 stopped at a record that cannot be delivered, 6 a grace or timeout ended first.
#[derive(Debug, Parser)]
#[command(name = "walpost", version, arg_required_else_help = true)]
pub struct Cli {
    /// The configuration file [default: ./walpost.toml if there is one]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "WALPOST_CONFIG",
        hide_env_values = true
    )]
    pub config: Option<PathBuf>,

    /// How log lines on stderr are written
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        env = "WALPOST_LOG_FORMAT",
        hide_env_values = true,
        default_value = "text"
    )]
    pub log_format: LogFormat,

    /// Which log lines are written
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        env = "WALPOST_LOG_LEVEL",
        hide_env_values = true,
        default_value = "info"
    )]
    pub log_level: LogLevel,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make the publication, the walpost schema and the slot; on what is ready, change nothing
    Init(Init),
    /// After a lost slot: make a new one, then publish what the table holds and the topics lack
    Recover(Recover),
    /// Print the records that would be published next as JSON lines, and move nothing
    Preview(Preview),
    /// Look at PostgreSQL, Kafka and the configuration: what works, what does not, and what mends it
    Check(Check),
    /// Publish until told to stop by SIGTERM or SIGINT; a second one ends at once
    Run,
    /// Show the slot, its lags and the publisher
    Status(Status),
    /// Wait until nothing is unconfirmed; pause the application's writes first
    Drain(Drain),
    /// Events that could not be published: list, show, replay, ignore or resend them
    DeadLetters(Box<dead_letters::DeadLetters>),
    /// Publish rows of an outbox table once more, by time or by number
    ///
    /// They are read from the table in the order of column order_by and marked walpost_replay: replay;
    /// the publisher may go on meanwhile. Rows whose key is held, and dead letters, are left out.
    ///
    /// Ends with 1 when a row could not be published; the others are.
    Replay(Box<Replay>),
    /// Pass exactly one transaction that the server cannot decode, and record it
    Skip(Skip),
    /// Drop the slot and the publication, after showing what is not published
    Uninstall(Uninstall),
}

#[derive(Clone, Debug, Args)]
pub struct Init {
    /// Make the outbox table too, if it is missing
    #[arg(long)]
    pub create_table: bool,

    /// Record a publication that was changed since, after you reviewed it
    #[arg(long)]
    pub accept_publication: bool,

    /// Publish the rows that are in the table already, before those that follow
    #[arg(long)]
    pub include_existing: bool,

    /// Print the SQL and run nothing
    #[arg(long)]
    pub print_sql: bool,

    /// Print only what this one has to run
    #[arg(long = "as", value_name = "WHO", requires = "print_sql")]
    pub print_as: Option<Who>,

    /// Make a slot that is synchronised to standbys (PostgreSQL 17 and later)
    #[arg(long)]
    pub failover: bool,

    /// How long the slot's creation may wait for transactions that are open
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = timeout)]
    pub timeout: Duration,

    /// Print one JSON object at the end
    #[arg(long, conflicts_with = "print_sql")]
    pub json: bool,
}

/// Who has the rights for a part of the set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Who {
    /// A superuser, or from PostgreSQL 16 a role with CREATEROLE and REPLICATION
    Dba,
    /// The owner of the database and of the outbox table
    Owner,
    /// The role that runs walpost
    Walpost,
}

#[derive(Clone, Debug, Args)]
pub struct Recover {
    /// Count what would be published and change nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Make the slot and publish nothing of the gap
    #[arg(long, conflicts_with = "dry_run")]
    pub accept_gap: bool,

    /// How long the slot's creation may wait for transactions that are open
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = timeout)]
    pub timeout: Duration,

    /// Print one JSON object at the end
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct Preview {
    /// Print at most so many [default: all that is waiting now]
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,

    /// Print JSON, which is what it always prints: one object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct Check {
    /// Print one JSON array
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct Status {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// Show it again every two seconds until interrupted
    #[arg(long)]
    pub watch: bool,
}

#[derive(Clone, Debug, Args)]
pub struct Drain {
    /// How long it may take; exit code 6 when that ends first
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = timeout)]
    pub timeout: Duration,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct Skip {
    /// The position of its commit, which `run` names when it is stuck
    #[arg(long, value_name = "LSN")]
    pub transaction: Lsn,

    /// Why, for the record
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub reason: String,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct Uninstall {
    /// Do not ask
    #[arg(long)]
    pub yes: bool,

    /// Drop the schema walpost too, with all bookkeeping
    #[arg(long)]
    pub drop_schema: bool,

    /// Print one JSON object; then nobody is asked, and without --yes nothing is dropped
    #[arg(long)]
    pub json: bool,
}

fn timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("must be more than nothing".into()),
        // PostgreSQL's lock_timeout counts milliseconds in 31 bits.
        longer if longer.as_millis() > i32::MAX as u128 => Err("is at most 24 days".into()),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_flags_may_follow_the_command() {
        let cli =
            Cli::try_parse_from(["walpost", "init", "--log-level", "debug", "--timeout", "5s"])
                .unwrap();
        assert_eq!(cli.log_level, LogLevel::Debug);
        let Command::Init(init) = cli.command else {
            panic!("{:?}", cli.command)
        };
        assert_eq!(init.timeout, Duration::from_secs(5));
        assert!(Cli::try_parse_from(["walpost", "init", "--timeout", "0s"]).is_err());
    }
}

//! `walpost replay`: which rows, and how fast.

use std::num::NonZeroU32;

use clap::{ArgGroup, Args};
use jiff::Timestamp;

use crate::{config::TableName, pg::letters::moment};

#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("range").args(["from", "to", "from_seq", "to_seq"]).required(true).multiple(true))]
pub struct Replay {
    /// The outbox table, as in the configuration
    #[arg(long, value_name = "TABLE", value_parser = TableName::parse)]
    pub table: TableName,

    /// Rows of this time or later, by their column for occurred_at: 2026-01-02T03:04:05Z, a day, or an age such as 2h
    #[arg(long, value_name = "TIME", value_parser = moment, conflicts_with_all = ["from_seq", "to_seq"])]
    pub from: Option<Timestamp>,

    /// Rows before this time
    #[arg(long, value_name = "TIME", value_parser = moment, conflicts_with_all = ["from_seq", "to_seq"])]
    pub to: Option<Timestamp>,

    /// Rows with this number or a higher one, by column order_by
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub from_seq: Option<i64>,

    /// Rows up to and with this number
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub to_seq: Option<i64>,

    /// At most so many rows a second [default: as fast as it goes]
    #[arg(long, value_name = "N/s", value_parser = rate)]
    pub rate: Option<NonZeroU32>,

    /// Count what would be published and publish nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Print one JSON object at the end
    #[arg(long)]
    pub json: bool,
}

fn rate(text: &str) -> Result<NonZeroU32, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    number
        .parse()
        .map_err(|_| format!("`{text}` is no rate: write rows a second, such as 200/s"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(line: &str) -> Option<Box<Replay>> {
        let words = ["walpost", "replay"].into_iter();
        let words = words.chain(line.split_whitespace());
        match Cli::try_parse_from(words).ok()?.command {
            Command::Replay(replay) => Some(replay),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rows_are_named_by_time_or_by_number() {
        let replay =
            parse("--table outbox --from-seq 5 --to-seq 9 --rate 200/s --dry-run").unwrap();
        assert_eq!(
            (
                replay.table.to_string().as_str(),
                replay.from_seq,
                replay.to_seq
            ),
            ("public.outbox", Some(5), Some(9))
        );
        assert_eq!(replay.rate.map(NonZeroU32::get), Some(200));
        for good in [
            "--table s.t --from 2h",
            "--table s.t --to 2026-01-02 --json",
            "--table s.t --from-seq -5",
            "--table s.t --to-seq 5 --rate 1",
        ] {
            assert!(parse(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "--table s.t",
            "--from-seq 5",
            "--table s.t --from 2h --to-seq 5",
            "--table s.t --from-seq 5 --to 2h",
            "--table s.t --from-seq x",
            "--table s.t --from soon",
            "--table s.t.u --from-seq 1",
            "--table s.t --from-seq 1 --rate 0/s",
            "--table s.t --from-seq 1 --rate 5/m",
        ] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}

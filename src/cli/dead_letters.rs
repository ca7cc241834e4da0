//! `walpost dead-letters`: its verbs and how letters are selected.

use clap::{ArgGroup, Args, Subcommand, builder::NonEmptyStringValueParser};
use jiff::Timestamp;

use crate::pg::letters::{Status, moment};

#[derive(Clone, Debug, Args)]
pub struct DeadLetters {
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// List letters, without what belongs to the application unless asked for
    List(List),
    /// Show one letter with its content and what was done to it
    Show(Show),
    /// Publish letters again that are pending or dead
    ///
    /// Of what the selectors name, the pending and dead letters are taken; `--all` is all pending
    /// and dead letters of the slot. Letters that are named by id or --status are each tried,
    /// whatever they are. A held letter follows by itself when the one before it is resolved or ignored.
    ///
    /// Ends with 1 when a letter was refused or none matches.
    Replay(Replay),
    /// Give letters up that are pending, dead or held
    ///
    /// Of what the selectors name, the pending, dead and held letters are taken; `--all` is all of
    /// them in the slot. Letters that are named by id or --status are each tried, whatever they are.
    /// Their events are never published, and rows of their keys that wait behind them follow.
    ///
    /// Ends with 1 when a letter was refused or none matches.
    Ignore(Ignore),
    /// Publish events once more, from their letter or from the outbox table
    ///
    /// Each makes a letter of its own. An event that is held or on its way is refused.
    Resend(Resend),
}

#[derive(Clone, Debug, Args)]
pub struct List {
    #[command(flatten)]
    pub selectors: Selectors,

    /// Print one JSON array, ordered by id, of all that match unless --limit is given
    #[arg(long)]
    pub json: bool,

    /// Add key, headers, payload and raw columns; bytes that aren't UTF-8 as NAME_base64
    #[arg(long, requires = "json")]
    pub payload: bool,
}

#[derive(Clone, Debug, Args)]
pub struct Show {
    #[arg(value_name = "ID")]
    pub id: i64,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
#[command(group = needed())]
pub struct Replay {
    #[command(flatten)]
    pub selectors: Selectors,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
#[command(group = needed())]
pub struct Ignore {
    #[command(flatten)]
    pub selectors: Selectors,

    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub reason: String,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("selection").args(["ids", "event_id"]).required(true).multiple(true))]
pub struct Resend {
    /// Letters whose events are published once more
    #[arg(value_name = "ID")]
    pub ids: Vec<i64>,

    /// An event, also one that has no letter
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub event_id: Option<String>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What was not selected on purpose is not acted on.
fn needed() -> ArgGroup {
    let selectors = [
        "ids", "event_id", "key", "topic", "code", "status", "since", "until", "all",
    ];
    ArgGroup::new("selection")
        .args(selectors)
        .required(true)
        .multiple(true)
}

/// Letters of the configured slot that have all of these.
#[derive(Clone, Debug, Default, Args)]
pub struct Selectors {
    /// Letters by number
    #[arg(value_name = "ID", conflicts_with = "all")]
    pub ids: Vec<i64>,

    /// Letters of this event
    #[arg(long, value_name = "TEXT")]
    pub event_id: Option<String>,

    /// Letters of records with this key
    #[arg(long, value_name = "TEXT")]
    pub key: Option<String>,

    /// Letters for this topic
    #[arg(long, value_name = "NAME")]
    pub topic: Option<String>,

    /// Letters with this error code
    #[arg(long, value_name = "CODE")]
    pub code: Option<String>,

    /// Letters in this state; several with commas
    #[arg(long, value_name = "STATUS", value_delimiter = ',')]
    pub status: Vec<Status>,

    /// Failed (held ones: committed) at this time or later: 2026-01-02T03:04:05Z, a day, or an age such as 2h
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub since: Option<Timestamp>,

    /// Failed (held ones: committed) before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub until: Option<Timestamp>,

    /// All that the verb can act on; of a list, all instead of the first 100
    #[arg(long)]
    pub all: bool,

    /// The first so many by id
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
}

fn reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("say why".into()),
        text => Ok(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(line: &str) -> Option<Verb> {
        let words = ["walpost", "dead-letters"]
            .into_iter()
            .chain(line.split_whitespace());
        match Cli::try_parse_from(words).ok()?.command {
            Command::DeadLetters(letters) => Some(letters.verb),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_is_acted_on_that_was_not_selected() {
        for good in [
            "list",
            "list --status pending,dead --limit 5",
            "list --json --payload 5",
            "show 5",
            "replay 1 2",
            "replay --all --topic t",
            "replay --event-id x --json",
            "ignore --key k --reason because",
            "ignore --since 2h --reason because",
            "resend 5 --event-id x",
        ] {
            assert!(parse(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "show",
            "show 1 2",
            "replay",
            "replay --limit 5",
            "replay x",
            "replay -5",
            "replay 5 --all",
            "replay --status lost",
            "ignore 5",
            "ignore --reason x",
            "resend",
            "resend --all",
            "list --payload",
            "list --limit 0",
            "list --since soon",
        ] {
            assert!(parse(bad).is_none(), "{bad}");
        }
        let words = ["walpost", "dead-letters", "ignore", "5", "--reason", " "];
        assert!(Cli::try_parse_from(words).is_err());
    }
}

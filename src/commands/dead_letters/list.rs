//! `walpost dead-letters list`.

use std::io::{self, Write};

use anyhow::Context as _;
use comfy_table::{Table, presets};
use jiff::Timestamp;

use super::Desk;
use crate::{
    cli::dead_letters::List,
    error::{Exit, Stop},
    pg::letters::{Letter, Listed, page},
    stop,
};

/// A table for people ends after so many unless more is asked for.
const SHORT: u64 = 100;

impl Desk {
    pub(super) async fn list(&self, options: &List) -> anyhow::Result<Exit> {
        let mut selection = self.selection(&options.selectors);
        let asked = options.selectors.all || !options.selectors.ids.is_empty();
        let short = !options.json && selection.limit.is_none() && !asked;
        if short {
            // One more tells whether that is all.
            selection.limit = Some(SHORT + 1);
        }
        let mut out = Out::new(options.json);
        let (mut after, mut so_far) = (0, 0);
        let mut unseen = options.selectors.ids.clone();
        loop {
            let letters = page(&self.client, &selection, options.payload, after, so_far)
                .await
                .map_err(|error| self.trouble(error))?;
            let Some(last) = letters.last() else { break };
            (after, so_far) = (last.letter.id, so_far + letters.len() as u64);
            unseen.retain(|id| !letters.iter().any(|found| found.letter.id == *id));
            for letter in &letters {
                if !(short && out.listed == SHORT) {
                    out.add(letter).context("write to stdout")?;
                }
            }
        }
        out.end().context("write to stdout")?;
        if short && so_far > SHORT {
            tracing::info!("these are the first {SHORT}; --all lists all, --limit another number");
        }
        // With a limit the rest was not looked for.
        match selection.limit {
            None => self.known(&unseen).map(|()| Exit::Done).map_err(Into::into),
            Some(_) => Ok(Exit::Done),
        }
    }

    /// Ids that were named and not found are an error.
    fn known(&self, unseen: &[i64]) -> Result<(), Stop> {
        if unseen.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = unseen.iter().map(i64::to_string).collect();
        Err(stop!(
            Exit::Error,
            "slot {} has no such dead letter: {}",
            self.slot,
            ids.join(", ")
        ))
    }
}

/// A JSON array that is written as it comes, or a table.
struct Out {
    json: bool,
    listed: u64,
    table: Table,
}

impl Out {
    fn new(json: bool) -> Out {
        Out {
            json,
            listed: 0,
            table: head(),
        }
    }

    fn add(&mut self, listed: &Listed) -> io::Result<()> {
        let first = self.listed == 0;
        self.listed += 1;
        if !self.json {
            self.table.add_row(row(&listed.letter));
            return Ok(());
        }
        let before = if first { "[\n" } else { ",\n" };
        write!(
            io::stdout().lock(),
            "{before}{}",
            serde_json::to_string(listed)?
        )
    }

    fn end(self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match (self.json, self.listed) {
            (true, 0) => writeln!(out, "[]"),
            (true, _) => writeln!(out, "\n]"),
            (false, 0) => writeln!(out, "no dead letters"),
            (false, _) => writeln!(out, "{}", self.table.trim_fmt()),
        }
    }
}

fn head() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "ID", "STATUS", "EVENT", "TOPIC", "POSITION", "ERROR", "ATTEMPTS", "FAILED", "NEXT",
    ]);
    table
}

fn row(letter: &Letter) -> [String; 9] {
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    [
        letter.id.to_string(),
        letter.status.clone(),
        text(&letter.event_id),
        letter.topic.clone(),
        position(letter).unwrap_or_else(|| "-".into()),
        text(
            &letter
                .error_code
                .clone()
                .or_else(|| letter.error_class.clone()),
        ),
        letter.attempts.to_string(),
        seconds(letter.first_failed_at).unwrap_or_else(|| "-".into()),
        next(letter),
    ]
}

/// Commit LSN and ordinal, as header `wal_position` has them.
pub(super) fn position(letter: &Letter) -> Option<String> {
    Some(format!(
        "{}:{}",
        letter.position_lsn?, letter.position_ordinal?
    ))
}

pub(super) fn seconds(at: Option<Timestamp>) -> Option<String> {
    at.map(|at| format!("{at:.0}"))
}

/// What happens to it next, or by whom it was acted on.
pub(super) fn next(letter: &Letter) -> String {
    if let Some(at) = seconds(letter.next_retry_at) {
        return format!("retry at {at}");
    }
    match (letter.status.as_str(), letter.held_behind, &letter.acted_by) {
        ("held", Some(behind), _) => format!("behind {behind}"),
        ("pending" | "dead", _, _) => "replay or ignore".into(),
        (_, _, Some(who)) => format!("by {who}"),
        _ => "-".into(),
    }
}

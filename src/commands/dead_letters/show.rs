//! `walpost dead-letters show`.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use anyhow::Context as _;
use bytesize::ByteSize;
use serde::Serialize;
use serde_json::Value;

use super::{
    Desk,
    list::{position, seconds},
};
use crate::{
    cli::dead_letters::Show,
    error::Exit,
    pg::letters::{Content, Deed, Listed, deeds, one},
    stop,
};

/// Longest value that is shown to people, in characters.
const LONGEST: usize = 2000;

/// The letter's columns, and what was done to it.
#[derive(Serialize)]
struct Shown {
    letter: Listed,
    audit_log: Vec<Deed>,
}

impl Desk {
    pub(super) async fn show(&self, options: &Show) -> anyhow::Result<Exit> {
        let found = one(&self.client, &self.slot, options.id, true).await;
        let Some(letter) = found.map_err(|error| self.trouble(error))? else {
            let slot = &self.slot;
            return Err(stop!(Exit::Error, "slot {slot} has no dead letter {}", options.id).into());
        };
        let audit_log = deeds(&self.client, options.id).await;
        let audit_log = audit_log.map_err(|error| self.trouble(error))?;
        let shown = Shown { letter, audit_log };
        let text = match options.json {
            true => serde_json::to_string(&shown)?,
            false => human(&shown),
        };
        writeln!(io::stdout(), "{text}").context("write to stdout")?;
        Ok(Exit::Done)
    }
}

fn human(shown: &Shown) -> String {
    let Listed { letter, content } = &shown.letter;
    let mut text = String::new();
    let mut row = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{name:<14} {value}");
        }
    };
    row("dead letter", Some(letter.id.to_string()));
    row("status", Some(letter.status.clone()));
    row(
        "waits behind",
        letter
            .held_behind
            .filter(|_| letter.status == "held")
            .map(|id| id.to_string()),
    );
    row("next retry", seconds(letter.next_retry_at));
    row("event", letter.event_id.clone());
    row("outbox", Some(letter.outbox.clone()));
    row("position", position(letter));
    row("committed", seconds(letter.committed_at));
    row("topic", Some(letter.topic.clone()));
    row(
        "partition",
        letter.partition.map(|partition| partition.to_string()),
    );
    let words = [&letter.error_class, &letter.error_code];
    let words: Vec<&str> = words.iter().filter_map(|word| word.as_deref()).collect();
    row("error", Some(words.join(" ")));
    row("", letter.error_text.clone());
    row("attempts", Some(letter.attempts.to_string()));
    row("first failed", seconds(letter.first_failed_at));
    row("last failed", seconds(letter.last_failed_at));
    for deed in &shown.audit_log {
        let detail = deed.detail.as_ref().and_then(|detail| detail.get("reason"));
        let reason = detail.and_then(Value::as_str).map(|why| format!(": {why}"));
        let at = seconds(Some(deed.at)).unwrap_or_default();
        let (verb, who) = (&deed.verb, &deed.who);
        row(
            "done",
            Some(format!(
                "{verb} by {who} at {at}{}",
                reason.unwrap_or_default()
            )),
        );
    }
    if let Some(Content {
        key,
        headers,
        payload,
        raw,
    }) = content
    {
        row("key", key.as_deref().map(shortened));
        for header in headers.as_array().into_iter().flatten() {
            row("header", Some(header.to_string()));
        }
        row("payload", payload.as_deref().map(shortened));
        for (column, value) in raw.as_object().into_iter().flatten() {
            let value = shortened(value.to_string().as_bytes());
            row("column", Some(format!("{column} = {value}")));
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// The start of long values; bytes that aren't text by their number.
fn shortened(bytes: &[u8]) -> String {
    let size = ByteSize(bytes.len() as u64);
    match std::str::from_utf8(bytes) {
        Err(_) => format!("{size} that are not UTF-8; --json shows them"),
        Ok(text) => match text.char_indices().nth(LONGEST) {
            None => text.into(),
            Some((end, _)) => format!("{} … ({size}; --json shows all)", &text[..end]),
        },
    }
}

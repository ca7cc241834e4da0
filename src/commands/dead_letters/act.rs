//! `walpost dead-letters replay`, `ignore` and `resend`.

use std::io::{self, Write};

use anyhow::Context as _;
use serde::Serialize;

use super::Desk;
use crate::{
    cli::dead_letters::{Ignore, Replay, Resend, Selectors},
    error::Exit,
    pg::letters::{Outcome, Selection, Status, Verb, act, ids, one},
    stop,
};

/// What came of each letter.
#[derive(Debug, Default, Serialize)]
struct Report {
    done: Vec<Done>,
    refused: Vec<Refused>,
    #[serde(skip)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Done {
    id: i64,
    status: String,
}

#[derive(Debug, Serialize)]
struct Refused {
    /// `null`: an event without a letter.
    id: Option<i64>,
    error: String,
}

impl Report {
    fn new(json: bool) -> Report {
        Report {
            json,
            ..Report::default()
        }
    }

    fn done(&mut self, id: i64, status: String) -> anyhow::Result<()> {
        if !self.json {
            writeln!(io::stdout(), "dead letter {id}: {status}").context("write to stdout")?;
        }
        self.done.push(Done { id, status });
        Ok(())
    }

    fn refused(&mut self, id: Option<i64>, error: String) {
        tracing::error!("{error}");
        self.refused.push(Refused { id, error });
    }

    fn outcome(&mut self, id: Option<i64>, outcome: Outcome) -> anyhow::Result<()> {
        match outcome {
            Outcome::Done { id, status } => self.done(id, status),
            Outcome::Refused(refusal) => {
                self.refused(id, refusal.text);
                Ok(())
            }
        }
    }

    fn end(self) -> anyhow::Result<Exit> {
        if self.json {
            writeln!(io::stdout(), "{}", serde_json::to_string(&self)?)
                .context("write to stdout")?;
        }
        match self.refused.len() {
            0 => Ok(Exit::Done),
            _ => Ok(Exit::Error),
        }
    }
}

impl Desk {
    pub(super) async fn replay(&self, options: &Replay) -> anyhow::Result<Exit> {
        let mut report = Report::new(options.json);
        let letters = self
            .letters(&options.selectors, Verb::REPLAYED, &mut report)
            .await?;
        for id in letters {
            self.act(Verb::Replay(id), Some(id), &mut report).await?;
        }
        report.end()
    }

    pub(super) async fn ignore(&self, options: &Ignore) -> anyhow::Result<Exit> {
        let mut report = Report::new(options.json);
        let letters = self
            .letters(&options.selectors, Verb::IGNORED, &mut report)
            .await?;
        for id in letters {
            let verb = Verb::Ignore(id, &options.reason);
            self.act(verb, Some(id), &mut report).await?;
        }
        report.end()
    }

    pub(super) async fn resend(&self, options: &Resend) -> anyhow::Result<Exit> {
        let mut report = Report::new(options.json);
        for &id in &options.ids {
            let found = one(&self.client, &self.slot, id, false).await;
            match found.map_err(|error| self.trouble(error))? {
                None => report.refused(Some(id), self.no_letter(id)),
                Some(found) => match &found.letter.event_id {
                    None => report.refused(
                        Some(id),
                        format!("dead letter {id} cannot be resent: its event has no id"),
                    ),
                    Some(event) => self.act(Verb::Resend(event), Some(id), &mut report).await?,
                },
            }
        }
        if let Some(event) = &options.event_id {
            self.act(Verb::Resend(event), None, &mut report).await?;
        }
        report.end()
    }

    async fn act(
        &self,
        verb: Verb<'_>,
        id: Option<i64>,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let outcome = act(&self.client, verb).await;
        report.outcome(id, outcome.map_err(|error| self.trouble(error))?)
    }

    fn no_letter(&self, id: i64) -> String {
        format!("slot {} has no such dead letter: {id}", self.slot)
    }

    /// The letters to try: those named by id or status whatever they are, otherwise those that the
    /// verb can act on. When the selectors name only others, these are tried, so that it is told
    /// what they are.
    async fn letters(
        &self,
        selectors: &Selectors,
        able: &[Status],
        report: &mut Report,
    ) -> anyhow::Result<Vec<i64>> {
        let mut selection = self.selection(selectors);
        let named = !selectors.ids.is_empty() || !selectors.status.is_empty();
        if !named {
            selection.statuses = Some(able.to_vec());
        }
        let mut found = self.ids(&selection).await?;
        if selectors.all {
            return Ok(found);
        }
        if found.is_empty() && !named {
            selection.statuses = None;
            found = self.ids(&selection).await?;
        }
        // With a limit the rest was not looked for.
        let unseen = |id: &&i64| selection.limit.is_none() && !found.contains(*id);
        for id in selectors.ids.iter().filter(unseen) {
            report.refused(Some(*id), self.no_letter(*id));
        }
        if found.is_empty() && selectors.ids.is_empty() {
            let slot = &self.slot;
            return Err(stop!(Exit::Error, "slot {slot} has no dead letter that matches").into());
        }
        Ok(found)
    }

    async fn ids(&self, selection: &Selection) -> anyhow::Result<Vec<i64>> {
        ids(&self.client, selection)
            .await
            .map_err(|error| self.trouble(error))
    }
}

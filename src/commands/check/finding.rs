//! What was found, one line each.

use std::io::{self, Write as _};

use anyhow::Context as _;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Pass,
    /// It works, and may do harm.
    Warn,
    /// It does not work.
    Fail,
}

/// The message stands for itself; the subject is for filters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable, one for each kind of finding.
    pub id: &'static str,
    pub level: Level,
    /// Whom it concerns: a slot, a table, a topic, a key of the configuration.
    pub subject: String,
    pub message: String,
    /// What mends it; always there on a failure.
    pub fix: Option<String>,
}

impl Finding {
    /// As one line for people.
    fn line(&self) -> String {
        let level = match self.level {
            Level::Pass => "pass",
            Level::Warn => "warn",
            Level::Fail => "fail",
        };
        let fix = match &self.fix {
            Some(fix) => format!("; to mend it: {fix}"),
            None => String::new(),
        };
        // A server's message may have lines of its own.
        format!("{level}  {}{fix}", self.message).replace('\n', " ")
    }
}

/// All that was found. For people each line is printed at once, because a server that does not
/// answer takes time.
pub struct Findings {
    json: bool,
    found: Vec<Finding>,
    printed: io::Result<()>,
}

impl Findings {
    pub fn new(json: bool) -> Findings {
        Findings {
            json,
            found: Vec::new(),
            printed: Ok(()),
        }
    }

    fn add(&mut self, finding: Finding) {
        if !self.json && self.printed.is_ok() {
            self.printed = writeln!(io::stdout(), "{}", finding.line());
        }
        self.found.push(finding);
    }

    pub fn pass(&mut self, id: &'static str, subject: &str, message: impl Into<String>) {
        self.add(Finding {
            id,
            level: Level::Pass,
            subject: subject.into(),
            message: message.into(),
            fix: None,
        });
    }

    pub fn warn(&mut self, id: &'static str, subject: &str, message: impl Into<String>, fix: &str) {
        self.add(Finding {
            id,
            level: Level::Warn,
            subject: subject.into(),
            message: message.into(),
            fix: Some(fix.into()),
        });
    }

    pub fn fail(&mut self, id: &'static str, subject: &str, message: impl Into<String>, fix: &str) {
        self.add(Finding {
            id,
            level: Level::Fail,
            subject: subject.into(),
            message: message.into(),
            fix: Some(fix.into()),
        });
    }

    /// An error that says what to do about it.
    pub fn error(&mut self, id: &'static str, subject: &str, error: &impl std::fmt::Display) {
        let (message, fix) = split(&error.to_string());
        self.fail(id, subject, message, &fix);
    }

    /// A warning that says what to do about it.
    pub fn warning(&mut self, id: &'static str, subject: &str, warning: &str) {
        let (message, fix) = split(warning);
        self.warn(id, subject, message, &fix);
    }

    /// The error, or that all is well.
    pub fn judge<T, E: std::fmt::Display>(
        &mut self,
        id: &'static str,
        subject: &str,
        result: Result<T, E>,
        well: impl FnOnce(&T) -> String,
    ) -> Option<T> {
        match result {
            Ok(value) => {
                let message = well(&value);
                self.pass(id, subject, message);
                Some(value)
            }
            Err(error) => {
                self.error(id, subject, &error);
                None
            }
        }
    }

    /// Prints what is not printed yet; `true`: something does not work.
    pub fn end(self) -> anyhow::Result<bool> {
        self.printed.context("write to stdout")?;
        if self.json {
            let text = serde_json::to_string(&self.found)?;
            writeln!(io::stdout(), "{text}").context("write to stdout")?;
        }
        Ok(self.found.iter().any(|one| one.level == Level::Fail))
    }
}

/// An error's text in two: what is wrong, and what to do, which is the part with the first command
/// or key in back-quotes, or else the last one.
pub fn split(text: &str) -> (String, String) {
    const MARKS: [&str; 3] = [": ", "; ", ". "];
    let last_mark = |part: &str| {
        let marks = MARKS.iter().filter_map(|mark| part.rfind(mark));
        marks.max().map(|at| at + 2)
    };
    let quotes = text.match_indices('`').step_by(2).map(|(at, _)| at);
    let mut parts = quotes.map(|at| &text[..at]).chain([text]);
    match parts.find_map(last_mark) {
        Some(at) => {
            let message = text[..at].trim_end().trim_end_matches([':', ';', '.']);
            (message.into(), text[at..].into())
        }
        None => (text.into(), text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::{
        schema,
        slot::tests::{facts, good, names},
        verdict::{not_waited_for, possible_failover, recover, verdict},
    };

    #[test]
    fn an_error_is_split_before_its_advice() {
        for (text, message, fix) in [
            (
                "x is gone: run `walpost init`",
                "x is gone",
                "run `walpost init`",
            ),
            (
                "x is gone. It was there. Run `a`; `b` counts them",
                "x is gone. It was there",
                "Run `a`; `b` counts them",
            ),
            (
                "p leaves it out: `ALTER`; y",
                "p leaves it out",
                "`ALTER`; y",
            ),
            (
                "it is not as `init` left it: moved. `recover` mends it",
                "it is not as `init` left it: moved",
                "`recover` mends it",
            ),
            ("a: b; name it", "a: b", "name it"),
        ] {
            assert_eq!(split(text), (message.into(), fix.into()));
        }
    }

    #[test]
    fn what_is_wrong_with_a_slot_has_its_own_fix() {
        let with = |pointer: &str, value: serde_json::Value| {
            let mut facts = good();
            *facts.pointer_mut(pointer).expect("a fact") = value;
            serde_json::from_value(facts).expect("facts")
        };
        let null = serde_json::Value::Null;
        let yes = serde_json::Value::from(true);
        for (facts, says, mends) in [
            (
                with("/record", null.clone()),
                "never initialised",
                "run `walpost init`",
            ),
            (
                with("/record/state", "creating".into()),
                "half-made",
                "run `walpost init`",
            ),
            (with("/slot", null.clone()), "is missing", recover()),
            (
                with("/slot/plugin", "x".into()),
                "another program",
                "choose another name (`postgres.slot`)",
            ),
            (
                with("/slot/wal_status", "lost".into()),
                "is lost",
                recover(),
            ),
            (
                with("/tables/0/table", null.clone()),
                "does not exist",
                "set `outbox.table`",
            ),
            (
                with("/publication", null),
                "is missing",
                "set `postgres.publication`",
            ),
            (
                with("/publication/insert", false.into()),
                "leaves out inserts",
                "`ALTER PUBLICATION",
            ),
            (
                with("/tables/0/table/columns", serde_json::json!([])),
                "no columns",
                "add them, or map others in its `[[outbox]]`",
            ),
            (
                with("/tables/0/published/names_table", false.into()),
                "does not cover",
                "`ALTER PUBLICATION",
            ),
            (
                with("/tables/0/published/filter", "(x > 1)".into()),
                "row filter",
                "`BEGIN; ALTER",
            ),
            (
                with("/tables/0/published/fingerprint", yes),
                "dropped and made again",
                "`walpost recover` publishes",
            ),
            (
                with("/schema_version", (schema::VERSION - 1).into()),
                "has version",
                "run `walpost init`",
            ),
        ] {
            let stop = verdict(&facts, &names()).expect_err(says);
            let (message, fix) = split(&stop.to_string());
            assert!(message.contains(says), "{message}");
            assert!(fix.starts_with(mends), "{fix}");
        }
        let synchronous = with("/holder/sync_state", "sync".into());
        let stop = not_waited_for(&synchronous, &names()).expect_err("it is waited for");
        assert!(
            split(&stop.to_string())
                .1
                .starts_with("name the real standbys")
        );
        let mut wanted = names();
        wanted.failover = true;
        let stop = possible_failover(&facts(), &wanted).expect_err("it is old");
        assert_eq!(split(&stop.to_string()).1, "set failover_slot = false");
    }
}

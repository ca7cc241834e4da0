//! What a command prints on stdout: lines for people, or with `--json` one object.

use std::io::{self, Write};

use anyhow::Context as _;
use serde::Serialize;

/// Where the lines go while a command works.
#[derive(Clone, Copy)]
pub struct Out {
    json: bool,
}

impl Out {
    pub fn new(json: bool) -> Out {
        Out { json }
    }

    /// A line for people. With `--json` stdout is the object's alone, and the line goes to the log.
    pub fn say(self, line: &str) -> anyhow::Result<()> {
        match self.json {
            true => {
                tracing::info!("{line}");
                Ok(())
            }
            false => print(line),
        }
    }

    /// What all the lines say together, with `--json` alone.
    pub fn object(self, facts: &impl Serialize) -> anyhow::Result<()> {
        match self.json {
            true => print(&serde_json::to_string(facts)?),
            false => Ok(()),
        }
    }
}

fn print(line: &str) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{line}").context("write to stdout")
}

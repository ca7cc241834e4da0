//! Reads the configuration: file, then environment. Flags come on top and are the command line's.
//!
//! The file is parsed into a tree that keeps each value's place; variables are laid over that
//! tree; then serde reads it. So one set of types checks both, and an error names the line and
//! column, or the variable.

use std::{fs, io, path::Path};

use serde_path_to_error::Segment;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    Config, Env, Problem,
    origins::{Setting, settings},
    variables::{OUTSIDE, PREFIX, Variable, variables},
};
use crate::{
    error::{Exit, Stop},
    stop,
};

const DEFAULT_FILE: &str = "walpost.toml";

/// Reads `file`, or `./walpost.toml` if present, and lays the environment over it. Every error is
/// `Exit::Usage` and names the place: `file:line:column` or a variable.
pub fn load(file: Option<&Path>, env: &Env) -> Result<Config, Stop> {
    load_with_origins(file, env).map(|(config, _)| config)
}

/// The same, and where each value came from.
pub fn load_with_origins(file: Option<&Path>, env: &Env) -> Result<(Config, Vec<Setting>), Stop> {
    let path = file.unwrap_or(Path::new(DEFAULT_FILE));
    let name = path.display();
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound && file.is_none() => Vec::new(),
        Err(error) => {
            return Err(stop!(
                Exit::Usage,
                "cannot read the configuration file {name}: {error}"
            ));
        }
    };
    match std::str::from_utf8(&bytes) {
        Ok(text) => read(
            &Source {
                name: name.to_string(),
                text,
            },
            env,
        ),
        Err(error) => {
            let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let source = Source {
                name: name.to_string(),
                text: &good,
            };
            Err(stop!(
                Exit::Usage,
                "{}: not UTF-8",
                source.place(good.len())
            ))
        }
    }
}

/// The file's name and text.
pub(super) struct Source<'s> {
    name: String,
    text: &'s str,
}

impl Source<'_> {
    /// `file:line:column`; both count from 1, columns in characters.
    pub fn place(&self, offset: usize) -> String {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before
            .rsplit('\n')
            .next()
            .unwrap_or_default()
            .chars()
            .count()
            + 1;
        format!("{}:{line}:{column}", self.name)
    }
}

fn read(source: &Source, env: &Env) -> Result<(Config, Vec<Setting>), Stop> {
    let file = DeTable::parse(source.text).map_err(|error| {
        let offset = error.span().map_or(source.text.len(), |span| span.start);
        stop!(Exit::Usage, "{}: {}", source.place(offset), error.message())
    })?;
    let mut variables = variables(env, file.get_ref())?;
    loop {
        let mut root = file.clone();
        for variable in &variables {
            variable
                .lay(root.get_mut())
                .map_err(|why| stop!(Exit::Usage, "{}: {why}", variable.name))?;
        }
        let origins = root.clone();
        let error =
            match serde_path_to_error::deserialize::<_, Config>(toml::Deserializer::from(root)) {
                Ok(config) => {
                    let place = |problem| {
                        stop!(
                            Exit::Usage,
                            "{}",
                            at(problem, origins.get_ref(), source, &variables)
                        )
                    };
                    config.check().map_err(place)?;
                    let settings = settings(origins.get_ref(), source, &variables);
                    return Ok((config, settings));
                }
                Err(error) => error,
            };
        let path: Vec<String> = error.path().iter().filter_map(segment).collect();
        let span = error.inner().span();
        let message = error.inner().message();
        let from_file = span.clone().is_some_and(|span| span != OUTSIDE);
        let Some(variable) = variables
            .iter_mut()
            .find(|variable| !from_file && variable.concerns(&path))
        else {
            let place = source.place(span.map_or(0, |span| span.start));
            let hint = nearest(message)
                .map(|name| format!("; did you mean `{name}`?"))
                .unwrap_or_default();
            return Err(stop!(
                Exit::Usage,
                "{place}: {}{hint}",
                with_path(&path, message)
            ));
        };
        if !variable.text && path.starts_with(&variable.path) {
            variable.text = true;
            variable.refused = Some(message.to_string());
            continue;
        }
        let message = variable.refused.as_deref().unwrap_or(message);
        let hint = nearest(message).map(|name| {
            let mut parts = variable.path.clone();
            match path.len() {
                n if (1..=parts.len()).contains(&n) && message.contains("unknown field") => {
                    parts[n - 1] = name.into();
                    format!(
                        "; did you mean `{PREFIX}{}`?",
                        parts.join("__").to_uppercase()
                    )
                }
                _ => format!("; did you mean `{name}`?"),
            }
        });
        return Err(stop!(
            Exit::Usage,
            "{}: {}{}",
            variable.name,
            with_path(&path, message),
            hint.unwrap_or_default()
        ));
    }
}

fn segment(segment: &Segment) -> Option<String> {
    match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } | Segment::Enum { variant: key } => Some(key.clone()),
        Segment::Unknown => None,
    }
}

fn with_path(path: &[String], message: &str) -> String {
    if path.is_empty() {
        message.to_string()
    } else {
        format!("{}: {message}", path.join("."))
    }
}

/// The names that serde lists after "expected", in back-quotes.
pub(super) fn candidates(message: &str) -> impl Iterator<Item = &str> {
    let list = message
        .split_once(", expected ")
        .map_or("", |(_, list)| list);
    list.split('`').skip(1).step_by(2)
}

/// The known name nearest to the unknown one that serde's message begins with.
fn nearest(message: &str) -> Option<&str> {
    let unknown = message
        .strip_prefix("unknown field `")
        .or_else(|| message.strip_prefix("unknown variant `"))?;
    let unknown = unknown.split('`').next()?;
    let alike = |name: &str| strsim::jaro(&unknown.replace('_', "-"), &name.replace('_', "-"));
    let best = candidates(message).max_by(|a, b| alike(a).total_cmp(&alike(b)))?;
    (alike(best) > 0.7).then_some(best)
}

/// A problem found after reading, with the place its value came from.
fn at(problem: Problem, root: &DeTable, source: &Source, variables: &[Variable]) -> String {
    // The name of a property has dots of its own.
    let property = ["properties", "property_files"]
        .into_iter()
        .find_map(|table| {
            let name = problem.path.strip_prefix(&format!("kafka.{table}."))?;
            Some(["kafka", table, name].map(String::from).to_vec())
        });
    let parts: Vec<String> =
        property.unwrap_or_else(|| problem.path.split('.').map(String::from).collect());
    if let Some(variable) = variables
        .iter()
        .find(|variable| parts.starts_with(&variable.path))
    {
        return format!("{}: {problem}", variable.name);
    }
    let mut parts = parts.iter();
    let mut value = parts.next().and_then(|part| root.get(part.as_str()));
    for part in parts {
        value = value.and_then(|value| match value.get_ref() {
            DeValue::Table(table) => table.get(part.as_str()),
            DeValue::Array(items) => part.parse().ok().and_then(|index: usize| items.get(index)),
            _ => None,
        });
    }
    match value.map(Spanned::span) {
        Some(span) if span != OUTSIDE => format!("{}: {problem}", source.place(span.start)),
        _ => format!("configuration: {problem}"),
    }
}

#[cfg(test)]
mod tests;

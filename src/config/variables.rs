//! Environment variables that set keys: which names exist, and how they are laid over the file's
//! tree.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue},
};

use super::{Config, Env, layers::candidates};
use crate::{
    error::{Exit, Stop},
    stop,
};

pub const PREFIX: &str = "WALPOST_";
/// Names without `__` that the command line reads.
const FLAGS: [&str; 3] = ["WALPOST_CONFIG", "WALPOST_LOG_LEVEL", "WALPOST_LOG_FORMAT"];
/// The place of what a variable put into the tree.
pub const OUTSIDE: Range<usize> = usize::MAX..usize::MAX;

/// A variable that sets a key.
pub struct Variable<'e> {
    pub name: &'e str,
    pub path: Vec<String>,
    value: &'e str,
    /// Not a TOML value, or one that its key doesn't take.
    pub text: bool,
    /// Why its key did not take it as a TOML value.
    pub refused: Option<String>,
}

impl<'e> Variable<'e> {
    fn new(name: &'e str, path: &[&str], value: &'e str) -> Self {
        let mut path: Vec<String> = path.iter().map(|part| part.to_lowercase()).collect();
        // A property's dots cannot be written in a variable's name, and its value is always text
        // (a password `1_000` must not become a number).
        let property = path.len() == 3
            && path[0] == "kafka"
            && matches!(path[1].as_str(), "properties" | "property_files");
        if property {
            path[2] = path[2].replace('_', ".");
        }
        Variable {
            name,
            path,
            value,
            text: property || DeValue::parse(value).is_err(),
            refused: None,
        }
    }

    fn value(&self) -> Spanned<DeValue<'e>> {
        let value = match DeValue::parse(self.value) {
            Ok(value) if !self.text => value.into_inner(),
            _ => DeValue::String(self.value.into()),
        };
        Spanned::new(OUTSIDE, outside(value))
    }

    /// Whether `path` is this key, holds it or is inside it.
    pub fn concerns(&self, path: &[String]) -> bool {
        self.path.iter().zip(path).all(|(a, b)| a == b)
    }

    /// Lays it over the tree.
    pub fn lay(&self, root: &mut DeTable<'e>) -> Result<(), String> {
        let mut table = root;
        let (key, parents) = self.path.split_last().expect("a name has two parts");
        let mut parents = parents.iter();
        while let Some(part) = parents.next() {
            let is_list = part == "outbox";
            let fresh = if is_list {
                DeValue::Array(DeArray::new())
            } else {
                DeValue::Table(DeTable::new())
            };
            let value = table
                .entry(Spanned::new(OUTSIDE, part.clone().into()))
                .or_insert(Spanned::new(OUTSIDE, fresh));
            table =
                match value.get_mut() {
                    DeValue::Table(inner) => inner,
                    DeValue::Array(items) if is_list => match parents.next() {
                        Some(index) => item(items, index)?,
                        None => return Err(
                            "write the table's number and the key, as in WALPOST_OUTBOX__0__TABLE"
                                .into(),
                        ),
                    },
                    _ => return Err(format!("`{part}` is not a table in the configuration file")),
                };
        }
        // Without its old key, whose place would be the file's.
        table.remove(key.as_str());
        table.insert(Spanned::new(OUTSIDE, key.clone().into()), self.value());
        Ok(())
    }
}

/// A TOML value whose parts all have the place of a variable.
fn outside<'v>(value: DeValue<'v>) -> DeValue<'v> {
    let again = |value: Spanned<DeValue<'v>>| Spanned::new(OUTSIDE, outside(value.into_inner()));
    match value {
        DeValue::Array(items) => DeValue::Array(items.into_iter().map(again).collect()),
        DeValue::Table(items) => DeValue::Table(
            items
                .into_iter()
                .map(|(key, value)| (Spanned::new(OUTSIDE, key.into_inner()), again(value)))
                .collect(),
        ),
        scalar => scalar,
    }
}

/// The variables that set keys, and the two that many programs share. A name that no flag and no
/// key can have is an error.
pub fn variables<'e>(env: &'e Env, file: &DeTable) -> Result<Vec<Variable<'e>>, Stop> {
    let mut variables = Vec::new();
    for name in env
        .names()
        .filter(|name| name.starts_with(PREFIX) && !FLAGS.contains(name))
    {
        let parts: Vec<&str> = name[PREFIX.len()..].split("__").collect();
        let upper = !name.contains(|c: char| c.is_lowercase());
        if parts.len() < 2 || parts.iter().any(|part| part.is_empty()) || !upper {
            return Err(unknown_variable(name));
        }
        if let Some(value) = env.get(name)? {
            variables.push(Variable::new(name, &parts, value));
        }
    }
    for (name, section, key) in [
        ("DATABASE_URL", "postgres", "url"),
        ("KAFKA_BROKERS", "kafka", "brokers"),
    ] {
        let in_file = file.get(section).and_then(|value| value.get_ref().get(key));
        let set = in_file.is_some_and(|value| value.get_ref().as_str() != Some(""))
            || variables
                .iter()
                .any(|variable| variable.path == [section, key] && !variable.value.is_empty());
        if !set && let Some(value) = env.filled(name)? {
            variables.push(Variable {
                text: true,
                ..Variable::new(name, &[section, key], value)
            });
        }
    }
    Ok(variables)
}

fn unknown_variable(name: &str) -> Stop {
    let rest = name[PREFIX.len()..].to_uppercase();
    let flags = FLAGS
        .iter()
        .map(|flag| (flag.to_string(), vec![flag[PREFIX.len()..].to_string()]));
    let keys = known_keys().into_iter().map(|path| {
        let path: Vec<String> = path.iter().map(|part| part.to_uppercase()).collect();
        let spellings = path
            .last()
            .cloned()
            .into_iter()
            .chain([path.join("_"), path.join("__")])
            .collect();
        (format!("{PREFIX}{}", path.join("__")), spellings)
    });
    let score = |spellings: &[String]| {
        spellings
            .iter()
            .map(|s| strsim::jaro(s, &rest))
            .fold(0.0, f64::max)
    };
    let best = flags
        .chain(keys)
        .map(|(full, spellings)| (score(&spellings), full))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = match best {
        Some((score, full)) if score > 0.7 => format!("did you mean `{full}`?"),
        _ => {
            format!("a key's variable is {PREFIX}<SECTION>__<KEY>, such as {PREFIX}POSTGRES__SLOT")
        }
    };
    // Kubernetes describes a Service to the pods beside it: WALPOST_SERVICE_HOST, WALPOST_PORT_….
    let service = rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_");
    let hint = if service {
        "a Kubernetes Service named walpost? set enableServiceLinks: false".into()
    } else {
        hint
    };
    stop!(Exit::Usage, "{name}: unknown variable; {hint}")
}

/// Every key that a variable can name, asked from the types themselves: an impossible key makes
/// serde list the possible ones.
fn known_keys() -> Vec<Vec<String>> {
    let fields = |document: &str| {
        let error = toml::from_str::<Config>(document).expect_err("`?` is no key");
        candidates(error.message())
            .map(String::from)
            .collect::<Vec<_>>()
    };
    let inner = ["dead_letters".to_string(), "guard".into()];
    let mut tables: Vec<Vec<String>> = fields("\"?\" = 0")
        .into_iter()
        .map(|name| vec![name])
        .collect();
    tables.push(inner.to_vec());
    let keys = tables.into_iter().flat_map(|mut table| {
        let mut header = format!("[{}]", table.join("."));
        if table == ["outbox"] {
            header = "[[outbox]]".into();
            table.push("0".into());
        }
        fields(&format!("{header}\n\"?\" = 0"))
            .into_iter()
            .map(move |key| [table.clone(), vec![key]].concat())
    });
    keys.collect()
}

/// The list's table of this number; the next free one is made.
fn item<'a, 'e>(items: &'a mut DeArray<'e>, index: &str) -> Result<&'a mut DeTable<'e>, String> {
    let count = items.len();
    let index: usize = index.parse().map_err(|_| {
        format!("`{index}` is not the number of a table, as in WALPOST_OUTBOX__0__TABLE")
    })?;
    if index > count {
        return Err(format!(
            "there are {count} tables, so the next number is {count}"
        ));
    }
    if index == count {
        items.push(Spanned::new(OUTSIDE, DeValue::Table(DeTable::new())));
    }
    match items.get_mut(index).map(Spanned::get_mut) {
        Some(DeValue::Table(table)) => Ok(table),
        _ => Err(format!(
            "entry {index} is not a table in the configuration file"
        )),
    }
}

//! Where each value of the configuration came from, for people.

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    layers::Source,
    variables::{OUTSIDE, Variable},
};

/// A value that is set somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// As in `outbox.0.columns.event_id`, or a parameter of the connection string.
    pub key: String,
    /// As TOML writes it; `None`: it may hold a secret.
    pub value: Option<String>,
    /// `file:line:column`, or a variable.
    pub from: String,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{value} ({})", self.from),
            None => write!(f, "set, and not shown ({})", self.from),
        }
    }
}

/// Every value of the tree of file and variables.
pub fn settings(root: &DeTable, source: &Source, variables: &[Variable]) -> Vec<Setting> {
    let mut walk = Walk {
        source,
        variables,
        path: Vec::new(),
        found: Vec::new(),
    };
    walk.table(root);
    walk.found
}

struct Walk<'a> {
    source: &'a Source<'a>,
    variables: &'a [Variable<'a>],
    path: Vec<String>,
    found: Vec<Setting>,
}

impl Walk<'_> {
    fn table(&mut self, table: &DeTable) {
        for (key, value) in table.iter() {
            self.path.push(key.get_ref().to_string());
            self.value(value);
            self.path.pop();
        }
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>) {
        let is_table = |value: &Spanned<DeValue<'_>>| value.get_ref().is_table();
        match value.get_ref() {
            DeValue::Table(table) => self.table(table),
            DeValue::Array(items) if !items.is_empty() && items.iter().all(is_table) => {
                for (number, item) in items.iter().enumerate() {
                    self.path.push(number.to_string());
                    self.value(item);
                    self.path.pop();
                }
            }
            scalar => {
                let setting = Setting {
                    key: self.path.join("."),
                    value: (!self.is_secret()).then(|| text(scalar)),
                    from: self.origin(value),
                };
                self.found.push(setting);
            }
        }
    }

    fn is_secret(&self) -> bool {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        matches!(
            path.as_slice(),
            ["postgres", "url"] | ["kafka", "properties", ..]
        )
    }

    fn origin(&self, value: &Spanned<DeValue<'_>>) -> String {
        match value.span() {
            OUTSIDE => {
                let mut variables = self.variables.iter().rev();
                let variable = variables.find(|variable| self.path.starts_with(&variable.path));
                variable
                    .map_or("the environment", |variable| variable.name)
                    .into()
            }
            span => self.source.place(span.start),
        }
    }
}

fn text(value: &DeValue) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| text(item.get_ref())).collect();
            format!("[{}]", items.join(", "))
        }
        DeValue::Table(_) => "{}".into(),
    }
}

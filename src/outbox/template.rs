//! Templates, mostly of topics: `outbox.event.{aggregate_type}`; doubled braces are literal.

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Literal(String),
    /// The text of the column with this name.
    Column(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTemplate {
    #[error("template {0:?} opens a brace that it doesn't close; write {{{{ for a brace itself")]
    Open(String),
    #[error("template {0:?} closes a brace that it didn't open; write }}}} for a brace itself")]
    Close(String),
    #[error("template {0:?} names no column between its braces")]
    Unnamed(String),
    #[error("the template is empty")]
    Empty,
}

impl Template {
    pub fn parse(text: &str) -> Result<Self, InvalidTemplate> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                '{' if rest.next_if_eq(&'{').is_some() => literal.push('{'),
                '}' if rest.next_if_eq(&'}').is_some() => literal.push('}'),
                '}' => return Err(InvalidTemplate::Close(text.into())),
                '{' => {
                    let mut column = String::new();
                    loop {
                        match rest.next() {
                            Some('}') => break,
                            Some('{') | None => return Err(InvalidTemplate::Open(text.into())),
                            Some(c) => column.push(c),
                        }
                    }
                    if column.is_empty() {
                        return Err(InvalidTemplate::Unnamed(text.into()));
                    }
                    if !literal.is_empty() {
                        parts.push(Part::Literal(std::mem::take(&mut literal)));
                    }
                    parts.push(Part::Column(column));
                }
                c => literal.push(c),
            }
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        if parts.is_empty() {
            Err(InvalidTemplate::Empty)
        } else {
            Ok(Template(parts))
        }
    }

    /// The text of one column and nothing else.
    pub fn column(name: &str) -> Self {
        Template(vec![Part::Column(name.into())])
    }

    /// This text.
    pub fn literal(text: &str) -> Self {
        Template(vec![Part::Literal(text.into())])
    }

    pub fn parts(&self) -> &[Part] {
        &self.0
    }

    /// The columns that it names.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Column(name) => Some(name.as_str()),
            Part::Literal(_) => None,
        })
    }
}

/// The longest name Kafka takes.
pub const MAX_TOPIC_LENGTH: usize = 249;

/// Whether Kafka would take this name: letters, digits, `.`, `_`, `-`, at most 249, not `.` or `..`.
/// <https://github.com/apache/kafka/blob/trunk/clients/src/main/java/org/apache/kafka/common/internals/Topic.java>
pub fn is_valid_topic(name: &str) -> bool {
    (1..=MAX_TOPIC_LENGTH).contains(&name.len())
        && name.bytes().all(is_of_topic)
        && !matches!(name, "." | "..")
}

pub fn is_of_topic(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')
}

/// The same in words, for messages.
pub const TOPIC_NAMES: &str = "1 to 249 letters, digits, dots, underscores and hyphens";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_and_doubled_braces() {
        let column = |name: &str| Part::Column(name.into());
        let literal = |text: &str| Part::Literal(text.into());
        for (text, parts) in [
            ("orders", vec![literal("orders")]),
            ("{type}", vec![column("type")]),
            (
                "a.{b}.c{d}",
                vec![literal("a."), column("b"), literal(".c"), column("d")],
            ),
            ("{{x}}{y}", vec![literal("{x}"), column("y")]),
        ] {
            assert_eq!(Template::parse(text), Ok(Template(parts)), "{text}");
        }
        for bad in ["", "{", "}", "{}", "a{b", "a}b", "{a{b}"] {
            assert!(Template::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn topic_names_as_kafka_takes_them() {
        for good in ["a", "A.b_c-9", "...", &"x".repeat(249)] {
            assert!(is_valid_topic(good), "{good}");
        }
        for bad in ["", ".", "..", "a b", "a/b", "ä", "a\0", &"x".repeat(250)] {
            assert!(!is_valid_topic(bad), "{bad}");
        }
    }
}

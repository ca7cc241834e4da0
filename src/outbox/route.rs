//! Where a row goes: the topic's name from a template or a column, and what a regular expression
//! makes of it.

use std::sync::Mutex;

use regex::{CaptureLocations, Regex};

use super::template::{Part, TOPIC_NAMES, Template, is_of_topic, is_valid_topic};
use crate::config::{Outbox, Problem};

/// From a row's columns to its topic.
#[derive(Debug)]
pub struct Route {
    pub template: Template,
    pub rewrite: Option<Rewrite>,
}

impl Route {
    /// `path` is that of the `[[outbox]]`, for messages.
    pub fn new(outbox: &Outbox, path: &str) -> Result<Route, Problem> {
        let template = match outbox.topic_column.as_str() {
            "" => Template::parse(&outbox.topic)
                .map_err(|error| Problem::new(format!("{path}.topic"), error.to_string()))?,
            column => Template::column(column),
        };
        let rewrite = match (
            outbox.topic_regex.as_str(),
            outbox.topic_replacement.as_str(),
        ) {
            ("", "") => None,
            ("", _) => {
                return Err(Problem::new(
                    format!("{path}.topic_replacement"),
                    "belongs to `topic_regex`, which is not set",
                ));
            }
            (_, "") => {
                return Err(Problem::new(
                    format!("{path}.topic_regex"),
                    "needs `topic_replacement`, which tells the topic's name, such as \"orders.$1\"",
                ));
            }
            (regex, replacement) => Some(Rewrite::new(regex, replacement, path)?),
        };
        Ok(Route { template, rewrite })
    }

    /// Why no row can have a topic's name, whatever its columns hold.
    pub fn flaw(&self) -> Option<String> {
        if let Some(topic) = self.only() {
            let text = format!("{topic:?} is no name for a topic: {TOPIC_NAMES}");
            return (!is_valid_topic(&topic)).then_some(text);
        }
        // What an expression makes of it depends on the row.
        let own = self.rewrite.is_none().then(|| self.template.parts());
        own.into_iter().flatten().find_map(|part| match part {
            Part::Literal(text) if !text.bytes().all(is_of_topic) => Some(format!(
                "{text:?} in its template can be part of no topic's name: {TOPIC_NAMES}"
            )),
            _ => None,
        })
    }

    /// The topic of every row; `None` where it depends on the row.
    pub fn only(&self) -> Option<String> {
        let mut routed = String::new();
        for part in self.template.parts() {
            match part {
                Part::Literal(text) => routed.push_str(text),
                Part::Column(_) => return None,
            }
        }
        let mut topic = String::new();
        match &self.rewrite {
            Some(rewrite) => rewrite.append(&routed, &mut topic),
            None => topic = routed,
        }
        Some(topic)
    }
}

/// A regular expression that the whole text must match, and what it becomes then.
#[derive(Debug)]
pub struct Rewrite {
    regex: Regex,
    replacement: Vec<Piece>,
    /// Kept, so that a match allocates nothing. One thread maps rows, so nobody waits for it.
    locations: Mutex<CaptureLocations>,
}

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Group(usize),
}

impl Rewrite {
    fn new(regex: &str, replacement: &str, path: &str) -> Result<Rewrite, Problem> {
        let regex = Regex::new(&format!("^(?:{regex})$")).map_err(|error| {
            // The library's text is of several lines; the last one says why.
            let text = error.to_string();
            let why = text.lines().last().unwrap_or_default();
            let why = why.trim_start_matches("error: ").to_owned();
            Problem::new(
                format!("{path}.topic_regex"),
                format!("is no regular expression of crate regex: {why}"),
            )
        })?;
        let replacement = pieces(replacement, &regex)
            .map_err(|why| Problem::new(format!("{path}.topic_replacement"), why))?;
        let locations = Mutex::new(regex.capture_locations());
        Ok(Rewrite {
            regex,
            replacement,
            locations,
        })
    }

    /// Appends what `text` becomes. Where it does not match, that is `text` itself.
    pub fn append(&self, text: &str, to: &mut String) {
        let mut locations = self.locations.lock().unwrap_or_else(|e| e.into_inner());
        if self.regex.captures_read(&mut locations, text).is_none() {
            to.push_str(text);
            return;
        }
        for piece in &self.replacement {
            match piece {
                Piece::Literal(literal) => to.push_str(literal),
                // A group that took no part in the match is empty.
                Piece::Group(group) => {
                    if let Some((start, end)) = locations.get(*group) {
                        to.push_str(&text[start..end]);
                    }
                }
            }
        }
    }
}

/// `$1`, `${1}`, `${name}`; `$$` is a dollar.
fn pieces(replacement: &str, regex: &Regex) -> Result<Vec<Piece>, String> {
    let group = |name: &str| {
        let by_name = || regex.capture_names().position(|known| known == Some(name));
        let number = name.parse().ok().or_else(by_name);
        number
            .filter(|number| *number < regex.captures_len())
            .map(Piece::Group)
            .ok_or_else(|| format!("`topic_regex` has no group `{name}`"))
    };
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = replacement;
    while let Some(at) = rest.find('$') {
        literal.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            literal.push('$');
            rest = after;
            continue;
        }
        let (name, after) = match rest.strip_prefix('{') {
            Some(braced) => braced
                .split_once('}')
                .ok_or("`${` is not closed by a brace")?,
            None => rest.split_at(
                rest.find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(rest.len()),
            ),
        };
        if name.is_empty() {
            return Err(
                "`$` is followed by no group: write $1, ${name}, or $$ for a dollar".into(),
            );
        }
        if !literal.is_empty() {
            pieces.push(Piece::Literal(std::mem::take(&mut literal)));
        }
        pieces.push(group(name)?);
        rest = after;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::tests::mapping;

    fn rewrite(regex: &str, replacement: &str, text: &str) -> Result<String, String> {
        let rewrite = Rewrite::new(regex, replacement, "outbox.0").map_err(|e| e.to_string())?;
        let mut to = String::from("> ");
        rewrite.append(text, &mut to);
        Ok(to.split_off(2))
    }

    #[test]
    fn a_match_of_the_whole_text_is_replaced_and_all_else_stays() {
        for (regex, replacement, text, topic) in [
            (
                "(?<routedByValue>.*)",
                "outbox.event.${routedByValue}",
                "order",
                "outbox.event.order",
            ),
            ("(.*)_v([0-9]+)", "$1.v$2", "order_v12", "order.v12"),
            ("(.*)_v([0-9]+)", "${1}0", "a_v1", "a0"),
            ("order", "orders", "order2", "order2"),
            ("a|ab", "x", "ab", "x"),
            ("(a)|(b)", "t.$1$2", "b", "t.b"),
            (".*", "all", "", "all"),
            ("x", "$$1", "x", "$1"),
            ("(?i)ORDER", "o", "order", "o"),
        ] {
            assert_eq!(
                rewrite(regex, replacement, text),
                Ok(topic.into()),
                "{regex} {text}"
            );
        }
    }

    #[test]
    fn a_topic_that_no_row_can_have_is_known_before_the_first_row() {
        for (topic, is_flawed) in [
            ("topic = \"orders\"", false),
            ("topic = \"{a}.{b}\"", false),
            ("topic = \"..\"", true),
            ("topic = \"no topic\"", true),
            ("topic = \"{{x}}.{a}\"", true),
            ("topic_column = \"a\"", false),
            (
                "topic = \"{{x}}.{a}\"\ntopic_regex = \".x.(.*)\"\ntopic_replacement = \"x$1\"",
                false,
            ),
            (
                "topic = \"a\"\ntopic_regex = \"a\"\ntopic_replacement = \"b/c\"",
                true,
            ),
        ] {
            let mapping = mapping(&format!("table = \"outbox\"\n{topic}"));
            assert_eq!(mapping.route.flaw().is_some(), is_flawed, "{topic}");
        }
    }

    #[test]
    fn what_cannot_be_replaced_with_is_named() {
        for (regex, replacement, words) in [
            ("(", "x", "outbox.0.topic_regex: is no regular expression"),
            (
                "a",
                "$1",
                "outbox.0.topic_replacement: `topic_regex` has no group `1`",
            ),
            ("(?<a>.)", "${b}", "no group `b`"),
            ("(a)", "${1", "not closed"),
            ("(a)", "x$", "followed by no group"),
        ] {
            let error = rewrite(regex, replacement, "").unwrap_err();
            assert!(error.contains(words), "{regex} {replacement}: {error}");
        }
    }
}

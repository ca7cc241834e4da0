//! A record's headers, in order, in two buffers that are used again for every row; and the JSON
//! column's entries, spread into them.

use std::{fmt, ops::Range};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::row::Unmappable;

/// Names and values in the order in which they are sent.
#[derive(Default)]
pub struct Headers {
    text: Vec<u8>,
    entries: Vec<(Range<usize>, Option<Range<usize>>)>,
}

impl Headers {
    pub fn clear(&mut self) {
        self.text.clear();
        self.entries.clear();
    }

    pub fn push(&mut self, name: &str, value: &[u8]) {
        self.push_entry(name, Some(value));
    }

    /// A header whose name and value are written by the caller.
    pub fn push_with(&mut self, name: impl FnOnce(&mut Vec<u8>), value: impl FnOnce(&mut Vec<u8>)) {
        let start = self.text.len();
        name(&mut self.text);
        let middle = self.text.len();
        value(&mut self.text);
        let end = self.text.len();
        self.entries.push((start..middle, Some(middle..end)));
    }

    /// Takes the last header away if its name is one of these; `true`: it was.
    pub fn pop_if(&mut self, is_one: impl Fn(&[u8]) -> bool) -> bool {
        let is_last = |(name, _): &mut (Range<usize>, _)| is_one(&self.text[name.clone()]);
        let popped = self.entries.pop_if(is_last);
        if let Some((name, _)) = &popped {
            self.text.truncate(name.start);
        }
        popped.is_some()
    }

    /// The value of the first header of this name that has one.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find_map(|(known, value)| value.filter(|_| known == name.as_bytes()))
    }

    /// `None` is a null header.
    pub fn push_entry(&mut self, name: &str, value: Option<&[u8]>) {
        let name = self.append(name.as_bytes());
        let value = value.map(|value| self.append(value));
        self.entries.push((name, value));
    }

    fn append(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.text.len();
        self.text.extend_from_slice(bytes);
        start..self.text.len()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Name and value; a null header has no value, an empty one has an empty value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let bytes = |range: &Range<usize>| &self.text[range.clone()];
        self.entries
            .iter()
            .map(move |(name, value)| (bytes(name), value.as_ref().map(bytes)))
    }

    /// One header per entry of a JSON object, in stored order: a string as its text, null as a null
    /// header, all else as its JSON text. Returns how many were dropped for a name that is built in.
    pub fn spread(
        &mut self,
        json: &[u8],
        is_built_in: impl Fn(&[u8]) -> bool,
    ) -> Result<u64, Unmappable> {
        let mut parser = serde_json::Deserializer::from_slice(json);
        let spread = parser
            .deserialize_map(Entries(self, is_built_in))
            .and_then(|n| parser.end().map(|()| n));
        // The parser's message may quote the value; its place in the text says enough.
        spread.map_err(|error| {
            let object = json.trim_ascii_start().first() == Some(&b'{');
            let text = if object {
                format!("headers is not valid JSON at byte {}", error.column())
            } else {
                "headers is not a JSON object".to_owned()
            };
            Unmappable::new("headers_not_an_object", text)
        })
    }
}

/// The trace's id in header `traceparent`: 32 hexadecimal digits.
/// <https://www.w3.org/TR/trace-context/#traceparent-header-field-values>
pub fn trace_id(headers: &Headers) -> Option<&str> {
    let parent = std::str::from_utf8(headers.get("traceparent")?).ok()?;
    let mut parts = parent.split('-');
    let digits = |text: &str, count: usize| {
        let legal = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        text.len() == count && text.bytes().all(legal)
    };
    let (version, id, span) = (parts.next()?, parts.next()?, parts.next()?);
    (digits(version, 2) && digits(id, 32) && digits(span, 16)).then_some(id)
}

struct Entries<'h, F>(&'h mut Headers, F);

impl<'de, F: Fn(&[u8]) -> bool> Visitor<'de> for Entries<'_, F> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u64, A::Error> {
        let mut dropped = 0;
        while let Some(name) = map.next_key_seed(Append(self.0))? {
            let value: &RawValue = map.next_value()?;
            if (self.1)(&self.0.text[name.clone()]) {
                self.0.text.truncate(name.start);
                dropped += 1;
                continue;
            }
            let value = match value.get().as_bytes() {
                [b'n', ..] => None,
                [b'"', ..] => {
                    let mut parser = serde_json::Deserializer::from_str(value.get());
                    Some(
                        Append(self.0)
                            .deserialize(&mut parser)
                            .map_err(serde::de::Error::custom)?,
                    )
                }
                other => Some(self.0.append(other)),
            };
            self.0.entries.push((name, value));
        }
        Ok(dropped)
    }
}

/// Appends a JSON string's text to the buffer, without a string of its own.
struct Append<'h>(&'h mut Headers);

impl<'de> DeserializeSeed<'de> for Append<'_> {
    type Value = Range<usize>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Append<'_> {
    type Value = Range<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.0.append(text.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Spread = (Vec<(String, Option<String>)>, u64);

    fn spread(json: &str) -> Result<Spread, Unmappable> {
        let mut headers = Headers::default();
        let built_in = ["event_id", "wal_position"];
        let dropped = headers.spread(json.as_bytes(), |name| {
            built_in.iter().any(|known| known.as_bytes() == name)
        })?;
        let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
        Ok((
            headers
                .iter()
                .map(|(n, v)| (text(n), v.map(text)))
                .collect(),
            dropped,
        ))
    }

    #[test]
    fn entries_keep_their_order_and_their_text() {
        let json = r#"{"z": "a b", "nil": null, "": "", "n": 12.50, "t": true,
            "o": {"z": [1, 2.0],  "a": null}, "é": "漢", "q": "a\"\u00e9", "z": "again"}"#;
        let expected = [
            ("z", Some("a b")),
            ("nil", None),
            ("", Some("")),
            ("n", Some("12.50")),
            ("t", Some("true")),
            ("o", Some(r#"{"z": [1, 2.0],  "a": null}"#)),
            ("é", Some("漢")),
            ("q", Some("a\"é")),
            ("z", Some("again")),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(n, v)| ((*n).to_owned(), v.map(str::to_owned)))
            .collect();
        assert_eq!(spread(json), Ok((expected, 0)));
    }

    #[test]
    fn built_in_names_are_dropped_and_counted() {
        let json = r#"{"event_id": "x", "mine": "y", "wal\u005fposition": null}"#;
        assert_eq!(
            spread(json),
            Ok((vec![("mine".into(), Some("y".into()))], 2))
        );
    }

    #[test]
    fn the_trace_id_is_that_of_a_well_formed_traceparent() {
        let id = "0af7651916cd43dd8448eb211c80319c";
        for (parent, expected) in [
            (Some(format!("00-{id}-b7ad6b7169203331-01")), Some(id)),
            (Some(format!("00-{id}-b7ad6b71-01")), None),
            (
                Some(format!("00-{}-b7ad6b7169203331-01", id.to_uppercase())),
                None,
            ),
            (Some("x".into()), None),
            (None, None),
        ] {
            let mut headers = Headers::default();
            headers.push_entry("traceparent", None);
            if let Some(parent) = &parent {
                headers.push("traceparent", parent.as_bytes());
            }
            assert_eq!(trace_id(&headers), expected, "{parent:?}");
        }
    }

    #[test]
    fn what_is_no_object_is_told_without_showing_it() {
        for bad in [
            "[1, 2]",
            "null",
            "\"secret\"",
            "7",
            "",
            "{\"secret\": ",
            "{\"a\": 1} x",
        ] {
            let error = spread(bad).unwrap_err();
            assert_eq!(error.code, "headers_not_an_object");
            assert!(!error.text.contains("secret"), "{error}");
        }
    }
}

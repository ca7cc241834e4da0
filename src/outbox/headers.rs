//! A record's headers, in order, in two buffers that are used again for every row; and the JSON
//! column's entries, spread into them.

use std::{fmt, ops::Range};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::row::Unmappable;

/// Headers that only walpost sets: entries of the JSON column with these names are dropped.
pub const BUILT_IN: [&str; 7] = [
    "event_id",
    "aggregate_type",
    "aggregate_version",
    "event_type",
    "schema_version",
    "wal_position",
    "walpost_replay",
];

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
        let name = self.append(name.as_bytes());
        let value = self.append(value);
        self.entries.push((name, Some(value)));
    }

    /// As it was sent before; `None` is a null header.
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
    /// header, all else as its JSON text. Returns how many were dropped for their built-in name.
    pub fn spread(&mut self, json: &[u8]) -> Result<u64, Unmappable> {
        let mut parser = serde_json::Deserializer::from_slice(json);
        let spread = parser
            .deserialize_map(Entries(self))
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

struct Entries<'h>(&'h mut Headers);

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u64, A::Error> {
        let mut dropped = 0;
        while let Some(name) = map.next_key_seed(Append(self.0))? {
            let value: &RawValue = map.next_value()?;
            let is_built_in = BUILT_IN
                .iter()
                .any(|b| b.as_bytes() == &self.0.text[name.clone()]);
            if is_built_in {
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
        let dropped = headers.spread(json.as_bytes())?;
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

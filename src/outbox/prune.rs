//! A JSON text without those fields that are null or an empty array; all else keeps its text, but
//! for blanks. Elements of arrays stay, whatever they are.
//!
//! Why not a parser's tree: it would change the text of numbers and needs a stack as deep as the
//! text; this needs one byte-by-byte walk.

/// Keeps its stack from text to text.
#[derive(Debug, Default)]
pub struct Pruner {
    open: Vec<Container>,
}

#[derive(Clone, Copy, Debug)]
struct Container {
    is_object: bool,
    /// Where its text begins in the output.
    start: usize,
    /// Where the field that is being written begins, with its comma.
    field: usize,
}

/// What a value was.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Was {
    Null,
    EmptyArray,
    Other,
}

impl Pruner {
    /// Appends the text, which is valid JSON, without the fields.
    pub fn prune(&mut self, json: &[u8], nulls: bool, empty_arrays: bool, to: &mut Vec<u8>) {
        self.open.clear();
        let mut rest = json;
        while let Some((&byte, after)) = rest.split_first() {
            rest = match byte {
                b' ' | b'\t' | b'\n' | b'\r' => after,
                b'{' | b'[' => {
                    self.open.push(Container {
                        is_object: byte == b'{',
                        start: to.len(),
                        field: to.len() + 1,
                    });
                    to.push(byte);
                    after
                }
                b'}' | b']' => {
                    to.push(byte);
                    let is_empty = self.open.pop().is_some_and(|c| c.start + 2 == to.len());
                    let was = match byte {
                        b']' if is_empty => Was::EmptyArray,
                        _ => Was::Other,
                    };
                    self.ended(was, nulls, empty_arrays, to);
                    after
                }
                b',' => {
                    if let Some(container) = self.open.last_mut() {
                        container.field = to.len();
                    }
                    // Every field before may have been left out.
                    if to.last() != Some(&b'{') {
                        to.push(b',');
                    }
                    after
                }
                b':' => {
                    to.push(b':');
                    after
                }
                _ => {
                    let length = scalar(rest);
                    let (text, after) = rest.split_at(length);
                    to.extend_from_slice(text);
                    let is_name = byte == b'"'
                        && self.open.last().is_some_and(|c| c.is_object)
                        && after.trim_ascii_start().first() == Some(&b':');
                    if !is_name {
                        let was = if text == b"null" {
                            Was::Null
                        } else {
                            Was::Other
                        };
                        self.ended(was, nulls, empty_arrays, to);
                    }
                    after
                }
            };
        }
    }

    /// A value ended: if it is a field that is not wanted, it goes.
    fn ended(&self, was: Was, nulls: bool, empty_arrays: bool, to: &mut Vec<u8>) {
        let unwanted = (was == Was::Null && nulls) || (was == Was::EmptyArray && empty_arrays);
        if let Some(container) = self.open.last()
            && unwanted
            && container.is_object
        {
            to.truncate(container.field);
        }
    }
}

/// How long the string, number or word at the front is.
fn scalar(text: &[u8]) -> usize {
    if text[0] != b'"' {
        let end = |b: &u8| matches!(b, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
        return text.iter().position(end).unwrap_or(text.len());
    }
    let mut escaped = false;
    for (at, byte) in text.iter().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn prune(json: &str, nulls: bool, empty_arrays: bool) -> String {
        let mut to = Vec::new();
        Pruner::default().prune(json.as_bytes(), nulls, empty_arrays, &mut to);
        String::from_utf8(to).unwrap()
    }

    #[test]
    fn fields_go_and_elements_stay() {
        for (json, pruned) in [
            (r#"{"a": null, "b": 1.50, "c": []}"#, r#"{"b":1.50}"#),
            (r#"{"a": null}"#, "{}"),
            (r#"{"a": 1, "b": null}"#, r#"{"a":1}"#),
            (
                r#"{"a": null, "b": null, "c": {"d": [ ]} , "e": 2}"#,
                r#"{"c":{},"e":2}"#,
            ),
            (
                r#"[null, [], {"x": null}, "null"]"#,
                r#"[null,[],{},"null"]"#,
            ),
            (
                r#"{"a": [null, []], "b": "[]"}"#,
                r#"{"a":[null,[]],"b":"[]"}"#,
            ),
            (
                r#"{"null": "null", "a\",:": "\\", "b": null}"#,
                r#"{"null":"null","a\",:":"\\"}"#,
            ),
            ("null", "null"),
            ("[]", "[]"),
            (" 12e3 ", "12e3"),
            (r#""a b""#, r#""a b""#),
        ] {
            assert_eq!(prune(json, true, true), pruned, "{json}");
        }
        let both = r#"{"n": null, "e": []}"#;
        assert_eq!(prune(both, true, false), r#"{"e":[]}"#);
        assert_eq!(prune(both, false, true), r#"{"n":null}"#);
        assert_eq!(prune(both, false, false), r#"{"n":null,"e":[]}"#);
    }

    /// Deeper than any stack.
    #[test]
    fn depth_costs_memory_and_no_stack() {
        let deep = 200_000;
        let json = format!("{}null{}", "{\"a\":".repeat(deep), "}".repeat(deep));
        let pruned = prune(&json, true, false);
        assert!(pruned.ends_with(&format!("{{\"a\":{{}}{}", "}".repeat(deep - 1))));
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            3 => Just(Value::Null),
            1 => any::<bool>().prop_map(Value::from),
            1 => any::<i64>().prop_map(Value::from),
            2 => "[a-z\"\\\\,:{}\\[\\]nul ]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 60, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec(("[a-z\"\\\\,: ]{0,4}", inner), 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    fn expected(value: &Value, nulls: bool, empty_arrays: bool) -> Value {
        let unwanted = |v: &Value| {
            (nulls && v.is_null()) || (empty_arrays && v.as_array().is_some_and(Vec::is_empty))
        };
        let again = |v: &Value| expected(v, nulls, empty_arrays);
        match value {
            Value::Array(items) => items.iter().map(again).collect(),
            Value::Object(fields) => {
                let kept = fields.iter().filter(|(_, v)| !unwanted(v));
                Value::Object(kept.map(|(k, v)| (k.clone(), again(v))).collect())
            }
            other => other.clone(),
        }
    }

    proptest! {
        #[test]
        fn it_is_what_a_tree_would_give(value in json(), pretty: bool, nulls: bool, empty_arrays: bool) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let pruned = prune(&text.unwrap(), nulls, empty_arrays);
            let parsed: Value = serde_json::from_str(&pruned).map_err(|e| TestCaseError::fail(format!("{e}: {pruned}")))?;
            prop_assert_eq!(&parsed, &expected(&value, nulls, empty_arrays));
            prop_assert_eq!(pruned, serde_json::to_string(&parsed).unwrap());
        }
    }
}

//! Writes JSON around values that stay as PostgreSQL gave them.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{payload::decode_bytea, row::Unmappable, types::Form};

/// An object that is being written.
pub struct Object<'a> {
    to: &'a mut Vec<u8>,
    is_empty: bool,
}

impl<'a> Object<'a> {
    pub fn new(to: &'a mut Vec<u8>) -> Self {
        to.push(b'{');
        Object { to, is_empty: true }
    }

    /// A key; its value is to be appended to what is returned.
    pub fn key(&mut self, name: &str) -> &mut Vec<u8> {
        if !self.is_empty {
            self.to.push(b',');
        }
        self.is_empty = false;
        text(self.to, name);
        self.to.push(b':');
        self.to
    }

    pub fn end(self) {
        self.to.push(b'}');
    }
}

/// A string.
pub fn text(to: &mut Vec<u8>, text: &str) {
    // Writing to a Vec cannot fail.
    let _ = serde_json::to_writer(to, text);
}

/// A string of a column's text. `name` is the column's role or name.
pub fn string(to: &mut Vec<u8>, value: &[u8], name: &str) -> Result<(), Unmappable> {
    text(to, utf8(value, name)?);
    Ok(())
}

/// A column's value in its own JSON type, `null` for NULL.
pub fn value(
    to: &mut Vec<u8>,
    value: Option<&[u8]>,
    form: Form,
    name: &str,
) -> Result<(), Unmappable> {
    let Some(value) = value else {
        to.extend(b"null");
        return Ok(());
    };
    match form {
        Form::Json => to.extend(utf8(value, name)?.as_bytes()),
        Form::Integer => to.extend(value),
        Form::Number if is_number(value) => to.extend(value),
        Form::Boolean => to.extend(boolean(value).as_bytes()),
        Form::Bytea | Form::Gone => {
            let mut bytes = Vec::new();
            match decode_bytea(value, &mut bytes) {
                Some(()) => base64(to, &bytes),
                None => string(to, value, name)?,
            }
        }
        Form::Text | Form::Number | Form::Time => string(to, value, name)?,
    }
    Ok(())
}

/// PostgreSQL's `t` and `f`.
pub fn boolean(value: &[u8]) -> &'static str {
    if value == b"t" { "true" } else { "false" }
}

/// A string of bytes.
pub fn base64(to: &mut Vec<u8>, bytes: &[u8]) {
    to.push(b'"');
    let start = to.len();
    to.resize(
        start + base64::encoded_len(bytes.len(), true).unwrap_or(0),
        0,
    );
    // The room was made just now.
    let _ = STANDARD.encode_slice(bytes, &mut to[start..]);
    to.push(b'"');
}

/// Databases of encoding SQL_ASCII have text of any bytes.
pub fn utf8<'a>(value: &'a [u8], name: &str) -> Result<&'a str, Unmappable> {
    std::str::from_utf8(value).map_err(|_| {
        let text = format!("{name} is not UTF-8 and cannot be part of a JSON value");
        Unmappable::new("not_utf8", text)
    })
}

/// Not `NaN` or `Infinity`, which JSON has no numbers for.
fn is_number(text: &[u8]) -> bool {
    text.last().is_some_and(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_own_json_type() {
        for (form, text, json) in [
            (Form::Text, "a \"b\"\n", r#""a \"b\"\n""#),
            (Form::Text, "7", "\"7\""),
            (Form::Json, "{\"a\":  1.50}", "{\"a\":  1.50}"),
            (
                Form::Integer,
                "-9223372036854775808",
                "-9223372036854775808",
            ),
            (Form::Number, "12.50", "12.50"),
            (Form::Number, "1e+20", "1e+20"),
            (Form::Number, "NaN", "\"NaN\""),
            (Form::Number, "-Infinity", "\"-Infinity\""),
            (Form::Boolean, "t", "true"),
            (Form::Boolean, "f", "false"),
            (Form::Time, "infinity", "\"infinity\""),
            (Form::Bytea, "\\x00ff", "\"AP8=\""),
            (Form::Bytea, "\\x", "\"\""),
            (Form::Gone, "label", "\"label\""),
        ] {
            let mut to = Vec::new();
            value(&mut to, Some(text.as_bytes()), form, "x").unwrap();
            assert_eq!(String::from_utf8(to).unwrap(), json, "{form:?} {text}");
        }
        let mut to = Vec::new();
        value(&mut to, None, Form::Integer, "x").unwrap();
        assert_eq!(to, b"null");
        let error = string(&mut to, b"\xff", "event_type").unwrap_err();
        assert_eq!(error.code, "not_utf8");
        assert!(error.text.contains("event_type"));
    }

    #[test]
    fn objects_have_commas_between_their_fields() {
        let mut to = Vec::new();
        let mut object = Object::new(&mut to);
        object.key("a").push(b'1');
        text(object.key("b\""), "x");
        object.end();
        assert_eq!(to, br#"{"a":1,"b\"":"x"}"#);
        let mut to = Vec::new();
        Object::new(&mut to).end();
        assert_eq!(to, b"{}");
    }
}

//! A serialized trace context: `java.util.Properties` text, as tracers for Debezium write it into a
//! column, to headers.
//! <https://docs.oracle.com/en/java/javase/17/docs/api/java.base/java/util/Properties.html#load(java.io.Reader)>

use super::headers::Headers;

/// One header for each property. Returns how many were dropped for a name that is built in.
pub fn spread(properties: &str, headers: &mut Headers, is_built_in: impl Fn(&[u8]) -> bool) -> u64 {
    let mut dropped = 0;
    let mut rest = properties;
    while !rest.is_empty() {
        let (line, after) = logical_line(rest);
        rest = after;
        let line = line.trim_start_matches([' ', '\t', '\x0c']);
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let (name, value) = split(line);
        headers.push_with(|to| unescape(name, to), |to| unescape(value, to));
        dropped += u64::from(headers.pop_if(&is_built_in));
    }
    dropped
}

/// The next line, to an end that no backslash takes away.
fn logical_line(text: &str) -> (&str, &str) {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '\n' | '\r' if !escaped => return (&text[..at], &text[at + 1..]),
            '\\' => escaped = !escaped,
            // Of a line's end of two characters, both are escaped.
            '\r' => {}
            _ => escaped = false,
        }
    }
    (text, "")
}

/// The name ends at the first `=`, `:` or blank; blanks around that are nobody's.
fn split(line: &str) -> (&str, &str) {
    let blank = [' ', '\t', '\x0c'];
    let mut escaped = false;
    let end = line.find(|c: char| {
        let ends = !escaped && (matches!(c, '=' | ':') || blank.contains(&c));
        escaped = c == '\\' && !escaped;
        ends
    });
    let Some(end) = end else {
        return (line, "");
    };
    let rest = line[end..].trim_start_matches(blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (&line[..end], rest.trim_start_matches(blank))
}

fn unescape(text: &str, to: &mut Vec<u8>) {
    let mut chars = text.chars();
    let push = |to: &mut Vec<u8>, c: char| to.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
    while let Some(c) = chars.next() {
        if c != '\\' {
            push(to, c);
            continue;
        }
        match chars.next() {
            Some('t') => to.push(b'\t'),
            Some('n') => to.push(b'\n'),
            Some('r') => to.push(b'\r'),
            Some('f') => to.push(12),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16).ok();
                push(to, code.and_then(char::from_u32).unwrap_or('\u{fffd}'));
            }
            // A line that goes on: its end and the blanks that follow are nobody's.
            Some('\n' | '\r') => {
                let rest = chars.as_str().trim_start_matches(['\n', ' ', '\t', '\x0c']);
                chars = rest.chars();
            }
            Some(other) => push(to, other),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_become_headers() {
        let text = "#Fri Feb 29 12:34:56 UTC 2024\n! note\n\ntraceparent=00-aa-bb-01\r\n tracestate : a\\=b\\:c\n\
                    event\\u005fid=x\nuber-trace-id 5%3A1\nempty=\nlone\nlong=a\\\n    b\nuni=\\u00e9\\t\\\\";
        let mut headers = Headers::default();
        let dropped = spread(text, &mut headers, |name| name == b"event_id");
        assert_eq!(dropped, 1);
        let found: Vec<_> = headers
            .iter()
            .map(|(n, v)| {
                let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
                (text(n), text(v.unwrap()))
            })
            .collect();
        let expected = [
            ("traceparent", "00-aa-bb-01"),
            ("tracestate", "a=b:c"),
            ("uber-trace-id", "5%3A1"),
            ("empty", ""),
            ("lone", ""),
            ("long", "ab"),
            ("uni", "é\t\\"),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        assert_eq!(found, expected);
    }
}

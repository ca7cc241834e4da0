//! libpq's two ways to write a connection: a URL, and `key=value` words.
//! <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING>
//!
//! An error never repeats what it could not read: it may be a part of the password.

use percent_encoding::percent_decode_str;

/// The parameters in the order of the string; a later one of the same name counts.
pub fn parse(text: &str) -> Result<Vec<(String, String)>, String> {
    let text = text.trim();
    match text
        .strip_prefix("postgresql://")
        .or_else(|| text.strip_prefix("postgres://"))
    {
        Some(rest) => url(rest),
        None if text.contains("://") => {
            Err("a URL begins with postgres:// or postgresql://".into())
        }
        None => words(text),
    }
}

/// What follows the scheme: `user:password@host:port,host:port/dbname?key=value&…`.
fn url(text: &str) -> Result<Vec<(String, String)>, String> {
    const ENCODE: &str = "write `@` in a user or password as %40, `:` as %3A, `/` as %2F";
    let mut found = Vec::new();
    let mut put = |key: &str, value: &str| -> Result<(), String> {
        if !value.is_empty() {
            found.push((key.to_string(), decode(value)?));
        }
        Ok(())
    };
    // As in libpq: a login ends at an at sign that comes before any slash.
    let rest = match text.find(['@', '/']) {
        Some(at) if text[at..].starts_with('@') => {
            let (user, password) = text[..at].split_once(':').unwrap_or((&text[..at], ""));
            put("user", user)?;
            put("password", password)?;
            &text[at + 1..]
        }
        _ => text,
    };
    let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (hosts, dbname) = before.split_once('/').unwrap_or((before, ""));
    if hosts.contains('@') || dbname.contains('@') {
        return Err(ENCODE.into());
    }
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',') {
        let (name, port) = match host.strip_prefix('[') {
            Some(rest) => rest
                .split_once(']')
                .ok_or("`[` of an IPv6 address without its `]`")?,
            None => host.split_at(host.find(':').unwrap_or(host.len())),
        };
        names.push(name);
        ports.push(match port.strip_prefix(':') {
            Some(port) if port.bytes().all(|c| c.is_ascii_digit()) => port,
            None if port.is_empty() => "",
            _ => return Err(format!("a port is not a number; {ENCODE}")),
        });
    }
    put("host", &names.join(","))?;
    if ports.iter().any(|port| !port.is_empty()) {
        put("port", &ports.join(","))?;
    }
    put("dbname", dbname)?;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair
            .split_once('=')
            .ok_or("a query parameter without `=`")?;
        if value.contains('=') {
            return Err(format!(
                "query parameter `{key}` has a second `=`; write it as %3D"
            ));
        }
        // JDBC's way to say it, which libpq takes too.
        let (key, value) = if (key, value) == ("ssl", "true") {
            ("sslmode", "require")
        } else {
            (key, value)
        };
        found.push((decode(key)?, decode(value)?));
    }
    Ok(found)
}

fn decode(text: &str) -> Result<String, String> {
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_hexdigit());
        if byte == b'%' && !(hex(rest.next()) && hex(rest.next())) {
            return Err("a `%` that two hexadecimal digits don't follow; write it as %25".into());
        }
    }
    let decoded = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| "percent-encoded bytes that are not UTF-8")?;
    if decoded.contains('\0') {
        return Err("%00 is not allowed".into());
    }
    Ok(decoded.into_owned())
}

/// `key = value` words; a value with spaces goes in single quotes, `\` escapes.
fn words(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let after = |found: &[(String, String)]| match found.last() {
            Some((key, _)) => format!(" after `{key}`"),
            None => " at the beginning; write a URL or key=value".to_string(),
        };
        let end = rest
            .find(|c: char| c == '=' || c.is_whitespace())
            .unwrap_or(rest.len());
        let (key, tail) = rest.split_at(end);
        let Some(tail) = tail
            .trim_start()
            .strip_prefix('=')
            .filter(|_| !key.is_empty())
        else {
            return Err(format!("a word without `=`{}", after(&found)));
        };
        let (value, tail) = word(tail.trim_start())
            .ok_or_else(|| format!("the quotes of `{key}` are not closed"))?;
        if value.contains('\0') {
            return Err(format!("`{key}` has a zero byte"));
        }
        found.push((key.to_string(), value));
        rest = tail.trim_start();
    }
    Ok(found)
}

/// One value and what follows it; `None` when its quote isn't closed.
fn word(text: &str) -> Option<(String, &str)> {
    let (quoted, text) = text
        .strip_prefix('\'')
        .map_or((false, text), |rest| (true, rest));
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            '\'' if quoted => return Some((value, &text[at + 1..])),
            c if c.is_whitespace() && !quoted => return Some((value, &text[at..])),
            c => value.push(c),
        }
    }
    (!quoted).then_some((value, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match parse(text) {
            Ok(found) => found
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect::<Vec<_>>()
                .join(" "),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn urls() {
        const ENCODE: &str = "write `@` in a user or password as %40, `:` as %3A, `/` as %2F";
        for (url, seen) in [
            ("postgres://", ""),
            ("postgresql://h", "host=h"),
            ("postgres://h:5433", "host=h port=5433"),
            ("postgres://h/d", "host=h dbname=d"),
            ("postgres://u@h", "user=u host=h"),
            (
                "postgres://u:p@h:1/d?sslmode=require&connect_timeout=3",
                "user=u password=p host=h port=1 dbname=d sslmode=require connect_timeout=3",
            ),
            (
                "postgres://u%40x:p%3A%2F%25@h/d%20e",
                "user=u@x password=p:/% host=h dbname=d e",
            ),
            (
                "postgres://u:p?q@h/d",
                "user=u password=p?q host=h dbname=d",
            ),
            (
                "postgres://u:p?q@h/d?sslmode=require",
                "user=u password=p?q host=h dbname=d sslmode=require",
            ),
            ("postgres://u:@h", "user=u host=h"),
            ("postgres://a:1,b,c:3/d", "host=a,b,c port=1,,3 dbname=d"),
            ("postgres://a,b/d", "host=a,b dbname=d"),
            ("postgres://[::1]:5433/d", "host=::1 port=5433 dbname=d"),
            ("postgres://[2001:db8::1]", "host=2001:db8::1"),
            (
                "postgres:///d?host=/run/pg&port=1",
                "dbname=d host=/run/pg port=1",
            ),
            ("postgres://%2Frun%2Fpg/d", "host=/run/pg dbname=d"),
            (
                "postgres://u@%2Frun%2Fpg:7/d",
                "user=u host=/run/pg port=7 dbname=d",
            ),
            ("postgres://?user=a%40b", "user=a@b"),
            ("postgres://h?ssl=true", "host=h sslmode=require"),
            (
                "postgres://h?options=-c%20geqo%3Doff",
                "host=h options=-c geqo=off",
            ),
            ("postgres://u:se@cret@h/d", &format!("error: {ENCODE}")),
            ("postgres://u:se/cret@h/d", &format!("error: {ENCODE}")),
            ("postgres://u:12/cret@h/d", &format!("error: {ENCODE}")),
            (
                "postgres://u:p%zz@h",
                "error: a `%` that two hexadecimal digits don't follow; write it as %25",
            ),
            (
                "postgres://u:p%ff@h",
                "error: percent-encoded bytes that are not UTF-8",
            ),
            ("postgres://u:p%00@h", "error: %00 is not allowed"),
            (
                "postgres://[::1/d",
                "error: `[` of an IPv6 address without its `]`",
            ),
            (
                "postgres://[::1]x/d",
                &format!("error: a port is not a number; {ENCODE}"),
            ),
            (
                "postgres://h?sslmode",
                "error: a query parameter without `=`",
            ),
            (
                "postgres://h?options=-c a=b",
                "error: query parameter `options` has a second `=`; write it as %3D",
            ),
            (
                "mysql://h/d",
                "error: a URL begins with postgres:// or postgresql://",
            ),
        ] {
            assert_eq!(shown(url), seen, "{url}");
        }
    }

    #[test]
    fn key_value_words() {
        for (text, seen) in [
            ("", ""),
            ("host=h port=1 dbname=d", "host=h port=1 dbname=d"),
            ("  host = h\n\tuser= u ", "host=h user=u"),
            (
                r"password='a b\'c\\d' user=u\ v",
                r"password=a b'c\d user=u v",
            ),
            ("password='' host=", "password= host="),
            ("dbname='a=b'", "dbname=a=b"),
            (
                "secret",
                "error: a word without `=` at the beginning; write a URL or key=value",
            ),
            (
                "password=a secret",
                "error: a word without `=` after `password`",
            ),
            ("host=h =x", "error: a word without `=` after `host`"),
            (
                "password='secret",
                "error: the quotes of `password` are not closed",
            ),
        ] {
            assert_eq!(shown(text), seen, "{text}");
        }
    }
}

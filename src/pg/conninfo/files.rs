//! The two files libpq reads for a connection: the password file and the service file.
//! <https://www.postgresql.org/docs/current/libpq-pgpass.html>
//! <https://www.postgresql.org/docs/current/libpq-pgservice.html>

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

/// The password of the first line that fits. A missing file has none, as in libpq.
pub fn password(file: &Path, host: &str, port: u16, database: &str, user: &str) -> Option<String> {
    if group_can_read(file) {
        return None;
    }
    let text = fs::read_to_string(file).ok()?;
    let port = port.to_string();
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| {
            let fields = fields(line);
            let [host_is, port_is, database_is, user_is, password] = &fields[..] else {
                return None;
            };
            let fits = |field: &Field, value: &str| field.any || field.text == value;
            let all = fits(host_is, host)
                && fits(port_is, &port)
                && fits(database_is, database)
                && fits(user_is, user);
            (all && !password.text.is_empty()).then(|| password.text.clone())
        })
}

/// libpq ignores a password file that group or others can read, and so do we.
pub fn group_can_read(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|facts| facts.permissions().mode() & 0o077 != 0)
}

struct Field {
    text: String,
    /// A bare `*`.
    any: bool,
}

/// Five fields between colons; `\` escapes a colon or itself. The password is the rest of the line.
fn fields(line: &str) -> Vec<Field> {
    let mut fields = vec![Field {
        text: String::new(),
        any: false,
    }];
    let mut chars = line.trim_end_matches('\r').chars();
    while let Some(c) = chars.next() {
        let last = fields.len() - 1;
        match c {
            ':' if last < 4 => {
                fields[last].any &= fields[last].text == "*";
                fields.push(Field {
                    text: String::new(),
                    any: false,
                });
            }
            '\\' => fields[last].text.extend(chars.next()),
            '*' if fields[last].text.is_empty() => {
                fields[last].text.push('*');
                fields[last].any = true;
            }
            c => fields[last].text.push(c),
        }
    }
    fields
}

/// The parameters of `[service]`; `None` when the file or the section isn't there.
pub fn service(file: &Path, service: &str) -> Result<Option<Vec<(String, String)>>, String> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut found = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            if found.is_some() {
                break;
            }
            found = (name.0 == service).then(Vec::new);
        } else if let Some(found) = &mut found {
            let (key, value) = line
                .split_once('=')
                .ok_or_else(|| format!("line {}: no `=`", number + 1))?;
            if matches!(key.trim(), "service" | "servicefile") {
                return Err(format!(
                    "line {}: a service cannot name another one",
                    number + 1
                ));
            }
            found.push((key.trim().to_string(), value.trim().to_string()));
        }
    }
    Ok(found)
}

/// Whether a private key's file is open to others. As in libpq, a file of root may be readable by
/// its group.
pub fn key_is_exposed(file: &Path) -> io::Result<bool> {
    let facts = fs::metadata(file)?;
    let forbidden = if facts.uid() == 0 { 0o037 } else { 0o077 };
    Ok(facts.permissions().mode() & forbidden != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn the_first_line_that_fits_gives_the_password() {
        let text = "# db:5432:app:walpost:comment\n\
            db:5433:*:*:other port\n\
            db:5432:app:someone:other user\n\
            short:line\n\
            db:5432:app:walpost:with\\:colon\\\\and:more\r\n\
            a\\:b:*:*:*:escaped\n\
            \\*:*:*:*:a host named star\n\
            localhost:*:*:*:*\n\
            db:*:*:*:too late";
        let file = file(text, 0o600);
        let password =
            |host, port, database, user| password(file.path(), host, port, database, user);
        assert_eq!(
            password("db", 5432, "app", "walpost").as_deref(),
            Some("with:colon\\and:more")
        );
        assert_eq!(
            password("db", 5433, "x", "y").as_deref(),
            Some("other port")
        );
        assert_eq!(password("a:b", 1, "x", "y").as_deref(), Some("escaped"));
        assert_eq!(
            password("*", 1, "x", "y").as_deref(),
            Some("a host named star")
        );
        assert_eq!(password("localhost", 1, "x", "y").as_deref(), Some("*"));
        assert_eq!(password("elsewhere", 1, "x", "y"), None);
    }

    #[test]
    fn a_password_file_that_others_can_read_is_ignored() {
        let open = file("*:*:*:*:secret", 0o640);
        assert_eq!(password(open.path(), "h", 1, "d", "u"), None);
        assert!(group_can_read(open.path()));
        assert_eq!(
            password(Path::new("/nowhere/pgpass"), "h", 1, "d", "u"),
            None
        );
        assert!(!group_can_read(Path::new("/nowhere/pgpass")));
    }

    #[test]
    fn a_service_is_a_section() {
        let file = file(
            "# comment\n[a]\nhost=x\n\n[b]\n host = y \nport=5433\noptions=-c a=b\n[c]\nservice=a\n[d]\nhost\n",
            0o644,
        );
        let pairs = |list: &[(&str, &str)]| {
            Some(
                list.iter()
                    .map(|(k, v)| (k.to_string(), v.to_string()))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(service(file.path(), "a"), Ok(pairs(&[("host", "x")])));
        assert_eq!(
            service(file.path(), "b"),
            Ok(pairs(&[
                ("host", "y"),
                ("port", "5433"),
                ("options", "-c a=b")
            ]))
        );
        assert_eq!(
            service(file.path(), "c"),
            Err("line 10: a service cannot name another one".into())
        );
        assert_eq!(service(file.path(), "d"), Err("line 12: no `=`".into()));
        assert_eq!(service(file.path(), "e"), Ok(None));
        assert_eq!(service(Path::new("/nowhere/service"), "a"), Ok(None));
    }
}

//! Where a password comes from, and libpq's password file.
//! <https://www.postgresql.org/docs/current/libpq-pgpass.html>

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use tracing::warn;

use super::host::{Address, Host, SOCKETS};
use crate::config::Secret;

/// Where a password may come from, in this order.
#[derive(Clone, Debug)]
pub struct Passwords {
    pub string: Option<Secret>,
    pub file: Option<PathBuf>,
    pub variable: Option<Secret>,
    pub passfile: Option<PathBuf>,
}

/// A password and where it came from.
#[derive(Clone, Debug)]
pub struct Password {
    pub text: Secret,
    pub source: String,
}

impl Passwords {
    /// Files are read anew each time.
    pub fn find(
        &self,
        host: &Host,
        database: &str,
        user: &str,
    ) -> anyhow::Result<Option<Password>> {
        let found = |text: &Secret, source: &str| {
            Ok(Some(Password {
                text: text.clone(),
                source: source.into(),
            }))
        };
        if let Some(text) = &self.string {
            return found(text, "the connection string");
        }
        if let Some(file) = &self.file {
            let source = format!("postgres.password_file {}", file.display());
            let text = fs::read_to_string(file).with_context(|| format!("cannot read {source}"))?;
            return found(
                &Secret::new(text.lines().next().unwrap_or_default()),
                &source,
            );
        }
        if let Some(text) = &self.variable {
            return found(text, "PGPASSWORD");
        }
        let Some(file) = &self.passfile else {
            return Ok(None);
        };
        let name = match &host.address {
            Address::Tcp { name, ip: Some(ip) } if name.is_empty() => &ip.to_string(),
            Address::Tcp { name, .. } => name,
            Address::Unix(folder) if folder == Path::new(SOCKETS) => "localhost",
            Address::Unix(folder) => &folder.display().to_string(),
        };
        match in_file(file, name, host.port, database, user) {
            Some(text) => found(
                &Secret::new(text),
                &format!("password file {}", file.display()),
            ),
            None => Ok(None),
        }
    }

    /// Tells once about what is not read.
    pub fn warn(&self) {
        match self {
            Passwords {
                string: Some(_),
                file: Some(_),
                ..
            } => {
                warn!("postgres.password_file is not read: the connection string has a password");
            }
            Passwords {
                string: None,
                file: None,
                variable: None,
                passfile: Some(file),
            } if others_can_read(file) => {
                let file = file.display();
                warn!(
                    "password file {file} is ignored: group or others can read it; chmod 600 {file}"
                );
            }
            _ => {}
        }
    }
}

/// The password of the first line that fits. A missing file has none, as in libpq.
fn in_file(file: &Path, host: &str, port: u16, database: &str, user: &str) -> Option<String> {
    if others_can_read(file) {
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
fn others_can_read(file: &Path) -> bool {
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
            |host, port, database, user| in_file(file.path(), host, port, database, user);
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
        assert_eq!(in_file(open.path(), "h", 1, "d", "u"), None);
        assert!(others_can_read(open.path()));
        assert_eq!(
            in_file(Path::new("/nowhere/pgpass"), "h", 1, "d", "u"),
            None
        );
        assert!(!others_can_read(Path::new("/nowhere/pgpass")));
    }
}

//! Where and as whom to connect: what libpq's strings, files and variables say, in one struct.
//!
//! Precedence is libpq's: the string, then the service file, then `PG*`, then defaults.
//! `tokio_postgres::Config` reads no file and no variable and knows four of the six `sslmode`s,
//! so it only gets the result.

mod files;
mod keywords;
mod string;

use std::{
    fmt, fs,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context;
use tokio_postgres::config::ChannelBinding;
use tracing::warn;

pub use files::key_is_exposed;
use keywords::Parameters;

use super::tls;
use crate::{
    config::{Env, Postgres, Secret},
    error::{Exit, Stop},
    stop,
};

/// Debian's directory of sockets, used when no host is given.
const SOCKETS: &str = "/var/run/postgresql";
const PORT: u16 = 5432;
/// Per address, from the name's look-up to the end of the login. libpq waits for ever.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Start-up parameters of every connection, so that neither a role's nor a database's settings
/// change how a value is written. The first five are what PostgreSQL's own subscriber sends.
const PINNED: [(&str, &str); 7] = [
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO"),
    ("IntervalStyle", "postgres"),
    ("extra_float_digits", "3"),
    ("TimeZone", "UTC"),
    ("bytea_output", "hex"),
    ("search_path", "pg_catalog"),
];

#[derive(Clone, Debug)]
pub struct ConnInfo {
    /// Tried in this order; at least one.
    pub hosts: Vec<Host>,
    pub user: String,
    pub database: String,
    /// Command-line options for the session, as the user gave them. They cannot undo what we pin.
    pub options: Option<String>,
    pub channel_binding: ChannelBinding,
    pub target_session_attrs: SessionAttrs,
    /// Per address, from the name's look-up to the end of the login; `None` waits for ever.
    pub connect_timeout: Option<Duration>,
    pub tcp: Tcp,
    pub tls: Tls,
    passwords: Passwords,
    /// Set by the first login that worked; shared by all clones.
    logged_in: Arc<AtomicBool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub address: Address,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `ip`, if given, saves the look-up; the name is still what a certificate must have.
    Tcp { name: String, ip: Option<IpAddr> },
    /// The directory of the socket `.s.PGSQL.<port>`.
    Unix(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionAttrs {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

/// How a TCP connection notices that the other side is gone. `None`: the system's own value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    pub keepalives: bool,
    pub idle: Option<Duration>,
    pub interval: Option<Duration>,
    pub count: Option<u32>,
    pub user_timeout: Option<Duration>,
}

/// libpq's `sslmode`, from weak to strong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

#[derive(Clone, Debug)]
pub struct Tls {
    pub mode: SslMode,
    pub root: Root,
    /// Certificate and key of the client.
    pub identity: Option<(PathBuf, PathBuf)>,
    pub key_password: Option<Secret>,
    pub revoked: Option<PathBuf>,
}

/// Who may sign the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// Nobody is asked; `verify-ca` and `verify-full` are impossible.
    None,
    File(PathBuf),
    /// The authorities that the operating system trusts.
    System,
}

/// Where a password may come from, in this order.
#[derive(Clone, Debug)]
struct Passwords {
    string: Option<Secret>,
    file: Option<PathBuf>,
    variable: Option<Secret>,
    passfile: Option<PathBuf>,
}

/// A password and where it came from.
#[derive(Clone, Debug)]
pub struct Password {
    pub text: Secret,
    pub source: String,
}

impl ConnInfo {
    /// Everything that `postgres` and the environment say. Files of certificates, keys and
    /// passwords are looked at too, so that a wrong path ends the command at its start; later
    /// they are read again at each connection, and trouble with them is passing.
    pub fn resolve(postgres: &Postgres, env: &Env) -> Result<ConnInfo, Stop> {
        let given = Parameters::collect(postgres, env)?;
        let home = env
            .filled("HOME")?
            .map(|home| Path::new(home).join(".postgresql"));
        let user = match given.filled("user") {
            Some(user) => user.to_string(),
            None => whoami::username().map_err(|error| {
                stop!(
                    Exit::Usage,
                    "no user in postgres.url or PGUSER, and none of this process: {error}"
                )
            })?,
        };
        let passfile = given.filled("passfile").map(PathBuf::from);
        let passfile = match (passfile, env.filled("HOME")?) {
            (None, Some(home)) => Some(Path::new(home).join(".pgpass")),
            (named, _) => named,
        };
        let string = given.filled("password").map(Secret::new);
        if string.is_some() && postgres.password_file.is_some() {
            warn!("postgres.password_file is not read: the connection string has a password");
        }
        let info = ConnInfo {
            hosts: hosts(&given)?,
            database: given.filled("dbname").unwrap_or(&user).to_string(),
            user,
            options: given.filled("options").map(String::from),
            channel_binding: given.word("channel_binding", "prefer", |word| {
                Some(match word {
                    "disable" => ChannelBinding::Disable,
                    "prefer" => ChannelBinding::Prefer,
                    "require" => ChannelBinding::Require,
                    _ => return None,
                })
            })?,
            target_session_attrs: given.word("target_session_attrs", "any", |word| {
                Some(match word {
                    "any" => SessionAttrs::Any,
                    "read-write" => SessionAttrs::ReadWrite,
                    "read-only" => SessionAttrs::ReadOnly,
                    "primary" => SessionAttrs::Primary,
                    "standby" => SessionAttrs::Standby,
                    "prefer-standby" => SessionAttrs::PreferStandby,
                    _ => return None,
                })
            })?,
            connect_timeout: match given.number::<i32>("connect_timeout")? {
                None => Some(CONNECT_TIMEOUT),
                Some(seconds) => u64::try_from(seconds)
                    .ok()
                    .filter(|&s| s > 0)
                    .map(Duration::from_secs),
            },
            tcp: tcp(&given, postgres.receive_timeout)?,
            tls: tls(&given, home.as_deref())?,
            passwords: Passwords {
                string,
                file: postgres.password_file.clone(),
                variable: env.filled("PGPASSWORD")?.map(Secret::new),
                passfile,
            },
            logged_in: Arc::default(),
        };
        info.look_at_files()?;
        Ok(info)
    }

    fn look_at_files(&self) -> Result<(), Stop> {
        let usage = |error: anyhow::Error| stop!(Exit::Usage, "{error:#}");
        if let Some(file) = self
            .passwords
            .passfile
            .as_deref()
            .filter(|file| files::group_can_read(file))
        {
            let file = file.display();
            warn!("password file {file} is ignored: group or others can read it; chmod 600 {file}");
        }
        for host in &self.hosts {
            self.password(host).map_err(usage)?;
            let Address::Tcp { name, .. } = &host.address else {
                continue;
            };
            if self.tls.mode == SslMode::VerifyFull && name.is_empty() {
                return Err(stop!(
                    Exit::Usage,
                    "sslmode=verify-full needs the name of each host, not hostaddr alone"
                ));
            }
            if self.tls.mode > SslMode::Disable {
                tls::connector(&self.tls).map_err(usage)?;
            }
        }
        Ok(())
    }

    /// The password for this host, read anew; `None` when there is none anywhere.
    pub fn password(&self, host: &Host) -> anyhow::Result<Option<Password>> {
        let Passwords {
            string,
            file,
            variable,
            passfile,
        } = &self.passwords;
        let found = |text: &Secret, source: &str| {
            Some(Password {
                text: text.clone(),
                source: source.into(),
            })
        };
        if let Some(text) = string {
            return Ok(found(text, "the connection string"));
        }
        if let Some(file) = file {
            let name = file.display();
            let text = fs::read_to_string(file)
                .with_context(|| format!("cannot read postgres.password_file {name}"))?;
            let first = Secret::new(text.lines().next().unwrap_or_default());
            return Ok(found(&first, &format!("postgres.password_file {name}")));
        }
        if let Some(text) = variable {
            return Ok(found(text, "PGPASSWORD"));
        }
        let Some(file) = passfile else {
            return Ok(None);
        };
        let name = match &host.address {
            Address::Tcp { name, ip: Some(ip) } if name.is_empty() => &ip.to_string(),
            Address::Tcp { name, .. } => name,
            Address::Unix(folder) if folder == Path::new(SOCKETS) => "localhost",
            Address::Unix(folder) => &folder.display().to_string(),
        };
        let text = files::password(file, name, host.port, &self.database, &self.user);
        Ok(text.map(|text| Password {
            text: Secret::new(text),
            source: format!("password file {}", file.display()),
        }))
    }

    /// What every start-up packet carries besides the user: database, the user's `options`, and
    /// what we pin, which wins over them.
    pub fn startup_parameters(&self) -> Vec<(String, String)> {
        let database = ("database", self.database.as_str());
        let options = self
            .options
            .iter()
            .map(|options| ("options", options.as_str()));
        let all = [database].into_iter().chain(options).chain(PINNED);
        all.map(|(name, value)| (name.to_string(), value.to_string()))
            .collect()
    }

    /// The same as command-line options, for tokio_postgres, whose start-up packet takes nothing
    /// else. It sends the encoding itself.
    pub(super) fn startup_options(&self) -> String {
        let pinned = PINNED.iter().filter(|(name, _)| *name != "client_encoding");
        let pinned = pinned.map(|(name, value)| format!("-c {name}={value}"));
        self.options
            .iter()
            .cloned()
            .chain(pinned)
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Whether this process has not logged in anywhere yet: a refused login is then a typing error.
    pub fn is_first(&self) -> bool {
        !self.logged_in.load(Relaxed)
    }

    pub(super) fn has_logged_in(&self) {
        self.logged_in.store(true, Relaxed);
    }
}

impl SessionAttrs {
    /// By the two parameters that a server reports at login (from version 14).
    pub fn accept(self, in_hot_standby: bool, read_only: bool) -> bool {
        match self {
            SessionAttrs::Any | SessionAttrs::PreferStandby => true,
            SessionAttrs::ReadWrite => !in_hot_standby && !read_only,
            SessionAttrs::ReadOnly => in_hot_standby || read_only,
            SessionAttrs::Primary => !in_hot_standby,
            SessionAttrs::Standby => in_hot_standby,
        }
    }
}

impl fmt::Display for SessionAttrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SessionAttrs::Any => "any",
            SessionAttrs::ReadWrite => "read-write",
            SessionAttrs::ReadOnly => "read-only",
            SessionAttrs::Primary => "primary",
            SessionAttrs::Standby => "standby",
            SessionAttrs::PreferStandby => "prefer-standby",
        })
    }
}

impl fmt::Display for SslMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SslMode::Disable => "disable",
            SslMode::Allow => "allow",
            SslMode::Prefer => "prefer",
            SslMode::Require => "require",
            SslMode::VerifyCa => "verify-ca",
            SslMode::VerifyFull => "verify-full",
        })
    }
}

impl fmt::Display for Host {
    /// `name:port`, or the socket's path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.port;
        match &self.address {
            Address::Tcp { name, ip: Some(ip) } if name.is_empty() => {
                write!(f, "{}", std::net::SocketAddr::new(*ip, port))
            }
            Address::Tcp { name, .. } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Address::Tcp { name, .. } => write!(f, "{name}:{port}"),
            Address::Unix(_) => write!(f, "{}", self.socket().display()),
        }
    }
}

impl Host {
    /// The path of its socket.
    pub(super) fn socket(&self) -> PathBuf {
        match &self.address {
            Address::Unix(folder) => folder.join(format!(".s.PGSQL.{}", self.port)),
            Address::Tcp { .. } => PathBuf::new(),
        }
    }
}

/// Pairs up the lists of hosts, addresses and ports.
fn hosts(given: &Parameters) -> Result<Vec<Host>, Stop> {
    let list = |key| {
        given
            .get(key)
            .map(|text| text.split(',').map(str::trim).collect::<Vec<_>>())
    };
    let (names, addresses, ports) = (
        list("host"),
        list("hostaddr"),
        list("port").unwrap_or(vec![""]),
    );
    let count = addresses.as_ref().or(names.as_ref()).map_or(1, Vec::len);
    if names.as_ref().is_some_and(|names| names.len() != count) {
        return Err(given.wrong(
            "hostaddr",
            format!("{count} addresses for another number of hosts"),
        ));
    }
    if ports.len() != 1 && ports.len() != count {
        return Err(given.wrong("port", format!("{} ports for {count} hosts", ports.len())));
    }
    let host = |at: usize| {
        let port = match ports[if ports.len() == 1 { 0 } else { at }] {
            "" => PORT,
            text => text
                .parse()
                .ok()
                .filter(|&port| port > 0)
                .ok_or_else(|| given.wrong("port", "must be 1 to 65535".into()))?,
        };
        let name = names.as_ref().map_or("", |names| names[at]);
        if name.contains('@') {
            return Err(given.wrong(
                "host",
                "a host's name has no `@`; write one in a user or password as %40".into(),
            ));
        }
        let ip =
            match addresses.as_ref().map_or("", |addresses| addresses[at]) {
                "" => None,
                text => Some(text.parse().map_err(|_| {
                    given.wrong("hostaddr", format!("`{text}` is not an IP address"))
                })?),
            };
        let address = match ip {
            None if name.is_empty() => Address::Unix(SOCKETS.into()),
            None if name.starts_with('/') => Address::Unix(name.into()),
            ip => Address::Tcp {
                name: name.to_string(),
                ip,
            },
        };
        Ok(Host { address, port })
    };
    (0..count).map(host).collect()
}

/// What the string leaves out follows `receive_timeout`, so that a server that is gone is noticed
/// after that time also where nobody reads.
fn tcp(given: &Parameters, receive_timeout: Duration) -> Result<Tcp, Stop> {
    let positive = |seconds: i32| {
        u64::try_from(seconds)
            .ok()
            .filter(|&s| s > 0)
            .map(Duration::from_secs)
    };
    let part = |of: u32| Some((receive_timeout / of).max(Duration::from_secs(1)));
    Ok(Tcp {
        keepalives: given.number::<i32>("keepalives")? != Some(0),
        idle: given.number("keepalives_idle")?.map_or(part(2), positive),
        interval: given
            .number("keepalives_interval")?
            .map_or(part(6), positive),
        count: given
            .number("keepalives_count")?
            .map_or(Some(3), |count: i32| {
                u32::try_from(count).ok().filter(|&n| n > 0)
            }),
        user_timeout: given
            .number("tcp_user_timeout")?
            .map_or(Some(receive_timeout), |ms: i32| {
                u64::try_from(ms)
                    .ok()
                    .filter(|&ms| ms > 0)
                    .map(Duration::from_millis)
            }),
    })
}

/// `home` is `~/.postgresql`, where libpq's own files are.
fn tls(given: &Parameters, home: Option<&Path>) -> Result<Tls, Stop> {
    let default = |name: &str| {
        home.map(|home| home.join(name))
            .filter(|file| file.exists())
    };
    let file = |key: &str, name: &str| {
        given
            .filled(key)
            .map(PathBuf::from)
            .or_else(|| default(name))
    };
    let system = given.filled("sslrootcert") == Some("system");
    let mode = given.word(
        "sslmode",
        if system { "verify-full" } else { "prefer" },
        |word| {
            use SslMode::*;
            [Disable, Allow, Prefer, Require, VerifyCa, VerifyFull]
                .into_iter()
                .find(|mode| mode.to_string() == word)
        },
    )?;
    if system && mode != SslMode::VerifyFull {
        return Err(given.wrong("sslrootcert", format!("system needs sslmode=verify-full: with {mode} any of its many authorities could vouch for any name")));
    }
    let root = if system {
        Root::System
    } else {
        file("sslrootcert", "root.crt").map_or(Root::None, Root::File)
    };
    if root == Root::None && mode >= SslMode::VerifyCa {
        return Err(given.wrong("sslmode", format!("{mode} needs a root certificate: set sslrootcert to its file, or to system with verify-full")));
    }
    let identity = match (
        file("sslcert", "postgresql.crt"),
        file("sslkey", "postgresql.key"),
    ) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (Some(_), None) => {
            return Err(given.wrong(
                "sslcert",
                "a certificate without its key: set sslkey".into(),
            ));
        }
        (None, _) => None,
    };
    if root == Root::None && given.filled("sslcrl").is_some() {
        return Err(given.wrong(
            "sslcrl",
            "revocations need a root certificate: set sslrootcert".into(),
        ));
    }
    let key_password = given.get("sslpassword").map(Secret::new);
    Ok(Tls {
        mode,
        root,
        identity,
        key_password,
        revoked: file("sslcrl", "root.crl"),
    })
}

impl Parameters {
    /// One of several words.
    fn word<T>(
        &self,
        key: &str,
        default: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<T, Stop> {
        let word = self.filled(key).unwrap_or(default);
        read(word).ok_or_else(|| self.wrong(key, format!("`{word}` is not one of its values")))
    }

    fn number<T: FromStr>(&self, key: &str) -> Result<Option<T>, Stop> {
        let read = |text: &str| {
            text.trim()
                .parse()
                .map_err(|_| self.wrong(key, format!("`{text}` is not a whole number")))
        };
        self.filled(key).map(read).transpose()
    }
}

#[cfg(test)]
mod tests;

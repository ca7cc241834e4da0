//! Session, TCP and TLS settings: the words and numbers of libpq's keywords.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use tokio_postgres::config::ChannelBinding;

use super::keywords::Parameters;
use crate::{config::Secret, error::Stop};

/// Per address, from the name's look-up to the end of the login. libpq waits for ever.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What the server must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionAttrs {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

const SESSION_ATTRS: [(&str, SessionAttrs); 6] = [
    ("any", SessionAttrs::Any),
    ("read-write", SessionAttrs::ReadWrite),
    ("read-only", SessionAttrs::ReadOnly),
    ("primary", SessionAttrs::Primary),
    ("standby", SessionAttrs::Standby),
    ("prefer-standby", SessionAttrs::PreferStandby),
];

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

const SSL_MODES: [(&str, SslMode); 6] = [
    ("disable", SslMode::Disable),
    ("allow", SslMode::Allow),
    ("prefer", SslMode::Prefer),
    ("require", SslMode::Require),
    ("verify-ca", SslMode::VerifyCa),
    ("verify-full", SslMode::VerifyFull),
];

const CHANNEL_BINDINGS: [(&str, ChannelBinding); 3] = [
    ("disable", ChannelBinding::Disable),
    ("prefer", ChannelBinding::Prefer),
    ("require", ChannelBinding::Require),
];

/// How a TCP connection notices that the other side is gone. `None`: the system's own value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    pub keepalives: bool,
    pub idle: Option<Duration>,
    pub interval: Option<Duration>,
    pub count: Option<u32>,
    pub user_timeout: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct Tls {
    pub mode: SslMode,
    pub root: Root,
    /// Certificate and key of the client.
    pub identity: Option<(PathBuf, PathBuf)>,
    pub key_password: Option<Secret>,
    /// Revoked certificates; only with a root.
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

impl SessionAttrs {
    pub fn read(given: &Parameters) -> Result<Self, Stop> {
        given.word("target_session_attrs", "any", &SESSION_ATTRS)
    }

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

impl Tcp {
    /// What the string leaves out follows `receive_timeout`, so that a server that is gone is
    /// noticed after that time also where nobody reads.
    pub fn read(given: &Parameters, receive_timeout: Duration) -> Result<Tcp, Stop> {
        let seconds = |number| positive(number).map(Duration::from_secs);
        let part = |of: u32| Some((receive_timeout / of).max(Duration::from_secs(1)));
        let count = given.number("keepalives_count")?;
        let user_timeout = given.number("tcp_user_timeout")?;
        Ok(Tcp {
            keepalives: given.number("keepalives")? != Some(0),
            idle: given.number("keepalives_idle")?.map_or(part(2), seconds),
            interval: given
                .number("keepalives_interval")?
                .map_or(part(6), seconds),
            count: count.map_or(Some(3), |count| positive(count)?.try_into().ok()),
            user_timeout: user_timeout.map_or(Some(receive_timeout), |ms| {
                positive(ms).map(Duration::from_millis)
            }),
        })
    }
}

impl Tls {
    /// `home` is `~/.postgresql`, where libpq's own files are.
    pub fn read(given: &Parameters, home: Option<&Path>) -> Result<Tls, Stop> {
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
            &SSL_MODES,
        )?;
        if system && mode != SslMode::VerifyFull {
            let why = format!(
                "system needs sslmode=verify-full: with {mode} any of its many authorities could vouch for any name"
            );
            return Err(given.wrong("sslrootcert", why));
        }
        let root = match file("sslrootcert", "root.crt") {
            _ if system => Root::System,
            Some(file) => Root::File(file),
            None => Root::None,
        };
        if root == Root::None && mode >= SslMode::VerifyCa {
            let why = format!(
                "{mode} needs a root certificate: set sslrootcert to its file, or to system with verify-full"
            );
            return Err(given.wrong("sslmode", why));
        }
        if root == Root::None && given.filled("sslcrl").is_some() {
            let why = "revocations need a root certificate: set sslrootcert";
            return Err(given.wrong("sslcrl", why.into()));
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
        let key_password = given.get("sslpassword").map(Secret::new);
        let revoked = file("sslcrl", "root.crl");
        Ok(Tls {
            mode,
            root,
            identity,
            key_password,
            revoked,
        })
    }
}

pub fn channel_binding(given: &Parameters) -> Result<ChannelBinding, Stop> {
    given.word("channel_binding", "prefer", &CHANNEL_BINDINGS)
}

pub fn connect_timeout(given: &Parameters) -> Result<Option<Duration>, Stop> {
    let seconds = given.number("connect_timeout")?;
    Ok(seconds.map_or(Some(CONNECT_TIMEOUT), |seconds| {
        positive(seconds).map(Duration::from_secs)
    }))
}

/// In libpq zero and less mean "not set".
fn positive(number: i32) -> Option<u64> {
    u64::try_from(number).ok().filter(|&number| number > 0)
}

impl Parameters {
    /// One of several words.
    fn word<T: Copy>(&self, key: &str, default: &str, words: &[(&str, T)]) -> Result<T, Stop> {
        let given = self.filled(key).unwrap_or(default);
        let found = words
            .iter()
            .find(|(word, _)| *word == given)
            .map(|(_, value)| *value);
        found.ok_or_else(|| {
            let all: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(key, format!("`{given}` is none of {}", all.join(", ")))
        })
    }

    fn number(&self, key: &str) -> Result<Option<i32>, Stop> {
        let read = |text: &str| {
            let number = i32::from_str(text.trim());
            number.map_err(|_| self.wrong(key, format!("`{text}` is not a whole number")))
        };
        self.filled(key).map(read).transpose()
    }
}

fn name_of<T: PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words
        .iter()
        .find(|(_, is)| *is == value)
        .map_or("", |(word, _)| word)
}

impl fmt::Display for SessionAttrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&SESSION_ATTRS, *self))
    }
}

impl fmt::Display for SslMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&SSL_MODES, *self))
    }
}

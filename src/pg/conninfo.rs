//! Where and as whom to connect: what libpq's strings, files and variables say, in one struct.
//!
//! Precedence is libpq's: the string, then the service file, then `PG*`, then defaults.
//! `tokio_postgres::Config` reads no file and no variable and knows four of the six `sslmode`s,
//! so it only gets the result.

mod host;
mod keywords;
mod password;
mod service;
mod settings;
mod string;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio_postgres::config::ChannelBinding;

pub use host::{Address, Host, socket};
use keywords::Parameters;
pub use password::Password;
use password::Passwords;
pub use settings::{Root, SessionAttrs, SslMode, Tcp, Tls};

use super::tls;
use crate::{
    config::{Env, Postgres, Secret, Setting},
    error::{Exit, Stop},
    stop,
};

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
        let info = ConnInfo {
            hosts: host::hosts(&given)?,
            database: given.filled("dbname").unwrap_or(&user).to_string(),
            user,
            options: given.filled("options").map(String::from),
            channel_binding: settings::channel_binding(&given)?,
            target_session_attrs: SessionAttrs::read(&given)?,
            connect_timeout: settings::connect_timeout(&given)?,
            tcp: Tcp::read(&given, postgres.receive_timeout)?,
            tls: Tls::read(&given, home.as_deref())?,
            passwords: Passwords {
                string: given.filled("password").map(Secret::new),
                file: postgres.password_file.clone(),
                variable: env.filled("PGPASSWORD")?.map(Secret::new),
                passfile,
            },
            logged_in: Arc::default(),
        };
        info.look_at_files()?;
        Ok(info)
    }

    /// Each parameter that is set, and where; the password only by where it is from.
    pub fn settings(&self, postgres: &Postgres, env: &Env) -> Result<Vec<Setting>, Stop> {
        let mut settings: Vec<_> = Parameters::collect(postgres, env)?.settings().collect();
        let from = |host| self.password(host).ok().flatten();
        if let Some(password) = self.hosts.iter().find_map(from)
            && !settings.iter().any(|setting| setting.key == "password")
        {
            settings.push(Setting {
                key: "password".into(),
                value: None,
                from: password.source,
            });
        }
        Ok(settings)
    }

    fn look_at_files(&self) -> Result<(), Stop> {
        let usage = |error: anyhow::Error| stop!(Exit::Usage, "{error:#}");
        self.passwords.warn();
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
        self.passwords.find(host, &self.database, &self.user)
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

#[cfg(test)]
mod tests;

//! The parameters we know, and their values gathered from string, service file and `PG*`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{service, string};
use crate::{
    config::{Env, Postgres, Setting},
    error::{Exit, Stop},
    stop,
};

/// libpq's keyword and variable; "" where libpq has no variable. PGPASSWORD is not here: the
/// password file of the configuration comes before it.
const KEYWORDS: [(&str, &str); 23] = [
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("dbname", "PGDATABASE"),
    ("user", "PGUSER"),
    ("password", ""),
    ("passfile", "PGPASSFILE"),
    ("service", "PGSERVICE"),
    ("options", "PGOPTIONS"),
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("sslpassword", ""),
    ("sslcrl", "PGSSLCRL"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("keepalives", ""),
    ("keepalives_idle", ""),
    ("keepalives_interval", ""),
    ("keepalives_count", ""),
    ("tcp_user_timeout", ""),
];

/// `options` can set anything.
const SECRET: [&str; 3] = ["password", "sslpassword", "options"];

/// What libpq takes and we don't: refused rather than ignored, because a connection could be less
/// safe than its user believes.
const REFUSED: [&str; 26] = [
    "fallback_application_name",
    "gssdelegation",
    "gssencmode",
    "gsslib",
    "krbsrvname",
    "load_balance_hosts",
    "max_protocol_version",
    "min_protocol_version",
    "oauth_client_id",
    "oauth_client_secret",
    "oauth_issuer",
    "oauth_scope",
    "require_auth",
    "requirepeer",
    "requiressl",
    "scram_client_key",
    "scram_server_key",
    "servicefile",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcertmode",
    "sslcompression",
    "sslcrldir",
    "sslkeylogfile",
    "sslnegotiation",
    "sslsni",
];

/// Debian's place for the system's service file.
const SYSCONFDIR: &str = "/etc/postgresql-common";

/// Each parameter's value and where it came from, for messages.
pub struct Parameters(BTreeMap<&'static str, (String, String)>);

impl Parameters {
    pub fn collect(postgres: &Postgres, env: &Env) -> Result<Parameters, Stop> {
        let mut found = Parameters(BTreeMap::new());
        if let Some(url) = &postgres.url {
            let shared = env.get("DATABASE_URL")? == Some(url.reveal());
            let from = if shared {
                "DATABASE_URL"
            } else {
                "postgres.url"
            };
            let pairs =
                string::parse(url.reveal()).map_err(|why| stop!(Exit::Usage, "{from}: {why}"))?;
            for (key, value) in pairs {
                let key = known(&key).map_err(|why| stop!(Exit::Usage, "{from}: {why}"))?;
                found.0.insert(key, (value, from.to_string()));
            }
        }
        let service = match found.filled("service") {
            Some(service) => Some(service.to_string()),
            None => env.filled("PGSERVICE")?.map(String::from),
        };
        if let Some(service) = service {
            for (key, value, from) in read_service(&service, env)? {
                found.0.entry(key).or_insert((value, from));
            }
        }
        for (key, variable) in KEYWORDS.iter().filter(|(_, variable)| !variable.is_empty()) {
            if let Some(value) = env.filled(variable)? {
                found
                    .0
                    .entry(key)
                    .or_insert((value.to_string(), variable.to_string()));
            }
        }
        Ok(found)
    }

    /// What is set, and where; what may be a secret without its value.
    pub fn settings(&self) -> impl Iterator<Item = Setting> {
        self.0.iter().map(|(key, (value, from))| Setting {
            key: (*key).to_string(),
            value: (!SECRET.contains(key)).then(|| value.clone()),
            from: from.clone(),
        })
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(|(value, _)| value.as_str())
    }

    /// The value; empty is as good as left out.
    pub fn filled(&self, key: &str) -> Option<&str> {
        self.get(key).filter(|value| !value.is_empty())
    }

    pub fn wrong(&self, key: &str, why: String) -> Stop {
        let from = self.0.get(key).map_or("postgres.url", |(_, from)| from);
        stop!(Exit::Usage, "{from}: {key}: {why}")
    }
}

fn known(key: &str) -> Result<&'static str, String> {
    if let Some((keyword, _)) = KEYWORDS.iter().find(|(keyword, _)| *keyword == key) {
        return Ok(keyword);
    }
    Err(match key {
        "application_name" | "client_encoding" | "replication" => {
            format!("connection parameter `{key}` is set by walpost itself; leave it out")
        }
        key if REFUSED.contains(&key) => {
            format!("connection parameter `{key}` is not supported; leave it out")
        }
        key => {
            let alike = |keyword: &str| strsim::jaro(key, keyword);
            let nearest = KEYWORDS
                .iter()
                .map(|(keyword, _)| *keyword)
                .max_by(|a, b| alike(a).total_cmp(&alike(b)));
            let hint = nearest
                .filter(|name| alike(name) > 0.7)
                .map(|name| format!("; did you mean `{name}`?"));
            format!(
                "unknown connection parameter `{key}`{}",
                hint.unwrap_or_default()
            )
        }
    })
}

/// The service's parameters from the first file that has it: the user's, then the system's.
fn read_service(name: &str, env: &Env) -> Result<Vec<(&'static str, String, String)>, Stop> {
    let user = match env.filled("PGSERVICEFILE")? {
        Some(file) => Some(PathBuf::from(file)),
        None => env
            .filled("HOME")?
            .map(|home| Path::new(home).join(".pg_service.conf")),
    };
    let system =
        Path::new(env.filled("PGSYSCONFDIR")?.unwrap_or(SYSCONFDIR)).join("pg_service.conf");
    for file in user.into_iter().chain([system]) {
        let from = format!("service file {}", file.display());
        let wrong = |why: String| stop!(Exit::Usage, "{from}: {why}");
        if let Some(pairs) = service::read(&file, name).map_err(wrong)? {
            let pairs = pairs
                .into_iter()
                .map(|(key, value)| Ok((known(&key).map_err(wrong)?, value, from.clone())));
            return pairs.collect();
        }
    }
    Err(stop!(
        Exit::Usage,
        "service `{name}` is in no service file (PGSERVICEFILE, ~/.pg_service.conf, pg_service.conf of the system)"
    ))
}

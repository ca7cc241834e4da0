//! What a refused login or statement means, told apart by SQLSTATE alone: messages are translated
//! and change. <https://www.postgresql.org/docs/current/errcodes-appendix.html>

use std::{error::Error as _, io};

use anyhow::anyhow;
use tokio_postgres::error::SqlState;

use super::{conninfo::ConnInfo, open::Attempt, quote::ident, server_error::ServerError};
use crate::{
    error::{Exit, Failure},
    stop,
};

/// A login that failed.
#[derive(Debug)]
pub struct Refused {
    pub failure: Failure,
    /// Worth a try with TLS instead of without, or the other way round, if `sslmode` has both.
    pub other_way: bool,
}

/// The server is there and takes no connection now. While a stream is open it means that the server
/// is stopping.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CannotConnectNow(pub String);

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    Login,
    /// Login with `replication=database`.
    ReplicationLogin,
    Statement,
}

/// Whom an error concerns; its text is put before the server's.
pub struct Who<'a> {
    /// `host:port` or a socket's path; `None` where the connection isn't named any more.
    pub host: Option<String>,
    pub info: &'a ConnInfo,
}

impl std::fmt::Display for Who<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(host) = &self.host {
            write!(f, "{host}: ")?;
        }
        write!(
            f,
            "database {}, user {}",
            self.info.database, self.info.user
        )
    }
}

/// Sorts an error of the server. `message` is the server's text.
///
/// A refused login or an unknown database is a typing error until this process has logged in for
/// the first time, and passes later: the password may be about to change. Everything unknown
/// passes too. Objects that don't exist are the caller's: it knows which command makes them.
pub fn classify(code: &SqlState, message: &str, during: During, who: &Who) -> Failure {
    let info = who.info;
    let text = |advice: &str| {
        let semicolon = if advice.is_empty() { "" } else { "; " };
        anyhow!("{who}: {message} ({}){semicolon}{advice}", code.code())
    };
    let typing_error = |advice: &str| match info.is_first() {
        true => Failure::Stop(stop!(Exit::Error, "{}", text(advice))),
        false => Failure::Passing(text(advice)),
    };
    let login = during != During::Statement;
    let (user, database) = (ident(&info.user), ident(&info.database));
    match code {
        c if login
            && (*c == SqlState::INVALID_PASSWORD
                || *c == SqlState::INVALID_AUTHORIZATION_SPECIFICATION) =>
        {
            typing_error("check user and password in postgres.url, and pg_hba.conf")
        }
        c if login && *c == SqlState::INVALID_CATALOG_NAME => {
            typing_error("check the database in postgres.url")
        }
        c if login && *c == SqlState::PROTOCOL_VIOLATION => typing_error(
            "a pooler in between? connect to PostgreSQL itself: replication needs a session of its own",
        ),
        c if *c == SqlState::INSUFFICIENT_PRIVILEGE => {
            let advice = match during {
                During::Login => {
                    format!("as its owner: GRANT CONNECT ON DATABASE {database} TO {user}")
                }
                During::ReplicationLogin => {
                    format!("as a superuser: ALTER ROLE {user} REPLICATION")
                }
                During::Statement => format!("role {user} lacks the right"),
            };
            Failure::Stop(stop!(Exit::Error, "{}", text(&advice)))
        }
        c if *c == SqlState::TOO_MANY_CONNECTIONS => {
            let setting = match during {
                During::ReplicationLogin => "max_wal_senders",
                _ => "max_connections",
            };
            let advice = format!(
                "end other connections, raise {setting} (ALTER SYSTEM SET {setting} = …, then restart the server) \
                or the role's limit (ALTER ROLE {user} CONNECTION LIMIT -1)"
            );
            Failure::Passing(text(&advice))
        }
        c if *c == SqlState::CANNOT_CONNECT_NOW => {
            let text = text("the server is starting, stopping or recovering");
            Failure::Passing(CannotConnectNow(text.to_string()).into())
        }
        c if *c == SqlState::READ_ONLY_SQL_TRANSACTION => Failure::Passing(text(
            "the server is a standby or read-only; target_session_attrs=primary looks for another host",
        )),
        _ => Failure::Passing(text("")),
    }
}

impl Attempt {
    pub fn who(&self) -> Who<'_> {
        Who {
            host: Some(self.host.to_string()),
            info: &self.info,
        }
    }

    /// The server answered the login with an error.
    pub fn refused(&self, code: &SqlState, message: &str, during: During) -> Refused {
        let login = *code == SqlState::INVALID_PASSWORD
            || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION;
        let message = match (&self.password, login) {
            (Some(password), true) => {
                format!("{message} (the password is from {})", password.source)
            }
            (None, true) => format!("{message} (no password was found)"),
            _ => message.to_string(),
        };
        Refused {
            failure: classify(code, &message, during, &self.who()),
            // What pg_hba.conf says may differ for connections with and without TLS.
            other_way: *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        }
    }

    /// The two sides cannot agree on a login, or the server's proof is wrong: like a refusal.
    pub fn disagreed(&self, why: &str) -> Refused {
        let password = if self.password.is_none() {
            "; no password was found in postgres.url, postgres.password_file, PGPASSWORD or a password file"
        } else {
            ""
        };
        let who = self.who();
        let failure = match self.info.is_first() {
            true => Failure::Stop(stop!(Exit::Error, "{who}: {why}{password}")),
            false => Failure::Passing(anyhow!("{who}: {why}{password}")),
        };
        Refused {
            failure,
            other_way: false,
        }
    }

    /// The connection broke during login.
    pub fn broken(&self, error: impl Into<anyhow::Error>) -> Refused {
        let failure = Failure::Passing(error.into().context(self.who().to_string()));
        Refused {
            failure,
            other_way: false,
        }
    }

    /// The same for the replication connection, whose errors carry a [`ServerError`].
    pub(super) fn replication_refused(&self, failure: Failure) -> Refused {
        match failure {
            Failure::Passing(error) => match error.downcast::<ServerError>() {
                Ok(server) => self.refused(&server.code, &server.message, During::ReplicationLogin),
                Err(error) => self.broken(error),
            },
            stop => Refused {
                failure: stop,
                other_way: false,
            },
        }
    }

    /// The same for tokio_postgres.
    pub(super) fn sql_refused(&self, error: tokio_postgres::Error) -> Refused {
        if let Some(db) = error.as_db_error() {
            return self.refused(db.code(), &message(db), During::Login);
        }
        match error.source() {
            Some(cause) if !cause.is::<io::Error>() => {
                self.disagreed(&format!("cannot log in: {cause}"))
            }
            _ => self.broken(error),
        }
    }
}

/// A failed statement; `doing` is a verb phrase such as "read the slot".
pub fn of_statement(error: tokio_postgres::Error, doing: &str, info: &ConnInfo) -> Failure {
    let who = Who { host: None, info };
    match error.as_db_error() {
        Some(db) => classify(
            db.code(),
            &format!("cannot {doing}: {}", message(db)),
            During::Statement,
            &who,
        ),
        None => Failure::Passing(anyhow!(error).context(format!("{who}: cannot {doing}"))),
    }
}

fn message(error: &tokio_postgres::error::DbError) -> String {
    let detail = error.detail().map(|detail| format!(" ({detail})"));
    format!("{}{}", error.message(), detail.unwrap_or_default())
}

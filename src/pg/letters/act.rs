//! The verbs: each is a function of schema `walpost`, which decides, notes who did it and wakes the
//! publisher up.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio_postgres::{
    Client, Error,
    error::SqlState,
    types::{ToSql, Type},
};

use super::select::Status;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb<'a> {
    /// Publish this letter again.
    Replay(i64),
    /// Give this letter up.
    Ignore(i64, &'a str),
    /// Publish this event once more; makes a letter of its own.
    Resend(&'a str),
}

impl Verb<'_> {
    /// What a letter has to be for it.
    pub const REPLAYED: &'static [Status] = &[Status::Pending, Status::Dead];
    pub const IGNORED: &'static [Status] = &[Status::Pending, Status::Dead, Status::Held];
}

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The letter and its new status.
    Done {
        id: i64,
        status: String,
    },
    Refused(Refusal),
}

/// Why not.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// With its state, by whom and when.
    pub text: String,
    /// The letter whose state forbids it; `None` when there is no letter.
    pub letter: Option<Standing>,
}

/// What a letter is at the moment, and who made it that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    pub id: i64,
    pub status: String,
    pub held_behind: Option<i64>,
    pub acted_by: Option<String>,
    pub acted_at: Option<Timestamp>,
}

/// Does it, in a transaction of its own.
pub async fn act(client: &Client, verb: Verb<'_>) -> Result<Outcome, Error> {
    let done = match verb {
        Verb::Replay(id) => call(client, "SELECT walpost.replay($1)", &[(&id, Type::INT8)]).await,
        Verb::Ignore(id, reason) => {
            let values: &[Value] = &[(&id, Type::INT8), (&reason, Type::TEXT)];
            call(client, "SELECT walpost.ignore($1, $2)", values).await
        }
        Verb::Resend(event_id) => {
            let values: &[Value] = &[(&event_id, Type::TEXT)];
            call(client, "SELECT walpost.resend($1)", values).await
        }
    };
    match (done, verb) {
        (Ok(status), Verb::Replay(id) | Verb::Ignore(id, _)) => Ok(Outcome::Done { id, status }),
        (Ok(status), Verb::Resend(event_id)) => {
            let id = resent(client, event_id).await?;
            Ok(Outcome::Done { id, status })
        }
        (Err(error), _) => match error.as_db_error() {
            Some(db) if *db.code() == SqlState::RAISE_EXCEPTION => {
                let letter = db.detail().and_then(|json| serde_json::from_str(json).ok());
                let text = db.message().to_owned();
                Ok(Outcome::Refused(Refusal { text, letter }))
            }
            _ => Err(error),
        },
    }
}

type Value<'a> = (&'a (dyn ToSql + Sync), Type);

async fn call(client: &Client, text: &str, values: &[Value<'_>]) -> Result<String, Error> {
    client.query_typed(text, values).await?[0].try_get(0)
}

/// The letter of the last resend of an event.
async fn resent(client: &Client, event_id: &str) -> Result<i64, Error> {
    let text = "SELECT coalesce(pg_catalog.max(id), 0) FROM walpost.dead_letter WHERE event_id = $1 AND error_class = 'resend'";
    let rows = client.query_typed(text, &[(&event_id, Type::TEXT)]).await?;
    rows[0].try_get(0)
}

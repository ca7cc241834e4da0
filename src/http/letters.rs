//! `/api/dead-letters`: what `walpost dead-letters` does, over HTTP.

use std::time::Duration;

use axum::{
    Extension, Json,
    body::{Body, to_bytes},
    extract::{Path, Query, Request, State as Handed},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::info;

use super::{
    Shared,
    guard::{Ends, Forbidden},
};
use crate::pg::letters::{Outcome, Selection, Status, Verb, act, moment, one, page};

/// From the turn at the connection to the answer of the database.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A request whose body has not come by then is given up.
const BODY_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest body that is read, in bytes.
const LONGEST_BODY: usize = 64 << 10;

/// The longest list that is sent, in bytes: it is put together in memory.
const LONGEST_LIST: usize = 16 << 20;

/// An answer that is not 200.
pub struct Refused {
    code: StatusCode,
    body: Value,
}

fn refused(code: StatusCode, error: impl ToString) -> Refused {
    Refused {
        code,
        body: json!({ "error": error.to_string() }),
    }
}

impl From<Forbidden> for Refused {
    fn from(Forbidden(code, why): Forbidden) -> Refused {
        refused(code, why)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = (self.code, Json(self.body)).into_response();
        if self.code == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, bearer);
        }
        response
    }
}

/// What the database says, in time.
async fn answer<T>(asked: impl Future<Output = anyhow::Result<T>>) -> Result<T, Refused> {
    let unavailable = |why: String| refused(StatusCode::SERVICE_UNAVAILABLE, why);
    match timeout(ANSWER_TIMEOUT, asked).await {
        Ok(answer) => answer.map_err(|error| unavailable(format!("{error:#}"))),
        Err(_) => Err(unavailable(format!(
            "PostgreSQL has not answered within {} s; whether it was done shows in the list",
            ANSWER_TIMEOUT.as_secs()
        ))),
    }
}

/// The array of `dead-letters list --json`.
pub async fn list(
    Handed(shared): Handed<Shared>,
    Extension(ends): Extension<Ends>,
    headers: HeaderMap,
    Query(flags): Query<Vec<(String, String)>>,
) -> Result<Response, Refused> {
    let (selection, with_content) = selection(&shared.desk.slot, &flags)
        .map_err(|why| refused(StatusCode::BAD_REQUEST, why))?;
    if with_content {
        // The application's data is not for everybody who may look at figures.
        shared.guard.allow(ends, &headers)?;
    }
    let list = answer(async {
        let session = shared.desk.session().await?;
        let (mut text, mut after, mut so_far) = (String::from("["), 0, 0);
        loop {
            let letters = page(&session.client, &selection, with_content, after, so_far).await;
            let letters = letters.map_err(|error| shared.desk.trouble(error))?;
            let Some(last) = letters.last() else { break };
            (after, so_far) = (last.letter.id, so_far + letters.len() as u64);
            for letter in &letters {
                if text.len() > 1 {
                    text.push(',');
                }
                text.push_str(&serde_json::to_string(letter)?);
            }
            if text.len() > LONGEST_LIST {
                session.give_back();
                return Ok(None);
            }
        }
        session.give_back();
        text.push(']');
        Ok(Some(text))
    })
    .await?;
    match list {
        Some(text) => Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response()),
        None => Err(refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!(
                "the list is longer than {LONGEST_LIST} bytes: ask for less with limit, since or status"
            ),
        )),
    }
}

/// The flags of the command as query parameters.
fn selection(slot: &str, flags: &[(String, String)]) -> Result<(Selection, bool), String> {
    let mut selection = Selection {
        slot: slot.to_owned(),
        ..Selection::default()
    };
    let mut with_content = false;
    for (name, value) in flags {
        let text = || Some(value.clone());
        let number = |value: &str| format!("{name}: `{value}` is not a number");
        match name.as_str() {
            "id" => {
                let ids = value
                    .split(',')
                    .map(|id| id.parse().map_err(|_| number(id)));
                let ids: Vec<i64> = ids.collect::<Result<_, _>>()?;
                selection.ids.get_or_insert_default().extend(ids);
            }
            "event_id" | "event-id" => selection.event_id = text(),
            "key" => selection.key = text(),
            "topic" => selection.topic = text(),
            "code" => selection.code = text(),
            "status" => {
                let statuses = value
                    .split(',')
                    .map(|status| Status::from_str(status, false));
                let statuses: Vec<_> = statuses
                    .collect::<Result<_, _>>()
                    .map_err(|why| format!("status: {why}"))?;
                selection.statuses.get_or_insert_default().extend(statuses);
            }
            "since" => selection.since = Some(moment(value)?),
            "until" => selection.until = Some(moment(value)?),
            "limit" => selection.limit = Some(value.parse().map_err(|_| number(value))?),
            "payload" => with_content = flag(name, value)?,
            // There is no other limit than what is given.
            "all" if flag(name, value)? => selection.limit = None,
            "all" => {}
            _ => {
                return Err(format!(
                    "unknown parameter {name}: there are id, event_id, key, topic, code, status, since, until, limit, all, payload"
                ));
            }
        }
    }
    Ok((selection, with_content))
}

fn flag(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "" | "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(format!("{name}: true or false")),
    }
}

/// `POST /api/dead-letters/{id}/{verb}`.
pub async fn change(
    Handed(shared): Handed<Shared>,
    Extension(ends): Extension<Ends>,
    Path((id, verb)): Path<(String, String)>,
    request: Request,
) -> Result<Json<Value>, Refused> {
    let (head, body) = request.into_parts();
    shared.guard.allow(ends, &head.headers)?;
    let unknown = || {
        refused(
            StatusCode::NOT_FOUND,
            format!("there is no dead letter {id}"),
        )
    };
    let body = read(&head.headers, body).await?;
    let number: i64 = id.parse().map_err(|_| unknown())?;
    let reason = match verb.as_str() {
        "replay" | "resend" => String::new(),
        "ignore" => body.reason.unwrap_or_default().trim().to_owned(),
        _ => return Err(refused(StatusCode::NOT_FOUND, "replay, ignore or resend")),
    };
    if verb == "ignore" && reason.is_empty() {
        return Err(refused(
            StatusCode::BAD_REQUEST,
            r#"say why: {"reason": "…"}"#,
        ));
    }
    let outcome = answer(async {
        let desk = &shared.desk;
        let session = desk.session().await?;
        let found = one(&session.client, &desk.slot, number, false).await;
        let Some(found) = found.map_err(|error| desk.trouble(error))? else {
            session.give_back();
            return Ok(None);
        };
        let verb = match (verb.as_str(), &found.letter.event_id) {
            ("replay", _) => Verb::Replay(number),
            ("ignore", _) => Verb::Ignore(number, &reason),
            (_, Some(event)) => Verb::Resend(event),
            (_, None) => Verb::Resend(""),
        };
        let outcome = act(&session.client, verb).await;
        let outcome = outcome.map_err(|error| desk.trouble(error))?;
        session.give_back();
        Ok(Some(outcome))
    })
    .await?;
    match outcome {
        None => Err(unknown()),
        Some(Outcome::Done { id: letter, status }) => {
            info!(client = %ends.client, verb, dead_letter = number, status, "dead letter acted on over http");
            Ok(Json(json!({ "id": letter, "status": status })))
        }
        Some(Outcome::Refused(refusal)) => {
            let mut body = json!({ "error": refusal.text });
            if let (Some(letter), Some(body)) = (refusal.letter, body.as_object_mut()) {
                body.insert("id".into(), letter.id.into());
                body.insert("status".into(), letter.status.into());
                body.insert("held_behind".into(), letter.held_behind.into());
                body.insert("acted_by".into(), letter.acted_by.into());
                body.insert("acted_at".into(), json!(letter.acted_at));
            }
            Err(Refused {
                code: StatusCode::CONFLICT,
                body,
            })
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    reason: Option<String>,
}

/// JSON, or nothing at all. A form of another site's page can send neither.
async fn read(headers: &HeaderMap, body: Body) -> Result<Asked, Refused> {
    let body = match timeout(BODY_TIMEOUT, to_bytes(body, LONGEST_BODY)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => return Err(refused(StatusCode::PAYLOAD_TOO_LARGE, error)),
        Err(_) => {
            return Err(refused(
                StatusCode::REQUEST_TIMEOUT,
                "the body did not come",
            ));
        }
    };
    if body.is_empty() {
        return Ok(Asked::default());
    }
    let media_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let media_type = media_type.map(|value| value.split(';').next().unwrap_or_default().trim());
    if !media_type.is_some_and(|name| name.eq_ignore_ascii_case("application/json")) {
        return Err(refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "a body is JSON: Content-Type: application/json",
        ));
    }
    serde_json::from_slice(&body).map_err(|error| refused(StatusCode::BAD_REQUEST, error))
}

//! GET /live, /ready, /metrics, /api/status, which change nothing; and operators' work on dead
//! letters.

mod desk;
mod guard;
mod letters;

use std::{io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::State as Handed,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::{get, post},
};
pub use desk::Desk;
pub use guard::Guard;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::guard::Ends;
use crate::{
    error::{Exit, Stop},
    metrics::{CONTENT_TYPE, Metrics},
    pg::{
        letters::Counted,
        slot::{Names, SlotFacts},
    },
    state::State,
    status::{PublisherPart, StatusObject, object},
    stop,
};

/// Connections at once; a further one waits to be accepted.
const CONNECTIONS: usize = 64;

/// A client that has not sent its request's head by then is cut off.
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// How long `/api/status` waits for fresh facts before it takes the last ones.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a stop waits for answers under way.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Asks the server for facts; `None` when it cannot be asked now.
pub type Refresh =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Option<SlotFacts>> + Send>> + Send + Sync>;

#[derive(Clone)]
pub struct Shared {
    pub state: Arc<State>,
    pub metrics: Arc<Metrics>,
    pub names: Arc<Names>,
    pub refresh: Refresh,
    pub not_ready_after: Duration,
    pub desk: Arc<Desk>,
    pub guard: Arc<Guard>,
}

/// Takes the address of `http.listen`; `None` when it is empty, which switches HTTP off.
pub async fn bind(listen: &str) -> Result<Option<TcpListener>, Stop> {
    if listen.is_empty() {
        return Ok(None);
    }
    match TcpListener::bind(listen).await {
        Ok(listener) => Ok(Some(listener)),
        Err(error) => Err(stop!(
            Exit::Error,
            "cannot listen on {listen}: {error}; choose another address with `http.listen`, or \"\" for none"
        )),
    }
}

/// Answers until `shutdown`. An own accept loop, because `axum::serve` lets a client that sends
/// half a request hold its connection, and the stop, without end.
pub async fn serve(listener: TcpListener, shared: Shared, shutdown: CancellationToken) {
    let routes = router(shared);
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = async {
            let permit = connections.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, stream, ends) = tokio::select! {
            () = shutdown.cancelled() => break,
            (permit, accepted) = accepted => match accepted.and_then(with_ends) {
                Ok((stream, ends)) => (permit, stream, ends),
                Err(error) => {
                    // Out of file descriptors, most likely: trying at once would only spin.
                    tracing::debug!(%error, "http connection not accepted");
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(
                TokioIo::new(stream),
                TowerToHyperService::new(routes.clone().layer(Extension(ends))),
            );
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // A client that went away is its own affair.
            let _ = connection.await;
            drop(permit);
        });
    }
    let _ = timeout(STOP_TIMEOUT, graceful.shutdown()).await;
}

fn with_ends((stream, client): (TcpStream, SocketAddr)) -> io::Result<(TcpStream, Ends)> {
    let here = stream.local_addr()?;
    Ok((stream, Ends { client, here }))
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/live", get(async || "live\n"))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/api/status", get(status))
        .route("/api/dead-letters", get(letters::list))
        .route("/api/dead-letters/{id}/{verb}", post(letters::change))
        .with_state(shared)
}

async fn ready(Handed(shared): Handed<Shared>) -> impl IntoResponse {
    let reason = shared.state.lock().not_ready(shared.not_ready_after);
    let code = if reason.is_none() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (
        code,
        Json(json!({ "ready": reason.is_none(), "reason": reason })),
    )
}

async fn metrics(Handed(shared): Handed<Shared>) -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, CONTENT_TYPE)],
        shared.metrics.text(&shared.state),
    )
}

async fn status(Handed(shared): Handed<Shared>) -> Json<StatusObject> {
    // Facts first: what was confirmed then is never above what was received a moment later.
    let (fresh, counted) = tokio::join!(
        timeout(REFRESH_TIMEOUT, (shared.refresh)()),
        timeout(REFRESH_TIMEOUT, shared.desk.count()),
    );
    let fresh = fresh.ok().flatten();
    let counted = counted.ok().and_then(Result::ok).flatten();
    let state = shared.state.lock();
    let known = || {
        Some(Counted {
            letters: state.dead_letters?,
            held_keys: state.held_keys?,
        })
    };
    let counted = counted.or_else(known);
    let facts = fresh
        .as_ref()
        .or(state.slot.as_ref().map(|(facts, _)| facts));
    let publisher = PublisherPart::of(&state, facts.and_then(SlotFacts::confirmed_lag_bytes));
    Json(object(&shared.names, facts, counted, Some(&publisher)))
}

#[cfg(test)]
mod tests;

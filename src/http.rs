//! GET /live, /ready, /metrics, /api/status. Nothing here changes anything.

use std::{pin::Pin, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::State as Handed,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use serde_json::json;
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    error::{Exit, Stop},
    metrics::{CONTENT_TYPE, Metrics},
    pg::slot::{Names, SlotFacts},
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
        let (permit, (stream, _)) = tokio::select! {
            () = shutdown.cancelled() => break,
            (permit, accepted) = accepted => match accepted {
                Ok(accepted) => (permit, accepted),
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
                TowerToHyperService::new(routes.clone()),
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

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/live", get(async || "live\n"))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/api/status", get(status))
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
    let fresh = timeout(REFRESH_TIMEOUT, (shared.refresh)())
        .await
        .ok()
        .flatten();
    let state = shared.state.lock();
    let facts = fresh
        .as_ref()
        .or(state.slot.as_ref().map(|(facts, _)| facts));
    let publisher = PublisherPart::of(&state, facts.and_then(SlotFacts::confirmed_lag_bytes));
    Json(object(&shared.names, facts, Some(&publisher)))
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, time::Instant};

    use serde_json::Value;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        task::JoinHandle,
    };

    use super::*;
    use crate::{
        pg::slot::tests::{facts, names},
        state::Role,
    };

    struct Server {
        address: SocketAddr,
        shared: Shared,
        stop: CancellationToken,
        serving: JoinHandle<()>,
    }

    /// A server whose database answers with `fresh`.
    async fn server(fresh: Option<SlotFacts>) -> Server {
        let listener = bind("127.0.0.1:0").await.unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Shared {
            state: Arc::default(),
            metrics: Arc::default(),
            names: Arc::new(names()),
            refresh: Arc::new(move || Box::pin(std::future::ready(fresh.clone()))),
            not_ready_after: Duration::from_secs(60),
        };
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, shared.clone(), stop.clone()));
        Server {
            address,
            shared,
            stop,
            serving,
        }
    }

    /// Status line and headers, and the body.
    async fn get(address: SocketAddr, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    #[tokio::test]
    async fn readiness_says_why_not() {
        let Server {
            address, shared, ..
        } = server(None).await;
        let (head, body) = get(address, "/ready").await;
        assert!(head.starts_with("HTTP/1.0 503"), "{head}");
        assert_eq!(body, r#"{"ready":false,"reason":"starting"}"#);
        {
            let mut state = shared.state.lock();
            (state.role, state.streaming, state.trouble) = (Role::Publisher, true, None);
        }
        let (head, body) = get(address, "/ready").await;
        assert!(head.starts_with("HTTP/1.0 200"), "{head}");
        assert_eq!(body, r#"{"ready":true,"reason":null}"#);
        assert!(get(address, "/live").await.0.starts_with("HTTP/1.0 200"));
        assert!(get(address, "/").await.0.starts_with("HTTP/1.0 404"));
        let (head, body) = get(address, "/metrics").await;
        assert!(
            head.contains("content-type: text/plain; version=0.0.4"),
            "{head}"
        );
        assert!(
            body.contains("walpost_role{role=\"publisher\"} 1"),
            "{body}"
        );
    }

    #[tokio::test]
    async fn status_takes_fresh_facts_or_else_the_last_ones() {
        let lsn = async |server: &Server| {
            let (_, body) = get(server.address, "/api/status").await;
            serde_json::from_str::<Value>(&body).unwrap()["confirmed_lsn"].clone()
        };
        let silent = server(None).await;
        assert_eq!(lsn(&silent).await, Value::Null);
        silent.shared.state.lock().slot = Some((facts(), Instant::now()));
        assert_eq!(lsn(&silent).await, "0/1000100");
        let mut newer = facts();
        newer.slot.as_mut().unwrap().confirmed_flush_lsn = Some("0/1000180".parse().unwrap());
        let fresh = server(Some(newer)).await;
        fresh.shared.state.lock().slot = Some((facts(), Instant::now()));
        assert_eq!(lsn(&fresh).await, "0/1000180");
    }

    #[tokio::test]
    async fn half_a_request_is_cut_and_delays_no_stop() {
        let Server {
            address,
            stop,
            serving,
            ..
        } = server(None).await;
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET /live HT").await.unwrap();
        let began = Instant::now();
        let mut answer = Vec::new();
        slow.read_to_end(&mut answer).await.unwrap();
        assert!(
            began.elapsed() < 2 * HEAD_TIMEOUT,
            "cut after {:?}",
            began.elapsed()
        );
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET /live HT").await.unwrap();
        let mut idle = TcpStream::connect(address).await.unwrap();
        idle.write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let _ = idle.read(&mut [0; 512]).await.unwrap();
        let began = Instant::now();
        stop.cancel();
        serving.await.unwrap();
        assert!(
            began.elapsed() < 2 * STOP_TIMEOUT,
            "stopped after {:?}",
            began.elapsed()
        );
    }

    #[tokio::test]
    async fn an_address_in_use_is_named() {
        let taken = bind("127.0.0.1:0").await.unwrap().unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let stop = bind(&address).await.unwrap_err();
        assert_eq!(stop.exit, Exit::Error);
        let text = stop.to_string();
        assert!(
            text.contains(&address) && text.contains("http.listen"),
            "{text}"
        );
        assert!(bind("").await.unwrap().is_none());
    }
}

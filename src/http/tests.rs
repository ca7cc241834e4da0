//! The four paths, and clients that send half a request.

use std::time::Instant;

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinHandle,
};

use super::*;
use crate::{
    config,
    pg::{
        conninfo::ConnInfo,
        slot::tests::{facts, names},
    },
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
        desk: Arc::new(Desk::new(nowhere(), names().slot, Vec::new())),
        guard: Arc::new(Guard::new(&config::Http::default()).unwrap()),
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

/// A database that nobody runs.
fn nowhere() -> ConnInfo {
    let postgres = config::Postgres {
        url: Some(config::Secret::new("postgres://nobody@127.0.0.1:1/none")),
        ..config::Postgres::default()
    };
    ConnInfo::resolve(&postgres, &config::Env::default()).unwrap()
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

/// Probes and scrapers come by the name of a Service, or by a Pod's address.
#[tokio::test]
async fn what_only_looks_answers_to_any_host() {
    let Server {
        address, shared, ..
    } = server(None).await;
    {
        let mut state = shared.state.lock();
        (state.role, state.streaming, state.trouble) = (Role::Publisher, true, None);
    }
    for host in ["walpost.ns.svc:9464", "10.1.2.3:9464", "evil.example", ""] {
        for path in ["/live", "/ready", "/metrics", "/api/status"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = format!(
                "GET {path} HTTP/1.1\r\nhost: {host}\r\norigin: http://x\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(
                answer.starts_with("HTTP/1.1 200"),
                "{path} {host}: {answer}"
            );
        }
    }
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

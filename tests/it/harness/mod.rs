//! What the tests stand on: real servers, the real binary, faults, writers whose truth is known.
//!
//! Every test has a `Scene`: its own database, slot, publication and topics on the shared servers.
//! A test that needs special settings, or that stops a server, starts one of its own. Everything a
//! test made goes when it ends, also by a panic; what outlives even that is swept by `process`.

pub mod batches;
pub mod certificates;
pub mod kafka;
pub mod kafka_server;
pub mod load;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod records;
pub mod run;
pub mod scene;
pub mod services;
pub mod sql;
pub mod terms;
pub mod walpost;

use std::{
    fmt::Display,
    hash::BuildHasher,
    net::TcpListener,
    sync::{
        LazyLock,
        atomic::{AtomicU16, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

pub use run::Run;
pub use scene::Scene;
pub use walpost::Walpost;

/// The first answer of `probe`; a panic that names `what` when there is none in time.
#[track_caller]
pub fn until<T>(what: impl Display, seconds: u64, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(answer) = probe() {
            return answer;
        }
        assert!(
            Instant::now() < deadline,
            "after {seconds} s still not: {what}"
        );
        sleep(Duration::from_millis(50));
    }
}

/// Panics as soon as `probe` is false within the time.
#[track_caller]
pub fn always(what: impl Display, seconds: u64, mut probe: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        assert!(probe(), "not held: {what}");
        sleep(Duration::from_millis(100));
    }
}

/// Waits as part of a scenario (load runs, a stall lasts), never for a condition.
pub fn pass(milliseconds: u64) {
    sleep(Duration::from_millis(milliseconds));
}

/// A port that was free a moment ago, below the range from which the system takes its own.
pub fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU16> =
        LazyLock::new(|| AtomicU16::new((std::process::id() % 10_000) as u16));
    loop {
        let port = 20_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// One runtime for all SQL connections and administration of Kafka; tests themselves are plain threads.
pub fn block_on<F: Future>(future: F) -> F::Output {
    runtime().block_on(future)
}

pub fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime")
    });
    &RUNTIME
}

/// Random numbers that a printed seed repeats (splitmix64).
pub struct Dice(u64);

impl Dice {
    /// `WALPOST_TEST_SEED`, or a new seed; printed, so a failing test shows it.
    pub fn new() -> Dice {
        let seed = match std::env::var("WALPOST_TEST_SEED") {
            Ok(text) => text.parse().expect("WALPOST_TEST_SEED is a number"),
            Err(_) => {
                std::collections::hash_map::RandomState::new().hash_one(std::process::id())
                    % 1_000_000
            }
        };
        println!("repeat with WALPOST_TEST_SEED={seed}");
        Dice(seed)
    }

    pub fn from_seed(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Dice of their own for a part: what it throws depends on no other part.
    pub fn fork(&mut self) -> Dice {
        Dice(self.next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From `low` up to and without `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.between(0, from.len() as u64) as usize]
    }
}

/// A new version 4 UUID as text.
pub fn uuid() -> String {
    let state = std::collections::hash_map::RandomState::new();
    let (a, b) = (state.hash_one(1), state.hash_one(2));
    format!(
        "{:08x}-{:04x}-4{:03x}-{:x}{:03x}-{:012x}",
        a >> 32,
        a >> 16 & 0xFFFF,
        a & 0xFFF,
        8 + (b >> 62),
        b >> 48 & 0xFFF,
        b & 0xFFFF_FFFF_FFFF
    )
}

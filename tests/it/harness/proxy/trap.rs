//! A place in what a client sends at which everything on the proxy stops, so that the client can be
//! killed there: whatever it does, it does no more.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// On which side of the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The server never hears of it.
    Before,
    /// The server has done it, and the client never hears of that.
    After,
}

#[derive(Default)]
pub struct Trap {
    set: Mutex<Option<(Vec<u8>, Side)>>,
    sprung: AtomicBool,
    is_looking: AtomicBool,
    seen: Mutex<Vec<String>>,
}

/// What is to be done with a piece of data.
#[derive(Debug, PartialEq, Eq)]
pub enum Then {
    Forward,
    /// Forward, and look at this connection's answer.
    Await,
    /// Nothing passes any more.
    Stop,
}

impl Trap {
    pub fn set(&self, words: &str, side: Side) {
        self.sprung.store(false, Relaxed);
        self.is_looking.store(true, Relaxed);
        *self.set.lock().expect("no panic under this lock") = Some((words.into(), side));
    }

    pub fn is_sprung(&self) -> bool {
        self.sprung.load(Relaxed)
    }

    /// Every statement that a client of PostgreSQL sent since the first `set`.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("no panic under this lock").clone()
    }

    /// A piece of what a client sends.
    pub fn sent(&self, piece: &[u8]) -> Then {
        if !self.is_looking.load(Relaxed) {
            return Then::Forward;
        }
        let statements = statements(piece);
        self.seen
            .lock()
            .expect("no panic under this lock")
            .extend(statements);
        let mut set = self.set.lock().expect("no panic under this lock");
        let Some((_, side)) =
            set.take_if(|(words, _)| piece.windows(words.len()).any(|found| found == words))
        else {
            return Then::Forward;
        };
        match side {
            Side::Before => {
                self.sprung.store(true, Relaxed);
                Then::Stop
            }
            Side::After => Then::Await,
        }
    }

    /// A piece of the answer that is awaited.
    pub fn answered(&self, piece: &[u8]) -> Then {
        // PostgreSQL is done when it is ready for the next query, or when it begins to stream. A
        // broker's answer begins with its length.
        let is_ready = piece.len() >= 6 && piece[piece.len() - 6..].starts_with(b"Z\0\0\0\x05");
        if !(is_ready || matches!(piece[0], b'W' | 0)) {
            return Then::Await;
        }
        self.sprung.store(true, Relaxed);
        Then::Stop
    }
}

/// The texts of the Query and Parse messages that a piece begins with.
fn statements(mut piece: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    while let [kind @ b'A'..=b'z', a, b, c, d, ..] = *piece {
        let end = 1 + u32::from_be_bytes([a, b, c, d]) as usize;
        let Some(body) = piece.get(5..end) else { break };
        let mut texts = body.split(|byte| *byte == 0);
        let text = match kind {
            b'Q' => texts.next(),
            // Behind the name.
            b'P' => texts.nth(1),
            _ => None,
        };
        found.extend(text.map(|text| String::from_utf8_lossy(text).into_owned()));
        piece = &piece[end..];
    }
    found
}

//! Lines to stdout, by a thread of its own: a pager that waits for its reader must not keep the
//! replication connection silent.

use std::{
    io::{self, Write as _},
    thread::JoinHandle,
};

use anyhow::Context as _;
use tokio::sync::mpsc;

/// Lines go out in pieces of about this size.
const PIECE: usize = 32 << 10;

/// Nothing more is read while so much waits.
const WAITING: usize = 1 << 20;

pub struct Printer {
    lines: Vec<u8>,
    pieces: mpsc::Sender<Vec<u8>>,
    thread: JoinHandle<io::Result<()>>,
}

impl Printer {
    pub fn start() -> Printer {
        let (pieces, mut printed) = mpsc::channel::<Vec<u8>>(1);
        let thread = std::thread::spawn(move || {
            let mut out = io::stdout().lock();
            while let Some(piece) = printed.blocking_recv() {
                out.write_all(&piece)?;
                out.flush()?;
            }
            Ok(())
        });
        Printer {
            lines: Vec::new(),
            pieces,
            thread,
        }
    }

    /// Where the next line is written.
    pub fn line(&mut self) -> &mut Vec<u8> {
        &mut self.lines
    }

    pub fn has_room(&self) -> bool {
        self.lines.len() < WAITING
    }

    /// Hands on what there is, in pieces worth while; `false`: nobody reads any more. Cancel-safe.
    pub async fn print(&mut self) -> bool {
        if self.lines.len() < PIECE {
            return std::future::pending().await;
        }
        self.hand_on().await
    }

    async fn hand_on(&mut self) -> bool {
        match self.pieces.reserve().await {
            Ok(place) => {
                place.send(std::mem::take(&mut self.lines));
                true
            }
            Err(_) => false,
        }
    }

    /// Prints the rest. A reader that has seen enough (`| head`) is no error.
    pub async fn end(mut self) -> anyhow::Result<()> {
        if !self.lines.is_empty() {
            self.hand_on().await;
        }
        drop(self.pieces);
        let thread = self.thread;
        let written = tokio::task::spawn_blocking(move || thread.join()).await?;
        let written =
            written.map_err(|_| anyhow::anyhow!("internal: the thread that prints panicked"))?;
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.context("write to stdout"),
        }
    }
}

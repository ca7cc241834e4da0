//! The replication connection: start-up, log-in, simple queries, START_REPLICATION, and then
//! CopyBoth: frames in, status updates out. Bytes and their framing only; what a frame means is
//! `message` and `pgoutput`.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use anyhow::{Context as _, anyhow};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use postgres_protocol::{
    authentication::{
        md5_hash,
        sasl::{ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256},
    },
    message::frontend,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::poll_read_buf;

use super::{
    bytes::Reader,
    message::StatusUpdate,
    quote::{ident, literal},
    server_error::ServerError,
};
use crate::{error::Failure, lsn::PgTime};

/// How a connection introduces itself.
pub struct StartUp<'a> {
    /// Parameters of the start-up packet beside user and replication.
    pub parameters: &'a [(String, String)],
    pub user: &'a str,
    pub password: Option<&'a str>,
    /// The digest for `tls-server-end-point`, on TLS and where the certificate allows one.
    pub channel_binding: Option<Vec<u8>>,
    /// Refuse to log in without channel binding.
    pub require_channel_binding: bool,
}

/// A connection in replication mode, before START_REPLICATION: takes simple queries.
pub struct Replication<S> {
    io: Framed<S>,
    server_encoding: Option<String>,
    pid: i32,
}

/// A row of a simple query: each value's text, or NULL.
pub type TextRow = Vec<Option<String>>;

/// What the stream brings.
#[derive(Debug)]
pub enum Event {
    /// The body of one CopyData message.
    Data(Bytes),
    /// A warning or a notice among them.
    Notice(ServerError),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Replication<S> {
    /// Logs in. A refusal of the server is a [`ServerError`] in the chain.
    pub async fn start_up(stream: S, start: StartUp<'_>) -> Result<Self, Failure> {
        let mut io = Framed::new(stream);
        let fixed = [("user", start.user), ("replication", "database")];
        let given = start
            .parameters
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        frontend::startup_message(fixed.into_iter().chain(given), &mut io.outgoing)
            .map_err(passing)?;
        log_in(&mut io, &start).await?;
        let mut connection = Replication {
            io,
            server_encoding: None,
            pid: 0,
        };
        loop {
            let (tag, body) = connection.io.message().await?;
            match tag {
                b'S' => connection.parameter(&body)?,
                b'K' => {
                    let pid = Reader::new("BackendKeyData", &body).i32();
                    connection.pid = pid.map_err(passing)?;
                }
                b'N' => {}
                b'Z' => break,
                b'E' => return Err(server_error(&body)?),
                tag => return Err(unexpected(tag, "log-in")),
            }
        }
        if connection.server_encoding.as_deref() == Some("SQL_ASCII") {
            // Such a database holds bytes of any encoding. Asking for UTF-8 would have the server
            // refuse the first invalid one, for good; like this they pass as they are.
            connection
                .simple_query("SET client_encoding TO 'SQL_ASCII'")
                .await?;
        }
        Ok(connection)
    }

    fn parameter(&mut self, body: &[u8]) -> Result<(), Failure> {
        let mut r = Reader::new("ParameterStatus", body);
        let (name, value) = (r.text().map_err(passing)?, r.text().map_err(passing)?);
        if name == "server_encoding" {
            self.server_encoding = Some(value.to_owned());
        }
        Ok(())
    }

    /// The server process at the other end.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// One statement, its rows as text. An error leaves the connection usable.
    pub async fn simple_query(&mut self, sql: &str) -> Result<Vec<TextRow>, Failure> {
        frontend::query(sql, &mut self.io.outgoing).map_err(passing)?;
        let mut rows = Vec::new();
        let mut failure = None;
        loop {
            let (tag, body) = self.io.message().await?;
            match tag {
                b'D' => rows.push(text_row(&body).map_err(passing)?),
                b'S' => self.parameter(&body)?,
                b'T' | b'C' | b'I' | b'N' => {}
                // FATAL is not followed by ReadyForQuery: the next read says that it closed.
                b'E' => {
                    let error = ServerError::parse(&body).map_err(passing)?;
                    let fatal = error.severity != "ERROR";
                    failure = Some(Failure::Passing(error.into()));
                    if fatal {
                        break;
                    }
                }
                b'Z' => break,
                tag => return Err(unexpected(tag, "a query")),
            }
        }
        failure.map_or(Ok(rows), Err)
    }

    /// Starts to stream `slot` from where it stands; [`Replication::into_stream`] gives what comes.
    /// An error leaves the connection usable.
    pub async fn start_replication(
        &mut self,
        slot: &str,
        publication: &str,
    ) -> Result<(), Failure> {
        // 0/0: the slot knows its position better than any client. `messages` is always asked for,
        // so that the ordinal of a row does not depend on configuration.
        let sql = format!(
            // A slot's name is lower case, digits and underscores; quoted, it is no key word either.
            "START_REPLICATION SLOT \"{}\" LOGICAL 0/0 (proto_version '1', publication_names {}, messages 'true')",
            slot,
            literal(&ident(publication)),
        );
        frontend::query(&sql, &mut self.io.outgoing).map_err(passing)?;
        let mut failure = None;
        loop {
            let (tag, body) = self.io.message().await?;
            match (tag, failure.take()) {
                (b'W', None) => return Ok(()),
                (b'E', None) => failure = Some(server_error(&body)?),
                (b'Z', Some(error)) => return Err(error),
                (b'N' | b'S', before) => failure = before,
                (tag, _) => return Err(unexpected(tag, "START_REPLICATION")),
            }
        }
    }

    /// After [`Replication::start_replication`].
    pub fn into_stream(self) -> Stream<S> {
        Stream { io: self.io }
    }
}

async fn log_in<S: AsyncRead + AsyncWrite + Unpin>(
    io: &mut Framed<S>,
    start: &StartUp<'_>,
) -> Result<(), Failure> {
    let password = || {
        let missing =
            || Failure::Passing(anyhow!("the server asks for a password and none is given"));
        start.password.map(str::as_bytes).ok_or_else(missing)
    };
    let mut scram: Option<ScramSha256> = None;
    let mut bound = false;
    loop {
        let (tag, body) = io.message().await?;
        match tag {
            b'R' => {}
            b'E' => return Err(server_error(&body)?),
            b'N' => continue,
            tag => return Err(unexpected(tag, "log-in")),
        }
        let mut r = Reader::new("Authentication", &body);
        match r.u32().map_err(passing)? {
            0 if start.require_channel_binding && !bound => {
                return Err(Failure::Passing(anyhow!(
                    "channel_binding=require, but the server logged us in without it"
                )));
            }
            0 => return Ok(()),
            3 => frontend::password_message(password()?, &mut io.outgoing).map_err(passing)?,
            5 => {
                let salt = r.take(4).map_err(passing)?.try_into().expect("four bytes");
                let hash = md5_hash(start.user.as_bytes(), password()?, salt);
                frontend::password_message(hash.as_bytes(), &mut io.outgoing).map_err(passing)?;
            }
            10 => {
                let offered = r.rest().split(|b| *b == 0);
                let plus = offered.clone().any(|m| m == SCRAM_SHA_256_PLUS.as_bytes());
                if !plus && !offered.clone().any(|m| m == SCRAM_SHA_256.as_bytes()) {
                    return Err(Failure::Passing(anyhow!(
                        "the server offers no SCRAM-SHA-256"
                    )));
                }
                // "We could have bound the channel" may only be said to a server that didn't offer
                // it: to another one it looks like an attacker who hid the offer.
                let (mechanism, binding) = match (&start.channel_binding, plus) {
                    (Some(digest), true) => {
                        bound = true;
                        (
                            SCRAM_SHA_256_PLUS,
                            ChannelBinding::tls_server_end_point(digest.clone()),
                        )
                    }
                    (Some(_), false) => (SCRAM_SHA_256, ChannelBinding::unrequested()),
                    (None, _) => (SCRAM_SHA_256, ChannelBinding::unsupported()),
                };
                let exchange = ScramSha256::new(password()?, binding);
                frontend::sasl_initial_response(mechanism, exchange.message(), &mut io.outgoing)
                    .map_err(passing)?;
                scram = Some(exchange);
            }
            11 => {
                let exchange = scram.as_mut().ok_or_else(|| unexpected(tag, "log-in"))?;
                exchange.update(r.rest()).map_err(passing)?;
                frontend::sasl_response(exchange.message(), &mut io.outgoing).map_err(passing)?;
            }
            12 => {
                let exchange = scram.as_mut().ok_or_else(|| unexpected(tag, "log-in"))?;
                // The server proves that it knows the password too.
                exchange.finish(r.rest()).map_err(passing)?;
            }
            kind => {
                return Err(Failure::Passing(anyhow!(
                    "the server asks for authentication method {kind}; use scram-sha-256 in pg_hba.conf"
                )));
            }
        }
    }
}

fn text_row(body: &[u8]) -> anyhow::Result<TextRow> {
    let mut r = Reader::new("DataRow", body);
    let mut row = Vec::new();
    for _ in 0..r.u16()? {
        row.push(match r.i32()? {
            -1 => None,
            length => {
                let text = r.take(usize::try_from(length)?)?;
                Some(String::from_utf8_lossy(text).into_owned())
            }
        });
    }
    r.finish()?;
    Ok(row)
}

/// The open stream.
pub struct Stream<S> {
    io: Framed<S>,
}

/// Status updates that the server doesn't take are not piled up beyond this.
const MAX_UNSENT: usize = 1024;

impl<S: AsyncRead + AsyncWrite + Unpin> Stream<S> {
    /// Sends what is queued and, if `reading`, gives the next message. While not reading it only
    /// sends and never returns but for an error. Cancel-safe: all state stays in the stream.
    pub async fn next(&mut self, reading: bool) -> Result<Event, Failure> {
        poll_fn(|cx| self.poll_next(cx, reading)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, reading: bool) -> Poll<Result<Event, Failure>> {
        if let Poll::Ready(Err(error)) = self.io.poll_send(cx) {
            return Poll::Ready(Err(error));
        }
        if !reading {
            return Poll::Pending;
        }
        let (tag, body) = ready!(self.io.poll_message(cx))?;
        Poll::Ready(event(tag, body))
    }

    /// The next message, if it is already here.
    pub fn buffered(&mut self) -> Option<Result<Event, Failure>> {
        let message = self.io.parse().transpose()?;
        Some(message.and_then(|(tag, body)| event(tag, body)))
    }

    /// Queues a status update; `next` sends it.
    pub fn queue_status(&mut self, update: &StatusUpdate) {
        if self.io.outgoing.len() < MAX_UNSENT {
            let to = &mut self.io.outgoing;
            to.put_u8(b'd');
            to.put_u32(4 + StatusUpdate::LENGTH as u32);
            update.encode(PgTime::now(), to);
        }
    }

    /// Everything queued was handed to the system.
    pub fn is_sent(&self) -> bool {
        self.io.outgoing.is_empty() && !self.io.unflushed
    }
}

fn event(tag: u8, body: Bytes) -> Result<Event, Failure> {
    match tag {
        b'd' => Ok(Event::Data(body)),
        b'N' => Ok(Event::Notice(ServerError::parse(&body).map_err(passing)?)),
        b'E' => Err(server_error(&body)?),
        b'c' | b'C' => Err(Failure::Passing(anyhow!(
            "the server ended the replication stream"
        ))),
        tag => Err(unexpected(tag, "the replication stream")),
    }
}

fn passing(error: impl Into<anyhow::Error>) -> Failure {
    Failure::Passing(error.into())
}

fn server_error(body: &[u8]) -> Result<Failure, Failure> {
    Ok(Failure::Passing(
        ServerError::parse(body).map_err(passing)?.into(),
    ))
}

fn unexpected(tag: u8, during: &str) -> Failure {
    Failure::Passing(anyhow!(
        "the server sent an unexpected message {:?} during {during}",
        tag as char
    ))
}

/// Messages over a byte stream.
struct Framed<S> {
    stream: S,
    incoming: BytesMut,
    outgoing: BytesMut,
    unflushed: bool,
}

/// One read takes up to this much: reading seldom is what keeps the walsender from waking us for
/// every message.
const READ_SIZE: usize = 256 << 10;

impl<S: AsyncRead + AsyncWrite + Unpin> Framed<S> {
    fn new(stream: S) -> Self {
        Framed {
            stream,
            incoming: BytesMut::new(),
            outgoing: BytesMut::new(),
            unflushed: false,
        }
    }

    /// Sends what is queued, then gives the next message.
    async fn message(&mut self) -> Result<(u8, Bytes), Failure> {
        poll_fn(|cx| self.poll_send(cx)).await?;
        poll_fn(|cx| self.poll_message(cx)).await
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        while !self.outgoing.is_empty() {
            let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.outgoing))
                .context("send to PostgreSQL")
                .map_err(Failure::Passing)?;
            if sent == 0 {
                return Poll::Ready(Err(closed()));
            }
            self.outgoing.advance(sent);
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))
                .context("send to PostgreSQL")
                .map_err(Failure::Passing)?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<(u8, Bytes), Failure>> {
        loop {
            if let Some(message) = self.parse()? {
                return Poll::Ready(Ok(message));
            }
            let read = ready!(self.poll_read(cx)).context("receive from PostgreSQL");
            if read.map_err(Failure::Passing)? == 0 {
                return Poll::Ready(Err(closed()));
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
        self.incoming.reserve(READ_SIZE / 2);
        poll_read_buf(Pin::new(&mut self.stream), cx, &mut self.incoming)
    }

    /// A whole message at the front of what was read: its tag and its body.
    fn parse(&mut self) -> Result<Option<(u8, Bytes)>, Failure> {
        let Some(&[tag, a, b, c, d]) = self.incoming.first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length < 4 || length > i32::MAX as usize {
            return Err(Failure::Passing(anyhow!(
                "the server sent a message of {length} bytes"
            )));
        }
        if self.incoming.len() < 1 + length {
            // One allocation for a large message, not one for each doubling.
            self.incoming.reserve(1 + length - self.incoming.len());
            return Ok(None);
        }
        let mut message = self.incoming.split_to(1 + length);
        message.advance(5);
        Ok(Some((tag, message.freeze())))
    }
}

fn closed() -> Failure {
    Failure::Passing(anyhow!("PostgreSQL closed the connection"))
}

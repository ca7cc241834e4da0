//! The socket to PostgreSQL, read seldom where much is coming.
//!
//! The walsender hands each message to the system on its own. If we sleep in wait for it, each of
//! them wakes us, and the waking is paid for by the walsender: it takes about as long as all the
//! decoding. So after a read the next one waits for a moment, and what came meanwhile is read at
//! once. The runtime must not wait for the socket either: it is registered only while nothing is
//! there.
//!
//! Within one machine that is half of it. As long as our receive buffer has room, the system carries
//! each message over on its own at once, in the walsender's time; only what finds the buffer full is
//! put together and carried over in large pieces. So there the buffer is small, reads follow each
//! other for as long as they find it full, and then comes a pause that is long enough for it to be
//! full for most of the time. Measured with transactions of one row: half of the walsender's CPU,
//! whatever the congestion control.

use std::{
    io,
    net::{Shutdown, SocketAddr},
    ops::RangeInclusive,
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    thread,
    time::{Duration, Instant},
};

use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf, unix::AsyncFd},
    net::{TcpSocket, TcpStream, UnixStream},
};
use tracing::warn;

/// Time from one read to the next. Longer lets the socket's buffer fill up, and the walsender waits.
const GATHER: Duration = Duration::from_micros(200);

/// Within one machine, after much was read: the walsender writes 100 KB and more in it.
const GATHER_MUCH: Duration = Duration::from_millis(2);

/// In bytes: the receive buffer within one machine, for reads that gather. Linux doubles it and
/// offers about as much as this of it to the sender. It has to be there before the connection is.
const LOCAL_BUFFER: u32 = 16 << 10;

/// In bytes: far below that buffer. A sender holds back a segment that is larger than the window, and
/// the loopback's are as large as the window at first, which shrinks later: without this bound each
/// window's worth waited for the sender's timer, 200 ms.
const LOCAL_SEGMENT: u32 = 4 << 10;

/// In bytes: a read that finds so much found the local buffer about full, and the next will, too.
const MUCH: usize = 8 << 10;

/// How long a sender holds back what it finds the window too small for: Linux's shortest
/// retransmission timeout is 200 ms.
const SENDERS_TIMER: RangeInclusive<Duration> =
    Duration::from_millis(150)..=Duration::from_millis(600);

/// In reads: so many windows in a row that came after the sender's timer are no chance.
const STALLED: u32 = 16;

/// In bytes: the receive buffer after that, as large as the one Linux grows for a fast sender at most.
const LARGE_BUFFER: usize = 6 << 20;

/// When a connection is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// As soon as something is there.
    AtOnce,
    /// Seldom where much is coming: reads are at least 200 µs apart, and within one machine up to 2
    /// ms. The thread sleeps for the rest of that time: the runtime's timer counts milliseconds.
    Gathered,
}

/// Connects to a server.
pub async fn connect(address: SocketAddr, reading: Reading) -> io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Without the bound the small buffer is worse than a large one.
    if reading == Reading::Gathered
        && address.ip().is_loopback()
        && SockRef::from(&socket).set_tcp_mss(LOCAL_SEGMENT).is_ok()
    {
        socket.set_recv_buffer_size(LOCAL_BUFFER)?;
    }
    socket.connect(address).await
}

/// A connected stream socket.
pub struct Socket {
    inner: Arc<socket2::Socket>,
    /// Registered to be woken by what arrives, while nothing is there.
    arrival: Option<AsyncFd<Arc<socket2::Socket>>>,
    /// Another descriptor of the same socket, registered for room to write alone: what arrives wakes
    /// nobody through it.
    room: AsyncFd<Arc<socket2::Socket>>,
    reading: Reading,
    /// Its receive buffer is small, see [`connect`].
    is_local: bool,
    /// In bytes, since the last pause.
    gathered: usize,
    /// Windows in a row that came after the sender's timer.
    late: u32,
    /// To be over since the last read before the next one.
    pause: Duration,
    last_read: Instant,
}

impl Socket {
    /// `stream` is one of [`connect`], with the same `reading`.
    pub fn tcp(stream: TcpStream, reading: Reading) -> io::Result<Self> {
        let is_local = stream.peer_addr()?.ip().is_loopback();
        Socket::new(stream.into_std()?.into(), reading, is_local)
    }

    pub fn unix(stream: UnixStream, reading: Reading) -> io::Result<Self> {
        Socket::new(stream.into_std()?.into(), reading, false)
    }

    fn new(descriptor: OwnedFd, reading: Reading, is_local: bool) -> io::Result<Self> {
        let inner = socket2::Socket::from(descriptor);
        Ok(Socket {
            room: registered(Arc::new(inner.try_clone()?), Interest::WRITABLE)?,
            inner: Arc::new(inner),
            arrival: None,
            reading,
            is_local,
            gathered: 0,
            late: 0,
            pause: Duration::ZERO,
            last_read: Instant::now(),
        })
    }

    /// Notes a read and how long the next one waits.
    fn has_read(&mut self, bytes: usize) -> io::Result<()> {
        let waited = self.last_read.elapsed();
        self.last_read += waited;
        if self.reading == Reading::AtOnce {
            return Ok(());
        }
        if self.is_local {
            let is_late = bytes >= MUCH && SENDERS_TIMER.contains(&waited);
            self.late = if is_late { self.late + 1 } else { 0 };
            if self.late == STALLED {
                self.grow()?;
            }
        }
        self.gathered += bytes;
        if self.is_local && bytes >= MUCH {
            return Ok(());
        }
        let was_much = self.is_local && self.gathered >= MUCH;
        self.pause = if was_much { GATHER_MUCH } else { GATHER };
        self.gathered = 0;
        Ok(())
    }

    /// Leaves the small buffer for good. No system was seen to need it with [`LOCAL_SEGMENT`], but
    /// the rules of a window differ between systems, and a stream that crawls at a window per timer
    /// is alive to everyone who watches it.
    fn grow(&mut self) -> io::Result<()> {
        self.is_local = false;
        self.inner.set_recv_buffer_size(LARGE_BUFFER)?;
        warn!(
            reads = STALLED,
            "the server's messages came in windows, each after its TCP's timer; the receive buffer \
             is large from now on"
        );
        Ok(())
    }
}

/// The runtime tells when the socket is ready for `interest`, until it is dropped.
fn registered(
    socket: Arc<socket2::Socket>,
    interest: Interest,
) -> io::Result<AsyncFd<Arc<socket2::Socket>>> {
    // SAFETY: the shared socket keeps its descriptor for all its life.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest)? })
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if let Some(arrival) = &self.arrival {
                drop(ready!(arrival.poll_read_ready(cx))?);
                self.arrival = None;
            }
            if !self.pause.is_zero() {
                thread::sleep(self.pause.saturating_sub(self.last_read.elapsed()));
                self.pause = Duration::ZERO;
            }
            // SAFETY: nothing but `recv` writes there, and it makes no initialized byte uninitialized.
            match self.inner.recv(unsafe { buf.unfilled_mut() }) {
                Ok(read) => {
                    // SAFETY: `recv` wrote so many bytes.
                    unsafe { buf.assume_init(read) };
                    buf.advance(read);
                    return Poll::Ready(self.has_read(read));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let inner = self.inner.clone();
                    self.arrival = Some(registered(inner, Interest::READABLE)?);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut room = ready!(self.room.poll_write_ready(cx))?;
            match room.try_io(|socket| socket.get_ref().send(buf)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(sent) => return Poll::Ready(sent),
                Err(_full) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.inner.shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    async fn connected() -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = connect(address, Reading::Gathered).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        server.set_nodelay(true).unwrap();
        (Socket::tcp(stream, Reading::Gathered).unwrap(), server)
    }

    /// Several of the server's segments fit into the small buffer, whatever the window does.
    #[tokio::test]
    async fn the_servers_segments_are_far_below_the_local_buffer() {
        let (socket, server) = connected().await;
        assert!(socket.inner.recv_buffer_size().unwrap() <= 2 * LOCAL_BUFFER as usize);
        let segment = SockRef::from(&server).tcp_mss().unwrap();
        assert!(segment <= LOCAL_SEGMENT, "{segment}");
    }

    /// A server whose TCP lets a window out per timer is not read like that for long.
    #[tokio::test]
    async fn windows_that_come_late_one_after_the_other_end_the_small_buffer() {
        let (mut socket, mut server) = connected().await;
        let trickle = tokio::spawn(async move {
            let window = [1; MUCH + 1];
            while server.write_all(&window).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        let small = socket.inner.recv_buffer_size().unwrap();
        let mut window = vec![0; 64 << 10];
        while socket.is_local {
            assert!(socket.read(&mut window).await.unwrap() > 0);
        }
        assert!(socket.inner.recv_buffer_size().unwrap() > small);
        trickle.abort();
    }

    /// Small pieces and ones that are many times as large as the local buffer arrive as they were
    /// written, whichever way they are read, and what is written meanwhile goes out.
    #[tokio::test]
    async fn a_gathered_connection_brings_all_bytes_in_order() {
        for reading in [Reading::AtOnce, Reading::Gathered] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let sizes = (0..2000).map(|n| if n % 200 == 0 { 300_000 } else { 1 + n % 90 });
            let pieces: Vec<Vec<u8>> = sizes.map(|size| vec![size as u8; size]).collect();
            let expected = pieces.concat();
            let server = tokio::spawn(async move {
                let (mut server, _) = listener.accept().await.unwrap();
                server.set_nodelay(true).unwrap();
                for piece in pieces {
                    server.write_all(&piece).await.unwrap();
                }
                let mut answer = [0; 4];
                server.read_exact(&mut answer).await.unwrap();
                answer
            });
            let stream = connect(address, reading).await.unwrap();
            let mut socket = Socket::tcp(stream, reading).unwrap();
            let mut received = vec![0; expected.len()];
            socket.read_exact(&mut received[..1000]).await.unwrap();
            socket.write_all(b"seen").await.unwrap();
            socket.read_exact(&mut received[1000..]).await.unwrap();
            assert!(received == expected, "{reading:?}");
            assert_eq!(&server.await.unwrap(), b"seen");
        }
    }
}

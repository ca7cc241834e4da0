//! The socket to PostgreSQL, read seldom where much is coming.
//!
//! The walsender hands each message to the system on its own. If we sleep in wait for it, each of
//! them wakes us, and the waking is paid for by the walsender: it takes about as long as all the
//! decoding. So after a read the next one waits for a moment, and what came meanwhile is read at
//! once. The runtime must not wait for the socket either: it is registered only while nothing is
//! there.

use std::{
    io,
    net::Shutdown,
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf, unix::AsyncFd},
    net::{TcpStream, UnixStream},
};

/// Time from one read to the next. Longer lets the socket's buffer fill up, and the walsender waits.
const GATHER: Duration = Duration::from_micros(200);

/// A connected stream socket.
pub struct Socket {
    inner: Arc<socket2::Socket>,
    /// Registered to be woken by what arrives, while nothing is there.
    arrival: Option<AsyncFd<Arc<socket2::Socket>>>,
    /// Another descriptor of the same socket, registered for room to write alone: what arrives wakes
    /// nobody through it.
    room: AsyncFd<Arc<socket2::Socket>>,
    gathers: bool,
    last_read: Instant,
}

impl Socket {
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        Socket::new(stream.into_std()?.into())
    }

    pub fn unix(stream: UnixStream) -> io::Result<Self> {
        Socket::new(stream.into_std()?.into())
    }

    fn new(descriptor: OwnedFd) -> io::Result<Self> {
        let inner = socket2::Socket::from(descriptor);
        Ok(Socket {
            room: registered(Arc::new(inner.try_clone()?), Interest::WRITABLE)?,
            inner: Arc::new(inner),
            arrival: None,
            gathers: false,
            last_read: Instant::now(),
        })
    }

    /// From now on reads are at least 200 µs apart. The thread sleeps for the rest of that time: the
    /// runtime's timer counts milliseconds.
    pub fn gather(&mut self) {
        self.gathers = true;
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
            if self.gathers {
                thread::sleep(GATHER.saturating_sub(self.last_read.elapsed()));
            }
            // SAFETY: nothing but `recv` writes there, and it makes no initialized byte uninitialized.
            match self.inner.recv(unsafe { buf.unfilled_mut() }) {
                Ok(read) => {
                    // SAFETY: `recv` wrote so many bytes.
                    unsafe { buf.assume_init(read) };
                    buf.advance(read);
                    self.last_read = Instant::now();
                    return Poll::Ready(Ok(()));
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

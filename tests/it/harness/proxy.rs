//! A TCP proxy to stand between the publisher and a server, and to make trouble.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

mod trap;

use socket2::SockRef;
use trap::{Then, Trap};

pub use trap::Side;

use super::until;

/// Forwards its port to the target, in whole or with a fault.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    target: Mutex<SocketAddr>,
    /// Bytes per second in each direction; 0 for no limit.
    rate: AtomicU64,
    /// Milliseconds that everything is late.
    delay: AtomicU64,
    /// New connections vanish as behind a firewall.
    swallowing: AtomicBool,
    /// Set to stop the thread that accepts, which polls it.
    closed: AtomicBool,
    /// The port is closed: connections are refused.
    refusing: AtomicBool,
    pairs: Mutex<Vec<Arc<Pair>>>,
    trap: Trap,
}

/// A client's connection and ours to the target.
struct Pair {
    fate: AtomicU8,
    /// The trap looks at the server's answer.
    awaited: AtomicBool,
}

const ALIVE: u8 = 0;
/// Nothing passes any more, not even the end.
const SWALLOWED: u8 = 1;
/// To be closed, with the end passed on.
const CLOSED: u8 = 2;
/// To be closed with a reset.
const RESET: u8 = 3;

/// How soon a change of mind reaches a thread that waits for bytes.
const TICK: Duration = Duration::from_millis(20);

impl Proxy {
    pub fn new(target: SocketAddr) -> Proxy {
        Proxy::listening(super::free_port(), target)
    }

    pub fn listening(port: u16, target: SocketAddr) -> Proxy {
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            rate: AtomicU64::new(0),
            delay: AtomicU64::new(0),
            swallowing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            refusing: AtomicBool::new(false),
            pairs: Mutex::default(),
            trap: Trap::default(),
        });
        // A process that is being started has our sockets for a moment, those that asked whether the port
        // is free among them.
        let listener = until(format_args!("a proxy listens on {port}"), 60, || {
            TcpListener::bind(("127.0.0.1", port)).ok()
        });
        let for_thread = shared.clone();
        thread::spawn(move || for_thread.accept(port, listener));
        Proxy { port, shared }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Good again, for new connections; those that were swallowed stay so.
    pub fn forward(&self) {
        self.shared.swallowing.store(false, Relaxed);
        self.shared.rate.store(0, Relaxed);
        self.shared.delay.store(0, Relaxed);
        self.shared.refusing.store(false, Relaxed);
    }

    /// At most so many bytes a second in each direction, for each connection.
    pub fn throttle(&self, bytes_per_second: u64) {
        self.shared.rate.store(bytes_per_second, Relaxed);
    }

    /// Everything comes so much later, both ways, in whole reads of up to 64 KiB; a very long delay
    /// is a stall that `forward` ends.
    pub fn delay(&self, milliseconds: u64) {
        self.shared.delay.store(milliseconds, Relaxed);
    }

    /// New connections go there, as when a name leads elsewhere; the old ones are reset.
    pub fn lead_to(&self, target: SocketAddr) {
        *self.shared.target.lock().expect("no panic under this lock") = target;
        self.end_all(RESET);
    }

    /// Everything vanishes without a word, on old connections and on new ones.
    pub fn swallow(&self) {
        self.shared.swallowing.store(true, Relaxed);
        self.end_all(SWALLOWED);
    }

    /// A reset for all connections; new ones are welcome. Those that were swallowed stay so.
    pub fn reset(&self) {
        self.end_all(RESET);
    }

    /// From the place on where a client sends these words, nothing passes on any connection; new
    /// ones are welcome.
    pub fn trap(&self, words: &str, side: Side) {
        self.shared.trap.set(words, side);
    }

    pub fn is_sprung(&self) -> bool {
        self.shared.trap.is_sprung()
    }

    /// Every statement that clients of PostgreSQL sent since the first trap.
    pub fn statements(&self) -> Vec<String> {
        self.shared.trap.seen()
    }

    /// Swallowed connections are reset: both sides hear of it now, if they have not given up.
    pub fn reset_swallowed(&self) {
        self.shared.change_all(SWALLOWED, RESET);
    }

    /// The port closes, and all connections are reset.
    pub fn refuse(&self) {
        self.shared.refusing.store(true, Relaxed);
        self.end_all(RESET);
    }

    fn end_all(&self, fate: u8) {
        // One that ends already keeps its end.
        self.shared.change_all(ALIVE, fate);
    }
}

impl Shared {
    fn change_all(&self, from: u8, to: u8) {
        for pair in self.pairs.lock().expect("no panic under this lock").iter() {
            let _ = pair.fate.compare_exchange(from, to, Relaxed, Relaxed);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Relaxed);
        for pair in self
            .shared
            .pairs
            .lock()
            .expect("no panic under this lock")
            .iter()
        {
            pair.fate.store(CLOSED, Relaxed);
        }
    }
}

impl Shared {
    fn accept(self: Arc<Self>, port: u16, listener: TcpListener) {
        let mut listener = Some(listener);
        while !self.closed.load(Relaxed) {
            if self.refusing.load(Relaxed) {
                listener = None;
            } else if listener.is_none() {
                listener = TcpListener::bind(("127.0.0.1", port)).ok();
            }
            let Some(open) = &listener else {
                thread::sleep(TICK);
                continue;
            };
            open.set_nonblocking(true)
                .expect("a socket that does not block");
            match open.accept() {
                // Closed by dropping it: the port was to be shut a moment ago.
                Ok(_) if self.refusing.load(Relaxed) => {}
                Ok((client, _)) => self.clone().pair(client),
                Err(_) => thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    fn pair(self: Arc<Self>, client: TcpStream) {
        let fate = if self.swallowing.load(Relaxed) {
            SWALLOWED
        } else {
            ALIVE
        };
        let pair = Arc::new(Pair {
            fate: AtomicU8::new(fate),
            awaited: AtomicBool::new(false),
        });
        self.pairs
            .lock()
            .expect("no panic under this lock")
            .push(pair.clone());
        thread::spawn(move || {
            let server = if fate == ALIVE {
                TcpStream::connect(*self.target.lock().expect("no panic under this lock")).ok()
            } else {
                None
            };
            match server {
                Some(server) => self.run(&pair, client, server),
                // Dropping the client tells it that the target refuses.
                None if fate == ALIVE => {}
                None => pair.hold(client),
            }
            self.pairs
                .lock()
                .expect("no panic under this lock")
                .retain(|other| !Arc::ptr_eq(other, &pair));
        });
    }

    fn run(self: &Arc<Self>, pair: &Arc<Pair>, client: TcpStream, server: TcpStream) {
        for stream in [&client, &server] {
            stream.set_nonblocking(false).expect("a socket that blocks");
            stream.set_read_timeout(Some(TICK)).expect("a timeout");
            stream.set_nodelay(true).expect("no delay");
        }
        let (client, server) = (Arc::new(client), Arc::new(server));
        let up = {
            let (shared, pair, client, server) =
                (self.clone(), pair.clone(), client.clone(), server.clone());
            thread::spawn(move || shared.pump(&pair, &client, &server, Way::Up))
        };
        self.pump(pair, &server, &client, Way::Down);
        let _ = up.join();
        if pair.fate.load(Relaxed) == RESET {
            for stream in [&client, &server] {
                let _ = SockRef::from(&**stream).set_linger(Some(Duration::ZERO));
            }
        }
    }

    fn pump(&self, pair: &Pair, from: &TcpStream, to: &TcpStream, way: Way) {
        let mut buffer = vec![0; 65_536];
        let mut free_at = Instant::now();
        loop {
            match pair.fate.load(Relaxed) {
                ALIVE => {}
                SWALLOWED => {
                    thread::sleep(TICK);
                    continue;
                }
                _ => return,
            }
            let rate = self.rate.load(Relaxed);
            // A twentieth of a second's worth at a time keeps the flow even.
            let most = if rate > 0 {
                usize::try_from(rate / 20)
                    .unwrap_or(usize::MAX)
                    .clamp(1, buffer.len())
            } else {
                buffer.len()
            };
            let count = match (&*from).read(&mut buffer[..most]) {
                Ok(count) => count,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    continue;
                }
                Err(_) => 0,
            };
            self.be_late(pair);
            if count > 0 {
                self.spring(pair, way, &buffer[..count]);
            }
            // What came after the fault does not pass any more.
            if pair.fate.load(Relaxed) != ALIVE {
                continue;
            }
            if rate > 0 {
                free_at = free_at.max(Instant::now())
                    + Duration::from_secs_f64(count as f64 / rate as f64);
                thread::sleep(free_at.saturating_duration_since(Instant::now()));
            }
            if count == 0 || (&*to).write_all(&buffer[..count]).is_err() {
                let _ = pair.fate.compare_exchange(ALIVE, CLOSED, Relaxed, Relaxed);
                return;
            }
        }
    }
}

/// From client to server, or back.
#[derive(Clone, Copy)]
enum Way {
    Up,
    Down,
}

impl Shared {
    /// Looks at a piece for the trap's sake.
    fn spring(&self, pair: &Pair, way: Way, piece: &[u8]) {
        let then = match way {
            Way::Up => self.trap.sent(piece),
            Way::Down if pair.awaited.load(Relaxed) => self.trap.answered(piece),
            Way::Down => return,
        };
        match then {
            Then::Forward => {}
            Then::Await => pair.awaited.store(true, Relaxed),
            Then::Stop => self.change_all(ALIVE, SWALLOWED),
        }
    }

    /// Waits for as long as everything is late; the end of the delay ends it at once.
    fn be_late(&self, pair: &Pair) {
        let began = Instant::now();
        let is_early = || began.elapsed() < Duration::from_millis(self.delay.load(Relaxed));
        while is_early() && pair.fate.load(Relaxed) == ALIVE {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Pair {
    /// Keeps a swallowed connection open until the end.
    fn hold(&self, _client: TcpStream) {
        while self.fate.load(Relaxed) == SWALLOWED {
            thread::sleep(TICK);
        }
    }
}

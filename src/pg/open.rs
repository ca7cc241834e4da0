//! One way to a logged-in connection, for SQL and for replication: hosts in order, name look-up,
//! TCP, TLS, login, and on to the next way or host where libpq would go on.

use std::{future::Future, io, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, anyhow, bail};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    time,
};

use super::{
    conninfo::{Address, ConnInfo, Host, Password, SessionAttrs, SslMode, Tcp, socket},
    failure::{CannotConnectNow, Refused},
    socket::{Reading, Socket, connect},
    tls::{self, Stream},
};
use crate::error::Failure;

/// A stream that is ready for the start-up packet.
pub struct Opened {
    pub stream: Stream,
    pub attempt: Attempt,
}

/// One try to log in: where, as whom, and what the server must be.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub info: ConnInfo,
    pub host: Host,
    pub password: Option<Password>,
    /// What this host must be; `prefer-standby` asks for a standby first, then takes any.
    wanted: SessionAttrs,
    reading: Reading,
}

/// Where a host is.
enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Why no login was tried, and whether the same address may do better with or without TLS.
struct Unreached {
    error: anyhow::Error,
    other_way: bool,
}

/// Logs in with `login` at the first host that takes it. The login's errors decide how to go on:
/// a passing one leads to the next host, a `Stop` ends the search.
pub async fn open<T, F>(
    info: &ConnInfo,
    reading: Reading,
    login: impl Fn(Opened) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Refused>>,
{
    let mut troubles: Vec<String> = Vec::new();
    let mut stopping = false;
    let mut note = |trouble: String| {
        if !troubles.contains(&trouble) {
            troubles.push(trouble);
        }
    };
    let (first, then) = match info.target_session_attrs {
        SessionAttrs::PreferStandby => (SessionAttrs::Standby, Some(SessionAttrs::Any)),
        wanted => (wanted, None),
    };
    for wanted in [Some(first), then].into_iter().flatten() {
        for host in &info.hosts {
            let password = match info.password(host) {
                Ok(password) => password,
                Err(error) => {
                    note(format!("{error:#}"));
                    continue;
                }
            };
            let attempt = Attempt {
                info: info.clone(),
                host: host.clone(),
                password,
                wanted,
                reading,
            };
            let targets = match within(info.connect_timeout, look_up(host)).await {
                Ok(targets) => targets,
                Err(error) => {
                    note(format!("{host}: {error:#}"));
                    continue;
                }
            };
            for target in &targets {
                match at_target(&attempt, target, &login).await {
                    Ok(session) => {
                        info.has_logged_in();
                        return Ok(session);
                    }
                    Err(Failure::Passing(error)) => {
                        stopping |= error.is::<CannotConnectNow>();
                        note(format!("{error:#}"));
                    }
                    Err(stop) => return Err(stop),
                }
            }
        }
    }
    let text = format!("cannot connect to PostgreSQL: {}", troubles.join("; "));
    Err(Failure::Passing(if stopping {
        CannotConnectNow(text).into()
    } else {
        anyhow!(text)
    }))
}

/// With TLS, without, or one after the other, as `sslmode` says.
async fn at_target<T, F>(
    attempt: &Attempt,
    target: &Target,
    login: &impl Fn(Opened) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Refused>>,
{
    let ways: &[bool] = match (target, attempt.info.tls.mode) {
        (Target::Unix(_), _) | (_, SslMode::Disable) => &[false],
        (_, SslMode::Allow) => &[false, true],
        (_, SslMode::Prefer) => &[true, false],
        (_, SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull) => &[true],
    };
    let timeout = attempt.info.connect_timeout;
    let mut last = None;
    for &with_tls in ways {
        let tried = within(timeout, async {
            let stream = match reach(attempt, target, with_tls).await {
                Ok(stream) => stream,
                Err(Unreached { error, other_way }) => {
                    let error = error.context(attempt.host.to_string());
                    return Ok(Err((Failure::Passing(error), other_way)));
                }
            };
            let login = login(Opened {
                stream,
                attempt: attempt.clone(),
            })
            .await;
            Ok(login.map_err(|refused| (refused.failure, refused.other_way)))
        });
        match tried.await {
            Ok(Ok(session)) => return Ok(session),
            Ok(Err((failure, true))) => last = Some(failure),
            Ok(Err((failure, false))) => return Err(failure),
            Err(silence) => {
                return Err(Failure::Passing(silence.context(attempt.host.to_string())));
            }
        }
    }
    Err(last.expect("there is at least one way"))
}

async fn within<T>(
    limit: Option<Duration>,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let Some(limit) = limit else {
        return work.await;
    };
    time::timeout(limit, work)
        .await
        .unwrap_or_else(|_| Err(anyhow!("no answer within {limit:?} (connect_timeout)")))
}

/// Anew each time: after a failover the name leads elsewhere.
async fn look_up(host: &Host) -> anyhow::Result<Vec<Target>> {
    match &host.address {
        Address::Unix(folder) => Ok(vec![Target::Unix(socket(folder, host.port))]),
        Address::Tcp { ip: Some(ip), .. } => Ok(vec![Target::Tcp(SocketAddr::new(*ip, host.port))]),
        Address::Tcp { name, ip: None } => {
            let found = tokio::net::lookup_host((name.as_str(), host.port)).await?;
            let targets: Vec<_> = found.map(Target::Tcp).collect();
            if targets.is_empty() {
                bail!("the name has no address");
            }
            Ok(targets)
        }
    }
}

async fn reach(attempt: &Attempt, target: &Target, with_tls: bool) -> Result<Stream, Unreached> {
    let dead = |error| Unreached {
        error,
        other_way: false,
    };
    let address = match target {
        Target::Tcp(address) => address,
        Target::Unix(path) => {
            let connected = UnixStream::connect(path).await;
            return connected
                .and_then(|stream| Socket::unix(stream, attempt.reading))
                .map(Stream::Plain)
                .map_err(|error| dead(error.into()));
        }
    };
    let name = match &attempt.host.address {
        Address::Tcp { name, .. } if !name.is_empty() => name.clone(),
        _ => address.ip().to_string(),
    };
    let mut socket = connect(*address, attempt.reading)
        .await
        .with_context(|| format!("at {}", address.ip()))
        .map_err(dead)?;
    configure(&socket, &attempt.info.tcp).map_err(|error| dead(error.into()))?;
    let plain = |socket| {
        let socket = Socket::tcp(socket, attempt.reading).map_err(|error| dead(error.into()))?;
        Ok(Stream::Plain(socket))
    };
    if !with_tls {
        return plain(socket);
    }
    let mode = attempt.info.tls.mode;
    if !offers_tls(&mut socket).await.map_err(dead)? {
        return match mode {
            SslMode::Prefer => plain(socket),
            mode => Err(dead(anyhow!(
                "the server offers no TLS, but sslmode is {mode}"
            ))),
        };
    }
    let socket = Socket::tcp(socket, attempt.reading).map_err(|error| dead(error.into()))?;
    let stream = tls::handshake(&attempt.info.tls, &name, socket).await;
    stream.map_err(|error| Unreached {
        error,
        other_way: mode == SslMode::Prefer,
    })
}

/// Asks for TLS. Exactly one byte is read: what came after it in clear text could be an attacker's.
async fn offers_tls(socket: &mut TcpStream) -> anyhow::Result<bool> {
    const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
    socket.write_all(&SSL_REQUEST).await?;
    match socket.read_u8().await {
        Ok(b'S') => Ok(true),
        Ok(b'N') => Ok(false),
        // Its text is unauthenticated, so it is not shown.
        Ok(b'E') => bail!("the server answered the request for TLS with an error"),
        Ok(_) => {
            bail!("not a PostgreSQL server: it answered the request for TLS with something else")
        }
        Err(error) => {
            Err(anyhow!(error).context("the server closed the connection at the request for TLS"))
        }
    }
}

fn configure(socket: &TcpStream, tcp: &Tcp) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    if tcp.keepalives {
        let mut keepalive = TcpKeepalive::new();
        keepalive = tcp
            .idle
            .map_or(keepalive.clone(), |idle| keepalive.with_time(idle));
        keepalive = tcp.interval.map_or(keepalive.clone(), |interval| {
            keepalive.with_interval(interval)
        });
        keepalive = tcp
            .count
            .map_or(keepalive.clone(), |count| keepalive.with_retries(count));
        socket.set_keepalive(true)?;
        socket.set_tcp_keepalive(&keepalive)?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(tcp.user_timeout)?;
    Ok(())
}

impl Attempt {
    /// Whether [`Attempt::accepts`] has to be asked at all.
    pub fn asks_for_role(&self) -> bool {
        self.wanted != SessionAttrs::Any
    }

    /// Whether the server may be used, by two parameters it reports at login. For the login to
    /// ask; another host may be what is wanted.
    pub fn accepts(
        &self,
        in_hot_standby: Option<&str>,
        read_only: Option<&str>,
    ) -> Result<(), Refused> {
        let on = |value: Option<&str>| value == Some("on");
        if self.wanted.accept(on(in_hot_standby), on(read_only)) {
            return Ok(());
        }
        let error = anyhow!(
            "{}: not what target_session_attrs={} asks for",
            self.host,
            self.wanted
        );
        Err(Refused {
            failure: Failure::Passing(error),
            other_way: false,
        })
    }
}

//! Hosts: a name, an address or a socket's directory, each with its port.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use super::keywords::Parameters;
use crate::error::Stop;

/// Debian's directory of sockets, used when no host is given.
pub const SOCKETS: &str = "/var/run/postgresql";
const PORT: u16 = 5432;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub address: Address,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `ip`, if given, saves the look-up; the name is still what a certificate must have.
    Tcp { name: String, ip: Option<IpAddr> },
    /// The directory of the socket.
    Unix(PathBuf),
}

/// The socket of the server at `port`.
pub fn socket(folder: &Path, port: u16) -> PathBuf {
    folder.join(format!(".s.PGSQL.{port}"))
}

impl fmt::Display for Host {
    /// `name:port`, or the socket's path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.port;
        match &self.address {
            Address::Tcp { name, ip: Some(ip) } if name.is_empty() => {
                SocketAddr::new(*ip, port).fmt(f)
            }
            Address::Tcp { name, .. } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Address::Tcp { name, .. } => write!(f, "{name}:{port}"),
            Address::Unix(folder) => socket(folder, port).display().fmt(f),
        }
    }
}

/// Pairs up the lists of hosts, addresses and ports.
pub fn hosts(given: &Parameters) -> Result<Vec<Host>, Stop> {
    let list =
        |key| -> Option<Vec<&str>> { Some(given.get(key)?.split(',').map(str::trim).collect()) };
    let (names, addresses) = (list("host"), list("hostaddr"));
    let ports = list("port").unwrap_or(vec![""]);
    let count = addresses.as_ref().or(names.as_ref()).map_or(1, Vec::len);
    if names.as_ref().is_some_and(|names| names.len() != count) {
        let why = format!("{count} addresses for another number of hosts");
        return Err(given.wrong("hostaddr", why));
    }
    if ports.len() != 1 && ports.len() != count {
        return Err(given.wrong("port", format!("{} ports for {count} hosts", ports.len())));
    }
    let host = |at: usize| {
        let port = match ports[if ports.len() == 1 { 0 } else { at }] {
            "" => Some(PORT),
            text => text.parse().ok().filter(|&port| port > 0),
        };
        let port = port.ok_or_else(|| given.wrong("port", "must be 1 to 65535".into()))?;
        let name = names.as_ref().map_or("", |names| names[at]);
        if name.contains('@') {
            let why = "a host's name has no `@`; write one in a user or password as %40";
            return Err(given.wrong("host", why.into()));
        }
        let ip =
            match addresses.as_ref().map_or("", |addresses| addresses[at]) {
                "" => None,
                text => Some(text.parse().map_err(|_| {
                    given.wrong("hostaddr", format!("`{text}` is not an IP address"))
                })?),
            };
        let address = match ip {
            None if name.is_empty() => Address::Unix(SOCKETS.into()),
            None if name.starts_with('/') => Address::Unix(name.into()),
            ip => Address::Tcp {
                name: name.to_string(),
                ip,
            },
        };
        Ok(Host { address, port })
    };
    (0..count).map(host).collect()
}

//! Who may change something over HTTP: who has the token, or without one a client on this machine.
//! A page of another site must not reach it through the operator's browser: a browser names the
//! page's site in `Origin`, and the name that it looked up in `Host`, which after a rebinding of that
//! name is not ours.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use axum::http::{
    HeaderMap, StatusCode,
    header::{AUTHORIZATION, FORWARDED, HOST, ORIGIN},
};

use crate::{
    config,
    error::{Exit, Stop},
    stop,
};

/// The two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub client: SocketAddr,
    pub here: SocketAddr,
}

/// A request that is not allowed: the answer's code, and why.
#[derive(Debug, PartialEq, Eq)]
pub struct Forbidden(pub StatusCode, pub String);

pub struct Guard {
    /// The host of `http.listen`, which may be a name.
    listen: String,
    /// This machine's name.
    machine: Option<String>,
    token_file: Option<PathBuf>,
}

impl Guard {
    /// A token file that cannot be used ends the start.
    pub fn new(config: &config::Http) -> Result<Guard, Stop> {
        let guard = Guard {
            listen: host(&config.listen).to_owned(),
            machine: whoami::hostname().ok(),
            token_file: config.admin_token_file.clone(),
        };
        guard.token().map_err(|why| stop!(Exit::Usage, "{why}"))?;
        Ok(guard)
    }

    /// The file's first line, read each time: a new token needs no restart.
    fn token(&self) -> Result<Option<String>, String> {
        let Some(file) = &self.token_file else {
            return Ok(None);
        };
        let name = file.display();
        let text = fs::read_to_string(file)
            .map_err(|error| format!("cannot read http.admin_token_file {name}: {error}"))?;
        match text.lines().next().map(str::trim) {
            None | Some("") => Err(format!(
                "http.admin_token_file {name} has no token in its first line"
            )),
            Some(token) => Ok(Some(token.to_owned())),
        }
    }

    pub fn allow(&self, ends: Ends, headers: &HeaderMap) -> Result<(), Forbidden> {
        let forbidden = |why: String| Err(Forbidden(StatusCode::FORBIDDEN, why));
        let named = one(headers, HOST.as_str());
        let Some(named) = named.filter(|named| self.is_ours(named, ends)) else {
            return forbidden(
                "header Host is not an address or name of this publisher: use its IP address, the name of its machine or localhost; with \
                 http.admin_token_file also a name of a private network, such as walpost.ns.svc"
                    .into(),
            );
        };
        for origin in headers.get_all(ORIGIN) {
            let own = |scheme: &str| {
                let origin = origin.to_str().ok()?.strip_prefix(scheme)?;
                origin.eq_ignore_ascii_case(named).then_some(())
            };
            if own("http://").or_else(|| own("https://")).is_none() {
                return forbidden("header Origin is that of another site".into());
            }
        }
        let token = self.token();
        let token = token.map_err(|why| Forbidden(StatusCode::INTERNAL_SERVER_ERROR, why))?;
        let Some(token) = token else {
            // Behind a proxy on this machine everybody comes from this machine.
            let through_proxy =
                headers.contains_key(FORWARDED) || headers.contains_key("x-forwarded-for");
            return match ends.client.ip().to_canonical().is_loopback() && !through_proxy {
                true => Ok(()),
                false => forbidden(
                    "without http.admin_token_file this is accepted from the publisher's own machine only"
                        .into(),
                ),
            };
        };
        let given = one(headers, AUTHORIZATION.as_str()).and_then(bearer);
        match given.is_some_and(|given| same(given, &token)) {
            true => Ok(()),
            false => Err(Forbidden(
                StatusCode::UNAUTHORIZED,
                "needs the token of http.admin_token_file: Authorization: Bearer TOKEN".into(),
            )),
        }
    }

    /// No name that somebody else can point at this machine. An address is no name; without a token
    /// it has to be one of this connection all the same. A name of a private network is ours for who
    /// has the token, which no page knows: nobody can tell by which name a Service finds a container.
    fn is_ours(&self, named: &str, ends: Ends) -> bool {
        let name = host(named);
        if let Ok(ip) = name.parse::<IpAddr>() {
            let ip = ip.to_canonical();
            return ip.is_loopback()
                || ip == ends.here.ip().to_canonical()
                || self.token_file.is_some();
        }
        let machine = self.machine.as_deref().unwrap_or_default();
        let is_own = [self.listen.as_str(), machine, "localhost"]
            .iter()
            .any(|ours| !ours.is_empty() && name.eq_ignore_ascii_case(ours));
        is_own || self.token_file.is_some() && is_private(name)
    }
}

/// A name that public DNS gives to nobody: of one label, as Docker's and a namespace's own, of a
/// Kubernetes Service, or of a top-level domain that is set aside (RFC 6762, and ICANN's `.internal`).
fn is_private(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let legal = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let is_name = |name: &str| {
        name.split('.')
            .all(|l| !l.is_empty() && l.bytes().all(legal))
    };
    let parent = name.rsplit_once('.').map(|(_, last)| last);
    let is_aside = |last: &str| {
        let aside = ["svc", "internal", "local"];
        aside.iter().any(|one| last.eq_ignore_ascii_case(one))
    };
    is_name(name) && parent.is_none_or(is_aside)
}

/// Without the port and the brackets of an IPv6 address.
fn host(address: &str) -> &str {
    let host = match address.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !host.ends_with(':') => {
            match host.contains(':') && !host.ends_with(']') {
                // The end of an IPv6 address without brackets.
                true => address,
                false => host,
            }
        }
        _ => address,
    };
    host.strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host)
}

/// The header's value, if it is there exactly once.
fn one<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Takes the same time whatever is given: neither how much of it is right nor its length shows.
fn same(given: &str, token: &str) -> bool {
    let digest = |text: &str| openssl::sha::sha256(text.as_bytes());
    openssl::memcmp::eq(&digest(given), &digest(token))
}

#[cfg(test)]
mod tests;

//! TLS as libpq's `sslmode` means it, and the stream that it makes.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    pin::Pin,
    task::{self, Poll},
};

use anyhow::{Context, anyhow, bail};
use openssl::{
    error::ErrorStack,
    hash::MessageDigest,
    nid::Nid,
    pkey::{PKey, Private},
    ssl::{SslConnector, SslFiletype, SslMethod, SslVerifyMode, SslVersion},
    x509::{
        X509, X509VerifyResult,
        store::{X509Lookup, X509StoreBuilder},
        verify::X509VerifyFlags,
    },
};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio_openssl::SslStream;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

use super::{
    conninfo::{Root, SslMode, Tls},
    socket::Socket,
};
use crate::config::Secret;

/// A TLS record carries one small message and a read returns one record, so what the socket has
/// is gathered below TLS: one system call instead of thousands.
const BELOW_TLS: usize = 256 * 1024;

/// A connection to PostgreSQL's port or socket.
pub enum Stream {
    Plain(Socket),
    Tls(Box<SslStream<BufReader<Socket>>>),
}

impl Stream {
    pub fn is_tls(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    /// The server certificate's digest for SCRAM's `tls-server-end-point` (RFC 5929): by the hash
    /// of its signature, SHA-256 in place of the broken ones. `None` without TLS, and for
    /// signatures without a hash of their own (Ed25519, RSA-PSS).
    pub fn certificate_digest(&self) -> Option<Vec<u8>> {
        let Stream::Tls(stream) = self else {
            return None;
        };
        let certificate = stream.ssl().peer_certificate()?;
        let signature = certificate.signature_algorithm().object().nid();
        let digest = match signature.signature_algorithms()?.digest {
            Nid::MD5 | Nid::SHA1 => MessageDigest::sha256(),
            nid => MessageDigest::from_nid(nid)?,
        };
        Some(certificate.digest(digest).ok()?.to_vec())
    }
}

/// Whether the authorities behind the server's certificate are checked.
fn verifies(tls: &Tls) -> bool {
    // libpq's rule: a root certificate makes the weaker modes check the chain too.
    tls.root != Root::None
}

/// Reads root certificates, revocations, certificate and key.
pub fn connector(tls: &Tls) -> anyhow::Result<SslConnector> {
    let mut builder = SslConnector::builder(SslMethod::tls_client())?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    builder.set_alpn_protos(b"\x0apostgresql")?;
    builder.set_verify(if verifies(tls) {
        SslVerifyMode::PEER
    } else {
        SslVerifyMode::NONE
    });
    // A store of our own: the builder's trusts the system's authorities besides the given one.
    let mut store = X509StoreBuilder::new()?;
    match &tls.root {
        Root::None => {}
        Root::System => store.set_default_paths()?,
        Root::File(file) => {
            let name = file.display();
            let pem = fs::read(file).with_context(|| format!("cannot read sslrootcert {name}"))?;
            let certificates =
                X509::stack_from_pem(&pem).with_context(|| format!("sslrootcert {name}"))?;
            if certificates.is_empty() {
                bail!("sslrootcert {name} has no certificate in PEM form");
            }
            certificates
                .into_iter()
                .try_for_each(|certificate| store.add_cert(certificate))?;
        }
    }
    if let Some(file) = tls.revoked.as_ref().filter(|_| verifies(tls)) {
        let name = file.display();
        fs::metadata(file).with_context(|| format!("cannot read sslcrl {name}"))?;
        let lookup = store.add_lookup(X509Lookup::file())?;
        lookup
            .load_crl_file(file, SslFiletype::PEM)
            .with_context(|| format!("sslcrl {name}"))?;
        store.set_flags(X509VerifyFlags::CRL_CHECK | X509VerifyFlags::CRL_CHECK_ALL)?;
    }
    builder.set_cert_store(store.build());
    if let Some((certificate, key)) = &tls.identity {
        let (name, key_name) = (certificate.display(), key.display());
        fs::metadata(certificate).with_context(|| format!("cannot read sslcert {name}"))?;
        builder
            .set_certificate_chain_file(certificate)
            .with_context(|| format!("sslcert {name}"))?;
        let key = private_key(key, tls.key_password.as_ref())?;
        // OpenSSL compares the two here already.
        let matching = builder.set_private_key(&key);
        matching.map_err(|_| anyhow!("sslkey {key_name} is not the key of sslcert {name}"))?;
    }
    Ok(builder.build())
}

/// With a passphrase or none at all: left alone, OpenSSL would ask for one on the terminal.
fn private_key(file: &Path, password: Option<&Secret>) -> anyhow::Result<PKey<Private>> {
    let name = file.display();
    let exposed = key_is_exposed(file).with_context(|| format!("cannot read sslkey {name}"))?;
    if exposed {
        bail!("sslkey {name} can be read by others; chmod 600 {name}");
    }
    let pem = fs::read(file).with_context(|| format!("cannot read sslkey {name}"))?;
    let answer = |buffer: &mut [u8]| {
        let password = password
            .map(|password| password.reveal().as_bytes())
            .unwrap_or_default();
        let Some(place) = buffer
            .get_mut(..password.len())
            .filter(|place| !place.is_empty())
        else {
            return Err(ErrorStack::get());
        };
        place.copy_from_slice(password);
        Ok(password.len())
    };
    PKey::private_key_from_pem_callback(&pem, answer).map_err(|_| {
        anyhow!("sslkey {name}: not a private key in PEM form, or sslpassword is wrong or missing")
    })
}

/// Whether a private key's file is open to others. As in libpq, a file of root may be readable by
/// its group.
fn key_is_exposed(file: &Path) -> io::Result<bool> {
    let facts = fs::metadata(file)?;
    let forbidden = if facts.uid() == 0 { 0o037 } else { 0o077 };
    Ok(facts.permissions().mode() & forbidden != 0)
}

/// The handshake. `name` is what the certificate must be for, with `verify-full`.
pub(super) async fn handshake(tls: &Tls, name: &str, socket: Socket) -> anyhow::Result<Stream> {
    let full = tls.mode == SslMode::VerifyFull;
    let ssl = connector(tls)?
        .configure()?
        .verify_hostname(full)
        .into_ssl(name)?;
    let mut stream = SslStream::new(ssl, BufReader::with_capacity(BELOW_TLS, socket))?;
    if let Err(error) = Pin::new(&mut stream).connect().await {
        return Err(match stream.ssl().verify_result() {
            X509VerifyResult::OK => anyhow!(error).context("TLS handshake failed"),
            reason => anyhow!(
                "the server's certificate is not accepted: {} (sslmode={}{})",
                reason.error_string(),
                tls.mode,
                match &tls.root {
                    Root::None => String::new(),
                    Root::System => ", sslrootcert=system".into(),
                    Root::File(file) => format!(", sslrootcert={}", file.display()),
                }
            ),
        });
    }
    Ok(Stream::Tls(Box::new(stream)))
}

macro_rules! each {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            Stream::Plain($inner) => $call,
            Stream::Tls($inner) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, inner => Pin::new(inner).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut task::Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, inner => Pin::new(inner).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<io::Result<()>> {
        each!(self, inner => Pin::new(inner).poll_shutdown(cx))
    }
}

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        self.certificate_digest()
            .map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

/// Hands tokio_postgres a stream whose TLS is already done.
pub(super) struct Done;

impl TlsConnect<Stream> for Done {
    type Stream = Stream;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<Stream>>;

    fn connect(self, stream: Stream) -> Self::Future {
        std::future::ready(Ok(stream))
    }
}

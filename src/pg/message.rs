//! What travels inside CopyData on a replication connection: bytes ↔ XLogData, Keepalive,
//! StatusUpdate. <https://www.postgresql.org/docs/current/protocol-replication.html>

use bytes::{BufMut, BytesMut};

use super::bytes::{Malformed, Reader};
use crate::{
    ledger::ConfirmedLsn,
    lsn::{Lsn, PgTime},
};

/// A message of the server.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerMessage<'a> {
    /// One message of the output plugin.
    XLogData {
        wal_start: Lsn,
        wal_end: Lsn,
        sent_at: PgTime,
        data: &'a [u8],
    },
    /// All commits that end at or before `wal_end` have been sent.
    Keepalive {
        wal_end: Lsn,
        sent_at: PgTime,
        reply_requested: bool,
    },
}

impl<'a> ServerMessage<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new("replication message", bytes);
        let message = match r.u8()? {
            b'w' => ServerMessage::XLogData {
                wal_start: r.lsn()?,
                wal_end: r.lsn()?,
                sent_at: r.time()?,
                data: r.rest(),
            },
            b'k' => ServerMessage::Keepalive {
                wal_end: r.lsn()?,
                sent_at: r.time()?,
                reply_requested: r.u8()? != 0,
            },
            tag => return Err(r.unknown(tag)),
        };
        r.finish()?;
        Ok(message)
    }
}

/// What we tell the server: it may forget all that is confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusUpdate {
    /// The newest position received. Reporting less makes the server ask again at once, endlessly.
    pub received: Lsn,
    /// `None` while nothing on this connection can be confirmed: reported as 0, which the server
    /// ignores.
    pub confirmed: Option<ConfirmedLsn>,
    /// Ask for a keepalive: a server that is silent may be gone.
    pub reply_requested: bool,
}

impl StatusUpdate {
    /// Bytes of an encoded update.
    pub const LENGTH: usize = 34;

    /// The body of a CopyData message: write = received, flush = apply = confirmed.
    pub fn encode(&self, now: PgTime, to: &mut BytesMut) {
        let confirmed = self.confirmed.map_or(Lsn::ZERO, ConfirmedLsn::lsn);
        to.put_u8(b'r');
        to.put_u64(self.received.bytes());
        to.put_u64(confirmed.bytes());
        to.put_u64(confirmed.bytes());
        to.put_i64(now.micros());
        to.put_u8(self.reply_requested.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[test]
    fn messages_parse_and_every_prefix_is_an_error() {
        let eight = |n: u64| n.to_be_bytes();
        let data = bytes(&[b"w", &eight(16), &eight(32), &eight(7), b"xyz"]);
        let keepalive = bytes(&[b"k", &eight(48), &eight(9), &[1]]);
        assert_eq!(
            ServerMessage::parse(&data),
            Ok(ServerMessage::XLogData {
                wal_start: Lsn::new(16),
                wal_end: Lsn::new(32),
                sent_at: PgTime::new(7),
                data: b"xyz"
            })
        );
        assert_eq!(
            ServerMessage::parse(&keepalive),
            Ok(ServerMessage::Keepalive {
                wal_end: Lsn::new(48),
                sent_at: PgTime::new(9),
                reply_requested: true
            })
        );
        // Behind its header XLogData holds whatever the plugin wrote: pgoutput's own parser judges that.
        for end in 0..25 {
            assert!(ServerMessage::parse(&data[..end]).is_err(), "{end}");
        }
        for end in 0..keepalive.len() {
            assert!(ServerMessage::parse(&keepalive[..end]).is_err(), "{end}");
        }
        assert!(ServerMessage::parse(&bytes(&[&keepalive, &[0]])).is_err());
        assert!(ServerMessage::parse(b"z").is_err());
    }

    #[test]
    fn nothing_confirmed_is_reported_as_zero() {
        let mut to = BytesMut::new();
        let update = StatusUpdate {
            received: Lsn::new(5),
            confirmed: None,
            reply_requested: true,
        };
        update.encode(PgTime::new(3), &mut to);
        let eight = |n: u64| n.to_be_bytes();
        assert_eq!(
            to[..],
            bytes(&[b"r", &eight(5), &eight(0), &eight(0), &eight(3), &[1]])[..]
        );
        assert_eq!(to.len(), StatusUpdate::LENGTH);
    }
}

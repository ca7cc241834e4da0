//! Positions in the write-ahead log and PostgreSQL's clock: parse, print, convert. No I/O.

use std::{fmt, str::FromStr};

/// A position in the WAL, in bytes; printed `hi/lo` in upper-case hex, as PostgreSQL prints it.
/// <https://www.postgresql.org/docs/current/datatype-pg-lsn.html>
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(u64);

impl Lsn {
    /// What a status update reports while nothing can be confirmed; the server ignores it.
    pub const ZERO: Lsn = Lsn(0);

    pub const fn new(bytes: u64) -> Self {
        Lsn(bytes)
    }

    /// Bytes from the start of the WAL.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// The text is not two hexadecimal numbers of at most eight digits around a slash.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a WAL position such as 0/16B3748")]
pub struct InvalidLsn(String);

impl FromStr for Lsn {
    type Err = InvalidLsn;

    fn from_str(text: &str) -> Result<Self, InvalidLsn> {
        let invalid = || InvalidLsn(text.to_owned());
        let part = |s: &str| {
            let plain = (1..=8).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_hexdigit());
            if plain {
                u64::from_str_radix(s, 16).map_err(|_| invalid())
            } else {
                Err(invalid())
            }
        };
        let (high, low) = text.split_once('/').ok_or_else(invalid)?;
        Ok(Lsn(part(high)? << 32 | part(low)?))
    }
}

impl serde::Serialize for Lsn {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Lsn {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        <std::borrow::Cow<'de, str>>::deserialize(from)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Where a record comes from: its transaction's commit record and its number in the transaction.
/// Printed `0/16B3748:3`. The ordinal counts from 1 over every Insert and every transactional
/// Message of the transaction in stream order, ours or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// LSN of the commit record itself (Begin's final LSN), not its end.
    pub commit: Lsn,
    pub ordinal: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.commit, self.ordinal)
    }
}

impl Position {
    /// Appends what it is printed as. Every record has it: the formatter takes ten times as long.
    pub fn append_to(self, text: &mut Vec<u8>) {
        let commit = self.commit.bytes();
        append_hexadecimal((commit >> 32) as u32, text);
        text.push(b'/');
        append_hexadecimal(commit as u32, text);
        text.push(b':');
        text.extend_from_slice(itoa::Buffer::new().format(self.ordinal).as_bytes());
    }
}

fn append_hexadecimal(number: u32, text: &mut Vec<u8>) {
    let digit = |place: u32| b"0123456789ABCDEF"[(number >> (4 * place) & 15) as usize];
    let digits = (u32::BITS - number.leading_zeros()).div_ceil(4).max(1);
    text.extend((0..digits).rev().map(digit));
}

impl FromStr for Position {
    type Err = InvalidLsn;

    fn from_str(text: &str) -> Result<Self, InvalidLsn> {
        let invalid = || InvalidLsn(text.to_owned());
        let (commit, ordinal) = text.split_once(':').ok_or_else(invalid)?;
        Ok(Position {
            commit: commit.parse()?,
            ordinal: ordinal.parse().map_err(|_| invalid())?,
        })
    }
}

/// A moment as PostgreSQL's protocols carry it: microseconds since 2000-01-01 00:00:00 UTC.
/// <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PgTime(i64);

/// 2000-01-01 in seconds since 1970-01-01.
const PG_EPOCH_SECONDS: i64 = 946_684_800;

impl PgTime {
    pub const fn new(micros: i64) -> Self {
        PgTime(micros)
    }

    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Milliseconds since 1970, rounded down, as Kafka stamps records.
    pub fn unix_millis(self) -> i64 {
        self.0
            .saturating_add(PG_EPOCH_SECONDS * 1_000_000)
            .div_euclid(1000)
    }

    /// The system clock's time, for status updates and ages.
    pub fn now() -> Self {
        let micros = jiff::Timestamp::now().as_microsecond();
        PgTime(micros - PG_EPOCH_SECONDS * 1_000_000)
    }

    /// Seconds from `self` to `later`; negative when the clocks disagree.
    pub fn seconds_until(self, later: PgTime) -> f64 {
        (later.0.saturating_sub(self.0)) as f64 / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lsn_prints_and_parses_as_postgresql_does() {
        for (text, bytes) in [
            ("0/0", 0),
            ("0/16B3748", 0x016B_3748),
            ("FFFFFFFF/FFFFFFFF", u64::MAX),
            ("1/A", 0x1_0000_000A),
        ] {
            assert_eq!(text.parse::<Lsn>().unwrap(), Lsn(bytes));
            assert_eq!(Lsn(bytes).to_string(), text);
        }
        for bad in [
            "",
            "0",
            "/",
            "0/",
            "/0",
            "0/123456789",
            "+1/0",
            "0x1/0",
            "0/0/0",
            "g/0",
        ] {
            assert!(bad.parse::<Lsn>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn time_rounds_down_to_milliseconds() {
        assert_eq!(PgTime(0).unix_millis(), 946_684_800_000);
        assert_eq!(PgTime(1_999).unix_millis(), 946_684_800_001);
        assert_eq!(PgTime(-1).unix_millis(), 946_684_799_999);
    }

    #[test]
    fn positions_order_by_commit_then_ordinal() {
        let at = |commit, ordinal| Position {
            commit: Lsn(commit),
            ordinal,
        };
        assert!(at(1, 9) < at(2, 1) && at(2, 1) < at(2, 10));
        for (position, text) in [
            (at(0x016B_3748, 3), "0/16B3748:3"),
            (at(0, 0), "0/0:0"),
            (at(0x1_0000_000A, 10), "1/A:10"),
            (at(0x10_1000_0000, 4_294_967_295), "10/10000000:4294967295"),
            (at(u64::MAX, 1), "FFFFFFFF/FFFFFFFF:1"),
        ] {
            let mut appended = Vec::new();
            position.append_to(&mut appended);
            assert_eq!(String::from_utf8(appended).unwrap(), text);
            assert_eq!(position.to_string(), text);
        }
    }
}

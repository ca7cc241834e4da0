//! pgoutput's messages, protocol version 1: bytes → Begin, Commit, Relation, Insert, Message and
//! the rest. No I/O, no allocation but for a Relation.
//! <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>

use super::bytes::{Malformed, Reader};
use crate::lsn::{Lsn, PgTime};

/// One message of the output plugin.
#[derive(Debug, PartialEq, Eq)]
pub enum Change<'a> {
    Begin {
        commit_lsn: Lsn,
        committed_at: PgTime,
        xid: u32,
    },
    Commit {
        commit_lsn: Lsn,
        end_lsn: Lsn,
        committed_at: PgTime,
    },
    Relation(Relation),
    Insert {
        relation: u32,
        tuple: Tuple<'a>,
    },
    /// A logical message; outside of a transaction when not `transactional`.
    Message {
        transactional: bool,
        lsn: Lsn,
        prefix: &'a str,
        content: &'a [u8],
    },
    /// What a table of events has no use for; counted.
    Ignored(Ignored),
}

/// Messages that are passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    Update,
    Delete,
    Truncate,
    Origin,
    Type,
    /// 18 may send it to a client that never asked for streaming.
    StreamAbort,
}

/// A table's shape as of the rows that follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// The table's OID.
    pub id: u32,
    pub namespace: String,
    pub name: String,
    pub columns: Vec<Column>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub type_oid: u32,
}

/// A row's values, still in their message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple<'a>(&'a [u8]);

/// One value of a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Null,
    /// A large value that an UPDATE left as it was; never part of an Insert.
    Unchanged,
    /// As the type's output function wrote it.
    Text(&'a [u8]),
    /// As the type's send function wrote it; not asked for.
    Binary(&'a [u8]),
}

impl<'a> Tuple<'a> {
    /// The tuple at the front of `r`, all of its values checked to be there.
    fn read(r: &mut Reader<'a>, message: &'static str, body: &'a [u8]) -> Result<Self, Malformed> {
        let mut probe = Reader::new(message, body);
        for _ in 0..probe.u16()? {
            Value::read(&mut probe)?;
        }
        let length = body.len() - probe.rest().len();
        Ok(Tuple(r.take(length)?))
    }

    /// A tuple from bytes that [`Tuple::bytes`] gave.
    pub fn from_bytes(bytes: &'a [u8]) -> Self {
        Tuple(bytes)
    }

    /// The tuple's own bytes, to be kept.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// How many values there are.
    pub fn count(self) -> usize {
        Reader::new("tuple", self.0).u16().unwrap_or(0).into()
    }

    /// The values in the order of the relation's columns.
    pub fn values(self) -> impl Iterator<Item = Value<'a>> {
        let mut r = Reader::new("tuple", self.0);
        let count = r.u16().unwrap_or(0);
        // Checked when the message was parsed: an error here cannot happen and ends the row.
        (0..count).map_while(move |_| Value::read(&mut r).ok())
    }
}

impl<'a> Value<'a> {
    fn read(r: &mut Reader<'a>) -> Result<Self, Malformed> {
        let sized = |r: &mut Reader<'a>| {
            let length = r.u32()?;
            r.take(length as usize)
        };
        match r.u8()? {
            b'n' => Ok(Value::Null),
            b'u' => Ok(Value::Unchanged),
            b't' => Ok(Value::Text(sized(r)?)),
            b'b' => Ok(Value::Binary(sized(r)?)),
            tag => Err(r.unknown(tag)),
        }
    }
}

impl<'a> Change<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (&tag, body) = bytes.split_first().ok_or(Malformed::Short {
            message: "pgoutput",
        })?;
        let name = match tag {
            b'B' => "Begin",
            b'C' => "Commit",
            b'R' => "Relation",
            b'I' => "Insert",
            b'M' => "Message",
            b'U' => "Update",
            b'D' => "Delete",
            b'T' => "Truncate",
            b'O' => "Origin",
            b'Y' => "Type",
            b'A' => "Stream Abort",
            tag => {
                return Err(Malformed::Tag {
                    message: "pgoutput",
                    tag: tag.into(),
                });
            }
        };
        let mut r = Reader::new(name, body);
        let change = match tag {
            b'B' => Change::Begin {
                commit_lsn: r.lsn()?,
                committed_at: r.time()?,
                xid: r.u32()?,
            },
            b'C' => {
                r.u8()?; // Flags; none is defined.
                Change::Commit {
                    commit_lsn: r.lsn()?,
                    end_lsn: r.lsn()?,
                    committed_at: r.time()?,
                }
            }
            b'R' => Change::Relation(Relation::read(&mut r)?),
            b'I' => {
                let relation = r.u32()?;
                Change::Insert {
                    relation,
                    tuple: tagged(&mut r, b"N")?,
                }
            }
            b'M' => {
                let transactional = r.u8()? & 1 != 0;
                let (lsn, prefix, length) = (r.lsn()?, r.text()?, r.u32()?);
                Change::Message {
                    transactional,
                    lsn,
                    prefix,
                    content: r.take(length as usize)?,
                }
            }
            _ => Change::Ignored(ignored(tag, &mut r)?),
        };
        r.finish()?;
        Ok(change)
    }
}

impl Relation {
    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let id = r.u32()?;
        // An empty namespace stands for pg_catalog.
        let (namespace, name) = (r.text()?.to_owned(), r.text()?.to_owned());
        r.u8()?; // Replica identity: only updates and deletes have use for it.
        let count = r.u16()?;
        let columns = (0..count)
            .map(|_| {
                r.u8()?; // Flags: part of the key.
                let (name, type_oid) = (r.text()?.to_owned(), r.u32()?);
                r.i32()?; // Type modifier.
                Ok(Column { name, type_oid })
            })
            .collect::<Result<_, _>>()?;
        Ok(Relation {
            id,
            namespace,
            name,
            columns,
        })
    }
}

/// A tuple behind one of the tags that may announce it here.
fn tagged<'a>(r: &mut Reader<'a>, tags: &[u8]) -> Result<Tuple<'a>, Malformed> {
    let tag = r.u8()?;
    if !tags.contains(&tag) {
        return Err(r.unknown(tag));
    }
    let body = r.peek();
    Tuple::read(r, "tuple", body)
}

/// The messages that are passed over are read to their end too: a misread length shows itself.
fn ignored(tag: u8, r: &mut Reader<'_>) -> Result<Ignored, Malformed> {
    Ok(match tag {
        b'U' => {
            r.u32()?;
            let old = matches!(r.peek().first(), Some(b'K' | b'O'));
            if old {
                tagged(r, b"KO")?;
            }
            tagged(r, b"N")?;
            Ignored::Update
        }
        b'D' => {
            r.u32()?;
            tagged(r, b"KO")?;
            Ignored::Delete
        }
        b'T' => {
            let count = r.u32()?;
            r.u8()?;
            for _ in 0..count {
                r.u32()?;
            }
            Ignored::Truncate
        }
        b'O' => {
            r.lsn()?;
            r.text()?;
            Ignored::Origin
        }
        b'Y' => {
            r.u32()?;
            r.text()?;
            r.text()?;
            Ignored::Type
        }
        _ => {
            r.u32()?;
            r.u32()?;
            Ignored::StreamAbort
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each message, as PostgreSQL 15 wrote them.
    fn messages() -> Vec<Vec<u8>> {
        include_str!("../../tests/golden/pgoutput/messages.hex")
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .map(|line| {
                let digits: Vec<u8> = line.bytes().filter(u8::is_ascii_hexdigit).collect();
                let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
                digits.chunks(2).map(|pair| byte(pair).unwrap()).collect()
            })
            .collect()
    }

    #[test]
    fn every_message_parses_and_every_prefix_is_an_error() {
        let all = messages();
        let mut tags: Vec<u8> = all.iter().map(|m| m[0]).collect();
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags, b"ABCDIMORTUY");
        for message in all {
            Change::parse(&message).unwrap_or_else(|e| panic!("{message:?}: {e}"));
            for end in 0..message.len() {
                assert!(
                    Change::parse(&message[..end]).is_err(),
                    "{end} bytes of {message:?}"
                );
            }
            let longer = [&message[..], &[0]].concat();
            assert!(
                Change::parse(&longer).is_err(),
                "one byte more than {message:?}"
            );
        }
    }

    #[test]
    fn an_insert_gives_its_values_in_order() {
        let bytes = [
            b"I\0\0\x40\0N".as_slice(),
            b"\0\x04t\0\0\0\x02abnt\0\0\0\0b\0\0\0\x01\xff",
        ]
        .concat();
        let Ok(Change::Insert {
            relation: 0x4000,
            tuple,
        }) = Change::parse(&bytes)
        else {
            panic!("no insert")
        };
        let values: Vec<_> = tuple.values().collect();
        assert_eq!(
            values,
            [
                Value::Text(b"ab"),
                Value::Null,
                Value::Text(b""),
                Value::Binary(b"\xff")
            ]
        );
        assert_eq!(Tuple::from_bytes(tuple.bytes()).values().count(), 4);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(20_000))]

        /// Flipped, cut, doubled and foreign bytes: an error or a message, never a panic, and a
        /// tuple that parsed gives all of its values.
        #[test]
        fn no_bytes_make_it_panic_or_read_past_the_message(
            which in proptest::prelude::any::<proptest::sample::Index>(),
            edits in proptest::collection::vec((proptest::prelude::any::<proptest::sample::Index>(), proptest::prelude::any::<u8>()), 0..6),
            cut in proptest::option::of(proptest::prelude::any::<proptest::sample::Index>()),
            noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..40),
        ) {
            let all = messages();
            let mut bytes = all[which.index(all.len())].clone();
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
                bytes.extend(&noise);
            }
            for input in [&bytes[..], &noise[..]] {
                if let Ok(Change::Insert { tuple, .. }) = Change::parse(input) {
                    let count = u16::from_be_bytes([tuple.bytes()[0], tuple.bytes()[1]]);
                    proptest::prop_assert_eq!(tuple.values().count(), usize::from(count));
                }
                let _ = super::super::message::ServerMessage::parse(input);
                let _ = super::super::server_error::ServerError::parse(input);
            }
        }
    }
}

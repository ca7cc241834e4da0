//! Reading the protocol's big-endian fields: every read says when the bytes end too early, and
//! `finish` when some are left over.

use crate::lsn::{Lsn, PgTime};

/// The bytes are not a message of the documented form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("{message} ends too early")]
    Short { message: &'static str },
    #[error("{message} has {bytes} bytes left over")]
    Left { message: &'static str, bytes: usize },
    #[error("{message} has an unknown tag {tag:?}")]
    Tag { message: &'static str, tag: char },
    #[error("{message} holds text that is not UTF-8")]
    Text { message: &'static str },
}

/// A cursor over one message.
pub struct Reader<'a> {
    message: &'static str,
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// `message` names what is read, for the error.
    pub fn new(message: &'static str, bytes: &'a [u8]) -> Self {
        Reader { message, bytes }
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.bytes.split_at_checked(count).ok_or(Malformed::Short {
            message: self.message,
        })?;
        self.bytes = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.bytes.split_first_chunk().ok_or(Malformed::Short {
            message: self.message,
        })?;
        self.bytes = tail;
        Ok(*head)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub fn i32(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub fn lsn(&mut self) -> Result<Lsn, Malformed> {
        Ok(Lsn::new(u64::from_be_bytes(self.array()?)))
    }

    pub fn time(&mut self) -> Result<PgTime, Malformed> {
        Ok(PgTime::new(i64::from_be_bytes(self.array()?)))
    }

    /// Bytes that end with a zero byte, without it.
    pub fn bytes_to_zero(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.bytes.iter().position(|b| *b == 0);
        let bytes = self.take(end.ok_or(Malformed::Short {
            message: self.message,
        })?)?;
        self.take(1)?;
        Ok(bytes)
    }

    /// Text that ends with a zero byte.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        let text = self.bytes_to_zero()?;
        std::str::from_utf8(text).map_err(|_| Malformed::Text {
            message: self.message,
        })
    }

    /// What is still to be read.
    pub fn peek(&self) -> &'a [u8] {
        self.bytes
    }

    /// Everything up to the end of the message.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// Bytes left over mean that the format was misread.
    pub fn finish(self) -> Result<(), Malformed> {
        match self.bytes.len() {
            0 => Ok(()),
            bytes => Err(Malformed::Left {
                message: self.message,
                bytes,
            }),
        }
    }

    pub fn unknown(&self, tag: u8) -> Malformed {
        Malformed::Tag {
            message: self.message,
            tag: tag.into(),
        }
    }
}

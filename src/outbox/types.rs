//! What a column's text stands for, by its type.

use std::collections::{HashMap, HashSet};

/// What a column's text stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Itself.
    Text,
    Json,
    /// A whole number.
    Integer,
    /// A number, or one of the words for what is none (`NaN`, `Infinity`).
    Number,
    /// `t` or `f`.
    Boolean,
    /// A date, or a time with or without a zone.
    Time,
    /// Bytes, in hexadecimal.
    Bytea,
    /// The type was dropped since the row was written, and nobody can tell any more.
    Gone,
}

/// What the catalogue says of types. The stream names a domain, not what it is a domain over.
#[derive(Clone, Debug, Default)]
pub struct Types {
    /// The users' domains that are over one of the server's own types, and over which.
    domains: HashMap<u32, u32>,
    /// The users' types that exist.
    exist: HashSet<u32>,
}

/// pg_type's fixed OIDs.
/// <https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat>
pub const BYTEA: u32 = 17;
pub const BOOL: u32 = 16;
pub const INT8: u32 = 20;
const INT2: u32 = 21;
pub const INT4: u32 = 23;
pub const TEXT: u32 = 25;
const OID: u32 = 26;
const JSON: u32 = 114;
const FLOAT4: u32 = 700;
const FLOAT8: u32 = 701;
const DATE: u32 = 1082;
const TIMESTAMP: u32 = 1114;
pub const TIMESTAMPTZ: u32 = 1184;
const NUMERIC: u32 = 1700;
pub const UUID: u32 = 2950;
pub const JSONB: u32 = 3802;

/// The server gives smaller OIDs only to its own types (`FirstNormalObjectId`).
pub const FIRST_OF_USERS: u32 = 16_384;

impl Types {
    /// From the users' types that exist, each with the type that it is a domain over, or itself.
    pub fn new(users: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut types = Types::default();
        for (oid, base) in users {
            types.exist.insert(oid);
            if base < FIRST_OF_USERS {
                types.domains.insert(oid, base);
            }
        }
        types
    }

    pub fn form(&self, oid: u32) -> Form {
        match self.domains.get(&oid).copied().unwrap_or(oid) {
            JSON | JSONB => Form::Json,
            INT2 | INT4 | INT8 | OID => Form::Integer,
            FLOAT4 | FLOAT8 | NUMERIC => Form::Number,
            BOOL => Form::Boolean,
            DATE | TIMESTAMP | TIMESTAMPTZ => Form::Time,
            BYTEA => Form::Bytea,
            oid if oid < FIRST_OF_USERS || self.exist.contains(&oid) => Form::Text,
            _ => Form::Gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_has_the_form_of_its_type_and_a_type_that_is_gone_is_told() {
        let types = Types::new([(20_000, JSONB), (20_001, 20_001)].into_iter());
        for (oid, form) in [
            (25, Form::Text),
            (2950, Form::Text),
            (JSON, Form::Json),
            (20_000, Form::Json),
            (20_001, Form::Text),
            (20_002, Form::Gone),
        ] {
            assert_eq!(types.form(oid), form, "{oid}");
        }
    }
}

//! Names and text inside SQL, quoted where they must be. For statements that take no parameters
//! and for commands in messages.

use crate::config::TableName;

/// Words that cannot be a table's or column's plain name, of PostgreSQL 14 to 18.
/// <https://www.postgresql.org/docs/current/sql-keywords-appendix.html>
const RESERVED: &str = "all analyse analyze and any array as asc asymmetric authorization binary \
    both case cast check collate collation column concurrently constraint create cross \
    current_catalog current_date current_role current_schema current_time current_timestamp \
    current_user default deferrable desc distinct do else end except false fetch for foreign \
    freeze from full grant group having ilike in initially inner intersect into is isnull join \
    lateral leading left like limit localtime localtimestamp natural not notnull null offset on \
    only or order outer overlaps placing primary references returning right select session_user \
    similar some symmetric system_user table tablesample then to trailing true union unique user \
    using variadic verbose when where window with";

/// Column names that PostgreSQL takes plain only in some places.
const AWKWARD: &str = "between bigint bit boolean char character coalesce dec decimal exists \
    extract float greatest grouping inout int integer interval json json_array json_arrayagg \
    json_exists json_object json_objectagg json_query json_scalar json_serialize json_table \
    json_value least merge_action national nchar none normalize nullif numeric out overlay \
    position precision real row setof smallint substring time timestamp treat trim values varchar \
    xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot \
    xmlserialize xmltable";

/// An identifier, in quotes unless it is plain lower case and no key word.
pub fn ident(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && !RESERVED
            .split_whitespace()
            .chain(AWKWARD.split_whitespace())
            .any(|word| word == name);
    if plain {
        name.to_owned()
    } else {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}

/// `schema.table`.
pub fn table(table: &TableName) -> String {
    format!("{}.{}", ident(&table.schema), ident(&table.name))
}

/// A string constant that reads the same whatever `standard_conforming_strings` says.
pub fn literal(text: &str) -> String {
    postgres_protocol::escape::escape_literal(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_needs_quotes_gets_them() {
        for plain in ["outbox", "_a1", "walpost"] {
            assert_eq!(ident(plain), plain);
        }
        for (name, quoted) in [
            ("order", "\"order\""),
            ("Outbox", "\"Outbox\""),
            ("1a", "\"1a\""),
            ("", "\"\""),
            ("a\"; DROP", "\"a\"\"; DROP\""),
            ("é", "\"é\""),
        ] {
            assert_eq!(ident(name), quoted);
        }
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal(r"a\b").trim_start(), r"E'a\\b'");
    }
}

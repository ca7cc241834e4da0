//! How single values are written: durations, sizes, table names, Kafka properties. Their errors
//! are our own, because those of the libraries name a parser's rule and not what to write.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use bytesize::ByteSize;
use jiff::{Span, SpanRelativeTo};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

use super::{Secret, TableName};

/// `"10s"`, `"1m 30s"`, `"7d"`; days have 24 hours, months and years have no fixed length.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const EXAMPLE: &str = "write a duration with its unit, such as \"10s\", \"500ms\" or \"5m\"";
    if text.trim().parse::<f64>().is_ok() {
        return Err(format!("`{}` has no unit; {EXAMPLE}", text.trim()));
    }
    let span: Span = text
        .trim()
        .parse()
        .map_err(|_| format!("`{text}` is not a duration; {EXAMPLE}"))?;
    if span.get_years() != 0 || span.get_months() != 0 {
        return Err(format!(
            "`{text}`: months and years have no fixed length; write days, such as \"30d\""
        ));
    }
    let signed = span
        .to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|_| format!("`{text}` is too long"))?;
    Duration::try_from(signed).map_err(|_| format!("`{text}` is negative"))
}

pub fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = Duration;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration such as \"10s\"")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
            parse_duration(text).map_err(E::custom)
        }
        fn visit_i64<E: Error>(self, number: i64) -> Result<Duration, E> {
            parse_duration(&number.to_string()).map_err(E::custom)
        }
        fn visit_f64<E: Error>(self, number: f64) -> Result<Duration, E> {
            parse_duration(&number.to_string()).map_err(E::custom)
        }
    }
    deserializer.deserialize_any(Text)
}

/// A list of durations; as one text, as a variable has it, they are separated by commas.
pub fn durations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Duration>, D::Error> {
    struct Item(Duration);
    impl<'de> Deserialize<'de> for Item {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            duration(deserializer).map(Item)
        }
    }
    struct List;
    impl<'de> Visitor<'de> for List {
        type Value = Vec<Duration>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of durations such as [\"1m\", \"5m\"]")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<Duration>, A::Error> {
            let mut list = Vec::new();
            while let Some(Item(duration)) = items.next_element()? {
                list.push(duration);
            }
            Ok(list)
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Vec<Duration>, E> {
            if text.trim().is_empty() {
                return Ok(Vec::new());
            }
            let parts = text.split(',').map(parse_duration);
            parts.collect::<Result<_, _>>().map_err(E::custom)
        }
    }
    deserializer.deserialize_any(List)
}

/// Bytes: `"16MiB"` is 16 × 1,048,576, `"64M"` and `"64MB"` are 64,000,000, a bare number is bytes.
pub fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Bytes;
    impl Visitor<'_> for Bytes {
        type Value = u64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size such as \"16MiB\"")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
            let size = text.trim().parse::<ByteSize>();
            size.map(|size| size.as_u64()).map_err(|_| {
                E::custom(format!(
                    "`{text}` is not a size; write one such as \"16MiB\" or \"64MB\""
                ))
            })
        }
        fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
            u64::try_from(number).map_err(|_| {
                E::custom(format!(
                    "`{number}` is negative; write a size such as \"16MiB\""
                ))
            })
        }
    }
    deserializer.deserialize_any(Bytes)
}

/// For keys whose empty text means "left out".
pub fn secret_or_empty<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Secret>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok((!text.is_empty()).then(|| Secret::new(text)))
}

pub fn path_or_empty<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PathBuf>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok((!text.is_empty()).then(|| PathBuf::from(text)))
}

impl TableName {
    /// `schema.name`, or `name` in schema `public`. Letters keep their case; a part that holds a
    /// dot or a double quote goes in double quotes, as in SQL.
    pub fn parse(text: &str) -> Result<TableName, String> {
        let parts = split_identifiers(text).ok_or_else(|| {
            format!("`{text}` is not a table's name; write it as in \"public.outbox\"")
        })?;
        match <[String; 2]>::try_from(parts) {
            Ok([schema, name]) => Ok(TableName { schema, name }),
            Err(mut parts) if parts.len() == 1 => Ok(TableName {
                schema: "public".into(),
                name: parts.remove(0),
            }),
            Err(_) => Err(format!(
                "`{text}` has more than schema and name; write it as in \"public.outbox\""
            )),
        }
    }
}

/// The parts between dots, with SQL's double quotes undone. `None` for an empty part, one longer
/// than PostgreSQL's 63 bytes, or a stray quote.
fn split_identifiers(text: &str) -> Option<Vec<String>> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    let mut chars = text.chars().peekable();
    let mut after_quote = false;
    while let Some(c) = chars.next() {
        let part = parts.last_mut()?;
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                part.push('"');
            }
            '"' if quoted => (quoted, after_quote) = (false, true),
            '"' if part.is_empty() && !after_quote => quoted = true,
            '.' if !quoted => {
                parts.push(String::new());
                after_quote = false;
            }
            '\0' => return None,
            '"' => return None,
            _ if after_quote => return None,
            c => part.push(c),
        }
    }
    let sound = !quoted && parts.iter().all(|part| (1..=63).contains(&part.len()));
    sound.then_some(parts)
}

impl<'de> Deserialize<'de> for TableName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        TableName::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl fmt::Display for TableName {
    /// `schema.name`, as the configuration has it; not quoted for SQL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// Property values as librdkafka takes them. Its errors never show the value: it may be a secret.
pub fn properties<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let values = BTreeMap::<String, Property>::deserialize(deserializer)?;
    Ok(values
        .into_iter()
        .map(|(name, Property(value))| (name, value))
        .collect())
}

struct Property(String);

impl<'de> Deserialize<'de> for Property {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Scalar;
        impl<'de> Visitor<'de> for Scalar {
            type Value = Property;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text, an integer, true or false")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Property, E> {
                Ok(Property(text.into()))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Property, E> {
                Ok(Property(number.to_string()))
            }
            fn visit_bool<E: Error>(self, flag: bool) -> Result<Property, E> {
                Ok(Property(flag.to_string()))
            }
            fn visit_f64<E: Error>(self, _: f64) -> Result<Property, E> {
                Err(E::custom("a property is text, an integer, true or false"))
            }
            fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Property, A::Error> {
                Err(A::Error::custom(
                    "a property's whole name goes in quotes, as in \"linger.ms\" = 5",
                ))
            }
        }
        deserializer.deserialize_any(Scalar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_of_fixed_length() {
        for (text, seconds) in [
            ("10s", 10.0),
            ("500ms", 0.5),
            ("1m 30s", 90.0),
            ("14d", 1_209_600.0),
            ("1w", 604_800.0),
            ("0s", 0.0),
            ("1.5h", 5400.0),
        ] {
            assert_eq!(
                parse_duration(text).map(|d| d.as_secs_f64()),
                Ok(seconds),
                "{text}"
            );
        }
        let example = "write a duration with its unit, such as \"10s\", \"500ms\" or \"5m\"";
        for (text, error) in [
            ("10", format!("`10` has no unit; {example}")),
            ("soon", format!("`soon` is not a duration; {example}")),
            ("", format!("`` is not a duration; {example}")),
            (
                "1mo",
                "`1mo`: months and years have no fixed length; write days, such as \"30d\"".into(),
            ),
            ("-5s", "`-5s` is negative".into()),
        ] {
            assert_eq!(parse_duration(text), Err(error), "{text}");
        }
    }

    #[test]
    fn table_names_have_a_schema_and_keep_their_case() {
        let name = |schema: &str, name: &str| {
            Ok(TableName {
                schema: schema.into(),
                name: name.into(),
            })
        };
        assert_eq!(TableName::parse("public.outbox"), name("public", "outbox"));
        assert_eq!(TableName::parse("outbox"), name("public", "outbox"));
        assert_eq!(TableName::parse("Sales.Outbox"), name("Sales", "Outbox"));
        assert_eq!(
            TableName::parse(r#""my.schema"."the ""x"" one""#),
            name("my.schema", r#"the "x" one"#)
        );
        for bad in [
            "",
            ".",
            "a.",
            ".b",
            "a.b.c",
            "\"a",
            "\"a\"b.c",
            "a\"b\".c",
            "a.\"\"",
            &"x".repeat(64),
        ] {
            assert!(TableName::parse(bad).is_err(), "{bad}");
        }
    }
}

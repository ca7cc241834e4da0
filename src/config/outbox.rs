//! One `[[outbox]]`: which table, and what its columns become. What the file leaves out, the preset
//! fills in.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};

use super::{OnPoison, TableName};

/// A table to publish. Empty text stands for "none" throughout.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Written")]
pub struct Outbox {
    pub table: TableName,
    pub preset: Preset,
    /// Template: `{column}` is that column's text, doubled braces are literal.
    pub topic: String,
    /// The column whose text is the topic's name, instead of the template.
    pub topic_column: String,
    /// Matched against the whole of what template or column give; no match leaves it as it is.
    pub topic_regex: String,
    /// What a match becomes: `$1`, `${1}` and `${name}` are the expression's groups, `$$` is a dollar.
    pub topic_replacement: String,
    /// The column that becomes the record's key.
    pub key: String,
    pub format: Format,
    pub on_poison: OnPoison,
    /// The column that orders reads of the table itself; needed by those commands alone.
    pub order_by: String,
    /// Transactional logical messages of prefix `walpost` are mapped like the table's rows.
    pub messages: bool,
    /// The record's timestamp, instead of role `occurred_at`: a time, or milliseconds since 1970.
    pub timestamp_column: String,
    /// A serialized trace context (`java.util.Properties`): one header for each of its entries.
    pub tracing_column: String,
    /// A payload that is empty or blank is sent as a null value.
    pub tombstone_on_empty: bool,
    /// A text payload that holds a JSON object or array is JSON.
    pub expand_json: bool,
    /// Fields of a JSON payload that are null.
    pub json_nulls: Fields,
    /// Fields of a JSON payload that are empty arrays.
    pub json_empty_arrays: Fields,
    /// Attribute `source` of CloudEvents: a template of a URI reference; empty: made of the table's name.
    pub cloudevents_source: String,
    pub additional: Vec<Additional>,
    pub columns: Columns,
}

/// Which columns the table has and what becomes of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    #[default]
    Walpost,
    /// The default columns and headers of Debezium's outbox event router.
    Debezium,
}

/// What the record's value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// The payload's bytes, exactly as PostgreSQL gives them.
    #[default]
    Raw,
    /// A JSON object of the event's columns and its payload.
    Envelope,
    /// CloudEvents 1.0, binary content mode: attributes in headers, the payload's own bytes.
    Cloudevents,
    /// CloudEvents 1.0, structured content mode: one JSON object.
    CloudeventsStructured,
}

/// What becomes of certain fields of a JSON payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fields {
    #[default]
    Keep,
    /// Left out, and the payload is written anew without them.
    Drop,
}

/// A column that has no role of its own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table such as { column = \"tenant\", placement = \"header\" }"
)]
pub struct Additional {
    pub column: String,
    pub placement: Placement,
    /// Its name in the record; empty: the column's.
    #[serde(rename = "as", default)]
    pub alias: String,
    #[serde(default)]
    pub missing: Missing,
}

impl Additional {
    /// Its name in the record.
    pub fn name(&self) -> &str {
        if self.alias.is_empty() {
            &self.column
        } else {
            &self.alias
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    Header,
    /// A field of the envelope, or an extension attribute of a CloudEvent.
    Envelope,
    /// The number of the record's partition.
    Partition,
}

/// What a table without the column means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Missing {
    #[default]
    Error,
    Ignore,
}

/// The column of each role; `None`: the role is switched off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    pub event_id: Option<String>,
    pub aggregate_type: Option<String>,
    pub aggregate_id: Option<String>,
    pub aggregate_version: Option<String>,
    pub event_type: Option<String>,
    pub schema_version: Option<String>,
    pub payload: Option<String>,
    pub headers: Option<String>,
    pub occurred_at: Option<String>,
}

impl Columns {
    fn of(preset: Preset) -> Columns {
        let column = |name: &str| Some(name.to_owned());
        match preset {
            Preset::Walpost => Columns {
                event_id: column("event_id"),
                aggregate_type: column("aggregate_type"),
                aggregate_id: column("aggregate_id"),
                aggregate_version: column("aggregate_version"),
                event_type: column("event_type"),
                schema_version: column("schema_version"),
                payload: column("payload"),
                headers: column("headers"),
                occurred_at: column("occurred_at"),
            },
            Preset::Debezium => Columns {
                event_id: column("id"),
                aggregate_type: column("aggregatetype"),
                aggregate_id: column("aggregateid"),
                aggregate_version: None,
                event_type: column("type"),
                schema_version: None,
                payload: column("payload"),
                headers: None,
                occurred_at: None,
            },
        }
    }
}

/// What the file says, before the preset fills it in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct Written {
    table: TableName,
    #[serde(default)]
    preset: Preset,
    topic: Option<String>,
    #[serde(default)]
    topic_column: String,
    #[serde(default)]
    topic_regex: String,
    #[serde(default)]
    topic_replacement: String,
    key: Option<String>,
    #[serde(default)]
    format: Format,
    #[serde(default)]
    on_poison: OnPoison,
    order_by: Option<String>,
    #[serde(default)]
    messages: bool,
    #[serde(default)]
    timestamp_column: String,
    #[serde(default)]
    tracing_column: String,
    #[serde(default)]
    tombstone_on_empty: bool,
    #[serde(default)]
    expand_json: bool,
    #[serde(default)]
    json_nulls: Fields,
    #[serde(default)]
    json_empty_arrays: Fields,
    #[serde(default)]
    cloudevents_source: String,
    #[serde(default)]
    additional: Vec<Additional>,
    #[serde(default)]
    columns: WrittenColumns,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
struct WrittenColumns {
    event_id: Option<Column>,
    aggregate_type: Option<Column>,
    aggregate_id: Option<Column>,
    aggregate_version: Option<Column>,
    event_type: Option<Column>,
    schema_version: Option<Column>,
    payload: Option<Column>,
    headers: Option<Column>,
    occurred_at: Option<Column>,
}

enum Column {
    Named(String),
    Off,
}

impl<'de> Deserialize<'de> for Column {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrFalse;
        impl Visitor<'_> for NameOrFalse {
            type Value = Column;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a column's name, or false to switch the role off")
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<Column, E> {
                match name {
                    "" => Err(E::custom(
                        "a column's name is not empty; false switches the role off",
                    )),
                    name => Ok(Column::Named(name.into())),
                }
            }
            fn visit_bool<E: Error>(self, on: bool) -> Result<Column, E> {
                match on {
                    false => Ok(Column::Off),
                    true => Err(E::custom("write the column's name, or leave the role out")),
                }
            }
        }
        deserializer.deserialize_any(NameOrFalse)
    }
}

impl WrittenColumns {
    fn over(self, mut columns: Columns) -> Columns {
        let lay = |role: &mut Option<String>, written| match written {
            None => {}
            Some(Column::Off) => *role = None,
            Some(Column::Named(name)) => *role = Some(name),
        };
        lay(&mut columns.event_id, self.event_id);
        lay(&mut columns.aggregate_type, self.aggregate_type);
        lay(&mut columns.aggregate_id, self.aggregate_id);
        lay(&mut columns.aggregate_version, self.aggregate_version);
        lay(&mut columns.event_type, self.event_type);
        lay(&mut columns.schema_version, self.schema_version);
        lay(&mut columns.payload, self.payload);
        lay(&mut columns.headers, self.headers);
        lay(&mut columns.occurred_at, self.occurred_at);
        columns
    }
}

impl TryFrom<Written> for Outbox {
    type Error = String;

    fn try_from(written: Written) -> Result<Outbox, String> {
        let columns = written.columns.over(Columns::of(written.preset));
        let routed_by = || {
            columns.aggregate_type.clone().ok_or_else(|| {
                "columns.aggregate_type is switched off, so set `topic` or `topic_column`"
                    .to_owned()
            })
        };
        let (topic, topic_column) = match (written.topic.unwrap_or_default(), written.topic_column)
        {
            (topic, column) if !topic.is_empty() && !column.is_empty() => {
                return Err(
                    "`topic` and `topic_column` exclude each other: set one of them".into(),
                );
            }
            (topic, column) if topic.is_empty() && column.is_empty() => {
                // An expression is for what routes, not for a name that was made of it.
                match written.topic_regex.is_empty() {
                    true => (format!("outbox.event.{{{}}}", routed_by()?), column),
                    false => (topic, routed_by()?),
                }
            }
            given => given,
        };
        let order_by = || match written.preset {
            Preset::Walpost => "seq".into(),
            Preset::Debezium => String::new(),
        };
        Ok(Outbox {
            table: written.table,
            preset: written.preset,
            topic,
            topic_column,
            topic_regex: written.topic_regex,
            topic_replacement: written.topic_replacement,
            key: written
                .key
                .unwrap_or_else(|| columns.aggregate_id.clone().unwrap_or_default()),
            format: written.format,
            on_poison: written.on_poison,
            order_by: written.order_by.unwrap_or_else(order_by),
            messages: written.messages,
            timestamp_column: written.timestamp_column,
            tracing_column: written.tracing_column,
            tombstone_on_empty: written.tombstone_on_empty,
            expand_json: written.expand_json,
            json_nulls: written.json_nulls,
            json_empty_arrays: written.json_empty_arrays,
            cloudevents_source: written.cloudevents_source,
            additional: written.additional,
            columns,
        })
    }
}

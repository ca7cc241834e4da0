//! A configured table: which one it is, what its columns are for, and what its records look like.

use std::sync::Arc;

use super::{
    route::Route,
    template::{Part, Template},
};
use crate::{
    config::{
        self, Config, Format, OnPoison, Preset, Problem, TableName,
        outbox::{Additional, Fields, Missing, Placement},
    },
    error::{Exit, Stop},
    stop,
};

/// What a column is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    EventId,
    AggregateType,
    AggregateId,
    AggregateVersion,
    EventType,
    SchemaVersion,
    Payload,
    Headers,
    OccurredAt,
}

impl Role {
    pub const ALL: [Role; 9] = [
        Role::EventId,
        Role::AggregateType,
        Role::AggregateId,
        Role::AggregateVersion,
        Role::EventType,
        Role::SchemaVersion,
        Role::Payload,
        Role::Headers,
        Role::OccurredAt,
    ];

    /// Its name in the configuration, in headers and in the envelope.
    pub fn name(self) -> &'static str {
        match self {
            Role::EventId => "event_id",
            Role::AggregateType => "aggregate_type",
            Role::AggregateId => "aggregate_id",
            Role::AggregateVersion => "aggregate_version",
            Role::EventType => "event_type",
            Role::SchemaVersion => "schema_version",
            Role::Payload => "payload",
            Role::Headers => "headers",
            Role::OccurredAt => "occurred_at",
        }
    }
}

/// Headers that tell where a record comes from.
pub const WAL_POSITION: &str = "wal_position";
pub const WALPOST_REPLAY: &str = "walpost_replay";

/// The roles that are sent as headers of their own, in their order.
const WALPOST_HEADERS: [(Role, &str); 5] = [
    (Role::EventId, "event_id"),
    (Role::AggregateType, "aggregate_type"),
    (Role::AggregateVersion, "aggregate_version"),
    (Role::EventType, "event_type"),
    (Role::SchemaVersion, "schema_version"),
];
const DEBEZIUM_HEADERS: [(Role, &str); 1] = [(Role::EventId, "id")];

/// Keys of the envelope that are no role's.
pub const TRACE_ID: &str = "trace_id";
pub const PAYLOAD_BASE64: &str = "payload_base64";

/// Attributes of a CloudEvent that are not for extensions: the specification's, and those of the
/// trace context, which comes from the headers.
const CLOUDEVENTS: [&str; 12] = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "dataschema",
    "data",
    "data_base64",
    "traceparent",
    "tracestate",
];

/// One configured table.
#[derive(Debug)]
pub struct Mapping {
    pub table: TableName,
    preset: Preset,
    /// The column of each role, by `Role as usize`.
    roles: [Option<String>; Role::ALL.len()],
    pub route: Route,
    /// `None`: records have no key.
    pub key: Option<String>,
    /// Instead of role `occurred_at`.
    pub timestamp: Option<String>,
    pub tracing: Option<String>,
    pub format: Format,
    pub on_poison: OnPoison,
    /// Messages of prefix `walpost` are mapped like the table's rows.
    pub messages: bool,
    pub tombstone_on_empty: bool,
    pub expand_json: bool,
    /// Fields of a JSON payload that are left out.
    pub drop_nulls: bool,
    pub drop_empty_arrays: bool,
    /// Attribute `source` of CloudEvents.
    pub source: Template,
    pub additional: Vec<Additional>,
}

/// The configured tables, in their order.
pub fn mappings(config: &Config) -> Result<Vec<Arc<Mapping>>, Stop> {
    let mapping = |(index, outbox)| Mapping::new(outbox, index).map(Arc::new);
    let mappings = config.outbox.iter().enumerate().map(mapping);
    mappings
        .collect::<Result<_, _>>()
        .map_err(|problem| stop!(Exit::Usage, "{problem}"))
}

impl Mapping {
    /// `index`: which `[[outbox]]` it is, for messages.
    pub fn new(outbox: &config::Outbox, index: usize) -> Result<Self, Problem> {
        let path = format!("outbox.{index}");
        let some = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
        let columns = outbox.columns.clone();
        let source = match outbox.cloudevents_source.as_str() {
            "" => Template::literal(&source_of(&outbox.table)),
            text => source_template(text)
                .map_err(|why| Problem::new(format!("{path}.cloudevents_source"), why))?,
        };
        let mapping = Mapping {
            table: outbox.table.clone(),
            preset: outbox.preset,
            roles: [
                columns.event_id,
                columns.aggregate_type,
                columns.aggregate_id,
                columns.aggregate_version,
                columns.event_type,
                columns.schema_version,
                columns.payload,
                columns.headers,
                columns.occurred_at,
            ],
            route: Route::new(outbox, &path)?,
            key: some(&outbox.key),
            timestamp: some(&outbox.timestamp_column),
            tracing: some(&outbox.tracing_column),
            format: outbox.format,
            on_poison: outbox.on_poison,
            messages: outbox.messages,
            tombstone_on_empty: outbox.tombstone_on_empty,
            expand_json: outbox.expand_json,
            drop_nulls: outbox.json_nulls == Fields::Drop,
            drop_empty_arrays: outbox.json_empty_arrays == Fields::Drop,
            source,
            additional: outbox.additional.clone(),
        };
        mapping.possible(outbox, &path)?;
        Ok(mapping)
    }

    /// Nothing is set that would come to nothing, or that the format has no place for.
    fn possible(&self, outbox: &config::Outbox, path: &str) -> Result<(), Problem> {
        let problem = |key: &str, why: &str| Err(Problem::new(format!("{path}.{key}"), why));
        if self.is_cloudevents() {
            for role in [Role::EventId, Role::EventType] {
                if self.column(role).is_none() {
                    let name = role.name();
                    let why = format!(
                        "a CloudEvent has an id and a type, and columns.{name} is switched off"
                    );
                    return problem("format", &why);
                }
            }
        } else if !outbox.cloudevents_source.is_empty() {
            return problem(
                "cloudevents_source",
                "is of formats cloudevents and cloudevents-structured",
            );
        }
        let prunes = self.drop_nulls || self.drop_empty_arrays;
        if self.expand_json && self.format == Format::Raw && !prunes {
            let why = "changes nothing in format raw, where a text is sent as it is: leave it out, or set json_nulls or \
                json_empty_arrays to \"drop\"";
            return problem("expand_json", why);
        }
        for (number, one) in self.additional.iter().enumerate() {
            self.additional_possible(number, one)
                .or_else(|why| problem(&format!("additional.{number}"), &why))?;
        }
        Ok(())
    }

    fn additional_possible(&self, number: usize, one: &Additional) -> Result<(), String> {
        let (column, name) = (&one.column, one.name());
        if column.is_empty() {
            return Err("`column` is empty".into());
        }
        let earlier = &self.additional[..number];
        match one.placement {
            Placement::Header if self.is_built_in(name.as_bytes()) => Err(format!(
                "header {name} is set by walpost itself: choose another name with `as`"
            )),
            Placement::Header => Ok(()),
            Placement::Partition if !one.alias.is_empty() => {
                Err("a partition has no name: leave `as` out".into())
            }
            Placement::Partition if earlier.iter().any(|e| e.placement == Placement::Partition) => {
                Err("a record has one partition, and an earlier column tells it".into())
            }
            Placement::Partition => Ok(()),
            Placement::Envelope if self.format == Format::Raw => Err(format!(
                "column {column} has no envelope to go to in format raw: set `format`, or `placement = \"header\"`"
            )),
            Placement::Envelope
                if earlier
                    .iter()
                    .any(|e| e.placement == Placement::Envelope && e.name() == name) =>
            {
                Err(format!(
                    "{name} is there already: choose another name with `as`"
                ))
            }
            Placement::Envelope if self.format == Format::Envelope => {
                let is_role = Role::ALL.iter().any(|role| role.name() == name);
                match is_role || [TRACE_ID, PAYLOAD_BASE64].contains(&name) {
                    true => Err(format!(
                        "{name} is a key of the envelope itself: choose another name with `as`"
                    )),
                    false => Ok(()),
                }
            }
            Placement::Envelope => {
                let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
                match name.bytes().all(legal) && !CLOUDEVENTS.contains(&name) {
                    true => Ok(()),
                    false => Err(format!(
                        "{name} cannot be an extension attribute of a CloudEvent, whose name has lower-case letters and digits and is \
                         none of the specification's: choose another name with `as`"
                    )),
                }
            }
        }
    }

    /// A column gives the record's partition.
    pub fn chooses_partition(&self) -> bool {
        let mut additional = self.additional.iter();
        additional.any(|one| one.placement == Placement::Partition)
    }

    pub fn is_cloudevents(&self) -> bool {
        matches!(
            self.format,
            Format::Cloudevents | Format::CloudeventsStructured
        )
    }

    /// The column that has this role.
    pub fn column(&self, role: Role) -> Option<&str> {
        self.roles[role as usize].as_deref()
    }

    /// Every column that must exist, some perhaps twice.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        let additional = self.additional.iter();
        let source = self.is_cloudevents().then(|| self.source.columns());
        self.roles
            .iter()
            .flatten()
            .map(String::as_str)
            .chain(self.route.template.columns())
            .chain(self.key.as_deref())
            .chain(self.timestamp.as_deref())
            .chain(self.tracing.as_deref())
            .chain(source.into_iter().flatten())
            .chain(
                additional
                    .filter(|a| a.missing == Missing::Error)
                    .map(|a| a.column.as_str()),
            )
    }

    /// Every column that becomes something: those, and others that a table may lack.
    pub fn all_columns(&self) -> impl Iterator<Item = &str> {
        let additional = self.additional.iter();
        self.columns().chain(additional.map(|a| a.column.as_str()))
    }

    /// The roles that are sent as headers, with the headers' names.
    pub fn headers(&self) -> &'static [(Role, &'static str)] {
        match self.preset {
            Preset::Walpost => &WALPOST_HEADERS,
            Preset::Debezium => &DEBEZIUM_HEADERS,
        }
    }

    /// The header that carries the event's id.
    pub fn id_header(&self) -> &'static str {
        self.headers()[0].1
    }

    /// Records tell where in the log they come from. Those of the router have its headers and no more.
    pub fn tells_position(&self) -> bool {
        self.preset == Preset::Walpost
    }

    /// A NULL column is a null header, as the router sends it; otherwise it has none.
    pub fn sends_null_headers(&self) -> bool {
        self.preset == Preset::Debezium
    }

    /// Headers that only walpost sets: entries of the JSON column with these names are dropped.
    pub fn is_built_in(&self, name: &[u8]) -> bool {
        let is = |known: &str| known.as_bytes() == name;
        self.headers().iter().any(|(_, header)| is(header))
            || is(WALPOST_REPLAY)
            || self.tells_position() && is(WAL_POSITION)
            || self.is_cloudevents() && (name.starts_with(b"ce_") || is("content-type"))
    }
}

/// What the file gives for `source`. The columns' texts are escaped, its own text has to be fit.
fn source_template(text: &str) -> Result<Template, String> {
    let template = Template::parse(text).map_err(|error| error.to_string())?;
    for part in template.parts() {
        if let Part::Literal(literal) = part
            && let Some(c) = literal.chars().find(|c| !is_of_uri(*c))
        {
            return Err(format!(
                "is to be a URI reference, in which {c:?} is written percent-encoded"
            ));
        }
    }
    Ok(template)
}

/// <https://www.rfc-editor.org/rfc/rfc3986#section-2>
fn is_of_uri(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-._~:/?#[]@!$&'()*+,;=%".contains(c)
}

/// `/schema.table`, as a reference may be written.
fn source_of(table: &TableName) -> String {
    let mut text = String::from("/");
    for part in [&table.schema, ".", &table.name] {
        text.extend(percent_encoding::utf8_percent_encode(
            part,
            super::cloudevents::RESERVED,
        ));
    }
    text
}

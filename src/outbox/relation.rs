//! Relation messages → where our columns are. Each row is read by the shape that its table had
//! when the row was written.

use std::{collections::HashMap, sync::Arc};

use super::template::{Part, Template};
use crate::{
    config::{self, TableName},
    pg::pgoutput::Relation,
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

    /// The column that preset `walpost` gives the role.
    pub fn column(self) -> &'static str {
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

/// The configured table: which one it is, and what its columns are for.
#[derive(Clone, Debug)]
pub struct Mapping {
    pub table: TableName,
    pub topic: Template,
    /// `None`: records have no key.
    pub key: Option<String>,
}

impl Mapping {
    pub fn new(outbox: &config::Outbox) -> Result<Self, super::template::InvalidTemplate> {
        Ok(Mapping {
            table: outbox.table.clone(),
            topic: Template::parse(&outbox.topic)?,
            key: Some(outbox.key.clone()).filter(|key| !key.is_empty()),
        })
    }

    /// Every column that must exist.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        Role::ALL
            .iter()
            .map(|role| role.column())
            .chain(self.topic.columns())
            .chain(self.key.as_deref())
    }
}

/// A column's place in the tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub index: usize,
    /// Its text is hexadecimal and stands for bytes.
    pub bytea: bool,
}

/// A piece of the topic's name, with its column found.
#[derive(Debug)]
pub enum TopicPart {
    Literal(String),
    Column { index: usize, name: String },
}

/// Where the mapped columns of one version of the table are.
#[derive(Debug)]
pub struct Shape {
    /// The role of each column, by its place in the tuple.
    pub roles: Vec<Option<Role>>,
    pub topic: Vec<TopicPart>,
    pub key: Option<Field>,
    pub payload: Option<Field>,
    /// A mapped column that this version of the table doesn't have: its rows cannot be mapped.
    pub missing: Option<String>,
}

/// pg_type's fixed OID of bytea.
pub const BYTEA: u32 = 17;

impl Shape {
    /// `bytea`: the types whose text stands for bytes.
    pub fn new(relation: &Relation, mapping: &Mapping, bytea: &[u32]) -> Self {
        let columns = || relation.columns.iter().enumerate();
        let field = |name: &str| {
            let (index, column) = columns().find(|(_, column)| column.name == name)?;
            Some(Field {
                index,
                bytea: bytea.contains(&column.type_oid),
            })
        };
        let role = |name: &str| Role::ALL.into_iter().find(|role| role.column() == name);
        let topic = mapping.topic.parts().iter().filter_map(|part| match part {
            Part::Literal(text) => Some(TopicPart::Literal(text.clone())),
            Part::Column(name) => Some(TopicPart::Column {
                index: field(name)?.index,
                name: name.clone(),
            }),
        });
        Shape {
            topic: topic.collect(),
            key: mapping.key.as_deref().and_then(field),
            payload: field(Role::Payload.column()),
            roles: columns().map(|(_, column)| role(&column.name)).collect(),
            missing: mapping
                .columns()
                .find(|name| field(name).is_none())
                .map(str::to_owned),
        }
    }

    #[cfg(test)]
    pub fn for_tests() -> Arc<Self> {
        let (roles, topic) = (Vec::new(), Vec::new());
        Arc::new(Shape {
            roles,
            topic,
            key: None,
            payload: None,
            missing: None,
        })
    }
}

/// What is known of a table of the stream.
#[derive(Clone, Debug)]
pub enum Table {
    /// Not the configured one: its rows are passed over.
    Other,
    Ours(Arc<Shape>),
}

/// The tables of the stream, by OID.
#[derive(Debug)]
pub struct Relations {
    mapping: Mapping,
    /// The table's OID today. It is ours under any name it had then, and the table that had the
    /// configured name then is ours too: it may have been dropped and created again since.
    oid: u32,
    /// bytea and the domains over it: the stream names a domain, not what it stands for.
    bytea: Vec<u32>,
    known: HashMap<u32, Table>,
}

impl Relations {
    pub fn new(mapping: Mapping, oid: u32) -> Self {
        Relations {
            mapping,
            oid,
            bytea: vec![BYTEA],
            known: HashMap::new(),
        }
    }

    /// A new stream describes every table again.
    pub fn restart(&mut self, oid: u32, bytea: Vec<u32>) {
        self.oid = oid;
        self.bytea = bytea;
        self.known.clear();
    }

    /// Notes a table's shape; it holds for the rows that follow.
    pub fn learn(&mut self, relation: &Relation) {
        let named = relation.namespace == self.mapping.table.schema
            && relation.name == self.mapping.table.name;
        let table = if relation.id == self.oid || named {
            Table::Ours(Arc::new(Shape::new(relation, &self.mapping, &self.bytea)))
        } else {
            Table::Other
        };
        self.known.insert(relation.id, table);
    }

    /// `None`: a row of a table that was never described.
    pub fn table(&self, relation: u32) -> Option<&Table> {
        self.known.get(&relation)
    }
}

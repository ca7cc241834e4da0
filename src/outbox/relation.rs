//! Relation messages → where our columns are. Each row is read by the shape that its table had
//! when the row was written.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::template::{Part, Template};
use crate::{
    config::{self, OnPoison, TableName},
    pg::pgoutput::{Column, Relation},
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
    pub on_poison: OnPoison,
}

impl Mapping {
    pub fn new(outbox: &config::Outbox) -> Result<Self, super::template::InvalidTemplate> {
        Ok(Mapping {
            table: outbox.table.clone(),
            topic: Template::parse(&outbox.topic)?,
            key: Some(outbox.key.clone()).filter(|key| !key.is_empty()),
            on_poison: outbox.on_poison,
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
    pub form: Form,
}

/// What a column's text stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Text,
    /// Bytes, in hexadecimal.
    Bytea,
    /// The type was dropped since the row was written, and nobody can tell any more.
    Gone,
}

/// What the catalogue says of types. The stream names a domain, not what it is a domain over.
#[derive(Clone, Debug)]
pub struct Types {
    /// bytea and the domains over it.
    bytea: HashSet<u32>,
    /// The users' types that exist.
    exist: HashSet<u32>,
}

impl Types {
    /// From the users' types that exist, and whether each is a domain over bytea.
    pub fn new(users: impl Iterator<Item = (u32, bool)>) -> Self {
        let mut types = Types {
            bytea: HashSet::from([BYTEA]),
            exist: HashSet::new(),
        };
        for (oid, bytea) in users {
            types.exist.insert(oid);
            if bytea {
                types.bytea.insert(oid);
            }
        }
        types
    }

    fn form(&self, oid: u32) -> Form {
        if self.bytea.contains(&oid) {
            Form::Bytea
        } else if oid < FIRST_OF_USERS || self.exist.contains(&oid) {
            Form::Text
        } else {
            Form::Gone
        }
    }
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
    pub mapping: Arc<Mapping>,
    /// The names of all columns, by their place in the tuple.
    pub columns: Vec<String>,
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

/// The server gives smaller OIDs only to its own types (`FirstNormalObjectId`).
pub const FIRST_OF_USERS: u32 = 16_384;

impl Shape {
    pub fn new(relation: &Relation, mapping: &Arc<Mapping>, types: &Types) -> Self {
        let columns = || relation.columns.iter().enumerate();
        let field = |name: &str| {
            let (index, column) = columns().find(|(_, column)| column.name == name)?;
            Some(Field {
                index,
                form: types.form(column.type_oid),
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
            columns: columns().map(|(_, column)| column.name.clone()).collect(),
            topic: topic.collect(),
            key: mapping.key.as_deref().and_then(field),
            payload: field(Role::Payload.column()),
            roles: columns().map(|(_, column)| role(&column.name)).collect(),
            missing: mapping
                .columns()
                .find(|name| field(name).is_none())
                .map(str::to_owned),
            mapping: mapping.clone(),
        }
    }

    #[cfg(test)]
    pub fn for_tests() -> Arc<Self> {
        let table = TableName {
            schema: "s".into(),
            name: "t".into(),
        };
        Arc::new(Shape {
            mapping: Arc::new(Mapping {
                table,
                topic: Template::parse("t").unwrap(),
                key: None,
                on_poison: OnPoison::Stop,
            }),
            columns: Vec::new(),
            roles: Vec::new(),
            topic: Vec::new(),
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
    mapping: Arc<Mapping>,
    /// The table's OID today. It is ours under any name it had then, and the table that had the
    /// configured name then is ours too: it may have been dropped and created again since.
    oid: u32,
    types: Types,
    /// Types that the catalogue didn't have when it was read, and was read again for.
    looked_for: HashSet<u32>,
    known: HashMap<u32, Table>,
}

impl Relations {
    pub fn new(mapping: Mapping, oid: u32) -> Self {
        Relations {
            mapping: Arc::new(mapping),
            oid,
            types: Types::new(std::iter::empty()),
            looked_for: HashSet::new(),
            known: HashMap::new(),
        }
    }

    /// A new stream describes every table again.
    pub fn restart(&mut self, oid: u32, types: Types) {
        self.oid = oid;
        self.types = types;
        self.known.clear();
    }

    /// Notes a table's shape; it holds for the rows that follow. `false`: its key or payload has a
    /// type that the catalogue did not have when it was read, so read it again; once for each type.
    #[must_use]
    pub fn learn(&mut self, relation: &Relation) -> bool {
        let named = relation.namespace == self.mapping.table.schema
            && relation.name == self.mapping.table.name;
        let mut settled = true;
        let table = if relation.id == self.oid || named {
            let shape = Shape::new(relation, &self.mapping, &self.types);
            for field in [shape.key, shape.payload].into_iter().flatten() {
                if field.form == Form::Gone {
                    let oid = relation.columns[field.index].type_oid;
                    settled &= !self.looked_for.insert(oid);
                }
            }
            Table::Ours(Arc::new(shape))
        } else {
            Table::Other
        };
        self.known.insert(relation.id, table);
        settled
    }

    /// The shape of a row that was kept, of the outbox table with this name, by its columns' names
    /// and types; `None`: no such table is configured.
    pub fn shape_of_kept(&self, outbox: &str, columns: &[(String, u32)]) -> Option<Arc<Shape>> {
        let table = &self.mapping.table;
        if table.to_string() != outbox {
            return None;
        }
        let column = |(name, type_oid): &(String, u32)| Column {
            name: name.clone(),
            type_oid: *type_oid,
        };
        let relation = Relation {
            id: 0,
            namespace: table.schema.clone(),
            name: table.name.clone(),
            columns: columns.iter().map(column).collect(),
        };
        Some(Arc::new(Shape::new(&relation, &self.mapping, &self.types)))
    }

    /// `None`: a row of a table that was never described.
    pub fn table(&self, relation: u32) -> Option<&Table> {
        self.known.get(&relation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::pgoutput::Column;

    #[test]
    fn the_catalogue_is_read_again_once_for_each_type_it_lacked() {
        let mapping = Mapping {
            table: TableName {
                schema: "public".into(),
                name: "outbox".into(),
            },
            topic: Template::parse("t").unwrap(),
            key: None,
            on_poison: OnPoison::Stop,
        };
        let relation = |id, payload| Relation {
            id,
            namespace: "public".into(),
            name: if id == 1 { "outbox" } else { "other" }.into(),
            columns: vec![Column {
                name: "payload".into(),
                type_oid: payload,
            }],
        };
        let mut relations = Relations::new(mapping, 1);
        relations.restart(1, Types::new([(20_000, true), (20_001, false)].into_iter()));
        for known in [BYTEA, 25, 20_000, 20_001] {
            assert!(relations.learn(&relation(1, known)));
        }
        assert!(relations.learn(&relation(2, 30_000)), "not our table");
        assert!(!relations.learn(&relation(1, 30_000)));
        assert!(relations.learn(&relation(1, 30_000)), "it is gone");
        relations.restart(1, Types::new([(30_000, true)].into_iter()));
        assert!(relations.learn(&relation(1, 30_000)));
        let Some(Table::Ours(shape)) = relations.table(1) else {
            panic!()
        };
        assert_eq!(shape.payload.map(|field| field.form), Some(Form::Bytea));
        assert!(!relations.learn(&relation(1, 30_001)), "another one");
    }
}

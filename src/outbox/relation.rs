//! Relation messages → where our columns are. Each row is read by the shape that its table had
//! when the row was written.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

pub use super::{
    mapping::{Mapping, Role},
    types::{Form, Types},
};
use super::{
    message::{self, Messages},
    row::Unmappable,
    template::{Part, Template},
    types::TEXT,
};
use crate::pg::pgoutput::{Column, Relation};

/// A column's place in the tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub index: usize,
    pub form: Form,
}

/// A piece of a template, with its column found.
#[derive(Debug)]
pub enum Slot {
    Literal(String),
    Column { field: Field, name: String },
}

/// Where the mapped columns of one version of the table are.
#[derive(Debug)]
pub struct Shape {
    pub mapping: Arc<Mapping>,
    /// The names of all columns, by their place in the tuple.
    pub columns: Vec<String>,
    roles: [Option<Field>; Role::ALL.len()],
    pub topic: Vec<Slot>,
    pub source: Vec<Slot>,
    pub key: Option<Field>,
    pub timestamp: Option<Field>,
    pub tracing: Option<Field>,
    /// As in `mapping.additional`; `None`: this table has no such column, which is allowed.
    pub additional: Vec<Option<Field>>,
    /// Why rows of this version of the table cannot be mapped: a mapped column that it doesn't have.
    pub fault: Option<Unmappable>,
}

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
        let named = |name: &Option<String>| field(name.as_deref()?);
        let slots = |template: &Template| {
            let slot = |part: &Part| match part {
                Part::Literal(text) => Some(Slot::Literal(text.clone())),
                Part::Column(name) => Some(Slot::Column {
                    field: field(name)?,
                    name: name.clone(),
                }),
            };
            template.parts().iter().filter_map(slot).collect()
        };
        let additional = mapping.additional.iter();
        Shape {
            columns: columns().map(|(_, column)| column.name.clone()).collect(),
            roles: Role::ALL.map(|role| field(mapping.column(role)?)),
            topic: slots(&mapping.route.template),
            source: slots(&mapping.source),
            key: named(&mapping.key),
            timestamp: named(&mapping.timestamp),
            tracing: named(&mapping.tracing),
            additional: additional.map(|one| field(&one.column)).collect(),
            fault: mapping
                .columns()
                .find(|name| field(name).is_none())
                .map(|column| {
                    let text = format!("its table had no column {column} when it was written");
                    Unmappable::new("column_missing", text)
                }),
            mapping: mapping.clone(),
        }
    }

    /// Of something that is no row and is kept in one column of this name.
    pub fn unmappable(mapping: &Arc<Mapping>, column: &str, fault: Unmappable) -> Self {
        let relation = Relation {
            id: 0,
            namespace: mapping.table.schema.clone(),
            name: mapping.table.name.clone(),
            columns: vec![Column {
                name: column.into(),
                type_oid: TEXT,
            }],
        };
        Shape {
            fault: Some(fault),
            ..Shape::new(&relation, mapping, &Types::default())
        }
    }

    pub fn role(&self, role: Role) -> Option<Field> {
        self.roles[role as usize]
    }

    /// The fields that become something else than their text, by their types.
    fn typed(&self) -> impl Iterator<Item = Field> {
        let roles = [Role::Payload, Role::OccurredAt].map(|role| self.role(role));
        let more = roles.into_iter().chain([self.key, self.timestamp]);
        more.chain(self.additional.iter().copied()).flatten()
    }

    #[cfg(test)]
    pub fn for_tests() -> Arc<Self> {
        let relation = Relation {
            id: 1,
            namespace: "public".into(),
            name: "outbox".into(),
            columns: Vec::new(),
        };
        let mapping = super::tests::mapping("table = \"outbox\"");
        Arc::new(Shape::new(&relation, &mapping, &Types::default()))
    }
}

/// What is known of a table of the stream.
#[derive(Clone, Debug)]
pub enum Table {
    /// Not a configured one: its rows are passed over.
    Other,
    Ours(Arc<Shape>),
}

/// A configured table in this database.
#[derive(Debug)]
struct Ours {
    mapping: Arc<Mapping>,
    /// Its OID today. It is ours under any name it had then, and the table that had the configured
    /// name then is ours too: it may have been dropped and created again since.
    oid: u32,
}

/// The tables of the stream, by OID.
#[derive(Debug)]
pub struct Relations {
    ours: Vec<Ours>,
    /// Of the mapping that takes messages, if one does.
    messages: Option<Messages>,
    types: Types,
    /// Types that the catalogue didn't have when it was read, and was read again for.
    looked_for: HashSet<u32>,
    known: HashMap<u32, Table>,
}

impl Relations {
    pub fn new(mappings: Vec<Arc<Mapping>>) -> Self {
        let messages = mappings.iter().find(|mapping| mapping.messages);
        let messages = messages.map(Messages::new);
        let ours = mappings.into_iter();
        Relations {
            messages,
            ours: ours.map(|mapping| Ours { mapping, oid: 0 }).collect(),
            types: Types::default(),
            looked_for: HashSet::new(),
            known: HashMap::new(),
        }
    }

    /// A new stream describes every table again. `oids` are those of the mappings' tables, in their
    /// order.
    pub fn restart(&mut self, oids: &[u32], types: Types) {
        for (ours, oid) in self.ours.iter_mut().zip(oids) {
            ours.oid = *oid;
        }
        self.types = types;
        self.known.clear();
    }

    /// The catalogue was read again.
    pub fn know(&mut self, types: Types) {
        self.types = types;
    }

    /// Notes a table's shape; it holds for the rows that follow. `false`: one of its columns has a
    /// type that the catalogue did not have when it was read, so read it again; once for each type.
    #[must_use]
    pub fn learn(&mut self, relation: &Relation) -> bool {
        let mut settled = true;
        let table = match self.mapping(relation) {
            None => Table::Other,
            Some(mapping) => {
                let shape = Shape::new(relation, mapping, &self.types);
                for field in shape.typed() {
                    if field.form == Form::Gone {
                        let oid = relation.columns[field.index].type_oid;
                        settled &= !self.looked_for.insert(oid);
                    }
                }
                Table::Ours(Arc::new(shape))
            }
        };
        self.known.insert(relation.id, table);
        settled
    }

    /// By its OID before its name: names may have been exchanged.
    fn mapping(&self, relation: &Relation) -> Option<&Arc<Mapping>> {
        let named = |mapping: &Mapping| {
            let table = &mapping.table;
            relation.namespace == table.schema && relation.name == table.name
        };
        let by_oid = self.ours.iter().find(|ours| ours.oid == relation.id);
        let found = by_oid.or_else(|| self.ours.iter().find(|ours| named(&ours.mapping)));
        found.map(|ours| &ours.mapping)
    }

    /// The shape of a row that was kept, of the outbox table with this name, by its columns' names
    /// and types; `None`: no such table is configured.
    pub fn shape_of_kept(&self, outbox: &str, columns: &[(String, u32)]) -> Option<Arc<Shape>> {
        let mapping = self.mapping_of(outbox)?;
        if let Some(shape) = message::kept(mapping, columns) {
            return Some(Arc::new(shape));
        }
        let column = |(name, type_oid): &(String, u32)| Column {
            name: name.clone(),
            type_oid: *type_oid,
        };
        let relation = Relation {
            id: 0,
            namespace: mapping.table.schema.clone(),
            name: mapping.table.name.clone(),
            columns: columns.iter().map(column).collect(),
        };
        Some(Arc::new(Shape::new(&relation, mapping, &self.types)))
    }

    /// The mapping of the outbox table with this name.
    pub fn mapping_of(&self, outbox: &str) -> Option<&Arc<Mapping>> {
        let mappings = self.ours.iter().map(|ours| &ours.mapping);
        mappings
            .into_iter()
            .find(|mapping| mapping.table.to_string() == outbox)
    }

    /// What makes rows of messages of prefix `walpost`; `None`: nothing does.
    pub fn messages(&self) -> Option<&Messages> {
        self.messages.as_ref()
    }

    /// `None`: a row of a table that was never described.
    pub fn table(&self, relation: u32) -> Option<&Table> {
        self.known.get(&relation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::{tests::mapping, types::BYTEA};

    #[test]
    fn the_catalogue_is_read_again_once_for_each_type_it_lacked() {
        let mapping = mapping("table = \"outbox\"\ntopic = \"t\"\nkey = \"\"");
        let relation = |id, payload| Relation {
            id,
            namespace: "public".into(),
            name: if id == 1 { "outbox" } else { "other" }.into(),
            columns: vec![Column {
                name: "payload".into(),
                type_oid: payload,
            }],
        };
        let mut relations = Relations::new(vec![mapping]);
        relations.restart(
            &[1],
            Types::new([(20_000, BYTEA), (20_001, 20_001)].into_iter()),
        );
        for known in [BYTEA, 25, 20_000, 20_001] {
            assert!(relations.learn(&relation(1, known)));
        }
        assert!(relations.learn(&relation(2, 30_000)), "not our table");
        assert!(!relations.learn(&relation(1, 30_000)));
        assert!(relations.learn(&relation(1, 30_000)), "it is gone");
        relations.restart(&[1], Types::new([(30_000, BYTEA)].into_iter()));
        assert!(relations.learn(&relation(1, 30_000)));
        let Some(Table::Ours(shape)) = relations.table(1) else {
            panic!()
        };
        assert_eq!(
            shape.role(Role::Payload).map(|field| field.form),
            Some(Form::Bytea)
        );
        assert!(!relations.learn(&relation(1, 30_001)), "another one");
    }
}

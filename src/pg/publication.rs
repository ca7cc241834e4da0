//! What the publication must carry: every insert into our tables, whole and under its name.

use crate::{
    error::{Exit, Stop},
    lsn::Lsn,
    pg::{
        quote::{ident, table},
        slot::{Found, Names, Outbox, Publication, Published, SlotFacts, Table},
        verdict::recover,
    },
    stop,
};

/// Told by the stream alone: the publication did not exist at a position of it, whatever the
/// catalogue says now.
#[derive(Debug, thiserror::Error)]
#[error(
    "publication {publication} did not exist at this position of the stream (after {after}): rows written while it was missing are \
     not streamed, and nothing behind that position was confirmed. {}",
    recover()
)]
pub struct Missed {
    pub publication: String,
    pub after: Lsn,
}

/// Every insert into each of the tables comes through the publication, whole and under the table's
/// name. Tables and publication are there.
pub fn covers(facts: &SlotFacts, names: &Names) -> Result<(), Stop> {
    let mut tables = names.tables.iter().zip(&facts.tables);
    tables.try_for_each(|(outbox, found)| covers_table(facts, names, outbox, found))
}

/// The same of one of them.
pub fn covers_table(
    facts: &SlotFacts,
    names: &Names,
    outbox: &Outbox,
    found: &Found,
) -> Result<(), Stop> {
    let (Some(publication), Some(table), Some(published)) =
        (&facts.publication, &found.table, &found.published)
    else {
        return Ok(());
    };
    let coverage = Coverage {
        publication,
        published,
        table,
        name: &names.publication,
        outbox,
        version_num: facts.server.version_num,
    };
    coverage.is_whole()
}

/// One table and the publication's hold on it.
struct Coverage<'a> {
    publication: &'a Publication,
    published: &'a Published,
    table: &'a Table,
    name: &'a str,
    outbox: &'a Outbox,
    version_num: i32,
}

impl Coverage<'_> {
    fn is_whole(&self) -> Result<(), Stop> {
        let Coverage {
            publication,
            published,
            table: found,
            name,
            ..
        } = self;
        let outbox = &self.outbox.table;
        let (alter, outbox) = (format!("ALTER PUBLICATION {}", ident(name)), table(outbox));
        let again =
            format!("`BEGIN; {alter} DROP TABLE {outbox}; {alter} ADD TABLE {outbox}; COMMIT`");
        let missed = "rows that were written meanwhile are not in the stream";
        if !publication.insert {
            return Err(stop!(
                Exit::Slot,
                "publication {name} leaves out inserts: `{alter} SET (publish = 'insert')`; {missed}"
            ));
        }
        if !published.names_table && !published.names_root {
            return Err(stop!(
                Exit::Slot,
                "publication {name} does not cover table {outbox}: `{alter} ADD TABLE {outbox}`; {missed}"
            ));
        }
        if found.kind == 'p' && !publication.via_root {
            return Err(stop!(
                Exit::Slot,
                "table {outbox} is partitioned and publication {name} publishes its partitions under their \
             own names: `{alter} SET (publish_via_partition_root = true)`"
            ));
        }
        if found.partition && publication.via_root && published.names_root {
            return Err(stop!(
                Exit::Slot,
                "table {outbox} is a partition and publication {name} publishes its rows under the \
             partitioned table's name: set `outbox.table` to that table"
            ));
        }
        if let Some(filter) = &published.filter {
            return Err(stop!(
                Exit::Slot,
                "publication {name} has the row filter {filter} on table {outbox}, so rows are left out \
             silently: {again}"
            ));
        }
        let left_out: Vec<_> = match &published.columns {
            Some(list) => self
                .outbox
                .columns
                .iter()
                .filter(|c| !list.contains(c))
                .map(String::as_str)
                .collect(),
            None => Vec::new(),
        };
        if !left_out.is_empty() {
            return Err(stop!(
                Exit::Slot,
                "publication {name} has a column list on table {outbox} without {}: {again}",
                left_out.join(", ")
            ));
        }
        self.generated_are_published()
    }

    /// No column that becomes something is left out because the server computes it.
    fn generated_are_published(&self) -> Result<(), Stop> {
        let Coverage {
            publication,
            published,
            version_num,
            ..
        } = self;
        let mapped = self
            .table
            .columns
            .iter()
            .filter(|c| self.outbox.columns.contains(&c.name));
        for column in mapped {
            let (name, outbox) = (&column.name, table(&self.outbox.table));
            // From 18 on a column list, if there is one, decides for stored columns.
            let listed = *version_num >= 180_000 && published.columns.is_some();
            match column.generated.as_str() {
                "" => {}
                "s" if publication.generated || listed => {}
                "s" if *version_num >= 180_000 => {
                    return Err(stop!(
                        Exit::Slot,
                        "column {name} of table {outbox} is generated, and publication {} leaves such columns out: \
                     `ALTER PUBLICATION {} SET (publish_generated_columns = stored)`; rows that were written meanwhile lack it",
                        self.name,
                        ident(self.name)
                    ));
                }
                _ => {
                    return Err(stop!(
                        Exit::Slot,
                        "column {name} of table {outbox} is mapped and generated, and this server does not publish such a column: \
                     make it an ordinary one with `ALTER TABLE {outbox} ALTER COLUMN {} DROP EXPRESSION` (stored ones only) and \
                     let the application write it",
                        ident(name)
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The table has every column that becomes something.
pub fn columns_are_there(found: &Table, outbox: &Outbox) -> Result<(), Stop> {
    let is_there = |name: &String| found.columns.iter().any(|column| column.name == *name);
    let missing: Vec<_> = outbox.columns.iter().filter(|c| !is_there(c)).collect();
    let outbox = table(&outbox.table);
    match missing.as_slice() {
        [] => Ok(()),
        [one] => Err(stop!(
            Exit::Usage,
            "table {outbox} has no column {one}, which is mapped: add it, or map another one in its `[[outbox]]`"
        )),
        more => Err(stop!(
            Exit::Usage,
            "table {outbox} has no columns {}, which are mapped: add them, or map others in its `[[outbox]]`",
            more.iter()
                .map(|c| c.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        )),
    }
}

/// The publication carries more than it must.
pub fn wider(publication: &Publication, names: &Names) -> Vec<String> {
    let name = &names.publication;
    let mut warnings = Vec::new();
    if publication.all_tables {
        warnings.push(format!(
            "publication {name} is FOR ALL TABLES: the server decodes and sends every table's inserts; \
             they are read and ignored"
        ));
    }
    let more: Vec<_> = [
        ("update", publication.update),
        ("delete", publication.delete),
        ("truncate", publication.truncate),
    ]
    .into_iter()
    .filter_map(|(verb, on)| on.then_some(verb))
    .collect();
    if !more.is_empty() {
        warnings.push(format!(
            "publication {name} publishes {} too, which become no records, and with update or delete a \
             table without primary key refuses those: `ALTER PUBLICATION {} SET (publish = 'insert')`",
            more.join(", "),
            ident(name)
        ));
    }
    warnings
}

pub fn create_publication(names: &Names) -> String {
    format!(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert', publish_via_partition_root = true)",
        ident(&names.publication),
        names.listed()
    )
}

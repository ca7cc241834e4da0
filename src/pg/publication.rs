//! What the publication must carry: every insert into our table, whole and under its name.

use crate::{
    config::TableName,
    error::{Exit, Stop},
    lsn::Lsn,
    pg::{
        quote::{ident, table},
        slot::{Names, Publication, Table},
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

/// Every insert into the table comes through the publication, whole and under the table's name.
pub fn covers(
    publication: &Publication,
    found: &Table,
    names: &Names,
    version_num: i32,
) -> Result<(), Stop> {
    let Names {
        publication: name,
        table: outbox,
        ..
    } = names;
    let (alter, outbox) = (format!("ALTER PUBLICATION {}", ident(name)), table(outbox));
    let again = format!("`BEGIN; {alter} DROP TABLE {outbox}; {alter} ADD TABLE {outbox}; COMMIT`");
    let missed = "rows that were written meanwhile are not in the stream";
    if !publication.insert {
        return Err(stop!(
            Exit::Slot,
            "publication {name} leaves out inserts: `{alter} SET (publish = 'insert')`; {missed}"
        ));
    }
    if !publication.names_table && !publication.names_root {
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
    if found.partition && publication.via_root && publication.names_root {
        return Err(stop!(
            Exit::Slot,
            "table {outbox} is a partition and publication {name} publishes its rows under the \
             partitioned table's name: set `outbox.table` to that table"
        ));
    }
    if let Some(filter) = &publication.filter {
        return Err(stop!(
            Exit::Slot,
            "publication {name} has the row filter {filter} on table {outbox}, so rows are left out \
             silently: {again}"
        ));
    }
    let left_out: Vec<_> = match &publication.columns {
        Some(list) => names
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
    generated_are_published(publication, found, names, version_num)
}

/// The table has every column that becomes something.
pub fn columns_are_there(found: &Table, names: &Names) -> Result<(), Stop> {
    let is_there = |name: &String| found.columns.iter().any(|column| column.name == *name);
    let missing: Vec<_> = names.columns.iter().filter(|c| !is_there(c)).collect();
    let outbox = table(&names.table);
    match missing.as_slice() {
        [] => Ok(()),
        [one] => Err(stop!(
            Exit::Usage,
            "table {outbox} has no column {one}, which is mapped: add it, or set `outbox.table`"
        )),
        more => Err(stop!(
            Exit::Usage,
            "table {outbox} has no columns {}, which are mapped: add them, or set `outbox.table`",
            more.iter()
                .map(|c| c.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        )),
    }
}

/// No column that becomes something is left out because the server computes it.
fn generated_are_published(
    publication: &Publication,
    found: &Table,
    names: &Names,
    version_num: i32,
) -> Result<(), Stop> {
    let mapped = found
        .columns
        .iter()
        .filter(|c| names.columns.contains(&c.name));
    for column in mapped {
        let (name, outbox) = (&column.name, table(&names.table));
        // From 18 on a column list, if there is one, decides for stored columns.
        let listed = version_num >= 180_000 && publication.columns.is_some();
        match column.generated.as_str() {
            "" => {}
            "s" if publication.generated || listed => {}
            "s" if version_num >= 180_000 => {
                return Err(stop!(
                    Exit::Slot,
                    "column {name} of table {outbox} is generated, and publication {} leaves such columns out: \
                     `ALTER PUBLICATION {} SET (publish_generated_columns = stored)`; rows that were written meanwhile lack it",
                    names.publication,
                    ident(&names.publication)
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

pub fn create_publication(name: &str, outbox: &TableName) -> String {
    format!(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert', publish_via_partition_root = true)",
        ident(name),
        table(outbox)
    )
}

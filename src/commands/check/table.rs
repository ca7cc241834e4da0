//! The outbox tables: their columns and types, whether they are published, and what the rows at hand
//! become.

use std::{sync::Arc, time::Duration};

use super::{
    APPLICATION,
    finding::Findings,
    rows::{AtHand, Tried, is_of_route},
    within,
};
use crate::{
    config::{Config, Outbox},
    lsn::PgTime,
    outbox::{
        mapping::{Mapping, mappings},
        message::Messages,
        usable::misfits,
    },
    pg::{
        conninfo::ConnInfo,
        pgoutput::Tuple,
        publication::{columns_are_there, covers_table},
        quote::table,
        setup::is_table,
        slot::{self, Found, Names, SlotFacts},
        table::{Order, Reader},
        verdict::missing_table,
    },
};

/// So many rows are mapped.
const ROWS: u32 = 1000;

/// Reading them is given up after this.
const READ_WITHIN: Duration = Duration::from_secs(5);

pub async fn check(
    config: &Config,
    info: &ConnInfo,
    names: &Names,
    facts: Option<SlotFacts>,
    at_hand: &mut AtHand,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let Some(facts) = facts else { return Ok(()) };
    let mappings = mappings(config)?;
    let tables = names.tables.iter().zip(&facts.tables);
    for ((outbox, mapping), (names_of, found)) in config.outbox.iter().zip(&mappings).zip(tables) {
        let one = One {
            name: table(&outbox.table),
            outbox,
            mapping,
            info,
        };
        if one.is_there(names_of, found, findings) {
            one.columns(names_of, found, at_hand, findings).await;
            if facts.publication.is_some() {
                let covers = covers_table(&facts, names, names_of, found);
                findings.judge("table.published", &one.name, covers, |()| {
                    let publication = &names.publication;
                    format!(
                        "table {}: publication {publication} publishes its inserts",
                        one.name
                    )
                });
            }
        }
    }
    Ok(())
}

/// One configured table.
struct One<'a> {
    name: String,
    outbox: &'a Outbox,
    mapping: &'a Arc<Mapping>,
    info: &'a ConnInfo,
}

impl One<'_> {
    fn is_there(&self, names: &slot::Outbox, found: &Found, findings: &mut Findings) -> bool {
        let there = match &found.table {
            None => Err(missing_table(&names.table)),
            Some(found) => is_table(found, &names.table),
        };
        let judged = findings.judge("table.there", &self.name, there, |()| {
            format!("table {}: it is there", self.name)
        });
        judged.is_some()
    }

    async fn columns(
        &self,
        names: &slot::Outbox,
        found: &Found,
        at_hand: &mut AtHand,
        findings: &mut Findings,
    ) {
        let name = &self.name;
        let columns = found
            .table
            .as_ref()
            .map_or(Ok(()), |table| columns_are_there(table, names));
        let complete = findings.judge("table.columns", name, columns, |()| {
            format!("table {name}: every mapped column is there")
        });
        let look = Reader::look(self.info, self.outbox, self.mapping, APPLICATION);
        let reader = match within(look).await {
            Ok(reader) => reader,
            Err(error) => {
                let message = format!("table {name}: cannot look at its columns: {error:#}");
                findings.fail("table.columns", name, message, "mend what the server says");
                return;
            }
        };
        self.order(&reader, findings);
        if complete.is_some() {
            self.types(&reader, findings);
            self.messages(findings);
            self.rows(&reader, at_hand, findings).await;
        }
    }

    /// Events without a table have the columns of roles alone.
    fn messages(&self, findings: &mut Findings) {
        if !self.mapping.messages {
            return;
        }
        let (id, name) = ("table.messages", &self.name);
        match Messages::new(self.mapping).fault() {
            None => {
                let message = format!(
                    "table {name}: events of walpost.emit and emit_bytes are mapped as its rows"
                );
                findings.pass(id, name, message);
            }
            Some(fault) => {
                let message = format!(
                    "table {name}: no event of walpost.emit or emit_bytes becomes a record: {}",
                    fault.text
                );
                let fix = "map a column that has a role, give an additional column `missing = \"ignore\"`, or leave `messages` out";
                findings.fail(id, name, message, fix);
            }
        }
    }

    fn order(&self, reader: &Reader, findings: &mut Findings) {
        let (name, column) = (&self.name, &self.outbox.order_by);
        let (id, fix) = (
            "table.order_by",
            "set `order_by` in its `[[outbox]]` to a column that rises with each row, such as an identity",
        );
        match reader.order {
            Order::None if column.is_empty() => {
                let message = format!(
                    "table {name}: no order_by, so its rows cannot be read for `walpost init --include-existing` and `walpost recover`"
                );
                findings.warn(id, name, message, fix);
            }
            Order::None => {
                let message =
                    format!("table {name}: it has no column {column}, which orders its rows");
                findings.fail(id, name, message, fix);
            }
            Order::There | Order::Indexed => {
                let message = format!("table {name}: column {column} orders its rows");
                findings.pass(id, name, message);
            }
        }
    }

    fn types(&self, reader: &Reader, findings: &mut Findings) {
        let name = &self.name;
        let misfits = misfits(&reader.shape);
        if misfits.is_empty() {
            let message =
                format!("table {name}: every mapped column has a type that suits its use");
            findings.pass("table.types", name, message);
        }
        for misfit in misfits {
            let (column, is) = (
                &reader.shape.columns[misfit.index],
                &reader.types[misfit.index],
            );
            let message = format!("table {name}: column {column} of type {is} {}", misfit.text);
            match misfit.never {
                true => findings.fail("table.types", name, message, misfit.fix),
                false => findings.warn("table.types", name, message, misfit.fix),
            }
        }
    }

    async fn rows(&self, reader: &Reader, at_hand: &mut AtHand, findings: &mut Findings) {
        let name = &self.name;
        if let Err(error) = reader.may_read(&self.info.user).await {
            // `run` doesn't read the table.
            findings.warning("table.rights", name, &format!("{error:#}"));
            return;
        }
        let message = format!("table {name}: its rows may be read");
        findings.pass("table.rights", name, message);
        let tried = match within(self.read(reader, at_hand)).await {
            Ok(tried) => tried,
            Err(error) => {
                let message = format!("table {name}: rows could not be read in time: {error:#}");
                let fix =
                    "make an index on its order_by column; or look at `walpost preview` instead";
                findings.warn("table.rows", name, message, fix);
                return;
            }
        };
        let rows = tried.rows;
        if tried.faults.is_empty() {
            let message = match rows {
                0 => format!("table {name}: it is empty, so no row could be tried"),
                _ => format!("table {name}: each of {rows} rows at hand becomes a record"),
            };
            findings.pass("table.rows", name, message);
        }
        for (code, fault) in &tried.faults {
            let message = format!(
                "table {name}: {} of {rows} rows at hand become no record: {} ({code}; the first one is event {})",
                fault.rows, fault.text, fault.event
            );
            match is_of_route(code) {
                true => {
                    let fix = "let the columns of `topic` and of the partition have such values in every row (NOT NULL, CHECK), or map \
                               others in its `[[outbox]]`";
                    findings.fail("table.rows", name, message, fix);
                }
                false => {
                    let fix = "correct what the application writes; `walpost preview` shows such a row before it is sent, and it becomes a \
                               dead letter";
                    findings.warn("table.rows", name, message, fix);
                }
            }
        }
    }

    async fn read(&self, reader: &Reader, at_hand: &mut AtHand) -> anyhow::Result<Tried> {
        let now = PgTime::now();
        let mut tried = Tried::default();
        let mut rows = reader.some_rows(ROWS, READ_WITHIN).await?;
        while let Some(tuple) = rows.next().await? {
            tried.row(&reader.shape, Tuple::from_bytes(&tuple), now, at_hand);
        }
        Ok(tried)
    }
}

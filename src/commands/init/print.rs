//! `walpost init --print-sql`.

use crate::pg::{
    conninfo::ConnInfo,
    publication::create_publication,
    quote::{ident, literal, table},
    setup::{outbox_sql, schema_sql},
    slot::Names,
};

/// A script for psql, in the order that matters: a slot knows only publications that were there
/// when it was made. `walpost init` afterwards takes over what the script made.
pub fn script(names: &Names, conninfo: &ConnInfo, create_table: bool) -> String {
    let roles = include_str!("../../../sql/roles.sql")
        .replace("{role}", &ident(&conninfo.user))
        .replace("{database}", &ident(&conninfo.database))
        .replace("{schema}", &ident(&names.table.schema))
        .replace("{table}", &table(&names.table));
    let mut steps = Vec::new();
    if create_table {
        let sql = outbox_sql(&names.table, None);
        steps.push(format!("The outbox table.\n{}", sql.trim_end()));
    }
    steps.push(format!(
        "The publication, in a transaction of its own, by the table's owner.\n{};",
        create_publication(&names.publication, &names.table)
    ));
    // Whoever makes the tables owns them, and the publisher writes to them.
    steps.push(format!(
        "The bookkeeping, by the role that runs walpost.\nSET ROLE {};\n{}\nRESET ROLE;",
        ident(&conninfo.user),
        schema_sql(0, true).join("\n\n")
    ));
    steps.push(format!(
        "The slot, by the role that runs walpost; waits for transactions that are open.\n\
         SELECT pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput');",
        literal(&names.slot)
    ));
    steps.push("In a shell, to record what was made: walpost init".into());
    let mut parts = vec![roles.trim_end().to_owned()];
    for (number, step) in (1..).zip(steps) {
        parts.push(format!("-- {number}. {step}"));
    }
    parts.join("\n\n")
}

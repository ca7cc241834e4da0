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
    let mut parts = vec![roles.trim_end().to_owned()];
    if create_table {
        parts.push(format!(
            "-- 1. The outbox table.\n{}",
            outbox_sql(&names.table, None).trim_end()
        ));
    }
    parts.push(format!(
        "-- 2. The publication, in a transaction of its own, by the table's owner.\n{};",
        create_publication(&names.publication, &names.table)
    ));
    parts.push(format!(
        "-- 3. The bookkeeping, by the role that runs walpost.\n{}",
        schema_sql(0, true).join("\n\n")
    ));
    parts.push(format!(
        "-- 4. The slot, by the role that runs walpost; waits for transactions that are open.\n\
         SELECT pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput');",
        literal(&names.slot)
    ));
    parts.push("-- 5. In a shell, to record what was made: walpost init".into());
    parts.join("\n\n")
}

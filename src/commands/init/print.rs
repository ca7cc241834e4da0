//! `walpost init --print-sql`.

use crate::{
    cli::Who,
    pg::{
        conninfo::ConnInfo,
        publication::create_publication,
        quote::{ident, literal, table},
        setup::{outbox_sql, schema_sql},
        slot::Names,
    },
};

/// A script for psql, in the order that matters: a slot knows only publications that were there
/// when it was made. `walpost init` afterwards takes over what the script made. With `only`, the
/// part of the one who has the rights for it.
pub fn script(names: &Names, conninfo: &ConnInfo, create_table: bool, only: Option<Who>) -> String {
    let fill = |text: &str| {
        let filled = text
            .replace("{role}", &ident(&conninfo.user))
            .replace("{database}", &ident(&conninfo.database))
            .replace("{schema}", &ident(&names.table.schema))
            .replace("{table}", &table(&names.table));
        filled.trim_end().to_owned()
    };
    let mut parts = vec![
        (
            Who::Dba,
            format!(
                "-- Role and schema.\n{}",
                fill(include_str!("../../../sql/roles.sql"))
            ),
        ),
        (
            Who::Owner,
            format!(
                "-- Rights.\n{}",
                fill(include_str!("../../../sql/grants.sql"))
            ),
        ),
    ];
    if create_table {
        parts.push((
            Who::Owner,
            format!(
                "-- The outbox table.\n{}",
                outbox_sql(&names.table, None).trim_end()
            ),
        ));
    }
    parts.push((
        Who::Owner,
        format!(
            "-- The publication, in a transaction of its own, by the table's owner.\n{};",
            create_publication(&names.publication, &names.table)
        ),
    ));
    parts.push((
        Who::Walpost,
        format!(
            // Whoever makes the tables owns them, and the publisher writes to them.
            "-- The bookkeeping, by the role that runs walpost.\nSET ROLE {};\n{}\nRESET ROLE;",
            ident(&conninfo.user),
            schema_sql(0, true).join("\n\n")
        ),
    ));
    parts.push((
        Who::Walpost,
        include_str!("../../../sql/operators.sql")
            .trim_end()
            .to_owned(),
    ));
    // On older servers the parameter does not exist.
    let failover = match names.failover {
        true => ", failover => true",
        false => "",
    };
    parts.push((
        Who::Walpost,
        format!(
            "-- The slot, by the role that runs walpost, after the publication; waits for transactions that are open.\n\
             SELECT pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput'{failover});",
            literal(&names.slot)
        ),
    ));
    parts.push((
        Who::Walpost,
        "-- In a shell, to record what was made: walpost init".into(),
    ));
    let wanted = |(who, text)| only.is_none_or(|only| only == who).then_some(text);
    let parts: Vec<String> = parts.into_iter().filter_map(wanted).collect();
    parts.join("\n\n")
}

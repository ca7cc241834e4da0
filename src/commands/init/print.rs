//! `walpost init --print-sql`.

use crate::{
    cli::Who,
    config::Config,
    error::Stop,
    pg::{
        conninfo::ConnInfo,
        publication::create_publication,
        quote::{ident, literal},
        setup::{outbox_sql, schema_sql},
        slot::Names,
    },
};

/// A script for psql, in the order that matters: a slot knows only publications that were there
/// when it was made. `walpost init` afterwards takes over what the script made. With `only`, the
/// part of the one who has the rights for it.
pub fn script(
    config: &Config,
    names: &Names,
    conninfo: &ConnInfo,
    create_table: bool,
    only: Option<Who>,
) -> Result<String, Stop> {
    let mut schemas: Vec<_> = names
        .tables
        .iter()
        .map(|outbox| ident(&outbox.table.schema))
        .collect();
    schemas.sort();
    schemas.dedup();
    let fill = |text: &str| {
        let filled = text
            .replace("{role}", &ident(&conninfo.user))
            .replace("{database}", &ident(&conninfo.database))
            .replace("{schema}", &schemas.join(", "))
            .replace("{table}", &names.listed());
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
    for outbox in config.outbox.iter().filter(|_| create_table) {
        let table = outbox_sql(outbox, None)?;
        let table = format!("-- The outbox table.\n{}", table.trim_end());
        parts.push((Who::Owner, table));
    }
    parts.push((
        Who::Owner,
        format!(
            "-- The publication, in a transaction of its own, by the table's owner.\n{};",
            create_publication(names)
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
    Ok(parts.join("\n\n"))
}

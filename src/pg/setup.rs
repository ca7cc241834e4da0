//! What `init` makes by plain SQL: table, publication, schema, our row. Each statement's missing
//! right becomes the command that gives it.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::{Client, error::SqlState, types::Type};

use crate::{
    config::{Outbox, Preset, TableName},
    error::{Exit, Stop},
    outbox::mapping::Mapping,
    pg::{
        publication::{columns_are_there, create_publication},
        quote::{ident, table},
        schema,
        slot::{Names, SlotFacts, Table, facts},
    },
    stop,
};

/// Who we are there, for the commands in messages.
pub struct Place<'a> {
    pub role: &'a str,
    pub database: &'a str,
}

/// A server's error with its SQLSTATE and detail, which tokio-postgres' own text leaves out.
pub fn explain(error: tokio_postgres::Error) -> anyhow::Error {
    let Some(db) = error.as_db_error() else {
        return error.into();
    };
    let detail = db
        .detail()
        .map_or_else(String::new, |detail| format!(": {detail}"));
    anyhow::anyhow!("{} ({}){detail}", db.message(), db.code().code())
}

/// An error whose cause is a missing right, with the command that gives it.
pub(super) fn unless_denied(
    error: tokio_postgres::Error,
    doing: &str,
    fix: impl FnOnce() -> String,
) -> anyhow::Error {
    match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => stop!(
            Exit::Error,
            "cannot {doing}: {:#}; {}",
            explain(error),
            fix()
        )
        .into(),
        Some(&SqlState::LOCK_NOT_AVAILABLE) => stop!(
            Exit::Grace,
            "cannot {doing}: another session holds the table for longer than --timeout"
        )
        .into(),
        _ => explain(error).context(format!("cannot {doing}")),
    }
}

/// `slot::facts` for a command that ends when it may not look.
pub async fn look(client: &Client, names: &Names, role: &str) -> anyhow::Result<SlotFacts> {
    facts(client, names).await.map_err(|error| {
        unless_denied(error, &format!("look at slot {}", names.slot), || {
            let role = ident(role);
            format!(
                "connect as the role that ran init, or let it run `GRANT USAGE ON SCHEMA walpost TO {role}; \
                 GRANT SELECT ON ALL TABLES IN SCHEMA walpost TO {role}`"
            )
        })
    })
}

/// The server lets go of a slot a moment after its reader ended.
const AT_REST_WITHIN: Duration = Duration::from_secs(3);

/// `look` for a command that needs a slot which nobody reads. One that is read for longer is shown
/// so.
pub async fn look_at_rest(client: &Client, names: &Names, role: &str) -> anyhow::Result<SlotFacts> {
    let deadline = Instant::now() + AT_REST_WITHIN;
    loop {
        let facts = look(client, names, role).await?;
        let active = facts.slot.as_ref().is_some_and(|slot| slot.active);
        if !active || Instant::now() >= deadline {
            return Ok(facts);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// The statements that make this table as its preset has it. An error where columns are mapped that
/// it would not have.
pub fn outbox_sql(outbox: &Outbox, version_num: Option<i32>) -> Result<String, Stop> {
    let text = match outbox.preset {
        Preset::Walpost => include_str!("../../sql/outbox.sql"),
        Preset::Debezium => include_str!("../../sql/outbox-debezium.sql"),
    };
    let mapping = Mapping::new(outbox, 0)
        .map_err(|problem| stop!(Exit::Usage, "{}: {}", table(&outbox.table), problem.message))?;
    let makes = |column: &str| text.contains(&format!("\n  {column} "));
    if let Some(column) = mapping.columns().find(|column| !makes(column)) {
        return Err(stop!(
            Exit::Usage,
            "table {} does not exist, and its preset's table has no column {column}, which is mapped: make the table yourself",
            table(&outbox.table)
        ));
    }
    // Time-ordered ids keep the unique index's writes together.
    let event_id = match version_num {
        Some(180_000..) => "pg_catalog.uuidv7()",
        _ => "pg_catalog.gen_random_uuid()",
    };
    Ok(text
        .replace("{table}", &table(&outbox.table))
        .replace("{event_id}", event_id))
}

pub async fn create_table(
    client: &Client,
    outbox: &Outbox,
    version_num: i32,
    place: &Place<'_>,
) -> anyhow::Result<()> {
    let made = client
        .batch_execute(&outbox_sql(outbox, Some(version_num))?)
        .await;
    let outbox = &outbox.table;
    made.map_err(|error| match error.code() {
        Some(&SqlState::INVALID_SCHEMA_NAME) => stop!(
            Exit::Usage,
            "schema {} of `outbox.table` does not exist in database {}: make it with `CREATE SCHEMA {}`",
            outbox.schema,
            place.database,
            ident(&outbox.schema)
        )
        .into(),
        _ => unless_denied(error, &format!("make table {}", table(outbox)), || {
            format!("let its owner make it, or `GRANT CREATE ON SCHEMA {} TO {}`", ident(&outbox.schema), ident(place.role))
        }),
    })
}

/// Each table that is there can be published from and has every column that becomes something.
pub fn check_table(facts: &SlotFacts, names: &Names) -> Result<(), Stop> {
    for (outbox, found) in names.tables.iter().zip(&facts.tables) {
        let Some(found) = &found.table else { continue };
        is_table(found, &outbox.table)?;
        columns_are_there(found, outbox)?;
    }
    Ok(())
}

pub fn is_table(found: &Table, outbox: &TableName) -> Result<(), Stop> {
    if matches!(found.kind, 'r' | 'p') {
        return Ok(());
    }
    Err(stop!(
        Exit::Usage,
        "{} is not a table, so nothing of it is in the log: set `outbox.table`",
        table(outbox)
    ))
}

/// Rows are counted this far; counting on would take long on a large table.
pub const COUNT_TO: i64 = 1_000_000;

/// Whether the rows may be looked at.
pub async fn may_read(client: &Client, outbox: &TableName) -> bool {
    let name = table(outbox);
    let allowed = client
        .query_typed(
            "SELECT pg_catalog.has_schema_privilege($1, 'USAGE') AND pg_catalog.has_table_privilege($2, 'SELECT')",
            &[(&outbox.schema, Type::TEXT), (&name, Type::TEXT)],
        )
        .await;
    // has_table_privilege is itself refused without USAGE on the schema.
    allowed.is_ok_and(|rows| rows[0].get(0))
}

/// Rows that are in the table now; `None` without the right to look.
pub async fn count_rows(client: &Client, outbox: &TableName) -> anyhow::Result<Option<i64>> {
    if !may_read(client, outbox).await {
        return Ok(None);
    }
    let name = table(outbox);
    let text = format!("SELECT pg_catalog.count(*) FROM (SELECT FROM {name} LIMIT $1) AS rows");
    let rows = client
        .query_typed(&text, &[(&COUNT_TO, Type::INT8)])
        .await
        .map_err(explain)?;
    Ok(Some(rows[0].try_get(0)?))
}

pub async fn make_publication(
    client: &Client,
    names: &Names,
    place: &Place<'_>,
) -> anyhow::Result<()> {
    let statement = create_publication(names);
    client.batch_execute(&statement).await.map_err(|error| {
        unless_denied(error, &format!("make publication {}", names.publication), || {
            format!(
                "let the owner of {}, who also needs `GRANT CREATE ON DATABASE {}`, run `{statement}`, then `walpost init` again",
                names.listed(),
                ident(place.database)
            )
        })
    })
}

/// The statements that bring schema `walpost` from a version (0: none) to ours, each in a
/// transaction of its own. `exists`: the schema is there, perhaps empty.
pub fn schema_sql(from: i32, exists: bool) -> Vec<String> {
    let mut steps = Vec::new();
    for (done, migration) in schema::MIGRATIONS
        .iter()
        .enumerate()
        .skip(from.max(0) as usize)
    {
        let version = done + 1;
        let create = if done == 0 && !exists {
            "CREATE SCHEMA walpost;\n\n"
        } else {
            ""
        };
        let mark = if done == 0 {
            format!("INSERT INTO walpost.meta (version) VALUES ({version});")
        } else {
            format!("UPDATE walpost.meta SET version = {version};")
        };
        steps.push(format!("BEGIN;\n{create}{migration}\n{mark}\nCOMMIT;"));
    }
    steps
}

/// Brings the schema to our version; what was made, or `None` if it was there.
pub async fn make_schema(
    client: &Client,
    from: Option<i32>,
    place: &Place<'_>,
) -> anyhow::Result<Option<String>> {
    let from = from.unwrap_or(0);
    if from > schema::VERSION {
        schema::check(from, place.database)?;
    }
    let rows = client
        .query_typed(
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'walpost')",
            &[],
        )
        .await
        .map_err(explain)?;
    let exists = rows[0].try_get(0)?;
    for step in schema_sql(from, exists) {
        if let Err(error) = client.batch_execute(&step).await {
            // The connection is left in the failed transaction.
            let _ = client.batch_execute("ROLLBACK").await;
            return Err(unless_denied(error, "make schema walpost", || {
                let role = ident(place.role);
                if exists {
                    format!(
                        "give the schema to this role: `ALTER SCHEMA walpost OWNER TO {role}`, then `walpost init` again"
                    )
                } else {
                    format!(
                        "let a superuser or a member of {role} run `CREATE SCHEMA walpost AUTHORIZATION {role}`, then `walpost init` again"
                    )
                }
            }));
        }
    }
    Ok(match from {
        schema::VERSION => None,
        0 => Some(format!("schema walpost, version {}", schema::VERSION)),
        _ => Some(format!(
            "schema walpost, version {} from {from}",
            schema::VERSION
        )),
    })
}

//! Dead letters as operators see them: looked for, counted, acted on by the SQL functions of schema
//! `walpost`. Everything here works with `USAGE` on the schema, `SELECT` on the table and `EXECUTE`
//! on the functions.

mod act;
mod count;
mod letter;
mod select;

use tokio_postgres::{Client, error::SqlState, types::Type};

pub use act::{Outcome, Refusal, Standing, Verb, act};
pub use count::{Counted, Sizes, count, holding, sizes};
pub use letter::{Content, Deed, Letter, Listed, deeds, one};
pub use select::{Selection, Status, ids, moment, page};

use super::{conninfo::ConnInfo, quote::ident, schema, setup::explain};
use crate::{
    error::{Exit, Stop},
    stop,
};

/// Longest wait for a letter that another transaction holds: those of operators and of the
/// publisher are short, and a paused one is ended by the server after 5 s.
const LOCK_TIMEOUT: &str = "8s";

/// Makes the connection one for letters of this slot, and looks whether the schema is ours.
pub async fn prepare(client: &Client, info: &ConnInfo, slot: &str) -> anyhow::Result<()> {
    // Which slot sends an event of which no letter tells. A verb has to see what another one did
    // while it waited for it.
    let settings = "SELECT pg_catalog.set_config('walpost.slot', $1, false), pg_catalog.set_config('lock_timeout', $2, false),
        pg_catalog.set_config('default_transaction_isolation', 'read committed', false)";
    client
        .query_typed(
            settings,
            &[(&slot, Type::TEXT), (&LOCK_TIMEOUT, Type::TEXT)],
        )
        .await
        .map_err(explain)?;
    let version = "SELECT version FROM walpost.meta";
    match client.query_typed(version, &[]).await {
        Ok(rows) => {
            let version = rows.first().map(|row| row.try_get(0)).transpose()?;
            Ok(schema::check(version.unwrap_or(0), &info.database)?)
        }
        // Operators need no right on it.
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(()),
        Err(error) => Err(trouble(error, info)),
    }
}

/// An error of the server about letters, with what to do about it.
pub fn trouble(error: tokio_postgres::Error, info: &ConnInfo) -> anyhow::Error {
    let (user, database) = (ident(&info.user), &info.database);
    let Some(code) = error.code().cloned() else {
        return error.into();
    };
    let said = explain(error);
    let stop: Stop = if code == SqlState::UNDEFINED_TABLE || code == SqlState::UNDEFINED_FUNCTION {
        stop!(
            Exit::Slot,
            "database {database} has no dead letters: {said:#}; `walpost init` makes or migrates schema walpost"
        )
    } else if code == SqlState::INSUFFICIENT_PRIVILEGE {
        stop!(
            Exit::Error,
            "{said:#}; its owner gives the rights of an operator: GRANT USAGE ON SCHEMA walpost TO {user}; \
             GRANT SELECT ON walpost.dead_letter, walpost.audit_log TO {user}; \
             GRANT EXECUTE ON FUNCTION walpost.replay(bigint), walpost.ignore(bigint, text), walpost.resend(text) TO {user}"
        )
    } else if code == SqlState::READ_ONLY_SQL_TRANSACTION {
        stop!(
            Exit::Error,
            "{said:#}: the server is a standby or read-only; act on the primary"
        )
    } else if code == SqlState::LOCK_NOT_AVAILABLE {
        stop!(
            Exit::Error,
            "{said:#}: another session has held the letter for {LOCK_TIMEOUT}; look at pg_stat_activity, then try again"
        )
    } else {
        return said;
    };
    stop.into()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    /// The README's chapter can't fall behind.
    #[test]
    fn the_readme_has_every_status_and_the_rights_that_are_printed() {
        let readme = include_str!("../../../README.md");
        for status in Status::value_variants() {
            let row = format!("\n| `{}` | ", status.name());
            assert!(readme.contains(&row), "{row}");
        }
        let rights = include_str!("../../../sql/operators.sql");
        let grants = rights
            .lines()
            .filter_map(|line| line.strip_prefix("-- GRANT"));
        assert_eq!(grants.clone().count(), 3);
        for grant in grants {
            assert!(readme.contains(&format!("\nGRANT{grant}\n")), "{grant}");
        }
    }
}

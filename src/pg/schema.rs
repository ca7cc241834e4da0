//! The `walpost` schema: its version and the statements that bring it there.

use crate::{
    error::{Exit, Stop},
    stop,
};

/// One entry a version: `MIGRATIONS[0]` makes version 1 out of nothing. Each runs in a transaction
/// of its own that also writes the version.
pub const MIGRATIONS: &[&str] = &[
    include_str!("../../sql/walpost.sql"),
    include_str!("../../sql/walpost-2.sql"),
    include_str!("../../sql/walpost-3.sql"),
    include_str!("../../sql/walpost-4.sql"),
    include_str!("../../sql/walpost-5.sql"),
    include_str!("../../sql/walpost-6.sql"),
];

/// What this binary works with.
pub const VERSION: i32 = MIGRATIONS.len() as i32;

/// Another version than ours is the end, for every command but `init`.
pub fn check(found: i32, database: &str) -> Result<(), Stop> {
    if found == VERSION {
        return Ok(());
    }
    let what = if found < VERSION {
        "run `walpost init`, which migrates it"
    } else {
        "use a newer walpost"
    };
    Err(stop!(
        Exit::Usage,
        "schema walpost in database {database} has version {found}, this walpost works with version \
         {VERSION}: {what}"
    ))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_statements_are_understood_in_every_encoding() {
        assert!(super::MIGRATIONS.iter().all(|sql| sql.is_ascii()));
    }
}

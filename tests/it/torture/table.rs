//! Changes of the outbox table that take a while: another name, another type of a column. Those
//! that one transaction makes and undoes are the writers' (`Kind::Alter`).

use std::time::{Duration, Instant};

use super::{
    keeper::{Keeper, SEES_WITHIN},
    world,
};
use crate::harness::{Dice, load::rows};

const AWAY: &str = "public.outbox_away";

impl Keeper<'_> {
    pub(super) fn change_table(&mut self, dice: &mut Dice) {
        if *dice.pick(&[true, false]) {
            self.rename_table(dice);
        } else {
            self.change_type(dice);
        }
    }

    /// Under its other name the table is written to all the same.
    fn rename_table(&mut self, dice: &mut Dice) {
        let time = dice.between(100, 6_000);
        self.history
            .fault("table", "renamed", &format!(" for {time} ms"));
        self.table_was_missing = Some(Instant::now() + Duration::from_secs(24 * 3600));
        let rename = |from: &str, to: &str| {
            self.surely(
                &format!("SET lock_timeout = '500ms'; ALTER TABLE {from} RENAME TO {to}"),
                &format!("SELECT 1 WHERE to_regclass('public.{to}') IS NOT NULL"),
            );
        };
        rename("public.outbox", "outbox_away");
        let until = Instant::now() + Duration::from_millis(time);
        while Instant::now() < until {
            let key = dice.between(0, world::KEYS);
            let one = rows(key, world::kind_of(key), 2, "away");
            // The server may be away too.
            let _ = self.sql.try_rows(&one.replace("public.outbox", AWAY));
            self.history.pass(100);
        }
        rename(AWAY, "outbox");
        self.history.note("table", "has its name again");
        self.table_was_missing = Some(Instant::now() + SEES_WITHIN);
    }

    /// The server writes every row anew.
    fn change_type(&mut self, dice: &mut Dice) {
        let kind = *dice.pick(&["integer", "bigint", "text"]);
        self.history
            .fault("table", "column of another type", &format!(": {kind}"));
        let alter = format!(
            "SET lock_timeout = '500ms'; BEGIN; ALTER TABLE public.outbox ADD COLUMN IF NOT EXISTS size integer DEFAULT 7;
             ALTER TABLE public.outbox ALTER COLUMN size TYPE {kind} USING size::{kind}; COMMIT"
        );
        let is_done = format!(
            "SELECT 1 FROM pg_attribute WHERE attrelid = 'public.outbox'::regclass AND attname = 'size'
             AND atttypid = '{kind}'::regtype"
        );
        self.surely(&alter, &is_done);
    }
}

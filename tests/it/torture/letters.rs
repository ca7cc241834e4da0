//! Operators of dead letters: they replay and ignore at random, and now and then the topic takes what
//! it did not take before. At the end everything is replayed or given up.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use super::{history::History, keeper::Keeper, world::widen};
use crate::harness::{Dice, Scene, sql::Sql};

/// Everything is closed within this, at the end.
const CLOSED_WITHIN: Duration = Duration::from_secs(180);

const OPEN: &str = "status IN ('pending', 'replaying', 'held', 'dead')";

/// Somebody is faster, or the server is away: nothing of it is a fault.
fn attempt(sql: &Sql, statement: &str) -> usize {
    sql.try_rows(statement).map_or(0, |rows| rows.len())
}

/// Acts until the run is over.
pub fn operate(scene: &Scene, history: &History, mut dice: Dice) {
    let sql = Sql::new(scene.server.superuser(&scene.tag));
    let one = |verb: &str, which: &str, n: u64| {
        format!(
            "SELECT walpost.{verb} FROM (SELECT id FROM walpost.dead_letter WHERE {which} ORDER BY id OFFSET {n} LIMIT 1) l"
        )
    };
    let (ignore, waits) = ("ignore(id, 'at random')", "status IN ('pending', 'dead')");
    while history.pass(dice.between(100, 1_500)) {
        let n = dice.between(0, 6);
        match dice.between(0, 20) {
            0..9 => drop(attempt(&sql, &one("replay(id)", waits, n))),
            9..11 => drop(attempt(&sql, &one(ignore, waits, n))),
            11..13 => drop(attempt(&sql, &one(ignore, "status = 'held'", 7 * n))),
            // Rows that no record can be made of are given up: nothing mends them.
            13..16 => {
                let unmappable = format!("{OPEN} AND status <> 'replaying' AND raw IS NOT NULL");
                let all =
                    format!("SELECT walpost.{ignore} FROM walpost.dead_letter WHERE {unmappable}");
                attempt(&sql, &all);
            }
            16..19 => {
                if !widen(scene, true) {
                    continue;
                }
                let all =
                    format!("SELECT walpost.replay(id) FROM walpost.dead_letter WHERE {waits}");
                let count = attempt(&sql, &all);
                let time = dice.between(0, 4_000);
                history.fault(
                    "operator",
                    "replayed all",
                    &format!(": {count}, for {time} ms"),
                );
                history.pass(time);
                while !history.is_over() && !widen(scene, false) {
                    sleep(Duration::from_millis(200));
                }
            }
            // A verb that is rolled back is no verb.
            _ => {
                let text = format!("BEGIN; {}; ROLLBACK", one("replay(id)", waits, n));
                attempt(&sql, &text);
                attempt(&sql, "ROLLBACK");
            }
        }
    }
}

/// All that can be published is, the rest is given up. How many letters there were.
pub fn close(scene: &Scene, keeper: &mut Keeper, history: &History) -> i64 {
    let began = Instant::now();
    let sql = Sql::new(scene.server.superuser(&scene.tag));
    let count = |condition: &str| {
        let query = format!("SELECT count(*) FROM walpost.dead_letter WHERE {condition}");
        let rows = sql.try_rows(&query).ok();
        rows.and_then(|rows| rows.first()?.first()?.as_deref()?.parse().ok())
    };
    while !widen(scene, true) {
        sleep(Duration::from_millis(200));
    }
    while count(OPEN) != Some(0) {
        keeper.look();
        let waits = "status IN ('pending', 'dead')";
        for verb in [
            format!(
                "ignore(id, 'cannot be mended') FROM walpost.dead_letter WHERE {waits} AND raw IS NOT NULL"
            ),
            format!("replay(id) FROM walpost.dead_letter WHERE {waits} AND raw IS NULL"),
        ] {
            attempt(&sql, &format!("SELECT walpost.{verb}"));
        }
        if began.elapsed() > CLOSED_WITHIN {
            let open = sql.try_rows(&format!(
                "SELECT status, count(*), min(error_code), min(error_text), min(id) FROM walpost.dead_letter WHERE {OPEN} GROUP BY status"
            ));
            let text = format!("letters stay open: {open:?}; {}", keeper.tell());
            history.found("letters", None, text);
            break;
        }
        sleep(Duration::from_millis(300));
    }
    history.note("operator", "closed all letters");
    while !widen(scene, false) {
        sleep(Duration::from_millis(200));
    }
    count("true").unwrap_or_default()
}

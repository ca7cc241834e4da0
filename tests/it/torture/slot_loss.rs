//! The slot's place in the log is lost, with a backlog: both publishers say so and stop, and
//! `walpost recover` publishes what is missing.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use walpost::lsn::Lsn;

use super::keeper::Keeper;
use crate::harness::Dice;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Dropped,
    /// While a publisher reads it.
    TakenAway,
    /// Dropped, and another one made under its name.
    MadeAnew,
    MovedAhead,
    /// The server removed the WAL that it needs.
    Invalidated,
}

/// The server keeps so much WAL for a slot, while one is to be lost.
const KEPT: u64 = 96 << 20;

/// The observer's slot catches up within this, or another slot has to be lost some other way.
const CATCHES_UP_WITHIN: Duration = Duration::from_secs(60);

impl Keeper<'_> {
    pub(super) fn lose_slot(&mut self, dice: &mut Dice) {
        let way = *dice.pick(&[
            Way::Dropped,
            Way::Dropped,
            Way::TakenAway,
            Way::MadeAnew,
            Way::MovedAhead,
            Way::Invalidated,
        ]);
        self.history.distrust_slot(true);
        if way != Way::TakenAway {
            let is_clean = *dice.pick(&[true, false]);
            self.end_all(is_clean || matches!(way, Way::MadeAnew | Way::MovedAhead));
        }
        self.history.pass(dice.between(0, 3_000));
        let way = self.take_place(way);
        self.history.fault("slot", &format!("{way:?}"), "");
        self.history.pass(dice.between(0, 3_000));
        if self.all_refuse(&["walpost recover"]) {
            self.recover(dice);
        }
        self.history.distrust_slot(false);
        self.start_all();
    }

    fn end_all(&mut self, is_clean: bool) {
        for n in 0..self.publishers.len() {
            if is_clean {
                self.stop(n);
            } else {
                self.kill(n);
            }
        }
    }

    /// The way that it went: some need what isn't always there.
    fn take_place(&self, wanted: Way) -> Way {
        let slot = &self.scene.tag;
        let drop = format!(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}' AND active;
             SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}' AND NOT active"
        );
        let is_gone = format!(
            "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{slot}')"
        );
        match wanted {
            Way::MadeAnew if self.is_given_back() => {
                self.surely(&drop, &is_gone);
                self.surely(
                    &format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"),
                    &format!("SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}'"),
                );
            }
            Way::MovedAhead if self.is_given_back() => {
                // A place that no checkpoint saved is forgotten by a crash.
                self.surely(
                    &format!("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"),
                    &format!(
                        "CHECKPOINT; SELECT 1 FROM pg_replication_slots r JOIN walpost.slot s ON s.slot = r.slot_name
                         WHERE r.slot_name = '{slot}' AND r.confirmed_flush_lsn > s.reserved_lsn"
                    ),
                );
            }
            Way::Invalidated if self.invalidate() => {}
            Way::TakenAway => {
                self.surely(&drop, &is_gone);
                return Way::TakenAway;
            }
            _ => {
                self.surely(&drop, &is_gone);
                return Way::Dropped;
            }
        }
        wanted
    }

    /// After a clean stop nothing beyond the slot's place is taken for ours: only then another slot
    /// of its name is told apart.
    fn is_given_back(&self) -> bool {
        let query = format!(
            "SELECT 1 FROM pg_replication_slots r JOIN walpost.slot s ON s.slot = r.slot_name
             WHERE r.slot_name = '{}' AND s.holder IS NULL AND s.reserved_lsn <= r.confirmed_flush_lsn",
            self.scene.tag
        );
        self.ask(&query).is_some()
    }

    /// `false`: the observer's slot stays too close to it.
    fn invalidate(&self) -> bool {
        let (ours, seen) = (&self.scene.tag, format!("{}_seen", self.scene.tag));
        let began = Instant::now();
        loop {
            let (behind, observer) = (self.behind(ours), self.behind(&seen));
            if behind.is_some_and(|b| b <= 2 * KEPT) {
                let _ = self.sql.try_rows("SELECT pg_switch_wal()");
            }
            let _ = self.sql.try_rows("CHECKPOINT");
            if behind.is_some_and(|b| b > 2 * KEPT) && observer.is_some_and(|b| b < KEPT / 2) {
                break;
            }
            if began.elapsed() > CATCHES_UP_WITHIN {
                return false;
            }
            sleep(Duration::from_millis(200));
        }
        let keep = |size: &str| {
            self.surely(
                &format!("ALTER SYSTEM SET max_slot_wal_keep_size = '{size}'"),
                &format!("SELECT pg_reload_conf() WHERE '{size}' = (SELECT setting FROM pg_file_settings WHERE name = 'max_slot_wal_keep_size' ORDER BY seqno DESC LIMIT 1)"),
            );
        };
        keep(&format!("{}MB", KEPT >> 20));
        self.surely(
            "CHECKPOINT",
            &format!("SELECT 1 FROM pg_replication_slots WHERE slot_name = '{ours}' AND wal_status = 'lost'"),
        );
        keep("-1");
        true
    }

    /// WAL that the server keeps for a slot, in bytes.
    fn behind(&self, slot: &str) -> Option<u64> {
        let query = format!(
            "SELECT pg_current_wal_lsn(), restart_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'"
        );
        let row = self.sql.try_rows(&query).ok()?.into_iter().next()?;
        let at = |n: usize| row[n].as_deref()?.parse::<Lsn>().ok();
        Some(at(0)?.bytes().saturating_sub(at(1)?.bytes()))
    }
}

//! The table is taken out of the publication and put back: rows written meanwhile are not in the
//! stream. Both publishers say so and stop; the operator has the rows published, or accepts.

use super::keeper::Keeper;
use crate::harness::Dice;

/// Rows that the stream may lack.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// `seq` of the table: behind the first, up to the last.
    from: i64,
    to: i64,
    /// The operator gave them up.
    pub is_accepted: bool,
}

impl Gap {
    pub fn has(&self, seq: i64) -> bool {
        self.from < seq && seq <= self.to
    }
}

impl Keeper<'_> {
    pub(super) fn change_publication(&mut self, dice: &mut Dice) {
        let is_gap = *dice.pick(&[true, true, false]);
        if *dice.pick(&[true, false]) {
            for n in 0..self.publishers.len() {
                self.kill(n);
            }
            self.history.pass(dice.between(0, 3_000));
        }
        let from = self.last_seq();
        self.wait_for_open_ones();
        if is_gap {
            let time = dice.between(0, 5_000);
            self.history
                .fault("publication", "lacks the table", &format!(" for {time} ms"));
            self.alter(&["DROP"]);
            self.history.pass(time);
            self.alter(&["ADD"]);
        } else {
            self.history.fault("publication", "touched", "");
            self.alter(&["DROP", "ADD"]);
        }
        let to = self.last_seq();
        self.history.note("publication", "has the table");
        self.history.pass(dice.between(0, 3_000));
        let words = [
            "publication",
            "walpost recover",
            "walpost init --accept-publication",
        ];
        let is_accepted = *dice.pick(&[true, false, false]) || !is_gap;
        if self.all_refuse(&words) {
            if is_accepted {
                self.command(&["init", "--accept-publication"], 0, dice);
            } else {
                self.recover(dice);
            }
        }
        if is_gap {
            self.gaps.push(Gap {
                from,
                to,
                is_accepted,
            });
        }
        self.start_all();
    }

    fn last_seq(&self) -> i64 {
        let query = "SELECT last_value FROM pg_sequences WHERE schemaname || '.' || sequencename
            = pg_get_serial_sequence('public.outbox', 'seq')";
        let last = self.ask(query).and_then(|text| text.parse().ok());
        last.unwrap_or_default()
    }

    /// Every transaction that is open now has ended: those that come insert rows of later numbers.
    fn wait_for_open_ones(&self) {
        let next = self.ask("SELECT pg_snapshot_xmax(pg_current_snapshot())");
        let Some(next) = next else { return };
        let is_over =
            format!("SELECT 1 WHERE pg_snapshot_xmin(pg_current_snapshot()) >= '{next}'::xid8");
        self.surely("SELECT 1", &is_over);
    }

    /// In one transaction.
    fn alter(&self, verbs: &[&str]) {
        let publication = &self.scene.tag;
        let entry = format!(
            "SELECT r.oid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = '{publication}'"
        );
        let before = self.ask(&entry);
        let alter = |verb| format!("ALTER PUBLICATION {publication} {verb} TABLE public.outbox;");
        let alters: String = verbs.iter().map(alter).collect();
        let is_done = match (before, verbs) {
            (_, ["DROP"]) => format!("SELECT 1 WHERE NOT EXISTS ({entry})"),
            (Some(oid), _) => format!("{entry} AND r.oid <> {oid}"),
            (None, _) => entry,
        };
        self.surely(&format!("BEGIN; {alters} COMMIT"), &is_done);
    }
}

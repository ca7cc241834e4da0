//! Looks from outside, all along: where the slot stands and when, and the positions that the server
//! itself gives the committed rows.

use std::{
    collections::HashMap,
    thread,
    time::{Duration, Instant},
};

use walpost::lsn::{Lsn, Position};

use super::{
    history::{History, Moment},
    keeper::Keeper,
};
use crate::harness::{Scene, scene::learn_positions, sql::Sql};

/// The slot stood there at this moment, or a little before it.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub at: Moment,
    pub confirmed: Lsn,
}

/// After all faults the publisher has everything confirmed within this.
const DRAINS_WITHIN: Duration = Duration::from_secs(120);

/// What is known from outside.
pub struct Observed<'a> {
    pub samples: Vec<Sample>,
    pub decoder: Decoder<'a>,
}

impl Observed<'_> {
    pub fn of(scene: &Scene) -> Observed<'_> {
        Observed {
            samples: Vec::new(),
            decoder: Decoder::new(scene),
        }
    }

    /// Waits until the slot has passed all that is committed now; how many seconds that took.
    pub fn drain(&mut self, scene: &Scene, keeper: &mut Keeper, history: &History) -> f64 {
        let sql = Sql::new(scene.server.superuser(&scene.tag));
        let (target, began) = (scene.current_lsn(), Instant::now());
        while began.elapsed() < DRAINS_WITHIN {
            keeper.look();
            thread::sleep(Duration::from_millis(50));
            if let Some(sample) = sample_once(scene, &sql) {
                self.samples.push(sample);
                if sample.confirmed >= target {
                    history.note("publisher", "drained");
                    return began.elapsed().as_secs_f64();
                }
            }
        }
        let stands = self.samples.last().map(|sample| sample.confirmed);
        let text = format!(
            "the slot stands at {stands:?}, not at {target}; {}",
            keeper.tell()
        );
        history.found("not drained", None, text);
        began.elapsed().as_secs_f64()
    }
}

/// Samples the slot until the run is over, while its place means something. The clock is read by the same statement, after the slot.
pub fn sample(scene: &Scene, history: &History, samples: &mut Vec<Sample>) {
    let sql = Sql::new(scene.server.superuser(&scene.tag));
    while history.pass(50) {
        let is_trusted = !history.is_slot_distrusted();
        let sample = sample_once(scene, &sql);
        samples.extend(sample.filter(|_| is_trusted && !history.is_slot_distrusted()));
    }
}

pub fn sample_once(scene: &Scene, sql: &Sql) -> Option<Sample> {
    let query = format!(
        "SELECT confirmed_flush_lsn, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
         FROM pg_replication_slots WHERE slot_name = '{}'",
        scene.tag
    );
    let row = sql.try_rows(&query).ok()?.into_iter().next()?;
    Some(Sample {
        confirmed: row[0].as_deref()?.parse().ok()?,
        at: row[1].as_deref()?.parse().ok()?,
    })
}

/// Messages of one look; more stay for the next.
const LOOK: usize = 20_000;

/// Learns positions by the scene's second slot.
pub struct Decoder<'a> {
    scene: &'a Scene,
    sql: Sql,
    /// Event id → position.
    pub positions: HashMap<String, Position>,
}

impl Decoder<'_> {
    pub fn new(scene: &Scene) -> Decoder<'_> {
        Decoder {
            sql: Sql::new(scene.server.superuser(&scene.tag)),
            scene,
            positions: HashMap::new(),
        }
    }

    pub fn follow(&mut self, history: &History) {
        while history.pass(3_000) {
            while !history.is_over() && self.look().unwrap_or(false) {}
        }
    }

    /// The rest, to the end of what is committed now.
    pub fn finish(&mut self) {
        while self.look().expect("the server decodes") {}
    }

    /// Takes in the next transactions; false when there are none. The slot moves only when they
    /// have arrived here, so a crash loses nothing.
    fn look(&mut self) -> Result<bool, tokio_postgres::Error> {
        let slot = format!("{}_seen", self.scene.tag);
        let rows = self.sql.try_typed(&format!(
            "SELECT substr(data, 1, 120) FROM pg_logical_slot_peek_binary_changes('{slot}', NULL, {LOOK},
             'proto_version', '1', 'publication_names', '{}', 'messages', 'true')",
            self.scene.tag
        ))?;
        learn_positions(rows.iter().map(|row| row.get(0)), &mut self.positions);
        let Some(end) = rows.iter().rev().find_map(|row| commit_end(row.get(0))) else {
            return Ok(false);
        };
        self.sql.try_rows(&format!(
            "SELECT pg_replication_slot_advance('{slot}', '{end}')"
        ))?;
        Ok(true)
    }
}

/// `C`, flags, the commit's position, its end.
fn commit_end(message: &[u8]) -> Option<Lsn> {
    let end = message.strip_prefix(b"C")?.get(9..17)?;
    Some(Lsn::new(u64::from_be_bytes(end.try_into().ok()?)))
}

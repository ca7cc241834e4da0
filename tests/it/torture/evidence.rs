//! The verdict of a run: what was committed against what is in Kafka, and when it came there
//! against where the slot stood.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    time::Duration,
};

use walpost::{
    lsn::{Lsn, Position},
    verdict::{Arrived, Committed},
};

use super::{
    history::{History, Moment},
    observer::{Observed, Sample},
    publication::Gap,
    world::{TIGHT, WIDE},
};
use crate::harness::{
    Scene,
    records::Record,
    terms::{Judged, Terms},
};

pub struct Evidence {
    committed: Vec<Committed>,
    /// Event id → `seq` of the table.
    seqs: HashMap<String, i64>,
    /// By topic, partition and offset, each with the moment at which the broker took it.
    arrived: Vec<(Arrived, Moment)>,
    /// Event id → the moment of its first arrival.
    first: HashMap<String, Moment>,
    /// Records of rows that `recover` read from the table.
    pub recovered: usize,
    /// A record that has no position and does not say why.
    placeless: Option<(String, Moment)>,
    /// Records that came from a dead letter, by topic, partition and offset.
    released: HashSet<(String, i32, i64)>,
    /// Events that have a dead letter, and those that an operator gave up.
    kept: HashSet<String>,
    ignored: HashSet<String>,
}

/// Longer values are compared by their digest: a run has gigabytes of them.
const DIGESTED: usize = 500;

impl Evidence {
    pub fn gather(scene: &Scene) -> Evidence {
        let rows = scene.sql.rows(&format!(
            "SELECT event_id::text, seq, aggregate_id, payload->>'seq', CASE WHEN octet_length(payload::text) > {DIGESTED}
             THEN encode(sha256(convert_to(payload::text, 'UTF8')), 'hex') ELSE payload::text END FROM public.outbox"
        ));
        let mut seqs = HashMap::new();
        let event = |row: Vec<Option<String>>| {
            let [id, place, key, seq, value] = <[_; 5]>::try_from(row).expect("five columns");
            let id = id.expect("an id");
            let place = place.and_then(|text| text.parse().ok());
            seqs.insert(id.clone(), place.expect("a number"));
            Committed {
                id,
                key: key.map(String::into_bytes),
                seq: seq.and_then(|text| text.parse().ok()).unwrap_or_default(),
                value: value.map(String::into_bytes),
            }
        };
        let committed = rows.into_iter().map(event).collect();
        let (mut arrived, mut recovered, mut placeless) = (Vec::new(), 0, None);
        let mut released = HashSet::new();
        for topic in [WIDE, TIGHT] {
            let mut tail = scene.kafka.tail(&scene.topic(topic));
            while !tail.is_at_end() {
                tail.poll(Duration::from_millis(200));
                for record in tail.records.drain(..) {
                    let is_placed = record.header("wal_position").is_some();
                    let reread = record.header("walpost_replay").map(str::to_owned);
                    recovered += usize::from(reread.as_deref() == Some("recover"));
                    let (arrived_, at) = digest(record);
                    // One of a letter has its position, unless its row was read from the table.
                    let is_released = reread.as_deref() == Some("dead-letter");
                    if is_released {
                        let Arrived {
                            topic,
                            partition,
                            offset,
                            ..
                        } = &arrived_;
                        released.insert((topic.clone(), *partition, *offset));
                    }
                    if is_placed == reread.is_some() && !is_released {
                        let text = format!("{arrived_}, walpost_replay {reread:?}");
                        placeless.get_or_insert((text, at));
                    }
                    arrived.push((arrived_, at));
                }
            }
        }
        arrived.sort_by(|(a, _), (b, _)| {
            (&a.topic, a.partition, a.offset).cmp(&(&b.topic, b.partition, b.offset))
        });
        let mut first: HashMap<String, Moment> = HashMap::new();
        for (record, at) in &arrived {
            if let Some(id) = &record.id {
                let known = first.entry(id.clone()).or_insert(*at);
                *known = (*known).min(*at);
            }
        }
        Evidence {
            committed,
            seqs,
            arrived,
            first,
            recovered,
            placeless,
            released,
            kept: letters(scene, "true"),
            ignored: letters(scene, "status = 'ignored'"),
        }
    }

    /// A record of this event or of a later one of its key.
    pub fn of_key_from(&self, id: &str) -> Option<String> {
        let event = self.committed.iter().find(|event| event.id == id)?;
        let is_later = |other: &&Committed| other.key == event.key && other.seq >= event.seq;
        let later: HashMap<&str, u64> = self
            .committed
            .iter()
            .filter(is_later)
            .map(|event| (event.id.as_str(), event.seq))
            .collect();
        self.arrived.iter().find_map(|(record, _)| {
            let seq = later.get(record.id.as_deref()?)?;
            Some(format!("seq {seq} at {record}"))
        })
    }

    /// Every way in which the promise can be broken.
    pub fn judge(
        &self,
        observed: &Observed,
        history: &History,
        terms: &Terms,
        gaps: &[Gap],
    ) -> Judged {
        let positions = &observed.decoder.positions;
        let is_in = |event: &Committed, gap: &Gap| gap.has(self.seqs[&event.id]);
        let streamed = |event: &Committed| positions.contains_key(&event.id);
        // Not in the stream, by the publication's doing; of these, what the operator gave up.
        let left_out =
            |event: &&Committed| !streamed(event) && gaps.iter().any(|gap| is_in(event, gap));
        // Nobody owes them. A later `recover` that looks back so far publishes them all the same,
        // behind what came meanwhile.
        let is_accepted = |event: &&Committed| {
            let mut accepted = gaps.iter().filter(|gap| gap.is_accepted);
            !streamed(event) && accepted.any(|gap| is_in(event, gap))
        };
        let given_up = |event: &&Committed| {
            let is_ignored = self.ignored.contains(&event.id);
            is_accepted(event) || (is_ignored && !self.first.contains_key(&event.id))
        };
        let owed = self.committed.iter().filter(|event| !given_up(event));
        let owed: Vec<Committed> = owed.cloned().collect();
        let accepted = self.committed.iter().filter(is_accepted);
        let accepted: HashSet<&str> = accepted.map(|event| event.id.as_str()).collect();
        let is_owed = |(record, _): &&(Arrived, Moment)| {
            let id = record.id.as_deref();
            id.is_none_or(|id| !accepted.contains(id))
        };
        let arrived: Vec<(Arrived, Moment)> =
            self.arrived.iter().filter(is_owed).cloned().collect();
        let is_letter = |record: &Arrived| {
            let place = (record.topic.clone(), record.partition, record.offset);
            self.released.contains(&place)
        };
        let judged = terms.judge(&owed, &arrived, is_letter);
        let verdict = &judged.verdict;
        for (fault, count) in &verdict.faults {
            let example = verdict.examples.iter().find(|e| e.fault == *fault);
            let text = example.map_or("", |example| &example.history);
            let at = ids(text).find_map(|id| self.first.get(id)).copied();
            let around = self.around(ids(text).next(), history);
            let text = format!("{count} times; {text}{around}");
            history.found(&fault.to_string(), at, text);
        }
        self.judge_positions(positions, history);
        let unseen = |event: &&Committed| !streamed(event) && !left_out(event);
        if let Some(event) = self.committed.iter().find(unseen) {
            let text = format!(
                "the second slot did not see event {}, seq {} of the table; the publication's gaps are {gaps:?}",
                event.id, self.seqs[&event.id]
            );
            history.found("harness", None, text);
        }
        self.judge_slot(positions, &observed.samples, history);
        judged
    }

    /// Every record, by topic, partition and offset: when it came, its key, the number in its key, and
    /// whether it came from the table or from a dead letter.
    pub fn records(&self) -> String {
        let seqs: HashMap<&str, u64> = self
            .committed
            .iter()
            .map(|e| (e.id.as_str(), e.seq))
            .collect();
        let mut text = String::new();
        for (record, at) in &self.arrived {
            let seq = record.id.as_deref().and_then(|id| seqs.get(id));
            let key = record.key.as_deref().map(String::from_utf8_lossy);
            let place = (record.topic.clone(), record.partition, record.offset);
            let _ = writeln!(
                text,
                "{at} {} {} {record}{}{}",
                key.as_deref().unwrap_or("-"),
                seq.map_or("?".into(), u64::to_string),
                if record.position.is_none() {
                    " reread"
                } else {
                    ""
                },
                if self.released.contains(&place) {
                    " letter"
                } else {
                    ""
                },
            );
        }
        text
    }

    /// Events that operators gave up.
    pub fn count_ignored(&self) -> usize {
        self.ignored.len()
    }

    /// Rows that the publication left out.
    pub fn count_left_out(&self, observed: &Observed) -> usize {
        let positions = &observed.decoder.positions;
        let unseen = |event: &&Committed| !positions.contains_key(&event.id);
        self.committed.iter().filter(unseen).count()
    }

    /// The publisher's positions are the server's. Of a transaction that was open while the publication
    /// changed, the server may give one slot a row that it does not give another: its rows are
    /// then counted differently, but the transaction's place is the same. (That such a row lies in
    /// a gap is judged elsewhere.)
    fn judge_positions(&self, positions: &HashMap<String, Position>, history: &History) {
        let places = self.arrived.iter().filter_map(|(record, _)| {
            let (id, position) = (record.id.as_ref()?, record.position?);
            (!positions.contains_key(id)).then_some(position.commit)
        });
        let torn: HashSet<Lsn> = places.collect();
        for (record, at) in &self.arrived {
            let Some(id) = &record.id else { continue };
            let (Some(truth), Some(position)) = (positions.get(id), record.position) else {
                continue;
            };
            let is_torn = torn.contains(&truth.commit) && position.commit == truth.commit;
            if position != *truth && !is_torn {
                let text = format!("{record}, but the server has it at {truth}");
                return history.found("wrong position", Some(*at), text);
            }
        }
        if let Some((text, at)) = &self.placeless {
            history.found("wrong headers", Some(*at), text.clone());
        }
    }

    /// Whatever the slot had passed was in Kafka by then.
    fn judge_slot(
        &self,
        positions: &HashMap<String, Position>,
        samples: &[Sample],
        history: &History,
    ) {
        // For each position the first moment at which the slot stood there or further.
        let mut passed: Vec<Sample> = samples.to_vec();
        passed.sort_by_key(|sample| std::cmp::Reverse((sample.confirmed, sample.at)));
        let mut earliest: Option<Sample> = None;
        for sample in &mut passed {
            let first = earliest
                .filter(|first| first.at < sample.at)
                .unwrap_or(*sample);
            earliest = Some(first);
            *sample = Sample {
                confirmed: sample.confirmed,
                at: first.at,
            };
        }
        let moment = |commit: Lsn| {
            // A confirmed position never lies inside a commit record.
            let count = passed.partition_point(|sample| sample.confirmed > commit);
            count.checked_sub(1).map(|last| passed[last])
        };
        let mut ahead: Vec<(&Committed, Position, Sample)> = Vec::new();
        for event in &self.committed {
            let Some(position) = positions.get(&event.id) else {
                continue;
            };
            // A letter lets the slot pass.
            if self.kept.contains(&event.id) {
                continue;
            }
            if let Some(sample) = moment(position.commit)
                && self.first.get(&event.id).is_none_or(|at| *at > sample.at)
            {
                ahead.push((event, *position, sample));
            }
        }
        let Some((event, position, sample)) = ahead.iter().min_by_key(|(_, position, _)| *position)
        else {
            return;
        };
        let arrival = match self.first.get(&event.id) {
            Some(at) => format!("the broker took it at {}", history.second(*at)),
            None => "it is not in Kafka".to_owned(),
        };
        let text = format!(
            "{} rows were passed by the slot before they were in Kafka; the first is event {} from {position}: at {} the slot had passed it, {arrival}{}",
            ahead.len(),
            event.id,
            history.second(sample.at),
            self.around(Some(&event.id), history),
        );
        history.found("slot ahead", Some(sample.at), text);
    }

    /// The records of the event's key around its own ones.
    fn around(&self, id: Option<&str>, history: &History) -> String {
        let mut text = String::new();
        let Some(event) = id.and_then(|id| self.committed.iter().find(|event| event.id == id))
        else {
            return text;
        };
        if event.key.is_none() {
            return text;
        }
        let seqs: HashMap<&str, u64> = self
            .committed
            .iter()
            .map(|e| (e.id.as_str(), e.seq))
            .collect();
        let of_key: Vec<_> = self
            .arrived
            .iter()
            .filter(|(r, _)| r.key == event.key)
            .collect();
        let is_its = |record: &Arrived| record.id.as_ref() == Some(&event.id);
        // Of a lost one: where it is missing.
        let seq_of = |record: &Arrived| record.id.as_deref().and_then(|id| seqs.get(id));
        let middle = of_key
            .iter()
            .position(|(record, _)| is_its(record))
            .or_else(|| {
                of_key
                    .iter()
                    .position(|(r, _)| seq_of(r) > Some(&event.seq))
            })
            .unwrap_or(of_key.len());
        for (record, at) in &of_key[middle.saturating_sub(8)..of_key.len().min(middle + 8)] {
            let seq = seq_of(record);
            let _ = write!(
                text,
                "\n    {}  seq {}  {record}",
                history.second(*at),
                seq.map_or("?".into(), u64::to_string)
            );
        }
        text
    }
}

/// The ids that a verdict's history names.
fn ids(text: &str) -> impl Iterator<Item = &str> {
    let words: Vec<&str> = text.split([' ', ',', ';', ':']).collect();
    let pairs: Vec<_> = words.windows(2).map(|pair| (pair[0], pair[1])).collect();
    pairs
        .into_iter()
        .filter(|(word, _)| *word == "event")
        .map(|(_, id)| id)
}

/// Events of dead letters.
fn letters(scene: &Scene, condition: &str) -> HashSet<String> {
    let query = format!(
        "SELECT DISTINCT event_id FROM walpost.dead_letter WHERE event_id IS NOT NULL AND {condition}"
    );
    scene.sql.column(&query).into_iter().collect()
}

fn digest(record: Record) -> (Arrived, Moment) {
    let mut arrived = record.arrived();
    if let Some(value) = arrived
        .value
        .as_mut()
        .filter(|value| value.len() > DIGESTED)
    {
        let hex = openssl::sha::sha256(value).map(|byte| format!("{byte:02x}"));
        *value = hex.concat().into_bytes();
    }
    (arrived, record.timestamp.unwrap_or_default())
}

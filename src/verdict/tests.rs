//! Runs with one fault each, and those without.

use super::*;
use crate::lsn::Lsn;

fn event(key: &str, seq: u64) -> Committed {
    Committed {
        id: format!("{key}{seq}"),
        key: Some(key.into()),
        seq,
        value: Some(format!("v{seq}").into()),
    }
}

fn record(event: &Committed, offset: usize) -> Arrived {
    Arrived {
        id: Some(event.id.clone()),
        key: event.key.clone(),
        value: event.value.clone(),
        topic: "t".into(),
        partition: 0,
        offset: i64::try_from(offset).unwrap(),
        position: Some(Position {
            commit: Lsn::new(100 * event.seq),
            ordinal: u32::from(event.id.as_bytes()[0]),
        }),
    }
}

/// Events 1 to 4 of key `a`, arrived in this order.
fn history(seqs: &[u64]) -> (Vec<Committed>, Vec<Arrived>) {
    let events: Vec<_> = (1..=4).map(|seq| event("a", seq)).collect();
    let records = seqs
        .iter()
        .enumerate()
        .map(|(offset, seq)| record(&event("a", *seq), offset))
        .collect();
    (events, records)
}

/// The faults of a verdict with their counts; the text must tell each by name.
fn faults(committed: &[Committed], arrived: &[Arrived]) -> Vec<(Fault, usize)> {
    let verdict = judge(committed, arrived);
    let text = verdict.to_string();
    assert!(
        verdict
            .faults
            .keys()
            .all(|fault| text.contains(&format!("{fault}: "))),
        "{text}"
    );
    assert_eq!(verdict.is_clean(), verdict.faults.is_empty());
    verdict.faults.into_iter().collect()
}

fn order_faults(seqs: &[u64]) -> Vec<(Fault, usize)> {
    let (events, records) = history(seqs);
    faults(&events, &records)
}

#[test]
fn in_order_and_suffixes_repeated_is_clean() {
    for seqs in [
        &[1, 2, 3, 4][..],
        &[1, 2, 3, 2, 3, 4],
        &[1, 1, 2, 3, 4, 4],
        &[1, 2, 3, 2, 3, 1, 2, 3, 4],
        &[1, 2, 3, 4, 1, 2, 3, 4],
    ] {
        assert_eq!(order_faults(seqs), [], "{seqs:?}");
    }
    let (events, records) = history(&[1, 2, 3, 2, 3, 4]);
    assert_eq!(judge(&events, &records).repeats, 2);
}

#[test]
fn lost_is_reported_with_its_neighbours() {
    assert_eq!(order_faults(&[1, 2, 4]), [(Fault::Lost, 1)]);
    let (events, records) = history(&[1, 4]);
    let text = judge(&events, &records).to_string();
    assert!(
        text.contains("2 lost: event a2 of key \"a\", seq 2; before it seq 1 at t/0@0"),
        "{text}"
    );
    assert!(text.contains("behind it seq 3, lost too"), "{text}");
}

#[test]
fn invented_is_reported() {
    let (events, mut records) = history(&[1, 2, 3, 4]);
    records.push(record(&event("a", 9), 7));
    records.push(Arrived {
        id: None,
        ..record(&event("a", 1), 8)
    });
    assert_eq!(faults(&events, &records), [(Fault::Invented, 2)]);
}

#[test]
fn a_first_arrival_behind_a_later_one_is_out_of_order() {
    assert_eq!(order_faults(&[1, 3, 2, 3, 4]), [(Fault::OutOfOrder, 1)]);
    let (events, records) = history(&[1, 3, 2, 3, 4]);
    let text = judge(&events, &records).to_string();
    assert!(
        text.contains("seq 3 at t/0@1 event a3 from 0/12C:97, and only then seq 2 at t/0@2"),
        "{text}"
    );
}

#[test]
fn a_repeat_with_a_hole_is_no_suffix() {
    assert_eq!(order_faults(&[1, 2, 3, 1, 3, 4]), [(Fault::NoSuffix, 1)]);
    assert_eq!(order_faults(&[1, 2, 3, 2, 4]), [(Fault::NoSuffix, 1)]);
}

#[test]
fn an_old_event_at_the_end_is_stale() {
    assert_eq!(order_faults(&[1, 2, 3, 4, 2]), [(Fault::Stale, 1)]);
}

#[test]
fn another_value_or_key_is_altered() {
    let (events, mut records) = history(&[1, 2, 3, 4]);
    records[1].value = None;
    records[2].value = Some(Vec::new());
    assert_eq!(faults(&events, &records), [(Fault::Altered, 2)]);
    records[3].key = Some("b".into());
    assert_eq!(faults(&events, &records), [(Fault::Altered, 3)]);
}

#[test]
fn one_key_in_two_partitions_and_one_event_in_two_topics_are_split() {
    let (events, mut records) = history(&[1, 2, 3, 4]);
    records[2].partition = 1;
    assert_eq!(faults(&events, &records), [(Fault::Split, 1)]);
    let (events, mut records) = history(&[1, 2, 3, 4, 4]);
    records[4].topic = "u".into();
    assert_eq!(faults(&events, &records), [(Fault::Split, 1)]);
}

#[test]
fn positions_that_fall_or_repeat_or_change_are_misplaced() {
    let (events, mut records) = history(&[1, 2, 3, 4]);
    records[2].position = Some(Position {
        commit: Lsn::new(150),
        ordinal: 1,
    });
    assert_eq!(faults(&events, &records), [(Fault::Misplaced, 1)]);
    let (events, mut records) = history(&[1, 2, 3, 4, 4]);
    records[4].position = Some(Position {
        commit: Lsn::new(9_999),
        ordinal: 1,
    });
    assert!(faults(&events, &records).contains(&(Fault::Misplaced, 1)));
    // Read from the table again: it has none.
    records[4].position = None;
    assert_eq!(faults(&events, &records), []);
    let (a, b) = (event("a", 1), event("b", 1));
    let same = Arrived {
        position: record(&a, 0).position,
        ..record(&b, 1)
    };
    assert_eq!(
        faults(&[a.clone(), b], &[record(&a, 0), same]),
        [(Fault::Misplaced, 1)]
    );
}

#[test]
fn rows_of_the_table_come_between_in_their_own_order() {
    let judged = |seqs: &[(u64, bool)]| {
        let all: Vec<u64> = seqs.iter().map(|(seq, _)| *seq).collect();
        let (events, mut records) = history(&all);
        for (record, (_, is_reread)) in records.iter_mut().zip(seqs) {
            record.position = record.position.filter(|_| !is_reread);
        }
        faults(&events, &records)
    };
    let (live, reread) = (|seq| (seq, false), |seq| (seq, true));
    assert_eq!(judged(&[live(1), live(4), reread(2), reread(3)]), []);
    assert_eq!(
        judged(&[reread(2), live(1), live(2), reread(3), live(4)]),
        []
    );
    // A stream that ended in a repetition: the table has the last word.
    let cut = [1, 2, 3, 4, 1].map(live);
    let mended = |to| [cut.to_vec(), (2..=to).map(reread).collect()].concat();
    assert_eq!(judged(&mended(4)), []);
    assert_eq!(judged(&mended(3)), [(Fault::Stale, 1)]);
    assert_eq!(
        judged(&[live(1), reread(3), reread(2), live(4)]),
        [(Fault::OutOfOrder, 1)]
    );
    assert_eq!(
        judged(&[live(2), reread(3), live(1), live(4)]),
        [(Fault::OutOfOrder, 1), (Fault::NoSuffix, 1)]
    );
}

#[test]
fn keyless_events_have_no_order() {
    let loose = |seq| Committed {
        key: None,
        ..event("a", seq)
    };
    let records = [3, 1, 2, 1]
        .map(loose)
        .iter()
        .enumerate()
        .map(|(i, e)| record(e, i))
        .collect::<Vec<_>>();
    assert_eq!(faults(&[1, 2, 3].map(loose), &records), []);
}

#[test]
fn a_million_faults_keep_few_examples() {
    let events: Vec<_> = (0..50)
        .map(|seq| Committed {
            key: None,
            ..event("a", seq)
        })
        .collect();
    let verdict = judge(&events, &[]);
    assert_eq!(
        (verdict.count(Fault::Lost), verdict.examples.len()),
        (50, EXAMPLES)
    );
}

proptest::proptest! {
    /// Whatever a publisher does that goes back now and then and always goes on step by step is
    /// clean; with two first arrivals exchanged it never is.
    #[test]
    fn only_suffixes_repeat(steps in proptest::collection::vec((1_u64..4, 0_u64..4), 0..8), at in 0_usize..100) {
        let (mut seqs, mut next) = (Vec::new(), 1);
        for (forward, back) in steps {
            seqs.extend((next..next + forward).filter(|seq| *seq <= 4));
            next = (next + forward).saturating_sub(back).clamp(1, 4);
        }
        seqs.extend(next..=4);
        proptest::prop_assert_eq!(order_faults(&seqs), []);
        let at = at % (seqs.len() - 1);
        if (at..=at + 1).all(|i| !seqs[..i].contains(&seqs[i])) {
            seqs.swap(at, at + 1);
            let (events, records) = history(&seqs);
            proptest::prop_assert!(!judge(&events, &records).is_clean(), "{:?}", seqs);
        }
    }
}

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

/// Events 1 to 4 of key `a`, or as many as arrived, in this order.
fn history(seqs: &[u64]) -> (Vec<Committed>, Vec<Arrived>) {
    let newest = seqs.iter().fold(4, |newest, seq| newest.max(*seq));
    let events: Vec<_> = (1..=newest).map(|seq| event("a", seq)).collect();
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

/// A record that the stream brought, and one that was read from the table.
type Number = (u64, bool);

fn live(seqs: impl IntoIterator<Item = u64>) -> Vec<Number> {
    seqs.into_iter().map(|seq| (seq, false)).collect()
}

fn reread(seqs: impl IntoIterator<Item = u64>) -> Vec<Number> {
    seqs.into_iter().map(|seq| (seq, true)).collect()
}

fn mixed(parts: &[Vec<Number>]) -> (Vec<Committed>, Vec<Arrived>) {
    let numbers = parts.concat();
    let seqs: Vec<u64> = numbers.iter().map(|(seq, _)| *seq).collect();
    let (events, mut records) = history(&seqs);
    for (record, (_, is_reread)) in records.iter_mut().zip(numbers) {
        record.position = record.position.filter(|_| !is_reread);
    }
    (events, records)
}

fn mixed_faults(parts: &[Vec<Number>]) -> Vec<(Fault, usize)> {
    let (events, records) = mixed(parts);
    faults(&events, &records)
}

#[test]
fn rows_of_the_table_come_between_in_their_own_order() {
    assert_eq!(mixed_faults(&[live([1, 4]), reread([2, 3])]), []);
    assert_eq!(
        mixed_faults(&[reread([2]), live([1, 2]), reread([3]), live([4])]),
        []
    );
    // An operator has old ones published again.
    assert_eq!(
        mixed_faults(&[live([1, 2, 3]), reread([1, 3]), live([4])]),
        []
    );
    assert_eq!(
        mixed_faults(&[live([1]), reread([3, 2]), live([4])]),
        [(Fault::OutOfOrder, 1)]
    );
    assert_eq!(
        mixed_faults(&[live([2]), reread([3]), live([1, 4])]),
        [(Fault::OutOfOrder, 1), (Fault::NoSuffix, 1)]
    );
}

/// The stream repeated from 2 on, its slot was lost there, and `recover` read from the table what
/// old events had come behind, and the rows that were not published yet. What the next slot brings is
/// newer than all of them.
#[test]
fn rows_of_the_table_go_on_with_a_repetition_that_was_cut_off() {
    let cut = || live([1, 2, 3, 4, 5, 5, 2]);
    let then =
        |rows: &[u64], next: u64| mixed_faults(&[cut(), reread(rows.to_vec()), live([next])]);
    assert_eq!(then(&[3, 4, 5], 6), []);
    assert_eq!(then(&[3, 4, 5, 6, 7], 8), []);
    // Killed on the way and run again: from its beginning, or from where the topic ends.
    assert_eq!(then(&[3, 4, 3, 4, 5, 6], 7), []);
    assert_eq!(then(&[3, 4, 4, 5, 6], 7), []);
    // The next stream may itself have gone back before it was cut off.
    assert_eq!(
        mixed_faults(&[
            cut(),
            reread([3, 4, 5]),
            live([6, 7, 6]),
            reread([7]),
            live([8])
        ]),
        []
    );
}

#[test]
fn rows_of_the_table_that_leave_one_out_or_exchange_two_do_not_go_on() {
    let cut = || live([1, 2, 3, 4, 5, 5, 2]);
    let then =
        |rows: &[u64], next: u64| mixed_faults(&[cut(), reread(rows.to_vec()), live([next])]);
    let is_none = [(Fault::NoSuffix, 1)];
    for rows in [&[][..], &[4, 5], &[3, 5], &[3, 4], &[3, 3, 4]] {
        assert_eq!(then(rows, 6), is_none, "{rows:?}");
        let beyond = [rows, &[6, 7]].concat();
        assert_eq!(then(&beyond, 8), is_none, "{beyond:?}");
    }
    let exchanged = [(Fault::OutOfOrder, 1), (Fault::NoSuffix, 1)];
    assert_eq!(then(&[4, 3, 5], 6), exchanged);
    assert_eq!(then(&[3, 5, 4], 6), exchanged);
    // Nor do they cover for a lost one, or for one that comes too late.
    assert_eq!(then(&[3, 4, 5], 7), [(Fault::Lost, 1)]);
    assert_eq!(
        mixed_faults(&[cut(), reread([3, 4, 5]), live([7, 6])]),
        [(Fault::OutOfOrder, 1), (Fault::Stale, 1)]
    );
    // What the table has was never excused by what it brought before the stream went back.
    assert_eq!(
        mixed_faults(&[live([1, 2, 3]), reread([2, 3]), live([1, 4])]),
        [(Fault::NoSuffix, 1)]
    );
    let (events, records) = mixed(&[cut(), reread([3, 5]), live([6])]);
    let text = judge(&events, &records).to_string();
    assert!(text.contains("; it came as 1-5 5 2 [3] [5] 6"), "{text}");
}

/// A dead letter of a slot that was lost came before rows that are older than it.
#[test]
fn rows_of_the_table_that_were_read_in_turn_come_before_what_is_newer() {
    let judged = |parts: &[Vec<Number>], reading| {
        let (events, records) = mixed(parts);
        judge_as(&events, &records, reading)
            .faults
            .into_iter()
            .collect::<Vec<_>>()
    };
    let late = [live([1, 2, 4]), reread([3])];
    assert_eq!(judged(&late, Reading::AnyTime), []);
    assert_eq!(judged(&late, Reading::InTurn), [(Fault::OutOfOrder, 1)]);
    let early = [live([1]), reread([3]), live([2, 4])];
    assert_eq!(judged(&early, Reading::AnyTime), []);
    assert_eq!(judged(&early, Reading::InTurn), [(Fault::OutOfOrder, 1)]);
    // Of two that were streamed it is told once; repeats are no first arrivals.
    let streamed = [live([1, 3, 2, 3, 4])];
    assert_eq!(judged(&streamed, Reading::InTurn), [(Fault::OutOfOrder, 1)]);
    let good = [live([1, 2, 3, 2]), reread([3, 4, 3, 4]), live([5, 6])];
    assert_eq!(judged(&good, Reading::InTurn), []);
}

#[test]
fn rows_of_the_table_have_the_last_word_when_they_end_a_repetition() {
    let cut = || live([1, 2, 3, 4, 1]);
    assert_eq!(mixed_faults(&[cut(), reread([2, 3, 4])]), []);
    assert_eq!(mixed_faults(&[cut(), reread([2, 3, 4, 5])]), []);
    for rows in [&[2, 3][..], &[4], &[2, 4, 5], &[5]] {
        let found = mixed_faults(&[cut(), reread(rows.to_vec())]);
        assert!(found.contains(&(Fault::Stale, 1)), "{rows:?}: {found:?}");
    }
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

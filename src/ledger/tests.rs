//! Golden scripts (`tests/golden/ledger`) and random interleavings.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

const MAX: Lsn = Lsn::new(u64::MAX);

/// Runs a script of `;`-separated steps; `expect` shows `confirmed … open …`.
///
/// `start LSN`, `begin`, `row N`, `message`, `commit LSN`, `keepalive LSN`, `settle N`, `check`
/// (a check that begins and succeeds now), `unchecked` (no automatic check from here on),
/// `unreserved LSN` (a start with nothing reserved beyond it), `reserve LSN`.
fn run(script: &str) -> String {
    let mut ledger = Ledger::new(100, 1 << 20);
    ledger.reserve(MAX);
    let mut seqs = std::collections::HashMap::new();
    let mut checked = true;
    for step in script
        .split([';', '\n'])
        .map(str::trim)
        .filter(|s| !s.is_empty())
    {
        let (verb, argument) = step.split_once(' ').unwrap_or((step, ""));
        let lsn = || argument.parse::<Lsn>().unwrap();
        match verb {
            "start" => ledger.restart(lsn(), MAX),
            "reserve" => ledger.reserve(lsn()),
            "unreserved" => ledger.restart(lsn(), lsn()),
            "begin" => ledger.begin(Lsn::new(1), PgTime::new(0)).unwrap(),
            "message" => drop(ledger.next_position().unwrap()),
            "row" => {
                ledger.next_position().unwrap();
                let seq = ledger
                    .open_row(Shape::for_tests(), Box::new([0; 10]))
                    .unwrap();
                seqs.insert(argument.to_owned(), seq);
            }
            "commit" => ledger.commit(lsn()).unwrap(),
            "keepalive" => ledger.keepalive(lsn()),
            "settle" => drop(ledger.settle(seqs[argument])),
            "check" => ledger.raise_ceiling(ledger.boundary()),
            "unchecked" => checked = false,
            other => panic!("unknown step {other}"),
        }
        if checked {
            ledger.raise_ceiling(ledger.boundary());
        }
        ledger.confirmed();
    }
    let confirmed = ledger
        .confirmed()
        .map_or("nothing".to_owned(), |c| c.to_string());
    format!("confirmed {confirmed} open {}", ledger.rows())
}

#[test]
fn golden_scripts() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/ledger");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut report = String::new();
        for case in text.split("\n\n").filter(|case| !case.trim().is_empty()) {
            let (title, rest) = case.trim().split_once('\n').expect("a title line");
            let (script, expected) = rest.split_once("\n---\n").expect("--- before the outcome");
            let got = run(script);
            if got != expected.trim() {
                writeln!(report, "{title}: {got}, expected {expected}").unwrap();
            }
            count += 1;
        }
        assert!(report.is_empty(), "{}:\n{report}", path.display());
    }
    assert!(count >= 10, "only {count} scripts");
}

#[test]
fn positions_count_every_change_of_the_transaction() {
    let mut ledger = Ledger::new(10, 1000);
    ledger.begin(Lsn::new(7), PgTime::new(0)).unwrap();
    ledger.next_position().unwrap();
    let at = ledger.next_position().unwrap();
    assert_eq!(
        at,
        Position {
            commit: Lsn::new(7),
            ordinal: 2
        }
    );
    let seq = ledger.open_row(Shape::for_tests(), Box::default()).unwrap();
    assert_eq!(ledger.row(seq).unwrap().position, at);
    ledger.commit(Lsn::new(9)).unwrap();
    ledger.begin(Lsn::new(12), PgTime::new(0)).unwrap();
    assert_eq!(ledger.next_position().unwrap().ordinal, 1);
}

#[test]
fn a_stream_out_of_turn_is_an_error() {
    let mut ledger = Ledger::new(10, 1000);
    assert_eq!(ledger.commit(Lsn::new(1)), Err(OutOfTurn::NoTransaction));
    assert_eq!(
        ledger.next_position().unwrap_err(),
        OutOfTurn::NoTransaction
    );
    ledger.keepalive(Lsn::new(50));
    ledger.begin(Lsn::new(7), PgTime::new(0)).unwrap();
    assert_eq!(
        ledger.begin(Lsn::new(8), PgTime::new(0)),
        Err(OutOfTurn::Begin)
    );
    let backwards = OutOfTurn::Backwards {
        end: Lsn::new(40),
        boundary: Lsn::new(50),
    };
    assert_eq!(ledger.commit(Lsn::new(40)), Err(backwards));
}

#[test]
fn room_is_bounded_in_rows_and_bytes_and_a_larger_row_goes_alone() {
    let mut ledger = Ledger::new(3, 1000);
    ledger.begin(Lsn::new(7), PgTime::new(0)).unwrap();
    ledger.next_position().unwrap();
    assert!(ledger.has_room(5000), "alone");
    let large = ledger
        .open_row(Shape::for_tests(), vec![0; 5000].into())
        .unwrap();
    assert!(!ledger.has_room(0));
    ledger.settle(large);
    for _ in 0..3 {
        assert!(ledger.has_room(100));
        ledger
            .open_row(Shape::for_tests(), vec![0; 100].into())
            .unwrap();
    }
    assert!(!ledger.has_room(0), "three rows");
    assert_eq!(ledger.bytes(), 3 * (100 + ROW_OVERHEAD));
}

#[test]
fn one_row_that_waits_costs_nothing_behind_it() {
    let mut ledger = Ledger::new(10, 1 << 20);
    ledger.begin(Lsn::new(7), PgTime::new(0)).unwrap();
    ledger.next_position().unwrap();
    let stuck = ledger.open_row(Shape::for_tests(), Box::default()).unwrap();
    for _ in 0..100_000 {
        let seq = ledger.open_row(Shape::for_tests(), Box::default()).unwrap();
        assert!(ledger.set_state(seq, RowState::Enqueued));
        ledger.settle(seq).unwrap();
    }
    assert!(ledger.window.capacity() < 100 && ledger.stragglers.len() == 1);
    assert_eq!(ledger.first_from(Seq(0)), Some(stuck));
    assert_eq!((ledger.rows(), ledger.enqueued()), (1, 0));
    assert!(ledger.settle(stuck).is_some() && ledger.settle(stuck).is_none());
    assert!(ledger.oldest().is_none());
}

#[test]
#[should_panic(expected = "was not received")]
fn a_check_cannot_vouch_for_what_was_not_received() {
    let mut ledger = Ledger::new(10, 1000);
    ledger.keepalive(Lsn::new(5));
    ledger.raise_ceiling(Some(Lsn::new(6)));
}

/// The rule by its definition: every transaction kept, nothing merged.
#[derive(Default)]
struct Model {
    /// (boundary before, end or none yet, open rows) of every transaction.
    transactions: Vec<(Option<Lsn>, Option<Lsn>, Vec<Seq>)>,
    boundary: Option<Lsn>,
    ceiling: Option<Lsn>,
}

impl Model {
    fn confirmed(&self) -> Option<Lsn> {
        let stuck = self
            .transactions
            .iter()
            .find(|(_, _, open)| !open.is_empty());
        stuck
            .map_or(self.boundary, |(before, _, _)| *before)
            .min(self.ceiling)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Begin,
    Row,
    Commit(u64),
    Keepalive(u64),
    Settle(prop::sample::Index),
    Check,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Begin),
        6 => Just(Step::Row),
        3 => (1u64..20).prop_map(Step::Commit),
        2 => (0u64..20).prop_map(Step::Keepalive),
        8 => any::<prop::sample::Index>().prop_map(Step::Settle),
        2 => Just(Step::Check),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Settlements in any order, keepalives and checks at any moment: the ledger confirms what the
    /// definition confirms, and never moves back (asserted inside).
    #[test]
    fn confirms_exactly_the_settled_prefix(steps in prop::collection::vec(step(), 1..120)) {
        let mut ledger = Ledger::new(2, 1 << 20); // A window of 4 rows: stragglers are common.
        ledger.reserve(MAX);
        let mut model = Model::default();
        let mut open: Vec<Seq> = Vec::new();
        let mut wal = 100;
        for step in steps {
            match step {
                Step::Begin if !ledger.in_transaction() => {
                    ledger.begin(Lsn::new(wal), PgTime::new(0)).unwrap();
                    model.transactions.push((model.boundary, None, Vec::new()));
                }
                Step::Row if ledger.in_transaction() => {
                    ledger.next_position().unwrap();
                    let seq = ledger.open_row(Shape::for_tests(), Box::default()).unwrap();
                    model.transactions.last_mut().unwrap().2.push(seq);
                    open.push(seq);
                }
                Step::Commit(bytes) if ledger.in_transaction() => {
                    wal += bytes;
                    ledger.commit(Lsn::new(wal)).unwrap();
                    model.transactions.last_mut().unwrap().1 = Some(Lsn::new(wal));
                    model.boundary = Some(Lsn::new(wal));
                }
                Step::Keepalive(bytes) => {
                    if !ledger.in_transaction() {
                        wal += bytes;
                        model.boundary = model.boundary.max(Some(Lsn::new(wal)));
                    }
                    ledger.keepalive(Lsn::new(wal));
                }
                Step::Settle(which) if !open.is_empty() => {
                    let seq = open.swap_remove(which.index(open.len()));
                    prop_assert!(ledger.settle(seq).is_some());
                    for (_, _, rows) in &mut model.transactions {
                        rows.retain(|r| *r != seq);
                    }
                }
                Step::Check => {
                    ledger.raise_ceiling(ledger.boundary());
                    model.ceiling = model.boundary;
                }
                _ => {}
            }
            prop_assert_eq!(ledger.confirmed().map(ConfirmedLsn::lsn), model.confirmed());
            prop_assert_eq!(ledger.rows(), open.len());
            prop_assert_eq!(ledger.first_from(Seq(0)), open.iter().min().copied());
        }
    }
}

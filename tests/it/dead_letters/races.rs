//! Operators against a release, and a slot that is lost under letters on their way.

use std::{sync::Barrier, thread, time::Duration};

use super::{act, heal, large, letters, patient, seqs, small_topic, statuses, wait_statuses};
use crate::harness::{
    Dice, Scene,
    kafka_server::Breakable,
    sql::{Sql, explain},
    until,
};

/// Why a verb was refused.
#[track_caller]
fn refused(scene: &Scene, call: &str) -> String {
    let error = scene.sql.try_rows(&format!("SELECT walpost.{call}"));
    explain(&error.expect_err("it is refused"))
}

#[test]
fn what_is_on_its_way_cannot_be_ignored_and_what_waits_behind_it_can() {
    let way = Breakable::take();
    let scene = Scene::behind(&way);
    let walpost = small_topic(&scene);
    let mut run = scene.started(&walpost);
    scene.insert("K", 1);
    large(&scene, "K");
    scene.insert("K", 4);
    let all = wait_statuses(&scene, &["pending", "held", "held", "held", "held"]);
    heal(&scene);
    way.proxy().refuse();
    act(&scene, &format!("replay({})", all[0].id));
    let text = refused(&scene, &format!("ignore({}, 'too late')", all[0].id));
    assert!(text.contains("it is replaying (by "), "{text}");
    let text = refused(&scene, &format!("replay({})", all[1].id));
    assert!(
        text.contains(&format!("waits behind {}", all[0].id)),
        "{text}"
    );
    act(&scene, &format!("ignore({}, 'in time')", all[2].id));
    way.proxy().forward();
    wait_statuses(
        &scene,
        &["resolved", "resolved", "ignored", "resolved", "resolved"],
    );
    scene.insert("K", 1);
    scene.wait_confirmed(60);
    assert_eq!(seqs(&scene, "K"), [1, 2, 3, 5, 6, 7]);
    run.assert_alive();
}

#[test]
fn of_an_ignore_and_a_release_at_the_same_time_one_wins() {
    let scene = Scene::new();
    let walpost = small_topic(&scene);
    let mut run = scene.started(&walpost);
    let mut dice = Dice::new();
    let (mut ignored, mut released) = (0, 0);
    for round in 0..12 {
        let key = format!("K{round}");
        scene.kafka.configure(
            &scene.topic("order"),
            &[("max.message.bytes", super::LIMIT)],
        );
        scene.insert(&key, 1);
        large(&scene, &key);
        scene.insert(&key, 40);
        let held = until("its rows are held", 60, || {
            let all = letters(&scene);
            let open: Vec<_> = all.into_iter().filter(|l| l.status == "held").collect();
            (open.len() == 40).then_some(open)
        });
        let head = held[0].held_behind.expect("a head");
        heal(&scene);
        // From the end, the middle, anywhere: the release begins at the front.
        let mut order: Vec<_> = held.iter().map(|letter| letter.id).collect();
        for n in (1..order.len()).rev() {
            order.swap(n, dice.between(0, n as u64 + 1) as usize);
        }
        // From a few milliseconds before the release to its middle.
        let head_start = Duration::from_millis(dice.between(0, 8));
        let ready = Barrier::new(2);
        let won: Vec<i64> = thread::scope(|threads| {
            let other = threads.spawn(|| {
                let sql = Sql::new(scene.server.superuser(&scene.tag));
                sql.run("SELECT 1");
                ready.wait();
                let ignores = |id: &&i64| {
                    let ignore = format!("SELECT walpost.ignore({id}, 'race')");
                    sql.try_rows(&ignore).is_ok()
                };
                order.iter().filter(ignores).copied().collect()
            });
            ready.wait();
            thread::sleep(head_start);
            act(&scene, &format!("replay({head})"));
            other.join().expect("no panic")
        });
        until("all letters are closed", 60, || {
            let closed = |status: &String| status == "resolved" || status == "ignored";
            statuses(&scene).iter().all(closed).then_some(())
        });
        let all = letters(&scene);
        let events = |wanted: &str| -> Vec<String> {
            let of_round = all
                .iter()
                .filter(|l| l.status == wanted && held.iter().any(|h| h.id == l.id));
            of_round.map(|l| l.event_id.clone()).collect()
        };
        let given_up = events("ignored");
        assert_eq!(given_up.len(), won.len(), "who was told that he won did");
        (ignored, released) = (
            ignored + given_up.len(),
            released + events("resolved").len(),
        );
        let records = scene.records();
        assert!(
            records
                .iter()
                .all(|r| !given_up.contains(&r.event_id().to_owned())),
            "an ignored one was published"
        );
        let list = given_up
            .iter()
            .map(|id| format!("'{id}'"))
            .collect::<Vec<_>>()
            .join(", ");
        if !given_up.is_empty() {
            scene.sql.run(&format!(
                "DELETE FROM public.outbox WHERE event_id IN ({list})"
            ));
        }
        scene.insert(&key, 1);
        scene.judge_once(3);
    }
    println!("{ignored} ignored, {released} released");
    assert!(ignored > 0 && released > 0, "there was no race");
    assert_eq!(walpost.metric("walpost_held_keys", ""), Some(0.0));
    run.assert_alive();
}

#[test]
fn of_two_operators_at_once_one_acts_and_the_other_is_told_by_whom() {
    let scene = Scene::new();
    let walpost = small_topic(&scene);
    let mut run = scene.started(&walpost);
    large(&scene, "K");
    let [letter] = wait_statuses(&scene, &["pending"])
        .try_into()
        .expect("one letter");
    run.stop(0);
    let outcomes: Vec<Result<_, String>> = thread::scope(|threads| {
        let operators: Vec<_> = (0..6)
            .map(|n| {
                let (scene, id) = (&scene, letter.id);
                threads.spawn(move || {
                    let sql = Sql::new(scene.server.superuser(&scene.tag));
                    let call = if n % 2 == 0 {
                        format!("SELECT walpost.replay({id})")
                    } else {
                        format!("SELECT walpost.ignore({id}, 'mine')")
                    };
                    sql.try_rows(&call)
                        .map(drop)
                        .map_err(|error| explain(&error))
                })
            })
            .collect();
        operators
            .into_iter()
            .map(|o| o.join().expect("no panic"))
            .collect()
    });
    let lost: Vec<_> = outcomes.iter().filter_map(|o| o.as_ref().err()).collect();
    assert_eq!(lost.len(), 5, "{outcomes:?}");
    assert!(
        lost.iter().all(|text| text.contains("(by postgres at ")),
        "{lost:?}"
    );
    assert_eq!(
        scene.sql.number("SELECT count(*) FROM walpost.audit_log"),
        1
    );
}

#[test]
fn a_slot_that_is_lost_under_letters_on_their_way_keeps_their_order() {
    let scene = Scene::new();
    let mut walpost = patient(&scene);
    scene.create_topic("order", 1, &[("max.message.bytes", super::LIMIT)]);
    walpost.set("outbox.on_poison", "hold-key");
    walpost.init();
    let mut run = scene.started(&walpost);
    scene.insert("K", 1);
    large(&scene, "K");
    scene.insert("K", 3);
    scene.insert("L", 5);
    scene.insert_row(&[
        ("aggregate_id", "NULL"),
        (
            "payload",
            "jsonb_build_object('seq', 1, 'pad', repeat('x', 30000))",
        ),
    ]);
    scene.wait_confirmed(60);
    let all = wait_statuses(&scene, &["pending", "held", "held", "held", "pending"]);
    run.stop(0);
    for letter in [&all[0], &all[4]] {
        act(&scene, &format!("replay({})", letter.id));
    }
    scene.drop_slot();
    scene.insert("K", 2);
    scene.insert("L", 2);
    walpost.run_to_end().expect(4, &["walpost recover"]);
    heal(&scene);
    walpost.command(&["recover"]).expect(0, &[]);
    scene.insert("K", 1);
    let mut run = scene.started(&walpost);
    until("all letters are resolved", 60, || {
        let all = statuses(&scene);
        all.iter().all(|status| status == "resolved").then_some(())
    });
    scene.insert("K", 1);
    println!("{}", scene.judge(17));
    until("no key is held", 60, || {
        (walpost.metric("walpost_held_keys", "") == Some(0.0)).then_some(())
    });
    run.stop(0);
}

#[test]
fn recover_sends_no_letter_before_the_rows_of_the_table_are_out() {
    let scene = Scene::new();
    let mut walpost = patient(&scene);
    scene.create_topic("order", 1, &[("max.message.bytes", super::LIMIT)]);
    walpost.set("outbox.on_poison", "hold-key");
    walpost.init();
    let mut run = scene.started(&walpost);
    large(&scene, "K");
    scene.insert("K", 700);
    scene.wait_confirmed(60);
    until("the key's rows are held", 60, || {
        (statuses(&scene).len() == 701).then_some(())
    });
    run.stop(0);
    let head = letters(&scene)[0].id;
    act(&scene, &format!("replay({head})"));
    scene.drop_slot();
    scene.insert("K", 300);
    scene.insert("L", 300);
    heal(&scene);
    walpost.command(&["recover"]).expect(0, &[]);
    let resolved = |status: &&String| *status == "resolved";
    assert_eq!(statuses(&scene).iter().filter(resolved).count(), 0);
    assert_eq!(scene.kafka.count(&scene.topic("order")), Some(300));
    let mut run = scene.started(&walpost);
    until("all letters are resolved", 60, || {
        statuses(&scene)
            .iter()
            .all(|status| status == "resolved")
            .then_some(())
    });
    scene.judge(1301);
    run.stop(0);
}

/// A position has another length at every sixteenth of the log's first 4 GiB, and so on: of letters
/// that lie on both sides of such a place, those before it are released first.
#[test]
fn letters_are_released_in_the_order_of_the_log_however_long_their_positions_are() {
    let scene = Scene::new();
    let walpost = small_topic(&scene);
    let mut run = scene.started(&walpost);
    large(&scene, "K");
    scene.insert("K", 700);
    until("the key's rows are held", 60, || {
        (statuses(&scene).len() == 701).then_some(())
    });
    run.stop(0);
    // 0/1 to 0/2BD.
    scene.sql.run(
        "UPDATE walpost.dead_letter d SET position_lsn = pg_lsn '0/0' + o.place, position_ordinal = 1
         FROM (SELECT id, row_number() OVER (ORDER BY position_lsn, position_ordinal) AS place FROM walpost.dead_letter) o
         WHERE o.id = d.id",
    );
    heal(&scene);
    let head = letters(&scene)[0].id;
    act(&scene, &format!("replay({head})"));
    let mut run = scene.started(&walpost);
    until("all letters are resolved", 60, || {
        let all = statuses(&scene);
        all.iter().all(|status| status == "resolved").then_some(())
    });
    let seqs = seqs(&scene, "K");
    assert!(seqs.is_sorted(), "{seqs:?}");
    assert_eq!(seqs.len(), 701);
    run.stop(0);
}

//! A key is released while its rows keep coming.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use super::{act, heal, large, letters, seqs, small_topic};
use crate::harness::{Scene, Walpost, sql::Sql, until};

/// Rows of the key, about so many a second, for as long as the other end takes.
fn while_rows_come<T>(scene: &Scene, key: &str, per_second: u32, body: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            let sql = Sql::new(scene.server.superuser(&scene.tag));
            let mut next = Instant::now();
            while !done.load(Relaxed) {
                // Not all in transactions of their own.
                let count = 1 + next.elapsed().subsec_nanos() % 3;
                sql.run(&scene.rows(key, count.into(), 50));
                next += Duration::from_secs(1) * count / per_second;
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
        let result = body();
        done.store(true, Relaxed);
        result
    })
}

#[track_caller]
fn is_free(walpost: &Walpost, within: u64) {
    until("no key is held", within, || {
        (walpost.metric("walpost_held_keys", "") == Some(0.0)).then_some(())
    });
}

#[test]
fn a_hot_key_is_released_while_its_rows_come_and_is_free_then() {
    let scene = Scene::new();
    let walpost = small_topic(&scene);
    scene.create_topic("other", 1, &[]);
    let mut run = scene.started(&walpost);
    scene.insert("hot", 1);
    large(&scene, "hot");
    while_rows_come(&scene, "hot", 200, || {
        // More than a batch is held.
        until("a thousand rows are held", 60, || {
            (letters(&scene).len() > 1_000).then_some(())
        });
        heal(&scene);
        let head = letters(&scene)[0].clone();
        act(&scene, &format!("replay({})", head.id));
        // Others' rows don't wait for that.
        let other = [("aggregate_type", "'other'"), ("aggregate_id", "'o'")];
        scene.insert_row(&other);
        scene.kafka.wait(&scene.topic("other"), 1, 60);
        is_free(&walpost, 60);
        // From here on they come straight.
        let count = scene.sql.number("SELECT count(*) FROM public.outbox");
        until("its rows follow", 60, || {
            let arrived = scene.kafka.count(&scene.topic("order"))?;
            (arrived > count + 200).then_some(())
        });
    });
    scene.wait_confirmed(60);
    let all = seqs(&scene, "hot");
    assert!(
        all.iter().copied().eq(1..=all.len() as u64),
        "in order, once each"
    );
    scene.judge_once(1_200);
    let open = "SELECT count(*) FROM walpost.dead_letter WHERE status <> 'resolved'";
    assert_eq!(scene.sql.number(open), 0);
    run.assert_alive();
}

#[test]
fn a_hot_key_whose_head_is_ignored_is_free_then_too() {
    let scene = Scene::new();
    let walpost = small_topic(&scene);
    let mut run = scene.started(&walpost);
    scene.insert("hot", 1);
    let bad = large(&scene, "hot");
    while_rows_come(&scene, "hot", 200, || {
        until("some rows are held", 60, || {
            (letters(&scene).len() > 100).then_some(())
        });
        let head = letters(&scene)[0].clone();
        act(&scene, &format!("ignore({}, 'no good')", head.id));
        is_free(&walpost, 60);
    });
    scene.wait_confirmed(60);
    let all = seqs(&scene, "hot");
    assert!(
        all.iter()
            .copied()
            .eq([1].into_iter().chain(3..=all.len() as u64 + 1)),
        "{all:?}"
    );
    assert!(
        scene
            .records()
            .iter()
            .all(|record| record.event_id() != bad)
    );
    run.assert_alive();
}

#[test]
fn a_release_that_comes_to_another_bad_row_holds_the_key_behind_it() {
    let scene = Scene::new();
    let walpost = small_topic(&scene);
    let mut run = scene.started(&walpost);
    scene.insert("hot", 1);
    large(&scene, "hot");
    scene.insert("hot", 50);
    let second = large(&scene, "hot");
    scene.insert("hot", 50);
    while_rows_come(&scene, "hot", 50, || {
        until("all are held", 60, || {
            (letters(&scene).len() > 110).then_some(())
        });
        let head = letters(&scene)[0].clone();
        act(&scene, &format!("ignore({}, 'the first')", head.id));
        let second = until("the second one is the head", 60, || {
            let found = letters(&scene).into_iter().find(|l| l.event_id == second)?;
            (found.status == "dead").then_some(found)
        });
        until(
            "those between are published, those behind are not",
            60,
            || {
                let all = letters(&scene);
                let at = all.iter().position(|l| l.id == second.id)?;
                let before = all[1..at].iter().all(|l| l.status == "resolved");
                let behind = all[at + 1..]
                    .iter()
                    .all(|l| l.status == "held" && l.held_behind == Some(second.id));
                (before && behind && all.len() > at + 60).then_some(())
            },
        );
        assert_eq!(
            seqs(&scene, "hot"),
            [1].into_iter().chain(3..=52).collect::<Vec<_>>()
        );
        heal(&scene);
        act(&scene, &format!("replay({})", second.id));
        is_free(&walpost, 60);
    });
    scene.wait_confirmed(60);
    let all = seqs(&scene, "hot");
    assert!(
        all.iter()
            .copied()
            .eq([1].into_iter().chain(3..=all.len() as u64 + 1)),
        "{all:?}"
    );
    run.assert_alive();
}

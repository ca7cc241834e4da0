//! What one bad event does to the rows behind it, by `on_poison`, over restarts and a take-over.

use super::{act, heal, large, letters, seqs, small_topic, wait_statuses};
use crate::harness::{Run, Scene, Walpost, sql::quote, until};

/// Event 1 of key K, 2, which is too large, and 3, with events 1 to 100 of key L around; the event
/// ids of K.
fn one_bad_event(scene: &Scene) -> Vec<String> {
    let mut of_k = scene.insert("K", 1);
    scene.insert("L", 50);
    of_k.push(large(scene, "K"));
    of_k.extend(scene.insert("K", 1));
    scene.insert("L", 50);
    of_k
}

fn to(count: u64) -> Vec<u64> {
    (1..=count).collect()
}

/// Another publisher takes over from one that is killed.
#[track_caller]
fn take_over(scene: &Scene, run: &mut Run, twin: &Walpost) -> Run {
    let mut standby = twin.start();
    standby.wait_says("waiting|standby", 60);
    run.kill();
    let of = |text: &str| text.contains(&scene.tag);
    until("the standby has taken over", 60, || {
        standby.assert_alive();
        standby
            .log()
            .lines()
            .any(|line| line.contains("replication started") && of(line))
            .then_some(())
    });
    standby
}

#[test]
fn held_keys_survive_restart_and_take_over_and_are_released_in_order() {
    let scene = Scene::new();
    let walpost = small_topic(&scene);
    let twin = walpost.twin();
    scene.observe();
    let mut run = scene.started(&walpost);
    let mut of_k = one_bad_event(&scene);
    scene.wait_confirmed(60);
    assert_eq!((seqs(&scene, "K"), seqs(&scene, "L")), (to(1), to(100)));
    let kept = wait_statuses(&scene, &["pending", "held"]);
    assert_eq!(kept[1].held_behind, Some(kept[0].id));

    run.stop(0);
    let mut run = scene.started(&walpost);
    of_k.extend(scene.insert("K", 1));
    scene.insert("L", 1);
    scene.wait_confirmed(60);
    assert_eq!((seqs(&scene, "K"), seqs(&scene, "L")), (to(1), to(101)));

    let mut run = take_over(&scene, &mut run, &twin);
    of_k.extend(scene.insert("K", 1));
    scene.insert("L", 1);
    scene.wait_confirmed(60);
    assert_eq!((seqs(&scene, "K"), seqs(&scene, "L")), (to(1), to(102)));
    let kept = wait_statuses(&scene, &["pending", "held", "held", "held"]);
    assert!(kept[1..].iter().all(|l| l.held_behind == Some(kept[0].id)));
    assert_eq!(twin.metric("walpost_held_keys", ""), Some(1.0));
    assert_eq!(twin.metric("walpost_dead_letters", "held"), Some(3.0));

    // Still too large: it fails again, and the others wait on.
    act(&scene, &format!("replay({})", kept[0].id));
    wait_statuses(&scene, &["dead", "held", "held", "held"]);
    assert_eq!(seqs(&scene, "K"), to(1));
    heal(&scene);
    act(&scene, &format!("replay({})", kept[0].id));
    wait_statuses(&scene, &["resolved"; 4]);
    of_k.extend(scene.insert("K", 1));
    scene.judge_once(108);
    assert_eq!(seqs(&scene, "K"), to(6));
    let (positions, records) = (scene.positions(), scene.records());
    for (n, id) in of_k.iter().enumerate() {
        let record = records
            .iter()
            .find(|record| record.event_id() == id)
            .expect("it arrived");
        let from_letter = (1..5).contains(&n).then_some("dead-letter");
        assert_eq!(record.header("walpost_replay"), from_letter, "event {n}");
        let position = positions[id].to_string();
        assert_eq!(record.header("wal_position"), Some(position.as_str()));
    }
    until("no key is held", 60, || {
        (twin.metric("walpost_held_keys", "") == Some(0.0)).then_some(())
    });
    run.stop(0);
}

#[test]
fn ignoring_the_head_releases_those_behind_it_in_order() {
    let scene = Scene::new();
    let walpost = small_topic(&scene);
    let mut run = scene.started(&walpost);
    let of_k = one_bad_event(&scene);
    scene.insert("K", 3);
    // One in the middle is given up as well.
    let kept = wait_statuses(&scene, &["pending", "held", "held", "held", "held"]);
    act(&scene, &format!("ignore({}, 'in the middle')", kept[2].id));
    act(&scene, &format!("ignore({}, 'too large')", kept[0].id));
    wait_statuses(
        &scene,
        &["ignored", "resolved", "ignored", "resolved", "resolved"],
    );
    scene.insert("K", 1);
    scene.wait_confirmed(60);
    assert_eq!(seqs(&scene, "K"), [1, 3, 5, 6, 7]);
    assert!(
        scene
            .records()
            .iter()
            .all(|record| record.event_id() != of_k[1])
    );
    run.assert_alive();
}

#[test]
fn with_skip_later_rows_pass_over_restart_and_take_over() {
    let scene = Scene::new();
    let mut walpost = small_topic(&scene);
    walpost.set("outbox.on_poison", "skip");
    let twin = walpost.twin();
    let mut run = scene.started(&walpost);
    one_bad_event(&scene);
    scene.wait_confirmed(60);
    assert_eq!(
        (seqs(&scene, "K"), seqs(&scene, "L")),
        (vec![1, 3], to(100))
    );
    run.stop(0);
    let mut run = scene.started(&walpost);
    scene.insert("K", 1);
    scene.wait_confirmed(60);
    let mut run = take_over(&scene, &mut run, &twin);
    scene.insert("K", 1);
    scene.wait_confirmed(60);
    assert_eq!(seqs(&scene, "K"), [1, 3, 4, 5]);
    heal(&scene);
    let kept = wait_statuses(&scene, &["pending"]);
    act(&scene, &format!("replay({})", kept[0].id));
    wait_statuses(&scene, &["resolved"]);
    assert_eq!(seqs(&scene, "K"), [1, 3, 4, 5, 2]);
    assert_eq!(twin.metric("walpost_held_keys", ""), Some(0.0));
    run.stop(0);
}

#[test]
fn with_stop_it_ends_named_each_time_and_goes_on_once_the_cause_is_mended() {
    let scene = Scene::new();
    let mut walpost = small_topic(&scene);
    walpost.set("outbox.on_poison", "stop");
    scene.observe();
    let mut run = scene.started(&walpost);
    let of_k = one_bad_event(&scene);
    let position = scene.positions()[&of_k[1]].to_string();
    run.expect_end(5, &[&of_k[1], &position, "20000"], 60);
    assert_eq!((seqs(&scene, "K"), seqs(&scene, "L")), (to(1), to(50)));
    // A second one, which another publisher comes to.
    walpost
        .twin()
        .run_to_end()
        .expect(5, &[&of_k[1], &position]);
    assert!(letters(&scene).is_empty());
    assert_eq!(seqs(&scene, "K").iter().max(), Some(&1));
    heal(&scene);
    let mut run = scene.started(&walpost);
    scene.judge(103);
    run.stop(0);
}

#[test]
fn a_changed_policy_leaves_held_keys_held_until_they_are_released() {
    let scene = Scene::new();
    let mut walpost = small_topic(&scene);
    let mut run = scene.started(&walpost);
    one_bad_event(&scene);
    wait_statuses(&scene, &["pending", "held"]);
    run.stop(0);
    for policy in ["skip", "stop"] {
        walpost.set("outbox.on_poison", policy);
        let mut run = scene.started(&walpost);
        scene.insert("K", 1);
        scene.wait_confirmed(60);
        assert_eq!(seqs(&scene, "K"), to(1), "with {policy}");
        run.stop(0);
    }
    let kept = wait_statuses(&scene, &["pending", "held", "held", "held"]);
    heal(&scene);
    walpost.set("outbox.on_poison", "skip");
    let mut run = scene.started(&walpost);
    act(&scene, &format!("replay({})", kept[0].id));
    wait_statuses(&scene, &["resolved"; 4]);
    scene.judge_once(105);
    // From now on the new one.
    scene.kafka.configure(
        &scene.topic("order"),
        &[("max.message.bytes", super::LIMIT)],
    );
    large(&scene, "K");
    scene.insert("K", 1);
    wait_statuses(
        &scene,
        &["resolved", "resolved", "resolved", "resolved", "pending"],
    );
    scene.wait_confirmed(60);
    assert_eq!(seqs(&scene, "K"), [1, 2, 3, 4, 5, 7]);
    run.stop(0);

    // Under hold-key a letter that nothing waits behind yet holds its key too.
    walpost.set("outbox.on_poison", "hold-key");
    let mut run = scene.started(&walpost);
    scene.insert("K", 1);
    let kept = wait_statuses(
        &scene,
        &[
            "resolved", "resolved", "resolved", "resolved", "pending", "held",
        ],
    );
    act(&scene, &format!("ignore({}, 'enough')", kept[4].id));
    wait_statuses(
        &scene,
        &[
            "resolved", "resolved", "resolved", "resolved", "ignored", "resolved",
        ],
    );
    assert_eq!(seqs(&scene, "K"), [1, 2, 3, 4, 5, 7, 8]);
    run.stop(0);
}

#[test]
fn held_rows_beyond_the_bound_end_it_with_the_keys_that_have_the_most() {
    let scene = Scene::new();
    let mut walpost = small_topic(&scene);
    walpost.set("dead_letters.max_held_rows", 20);
    let mut run = scene.started(&walpost);
    for key in ["few", "many"] {
        large(&scene, key);
    }
    scene.insert("few", 2);
    scene.insert("many", 15);
    scene.insert("L", 10);
    scene.wait_confirmed(60);
    run.assert_alive();
    scene.insert("many", 10);
    run.expect_end(5, &["max_held_rows", "many", "few"], 60);
    let before = letters(&scene).len();
    assert!((20..=22).contains(&before), "{before} letters");
    // It ends so again, until somebody acts.
    walpost.run_to_end().expect(5, &["max_held_rows", "many"]);
    heal(&scene);
    scene
        .sql
        .run("SELECT walpost.replay(id) FROM walpost.dead_letter WHERE status = 'pending'");
    let mut run = scene.started(&walpost);
    scene.judge(39);
    run.stop(0);
}

#[test]
fn a_key_is_held_in_its_topic_and_table_alone() {
    let scene = Scene::new();
    let walpost = small_topic(&scene);
    scene.create_topic("parcel", 1, &[]);
    let _run = scene.started(&walpost);
    large(&scene, "K");
    scene.insert("K", 1);
    let other = scene.insert_row(&[("aggregate_type", "'parcel'"), ("aggregate_id", "'K'")]);
    // An empty key is a key.
    large(&scene, "");
    scene.insert("", 1);
    // And a row whose topic cannot be made holds the key for such rows alone.
    let nameless = [
        ("aggregate_type", &*quote(Some("a b"))),
        ("aggregate_id", "'N'"),
    ];
    scene.insert_row(&nameless);
    scene.insert_row(&nameless);
    scene.insert("N", 1);
    scene.wait_confirmed(60);
    let kept = wait_statuses(
        &scene,
        &["pending", "held", "pending", "held", "pending", "held"],
    );
    assert_eq!(
        (kept[4].topic.as_str(), kept[4].code.as_str()),
        ("", "topic_invalid")
    );
    let arrived = scene.records();
    assert_eq!(arrived.len(), 2);
    assert!(arrived.iter().any(|record| record.event_id() == other));
    assert_eq!(seqs(&scene, "N"), [3]);
}

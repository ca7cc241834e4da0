//! Marks, by which `recover` knows which rows precede a lost position: when they are written, and
//! which of them may go.

use crate::harness::{Scene, until};

fn marks(scene: &Scene) -> Vec<String> {
    scene
        .sql
        .column("SELECT lsn FROM walpost.mark ORDER BY lsn")
}

#[test]
fn each_minute_with_traffic_has_a_mark_and_an_idle_one_none() {
    let (idle, busy) = (Scene::new(), Scene::new());
    let start = |scene: &Scene| {
        let walpost = scene.ready(1);
        let run = scene.started(&walpost);
        until("the mark of the take-over", 60, || {
            (marks(scene).len() == 2).then_some(())
        });
        (walpost, run)
    };
    // The idle one's minute is over first.
    let (_idle, mut idle_run) = start(&idle);
    let before = marks(&idle);
    let (_busy, _busy_run) = start(&busy);
    busy.insert("a", 1);
    busy.wait_confirmed(60);
    until("a minute with traffic has a mark", 90, || {
        // Others write all the time, and the position moves.
        idle.sql
            .run("CREATE TABLE noise AS SELECT 1; DROP TABLE noise");
        (marks(&busy).len() == 3).then_some(())
    });
    assert_eq!(marks(&idle), before);
    idle.wait_confirmed(60);
    idle_run.assert_alive();
}

#[test]
fn old_marks_go_but_never_the_newest_that_every_slot_has_passed() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    let mut run = scene.started(&walpost);
    scene.insert("a", 2);
    scene.wait_confirmed(60);
    run.stop(0);
    let passed =
        "SELECT max(lsn) FROM walpost.mark WHERE lsn <= (SELECT confirmed_lsn FROM walpost.slot)";
    let passed = scene.sql.value(passed).expect("a mark below the position");
    // Of two months ago, and one too many of today. Another slot stands between them.
    scene.sql.run(
        "INSERT INTO walpost.mark SELECT '0/0'::pg_lsn + i, '3', now() - interval '60 days' FROM generate_series(1, 9) i;
         INSERT INTO walpost.mark SELECT '0/100'::pg_lsn + i, '3', now() FROM generate_series(1, 10100) i;
         INSERT INTO walpost.slot (slot, state, confirmed_lsn) VALUES ('other', 'ready', '0/5')",
    );
    let mut run = walpost.start();
    until("the first ones are gone", 60, || {
        (marks(&scene)[0] == "0/5").then_some(())
    });
    run.stop(0);
    let left = marks(&scene);
    // The other one still needs the mark at its own position.
    assert_eq!(left[..2], ["0/5", "0/6"]);
    assert!(left.len() > 10_100);
    scene
        .sql
        .run("DELETE FROM walpost.slot WHERE slot = 'other'");
    let _run = walpost.start();
    let left = until("the newest 10,000 are left", 60, || {
        let left = marks(&scene);
        (10_000..10_003).contains(&left.len()).then_some(left)
    });
    assert!(left.contains(&passed), "{passed} is gone");
    assert!(left[0].as_str() > "0/100");
}

#[test]
fn marks_that_came_from_another_cluster_do_not_outlive_a_new_slot() {
    let scene = Scene::new();
    let walpost = scene.ready(1);
    walpost.command(&["uninstall", "--yes"]).expect(0, &[]);
    // As an upgrade or a copy of the database brings them: ahead of this log, and of its numbers.
    let stale =
        "INSERT INTO walpost.mark VALUES (pg_current_wal_insert_lsn() + 10, '4000000000', now())";
    scene.sql.run(stale);
    walpost.init();
    assert_eq!(marks(&scene).len(), 1, "the slot's own alone");
    scene.insert("a", 2);
    scene.drop_slot();
    walpost
        .command(&["recover"])
        .expect(0, &["published 2 rows"]);
    // Those of another slot of this cluster are no stale ones.
    let before = marks(&scene);
    let mut other = walpost.twin();
    other.set("postgres.slot", format!("{}_b", scene.tag));
    other.init();
    assert!(before.iter().all(|mark| marks(&scene).contains(mark)));
}

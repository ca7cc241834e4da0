//! The publisher is killed at each place where something of a letter changes. Whoever comes next, the
//! same one or another that takes over, brings it to its end: nothing is lost, first arrivals are in
//! order, and what repeats is a suffix.

use super::{act, letters, patient, seqs, statuses};
use crate::harness::{
    Run, Scene, Walpost,
    kafka_server::Breakable,
    proxy::{Proxy, Side},
    until, uuid,
};

/// Words of each statement that changes a letter.
const PARK: &str = "INTO walpost.dead_letter AS d";
const DUE: &str = "status = 'pending' AND next_retry_at <=";
const TAKE: &str = "SET status = 'replaying', held_behind = NULL WHERE id = ANY";
const RESOLVE: &str = "SET status = 'resolved'";
const FAIL: &str = "SET status = $2, attempts = attempts + 1";
const HOLDS: &str = "SET held_behind = f.id";
const RETURN: &str = "SET status = 'held', held_behind = (";
const RETIRE: &str = "DELETE FROM walpost.dead_letter";
const CHANGES: [&str; 8] = [PARK, DUE, TAKE, RESOLVE, FAIL, HOLDS, RETURN, RETIRE];

/// What follows the commit of a write.
const WRITTEN: &str = "pg_current_wal_insert_lsn()::text";

/// The topic takes no record of so many bytes; an event's id is at the end of its record, and has to
/// come in one piece.
const LARGE: usize = 3_000;
const LIMIT: &str = "2000";

/// Where it is killed.
#[derive(Clone, Copy, Debug)]
enum At {
    /// Before or after a statement.
    Statement(&'static str, Side),
    /// Where the record of an event is sent to Kafka: before, or when the brokers have it.
    Event(Side),
}

struct Place<'a> {
    scene: Scene,
    /// Comes to the servers by ways that can be cut.
    walpost: Walpost,
    /// Comes straight.
    heir: Walpost,
    proxy: Proxy,
    kafka: &'a Breakable,
    run: Run,
}

impl<'a> Place<'a> {
    fn new(kafka: &'a Breakable) -> Place<'a> {
        let scene = Scene::behind(kafka);
        let proxy = Proxy::new(scene.server.socket_address());
        let mut walpost = patient(&scene);
        walpost
            .set(
                "postgres.url",
                scene.server.url_at("127.0.0.1", proxy.port, &scene.tag),
            )
            // Each record in a request of its own: some arrive and some do not.
            .set("kafka.properties.batch.num.messages", 1);
        let mut heir = walpost.twin();
        heir.set("postgres.url", scene.server.url(&scene.tag))
            .set("kafka.brokers", scene.kafka.brokers.as_str());
        scene.create_topic("order", 1, &[("max.message.bytes", LIMIT)]);
        walpost.init();
        let run = scene.started(&walpost);
        Place {
            scene,
            walpost,
            heir,
            proxy,
            kafka,
            run,
        }
    }

    /// Does something to a running publisher, which is killed when it comes to the place.
    #[track_caller]
    fn kill_at(&mut self, at: At, event: &str, act: impl FnOnce(&Scene)) {
        let (proxy, words, side) = match at {
            At::Statement(words, side) => (&self.proxy, words, side),
            At::Event(side) => (self.kafka.proxy(), event, side),
        };
        proxy.trap(words, side);
        act(&self.scene);
        until(format_args!("it comes to {at:?} ({words})"), 60, || {
            self.run.assert_alive();
            proxy.is_sprung().then_some(())
        });
        self.run.kill();
        proxy.reset_swallowed();
    }

    /// The next publisher, until all is as it has to be; then the first one again.
    #[track_caller]
    fn goes_on(&mut self, takes_over: Option<Run>) {
        match takes_over {
            None => self.run = self.scene.started(&self.walpost),
            Some(heir) => self.run = heir,
        }
        let scene = &self.scene;
        until("all letters are closed", 60, || {
            self.run.assert_alive();
            for letter in letters(scene) {
                if matches!(letter.status.as_str(), "pending" | "dead") {
                    // Perhaps somebody was faster.
                    let _ = scene
                        .sql
                        .try_rows(&format!("SELECT walpost.replay({})", letter.id));
                }
            }
            let closed = |status: &String| status == "resolved" || status == "ignored";
            statuses(scene).iter().all(closed).then_some(())
        });
        scene.insert("K", 1);
        scene.wait_confirmed(60);
    }

    /// The standby that takes over, if one does.
    fn standby(&self, takes_over: bool) -> Option<Run> {
        takes_over.then(|| {
            let mut standby = self.heir.start();
            standby.wait_says("waiting|standby", 60);
            standby
        })
    }

    fn limit(&self, bytes: &str) {
        self.scene
            .kafka
            .configure(&self.scene.topic("order"), &[("max.message.bytes", bytes)]);
    }

    /// A key with a letter and three rows behind it; the event ids of all.
    fn held(&self) -> Vec<String> {
        let scene = &self.scene;
        let closed = statuses(scene).len();
        let mut ids = scene.insert("K", 1);
        ids.extend(scene.sql.column(&scene.rows("K", 1, LARGE)));
        ids.extend(scene.insert("K", 3));
        scene.insert("L", 2);
        until("its rows are held", 60, || {
            let all = statuses(scene);
            (all[closed..] == ["pending", "held", "held", "held"]).then_some(())
        });
        ids
    }

    fn head(&self) -> i64 {
        let all = letters(&self.scene);
        let head = all.iter().find(|letter| letter.status == "pending");
        head.expect("a head").id
    }
}

/// Each place, met by a restart and by a take-over, in one scene after the other.
fn at_each(places: &[At], mut once: impl FnMut(&mut Place, At, bool)) {
    let kafka = Breakable::take();
    let mut place = Place::new(&kafka);
    for takes_over in [false, true] {
        for at in places {
            println!(
                "{at:?}, {}",
                if takes_over {
                    "a take-over"
                } else {
                    "a restart"
                }
            );
            place.limit(LIMIT);
            once(&mut place, *at, takes_over);
            println!("  {}", place.scene.judge(6));
            if takes_over {
                place.run.stop(0);
                place.run = place.scene.started(&place.walpost);
            }
        }
    }
    // Everything that changes a letter is among the places.
    let seen = place.proxy.statements();
    let changes = |text: &&String| {
        text.contains("walpost.dead_letter")
            && ["INSERT", "UPDATE", "DELETE"]
                .iter()
                .any(|word| text.contains(word))
    };
    let is_known = |text: &String| {
        CHANGES.iter().any(|words| text.contains(words)) || text.contains("FOR UPDATE")
    };
    let missed: Vec<_> = seen
        .iter()
        .filter(changes)
        .filter(|text| !is_known(text))
        .collect();
    assert!(missed.is_empty(), "nothing was killed at {missed:?}");
}

#[test]
fn killed_around_the_commit_of_a_letter_and_around_its_settlement() {
    use Side::{After, Before};
    let places = [
        At::Statement(PARK, Before),
        At::Statement(PARK, After),
        // Committed, and not settled yet.
        At::Statement(WRITTEN, Before),
        At::Statement(WRITTEN, After),
    ];
    at_each(&places, |place, at, takes_over| {
        let standby = place.standby(takes_over);
        let closed = statuses(&place.scene).len();
        place.kill_at(at, "", |scene| {
            scene.insert("K", 1);
            scene.sql.run(&scene.rows("K", 1, LARGE));
            scene.insert("K", 3);
            scene.insert("L", 2);
        });
        let before = seqs(&place.scene, "K").into_iter().max();
        place.limit("1000000");
        // Here the large one may go straight, if no letter of it was committed.
        place.goes_on(standby);
        let all = statuses(&place.scene);
        assert!(all.len() - closed <= 4, "{all:?}");
        assert!(before.is_some());
    });
}

#[test]
fn killed_while_a_key_is_released() {
    use Side::{After, Before};
    let places = [
        // The call was heard, and not answered yet.
        At::Statement(DUE, Before),
        At::Statement(DUE, After),
        At::Statement(TAKE, Before),
        At::Statement(TAKE, After),
        At::Event(Before),
        At::Event(After),
        At::Statement(RESOLVE, Before),
        At::Statement(RESOLVE, After),
        // Resolved, and not settled yet.
        At::Statement(WRITTEN, Before),
        At::Statement(WRITTEN, After),
    ];
    at_each(&places, |place, at, takes_over| {
        let ids = place.held();
        place.limit("1000000");
        let standby = place.standby(takes_over);
        let head = place.head();
        // The head.
        place.kill_at(at, &ids[1], |scene| {
            act(scene, &format!("replay({head})"));
        });
        place.goes_on(standby);
        let of_k = seqs(&place.scene, "K");
        assert!(of_k.last() == of_k.iter().max(), "{of_k:?}");
    });
}

#[test]
fn killed_while_those_behind_the_head_are_released_and_handed_over() {
    use Side::{After, Before};
    let places = [
        At::Statement(TAKE, Before),
        At::Statement(TAKE, After),
        At::Event(Before),
        At::Event(After),
        At::Statement(RESOLVE, Before),
        At::Statement(RESOLVE, After),
        At::Statement(WRITTEN, Before),
    ];
    at_each(&places, |place, at, takes_over| {
        let ids = place.held();
        let standby = place.standby(takes_over);
        let head = place.head();
        // With the head ignored the rest is one batch, and its last one. In its middle:
        place.kill_at(at, &ids[3], |scene| {
            act(scene, &format!("ignore({head}, 'too large')"));
            scene.insert("K", 2);
        });
        place.limit("1000000");
        // What is given up is owed to nobody.
        place.scene.sql.run(&format!(
            "DELETE FROM public.outbox WHERE event_id = '{}'",
            ids[1]
        ));
        place.goes_on(standby);
    });
}

#[test]
fn killed_after_a_key_is_forgotten_with_a_row_behind_its_letters() {
    let places = [At::Event(Side::Before), At::Event(Side::After)];
    at_each(&places, |place, at, takes_over| {
        place.held();
        place.limit("1000000");
        let standby = place.standby(takes_over);
        let head = place.head();
        let event = uuid();
        place.kill_at(at, &event, |scene| {
            act(scene, &format!("replay({head})"));
            let held = || {
                scene
                    .sql
                    .number("SELECT count(*) FROM walpost.dead_letter WHERE status = 'held'")
            };
            until("all are on their way", 60, || (held() == 0).then_some(()));
            scene.insert_row(&[("event_id", &format!("'{event}'")), ("aggregate_id", "'K'")]);
        });
        place.goes_on(standby);
    });
}

#[test]
fn killed_while_a_letter_fails_again() {
    use Side::{After, Before};
    let places = [
        At::Statement(FAIL, Before),
        At::Statement(FAIL, After),
        At::Statement(HOLDS, Before),
        At::Statement(HOLDS, After),
        At::Statement(WRITTEN, Before),
        At::Event(Before),
        At::Event(After),
    ];
    at_each(&places, |place, at, takes_over| {
        let ids = place.held();
        let standby = place.standby(takes_over);
        let head = place.head();
        // It is still too large.
        place.kill_at(at, &ids[1], |scene| {
            act(scene, &format!("replay({head})"));
        });
        let of_k = seqs(&place.scene, "K");
        place.limit("1000000");
        place.goes_on(standby);
        assert!(seqs(&place.scene, "K").starts_with(&of_k));
    });
}

#[test]
fn killed_while_those_behind_a_second_bad_one_go_back() {
    use Side::{After, Before};
    let places = [
        At::Statement(FAIL, Before),
        At::Statement(FAIL, After),
        At::Statement(RETURN, Before),
        At::Statement(RETURN, After),
        At::Statement(WRITTEN, Before),
    ];
    at_each(&places, |place, at, takes_over| {
        let ids = place.held();
        // A second one among those that are held.
        let scene = &place.scene;
        scene.sql.run(&scene.rows("K", 1, LARGE));
        scene.insert("K", 3);
        let held = || {
            statuses(&place.scene)
                .iter()
                .filter(|s| *s == "held")
                .count()
        };
        until("they are held too", 60, || (held() == 7).then_some(()));
        let standby = place.standby(takes_over);
        let head = place.head();
        place.kill_at(at, "", |scene| {
            act(scene, &format!("ignore({head}, 'too large')"));
        });
        place.limit("1000000");
        place.scene.sql.run(&format!(
            "DELETE FROM public.outbox WHERE event_id = '{}'",
            ids[1]
        ));
        place.goes_on(standby);
    });
}

#[test]
fn a_call_that_is_lost_and_one_that_comes_while_it_is_down_are_answered_all_the_same() {
    let kafka = Breakable::take();
    let mut place = Place::new(&kafka);
    place.held();
    place.limit("1000000");
    let head = place.head();
    // Without the message that wakes it up.
    place.scene.sql.run(&format!(
        "UPDATE walpost.dead_letter SET status = 'replaying' WHERE id = {head}"
    ));
    until("it looks by itself", 60, || {
        let all = statuses(&place.scene);
        all.iter().all(|status| status == "resolved").then_some(())
    });
    place.limit(LIMIT);
    place.held();
    place.limit("1000000");
    place.run.kill();
    act(&place.scene, &format!("replay({})", place.head()));
    place.goes_on(None);
    println!("{}", place.scene.judge(10));
}

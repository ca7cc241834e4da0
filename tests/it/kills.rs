//! Killed at each place where something changes: between any two statements that do, and while
//! records are sent. Whatever was left behind, the next command makes it whole.

use crate::harness::{
    Run, Scene, Walpost,
    kafka_server::Breakable,
    proxy::{Proxy, Side},
    until,
};

/// Words of each statement of `init` that changes something, in their order.
const INIT: &[&str] = &[
    "CREATE TABLE public.outbox",
    "CREATE PUBLICATION",
    "CREATE SCHEMA walpost",
    "SET version = 2",
    "SET version = 3",
    "SET version = 4",
    "SET version = 5",
    "SET version = 6",
    "WHERE slot <> $1 AND system_identifier",
    "INTO walpost.slot AS s (slot, state) VALUES",
    "INTO walpost.mark",
    "CREATE_REPLICATION_SLOT",
    "INTO walpost.slot AS s (slot, state, system_identifier",
];

/// The same for what publishes the table's rows then, and where it begins to read them.
const ROWS: &[&str] = &["SET TRANSACTION SNAPSHOT", "COPY (SELECT", READY];
const READY: &str = "SET state = 'ready', confirmed_lsn";

/// The second attempt says that it is one.
const AGAIN: &str = "SET life = life + 1, updated_at";

const DROP: &str = "pg_drop_replication_slot";

const RECOVER: &[&str] = &[
    "SET state = 'backfilling', life",
    DROP,
    "INTO walpost.mark",
    "CREATE_REPLICATION_SLOT",
    "INTO walpost.slot AS s (slot, state, system_identifier",
];

const TAKE_OVER: &[&str] = &[
    "hashtext('walpost.slot')",
    "hashtext('walpost'), ",
    "SET epoch = epoch + 1",
    "INTO walpost.mark",
    "START_REPLICATION",
];

const SIDES: [Side; 2] = [Side::Before, Side::After];

/// A scene whose publisher comes to PostgreSQL, and to Kafka, by ways that can be cut.
struct Place<'a> {
    scene: Scene,
    walpost: Walpost,
    proxy: Proxy,
    kafka: &'a Breakable,
}

impl<'a> Place<'a> {
    fn new(kafka: &'a Breakable) -> Place<'a> {
        let scene = Scene::behind(kafka);
        let proxy = Proxy::new(scene.server.socket_address());
        let mut walpost = scene.walpost();
        let url = scene.server.url_at("127.0.0.1", proxy.port, &scene.tag);
        // Event ids are to be seen on the wire.
        walpost
            .set("postgres.url", url)
            .set("kafka.properties.compression.type", "none")
            // There are many of them.
            .set("postgres.status_interval", "100ms");
        scene.create_topic("order", 1, &[]);
        Place {
            scene,
            walpost,
            proxy,
            kafka,
        }
    }

    fn kill_at(&self, command: &[&str], words: &str, side: Side) {
        self.proxy.trap(words, side);
        self.kill(command, &self.proxy, words);
    }

    /// Where a record with this event is sent.
    fn kill_at_event(&self, command: &[&str], id: &str, side: Side) {
        self.kafka.proxy().trap(id, side);
        self.kill(command, self.kafka.proxy(), id);
    }

    fn kill(&self, command: &[&str], at: &Proxy, words: &str) {
        let mut victim: Run = self.walpost.spawn(command);
        until(format_args!("{command:?} comes to {words:?}"), 60, || {
            if at.is_sprung() {
                return Some(());
            }
            victim.assert_alive();
            None
        });
        victim.kill();
        at.reset_swallowed();
    }

    fn state(&self) -> Option<String> {
        let has = "SELECT to_regclass('walpost.slot')";
        self.scene.sql.value(has)?;
        self.scene.sql.value("SELECT state FROM walpost.slot")
    }

    /// Everything that changes something was among the places.
    fn is_whole(&self, places: &[&[&str]]) {
        let changes = [
            "INSERT INTO",
            "UPDATE walpost",
            "DELETE FROM",
            "CREATE",
            "DROP",
            "ALTER",
            "pg_drop_replication_slot",
            "REPLICATION_SLOT",
            "START_REPLICATION",
        ];
        let known = |text: &str| {
            places
                .iter()
                .any(|list| list.iter().any(|words| text.contains(words)))
        };
        let seen = self.proxy.statements();
        // What becomes of letters has tests of its own.
        let of_letters =
            |text: &str| text.contains("walpost.dead_letter") || text.contains("walpost.audit_log");
        let missed: Vec<_> = seen
            .iter()
            .filter(|text| changes.iter().any(|word| text.contains(word)))
            .filter(|text| !known(text) && !of_letters(text))
            .collect();
        assert!(
            !seen.is_empty() && missed.is_empty(),
            "nothing was killed at {missed:?}"
        );
    }

    /// One slot, and it is ready.
    fn is_ready(&self) {
        assert_eq!(self.state().as_deref(), Some("ready"));
        let text = format!(
            "SELECT slot_name FROM pg_replication_slots WHERE database = '{}'",
            self.scene.tag
        );
        assert_eq!(self.scene.sql.column(&text), [self.scene.tag.as_str()]);
    }
}

/// Before each of these places, and after the last one: after one is before the next.
fn each(lists: &[&[&'static str]]) -> impl Iterator<Item = (&'static str, Side)> {
    let places = lists.concat();
    let last = places.last().map(|words| (*words, Side::After));
    let before = places.into_iter().map(|words| (words, Side::Before));
    before.chain(last)
}

#[test]
fn init_killed_at_any_of_its_changes_is_made_whole_by_the_next_on_every_version() {
    let kafka = Breakable::take();
    let init = ["init", "--create-table"];
    for (words, side) in each(&[INIT]) {
        println!("{side:?} {words:?}");
        let place = Place::new(&kafka);
        let (scene, walpost) = (&place.scene, &place.walpost);
        place.kill_at(&init, words, side);
        // The slot is all that an event needs, once it is ready.
        let mut wanted = Vec::new();
        match place.state().as_deref() {
            Some("ready") => wanted.extend(scene.insert("a", 1)),
            _ => {
                let is_half_a_schema = words.starts_with("SET version") || words.contains("SCHEMA");
                let refused = walpost.run_to_end();
                let code = if is_half_a_schema && refused.code == Some(2) {
                    2
                } else {
                    4
                };
                refused.expect(code, &["walpost init"]);
            }
        }
        walpost.command(&init).expect(0, &[]);
        place.is_ready();
        place.is_whole(&[INIT, &[DROP]]);
        let _run = scene.started(walpost);
        wanted.extend(scene.insert("a", 2));
        scene.wait_confirmed(60);
        let arrived = scene.records();
        let arrived: Vec<_> = arrived.iter().map(|record| record.event_id()).collect();
        assert_eq!(arrived, wanted, "killed {side:?} {words:?}");
    }
}

#[test]
fn init_with_existing_rows_killed_at_any_place_misses_none_of_them_on_every_version() {
    let kafka = Breakable::take();
    let init = ["init", "--include-existing"];
    let finish = |place: &Place, killed: &str| {
        let (scene, walpost) = (&place.scene, &place.walpost);
        scene.insert("a", 1);
        if place.state().as_deref() != Some("ready") {
            walpost.run_to_end().expect(4, &["walpost init"]);
        }
        walpost.command(&init).expect(0, &[]);
        place.is_ready();
        place.is_whole(&[INIT, ROWS, &[AGAIN, DROP]]);
        let _run = scene.started(walpost);
        scene.insert("a", 1);
        println!("{killed}: {}", scene.judge(5));
    };
    let with_rows = || {
        let place = Place::new(&kafka);
        place.scene.create_table("jsonb");
        let ids = place.scene.insert("a", 3);
        (place, ids)
    };
    // What comes before is what `init` without them does too.
    for (words, side) in each(&[&INIT[INIT.len() - 2..], ROWS]) {
        let (place, _) = with_rows();
        place.kill_at(&init, words, side);
        finish(&place, &format!("{side:?} {words:?}"));
    }
    for side in SIDES {
        let (place, _) = with_rows();
        place.kill_at(&init, "CREATE_REPLICATION_SLOT", Side::After);
        place.kill_at(&init, DROP, side);
        finish(&place, &format!("{side:?} a half-made slot was dropped"));
    }
    for side in SIDES {
        let (place, ids) = with_rows();
        place.kill_at_event(&init, &ids[1], side);
        assert_eq!(place.state().as_deref(), Some("backfilling"));
        // And the next one as well.
        place.kill_at(&init, AGAIN, side);
        finish(
            &place,
            &format!("{side:?} the second row was sent, and again"),
        );
    }
}

#[test]
fn recover_killed_at_any_place_misses_nothing_on_every_version() {
    let kafka = Breakable::take();
    let finish = |place: &Place, killed: &str| {
        let (scene, walpost) = (&place.scene, &place.walpost);
        scene.insert("a", 1);
        if place.state().as_deref() != Some("ready") || killed.contains(RECOVER[0]) {
            walpost.run_to_end().expect(4, &["walpost recover"]);
        }
        walpost.command(&["recover"]).expect(0, &[]);
        place.is_ready();
        place.is_whole(&[RECOVER, ROWS, &[AGAIN]]);
        let _run = scene.started(walpost);
        scene.insert("a", 1);
        println!("{killed}: {}", scene.judge(7));
    };
    // Two rows published, two not, then somebody makes the slot anew, and one more.
    let with_gap = || {
        let place = Place::new(&kafka);
        let (scene, walpost) = (&place.scene, &place.walpost);
        walpost.init();
        let mut run = scene.started(walpost);
        scene.insert("a", 2);
        scene.wait_confirmed(60);
        run.stop(0);
        let mut late = scene.insert("a", 2);
        scene.drop_slot();
        scene.sql.run(&format!(
            "SELECT pg_create_logical_replication_slot('{}', 'pgoutput')",
            scene.tag
        ));
        late.extend(scene.insert("a", 1));
        (place, late)
    };
    for (words, side) in each(&[RECOVER, ROWS]) {
        let (place, _) = with_gap();
        place.kill_at(&["recover"], words, side);
        finish(&place, &format!("{side:?} {words:?}"));
    }
    for side in SIDES {
        let (place, late) = with_gap();
        place.kill_at_event(&["recover"], &late[1], side);
        assert_eq!(place.state().as_deref(), Some("backfilling"));
        place.kill_at(&["recover"], AGAIN, side);
        finish(
            &place,
            &format!("{side:?} the second row was sent, and again"),
        );
    }
}

#[test]
fn a_publisher_killed_while_it_takes_over_leaves_all_to_the_next_on_every_version() {
    let kafka = Breakable::take();
    let finish = |place: &Place, killed: &str| {
        let (scene, walpost) = (&place.scene, &place.walpost);
        let _run = scene.started(walpost);
        scene.insert("a", 1);
        println!("{killed}: {}", scene.judge(7));
    };
    // Its predecessor was killed too, with rows that nobody heard of.
    let with_rows = || {
        let place = Place::new(&kafka);
        let (scene, walpost) = (&place.scene, &place.walpost);
        walpost.init();
        let mut run = scene.started(walpost);
        scene.insert("a", 3);
        scene.wait_confirmed(60);
        run.kill();
        let ids = scene.insert("a", 3);
        (place, ids)
    };
    for (words, side) in each(&[TAKE_OVER]) {
        let (place, _) = with_rows();
        place.kill_at(&["run"], words, side);
        finish(&place, &format!("{side:?} {words:?}"));
    }
    for side in SIDES {
        let (place, ids) = with_rows();
        place.kill_at_event(&["run"], &ids[1], side);
        finish(&place, &format!("{side:?} the second row was sent"));
    }
}

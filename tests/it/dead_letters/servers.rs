//! Servers that stop in each state of a letter, and a slot that goes back below resolved ones.

use super::{LIMIT, Letter, act, heal, large, letters, patient, seqs, wait_statuses};
use crate::harness::{
    Run, Scene, Walpost, kafka_server::KafkaServer, pass, postgres::Cluster, until,
};

/// What becomes of the servers.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A fast shutdown, with its checkpoint.
    Postgres,
    /// No checkpoint: the slot may go back.
    PostgresCrash,
    Kafka,
    Publisher,
}

struct Place {
    scene: Scene,
    walpost: Walpost,
    run: Run,
    cluster: Cluster,
    broker: KafkaServer,
}

impl Place {
    /// A key with a letter, three rows behind it, and others around.
    fn new() -> Place {
        let cluster = Cluster::start("checkpoint_timeout = '1h'");
        let broker = KafkaServer::start();
        let scene = Scene::on(cluster.server.clone(), broker.kafka.clone());
        scene.create_topic("order", 1, &[("max.message.bytes", LIMIT)]);
        let mut walpost = patient(&scene);
        walpost.set("kafka.properties.reconnect.backoff.max.ms", 500);
        walpost.init();
        let run = scene.started(&walpost);
        let mut place = Place {
            scene,
            walpost,
            run,
            cluster,
            broker,
        };
        place.scene.insert("K", 2);
        large(&place.scene, "K");
        place.scene.insert("L", 5);
        place.scene.insert("K", 3);
        wait_statuses(&place.scene, &["pending", "held", "held", "held"]);
        place.run.assert_alive();
        place
    }

    fn strike(&mut self, fault: Fault) {
        println!("{fault:?}");
        match fault {
            Fault::Postgres => {
                self.cluster.stop();
                self.cluster.restart();
            }
            Fault::PostgresCrash => {
                self.cluster.crash();
                self.cluster.restart();
            }
            Fault::Kafka => {
                self.broker.kill();
                pass(500);
                self.broker.restart();
            }
            Fault::Publisher => {
                self.run.kill();
                until("the slot is free", 60, || {
                    self.scene.slot()?.active_pid.is_none().then_some(())
                });
                self.run = self.scene.started(&self.walpost);
            }
        }
    }

    fn head(&self) -> Letter {
        letters(&self.scene)[0].clone()
    }

    /// Everything is released, arrived, and nobody's last word is an old one.
    #[track_caller]
    fn comes_to_an_end(&mut self) {
        let scene = &self.scene;
        until("all letters are resolved", 60, || {
            let all = letters(scene);
            for letter in all
                .iter()
                .filter(|l| matches!(l.status.as_str(), "pending" | "dead"))
            {
                // Perhaps somebody was faster.
                let _ = scene
                    .sql
                    .try_rows(&format!("SELECT walpost.replay({})", letter.id));
            }
            all.iter().all(|l| l.status == "resolved").then_some(())
        });
        scene.insert("K", 1);
        println!("{}", scene.judge(12));
        until("no key is held", 60, || {
            (self.walpost.metric("walpost_held_keys", "") == Some(0.0)).then_some(())
        });
        self.run.assert_alive();
    }
}

const FAULTS: [Fault; 4] = [
    Fault::Postgres,
    Fault::PostgresCrash,
    Fault::Kafka,
    Fault::Publisher,
];

#[test]
fn servers_that_stop_while_rows_are_held_lose_and_reorder_nothing() {
    let mut place = Place::new();
    for fault in FAULTS {
        place.strike(fault);
        place.scene.insert("K", 1);
        place.scene.insert("L", 1);
        until("the other key flows", 60, || {
            place.run.assert_alive();
            let last = seqs(&place.scene, "L").into_iter().max()?;
            (last as i64
                == place
                    .scene
                    .sql
                    .number("SELECT count(*) FROM public.outbox WHERE aggregate_id = 'L'"))
            .then_some(())
        });
        let of_k = seqs(&place.scene, "K");
        assert!(of_k.iter().all(|seq| *seq <= 2), "{fault:?}: {of_k:?}");
    }
    heal(&place.scene);
    act(&place.scene, &format!("replay({})", place.head().id));
    place.comes_to_an_end();
}

#[test]
fn servers_that_stop_while_letters_are_replayed_lose_and_reorder_nothing() {
    let mut place = Place::new();
    for fault in FAULTS {
        heal(&place.scene);
        let head = letters(&place.scene)
            .into_iter()
            .rev()
            .find(|l| l.status == "pending");
        act(
            &place.scene,
            &format!("replay({})", head.expect("a head").id),
        );
        place.strike(fault);
        place.comes_to_an_end();
        // And once more.
        place
            .scene
            .kafka
            .configure(&place.scene.topic("order"), &[("max.message.bytes", LIMIT)]);
        large(&place.scene, "K");
        place.scene.insert("K", 40);
        until("its rows are held", 60, || {
            let all = letters(&place.scene);
            (all.iter().filter(|l| l.status == "held").count() == 40).then_some(())
        });
    }
}

#[test]
fn a_replay_that_is_asked_for_while_kafka_is_away_is_done_when_it_is_back() {
    let mut place = Place::new();
    heal(&place.scene);
    place.broker.kill();
    let head = place.head();
    assert_eq!(
        act(&place.scene, &format!("replay({})", head.id)),
        "replaying"
    );
    pass(2_000);
    assert_eq!(place.head().attempts, 0, "an outage spends no attempt");
    assert_eq!(place.head().status, "replaying");
    place.broker.restart();
    place.comes_to_an_end();
}

#[test]
fn a_slot_that_goes_back_below_resolved_letters_repeats_only_a_suffix() {
    let mut place = Place::new();
    // Here the server saves where the slot stands.
    place.scene.wait_confirmed(60);
    place.scene.sql.run("CHECKPOINT");
    for round in 0..3 {
        heal(&place.scene);
        let head = letters(&place.scene)
            .into_iter()
            .rev()
            .find(|l| l.status == "pending");
        act(
            &place.scene,
            &format!("replay({})", head.expect("a head").id),
        );
        place.comes_to_an_end();
        place.scene.insert("K", 2);
        place.scene.wait_confirmed(60);
        let before = place.scene.confirmed();
        place.run.stop(0);
        place.cluster.crash();
        place.cluster.restart();
        let after = place.scene.confirmed();
        assert!(
            after < before,
            "round {round}: the slot did not go back, {before} to {after}"
        );
        place.run = place.scene.started(&place.walpost);
        place.comes_to_an_end();
        let statuses = letters(&place.scene);
        assert!(
            statuses.iter().all(|l| l.status == "resolved"),
            "{statuses:?}"
        );
        // The next one, with the key held while rows are read again.
        place
            .scene
            .kafka
            .configure(&place.scene.topic("order"), &[("max.message.bytes", LIMIT)]);
        large(&place.scene, "K");
        place.scene.insert("K", 3);
        place.scene.insert("L", 1);
        place.scene.wait_confirmed(60);
        place.run.kill();
        place.cluster.crash();
        place.cluster.restart();
        place.run = place.scene.started(&place.walpost);
        place.scene.wait_confirmed(60);
        // The large ones of earlier rounds are refused again, where they are read again.
        let open = letters(&place.scene)
            .into_iter()
            .find(|l| l.status != "resolved");
        assert_eq!(open.map(|l| l.status).as_deref(), Some("pending"));
    }
}

//! Two publishers under load, and whoever publishes is hit again and again: the other takes over,
//! and what both left in Kafka is as promised.

use std::{collections::HashMap, iter};

use rustix::process::Signal;

use crate::harness::{
    Dice, Run, Scene, Walpost,
    kafka_server::Breakable,
    load::{Load, Plan},
    pass,
    proxy::Proxy,
    records::Record,
    terms::{Judged, Terms, reveal},
    until,
};

/// The server takes a client that is silent for so long for dead.
const PATIENCE: &str = "3s";

/// No publisher has more rows on their way.
const IN_FLIGHT: usize = 300;
const FEW: usize = 50;

/// How the publisher is hit.
#[derive(Clone, Copy, Debug)]
enum Hit {
    Stopped,
    Killed,
    Paused,
    CutOff,
}

const HITS: [Hit; 4] = [Hit::Stopped, Hit::Killed, Hit::Paused, Hit::CutOff];

/// A publisher and its two wires.
struct Publisher {
    walpost: Walpost,
    postgres: Proxy,
    kafka: Breakable,
    run: Run,
    /// How often it said that it publishes, in its processes before this one.
    before: usize,
}

impl Publisher {
    fn new(scene: &Scene, walpost: Walpost, kafka: Breakable) -> Publisher {
        Publisher::with_rows_in_flight(IN_FLIGHT, scene, walpost, kafka)
    }

    fn with_rows_in_flight(
        rows: usize,
        scene: &Scene,
        mut walpost: Walpost,
        kafka: Breakable,
    ) -> Publisher {
        let postgres = Proxy::new(scene.server.socket_address());
        let url = scene.server.url_at("127.0.0.1", postgres.port, &scene.tag);
        walpost
            .set("postgres.url", url)
            .set("postgres.receive_timeout", "3s")
            .set("kafka.brokers", kafka.proxy().address())
            .set("delivery.in_flight_rows", rows);
        reveal(&mut walpost);
        let run = walpost.start();
        Publisher {
            walpost,
            postgres,
            kafka,
            run,
            before: 0,
        }
    }

    fn began(&self) -> usize {
        self.before + self.run.log().matches("replication started").count()
    }

    fn again(&mut self) {
        self.before = self.began();
        self.run = self.walpost.start();
    }

    fn hit(&mut self, hit: Hit) {
        match hit {
            Hit::Stopped => self.run.stop(0),
            Hit::Killed => self.run.kill(),
            Hit::Paused => self.run.signal(Signal::STOP),
            Hit::CutOff => {
                self.postgres.swallow();
                self.kafka.proxy().swallow();
            }
        }
    }

    fn comes_back(&mut self, hit: Hit) {
        match hit {
            Hit::Stopped | Hit::Killed => self.again(),
            Hit::Paused => self.run.signal(Signal::CONT),
            Hit::CutOff => {
                for proxy in [&self.postgres, self.kafka.proxy()] {
                    proxy.forward();
                    proxy.reset_swallowed();
                }
            }
        }
    }

    fn waits(&mut self) -> bool {
        self.run.assert_alive();
        self.walpost.get("/api/status").is_some_and(|(_, body)| {
            let status: serde_json::Value = serde_json::from_str(&body).expect("JSON");
            status["role"] == "standby"
        })
    }
}

#[test]
fn twenty_take_overs_under_load_lose_and_disorder_nothing() {
    let (way, other_way) = (Breakable::take(), Breakable::take());
    let scene = Scene::behind(&way);
    scene.publisher_setting("wal_sender_timeout", &format!("'{PATIENCE}'"));
    scene.create_topic("order", 3, &[("message.timestamp.type", "LogAppendTime")]);
    let walpost = scene.walpost();
    walpost.init();
    let twin = walpost.twin();
    let mut both = [
        Publisher::new(&scene, walpost, way),
        Publisher::new(&scene, twin, other_way),
    ];
    let load = Load::start(
        &scene,
        &Plan {
            keys: 12,
            pause: 10,
            ..Plan::default()
        },
    );
    let mut dice = Dice::new();
    for hit in hits(&mut dice) {
        let holder = until("one publishes and one waits", 60, || {
            scene.slot()?.active_pid?;
            let waits = [both[0].waits(), both[1].waits()];
            (waits[0] != waits[1]).then_some(usize::from(waits[0]))
        });
        pass(dice.between(0, 500));
        let before = both[1 - holder].began();
        both[holder].hit(hit);
        until(format_args!("{hit:?}: the other takes over"), 60, || {
            both[1 - holder].run.assert_alive();
            (both[1 - holder].began() > before).then_some(())
        });
        // What was paused or cut off comes back late, with what it still had.
        pass(dice.between(0, 500));
        both[holder].comes_back(hit);
    }
    load.stop();
    scene.wait_confirmed(60);

    let judged = judged(&scene, &both);
    let verdict = &judged.verdict;
    assert!(verdict.is_clean(), "{verdict}");
    assert!(verdict.committed > 1_000, "too few events: {verdict}");
    assert!(judged.take_overs >= 20, "{}", judged.take_overs);
    assert!(
        judged.most <= IN_FLIGHT,
        "one publisher repeated {} rows late: {}",
        judged.most,
        judged.whose
    );
}

/// Much lies in its buffers in front of the end of its stream, and its next check is far away.
#[test]
fn a_publisher_whose_session_was_ended_sends_no_more_once_another_took_over() {
    let (way, other_way) = (Breakable::take(), Breakable::take());
    let scene = Scene::behind(&way);
    scene.create_topic("order", 1, &[("message.timestamp.type", "LogAppendTime")]);
    let mut walpost = scene.walpost();
    walpost.init();
    let twin = walpost.twin();
    walpost.set("postgres.status_interval", "2s");
    let mut first = Publisher::with_rows_in_flight(FEW, &scene, walpost, way);
    first.walpost.wait_ready();
    let mut second = Publisher::new(&scene, twin, other_way);
    until("the other one waits", 60, || second.waits().then_some(()));
    // Five times a second as many as may be on their way.
    first.kafka.proxy().delay(100);
    scene.insert("a", 30_000);
    until("it publishes", 60, || {
        let rows = first.walpost.metric("walpost_in_flight_rows", "")?;
        (rows == FEW as f64).then_some(())
    });
    let walsender = scene.walsender();
    scene
        .sql
        .run(&format!("SELECT pg_terminate_backend({walsender})"));
    until("the other one takes over", 60, || {
        (second.began() > 0).then_some(())
    });
    until("it waits", 60, || first.waits().then_some(()));
    first.kafka.proxy().forward();
    scene.wait_confirmed(60);
    let both = [first, second];
    let judged = judged(&scene, &both);
    let verdict = &judged.verdict;
    assert!(verdict.is_clean(), "{verdict}");
    assert!(
        judged.most <= FEW,
        "{} rows late: {}",
        judged.most,
        judged.whose
    );
}

/// Of all that is in the topic of orders.
fn judged(scene: &Scene, both: &[Publisher; 2]) -> Judged {
    let topic = scene.topic("order");
    let batches = HashMap::from([(topic.clone(), both[0].kafka.batches(&topic))]);
    let terms = Terms::read(&both.each_ref().map(|one| &one.walpost), batches);
    let stamped = |record: &Record| (record.arrived(), record.timestamp.unwrap_or_default());
    let arrived: Vec<_> = scene.records().iter().map(stamped).collect();
    let judged = terms.judge(&scene.committed(), &arrived, |_| false);
    println!(
        "{} take-overs: {}, {} late, at most {} of one publisher at a time",
        judged.take_overs, judged.verdict, judged.late, judged.most
    );
    judged
}

/// Five of each, in any order.
fn hits(dice: &mut Dice) -> Vec<Hit> {
    let mut hits: Vec<Hit> = HITS
        .into_iter()
        .flat_map(|h| iter::repeat_n(h, 5))
        .collect();
    for n in (1..hits.len()).rev() {
        hits.swap(n, dice.between(0, n as u64 + 1) as usize);
    }
    hits
}

//! What a run takes place in, thrown by its seed: servers of its own, wires that can be broken, the
//! publisher's settings.

use std::collections::HashMap;

use super::kinds::Kinds;
use crate::harness::{
    Dice, Scene, Walpost,
    kafka_server::KafkaServer,
    load::{Kind, Load, Plan},
    postgres::Cluster,
    proxy::Proxy,
    terms::{Terms, reveal},
};

pub struct World {
    // In the order in which they go.
    /// One, or two with the same settings.
    pub walposts: Vec<Walpost>,
    pub scene: Scene,
    /// Each publisher's own.
    pub wires: Vec<Wires>,
    pub broker: KafkaServer,
    pub cluster: Cluster,
    /// No publisher has more rows on their way.
    pub in_flight: usize,
    /// What was thrown, for people.
    pub described: String,
}

pub struct Wires {
    pub kafka: Proxy,
    pub postgres: Proxy,
}

/// Every kind; the frequent ones more than once.
const KINDS: &[Kind] = &[
    Kind::Plain,
    Kind::Plain,
    Kind::Plain,
    Kind::Plain,
    Kind::Multi,
    Kind::Multi,
    Kind::Rollback,
    Kind::Rollback,
    Kind::Savepoint,
    Kind::Savepoint,
    Kind::Copy,
    Kind::Prepared,
    Kind::Prepared,
    Kind::Long,
    Kind::Bulk,
    Kind::Large,
    Kind::Keyless,
    Kind::Foreign,
    Kind::Messages,
    Kind::Hasty,
    Kind::Hasty,
    Kind::Poison,
    Kind::Poison,
    Kind::Alter,
];

/// Payloads of this type go up to just below the client's own limit of 1,000,000 bytes a message.
pub const WIDE: &str = "order";
/// Payloads of this type go up to just below the topic's limit, so its batches are over it.
pub const TIGHT: &str = "parcel";
const TIGHT_LIMIT: &str = "60000";
/// Texts that this topic does not take.
const TOO_LONG: (&str, u64) = (TIGHT, 90_000);
const TYPES: &[(&str, u64)] = &[(WIDE, 995_000), (WIDE, 20_000), (TIGHT, 55_000)];
pub const KEYS: u64 = 24;

/// A silent client is given up after this, by either side.
const PATIENCE: &str = "5s";

impl World {
    /// `roomy`: many rows may be on their way, whatever the dice say.
    pub fn new(kinds: Kinds, roomy: bool, dice: &mut Dice) -> World {
        let cluster = Cluster::start(&format!(
            "wal_sender_timeout = '{PATIENCE}'\ncheckpoint_timeout = '30s'\nlogical_decoding_work_mem = '64kB'\n"
        ));
        let (broker, proxies) = KafkaServer::proxied(if kinds.take_overs { 2 } else { 1 });
        let wires = |kafka| Wires {
            kafka,
            postgres: Proxy::new(cluster.server.socket_address()),
        };
        let wires: Vec<Wires> = proxies.into_iter().map(wires).collect();
        let scene = Scene::on(cluster.server.clone(), broker.kafka.clone());
        let partitions = dice.between(1, 7);
        for kind in [WIDE, TIGHT] {
            scene.create_topic(kind, partitions.cast_signed() as i32, &topic_settings(kind));
        }

        let mut walpost = scene.walpost();
        let rows = *dice.pick(&[20_000_u64, 20_000, 1_000, 50]);
        let bytes = *dice.pick(&["16MiB", "16MiB", "2MiB"]);
        let (rows, bytes) = if roomy {
            (20_000, "16MiB")
        } else {
            (rows, bytes)
        };
        let codec = *dice.pick(&["lz4", "none", "zstd"]);
        let linger = *dice.pick(&["5", "0", "50"]);
        walpost
            .set("postgres.receive_timeout", PATIENCE)
            .set(
                "outbox.on_poison",
                if kinds.poison { "hold-key" } else { "stop" },
            )
            // Soon dead, most of them.
            .set(
                "dead_letters.retry_after",
                ["1s", "4s"].map(str::to_owned).to_vec(),
            )
            .set("dead_letters.max_held_rows", 10_000_000)
            .set("delivery.in_flight_rows", rows)
            .set("delivery.in_flight_bytes", bytes)
            .set("delivery.shutdown_grace", "3s")
            .set("kafka.properties.compression.type", codec)
            .set("kafka.properties.linger.ms", linger)
            .set("kafka.properties.socket.timeout.ms", "10000");
        walpost.environment("WALPOST_DEAD_LETTERS__GUARD__COUNT", "1000000");
        reveal(&mut walpost);
        let by = |wires: &Wires| {
            let mut walpost = walpost.twin();
            let port = wires.postgres.port;
            walpost
                .set(
                    "postgres.url",
                    scene.server.url_at("127.0.0.1", port, &scene.tag),
                )
                .set("kafka.brokers", wires.kafka.address());
            walpost
        };
        let walposts: Vec<Walpost> = wires.iter().map(by).collect();
        walposts[0].init();
        scene.observe();
        World {
            described: format!(
                "{partitions} partitions, {rows} rows and {bytes} in flight, compression {codec}, linger {linger} ms"
            ),
            cluster,
            in_flight: usize::try_from(rows).expect("a small number"),
            broker,
            wires,
            scene,
            walposts,
        }
    }

    pub fn load(scene: &Scene, kinds: Kinds, dice: &mut Dice) -> Load {
        let plan = Plan {
            writers: 7,
            keys: KEYS,
            pause: 30,
            // As long as the run.
            kinds: kinds.of(KINDS).leak(),
            types: TYPES,
            too_long: TOO_LONG,
            seed: Some(dice.next()),
            ..Plan::default()
        };
        Load::start(scene, &plan)
    }
}

/// Who published when, as it is known now.
pub fn terms(walposts: &[Walpost], scene: &Scene, broker: &KafkaServer) -> Terms {
    let topics = [WIDE, TIGHT].map(|kind| scene.topic(kind));
    let batches = topics.map(|topic| (topic.clone(), broker.batches(&topic)));
    let walposts: Vec<&Walpost> = walposts.iter().collect();
    Terms::read(&walposts, HashMap::from(batches))
}

/// From now on the topic of tight limits takes what was too long, or does not any more; `false`: the
/// broker is away.
pub fn widen(scene: &Scene, wide: bool) -> bool {
    let mut settings = topic_settings(TIGHT);
    if wide {
        settings.retain(|(name, _)| *name != "max.message.bytes");
        settings.push(("max.message.bytes", "200000"));
    }
    scene
        .kafka
        .try_configure(&scene.topic(TIGHT), &settings)
        .is_ok()
}

/// With the broker's own time at each record: it tells whether a record was there at a moment.
pub fn topic_settings(kind: &str) -> Vec<(&'static str, &'static str)> {
    let limit = if kind == TIGHT {
        TIGHT_LIMIT
    } else {
        "3000000"
    };
    vec![
        ("message.timestamp.type", "LogAppendTime"),
        ("max.message.bytes", limit),
    ]
}

/// The type of a key's rows.
pub fn kind_of(key: u64) -> &'static str {
    TYPES[(key % TYPES.len() as u64) as usize].0
}

//! What a run takes place in, thrown by its seed: servers of its own, wires that can be broken, the
//! publisher's settings.

use crate::harness::{
    Dice, Scene, Walpost,
    kafka_server::KafkaServer,
    load::{Kind, Load, Plan},
    postgres::Cluster,
    proxy::Proxy,
};

pub struct World {
    // In the order in which they go.
    pub walpost: Walpost,
    pub scene: Scene,
    pub kafka_wire: Proxy,
    pub postgres_wire: Proxy,
    pub broker: KafkaServer,
    pub cluster: Cluster,
    /// What was thrown, for people.
    pub described: String,
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
    Kind::Alter,
];

/// Payloads of this type go up to just below the client's own limit of 1,000,000 bytes a message.
pub const WIDE: &str = "order";
/// Payloads of this type go up to just below the topic's limit, so its batches are over it.
pub const TIGHT: &str = "parcel";
const TIGHT_LIMIT: &str = "60000";
const TYPES: &[(&str, u64)] = &[(WIDE, 995_000), (WIDE, 20_000), (TIGHT, 55_000)];
pub const KEYS: u64 = 24;

/// A silent client is given up after this, by either side.
const PATIENCE: &str = "5s";

impl World {
    pub fn new(dice: &mut Dice) -> World {
        let cluster = Cluster::start(&format!(
            "wal_sender_timeout = '{PATIENCE}'\ncheckpoint_timeout = '30s'\nlogical_decoding_work_mem = '64kB'\n"
        ));
        let (broker, kafka_wire) = KafkaServer::proxied();

        let postgres_wire = Proxy::new(cluster.server.socket_address());
        let mut scene = Scene::on(cluster.server.clone(), broker.kafka.clone());
        scene.brokers = kafka_wire.address();
        let partitions = dice.between(1, 7);
        for kind in [WIDE, TIGHT] {
            scene.create_topic(kind, partitions.cast_signed() as i32, &topic_settings(kind));
        }

        let mut walpost = scene.walpost();
        let rows = *dice.pick(&[20_000_u64, 20_000, 1_000, 50]);
        let bytes = *dice.pick(&["16MiB", "16MiB", "2MiB"]);
        let codec = *dice.pick(&["lz4", "none", "zstd"]);
        let linger = *dice.pick(&["5", "0", "50"]);
        let url = scene
            .server
            .url_at("127.0.0.1", postgres_wire.port, &scene.tag);
        walpost
            .set("postgres.url", url)
            .set("postgres.receive_timeout", PATIENCE)
            .set("delivery.in_flight_rows", rows)
            .set("delivery.in_flight_bytes", bytes)
            .set("delivery.shutdown_grace", "3s")
            .set("kafka.properties.compression.type", codec)
            .set("kafka.properties.linger.ms", linger)
            .set("kafka.properties.socket.timeout.ms", "10000")
            .environment("WALPOST_LOG_LEVEL", "debug");
        walpost.init();
        scene.observe();
        World {
            described: format!(
                "{partitions} partitions, {rows} rows and {bytes} in flight, compression {codec}, linger {linger} ms"
            ),
            cluster,
            broker,
            postgres_wire,
            kafka_wire,
            scene,
            walpost,
        }
    }

    pub fn load(scene: &Scene, dice: &mut Dice) -> Load {
        let plan = Plan {
            writers: 7,
            keys: KEYS,
            pause: 30,
            kinds: KINDS,
            types: TYPES,
            seed: Some(dice.next()),
            ..Plan::default()
        };
        Load::start(scene, &plan)
    }
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

//! The last act, in calm: a row that cannot be delivered. Under the policy `stop` it ends the
//! publisher at its place, and when the limit that it broke is raised, everything arrives.

use super::{
    evidence::Evidence,
    history::History,
    keeper::Keeper,
    kinds::Kinds,
    observer::Observed,
    world::{self, Wires, topic_settings},
};
use crate::harness::{
    Dice, Scene, Walpost,
    load::{noise, rows},
};

/// What refuses the row.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Refuser {
    /// The client library, before anything is sent: `message.max.bytes`.
    Client,
    /// The broker, for the topic's limit, and with it whatever is in the same batch.
    Topic,
}

/// How long the publisher may take to find out.
const FOUND_WITHIN: u64 = 40;

/// `walpost` is one publisher, and `wires` its own.
pub fn poison(
    scene: &Scene,
    walpost: &mut [Walpost],
    wires: &[Wires],
    observed: &mut Observed,
    history: &History,
    dice: &mut Dice,
) {
    let refuser = *dice.pick(&[Refuser::Client, Refuser::Topic]);
    let (kind, length) = match refuser {
        Refuser::Client => (world::WIDE, 1_200_000),
        Refuser::Topic => (world::TIGHT, 90_000),
    };
    history.note("poison", &format!("to be refused by: {refuser:?}"));
    walpost[0].set("outbox.on_poison", "stop");
    let is_backlog = *dice.pick(&[true, false]);
    let none = Kinds::none();
    let mut keeper = Keeper::new(scene, walpost, wires, none, history);
    if !is_backlog {
        keeper.start_all();
    }
    let id = write(scene, kind, length, dice);
    if is_backlog {
        keeper.start_all();
    }
    let Some(log) = keeper.wait_end(5, FOUND_WITHIN) else {
        return;
    };
    if !log.contains(&id) {
        history.found(
            "poison",
            None,
            format!("it does not name event {id}:\n{log}"),
        );
    }
    observed.decoder.finish();
    let position = observed.decoder.positions[&id];
    if scene.confirmed() > position.commit {
        let text = format!("the slot passed event {id} at {position}, which was refused");
        history.found("slot ahead", None, text);
    }
    let evidence = Evidence::gather(scene);
    // Other topics and partitions may have got theirs before it was found out.
    if let Some(record) = evidence.of_key_from(&id) {
        let text = format!("event {id} at {position} was refused, but behind it arrived {record}");
        history.found("poison passed", None, text);
    }

    match refuser {
        Refuser::Client => {
            walpost[0].set("kafka.properties.message.max.bytes", 2_000_000);
        }
        Refuser::Topic => {
            let mut settings = topic_settings(kind);
            settings.retain(|(name, _)| *name != "max.message.bytes");
            settings.push(("max.message.bytes", "200000"));
            scene.kafka.configure(&scene.topic(kind), &settings);
        }
    }
    let mut keeper = Keeper::new(scene, walpost, wires, none, history);
    keeper.start_all();
    observed.drain(scene, &mut keeper, history);
    keeper.stop_drained();
}

/// Rows of all keys, the one that is too long, and rows of all keys behind it; its id.
fn write(scene: &Scene, kind: &str, length: u64, dice: &mut Dice) -> String {
    let keys: Vec<u64> = (0..world::KEYS).collect();
    let of_kind = |key: &u64| world::kind_of(*key) == kind;
    let candidates: Vec<u64> = keys.iter().copied().filter(of_kind).collect();
    let key = *dice.pick(&candidates);
    let some = |dice: &mut Dice| {
        for _ in 0..30 {
            let key = *dice.pick(&keys);
            scene.sql.run(&rows(key, world::kind_of(key), 1, "x"));
        }
    };
    some(dice);
    let too_long = rows(key, kind, 1, &noise(dice, length));
    let id = scene.sql.value(&too_long).expect("an id");
    scene.sql.run(&rows(key, kind, 3, "behind"));
    some(dice);
    id
}

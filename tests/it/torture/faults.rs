//! Harm to the servers and to the wires. Each has a thread and dice of its own: what it decides
//! depends on the seed alone, not on how long the others take.

use rustix::process::Signal;

use super::history::History;
use crate::harness::{
    Dice, Scene, kafka_server::KafkaServer, postgres::Cluster, proxy::Proxy, sql::Sql,
};

/// Calm between two faults of one part, in ms.
const CALM: (u64, u64) = (1_500, 12_000);

fn calm(history: &History, dice: &mut Dice) -> bool {
    let mut goes_on = history.pass(dice.between(CALM.0, CALM.1));
    while goes_on && history.is_truce() {
        goes_on = history.pass(100);
    }
    goes_on
}

pub fn broker(broker: &mut KafkaServer, history: &History, mut dice: Dice) {
    const ME: &str = "broker";
    while calm(history, &mut dice) {
        let hold = *dice.pick(&[0, 500, 2_000, 6_000]);
        match dice.between(0, 6) {
            0..2 => {
                history.fault(ME, "killed", &format!(", down for {hold} ms"));
                broker.kill();
                history.pass(hold);
                broker.restart();
            }
            2 => {
                history.fault(ME, "stopped", &format!(", down for {hold} ms"));
                broker.stop();
                history.pass(hold);
                broker.restart();
            }
            _ => {
                let hold = dice.between(100, 8_000);
                history.fault(ME, "frozen", &format!(" for {hold} ms"));
                broker.freeze();
                history.pass(hold);
                broker.thaw();
            }
        }
        history.note(ME, "well again");
    }
}

pub fn postgres(cluster: &mut Cluster, scene: &Scene, history: &History, mut dice: Dice) {
    const ME: &str = "postgresql";
    let sql = Sql::new(scene.server.superuser(&scene.tag));
    let walsender = || -> Option<i64> {
        let query = format!(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{}'",
            scene.tag
        );
        sql.try_rows(&query).ok()?.first()?[0]
            .as_deref()?
            .parse()
            .ok()
    };
    while calm(history, &mut dice) {
        let hold = *dice.pick(&[0, 0, 700, 4_000]);
        let down = format!(", down for {hold} ms");
        match dice.between(0, 10) {
            0 => {
                history.fault(ME, "restarted fast", &down);
                let took = cluster.stop();
                history.note(ME, &format!("the shutdown took {} ms", took.as_millis()));
                history.pass(hold);
                cluster.restart();
            }
            1 => {
                history.fault(ME, "restarted immediately", &down);
                cluster.crash();
                history.pass(hold);
                cluster.restart();
            }
            2 => {
                history.fault(ME, "killed", &down);
                cluster.kill();
                history.pass(hold);
                cluster.restart();
            }
            // The server takes all its processes down and recovers by itself.
            3 => {
                history.fault(ME, "walsender killed", "");
                if let Some(pid) = walsender() {
                    cluster.signal(pid, Signal::KILL);
                }
            }
            4..6 => {
                history.fault(ME, "walsender terminated", "");
                if let Some(pid) = walsender() {
                    cluster.signal(pid, Signal::TERM);
                }
            }
            6..8 => {
                let hold = dice.between(100, 8_000);
                history.fault(ME, "walsender frozen", &format!(" for {hold} ms"));
                if let Some(pid) = walsender() {
                    cluster.signal(pid, Signal::STOP);
                    history.pass(hold);
                    cluster.signal(pid, Signal::CONT);
                }
            }
            8 => {
                let hold = dice.between(100, 7_000);
                history.fault(ME, "frozen", &format!(" for {hold} ms"));
                cluster.freeze();
                history.pass(hold);
                cluster.thaw();
            }
            // Positions are saved, and the next crash goes back to here.
            _ => {
                history.fault(ME, "checkpoint", "");
                let _ = sql.try_rows("CHECKPOINT; SELECT pg_switch_wal()");
            }
        }
        history.note(ME, "well again");
    }
}

pub fn wire(name: &str, proxy: &Proxy, history: &History, mut dice: Dice) {
    while calm(history, &mut dice) {
        // What was swallowed last time has hung long enough. After the last time nobody helps.
        proxy.reset_swallowed();
        let hold = dice.between(200, 7_000);
        let time = format!(" for {hold} ms");
        match dice.between(0, 10) {
            0..2 => {
                history.fault(name, "reset", "");
                proxy.reset();
            }
            2 => {
                history.fault(name, "refusing", &time);
                proxy.refuse();
                history.pass(hold);
            }
            3..5 => {
                history.fault(name, "swallowing", &time);
                proxy.swallow();
                history.pass(hold);
            }
            5 => {
                history.fault(name, "stalled", &time);
                proxy.delay(60_000);
                history.pass(hold);
            }
            6..8 => {
                let late = dice.between(5, 400);
                history.fault(name, "late", &format!(" by {late} ms{time}"));
                proxy.delay(late);
                history.pass(hold);
            }
            _ => {
                let rate = *dice.pick(&[20_000, 200_000, 1_000_000]);
                history.fault(name, "throttled", &format!(" to {rate} bytes/s{time}"));
                proxy.throttle(rate);
                history.pass(hold);
            }
        }
        proxy.forward();
        history.note(name, "well again");
    }
}

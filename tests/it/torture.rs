//! Random faults for a given time and seed, then one verdict. `scripts/torture` runs it.
//!
//! What is done to whom, and in which order, is decided by the seed alone: each part has a thread
//! and dice of its own. Only how it falls in time differs from run to run.

mod evidence;
mod faults;
mod finale;
mod harm;
mod history;
mod keeper;
mod kinds;
mod letters;
mod observer;
mod operator;
mod publication;
mod report;
mod slot_loss;
mod table;
mod world;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::{Duration, Instant},
};

use self::{
    evidence::Evidence,
    history::History,
    keeper::Keeper,
    kinds::Kinds,
    observer::Observed,
    report::Report,
    world::{TIGHT, WIDE, World},
};
use crate::harness::{Dice, Scene, sql::Sql};

/// No process of the publisher ever has more resident, in bytes.
const MEMORY: u64 = 128 << 20;

#[test]
#[ignore = "a minute and more of random faults; scripts/torture runs it"]
fn torture() {
    let report = run(None);
    assert!(report.is_clean(), "the promise was broken, see above");
}

/// Each deliberate fault of the publisher is found, or the torture proves nothing.
#[cfg(feature = "faults")]
#[test]
#[ignore = "minutes of random faults; scripts/torture --prove runs it"]
fn prove() {
    use walpost::faults::{CONFIRM_BEFORE_DELIVERY, CONFIRM_KEEPALIVES, DROP_OUTCOME};
    for fault in [CONFIRM_BEFORE_DELIVERY, CONFIRM_KEEPALIVES, DROP_OUTCOME] {
        println!("\ndeliberate fault: {fault}");
        let report = run(Some(fault));
        // One that gets stuck is noticed by anybody: that proves nothing.
        assert!(!report.has("not drained"), "{fault} is no such fault");
        let is_found = report.has("slot ahead") || report.has("lost");
        assert!(is_found, "{fault} was not found: the torture is blind");
        println!("deliberate fault {fault}: found, as it must be");
    }
}

/// A setting of the run; the names don't begin with `WALPOST_`, which the publisher would refuse.
fn setting(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}: {text:?} is no number")),
        Err(_) => default,
    }
}

/// One run, told as it goes. `deliberate` is a fault that the publisher has in it.
fn run(deliberate: Option<&str>) -> Report {
    let (seed, seconds) = (setting("TORTURE_SEED", 1), setting("TORTURE_SECONDS", 60));
    println!("seed {seed}, {seconds} s");
    let kinds = Kinds::wanted();
    let mut dice = Dice::from_seed(seed);
    // Where few rows may be on their way, nothing is received once they are, and hardly anything can
    // be confirmed too early.
    let roomy = deliberate.is_some();
    let mut world = World::new(kinds, roomy, &mut dice.fork());
    println!("  {}", world.described);
    if let Some(fault) = deliberate {
        for walpost in &mut world.walposts {
            walpost.environment("FAULT", fault);
        }
    }
    let history = History::new();
    let World {
        walposts,
        scene,
        wires,
        broker,
        cluster,
        in_flight,
        ..
    } = &mut world;
    let (scene, wires, in_flight) = (&*scene, &*wires, *in_flight);
    let mut observed = Observed::of(scene);
    let load = World::load(scene, kinds, &mut dice.fork());
    let mut keeper = Keeper::new(scene, walposts, wires, kinds, &history);
    thread::scope(|threads| {
        let history = &history;
        let (samples, decoder) = (&mut observed.samples, &mut observed.decoder);
        let mut part = |act: Box<dyn FnOnce(Dice) + Send>| {
            let dice = dice.fork();
            threads.spawn(move || guard(history, || act(dice)));
        };
        part(Box::new(|dice| keeper.keep(dice)));
        part(Box::new(|dice| faults::broker(broker, history, dice)));
        part(Box::new(|dice| {
            faults::postgres(cluster, scene, history, dice);
        }));
        for (n, wires) in wires.iter().enumerate() {
            for (wire, server) in [(&wires.kafka, "kafka"), (&wires.postgres, "postgresql")] {
                let name = format!("wire {} to {server}", n + 1);
                part(Box::new(move |dice| {
                    faults::wire(&name, wire, history, dice)
                }));
            }
        }
        if kinds.poison {
            part(Box::new(|dice| letters::operate(scene, history, dice)));
        }
        part(Box::new(|_| observer::sample(scene, history, samples)));
        part(Box::new(|_| decoder.follow(history)));
        watch(scene, history, seconds);
    });
    println!("  faults lifted");
    load.stop();
    let drained = observed.drain(scene, &mut keeper, &history);
    let mut kept = 0;
    if kinds.poison {
        kept = letters::close(scene, &mut keeper, &history);
        observed.drain(scene, &mut keeper, &history);
    }
    keeper.wait_roles();
    keeper.stop_drained();
    let (peak, starts, gaps) = (keeper.peak, keeper.starts, keeper.gaps);
    if peak > MEMORY {
        let text = format!("a process had {} MiB resident", peak >> 20);
        history.found("memory", None, text);
    }
    if deliberate.is_none() {
        let (walpost, wires) = (&mut walposts[..1], &wires[..1]);
        finale::poison(scene, walpost, wires, &mut observed, &history, &mut dice);
    }
    observed.decoder.finish();
    let evidence = Evidence::gather(scene);
    let terms = world::terms(walposts, scene, broker);
    let judged = evidence.judge(&observed, &history, &terms, &gaps);
    // Letters on their way are as many more.
    let in_flight = if kinds.poison {
        2 * in_flight
    } else {
        in_flight
    };
    if judged.most > in_flight {
        let text = format!(
            "{} records of one publisher came after it was superseded, and no more than {in_flight} may be on their way; {}",
            judged.most, judged.whose
        );
        history.found("late repeats", None, text);
    }
    let verdict = &judged.verdict;
    let report = Report {
        findings: history.take_findings(),
        figures: format!(
            "seed {seed}, {seconds} s: {} committed, {} received, {} repeated, {} of them late, {} recovered; {} left out by the publication; \
             {kept} dead letters, {} ignored; \
             {} faults, {starts} starts of publishers, {} streams, {} take-overs, {} new producers; drained in {drained:.1} s; \
             {} samples of the slot; peak {} MiB",
            verdict.committed,
            verdict.arrived,
            verdict.repeats,
            judged.late,
            evidence.recovered,
            evidence.count_left_out(&observed),
            evidence.count_ignored(),
            history.counts().values().sum::<usize>(),
            report::told(walposts, "replication started"),
            terms.take_overs(),
            report::told(walposts, "new producer;"),
            observed.samples.len(),
            peak >> 20,
        ),
    };
    report.print(&history, walposts, &evidence, seed);
    report
}

/// A thread that cannot go on ends the run.
fn guard(history: &History, act: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(act)) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        history.found("harness", None, text.unwrap_or("a panic").to_owned());
    }
}

/// Tells how it goes until the time is over.
fn watch(scene: &Scene, history: &History, seconds: u64) {
    let began = Instant::now();
    let sql = Sql::new(scene.server.superuser(&scene.tag));
    let unknown = || "?".to_owned();
    while began.elapsed() < Duration::from_secs(seconds) && history.pass(1_000 * seconds.min(10)) {
        let count = sql.try_rows("SELECT count(*) FROM public.outbox").ok();
        let committed = count.and_then(|rows| rows.into_iter().next()?.into_iter().next()?);
        let topics = [WIDE, TIGHT].map(|kind| scene.kafka.count(&scene.topic(kind)));
        let received: Option<i64> = topics.into_iter().sum();
        println!(
            "  {:>4} s  {} committed, {} records in Kafka, {} faults",
            began.elapsed().as_secs(),
            committed.unwrap_or_else(unknown),
            received.map_or_else(unknown, |count| count.to_string()),
            history.counts().values().sum::<usize>(),
        );
    }
    history.end();
}

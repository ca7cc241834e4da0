//! Random faults for a given time and seed, then one verdict. `scripts/torture` runs it.
//!
//! Environment: `TORTURE_SECONDS` and `TORTURE_SEED`.

mod evidence;
mod faults;
mod finale;
mod history;
mod keeper;
mod observer;
mod world;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::{Duration, Instant},
};

use walpost::verdict::Verdict;

use self::{
    evidence::Evidence,
    history::{Finding, History},
    keeper::Keeper,
    observer::{Decoder, Sample, sample, sample_once},
    world::{TIGHT, WIDE, World},
};
use crate::harness::{Dice, Scene, sql::Sql};

/// After all faults the publisher has everything confirmed within this.
const DRAINS_WITHIN: Duration = Duration::from_secs(120);

/// No process of the publisher ever has more resident.
const MEMORY: u64 = 128 << 20;

/// What happened this close to a violation is part of its story, in ms.
const STORY: i64 = 12_000;

#[test]
#[ignore = "a minute and more of random faults; scripts/torture runs it"]
fn torture() {
    let outcome = run(
        number("TORTURE_SEED", 1),
        number("TORTURE_SECONDS", 60),
        None,
    );
    assert!(
        outcome.findings.is_empty(),
        "the promise was broken, see above"
    );
}

/// Each deliberate fault of the publisher is found, or the torture proves nothing.
#[cfg(feature = "faults")]
#[test]
#[ignore = "minutes of random faults; scripts/torture --prove runs it"]
fn prove() {
    for (fault, kinds) in [
        ("confirm-before-delivery", ["slot ahead", "lost"]),
        ("confirm-keepalives", ["slot ahead", "lost"]),
        ("drop-outcome", ["lost", "lost"]),
    ] {
        println!("\ndeliberate fault: {fault}");
        let outcome = run(
            number("TORTURE_SEED", 1),
            number("TORTURE_SECONDS", 60),
            Some(fault),
        );
        let is_found = outcome
            .findings
            .iter()
            .any(|f| kinds.contains(&f.kind.as_str()));
        assert!(is_found, "{fault} was not found");
        println!("deliberate fault {fault}: found, as it must be");
    }
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}: {text:?} is no number")),
        Err(_) => default,
    }
}

struct Outcome {
    findings: Vec<Finding>,
}

/// What is known from outside.
struct Observed<'a> {
    samples: Vec<Sample>,
    decoder: Decoder<'a>,
}

/// One run, told as it goes. `fault` is a deliberate one of the publisher's.
fn run(seed: u64, seconds: u64, fault: Option<&str>) -> Outcome {
    println!("seed {seed}, {seconds} s");
    let mut dice = Dice::from_seed(seed);
    let mut world = World::new(&mut dice.fork());
    println!("  {}", world.described);
    if let Some(fault) = fault {
        world.walpost.environment("FAULT", fault);
    }
    let history = History::new();
    let World {
        ref scene,
        ref kafka_wire,
        ref postgres_wire,
        ref mut walpost,
        ref mut broker,
        ref mut cluster,
        ..
    } = world;
    let mut observed = Observed {
        samples: Vec::new(),
        decoder: Decoder::new(scene),
    };
    let load = World::load(scene, &mut dice.fork());
    let mut keeper = Keeper::new(walpost, kafka_wire, &history);
    thread::scope(|threads| {
        let history = &history;
        let mut go = |name, act: Box<dyn FnOnce(Dice) + Send>| {
            let dice = dice.fork();
            threads.spawn(move || guard(history, name, || act(dice)));
        };
        go("walpost", Box::new(|dice| keeper.keep(dice)));
        go(
            "broker",
            Box::new(|dice| faults::broker(broker, history, dice)),
        );
        go(
            "postgresql",
            Box::new(|dice| faults::postgres(cluster, scene, history, dice)),
        );
        go(
            "wire to kafka",
            Box::new(|dice| faults::wire("wire to kafka", kafka_wire, history, dice)),
        );
        go(
            "wire to postgresql",
            Box::new(|dice| faults::wire("wire to postgresql", postgres_wire, history, dice)),
        );
        go(
            "samples",
            Box::new(|_| sample(scene, history, &mut observed.samples)),
        );
        go("positions", Box::new(|_| observed.decoder.follow(history)));
        watch(scene, history, seconds);
    });
    println!("  faults lifted");
    load.stop();
    observed.drain(scene, &mut keeper, &history);
    keeper.stop_drained();
    let (peak, starts) = (keeper.peak, keeper.starts);
    if fault.is_none() {
        finale::poison(
            scene,
            walpost,
            kafka_wire,
            &mut observed,
            &history,
            &mut dice,
        );
    }
    observed.decoder.finish();
    let verdict =
        Evidence::gather(scene).judge(&observed.decoder.positions, &observed.samples, &history);
    if peak > MEMORY {
        history.found(
            "memory",
            None,
            format!("a process had {} MiB resident", peak >> 20),
        );
    }
    let findings = history.take_findings();
    for finding in &findings {
        let at = history.second(finding.at);
        println!("\nVIOLATION: {} at {at}: {}", finding.kind, finding.text);
        println!("  around it:\n{}", history.around(finding.at, STORY));
    }
    if !findings.is_empty() {
        keep_logs(walpost, seed);
    }
    summary(
        seed,
        seconds,
        &verdict,
        &observed,
        &history,
        peak,
        starts,
        findings.len(),
    );
    Outcome { findings }
}

/// A thread that cannot go on ends the run, which then says why.
fn guard(history: &History, name: &str, act: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(act)) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        history.found(
            "harness",
            None,
            format!("{name}: {}", text.unwrap_or("a panic")),
        );
    }
}

/// Tells how it goes until the time is over.
fn watch(scene: &Scene, history: &History, seconds: u64) {
    let began = Instant::now();
    let sql = Sql::new(scene.server.superuser(&scene.tag));
    while began.elapsed() < Duration::from_secs(seconds)
        && history.pass(10_000.min(seconds * 1_000))
    {
        let count = sql.try_rows("SELECT count(*) FROM public.outbox");
        let committed = count
            .ok()
            .and_then(|rows| rows.into_iter().next()?.into_iter().next()?);
        let received: Option<i64> = [WIDE, TIGHT]
            .iter()
            .map(|kind| scene.kafka.count(&scene.topic(kind)))
            .sum();
        println!(
            "  {:>4} s  {} committed, {} records in Kafka, {} faults",
            began.elapsed().as_secs(),
            committed.as_deref().unwrap_or("?"),
            received.map_or("?".into(), |count| count.to_string()),
            history.counts().values().sum::<usize>(),
        );
    }
    history.end();
}

impl Observed<'_> {
    /// Waits until the slot has passed all that is committed now.
    fn drain(&mut self, scene: &Scene, keeper: &mut Keeper, history: &History) {
        let sql = Sql::new(scene.server.superuser(&scene.tag));
        let (target, began) = (scene.current_lsn(), Instant::now());
        while began.elapsed() < DRAINS_WITHIN {
            keeper.look();
            thread::sleep(Duration::from_millis(50));
            if let Some(sample) = sample_once(scene, &sql) {
                self.samples.push(sample);
                if sample.confirmed >= target {
                    return history.note(
                        "drained",
                        &format!("in {:.1} s", began.elapsed().as_secs_f64()),
                    );
                }
            }
        }
        let stands = self.samples.last().map(|sample| sample.confirmed);
        let text = format!(
            "the slot stands at {stands:?}, not at {target}; {}",
            keeper.tell()
        );
        history.found("not drained", None, text);
    }
}

fn keep_logs(walpost: &crate::harness::Walpost, seed: u64) {
    let folder = crate::harness::services::root().join(format!("target/torture/seed-{seed}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("create a folder for logs");
    for entry in std::fs::read_dir(&walpost.folder)
        .expect("read the publisher's folder")
        .flatten()
    {
        let _ = std::fs::copy(entry.path(), folder.join(entry.file_name()));
    }
    println!("the publisher's logs are in {}", folder.display());
}

#[allow(clippy::too_many_arguments)]
fn summary(
    seed: u64,
    seconds: u64,
    verdict: &Verdict,
    observed: &Observed,
    history: &History,
    peak: u64,
    starts: usize,
    findings: usize,
) {
    let counts: Vec<String> = history
        .counts()
        .iter()
        .map(|(what, count)| format!("{what} {count}"))
        .collect();
    println!("  faults: {}", counts.join(", "));
    println!(
        "seed {seed}, {seconds} s: {} committed, {} received, {} repeated; {} faults, {starts} starts of the publisher; {} samples of the slot; peak {} MiB; {}",
        verdict.committed,
        verdict.arrived,
        verdict.repeats,
        history.counts().values().sum::<usize>(),
        observed.samples.len(),
        peak >> 20,
        if findings == 0 {
            "clean".to_owned()
        } else {
            format!("{findings} VIOLATIONS")
        },
    );
}

//! `walpost replay`: rows of an outbox table once more, by time or by number, while the publisher goes
//! on. Takes no lock of the slot's and writes nothing to the database.

use std::{collections::HashSet, sync::Arc, time::Duration};

use serde::Serialize;
use tokio::time::{Instant, sleep};
use tokio_postgres::{Client, types::Type};
use tracing::warn;

use super::recover::telling::{Gone, named};
use crate::{
    cli,
    commands::{
        backfill::{Progress, events_with_letters, unread},
        say::Out,
    },
    config::{Config, Env, OnPoison, Outbox, kafka::producer_settings},
    dead_letters::{
        clerk::Clerk,
        store::{self, Owner},
    },
    error::Exit,
    lsn::Lsn,
    metrics::Metrics,
    outbox::mapping::mappings,
    pg::{
        conninfo::ConnInfo,
        numbers::Numbers,
        quote::table,
        setup::{self, explain},
        slot::Names,
        sql,
        table::Reader,
        verdict::initialised,
    },
    relay::{Pace, Relay, Replay, Sieve, Tally},
    shutdown::Shutdown,
    state::State,
    stop,
};

const APPLICATION: &str = "walpost:replay";

/// The publisher confirms what it published within this, unless something is in its way.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(10);

pub async fn replay(config: &Config, env: &Env, options: &cli::Replay) -> anyhow::Result<Exit> {
    let names = Names::of(config)?;
    let info = ConnInfo::resolve(&config.postgres, env)?;
    let out = Out::new(options.json);
    let Some(index) = config
        .outbox
        .iter()
        .position(|outbox| outbox.table == options.table)
    else {
        return Err(stop!(
            Exit::Usage,
            "table {} is none of this configuration's outbox tables: {}",
            table(&options.table),
            names.listed()
        )
        .into());
    };
    let client = sql::connect(&info, APPLICATION).await?;
    let facts = setup::look(&client, &names, &info.user).await?;
    initialised(&facts, &names)?;
    // A row that fails holds nothing here: it is the publisher's letters that hold keys.
    let mut free = config.clone();
    for outbox in &mut free.outbox {
        outbox.on_poison = OnPoison::Skip;
    }
    let mappings = mappings(&free)?;
    let outbox = &config.outbox[index];
    let mut reader = Reader::open(&info, outbox, &mappings[index], APPLICATION).await?;
    restrict(&mut reader, outbox, options).await?;
    let last = reader.last_number().await?;
    reader.begin(None).await?;
    let numbers = reader.gone(options.from_seq, options.to_seq, last).await?;
    if !options.dry_run {
        caught_up(&client, &names.slot).await?;
    }
    // Now letters tell of each of the rows that is not published.
    let sieve = sieve(&client, &names.slot, outbox).await?;
    let told = Told {
        out,
        outbox,
        numbers,
    };
    if options.dry_run {
        return told.dry_run(&reader, sieve).await;
    }
    let (config, total) = (Arc::new(config.clone()), reader.count(None).await?);
    let mut relay = Relay::new(
        config.clone(),
        Arc::new(State::default()),
        Arc::new(Metrics::new()),
        mappings,
        &producer_settings(&config.kafka)?,
        Clerk::of(&config, &info),
    )?;
    let from = Replay {
        rows: reader.rows(None).await?,
        shape: reader.shape.clone(),
        sieve,
        pace: Pace::new(options.rate, std::time::Instant::now()),
    };
    let shutdown = Shutdown::on_signals()?;
    let mut progress = Progress::new(total)?;
    let done = relay
        .replay(from, &shutdown, |rows| progress.tell(rows))
        .await;
    progress.end();
    // Ending a producer waits for brokers that may be gone; the process ends without it.
    std::mem::forget(relay);
    told.done(done?)
}

/// To the rows that were asked for.
async fn restrict(
    reader: &mut Reader,
    outbox: &Outbox,
    options: &cli::Replay,
) -> anyhow::Result<()> {
    let name = table(&outbox.table);
    if options.from.is_none() && options.to.is_none() {
        if let Some(other) = reader.other_type().await? {
            return Err(stop!(
                Exit::Usage,
                "column {} of {name} is of type {other} and has no numbers: use --from and --to",
                outbox.order_by
            )
            .into());
        }
        reader.only_numbers(options.from_seq, options.to_seq);
        return Ok(());
    }
    let timestamp = Some(outbox.timestamp_column.as_str()).filter(|column| !column.is_empty());
    let column = outbox.columns.occurred_at.as_deref().or(timestamp);
    let limited = match column {
        None => Err("no column has role occurred_at".to_owned()),
        Some(column) => reader.only_times(column, options.from, options.to),
    };
    limited.map_err(|why| {
        stop!(
            Exit::Usage,
            "the times of {name}'s rows are not known, {why}: use --from-seq and --to-seq"
        )
        .into()
    })
}

/// Waits for the publisher to have passed what the snapshot shows: then each of its rows is in Kafka
/// or has a letter.
async fn caught_up(client: &Client, slot: &str) -> anyhow::Result<()> {
    let text = "SELECT active, confirmed_flush_lsn::text, $2::text::pg_catalog.pg_lsn <= confirmed_flush_lsn
        FROM pg_catalog.pg_replication_slots WHERE slot_name = $1";
    let now = "SELECT pg_catalog.pg_current_wal_insert_lsn()::text";
    let rows = client.query_typed(now, &[]).await.map_err(explain)?;
    let target: String = rows[0].try_get(0)?;
    let began = Instant::now();
    loop {
        let values = [(&slot as _, Type::TEXT), (&target as _, Type::TEXT)];
        let rows = client.query_typed(text, &values).await.map_err(explain)?;
        let Some(row) = rows.first() else {
            return Ok(());
        };
        let (active, passed): (bool, Option<bool>) = (row.try_get(0)?, row.try_get(2)?);
        if passed == Some(true) {
            return Ok(());
        }
        if !active || began.elapsed() >= CAUGHT_UP_WITHIN {
            let at: Option<String> = row.try_get(1)?;
            let at = at.unwrap_or_else(|| "no position".into());
            warn!(
                "slot {slot} stands at {at} and not at {target}: rows that it has not published yet may come out of their key's order"
            );
            return Ok(());
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Rows that are a matter of the publisher's letters.
async fn sieve(client: &Client, slot: &str, outbox: &Outbox) -> anyhow::Result<Sieve> {
    let owner = Owner {
        slot: slot.to_owned(),
        epoch: 0,
        life: 0,
    };
    let loaded = store::load(client, &owner, Lsn::ZERO)
        .await
        .map_err(unread)?;
    let name = outbox.table.to_string();
    let holds = outbox.on_poison == OnPoison::HoldKey;
    let keys = loaded.keys.into_iter();
    let keys = keys.filter(|key| key.outbox == name && (holds || key.holds));
    let held: HashSet<_> = keys.map(|key| (key.topic, key.key)).collect();
    let letters = events_with_letters(client, slot, &name).await?;
    Ok(Sieve::new(held, letters))
}

/// What `--json` prints.
#[derive(Serialize)]
struct Replayed<'a> {
    table: String,
    outcome: &'a str,
    /// Rows that were found.
    rows: u64,
    /// `null` of a dry run.
    published: Option<u64>,
    /// Left out: their keys are held.
    held: u64,
    /// Left out: dead letters themselves, open or ignored.
    dead_letters: u64,
    failed: u64,
    /// The first ones.
    failures: Vec<Row<'a>>,
    /// Numbers that no row has; `null` where they cannot be counted.
    numbers: Option<Gone>,
}

#[derive(Serialize)]
struct Row<'a> {
    event_id: Option<&'a str>,
    topic: &'a str,
    error_class: &'a str,
    error_code: &'a str,
    error_text: &'a str,
}

struct Told<'a> {
    out: Out,
    outbox: &'a Outbox,
    numbers: Result<Numbers, String>,
}

impl Told<'_> {
    async fn dry_run(self, reader: &Reader, mut sieve: Sieve) -> anyhow::Result<Exit> {
        let (mut tally, mut would) = (Tally::default(), 0);
        let mut rows = reader.rows(None).await?;
        while let Some(tuple) = rows.next().await? {
            would += u64::from(tally.takes(sieve.look(&reader.shape, &tuple)));
        }
        let name = table(&self.outbox.table);
        self.out.say(&format!(
            "`walpost replay` would publish {would} of {} rows found in {name}{}",
            tally.rows,
            left_out(&tally)
        ))?;
        self.say_gone()?;
        self.out.say("nothing was published")?;
        self.print("would_publish", &tally, None)?;
        Ok(Exit::Done)
    }

    fn done(self, tally: Tally) -> anyhow::Result<Exit> {
        let name = table(&self.outbox.table);
        self.out.say(&format!(
            "published {} of {} rows found in {name}{}",
            tally.published,
            tally.rows,
            left_out(&tally)
        ))?;
        self.say_gone()?;
        for Row {
            event_id,
            topic,
            error_code,
            error_text,
            ..
        } in failures(&tally)
        {
            let event = event_id.unwrap_or("without an id");
            self.out.say(&format!(
                "event {event} for topic {topic:?} was not published: {error_text} ({error_code})"
            ))?;
        }
        self.print("published", &tally, Some(tally.published))?;
        match tally.failed {
            0 => Ok(Exit::Done),
            failed => Err(stop!(
                Exit::Error,
                "{failed} rows of {name} could not be published; all others were. Mend the cause, then replay them"
            )
            .into()),
        }
    }

    fn say_gone(&self) -> anyhow::Result<()> {
        self.out.say(&match &self.numbers {
            Err(why) => format!("rows that are no longer there cannot be counted: {why}"),
            Ok(Numbers { column, from, to, missing: 0, .. }) => format!(
                "rows no longer there: none, each number of column {column} from {from} to {to} has its row"
            ),
            Ok(Numbers { column, from, to, missing, ranges, .. }) => format!(
                "rows no longer there: at most {missing}. So many numbers of column {column} from {from} to {to} have no row: {}. \
                 Transactions that were rolled back leave the same gaps",
                named(ranges, *missing)
            ),
        })
    }

    fn print(self, outcome: &str, tally: &Tally, published: Option<u64>) -> anyhow::Result<()> {
        let name = table(&self.outbox.table);
        self.out.object(&Replayed {
            table: name.clone(),
            outcome,
            rows: tally.rows,
            published,
            held: tally.held,
            dead_letters: tally.letters,
            failed: tally.failed,
            failures: failures(tally).collect(),
            numbers: self.numbers.ok().map(|numbers| Gone::of(name, numbers)),
        })
    }
}

fn left_out(tally: &Tally) -> String {
    let mut text = String::new();
    if tally.held > 0 {
        text += &format!("; {} of held keys are left out", tally.held);
    }
    if tally.letters > 0 {
        text += &format!("; {} that are dead letters are left out", tally.letters);
    }
    text
}

fn failures(tally: &Tally) -> impl Iterator<Item = Row<'_>> {
    tally.failures.iter().map(|failed| Row {
        event_id: failed.event_id.as_deref(),
        topic: &failed.topic,
        error_class: failed.fault.class,
        error_code: &failed.fault.code,
        error_text: &failed.fault.text,
    })
}

//! Publishes rows of the table before the stream goes on: what `init --include-existing` and
//! `recover` have in common.

use std::{
    io::{self, IsTerminal as _},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use rdkafka::Message as _;
use tokio_postgres::Client;
use tracing::info;

use crate::{
    config::{Config, kafka::producer_settings},
    dead_letters::{
        clerk::Clerk,
        store::{self, Moved, Owner, Refused},
    },
    error::Exit,
    kafka::{
        scan::{self, Scan},
        settings,
    },
    lsn::Lsn,
    metrics::Metrics,
    outbox::{
        arrivals::Arrivals,
        event_ids::EventIds,
        mapping::{Mapping, WAL_POSITION, mappings},
        moment::own_time,
        record::Mapper,
        row::{OutboxRow, Reread},
    },
    pg::{
        conninfo::ConnInfo,
        mark::Mark,
        pgoutput::Tuple,
        setup::explain,
        table::{Reader, Rows},
    },
    relay::{self, Relay, place},
    shutdown::Shutdown,
    state::State,
    stop,
};

/// Clocks differ: a topic is read from this long before a mark.
const MARGIN: Duration = Duration::from_secs(3600);

/// Between two lines about the progress, where there is no terminal.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// All that publishing takes. Made before anything is changed, so that settings that cannot work
/// change nothing.
pub struct Backfill {
    config: Arc<Config>,
    mappings: Vec<Arc<Mapping>>,
    info: ConnInfo,
    properties: Vec<(String, String)>,
    relay: Relay,
    shutdown: Shutdown,
    /// What makes an interrupted one start again.
    command: &'static str,
}

/// What the table and the topics say together.
pub struct Survey {
    /// Rows that the table holds.
    pub rows: u64,
    /// Events of them that the topics have, but for those that older events of their key came
    /// behind: an old one must not be the last word on its key.
    pub published: EventIds,
    /// Rows with such an event.
    pub known: u64,
    /// Other rows, whose event has a dead letter that is open or ignored: they are left to it.
    pub with_letter: u64,
}

/// What the table's rows are, and where they go.
#[derive(Default)]
struct Wanted {
    ids: EventIds,
    topics: Vec<String>,
    rows: u64,
    /// The earliest time that a row gives its record, in milliseconds.
    earliest: Option<i64>,
}

/// Which rows to publish.
pub struct Publish<'a> {
    pub reader: &'a Reader,
    /// `None`: all of them.
    pub since: Option<&'a Mark>,
    /// But not those of these events.
    pub except: &'a EventIds,
    pub reread: Reread,
    /// Where the slot begins.
    pub at: Lsn,
    /// How many rows were numbered before, of other tables.
    pub numbered: u64,
    /// How many to expect.
    pub total: u64,
    /// Whose letters the rows become that cannot be published.
    pub owner: Owner,
}

impl Survey {
    pub fn missing(&self) -> u64 {
        self.rows - self.known - self.with_letter
    }
}

impl Backfill {
    pub fn new(
        config: &Config,
        info: &ConnInfo,
        command: &'static str,
    ) -> anyhow::Result<Backfill> {
        let config = Arc::new(config.clone());
        let properties = producer_settings(&config.kafka)?;
        let mappings = mappings(&config)?;
        let relay = Relay::new(
            config.clone(),
            Arc::new(State::default()),
            Arc::new(Metrics::new()),
            mappings.clone(),
            &properties,
            Clerk::of(&config, info),
        )?;
        Ok(Backfill {
            config,
            mappings,
            info: info.clone(),
            properties,
            relay,
            shutdown: Shutdown::default(),
            command,
        })
    }

    /// A reader for each of the tables.
    pub async fn readers(&self, application: &str) -> anyhow::Result<Vec<Reader>> {
        let mut readers = Vec::new();
        for (outbox, mapping) in self.config.outbox.iter().zip(&self.mappings) {
            readers.push(Reader::open(&self.info, outbox, mapping, application).await?);
        }
        Ok(readers)
    }

    /// From now on a signal asks to stop; until then it ends the process, as it does where nothing
    /// is in the producer.
    pub fn listen(&mut self) -> anyhow::Result<()> {
        self.shutdown = Shutdown::on_signals()?;
        Ok(())
    }

    /// Which of the rows since the mark the topics have already. Without a mark: of all rows, in
    /// the whole topics.
    pub async fn survey(
        &self,
        reader: &Reader,
        since: Option<&Mark>,
        client: &Client,
    ) -> anyhow::Result<Survey> {
        let Wanted {
            ids,
            topics,
            rows,
            earliest,
        } = self.wanted(reader, since).await?;
        info!(rows, topics = topics.len(), "reading the topics");
        let since_ms = since.map(|mark| {
            let mark = mark.at.as_millisecond() - MARGIN.as_millis() as i64;
            earliest.map_or(mark, |earliest| earliest.min(mark))
        });
        let header = reader.shape.mapping.id_header();
        let published = self.published(&ids, topics, header, since_ms).await?;
        let slot = &self.config.postgres.slot;
        let outbox = reader.shape.mapping.table.to_string();
        let letters = events_with_letters(client, slot, &outbox).await?;
        let (mut known, mut with_letter) = (0, 0);
        if !published.is_empty() || !letters.is_empty() {
            let mut rows = reader.rows(since).await?;
            while let Some(tuple) = self.next(&mut rows).await? {
                match event_id(reader, &tuple) {
                    Some(id) if published.contains(id) => known += 1,
                    Some(id) if letters.contains(id) => with_letter += 1,
                    _ => {}
                }
            }
        }
        Ok(Survey {
            rows,
            published,
            known,
            with_letter,
        })
    }

    async fn wanted(&self, reader: &Reader, since: Option<&Mark>) -> anyhow::Result<Wanted> {
        let mut wanted = Wanted::default();
        let mut mapper = Mapper::default();
        let mut rows = reader.rows(since).await?;
        while let Some(tuple) = self.next(&mut rows).await? {
            wanted.rows += 1;
            // A row that cannot be mapped went nowhere; publishing it will say so.
            let Ok(row) = OutboxRow::new(&reader.shape, Tuple::from_bytes(&tuple)) else {
                continue;
            };
            if let Some(id) = row.event_id() {
                wanted.ids.insert(id);
            }
            if let Some(time) = own_time(&row) {
                let earliest = wanted.earliest.get_or_insert(time);
                *earliest = time.min(*earliest);
            }
            if let Ok(topic) = mapper.topic(&row)
                && !wanted.topics.iter().any(|known| known == topic)
            {
                wanted.topics.push(topic.to_owned());
            }
        }
        Ok(wanted)
    }

    async fn next(&self, rows: &mut Rows) -> anyhow::Result<Option<Vec<u8>>> {
        tokio::select! {
            biased;
            () = self.shutdown.requested.cancelled() => Err(stop!(
                Exit::Grace,
                "stopped while reading the table; run `{}` again", self.command
            ).into()),
            row = rows.next() => row,
        }
    }

    async fn published(
        &self,
        wanted: &EventIds,
        topics: Vec<String>,
        header: &str,
        since_ms: Option<i64>,
    ) -> anyhow::Result<EventIds> {
        let config = &self.config;
        let mut properties = self.properties.clone();
        properties.extend(crate::config::kafka::read_property_files(&config.kafka)?);
        let client_id = format!("walpost-{}", config.postgres.slot);
        let settings = settings::reader(&config.kafka.brokers, &properties, &client_id);
        let mut found = EventIds::like(wanted);
        tokio::task::block_in_place(|| {
            let mut scan = Scan::new(&settings, self.shutdown.requested.clone())
                .map_err(|error| stop!(Exit::Usage, "kafka.properties: {error}"))?;
            for topic in &topics {
                let mut arrivals = Arrivals::of(wanted);
                scan.topic(topic, since_ms, |record| {
                    if let Some(id) = scan::header(record, header) {
                        let position = scan::header(record, WAL_POSITION);
                        arrivals.next(record.key(), id, position);
                    }
                })?;
                let (published, behind) = arrivals.published();
                if behind > 0 {
                    info!(
                        topic,
                        events = behind,
                        "older events came behind them: publishing them once more"
                    );
                }
                found.extend(published);
            }
            // Ending a client waits for brokers that may be gone.
            std::thread::spawn(move || drop(scan));
            anyhow::Ok(())
        })?;
        Ok(found)
    }

    /// Rows to be published that have an open letter already are a matter of that letter, and an
    /// ignored one stays ignored. It stands from now on where its row is in the table: those before
    /// it, which the lost slot had not brought to Kafka, are published, and those behind it wait.
    async fn replace_letters(&mut self, what: &Publish<'_>) -> anyhow::Result<()> {
        let outbox = what.reader.shape.mapping.table.to_string();
        let owner = what.owner.clone();
        let mut letters = self.relay.letters_of_events(owner, outbox).await?;
        if letters.is_empty() {
            return Ok(());
        }
        let (mut moved, mut number) = (Vec::new(), what.numbered);
        let mut rows = what.reader.rows(what.since).await?;
        while let Some(tuple) = self.next(&mut rows).await? {
            let id = event_id(what.reader, &tuple);
            if id.is_some_and(|id| what.except.contains(id)) {
                continue;
            }
            number += 1;
            let id = id.and_then(|id| std::str::from_utf8(id).ok());
            let letter = id.and_then(|id| letters.remove(id));
            let to = place(what.at, number);
            moved.extend(letter.map(|letter| Moved { letter, to }));
        }
        self.relay
            .replace_letters(&what.owner, &moved, what.reread)
            .await?;
        Ok(())
    }

    /// Publishes them and tells how many that were.
    pub async fn publish(&mut self, what: Publish<'_>) -> anyhow::Result<u64> {
        // One pass over the rows at a time: they come over one connection.
        self.replace_letters(&what).await?;
        let from = relay::Backfill {
            rows: what.reader.rows(what.since).await?,
            shape: what.reader.shape.clone(),
            except: what.except,
            reread: what.reread,
            at: what.at,
            numbered: what.numbered,
            command: self.command,
        };
        let letters = self.relay.load_letters(what.owner, Lsn::ZERO).await?;
        let mut progress = Progress::new(what.total)?;
        let published = self
            .relay
            .backfill(from, letters, &self.shutdown, |rows| progress.tell(rows))
            .await;
        progress.end();
        self.relay.finish_copies().await;
        Ok(published?)
    }
}

/// Events of the table that are left to their dead letters, open or ignored.
pub async fn events_with_letters(
    client: &Client,
    slot: &str,
    outbox: &str,
) -> anyhow::Result<EventIds> {
    let ids = store::events_with_letters(client, slot, outbox).await;
    let mut letters = EventIds::default();
    for id in ids.map_err(unread)? {
        letters.insert(id.as_bytes());
    }
    Ok(letters)
}

/// Letters could not be read.
pub fn unread(refused: Refused) -> anyhow::Error {
    match refused {
        Refused::Sql(error) => explain(error),
        Refused::Fenced => {
            anyhow::anyhow!("internal: reading letters needs no right to write them")
        }
    }
}

fn event_id<'a>(reader: &'a Reader, tuple: &'a [u8]) -> Option<&'a [u8]> {
    let row = OutboxRow::new(&reader.shape, Tuple::from_bytes(tuple)).ok()?;
    row.event_id()
}

/// A bar on a terminal, a line every few seconds elsewhere; both on stderr.
pub struct Progress {
    bar: Option<ProgressBar>,
    total: u64,
    said: Instant,
}

impl Progress {
    pub fn new(total: u64) -> anyhow::Result<Progress> {
        let style = "{bar:40} {human_pos}/{human_len} rows, {per_sec}, {eta} left";
        let style = ProgressStyle::with_template(style).context("progress bar")?;
        let bar = io::stderr()
            .is_terminal()
            .then(|| ProgressBar::new(total).with_style(style));
        Ok(Progress {
            bar,
            total,
            said: Instant::now(),
        })
    }

    pub fn tell(&mut self, rows: u64) {
        match &self.bar {
            Some(bar) => bar.set_position(rows),
            None if self.said.elapsed() >= SAY_EVERY => {
                self.said = Instant::now();
                info!(rows, of = self.total, "publishing rows of the table");
            }
            None => {}
        }
    }

    pub fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

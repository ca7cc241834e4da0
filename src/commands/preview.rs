//! `walpost preview`: the records that would be published next, from a copy of the slot. The slot
//! itself stays where it is, whoever reads it; the copy goes with its connection.

mod line;
mod printer;

use std::time::{Duration, Instant};

use anyhow::anyhow;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_postgres::{Client, error::SqlState};
use tracing::warn;

use self::{line::Lines, printer::Printer};
use crate::{
    cli,
    config::{Config, Env},
    error::Exit,
    lsn::{Lsn, PgTime, Position},
    outbox::{
        mapping::mappings,
        message,
        relation::{Relations, Shape, Table},
    },
    pg::{
        conninfo::ConnInfo,
        message::{ServerMessage, StatusUpdate},
        pgoutput::{Change, Relation, Tuple},
        quote::literal,
        replication,
        server_error::ServerError,
        setup::{explain, look},
        slot::{Names, SlotFacts},
        sql,
        table::known_types,
        tls::Stream as Socket,
        verdict::verdict,
        wire::{Event, Replication, Stream},
    },
    stop,
};

const APPLICATION: &str = "walpost:preview";

/// How often the server is asked how far it is.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// So often a copy is tried that was overtaken by the slot's own progress.
const COPY_ATTEMPTS: u32 = 10;

pub async fn preview(config: &Config, env: &Env, options: &cli::Preview) -> anyhow::Result<Exit> {
    let names = Names::of(config)?;
    let info = ConnInfo::resolve(&config.postgres, env)?;
    let client = sql::connect(&info, APPLICATION).await?;
    let facts = look(&client, &names, &info.user).await?;
    possible(&facts, &names)?;
    let mut relations = Relations::new(mappings(config)?);
    let oids: Vec<u32> = facts
        .tables
        .iter()
        .filter_map(|found| Some(found.table.as_ref()?.oid))
        .collect();
    relations.restart(&oids, known_types(&client).await?);

    let mut copy = replication::connect(&info, APPLICATION).await?;
    let name = format!("walpost_preview_{}", copy.pid());
    copy_slot(&mut copy, &names.slot, &name).await?;
    // All that was committed until now and is in the log; the copy begins before it.
    let target = flushed(&client).await?;
    copy.start_replication(&name, &names.publication).await?;
    let preview = Preview {
        client,
        stream: copy.into_stream(),
        relations,
        lines: Lines::new(config),
        printer: Printer::start(),
        left: options.limit.unwrap_or(u64::MAX),
        target,
        seen: Lsn::ZERO,
        transaction: None,
        patience: config.postgres.receive_timeout,
    };
    preview.go().await?;
    Ok(Exit::Done)
}

/// What `run` would start with, and no harm in reading.
fn possible(facts: &SlotFacts, names: &Names) -> anyhow::Result<()> {
    if facts.server.in_recovery {
        let text = "the server is a standby: run `walpost preview` against the primary";
        return Err(stop!(Exit::Error, "{text}").into());
    }
    for warning in verdict(facts, names)? {
        warn!("{warning}");
    }
    let standbys = &facts.server.synchronous_standby_names;
    if standbys.contains('*') || standbys.contains(APPLICATION) {
        return Err(stop!(
            Exit::Slot,
            "the server would take this for a synchronous standby, and commits would wait for it: synchronous_standby_names is \
             {standbys:?}; name the real standbys there, without *"
        )
        .into());
    }
    Ok(())
}

async fn flushed(client: &Client) -> anyhow::Result<Lsn> {
    let text = "SELECT pg_catalog.pg_current_wal_flush_lsn()::text";
    let rows = client.query_typed(text, &[]).await.map_err(explain)?;
    Ok(rows[0].try_get::<_, String>(0)?.parse()?)
}

/// A temporary copy, which lives as long as its connection.
async fn copy_slot(
    connection: &mut Replication<Socket>,
    slot: &str,
    name: &str,
) -> anyhow::Result<()> {
    let text = format!(
        "SELECT pg_catalog.pg_copy_logical_replication_slot({}, {}, true)",
        literal(slot),
        literal(name)
    );
    for attempt in 1.. {
        let failure = match connection.simple_query(&text).await {
            Ok(_) => return Ok(()),
            Err(failure) => anyhow::Error::from(failure),
        };
        let error = ServerError::code_of(&failure);
        // Its reader moved it meanwhile.
        let again = error == Some(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
        if again && attempt < COPY_ATTEMPTS {
            sleep(Duration::from_millis(50)).await;
            continue;
        }
        let mend = match error {
            Some(SqlState::CONFIGURATION_LIMIT_EXCEEDED) => {
                "; a copy needs a free place: drop a slot that is not needed (`SELECT slot_name, active FROM pg_replication_slots`), \
                 or raise max_replication_slots and restart the server"
            }
            _ => "",
        };
        return Err(stop!(
            Exit::of(&failure),
            "cannot copy slot {slot}: {failure:#}{mend}"
        )
        .into());
    }
    Ok(())
}

struct Preview {
    client: Client,
    stream: Stream<Socket>,
    relations: Relations,
    lines: Lines,
    printer: Printer,
    /// How many more records are wanted.
    left: u64,
    /// Where the log ended at the start.
    target: Lsn,
    /// How far the server is.
    seen: Lsn,
    transaction: Option<Open>,
    /// A server that gets no further for so long is given up.
    patience: Duration,
}

/// The transaction whose rows are coming.
struct Open {
    position: Position,
    committed_at: PgTime,
}

impl Preview {
    async fn go(mut self) -> anyhow::Result<()> {
        let mut ask = interval(ASK_EVERY);
        ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut moved = Instant::now();
        while !self.is_done() {
            let has_room = self.printer.has_room();
            tokio::select! {
                biased;
                printed = self.printer.print() => if !printed {
                    break;
                },
                _ = ask.tick() => {
                    self.stream.queue_status(&StatusUpdate {
                        received: self.seen,
                        confirmed: None,
                        reply_requested: true,
                    });
                    if !has_room {
                        moved = Instant::now();
                    }
                    self.is_moving(moved)?;
                }
                event = self.stream.next(has_room) => {
                    let before = self.seen;
                    if self.on_event(event?).await? || self.seen > before {
                        moved = Instant::now();
                    }
                }
            }
        }
        self.printer.end().await
    }

    fn is_done(&self) -> bool {
        self.left == 0 || (self.transaction.is_none() && self.seen >= self.target)
    }

    fn is_moving(&self, moved: Instant) -> anyhow::Result<()> {
        if moved.elapsed() < self.patience {
            return Ok(());
        }
        Err(anyhow!(
            "PostgreSQL got no further for {} s: it is at {} and the log ended at {}",
            self.patience.as_secs(),
            self.seen,
            self.target
        ))
    }

    /// `true`: a message of the log.
    async fn on_event(&mut self, event: Event) -> anyhow::Result<bool> {
        let frame = match event {
            Event::Data(frame) => frame,
            Event::Notice(notice) => {
                if notice.severity == "WARNING" {
                    warn!(%notice, "warning from the server");
                }
                return Ok(false);
            }
        };
        match ServerMessage::parse(&frame)? {
            ServerMessage::Keepalive { wal_end, .. } => {
                self.seen = self.seen.max(wal_end);
                Ok(false)
            }
            ServerMessage::XLogData { data, .. } => {
                self.on_change(Change::parse(data)?).await?;
                Ok(true)
            }
        }
    }

    async fn on_change(&mut self, change: Change<'_>) -> anyhow::Result<()> {
        match change {
            Change::Begin {
                commit_lsn,
                committed_at,
                ..
            } => {
                let position = Position {
                    commit: commit_lsn,
                    ordinal: 0,
                };
                self.transaction = Some(Open {
                    position,
                    committed_at,
                });
                // What committed since belongs to the next preview.
                if commit_lsn >= self.target {
                    self.left = 0;
                }
            }
            Change::Commit { end_lsn, .. } => {
                self.transaction = None;
                self.seen = self.seen.max(end_lsn);
            }
            Change::Relation(relation) => self.learn(&relation).await?,
            Change::Insert { relation, tuple } => {
                let shape = match self.relations.table(relation) {
                    Some(Table::Ours(shape)) => Some(shape.clone()),
                    _ => None,
                };
                self.count()?;
                if let Some(shape) = shape {
                    self.row(&shape, tuple)?;
                }
            }
            Change::Message {
                transactional: true,
                prefix,
                content,
                ..
            } => {
                self.count()?;
                let messages = self.relations.messages();
                if let Some(messages) = messages.filter(|_| prefix == message::PREFIX) {
                    let (shape, tuple) = messages.row(content);
                    self.row(&shape, Tuple::from_bytes(&tuple))?;
                }
            }
            Change::Message { .. } | Change::Ignored(_) => {}
        }
        Ok(())
    }

    async fn learn(&mut self, relation: &Relation) -> anyhow::Result<()> {
        // A type that is younger than our look at the catalogue.
        if !self.relations.learn(relation) {
            self.relations.know(known_types(&self.client).await?);
            let _ = self.relations.learn(relation);
        }
        Ok(())
    }

    /// Counts an Insert or a transactional Message, ours or not.
    fn count(&mut self) -> anyhow::Result<()> {
        let outside = || anyhow!("internal: a change outside of a transaction");
        self.transaction
            .as_mut()
            .ok_or_else(outside)?
            .position
            .ordinal += 1;
        Ok(())
    }

    fn row(&mut self, shape: &Shape, tuple: Tuple<'_>) -> anyhow::Result<()> {
        if let Some(open) = &self.transaction
            && self.left > 0
        {
            self.left -= 1;
            let to = self.printer.line();
            self.lines
                .row(shape, tuple, open.position, open.committed_at, to);
            to.push(b'\n');
        }
        Ok(())
    }
}

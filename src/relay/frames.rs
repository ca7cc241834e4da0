//! What the stream brings: messages → the ledger's rows and boundaries.

use std::{sync::Arc, time::Instant};

use anyhow::anyhow;
use bytes::Bytes;
use tracing::{debug, warn};

use super::{
    Relay,
    session::{Session, Wire},
};
use crate::{
    error::{Exit, Failure, Stop},
    outbox::{
        message,
        relation::{Shape, Table},
    },
    pg::{
        message::ServerMessage,
        pgoutput::{Change, Tuple},
        publication::Missed,
        server_error::ServerError,
        wire::Event,
    },
    stop,
};

/// The prefix of messages that call for a look at the dead letters.
const COMMAND: &str = "walpost.command";

/// Messages taken from the read buffer before reports of Kafka are looked at again.
const BATCH: usize = 512;

impl Relay {
    pub(super) fn on_events<S: Wire>(
        &mut self,
        session: &mut Session<S>,
        first: Event,
    ) -> Result<(), Failure> {
        session.heard = Instant::now();
        self.on_event(session, first)?;
        for _ in 1..BATCH {
            if !self.is_reading(session) {
                break;
            }
            match session.stream.buffered() {
                None => break,
                Some(event) => self.on_event(session, event?)?,
            }
        }
        Ok(())
    }

    pub(super) fn on_event<S>(
        &mut self,
        session: &mut Session<S>,
        event: Event,
    ) -> Result<(), Failure> {
        match event {
            Event::Data(frame) => self.on_data(session, frame),
            Event::Notice(notice) => self.on_notice(session, &notice),
        }
    }

    pub(super) fn on_notice<S>(
        &mut self,
        session: &mut Session<S>,
        notice: &ServerError,
    ) -> Result<(), Failure> {
        if notice.severity != "WARNING" {
            debug!(%notice, "notice from the server");
            return Ok(());
        }
        warn!(%notice, routine = notice.routine, "warning from the server");
        match notice.routine.as_deref() {
            // From 18 on rows are skipped with this warning alone.
            Some("LoadPublications") => Err(Failure::Stop(Stop::new(
                Exit::Slot,
                Missed {
                    publication: self.config.postgres.publication.clone(),
                    after: self.ledger.received(),
                },
            ))),
            // A standby that must have the WAL first lags behind: the stream waits, that is all.
            Some("StandbySlotsHaveCaughtup") => Ok(()),
            _ => {
                session.check_now = true;
                Ok(())
            }
        }
    }

    /// One CopyData message. A row without room stays in `held`, and reading stops until it has.
    pub(super) fn on_data<S>(
        &mut self,
        session: &mut Session<S>,
        frame: Bytes,
    ) -> Result<(), Failure> {
        let message = ServerMessage::parse(&frame).map_err(|e| misread(&e))?;
        match message {
            ServerMessage::Keepalive {
                wal_end,
                reply_requested,
                ..
            } => {
                self.ledger.keepalive(wal_end);
                session.reply_wanted |= reply_requested;
                Ok(())
            }
            ServerMessage::XLogData {
                wal_start, data, ..
            } => {
                let change = Change::parse(data).map_err(|e| misread(&e))?;
                let has_room = match change {
                    Change::Insert { relation, tuple } => self.on_insert(relation, tuple)?,
                    Change::Message {
                        transactional: true,
                        prefix: message::PREFIX,
                        content,
                        ..
                    } => self.on_message(content)?,
                    other => self.on_change(other).map(|()| true)?,
                };
                if !has_room {
                    session.held = Some(frame);
                    return Ok(());
                }
                self.ledger.receive(wal_start);
                Ok(())
            }
        }
    }

    /// `false`: the row is ours and has no room.
    pub(super) fn on_insert(&mut self, relation: u32, tuple: Tuple<'_>) -> Result<bool, Failure> {
        let table = self.relations.table(relation);
        let shape = match table {
            Some(Table::Other) => None,
            Some(Table::Ours(shape)) => Some(shape.clone()),
            None => {
                return Err(misread(&anyhow!(
                    "a row of table {relation}, which was not described"
                )));
            }
        };
        if shape.is_some() && !self.ledger.has_room(tuple.bytes().len()) {
            return Ok(false);
        }
        let position = self.ledger.next_position().map_err(|e| misread(&e))?;
        // Read again, and kept already.
        if let Some(shape) = shape.filter(|_| !self.sender.parking.is_known(position)) {
            self.open_row(shape, tuple.bytes().into())?;
        }
        Ok(true)
    }

    /// A message of walpost's prefix is a row where an outbox takes messages. `false`: it has no room.
    fn on_message(&mut self, content: &[u8]) -> Result<bool, Failure> {
        if self.relations.messages().is_some() && !self.ledger.has_room(content.len()) {
            return Ok(false);
        }
        let position = self.ledger.next_position().map_err(|e| misread(&e))?;
        if let Some(messages) = self.relations.messages()
            && !self.sender.parking.is_known(position)
        {
            let (shape, tuple) = messages.row(content);
            self.open_row(shape, tuple)?;
        }
        Ok(true)
    }

    fn open_row(&mut self, shape: Arc<Shape>, tuple: Box<[u8]>) -> Result<(), Failure> {
        if self.ledger.rows() == 0 {
            self.state.lock().last_progress = Instant::now();
        }
        self.ledger
            .open_row(shape, tuple)
            .map_err(|e| misread(&e))?;
        self.sender.pump(&mut self.ledger, self.now);
        Ok(())
    }

    pub(super) fn on_change(&mut self, change: Change<'_>) -> Result<(), Failure> {
        let turn = match change {
            Change::Begin {
                commit_lsn,
                committed_at,
                ..
            } => self.ledger.begin(commit_lsn, committed_at),
            Change::Commit { end_lsn, .. } => self.ledger.commit(end_lsn),
            Change::Relation(relation) => {
                if !self.relations.learn(&relation) {
                    return Err(Failure::Passing(anyhow!(
                        "table {}.{} has a column of a type that was not there at the stream's start; reading the catalogue again",
                        relation.namespace,
                        relation.name
                    )));
                }
                Ok(())
            }
            Change::Message {
                transactional: true,
                prefix,
                ..
            } => {
                // Whoever wrote it: it says where to look, and the table says what to do.
                if prefix == COMMAND {
                    self.letters.wake();
                }
                self.ledger.next_position().map(drop)
            }
            Change::Message { .. } | Change::Ignored(_) | Change::Insert { .. } => Ok(()),
        };
        turn.map_err(|e| misread(&e))
    }
}

/// The stream isn't what the protocol says: ours or the server's fault, and no reason to guess.
fn misread(error: &impl std::fmt::Display) -> Failure {
    stop!(
        Exit::Error,
        "internal: the replication stream cannot be read: {error}"
    )
    .into()
}

//! What PostgreSQL is asked and told: the regular check, and status updates.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use tracing::{debug, info, warn};

use super::{
    Relay,
    ending::Stage,
    session::{Asked, Session, Wire},
};
use crate::{
    error::{Exit, Failure},
    lsn::Lsn,
    pg::{
        message::StatusUpdate,
        slot::SlotFacts,
        watch::{Answer, Note, Progress, Question, RESERVE, Watch},
    },
    stop,
};

/// The slot is looked at this often although nothing is to be confirmed.
const IDLE_CHECK: Duration = Duration::from_secs(10);

/// Progress goes into `walpost.slot` at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Confirmed positions are reported at once, but not more often than this.
const PROGRESS_REPORTS: Duration = Duration::from_millis(20);

/// The slot is looked at this soon when rows come and nothing is to be confirmed: if we were taken
/// for a synchronous standby, the application's commits would be waiting for us.
const TRAFFIC_CHECK: Duration = Duration::from_secs(2);

/// With traffic a mark is written this often.
const MARK_INTERVAL: Duration = Duration::from_secs(60);

/// A loop that did not turn for so long was paused with its process, or the machine was.
const PAUSE: Duration = Duration::from_secs(2);

impl Relay {
    /// An answer of the side connection; `asked`: to our question, not out of itself.
    pub(super) fn on_answer<S>(
        &mut self,
        session: &mut Session<S>,
        (asked, answer): (bool, Answer),
    ) -> Result<(), Failure> {
        let asked = if asked { session.asked.take() } else { None };
        match answer {
            Answer::Fine(facts) => {
                if let Some(asked) = asked {
                    if !self.is_ours(session, &facts)? {
                        return Ok(());
                    }
                    self.notice_orphan(session, &facts);
                    self.ledger.raise_ceiling(asked.boundary);
                    self.ledger.reserve(asked.reserved.unwrap_or(Lsn::ZERO));
                    // What was heard after this check began calls for the next one.
                    let waits = session.check_now && self.sender.is_suspended();
                    session.doubted &= waits;
                    self.sender
                        .suspend(waits || self.reads_what_is_left(session));
                    session.vouched = session.checked;
                    let slot = facts.slot.as_ref();
                    session.stands = slot.and_then(|slot| slot.confirmed_flush_lsn);
                }
                session.server_stopping = None;
                if let Some(trouble) = self.state.lock().trouble.take() {
                    debug!(was = trouble, "slot checked");
                }
                Ok(())
            }
            // The event came first and says more; the next start tells of the rest.
            Answer::Broken(_) if session.is_stopped_by_poison() => Err(self.stopped_by_poison()),
            Answer::Broken(stop) => Err(stop.into()),
            Answer::TakenOver { .. } | Answer::Released | Answer::Advanced | Answer::Noted => {
                Ok(())
            }
            Answer::Heard(epoch) => {
                if epoch > session.start.epoch {
                    debug!(epoch, "somebody says that he took the slot over");
                    session.doubted = true;
                    self.wait_for_check(session);
                }
                Ok(())
            }
            // Whoever took over meanwhile told nobody.
            Answer::Reconnected => {
                self.wait_for_check(session);
                Ok(())
            }
            Answer::Lost(error) => {
                // What ended it may have ended the stream too, behind all that it had sent.
                self.sender.suspend(true);
                let text = format!("slot check: {error:#}");
                let mut state = self.state.lock();
                if state.trouble.is_none() {
                    warn!("{text}");
                }
                state.last_error = Some(text.clone());
                state.trouble = Some(text);
                Ok(())
            }
            Answer::ServerStopping => {
                if session.server_stopping.is_none() {
                    info!(
                        rows = self.ledger.rows(),
                        "the server is stopping; releasing the slot"
                    );
                    session.server_stopping = Some(Instant::now());
                    // Nothing more is read; what was may be settled yet.
                    let has_rival = session.doubted || session.superseded.is_some();
                    self.sender.suspend(has_rival);
                }
                Ok(())
            }
        }
    }

    /// The slot is read in our epoch, by our own connection or by nobody. A connection that is gone
    /// took the locks with it: whoever has them now may publish, and we start again, behind him.
    /// Only one who took the slot while our connection holds them broke the rules, and ends us.
    /// `false`: nothing is known yet.
    fn is_ours<S>(&mut self, session: &mut Session<S>, facts: &SlotFacts) -> Result<bool, Failure> {
        let slot = &self.config.postgres.slot;
        let pid = facts.slot.as_ref().and_then(|slot| slot.active_pid);
        if let Some(pid) = pid.filter(|pid| *pid != session.start.pid) {
            return Err(Failure::Passing(anyhow!(
                "slot {slot} is read by another connection (pid {pid}); ours is gone"
            )));
        }
        let epoch = facts.record.as_ref().and_then(|record| record.epoch);
        if epoch == Some(session.start.epoch) && session.superseded.is_none() {
            return Ok(true);
        }
        if pid.is_none() {
            return Err(Failure::Passing(anyhow!(
                "another publisher took slot {slot} over; our connection is gone"
            )));
        }
        // A connection that ends gives its locks back a moment before the slot: looked at twice.
        if session
            .superseded
            .is_none_or(|since| session.checked <= since)
        {
            self.superseded(session);
            return Ok(false);
        }
        Err(stop!(
            Exit::Error,
            "fenced: another publisher took slot {slot} over (epoch {}, ours is {}) although our connection (pid {}) holds its lock. \
             Somebody else writes to walpost.slot; nothing more is sent, confirmed or dead-lettered",
            epoch.map_or("unknown".into(), |e| e.to_string()),
            session.start.epoch,
            session.start.pid,
        )
        .into())
    }

    /// Another publisher has the next epoch: nothing is sent or written any more. The next check
    /// says whether our connection is gone.
    pub(super) fn superseded<S>(&mut self, session: &mut Session<S>) {
        session.superseded.get_or_insert_with(Instant::now);
        session.check_now = true;
        self.sender.suspend(true);
        self.letters.disown();
    }

    /// The slot may be another's: nothing is sent until it is known.
    fn wait_for_check<S>(&mut self, session: &mut Session<S>) {
        self.sender.suspend(true);
        session.check_now = true;
    }

    pub(super) fn ask_check<S>(&mut self, session: &mut Session<S>, watch: &mut Watch) {
        if watch.is_waiting() || session.server_stopping.is_some() {
            return;
        }
        let since = session.checked.elapsed();
        let due = match &session.ending {
            // Each look also shows how far the slot is.
            Some(ending) => ending.stage == Stage::Confirming && since >= PROGRESS_REPORTS,
            None => {
                let wanted = self.ledger.wants_check() || self.is_held_by_reserve();
                (wanted && since >= self.config.postgres.status_interval)
                    || (self.ledger.received() > session.checked_received && since >= TRAFFIC_CHECK)
            }
        };
        // Rows wait for it; a short `wal_sender_timeout` shortens this interval, too.
        let suspended = (self.sender.is_suspended() && since >= session.status_interval)
            || (self.wants_to_send_what_is_left(session) && since >= PROGRESS_REPORTS);
        if !(session.check_now || due || suspended || since >= IDLE_CHECK) {
            return;
        }
        let note = Note {
            epoch: session.start.epoch,
            progress: self.progress(session),
            reserve: self.reserve_wanted(),
            mark: self.is_mark_due(session),
        };
        let (reserved, mark) = (note.reserve, note.mark);
        if watch.ask(Question::Check(Some(note))) {
            session.asked = Some(Asked {
                boundary: self.ledger.boundary(),
                reserved,
            });
            if mark {
                self.marked = self.state.lock().settled_rows;
                session.marked = Instant::now();
            }
            session.checked = Instant::now();
            session.check_now = false;
            session.checked_received = self.ledger.received();
        }
    }

    /// A position is settled and checked, and beyond what is recorded as ours.
    fn is_held_by_reserve(&self) -> bool {
        let next = self.ledger.frontier().min(self.ledger.ceiling());
        next.is_some_and(|next| next > self.ledger.reserved())
    }

    /// Worth noting: rows were settled since the last time, and the position that passes them was
    /// told to the server.
    pub(super) fn progress<S>(&mut self, session: &Session<S>) -> Option<Progress> {
        let confirmed = session.reported_confirmed?.lsn();
        let due = session.ending.is_some() || self.noted.elapsed() >= PROGRESS_INTERVAL;
        let committed_at = if due {
            self.latest_settled.take()?
        } else {
            return None;
        };
        self.noted = Instant::now();
        Some(Progress {
            confirmed,
            committed_at,
        })
    }

    /// A mark of this moment is of use: rows were settled since the last one, which taking over
    /// wrote at the latest. An idle publisher writes none.
    fn is_mark_due<S>(&self, session: &Session<S>) -> bool {
        session.marked.elapsed() >= MARK_INTERVAL && self.state.lock().settled_rows > self.marked
    }

    /// Raised ahead, so that confirming seldom waits for it; `None` while enough is left.
    fn reserve_wanted(&self) -> Option<Lsn> {
        let boundary = self.ledger.boundary()?;
        let left = self
            .ledger
            .reserved()
            .bytes()
            .saturating_sub(boundary.bytes());
        (left < RESERVE / 2).then(|| Lsn::new(boundary.bytes() + RESERVE))
    }

    /// A process that was paused may have lost the slot meanwhile: it sends nothing more until it
    /// knows.
    pub(super) fn notice_pause<S>(&mut self, session: &mut Session<S>) {
        let gap = session.turned.elapsed();
        session.turned = Instant::now();
        // The server gives us up no sooner than three quarters of its timeout after it heard us.
        let patience = session.start.wal_sender_timeout.map(|limit| limit / 2);
        if patience.is_some_and(|patience| session.vouched.elapsed() > patience) {
            self.sender.suspend(true);
        }
        if gap > patience.unwrap_or(PAUSE).min(PAUSE) {
            info!(
                seconds = gap.as_secs(),
                "was paused; checking that the slot is still ours"
            );
            self.sender.suspend(true);
            session.check_now = true;
        }
    }

    /// Status by the timer, on progress, and at once when asked.
    pub(super) fn report<S: Wire>(&mut self, session: &mut Session<S>) {
        if session.broken.is_some() {
            return;
        }
        let confirmed = self.ledger.confirmed();
        let since = session.reported.elapsed();
        let progress = confirmed > session.reported_confirmed && since >= PROGRESS_REPORTS;
        if !(session.reply_wanted || progress || since >= session.status_interval) {
            return;
        }
        let silence = session.heard.elapsed();
        session.stream.queue_status(&StatusUpdate {
            received: self.ledger.received(),
            confirmed,
            reply_requested: silence >= self.config.postgres.receive_timeout / 2,
        });
        if let (Some(now), Some(before)) = (confirmed, session.reported_confirmed) {
            self.confirmed_rate
                .count(now.lsn().bytes() - before.lsn().bytes());
        }
        session.reported = Instant::now();
        session.reported_confirmed = confirmed;
        session.reply_wanted = false;
    }
}

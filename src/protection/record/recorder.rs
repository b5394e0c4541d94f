//! Writes a folder for each incident, on a thread that may block on a disk.
//!
//! The record is written when its incident begins and at its end. Between, lines of the audit log and samples are appended every
//! few seconds: whatever happens to the daemon, they tell what happened. Reports and charts are rendered by those who read them.

mod open;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::open::Open;
use super::audit::AuditLog;
use super::circumstances::{About, circumstances};
use super::ledger::{Id, LoggedTransition};
use super::oom_kills::add_kill;
use super::retention::KeptRecords;
use super::store::{self, Store};
use super::{SharedFlight, SharedFrames};
use crate::host::clock;
use crate::host::task::{self, Task};
use crate::model::error_chain::error_chain;
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::time::Timestamp;
use crate::protection::policy::{self, Resource};
use crate::protection::types::incident::{Cause, Incident, SCHEMA};
use crate::protection::types::incidents::{IncidentError, Incidents as _, RECORD, record};
use crate::protection::types::step::{Finished, Outcome, Skip, StepDone, StepError, Ticket};
use crate::protection::types::summary::summary;

/// Interval at which an incident in progress is written again.
const WRITE_INTERVAL: Duration = Duration::from_secs(2);
/// Capacity of the queue of messages.
pub(super) const QUEUE: usize = 64;
/// Time for which answers of other nodes are added to the record of an incident that is over.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(150);
#[derive(Debug)]
enum Message {
    /// A policy's incident begins. This and its end allocate nothing, since the guard sends them.
    Began {
        id: Id,
        at: Timestamp,
        target: Label,
        workload: Label,
        resource: Option<Resource>,
        reading: Option<policy::Reading>,
        user: Option<u32>,
        mode: &'static str,
        policy: Arc<str>,
    },
    /// An incident is over, or has lost its guard.
    Ended {
        id: Id,
        at: Timestamp,
        interrupted: bool,
    },
    Record(Box<Incident>),
    /// Write all open incidents, and report it.
    Flush(SyncSender<()>),
    /// Write all open incidents, as a step of a plan.
    Step(Ticket, SyncSender<Finished>),
}

/// The status of writing folders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Folders that were written completely.
    pub written: u64,
    /// Messages lost because the disk is too slow.
    pub lost: u64,
    /// Why the last folder could not be written; absent where it was.
    pub trouble: Option<String>,
}

/// The handle of the recorder's thread.
#[derive(Debug)]
pub struct Recorder {
    messages: SyncSender<Message>,
    status: Arc<Mutex<Status>>,
    /// Outside the status, so that counting a lost message does not block on its lock.
    lost: AtomicU64,
}

impl Recorder {
    pub(super) fn start(
        store: Option<Store>,
        audit: AuditLog,
        proc: PathBuf,
        flight: SharedFlight,
        frames: SharedFrames,
        trouble: Option<String>,
    ) -> std::io::Result<Self> {
        let (messages, inbox) = sync_channel(QUEUE);
        let status = Arc::new(Mutex::new(Status { trouble, ..Status::default() }));
        let writer = Writer {
            inbox,
            old: true,
            store,
            place: audit.since(0).1,
            audit,
            proc,
            flight,
            frames,
            host: sysinfo::System::host_name().unwrap_or_default(),
            open: Vec::new(),
            kept: KeptRecords::default(),
            status: Arc::clone(&status),
        };
        task::start("incidents", writer)?;
        Ok(Self { messages, status, lost: AtomicU64::new(0) })
    }

    /// Reports that an incident begins with this transition.
    pub(super) fn began(&self, first: &LoggedTransition<'_>, id: &str) {
        let &LoggedTransition { at, reading, user, mode, .. } = first;
        let (target, policy) = (first.target.clone(), Arc::clone(first.policy));
        let (workload, resource) = (first.workload.clone(), first.reason.resource());
        let id = Id::of(id);
        self.send(Message::Began { id, at, target, workload, resource, reading, user, mode, policy });
    }

    /// Reports that an incident is over; `interrupted` where it has lost its guard: the daemon ends, or its configuration
    /// has changed.
    pub(super) fn ended(&self, at: Timestamp, id: &str, interrupted: bool) {
        self.send(Message::Ended { id: Id::of(id), at, interrupted });
    }

    /// Records an incident that is already over.
    pub fn record(&self, incident: Incident) {
        self.send(Message::Record(Box::new(incident)));
    }

    /// Writes all open incidents, and waits for at most this time; returns whether they were written.
    pub fn flush(&self, within: Duration) -> bool {
        let (done, received) = sync_channel(1);
        self.messages.try_send(Message::Flush(done)).is_ok() && received.recv_timeout(within).is_ok()
    }

    /// Writes all open incidents as a step of a plan; returns whether that has begun.
    pub(super) fn begin_step(&self, ticket: Ticket, report: SyncSender<Finished>) -> bool {
        self.messages.try_send(Message::Step(ticket, report)).is_ok()
    }

    pub fn status(&self) -> Status {
        Status { lost: self.lost.load(Ordering::Relaxed), ..lock(&self.status).clone() }
    }

    fn send(&self, word: Message) {
        if self.messages.try_send(word).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Writer {
    inbox: Receiver<Message>,
    /// Whether incidents of earlier runs are still to be completed.
    old: bool,
    store: Option<Store>,
    audit: AuditLog,
    /// The position up to which the audit log was read.
    place: u64,
    proc: PathBuf,
    flight: SharedFlight,
    frames: SharedFrames,
    host: String,
    open: Vec<Open>,
    kept: KeptRecords,
    status: Arc<Mutex<Status>>,
}

impl Task for Writer {
    fn step(&mut self, wait: bool) -> bool {
        if std::mem::take(&mut self.old) {
            self.finish_old();
        }
        let longest = if self.open.is_empty() { Duration::from_secs(3600) } else { WRITE_INTERVAL };
        let word = self.inbox.recv_timeout(longest * u32::from(wait));
        self.read();
        self.follow_closed();
        match word {
            Ok(Message::Began { id, at, target, workload, resource, reading, user, mode, policy }) => {
                let about = About { workload, resource, reading, ..About::default() };
                let circumstances = circumstances(&lock(&self.frames), &about);
                self.begin(Incident {
                    id: id.as_str().to_owned(),
                    user,
                    target: target.as_str().to_owned(),
                    mode: mode.to_owned(),
                    began_unix_seconds: at.unix().as_secs_f64(),
                    policy: (*policy).to_owned(),
                    circumstances,
                    ..Incident::default()
                })
            }
            Ok(Message::Ended { id, at, interrupted }) => self.end(id.as_str(), at, interrupted),
            Ok(Message::Record(incident))
                if self.already_recorded(&incident) || self.add_to_earlier(&incident) => {}
            Ok(Message::Record(incident)) => {
                tracing::warn!(name: "memwarden.incident", incident = incident.id, "{}", summary(&incident));
                self.begin(*incident);
                self.close(self.open.len() - 1);
            }
            Ok(Message::Flush(done)) => {
                self.write_news();
                // The caller may have given up.
                let _ = done.send(());
            }
            Ok(Message::Step(ticket, report)) => {
                // A full report channel means that the result is no longer needed.
                let _ = report.try_send(Finished::new(ticket, self.write_step()));
            }
            Err(RecvTimeoutError::Timeout) => {
                while let Some(place) = self.open.iter().position(|open| open.late) {
                    self.close(place);
                }
                self.write_news();
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.open.retain(|open| open.closed.is_none());
                for place in (0..self.open.len()).rev() {
                    self.close(place);
                }
                return false;
            }
        }
        true
    }
}

impl Writer {
    /// Whether a killed process belongs to a policy's incident, which is recorded anyway.
    fn already_recorded(&self, incident: &Incident) -> bool {
        let by_policy = |open: &Open| {
            open.closed.is_none()
                && open.incident.target == incident.target
                && open.incident.mode == "enforce"
        };
        incident.cause == Cause::Killed && self.open.iter().any(by_policy)
    }

    /// Adds an OOM kill to the record of the last one in the same cgroup; returns whether it was added.
    fn add_to_earlier(&mut self, kill: &Incident) -> bool {
        let id = self.kept.of_same_cgroup(kill);
        let Some(mut earlier) = id.zip(self.store.as_ref()).and_then(|(id, store)| record(store, id)) else {
            return false;
        };
        if !add_kill(&mut earlier, kill) {
            return false;
        }
        earlier.summary = summary(&earlier);
        let written = write_record(self.store.as_ref(), &earlier);
        self.keep(&earlier, written)
    }

    /// Reads the records of earlier runs, and completes those of incidents that were in progress when a run ended.
    fn finish_old(&mut self) {
        let Some(store) = self.store.clone() else { return };
        for (id, bytes) in store.names().unwrap_or_default() {
            let known = record(&store, &id);
            // A damaged record may be of protection, and is kept as long.
            let mut incident = known.clone().unwrap_or_default();
            incident.id.clone_from(&id);
            self.kept.insert(&incident, bytes);
            if known.is_none_or(|record| record.ended_unix_seconds.is_some()) {
                continue;
            }
            let moves = incident.moves.iter().map(|step| step.unix_seconds);
            let last = moves.chain(incident.steps.iter().map(|step| step.unix_seconds));
            incident.ended_unix_seconds = Some(last.fold(incident.began_unix_seconds, f64::max));
            incident.interrupted = Some("memwarden ended during the incident".to_owned());
            tracing::warn!(name: "memwarden.incident.interrupted", incident = id, "memwarden ended in the middle of an incident.");
            let written = write_record(Some(&store), &incident);
            self.keep(&incident, written);
        }
    }

    fn begin(&mut self, mut incident: Incident) {
        SCHEMA.clone_into(&mut incident.schema);
        incident.host.clone_from(&self.host);
        env!("CARGO_PKG_VERSION").clone_into(&mut incident.version);
        if incident.summary.is_empty() {
            incident.summary = format!("Memory of {} ran low.", incident.target);
        }
        let processes = store::processes(&self.proc);
        let processes = processes.unwrap_or_else(|error| format!("# not known: {error}\n"));
        self.open.push(Open {
            incident,
            pending: [("processes.csv".to_owned(), processes.into_bytes())].into(),
            has_record: false,
            lines: 0,
            samples: (0, 0),
            news: true,
            late: false,
            closed: None,
        });
        // Reads again the lines before the message, for this incident only; later lines are read next.
        let (lines, head) = self.audit.since(0);
        let unread = usize::try_from(head - self.place).unwrap_or(usize::MAX);
        let last = self.open.len() - 1;
        self.open[last].take(&lines[..lines.len().saturating_sub(unread)]);
        self.write_news();
    }

    /// Adds new lines to every open incident.
    fn read(&mut self) {
        let (lines, place) = self.audit.since(self.place);
        self.place = place;
        for open in &mut self.open {
            open.take(&lines);
        }
    }

    /// Completes an incident, immediately where the line of its last transition was read; otherwise later, because the
    /// guard does not block on writing it.
    fn end(&mut self, id: &str, at: Timestamp, interrupted: bool) {
        let Some(place) = self.open.iter().position(|open| open.incident.id == id) else { return };
        let open = &mut self.open[place];
        let ended = at.unix().as_secs_f64();
        open.incident.ended_unix_seconds = Some(ended);
        open.late = open.incident.moves.last().is_none_or(|last| last.unix_seconds < ended - 1e-3);
        open.news = true;
        if interrupted {
            let why = "memwarden ended, or its configuration changed, during the incident";
            open.incident.interrupted = Some(why.to_owned());
        } else if open.late {
            return;
        }
        self.close(place);
        // No last transition follows, and no answer.
        self.open.retain(|open| !interrupted || open.incident.id != id);
    }

    /// Writes the record of an incident that is over. Where other nodes were asked and have not answered, it stays open.
    fn close(&mut self, place: usize) {
        self.open[place].news = true;
        let written = self.write(place);
        let open = &mut self.open[place];
        open.late = false;
        if written {
            lock(&self.status).written += 1;
            tracing::info!(name: "memwarden.incident.recorded", incident = open.incident.id, "Wrote an incident record.");
        }
        if open.incident.awaits_answers() {
            open.closed = Some(clock::now());
        } else {
            self.open.remove(place);
        }
    }

    /// Adds late answers of other nodes to the records of incidents that are over.
    fn follow_closed(&mut self) {
        let now = clock::now();
        for place in (0..self.open.len()).rev() {
            let Some(closed) = self.open[place].closed else { continue };
            let written = !self.open[place].news || self.write(place);
            let awaits = !written || self.open[place].incident.awaits_answers();
            if !awaits || now.since(closed) >= ANSWER_TIMEOUT {
                self.open.remove(place);
            }
        }
    }

    fn write_step(&mut self) -> Result<StepDone, StepError> {
        if self.store.is_none() {
            return Ok(StepDone { outcome: Outcome::Skipped(Skip::Unsupported), processes: 0 });
        }
        self.write_news();
        match &lock(&self.status).trouble {
            Some(trouble) => Err(StepError::Outside { what: trouble.as_str().into() }),
            None => Ok(StepDone { outcome: Outcome::Done, processes: 0 }),
        }
    }

    fn write_news(&mut self) {
        for place in 0..self.open.len() {
            let open = &self.open[place];
            if open.news || open.incident.ended_unix_seconds.is_none() {
                self.write(place);
            }
        }
    }

    fn write(&mut self, place: usize) -> bool {
        let Some(store) = self.store.clone() else { return false };
        let mut open = self.open.remove(place);
        open.incident.lost_lines = self.audit.status().lost;
        open.incident.summary = summary(&open.incident);
        let ended = open.incident.ended_unix_seconds.is_some();
        let subjects = open.incident.subjects.len();
        let replaced = open.add_samples(&self.flight, ended);
        // It names the files of its subjects.
        let is_due = ended || !open.has_record || open.incident.subjects.len() != subjects;
        let id = &open.incident.id;
        let result = store
            .write(id, &replaced)
            .and_then(|_| store.append(id, &mut open.pending))
            .and_then(|bytes| if is_due { write_record(Some(&store), &open.incident) } else { Ok(bytes) });
        open.has_record |= result.is_ok();
        let written = self.keep(&open.incident, result);
        open.news = !written;
        self.open.insert(place, open);
        written
    }

    /// Takes the size of the files of an incident that was written, and removes records beyond the limits; returns whether it
    /// was written.
    fn keep(&mut self, incident: &Incident, written: Result<u64, IncidentError>) -> bool {
        let Some(store) = &self.store else { return false };
        let mut status = lock(&self.status);
        match written {
            Ok(bytes) => {
                self.kept.insert(incident, bytes);
                let others = self.open.iter().map(|open| &*open.incident.id);
                let in_progress: Vec<&str> = others.chain([&*incident.id]).collect();
                let removed = self.kept.excess(&in_progress).into_iter();
                // A folder that cannot be removed is tried again with the next incident.
                let removed: Vec<String> = removed.filter(|id| store.remove(id)).map(str::to_owned).collect();
                removed.iter().for_each(|id| self.kept.remove(id));
                status.trouble = None;
                true
            }
            Err(error) => {
                let error = error_chain(&error);
                if status.trouble.replace(error.clone()).is_none() {
                    tracing::error!(error, "Cannot write an incident record.");
                }
                false
            }
        }
    }
}

fn write_record(store: Option<&Store>, incident: &Incident) -> Result<u64, IncidentError> {
    store.map_or(Ok(0), |store| store.write(&incident.id, &[(RECORD.to_owned(), incident.json())]))
}

#[cfg(test)]
mod tests;

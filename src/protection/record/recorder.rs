//! Writes a folder for each incident, on a thread that may block on a disk.
//!
//! A folder is written when its incident begins, again every few seconds while it is in progress, and at its end:
//! whatever happens to the daemon, there is a record.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::audit::AuditLog;
use super::circumstances::{About, circumstances};
use super::ledger::{Id, LoggedTransition};
use super::oom_kills::{VICTIM, add_kill};
use super::report::{chart, csv, of_incident, report};
use super::retention::KeptRecords;
use super::store::{self, Store};
use super::summary::summary;
use super::{SharedFlight, SharedFrames};
use crate::host::clock;
use crate::host::task::{self, Task};
use crate::model::error_chain::error_chain;
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::printable;
use crate::model::time::Timestamp;
use crate::plot::{self, Theme, svg};
use crate::protection::policy::{self, Resource};
use crate::protection::types::incident::{Cause, Incident, SCHEMA, Sample};
use crate::protection::types::incidents::{Incidents as _, RECORD};
use crate::protection::types::step::{Finished, Outcome, Skip, StepDone, StepError, Ticket};

/// Interval at which an incident in progress is written again.
const WRITE_INTERVAL: Duration = Duration::from_secs(2);
/// Capacity of the queue of messages.
pub(super) const QUEUE: usize = 64;
/// Time for which answers of other nodes are added to the record of an incident that is over.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(150);
/// Maximum size of the lines of one incident in bytes.
const LINES: usize = 4 << 20;
/// Maximum number of remembered OOM victims.
const VICTIMS: usize = 64;
/// Size of the chart in pixels.
const WIDTH: u32 = 1200;
const HEIGHT: u32 = 600;

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
            victims: Vec::new(),
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

    /// The status.
    pub fn status(&self) -> Status {
        Status { lost: self.lost.load(Ordering::Relaxed), ..lock(&self.status).clone() }
    }

    fn send(&self, word: Message) {
        if self.messages.try_send(word).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The fact with the reason why an incident has no end.
const INTERRUPTED: &str = "interrupted";

/// An incident in progress.
struct Open {
    incident: Incident,
    processes: String,
    lines: Vec<u8>,
    /// Whether it has changed since it was last written.
    news: bool,
    /// Whether it is over and its last lines are missing.
    late: bool,
    /// Since when its record is complete but for the answers of other nodes.
    closed: Option<Timestamp>,
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
    /// The pids that the OOM killer killed, the newest last.
    victims: Vec<String>,
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
                tracing::warn!(incident = incident.id, "{}", incident.summary);
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
    /// Whether a killed process belongs to an incident that is recorded anyway: a policy's, or an OOM kill.
    fn already_recorded(&mut self, incident: &Incident) -> bool {
        let victim = incident.facts.get(VICTIM).and_then(|pid| pid.as_str());
        if incident.cause != Cause::Killed {
            self.victims.extend(victim.map(str::to_owned));
            let old = self.victims.len().saturating_sub(VICTIMS);
            self.victims.drain(..old);
            return false;
        }
        let known = |pid: &str| self.victims.iter().any(|known| known == pid);
        let by_kernel = victim.is_some_and(|victims| victims.split(' ').any(known));
        let by_policy = |open: &Open| {
            open.closed.is_none()
                && open.incident.target == incident.target
                && open.incident.mode == "enforce"
        };
        by_kernel || self.open.iter().any(by_policy)
    }

    /// Adds an OOM kill to the record of the last one in the same cgroup; returns whether it was added.
    fn add_to_earlier(&mut self, kill: &Incident) -> bool {
        let id = self.kept.of_same_cgroup(kill);
        let Some(mut earlier) = id.zip(self.store.as_ref()).and_then(|(id, store)| record(store, id)) else {
            return false;
        };
        add_kill(&mut earlier, kill) && self.put(&earlier, &texts(&earlier))
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
            incident.facts.insert(INTERRUPTED.to_owned(), "memwarden ended during the incident".into());
            tracing::warn!(incident = id, "memwarden ended in the middle of an incident.");
            self.put(&incident, &texts(&incident));
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
            processes,
            lines: Vec::new(),
            news: true,
            late: false,
            closed: None,
        });
        // Reads again the lines before the message, for this incident only; later lines are read next.
        let (lines, head) = self.audit.since(0);
        let unread = usize::try_from(head - self.place).unwrap_or(usize::MAX);
        let last = self.open.len() - 1;
        take(&mut self.open[last], &lines[..lines.len().saturating_sub(unread)]);
        self.write_news();
    }

    /// Adds new lines to every open incident.
    fn read(&mut self) {
        let (lines, place) = self.audit.since(self.place);
        self.place = place;
        for open in &mut self.open {
            take(open, &lines);
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
            open.incident.facts.insert(INTERRUPTED.to_owned(), why.into());
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
            tracing::info!(incident = open.incident.id, "Wrote an incident record.");
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
            if self.open[place].news {
                self.write(place);
            }
        }
    }

    fn write(&mut self, place: usize) -> bool {
        if self.store.is_none() {
            return false;
        }
        let mut open = self.open.remove(place);
        open.incident.lost_lines = self.audit.status().lost;
        open.incident.summary = summary(&open.incident);
        let samples: Vec<_> = lock(&self.flight).samples().collect();
        open.news = !self.put(&open.incident, &files(&open, &samples));
        let written = !open.news;
        self.open.insert(place, open);
        written
    }

    /// Writes files of an incident, and removes records beyond the limits; returns whether they were written.
    fn put(&mut self, incident: &Incident, files: &[(String, Vec<u8>)]) -> bool {
        let Some(store) = &self.store else { return false };
        let written = store.write(&incident.id, files);
        let mut status = lock(&self.status);
        match written {
            Ok(bytes) => {
                self.kept.insert(incident, bytes);
                let removed = self.kept.excess(&incident.id).into_iter();
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

/// The record of an incident; absent where it cannot be read.
fn record(store: &Store, id: &str) -> Option<Incident> {
    serde_json::from_slice(&store.file(id, RECORD).ok()?).ok()
}

fn take(open: &mut Open, lines: &[u8]) {
    let marker = format!("\"incident\":\"{}\"", open.incident.id);
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let ours = line.windows(marker.len()).any(|part| part == marker.as_bytes());
        if ours && open.lines.len() + line.len() <= LINES {
            open.lines.extend_from_slice(line);
            open.incident.read(line);
            open.news = true;
        }
    }
}

fn record_of(incident: &Incident) -> (String, Vec<u8>) {
    let text = serde_json::to_string_pretty(incident).unwrap_or_default();
    (RECORD.to_owned(), printable::json(&text).into_owned().into_bytes())
}

/// The files that contain nothing but the record.
fn texts(incident: &Incident) -> Vec<(String, Vec<u8>)> {
    vec![record_of(incident), ("report.md".to_owned(), report(incident).into_bytes())]
}

fn files(open: &Open, samples: &[Sample]) -> Vec<(String, Vec<u8>)> {
    let incident = &open.incident;
    let samples = of_incident(incident, samples);
    let picture = plot::draw(&chart(incident, &samples), WIDTH, HEIGHT, &Theme::LIGHT);
    let mut files = texts(incident);
    files.extend([
        ("processes.csv".to_owned(), open.processes.clone().into_bytes()),
        ("audit.jsonl".to_owned(), open.lines.clone()),
        ("memory.svg".to_owned(), svg::render(&picture, printable::is_hidden).into_bytes()),
    ]);
    files.extend(csv(&samples));
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::finding::Subject;
    use crate::model::frame::Frame;
    use crate::model::health::Rule;
    use crate::model::ids::ProcessKey;
    use crate::model::outlook::{Conclusion, Forecast, Outlook};
    use crate::model::units::Bytes;
    use crate::protection::enforce::executor::BackgroundExecutor as _;
    use crate::protection::policy::Reason;
    use crate::protection::record::ledger::{CompletedStep, Ledger};
    use crate::protection::record::record_step::RecordExecutor;
    use crate::protection::types::audit::Reading;
    use crate::protection::types::incident::Circumstances;
    use crate::protection::types::rung::State;
    use crate::protection::types::step::{SignalNumber, Step, TargetId, Touched, Work};
    use std::sync::LazyLock;

    #[track_caller]
    fn until(mut check: impl FnMut() -> bool) {
        let begun = clock::now();
        while !check() {
            assert!(clock::now().since(begun) < Duration::from_secs(20), "waited too long");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    struct Room {
        folder: tempfile::TempDir,
        store: Store,
        recorder: Arc<Recorder>,
        ledger: Ledger,
    }

    fn room(folder: tempfile::TempDir) -> Room {
        let store = Store::new(folder.path().join("incidents"));
        let audit = AuditLog::start(None).unwrap();
        let flight = SharedFlight::default();
        flight.lock().unwrap().push(Sample {
            at: Timestamp::from_secs(9),
            subject: "host".into(),
            used: Some(Bytes::new(5)),
            limit: Some(Bytes::new(10)),
        });
        let proc = folder.path().join("proc");
        std::fs::create_dir_all(&proc).unwrap();
        // A frame with a healthy host.
        let healthy =
            Forecast { used_bytes: 5.0, limit_bytes: 10.0, rule: Rule::None, ..Forecast::default() };
        let host = Conclusion { subject: Subject::host(), forecast: Some(healthy), ..Conclusion::default() };
        let frame = Frame {
            sequence: 1,
            at: Timestamp::from_secs(9),
            families: Vec::new(),
            sources: Vec::new(),
            findings: Vec::new(),
            outlook: Outlook { conclusions: vec![host], ..Outlook::default() },
            timeline: Arc::default(),
            acknowledged: Arc::default(),
        };
        let frames = SharedFrames::new(Mutex::new(vec![Arc::new(frame)]));
        let recorder =
            Recorder::start(Some(store.clone()), audit.clone(), proc, flight, frames, None).unwrap();
        let recorder = Arc::new(recorder);
        let ledger = Ledger::new(audit, Arc::clone(&recorder), "ab12");
        Room { folder, store, recorder, ledger }
    }

    fn turn<'a>(
        second: u64,
        target: &'a Label,
        from: &'static str,
        to: &'static str,
    ) -> LoggedTransition<'a> {
        static POLICY: LazyLock<Arc<str>> = LazyLock::new(|| "job (enforce): SIGTERM, then SIGKILL.".into());
        const READINGS: &[Reading] = &[Reading {
            what: "headroom_bytes",
            value: Some(7.0),
            threshold: Some(9.0),
            age_seconds: Some(0.1),
        }];
        LoggedTransition {
            at: Timestamp::from_secs(second),
            slot: TargetId(3),
            target,
            workload: target,
            user: Some(7),
            mode: "enforce",
            from,
            to,
            reason: Reason::Leak,
            readings: READINGS,
            reading: None,
            under_way: !matches!(to, "ok"),
            policy: &POLICY,
        }
    }

    fn read(store: &Store, id: &str) -> Incident {
        serde_json::from_slice(&store.file(id, RECORD).unwrap()).unwrap()
    }

    #[test]
    fn an_escalation_leaves_an_incident_folder() {
        let mut room = room(tempfile::tempdir().unwrap());
        let job = Label::from("job a");
        let (store, ledger) = (room.store.clone(), &mut room.ledger);
        ledger.moved(&turn(10, &job, "warn", "soft"));
        let id = ledger.incident(TargetId(3)).unwrap().to_owned();
        assert_eq!(id, "19700101T000010.000Z-job-a");
        // It is there while the incident goes on.
        until(|| store.file(&id, RECORD).is_ok());
        let key = ProcessKey { pid: 77, start: 5 };
        let work = Work::Signal { process: key, signal: SignalNumber::KILL, only_if_caught: false };
        let step = Step { target: TargetId(3), stage: State::Kill, work };
        ledger.moved(&turn(11, &job, "soft", "kill"));
        let number = ledger.before(Timestamp::from_secs(11), &step);
        let done = Ok(StepDone { outcome: Outcome::Started(Ticket(5)), processes: 40 });
        let touched: Vec<Touched> = (0..40)
            .map(|pid| Touched {
                key: ProcessKey { pid, start: 1 },
                uid: 0,
                comm: [0; 16],
                resident: 1,
                errno: 0,
            })
            .collect();
        let completed = CompletedStep { number, step: &step, result: &done, micros: 30, touched: &touched };
        ledger.after(Timestamp::from_secs(11), &completed);
        let late = StepError::TimedOut { within: Duration::from_secs(1), left: 2 };
        ledger.ended(Timestamp::from_secs(13), &Finished::new(Ticket(5), Err(late)));
        ledger.moved(&turn(14, &job, "cooldown", "ok"));
        assert_eq!(ledger.incident(TargetId(3)), None);
        until(|| room.recorder.status().written == 1);
        let incident = read(&store, &id);
        assert_eq!(incident.circumstances, Circumstances::default(), "a leak names no resource");
        assert_eq!((incident.moves.len(), incident.steps.len(), incident.processes().len()), (3, 1, 40));
        assert_eq!(incident.ended_unix_seconds, Some(14.0));
        assert_eq!(incident.summary, "Memory of job a ran low; it was killed.");
        assert_eq!((incident.config.as_str(), incident.policy.is_empty()), ("ab12", false));
        let step = &incident.steps[0];
        assert_eq!((step.result.as_deref(), step.ended_after_seconds), (Some("failed"), Some(2.0)));
        for file in ["report.md", "memory.svg", "memory-host.csv", "processes.csv", "audit.jsonl"] {
            assert!(!store.file(&id, file).unwrap().is_empty(), "{file}");
        }
        drop(room.folder);
    }

    #[test]
    fn a_step_that_ends_when_the_slot_has_another_job_belongs_to_the_incident_of_its_own() {
        let mut room = room(tempfile::tempdir().unwrap());
        let (first, second) = (Label::from("first"), Label::from("second"));
        let ledger = &mut room.ledger;
        ledger.moved(&turn(10, &first, "soft", "kill"));
        let work = Work::KillTree { roots: [ProcessKey { pid: 77, start: 5 }].into() };
        let step = Step { target: TargetId(3), stage: State::Kill, work };
        let number = ledger.before(Timestamp::from_secs(10), &step);
        ledger.left(Timestamp::from_secs(11), TargetId(3));
        ledger.moved(&turn(12, &second, "warn", "soft"));
        let id = ledger.incident(TargetId(3)).unwrap().to_owned();
        let result = Ok(StepDone { outcome: Outcome::Done, processes: 1 });
        let key = ProcessKey { pid: 77, start: 5 };
        let touched = &[Touched { key, uid: 0, comm: [0; 16], resident: 1, errno: 0 }];
        ledger.after(
            Timestamp::from_secs(13),
            &CompletedStep { number, step: &step, result: &result, micros: 30, touched },
        );
        ledger.moved(&turn(14, &second, "cooldown", "ok"));
        until(|| room.recorder.status().written == 2);
        let audit = room.store.file(&id, "audit.jsonl").unwrap();
        let entries: Vec<String> = String::from_utf8(audit)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["entry"].to_string())
            .collect();
        assert_eq!(entries, ["\"transition\""; 2], "nothing of the kill of the other job");
        drop(room.folder);
    }

    #[test]
    fn an_incident_has_the_reading_of_its_own_job() {
        let mut room = room(tempfile::tempdir().unwrap());
        let reason = Reason::Level(Resource::Host);
        let [headroom, total] = [Bytes::new(6), Bytes::new(12)];
        let reading = Some(policy::Reading { headroom, total, fast: Some(3.0), slow: None });
        let job = Label::from("job");
        room.ledger.moved(&LoggedTransition { reason, reading, ..turn(10, &job, "warn", "soft") });
        let id = room.ledger.incident(TargetId(3)).unwrap().to_owned();
        until(|| ["report.md", RECORD].iter().all(|file| room.store.file(&id, file).is_ok()));
        let expected = Circumstances {
            resource: Some("host".to_owned()),
            used_bytes: Some(6.0),
            limit_bytes: Some(12.0),
            growth_bytes_per_second: Some(3.0),
            ..Circumstances::default()
        };
        assert_eq!(read(&room.store, &id).circumstances, expected);
        let report = String::from_utf8(room.store.file(&id, "report.md").unwrap()).unwrap();
        assert!(report.contains("| limit | 12 B |") && !report.contains("| step |"), "{report}");
    }

    #[test]
    fn two_jobs_of_a_target_have_an_incident_each() {
        let mut room = room(tempfile::tempdir().unwrap());
        let job = Label::from("job");
        room.ledger.moved(&turn(10, &job, "warn", "soft"));
        room.ledger.moved(&LoggedTransition { slot: TargetId(4), ..turn(10, &job, "warn", "soft") });
        let [one, other] = [3, 4].map(|slot| room.ledger.incident(TargetId(slot)).unwrap().to_owned());
        assert_eq!((one.as_str(), other), ("19700101T000010.000Z-job", format!("{one}-4")));
        room.ledger.moved(&turn(11, &job, "soft", "kill"));
        assert!(room.recorder.flush(Duration::from_secs(20)));
        // Whoever comes after one that left has an incident of its own.
        room.ledger.left(Timestamp::from_secs(12), TargetId(3));
        assert_eq!(room.ledger.incident(TargetId(3)), None);
        assert!(room.recorder.flush(Duration::from_secs(20)));
        assert_eq!(read(&room.store, &one).ended_unix_seconds, Some(12.0));
        let moves = [one.clone(), format!("{one}-4")].map(|id| read(&room.store, &id).moves.len());
        assert_eq!(moves, [2, 1]);
    }

    #[test]
    fn an_incident_that_a_restart_cut_short_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("incidents"));
        let open = Incident {
            id: "i1".to_owned(),
            began_unix_seconds: 5.0,
            moves: vec![crate::protection::types::incident::Move { unix_seconds: 8.0, ..Default::default() }],
            ..Incident::default()
        };
        store.write("i1", &[record_of(&open)]).unwrap();
        let room = room(folder);
        assert!(room.recorder.flush(Duration::from_secs(20)));
        let closed = read(&room.store, "i1");
        assert_eq!(closed.ended_unix_seconds, Some(8.0));
        assert_eq!(closed.facts["interrupted"], "memwarden ended during the incident");
    }

    #[test]
    fn what_the_kernel_did_is_recorded_at_once() {
        let room = room(tempfile::tempdir().unwrap());
        let incident = Incident {
            id: "i1".to_owned(),
            cause: Cause::KernelOom,
            summary: "The kernel killed a process.".to_owned(),
            ..Incident::default()
        };
        room.recorder.record(incident);
        until(|| room.recorder.status().written == 1);
        let read = read(&room.store, "i1");
        assert_eq!((read.cause, read.summary.as_str()), (Cause::KernelOom, "The kernel killed a process."));
    }

    fn kill(second: u64, user: u32, cgroup: &str, pid: u32) -> Incident {
        let facts = [("kills", 1.0.into()), (VICTIM, pid.to_string().into())];
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let unix = second as f64;
        Incident {
            id: crate::protection::types::incident::name(Timestamp::from_secs(second), cgroup),
            cause: Cause::KernelOom,
            user: Some(user),
            target: cgroup.to_owned(),
            began_unix_seconds: unix,
            ended_unix_seconds: Some(unix),
            summary: format!("The kernel killed sh (pid {pid})."),
            facts: facts
                .map(|(name, value): (&str, serde_json::Value)| (name.to_owned(), value))
                .into_iter()
                .collect(),
            ..Incident::default()
        }
    }

    fn count(store: &Store, cause: Cause, user: u32) -> usize {
        let records = store.names().unwrap().into_iter().map(|(id, _)| read(store, &id));
        records.filter(|record| record.cause == cause && record.user == Some(user)).count()
    }

    #[test]
    fn a_user_whose_cgroups_are_killed_200_times_evicts_no_record_of_others_or_of_protection() {
        let mut protection = room(tempfile::tempdir().unwrap());
        let job = Label::from("job");
        for second in 1..=20 {
            protection.ledger.moved(&turn(2 * second, &job, "warn", "soft"));
            protection.ledger.moved(&turn(2 * second + 1, &job, "soft", "ok"));
            assert!(protection.recorder.flush(Duration::from_secs(20)));
        }
        for second in 50..60 {
            protection.recorder.record(kill(second, 1001, &format!("/user-1001/job-{second}"), 5));
        }
        assert!(protection.recorder.flush(Duration::from_secs(20)));
        let attack = |room: &Room, seconds: std::ops::Range<u64>| {
            for second in seconds {
                room.recorder.record(kill(second, 1002, &format!("/user-1002/{second}"), 6));
                assert!(room.recorder.flush(Duration::from_secs(20)));
            }
        };
        attack(&protection, 100..200);
        let Room { folder, store, recorder, ledger } = protection;
        drop((recorder, ledger));
        // Nothing is forgotten after a restart.
        let protection = room(folder);
        attack(&protection, 200..300);
        assert_eq!(count(&store, Cause::Policy, 7), 20);
        assert_eq!(count(&store, Cause::KernelOom, 1001), 10);
        assert_eq!(count(&store, Cause::KernelOom, 1002), 40);
        assert!(store.names().unwrap().iter().any(|(id, _)| id.ends_with("user-1002-299")));
    }

    #[test]
    fn repeated_kills_in_one_cgroup_are_one_record() {
        let first = room(tempfile::tempdir().unwrap());
        for second in 100..150 {
            first.recorder.record(kill(second, 1002, "/a", 6));
        }
        first.recorder.record(kill(150, 1002, "/b", 7));
        assert!(first.recorder.flush(Duration::from_secs(20)));
        assert_eq!(first.recorder.status().written, 2);
        let Room { folder, store, recorder, ledger } = first;
        drop((recorder, ledger));
        let second = room(folder);
        second.recorder.record(kill(151, 1002, "/a", 8));
        assert!(second.recorder.flush(Duration::from_secs(20)));
        let listed: Vec<String> = store.names().unwrap().into_iter().map(|(id, _)| id).collect();
        assert_eq!(listed, ["19700101T000140.000Z-a", "19700101T000230.000Z-b"]);
        let record = read(&store, &listed[0]);
        assert_eq!((record.began_unix_seconds, record.ended_unix_seconds), (100.0, Some(151.0)));
        assert_eq!(
            record.summary,
            "The kernel killed sh (pid 6). Kills in this cgroup until 1970-01-01 00:02:31 UTC: 51."
        );
        assert_eq!(
            [VICTIM, "last_victim_pid"].map(|fact| record.facts[fact].as_str()),
            [Some("6"), Some("8")]
        );
        assert!(!store.file(&listed[0], "processes.csv").unwrap().is_empty(), "that of the first kill");
        // An other limit was reached.
        let mut host = kill(152, 1002, "/a", 8);
        host.facts.insert("victim_scope".to_owned(), "host".into());
        second.recorder.record(host);
        assert!(second.recorder.flush(Duration::from_secs(20)));
        assert_eq!(store.names().unwrap().len(), 3);
    }

    #[test]
    fn an_exit_is_reported_once() {
        let mut room = room(tempfile::tempdir().unwrap());
        let job = Label::from("job");
        let record = |id: &str, cause, target: &str, pid: &str| Incident {
            id: id.to_owned(),
            cause,
            target: target.to_owned(),
            facts: [(VICTIM.to_owned(), pid.into())].into_iter().collect(),
            ..Incident::default()
        };
        room.recorder.record(record("i1", Cause::KernelOom, "/a", "5"));
        room.recorder.record(record("i2", Cause::Killed, "other", "5"));
        room.ledger.moved(&turn(10, &job, "warn", "soft"));
        room.recorder.record(record("i3", Cause::Killed, "job", "6"));
        room.recorder.record(record("i4", Cause::Killed, "other", "7"));
        assert!(room.recorder.flush(Duration::from_secs(20)));
        let listed: Vec<String> = room.store.names().unwrap().into_iter().map(|(id, _)| id).collect();
        assert_eq!(listed, ["19700101T000010.000Z-job", "i1", "i4"]);
    }

    #[test]
    fn a_step_of_the_plan_has_it_written_first() {
        let mut room = room(tempfile::tempdir().unwrap());
        let job = Label::from("job");
        room.ledger.moved(&turn(10, &job, "warn", "soft"));
        let id = room.ledger.incident(TargetId(3)).unwrap().to_owned();
        let mut errand = RecordExecutor::new(Arc::clone(&room.recorder));
        let step = Step { target: TargetId(3), stage: State::Soft, work: Work::Record };
        assert!(errand.begin(Ticket(8), &step));
        let mut finished = Vec::new();
        until(|| {
            errand.poll(&mut finished);
            !finished.is_empty()
        });
        assert_eq!(
            (finished[0].ticket, finished[0].result.as_ref().unwrap().outcome),
            (Ticket(8), Outcome::Done)
        );
        assert_eq!(read(&room.store, &id).target, "job");
        // The guard never waits for the log: a line that it could not add is added in a later round.
        until(|| {
            room.ledger.settle();
            room.recorder.flush(Duration::from_secs(5)) && read(&room.store, &id).moves.len() == 1
        });
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_reported_and_delays_nothing() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("incidents"), "in the way").unwrap();
        let mut room = room(folder);
        let job = Label::from("job");
        room.ledger.moved(&turn(10, &job, "warn", "soft"));
        until(|| room.recorder.status().trouble.is_some());
        room.ledger.moved(&turn(11, &job, "soft", "ok"));
        room.ledger.moved(&turn(12, &job, "warn", "soft"));
        std::fs::remove_file(room.folder.path().join("incidents")).unwrap();
        room.ledger.moved(&turn(13, &job, "soft", "ok"));
        until(|| room.recorder.status().written == 1);
        assert_eq!(room.recorder.status().trouble, None);
    }
}

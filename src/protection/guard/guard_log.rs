//! Log messages about the guard's transitions and steps, written by another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use super::journal::{CompletedStep, JobTransition};
use crate::host::task::{self, Task};
use crate::model::units::Bytes;
use crate::protection::options::target::Target;
use crate::protection::policy::{Mode, Resource, Transition};
use crate::protection::types::step::{Outcome, StepDone, StepError, Work};

/// Capacity of the queue: an incident has a few messages, and one per process.
const QUEUE: usize = 2048;

/// One log message. Contains no allocation.
#[derive(Clone, Copy, Debug)]
enum LogEntry {
    Moved {
        target: usize,
        mode: Mode,
        transition: Transition,
        host: Option<Bytes>,
        limit: Option<Bytes>,
    },
    Stepped {
        target: usize,
        mode: Mode,
        step: &'static str,
        pid: u32,
        how: StepOutcome,
        processes: u32,
        micros: u64,
    },
    Ended {
        slot: usize,
        step: &'static str,
        how: StepOutcome,
        took: Duration,
    },
}

/// The result of a step.
#[derive(Clone, Copy, Debug)]
enum StepOutcome {
    Went(Outcome),
    Refused(u32),
    Errno(i32),
    Late(u32),
    Failed,
}

impl StepOutcome {
    const fn of(result: &Result<StepDone, StepError>) -> Self {
        match result {
            Ok(done) => Self::Went(done.outcome),
            Err(StepError::Refused { pid, .. }) => Self::Refused(*pid),
            Err(StepError::System { errno, .. }) => Self::Errno(*errno),
            Err(StepError::TimedOut { left, .. }) => Self::Late(*left),
            Err(_) => Self::Failed,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Went(Outcome::Done) => "done".to_owned(),
            Self::Went(Outcome::Started(_)) => "started".to_owned(),
            Self::Went(Outcome::Saving(_)) => "saving".to_owned(),
            Self::Went(Outcome::WouldHave) => "would have been done".to_owned(),
            Self::Went(Outcome::Skipped(why)) => format!("skipped: {why}"),
            Self::Refused(pid) => format!("refused: pid {pid} is outside the scope"),
            Self::Errno(errno) => format!("failed: {}", std::io::Error::from_raw_os_error(errno)),
            Self::Late(0) => "timed out".to_owned(),
            Self::Late(left) => format!("timed out: {left} processes have not ended"),
            Self::Failed => "failed".to_owned(),
        }
    }
}

/// The guard's side of the log.
#[derive(Debug)]
pub(super) struct GuardLog {
    messages: SyncSender<LogEntry>,
    lost: Arc<AtomicU64>,
}

impl GuardLog {
    /// Starts the thread.
    pub(super) fn start(targets: Arc<[Target]>) -> std::io::Result<Self> {
        let (messages, received) = sync_channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let dropped = Arc::clone(&lost);
        task::start("guard-log", LogWriter { received, targets, lost: dropped })?;
        Ok(Self { messages, lost })
    }

    fn send(&self, message: LogEntry) {
        if self.messages.try_send(message).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn moved(&self, moved: &JobTransition) {
        let left = |resource| moved.observed.reading(resource).map(|reading| reading.value.headroom());
        self.send(LogEntry::Moved {
            target: moved.target,
            mode: moved.mode,
            transition: moved.transition,
            host: left(Resource::Host),
            limit: left(Resource::Cgroup),
        });
    }

    pub(super) fn after(&self, moved: &JobTransition, completed: &CompletedStep<'_>) {
        let pid = match &completed.step.work {
            Work::Signal { process, .. } => process.pid,
            _ => 0,
        };
        self.send(LogEntry::Stepped {
            target: moved.target,
            mode: moved.mode,
            step: completed.step.work.label(),
            pid,
            how: StepOutcome::of(completed.result),
            processes: completed.result.as_ref().map_or(0, |done| done.processes),
            micros: completed.micros,
        });
    }

    pub(super) fn ended(
        &self,
        slot: usize,
        (step, took): (&'static str, Duration),
        result: &Result<StepDone, StepError>,
    ) {
        self.send(LogEntry::Ended { slot, step, how: StepOutcome::of(result), took });
    }
}

/// The work of the thread.
struct LogWriter {
    received: Receiver<LogEntry>,
    targets: Arc<[Target]>,
    lost: Arc<AtomicU64>,
}

impl Task for LogWriter {
    fn step(&mut self, wait: bool) -> bool {
        let Some(word) = task::next(&self.received, wait) else { return false };
        let targets = &self.targets;
        match word {
            LogEntry::Moved { target, mode, transition, host, limit } => {
                log_transition(name(targets, target), mode, transition, [host, limit]);
            }
            LogEntry::Stepped { target, mode, step, pid, how, processes, micros } => {
                let target = name(targets, target);
                let (mode, how) = (mode.label(), how.text());
                tracing::info!(
                    name: "memwarden.protection.step",
                    target_name = target,
                    mode,
                    step,
                    pid,
                    outcome = how,
                    processes,
                    micros,
                    "Protection step carried out."
                );
            }
            LogEntry::Ended { slot, step, how, took } => {
                let micros = took.as_micros();
                tracing::info!(slot, step, outcome = how.text(), micros, "Protection step ended.");
            }
        }
        let count = self.lost.swap(0, Ordering::Relaxed);
        if count > 0 {
            tracing::warn!(count, "Lost log messages of the guard: the log thread was too slow.");
        }
        true
    }
}

fn name(targets: &[Target], place: usize) -> &str {
    targets.get(place).map_or("", |target| target.name.as_str())
}

fn log_transition(target: &str, mode: Mode, transition: Transition, left: [Option<Bytes>; 2]) {
    let (from, to, incident) = (transition.from.label(), transition.to.label(), transition.incident);
    let text = |left: Option<Bytes>| left.map_or_else(|| "unknown".to_owned(), |left| left.to_string());
    let ([host_left, limit_left], why) = (left.map(text), transition.reason.to_string());
    let verb = match (transition.acts(), mode) {
        (true, Mode::Enforce) => "acts",
        (true, _) => "would have acted",
        (false, _) => "changes state",
    };
    macro_rules! log {
        ($level:ident) => {
            tracing::$level!(
                name: "memwarden.protection.transition",
                target_name = target,
                from,
                to,
                incident,
                why,
                host_left,
                limit_left,
                "Protection {verb}."
            )
        };
    }
    if transition.acts() || transition.to == transition.from { log!(warn) } else { log!(info) }
}

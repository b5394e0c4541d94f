//! The steps of protection, and their results.
//!
//! A plan is a list of [`Step`]s and has no effect by itself; an [`Executor`] carries steps out one at a time, and
//! checks each against the target's [`Scope`] again, so that a wrong plan cannot signal a process outside it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::run_request::{RunQuery, RunRequest};
use super::rung::State;
use super::scope::{Refusal, Scope};
pub use super::step_error::StepError;
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::names::named;
use crate::model::units::Bytes;

/// The id of a slot for the executor, which must have received its [`Scope`] before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct TargetId(pub u16);

/// A cgroup, identified by path and inode, since a new cgroup may have the path of a removed one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Group {
    /// The path below the root of the hierarchy, beginning with `/`.
    pub path: Label,
    /// The inode number of its folder.
    pub inode: u64,
}

/// The number of a signal, 1 to 31 (signal(7)); real-time signals are not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct SignalNumber(u8);

impl SignalNumber {
    /// `SIGUSR1`, the usual request for a checkpoint.
    pub const USR1: Self = Self(10);
    /// `SIGKILL`.
    pub const KILL: Self = Self(9);
    /// `SIGSTOP`.
    pub const STOP: Self = Self(19);
    /// `SIGTERM`.
    pub const TERM: Self = Self(15);

    /// The signal with that number; absent where there is none.
    pub const fn new(number: u8) -> Option<Self> {
        if number >= 1 && number <= 31 { Some(Self(number)) } else { None }
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A hook: a program with its arguments, started without a shell.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Hook {
    /// The program's absolute path.
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Time after which its whole session is killed; at most 60 s.
    pub timeout: Duration,
}

pub use super::marker::{Marker, MarkerKind};
pub use super::service_address::ServiceAddress;
use super::service_address::serialize;
pub use super::touched::Touched;

/// How a job acknowledges a checkpoint request, other than on the job socket.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acknowledgement {
    /// A file that it writes after the request: the content `saving` extends the time limit, any other means saved.
    File(PathBuf),
    /// Another marker of a complete checkpoint.
    Marker(Marker),
}

/// The action of a step.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Work {
    /// Write the incident record to the disk.
    Record,
    /// Start a hook.
    Hook {
        hook: Arc<Hook>,
        /// The JSON on its standard input.
        input: Arc<str>,
    },
    /// Send one process one signal.
    Signal {
        process: ProcessKey,
        signal: SignalNumber,
        /// Whether to send nothing where the process has no handler: most signals would terminate it.
        only_if_caught: bool,
    },
    /// Create a file that the job watches, or set its time, with the rights of the process and as it sees the path.
    Touch {
        /// A process of the job.
        process: ProcessKey,
        /// The absolute path.
        path: Arc<Path>,
    },
    /// Ask the daemons of the other nodes of a run to request a checkpoint of it too.
    AskRun(Arc<RunQuery>),
    /// Record the request of another node that caused the incident.
    RunRequested { request: Arc<RunRequest> },
    /// Record the cgroup that systemd-oomd was about to kill, which caused the incident.
    PrekillNotified {
        /// The path of the cgroup.
        cgroup: Arc<str>,
    },
    /// Wait for the checkpoint acknowledgement.
    Await {
        /// How the job acknowledges.
        by: Arc<Acknowledgement>,
        /// The time limit.
        within: Duration,
    },
    /// Kill all processes of a cgroup at once.
    KillGroup { group: Group },
    /// Kill processes and their descendants, repeatedly until none is left.
    KillTree {
        /// The roots, and other known members.
        roots: Arc<[ProcessKey]>,
    },
    /// Release the memory of killed processes (process_mrelease(2)), on another thread.
    Release {
        /// The processes, largest first.
        processes: Arc<[ProcessKey]>,
    },
    /// Raise the memory limit of a cgroup or of an ancestor, where all its processes belong to the target.
    Raise {
        group: Group,
        /// The inode of the group with the limit: this group or an ancestor.
        limited: u64,
        /// The limit before, in bytes.
        from: Bytes,
        /// The limit after, in bytes.
        to: Bytes,
    },
    /// Freeze a cgroup.
    Freeze { group: Group },
    /// Thaw a cgroup.
    Thaw { group: Group },
    /// Send a JSON document to a web service.
    Webhook {
        /// The URL; displayed and recorded by its host only, since the rest is often a secret.
        #[serde(serialize_with = "serialize")]
        url: Arc<str>,
        /// The document.
        body: Arc<str>,
    },
    /// Wait until processes have ended and a cgroup is empty.
    AwaitEnd {
        processes: Arc<[ProcessKey]>,
        group: Option<Group>,
        /// The time limit.
        within: Duration,
    },
}

impl Work {
    /// Whether the time that it takes grows with the number of processes of a job.
    pub const fn lists(&self) -> bool {
        matches!(
            self,
            Self::KillGroup { .. }
                | Self::KillTree { .. }
                | Self::Release { .. }
                | Self::AwaitEnd { .. }
                | Self::Raise { .. }
                | Self::Freeze { .. }
        )
    }

    /// Whether it kills processes.
    pub const fn kills(&self) -> bool {
        matches!(self, Self::KillGroup { .. } | Self::KillTree { .. })
    }

    /// The value of the `step` label.
    pub const fn label(&self) -> &'static str {
        self.kind().label()
    }

    pub const fn kind(&self) -> StepKind {
        match self {
            Self::Record => StepKind::Record,
            Self::Hook { .. } => StepKind::Hook,
            Self::Signal { .. } => StepKind::Signal,
            Self::Touch { .. } => StepKind::Touch,
            Self::AskRun(_) => StepKind::AskRun,
            Self::RunRequested { .. } => StepKind::RunRequested,
            Self::PrekillNotified { .. } => StepKind::PrekillNotified,
            Self::Await { .. } => StepKind::Await,
            Self::KillGroup { .. } => StepKind::KillGroup,
            Self::KillTree { .. } => StepKind::KillTree,
            Self::Release { .. } => StepKind::Release,
            Self::Raise { .. } => StepKind::Raise,
            Self::Freeze { .. } => StepKind::Freeze,
            Self::Thaw { .. } => StepKind::Thaw,
            Self::Webhook { .. } => StepKind::Webhook,
            Self::AwaitEnd { .. } => StepKind::AwaitEnd,
        }
    }
}

named! {
    /// The kinds of steps, in the order of their counters.
    pub enum StepKind {
        Record = "record",
        Hook = "hook",
        Signal = "signal",
        Touch = "touch",
        AskRun = "ask_run",
        RunRequested = "run_requested",
        PrekillNotified = "prekill_notified",
        Await = "await",
        KillGroup = "kill_group",
        KillTree = "kill_tree",
        Release = "release",
        Raise = "raise",
        Freeze = "freeze",
        Thaw = "thaw",
        Webhook = "webhook",
        AwaitEnd = "await_end",
    }
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Step {
    /// The slot.
    pub target: TargetId,
    /// The state that it belongs to.
    pub stage: State,
    /// The document.
    #[serde(flatten)]
    pub work: Work,
}

/// A step that has not ended when [`Executor::perform`] returns; [`Executor::poll`] returns its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Ticket(pub u64);

/// Why a step was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Skip {
    /// The process has ended, or its pid belongs to another process.
    Gone,
    /// The process has no handler for the signal.
    NotCaught,
    /// The kernel or cgroup does not support it.
    Unsupported,
    /// The maximum number of pending steps of its kind is reached.
    Busy,
    /// The audit log cannot be written, from which a later daemon would know what to undo.
    Unrecorded,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "the process has ended",
            Self::NotCaught => "no handler for the signal",
            Self::Unsupported => "not supported",
            Self::Busy => "too many pending steps of this kind",
            Self::Unrecorded => "the audit log is not written, and nobody would undo it after a crash",
        })
    }
}

/// The outcome of a step that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Done,
    /// It has started; [`Executor::poll`] returns its end.
    Started(Ticket),
    /// The job reports that it is saving its checkpoint; the step has not ended.
    Saving(Ticket),
    Skipped(Skip),
    /// It would have been done in mode `enforce`.
    WouldHave,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Started(_) => f.write_str("started"),
            Self::Saving(_) => f.write_str("saving"),
            Self::Skipped(why) => write!(f, "skipped: {why}"),
            Self::WouldHave => f.write_str("would have"),
        }
    }
}

/// The result of a step that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StepDone {
    /// How it went.
    pub outcome: Outcome,
    /// Number of processes that were signalled, or would have been; for a cgroup that was killed at once, its
    /// processes.
    pub processes: u32,
}

/// The result of a step that ended later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The hook.
    pub ticket: Ticket,
    /// The result; [`Outcome::Saving`] is not an end.
    pub result: Result<StepDone, StepError>,
    /// The output of a hook or web service, at most 4 KiB; empty otherwise.
    pub output: Box<str>,
}

impl Finished {
    /// A result without output.
    pub fn new(ticket: Ticket, result: Result<StepDone, StepError>) -> Self {
        Self { ticket, result, output: "".into() }
    }
}

/// Time after which a step that another thread carries out counts as hanging: a kill of the maximum number of processes
/// takes seconds. It then takes the place of no other step.
pub const HANG_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a step is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// By [`Executor::perform`], for which the caller waits.
    Here,
    /// By another thread, after [`Executor::hand_over`].
    Elsewhere,
    /// By another thread, of which none is free.
    Nowhere,
}

/// Carries steps out: the only code that signals processes, kills them and starts hooks.
///
/// `perform` never blocks: what takes longer than its calls is started, and its end returned by `poll`. A step on many
/// processes is handed over to another thread. It must check
/// every process against the scope of the step's slot immediately before it signals, whatever the plan contains, and
/// must signal no process for a slot without a scope.
pub trait Executor: Send + fmt::Debug {
    /// Replaces the scope of a slot; `None` removes it.
    ///
    /// # Errors
    /// Why the scope must not be used ([`Scope::sound`]); the target then has none.
    fn bound(&mut self, target: TargetId, scope: Option<Scope>) -> Result<(), Refusal>;

    /// Carries out one step.
    ///
    /// # Errors
    /// Why it could not be done. A step on many processes that failed for some is done; `touched` has their errors.
    fn perform(&mut self, step: &Step) -> Result<StepDone, StepError>;

    /// Where a step is carried out now.
    fn place(&self, _step: &Step) -> Place {
        Place::Here
    }

    /// Hands a step over to another thread, where [`Executor::place`] says so. [`Executor::poll`] returns its result, as
    /// `perform` would, by the ticket; its end, where that is later, has another ticket.
    ///
    /// # Errors
    /// Why it could not be handed over.
    fn hand_over(&mut self, step: &Step) -> Result<Ticket, StepError> {
        Err(StepError::NoScope(step.target))
    }

    /// The processes that a step which was handed over has reached, from its result to the next step that is handed over.
    fn touched_by(&self, _ticket: Ticket) -> &[Touched] {
        &[]
    }

    /// The guard ends: steps that were handed over stop no further process, and kill those that they have stopped.
    fn hurry(&mut self) {}

    /// Checks with signal 0 whether one step could be carried out, and does nothing.
    ///
    /// # Errors
    /// As [`Executor::perform`].
    fn rehearse(&mut self, step: &Step) -> Result<StepDone, StepError>;

    /// The processes that the last `perform` reached.
    fn touched(&self) -> &[Touched];

    /// Adds the steps that have ended since the last call to `finished`.
    fn poll(&mut self, finished: &mut Vec<Finished>);

    /// The incident of a slot is over: its pending steps are dropped.
    fn forget(&mut self, target: TargetId);
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record => f.write_str("write the incident record"),
            Self::Hook { hook, .. } => {
                write!(f, "run {} (at most {} s)", hook.program.display(), hook.timeout.as_secs())
            }
            Self::Signal { process, signal, only_if_caught } => {
                let condition = if *only_if_caught { ", if it has a handler" } else { "" };
                write!(f, "send signal {} to pid {}{condition}", signal.get(), process.pid)
            }
            Self::Touch { path, process } => {
                write!(f, "touch {} as pid {} does", path.display(), process.pid)
            }
            Self::AskRun(query) => {
                let RunQuery { run, request, .. } = &**query;
                write!(f, "ask the other nodes of run {run} for a checkpoint (incident {})", request.incident)
            }
            Self::RunRequested { request } => {
                let RunRequest { from, reason, incident, .. } = &**request;
                write!(
                    f,
                    "record that {from} asked for a checkpoint of the run: {reason} (incident {incident})"
                )
            }
            Self::PrekillNotified { cgroup } => {
                write!(f, "record that systemd-oomd was about to kill {cgroup}")
            }
            Self::Await { by, within } => match &**by {
                Acknowledgement::File(path) => {
                    write!(f, "wait up to {} s for {}", within.as_secs(), path.display())
                }
                Acknowledgement::Marker(marker) => {
                    write!(f, "wait up to {} s until {marker}", within.as_secs())
                }
            },
            Self::KillGroup { group } => write!(f, "kill all processes in {}", group.path),
            Self::KillTree { roots } => write!(f, "kill {} processes and their descendants", roots.len()),
            Self::Release { processes } => write!(f, "release the memory of {} processes", processes.len()),
            Self::Raise { group, from, to, .. } => {
                write!(f, "raise the memory limit of {} from {from} to {to}", group.path)
            }
            Self::Freeze { group } => write!(f, "freeze {}", group.path),
            Self::Thaw { group } => write!(f, "thaw {}", group.path),
            Self::Webhook { url, .. } => write!(f, "call webhook {}", ServiceAddress(url)),
            Self::AwaitEnd { processes, within, .. } => {
                write!(f, "wait up to {} s for {} processes to end", within.as_secs(), processes.len())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_web_service_is_shown_without_its_secrets() {
        let shown = |url: &str| ServiceAddress(url).to_string();
        assert_eq!(shown("http://chat:8080/services/T0/s3cret?key=s3cret"), "http://chat:8080");
        assert_eq!(shown("http://ada:s3cret@chat/x@y"), "http://chat");
        assert_eq!(shown("http://chat?s3cret"), "http://chat");
        assert_eq!((shown("chat/s3cret"), shown("")), ("chat".to_owned(), String::new()));
        let work = Work::Webhook { url: "http://chat/s3cret".into(), body: "{}".into() };
        let json = serde_json::to_string(&work).unwrap();
        assert_eq!(json, r#"{"do":"webhook","url":"http://chat","body":"{}"}"#);
        assert_eq!(work.to_string(), "call webhook http://chat");
    }
}

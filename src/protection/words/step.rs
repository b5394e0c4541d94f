//! What protection may ask for, and what became of it.
//!
//! A plan is a list of [`Step`]s and does nothing by itself; an [`Executor`]
//! carries steps out one at a time, and checks each against the target's
//! [`Scope`] once more, so that a wrong plan reaches nobody outside it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::scope::{Refusal, Scope};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;

/// A target of the configuration, by its place in the list; its [`Scope`] is given to the executor before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(transparent)]
pub struct TargetId(pub u16);

/// A cgroup: a path means nothing without its inode, since a new group may have the name of an old one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Group {
    /// The path below the root of the hierarchy, beginning with `/`.
    pub path: Label,
    /// The inode number of its folder.
    pub inode: u64,
}

/// Which rung of the ladder asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Little time or headroom is left.
    Warn,
    /// The soft level was crossed.
    Soft,
    /// The job is asked to write a checkpoint.
    Checkpoint,
    /// The job is asked to end.
    Term,
    /// The job is ended.
    Kill,
    /// What was ended is waited for.
    Verify,
    /// It is over.
    Cooldown,
}

impl Stage {
    /// Every stage, so that its counters start at zero.
    pub const ALL: [Self; 7] =
        [Self::Warn, Self::Soft, Self::Checkpoint, Self::Term, Self::Kill, Self::Verify, Self::Cooldown];

    /// The value of the `stage` label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Soft => "soft",
            Self::Checkpoint => "checkpoint",
            Self::Term => "term",
            Self::Kill => "kill",
            Self::Verify => "verify",
            Self::Cooldown => "cooldown",
        }
    }
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

    /// The signal with that number, or nothing where there is none.
    pub const fn new(number: u8) -> Option<Self> {
        if number >= 1 && number <= 31 { Some(Self(number)) } else { None }
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A hook: a program with its arguments, started without a shell.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Hook {
    /// The program's absolute path.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// When its whole session is killed; at most 60 s.
    pub timeout: Duration,
}

/// How a job says that its checkpoint is being written, or is written.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Acknowledgement {
    /// A file it writes after the request: `saving` in it means that more time is needed, anything else `saved`.
    File(PathBuf),
    /// A message on the job socket from the workload; whoever reads the socket tells.
    Job(Label),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Work {
    /// Write what is known to the disk, before anything else happens.
    Record,
    /// Start a hook; what it is told is the JSON on its input.
    Hook {
        /// Which.
        hook: Arc<Hook>,
        /// The JSON.
        input: Arc<str>,
    },
    /// Send one process one signal.
    Signal {
        /// The process.
        process: ProcessKey,
        /// The signal.
        signal: SignalNumber,
        /// Send nothing where the process has no handler for it: most signals would end it.
        only_if_caught: bool,
    },
    /// Wait until the job says that its checkpoint is written.
    Await {
        /// How it says so.
        by: Arc<Acknowledgement>,
        /// For how long.
        within: Duration,
    },
    /// Kill every process of a group at once.
    KillGroup {
        /// The group.
        group: Group,
    },
    /// Kill processes and whatever descends from them, and look again until there is nobody left.
    KillTree {
        /// The roots, and whoever else is known to belong to them.
        roots: Arc<[ProcessKey]>,
    },
    /// Take a killed process's memory away (process_mrelease(2)), on a thread of its own.
    Release {
        /// The processes, largest first.
        processes: Arc<[ProcessKey]>,
    },
    /// Stop a group where it stands.
    Freeze {
        /// The group.
        group: Group,
    },
    /// Let a stopped group go on.
    Thaw {
        /// The group.
        group: Group,
    },
    /// Send a JSON document to a web service.
    Webhook {
        /// Where; shown by its host only, since the rest is often a secret.
        #[serde(serialize_with = "place")]
        url: Arc<str>,
        /// What.
        body: Arc<str>,
    },
    /// Wait until processes are gone and a group is empty.
    AwaitEnd {
        /// The processes.
        processes: Arc<[ProcessKey]>,
        /// The group.
        group: Option<Group>,
        /// For how long.
        within: Duration,
    },
}

impl Work {
    /// A word for it: the value of the `step` label.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Hook { .. } => "hook",
            Self::Signal { .. } => "signal",
            Self::Await { .. } => "await",
            Self::KillGroup { .. } => "kill_group",
            Self::KillTree { .. } => "kill_tree",
            Self::Release { .. } => "release",
            Self::Freeze { .. } => "freeze",
            Self::Thaw { .. } => "thaw",
            Self::Webhook { .. } => "webhook",
            Self::AwaitEnd { .. } => "await_end",
        }
    }

    /// Whether it can end or stop a process, or reach one at all.
    pub const fn touches(&self) -> bool {
        !matches!(
            self,
            Self::Record
                | Self::Hook { .. }
                | Self::Await { .. }
                | Self::AwaitEnd { .. }
                | Self::Webhook { .. }
        )
    }
}

/// One thing that a plan asks for.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Step {
    /// For which target.
    pub target: TargetId,
    /// On which rung.
    pub stage: Stage,
    /// What.
    #[serde(flatten)]
    pub work: Work,
}

/// A step that goes on after [`Executor::perform`] has returned; [`Executor::poll`] tells its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct Ticket(pub u64);

/// Why a step had nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Skip {
    /// The process ended before, or its pid is another's by now.
    Gone,
    /// The process has no handler for the signal.
    NotCaught,
    /// This kernel or group has no such thing.
    Unsupported,
    /// As many of its kind are under way as there may be.
    Busy,
}

/// How a step went that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is done.
    Done,
    /// It goes on; [`Executor::poll`] tells the end.
    Started(Ticket),
    /// The job says that it is writing its checkpoint; the step goes on.
    Saving(Ticket),
    /// Nothing was to be done.
    Skipped(Skip),
    /// It would have been done, if this were not to observe or a drill.
    WouldHave,
}

/// What became of a step that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StepDone {
    /// How it went.
    pub outcome: Outcome,
    /// How many processes were signalled, or would have been; of a group that was killed at once, how many it had.
    pub processes: u32,
    /// How long it took, in microseconds.
    pub micros: u64,
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The target's scope does not allow it.
    #[error("pid {pid} is out of bounds: {refusal}")]
    Refused {
        /// The process, 0 for a group.
        pid: u32,
        /// Why.
        refusal: Refusal,
    },
    /// No scope was given for the target.
    #[error("target {} has no scope", .0.0)]
    NoScope(TargetId),
    /// The group at that path is another one by now, or none.
    #[error("cgroup {path} is not the one that was meant")]
    OtherGroup {
        /// The path.
        path: Label,
    },
    /// The kernel refused.
    #[error("{call} pid {pid}: errno {errno}")]
    System {
        /// The call.
        call: &'static str,
        /// The process, 0 for none.
        pid: u32,
        /// The error's number (errno(3)).
        errno: i32,
    },
    /// It took longer than it may.
    #[error("not within {} s: {left} processes are still there", .within.as_secs_f64())]
    TimedOut {
        /// How long it had.
        within: Duration,
        /// How many are left, where it is about processes.
        left: u32,
    },
    /// A hook or web service failed.
    #[error("{what}")]
    Outside {
        /// What happened, one sentence, cut to a few hundred bytes.
        what: Box<str>,
    },
}

impl StepError {
    /// The error's number (errno(3)), where the kernel gave one.
    pub const fn errno(&self) -> Option<i32> {
        match self {
            Self::System { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

/// One process that a step reached, or would have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The process.
    pub key: ProcessKey,
    /// Its real user.
    pub uid: u32,
    /// The kernel's name of it, filled up with zeros.
    pub comm: [u8; 16],
    /// Its resident memory, in bytes, as `stat` tells.
    pub resident: u64,
    /// The error's number (errno(3)), 0 for none.
    pub errno: i32,
}

/// The end of a step that went on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which.
    pub ticket: Ticket,
    /// How it ended; [`Outcome::Saving`] is no end.
    pub result: Result<StepDone, StepError>,
    /// What a hook or a web service said, at most 4 KiB; empty otherwise.
    pub said: Box<str>,
}

impl Finished {
    /// An end without words.
    pub fn new(ticket: Ticket, result: Result<StepDone, StepError>) -> Self {
        Self { ticket, result, said: "".into() }
    }
}

/// Carries steps out: the one thing that can signal, kill and start.
///
/// `perform` never waits: what takes longer than the calls it makes is started
/// and told by `poll`. It must check every process against the scope that was
/// given for the step's target immediately before it signals, whatever the
/// plan says, and must signal nobody for a target without one.
pub trait Executor: Send {
    /// Gives the scope of a target, in place of the one before; none takes it away.
    ///
    /// # Errors
    /// Why the scope must not be used ([`Scope::sound`]); the target then has none.
    fn bound(&mut self, target: TargetId, scope: Option<Scope>) -> Result<(), Refusal>;

    /// Carries out one step.
    ///
    /// # Errors
    /// Why it could not be done. A step on many processes that failed for some is done, and `touched` tells.
    fn perform(&mut self, step: &Step) -> Result<StepDone, StepError>;

    /// The processes that the last `perform` reached.
    fn touched(&self) -> &[Touched];

    /// Tells the steps that ended since, into `finished`.
    fn poll(&mut self, finished: &mut Vec<Finished>);

    /// The incident of a target is over: whatever still goes on for it is not waited for.
    fn forget(&mut self, target: TargetId);
}

/// The address of a web service for people: its scheme and host. Paths, queries and what is before an `@` hold the
/// secrets of chat services.
#[derive(Clone, Copy, Debug)]
pub struct Place<'u>(pub &'u str);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", self.0));
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = host.rsplit('@').next().unwrap_or_default();
        if !scheme.is_empty() {
            write!(f, "{scheme}://")?;
        }
        f.write_str(host)
    }
}

fn place<S: serde::Serializer>(url: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Place(url))
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record => f.write_str("write down what is known"),
            Self::Hook { hook, .. } => {
                write!(f, "run {} (at most {} s)", hook.program.display(), hook.timeout.as_secs())
            }
            Self::Signal { process, signal, only_if_caught } => {
                let condition = if *only_if_caught { ", if it has a handler" } else { "" };
                write!(f, "send signal {} to pid {}{condition}", signal.get(), process.pid)
            }
            Self::Await { by, within } => match &**by {
                Acknowledgement::File(path) => {
                    write!(f, "wait up to {} s for {}", within.as_secs(), path.display())
                }
                Acknowledgement::Job(job) => write!(f, "wait up to {} s for {job} to say", within.as_secs()),
            },
            Self::KillGroup { group } => write!(f, "kill everything in {}", group.path),
            Self::KillTree { roots } => write!(f, "kill {} processes and their children", roots.len()),
            Self::Release { processes } => write!(f, "take back the memory of {} processes", processes.len()),
            Self::Freeze { group } => write!(f, "stop {}", group.path),
            Self::Thaw { group } => write!(f, "let {} go on", group.path),
            Self::Webhook { url, .. } => write!(f, "tell {}", Place(url)),
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
        let shown = |url: &str| Place(url).to_string();
        assert_eq!(shown("http://chat:8080/services/T0/s3cret?key=s3cret"), "http://chat:8080");
        assert_eq!(shown("http://ada:s3cret@chat/x@y"), "http://chat");
        assert_eq!(shown("http://chat?s3cret"), "http://chat");
        assert_eq!((shown("chat/s3cret"), shown("")), ("chat".to_owned(), String::new()));
        let work = Work::Webhook { url: "http://chat/s3cret".into(), body: "{}".into() };
        let json = serde_json::to_string(&work).unwrap();
        assert_eq!(json, r#"{"do":"webhook","url":"http://chat","body":"{}"}"#);
        assert_eq!(work.to_string(), "tell http://chat");
    }
}

//! What is kept of a run that has ended.

use serde::{Deserialize, Serialize};

use crate::model::ends::ExitStatus;
use crate::model::fit::{Medium, Phase};
use crate::model::format;
use crate::model::label::Label;
use crate::model::printable;

/// What makes two runs of a user the same command.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Command {
    /// The user of the processes.
    pub user_id: u32,
    /// The file name of the script, or of the program.
    pub script: Label,
    /// The beginning of a hash of all arguments, which may contain secrets.
    pub arguments_hash: Label,
    /// The number of ranks of the run.
    pub world_size: u64,
    /// Elements of the model's parameters; absent where the job reports none.
    pub parameters: Option<u64>,
    /// Elements of those that are trained; absent where the job reports none.
    pub trainable: Option<u64>,
}

impl Command {
    /// Whether both are the same, as far as the shape of the model is known: a job may report it after its first step only.
    pub fn is_like(&self, other: &Self) -> bool {
        let is_like = |one: Option<u64>, other: Option<u64>| one.is_none() || other.is_none() || one == other;
        let names =
            |own: &Self| (own.user_id, own.world_size, own.script.clone(), own.arguments_hash.clone());
        names(self) == names(other)
            && is_like(self.parameters, other.parameters)
            && is_like(self.trainable, other.trainable)
    }
}

/// How a run ended, as far as it is known: the first of these that applies to one of its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The kernel's OOM killer killed a rank.
    OomKill,
    /// An allocation of a rank failed, and it completed no step after it.
    OutOfMemory,
    /// A rank ended itself because a phase would not fit (`MEMWARDEN_FIT=abort`).
    Aborted,
    /// A signal killed a rank, or it crashed.
    Killed,
    /// An exception that the program did not catch ended a rank.
    Exception,
    /// A rank ended with another exit status than 0.
    Failed,
    /// SIGTERM, SIGINT or SIGHUP ended a rank, or Ctrl-C.
    Terminated,
    /// The connection of a rank was closed without a word, and the kernel does not tell how it ended.
    Ended,
    /// Every rank said that it ends, or ended with exit status 0.
    Finished,
}

impl End {
    /// Whether the run ended for lack of memory.
    pub const fn is_memory(self) -> bool {
        matches!(self, Self::OutOfMemory | Self::OomKill | Self::Aborted)
    }

    /// Whether the run died: neither finished, nor was ended on purpose.
    pub const fn is_death(self) -> bool {
        !matches!(self, Self::Finished | Self::Terminated | Self::Ended)
    }
}

/// The signals by which people and launchers end a process: SIGHUP, SIGINT and SIGTERM.
const REQUESTS: [i32; 3] = [1, 2, 15];

/// How a run or one of its ranks ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The kind of its end.
    pub end: End,
    /// The type of the exception, the name of the signal, or the exit status; empty where there is none.
    #[serde(default)]
    pub cause: Label,
    /// Which memory the failed allocation was of; absent where that is not known, and for other ends.
    #[serde(default)]
    pub resource: Option<Medium>,
    /// The phase in which it ended, as the job names it; empty where it is not known, and where it finished.
    #[serde(default)]
    pub phase: Label,
}

impl Outcome {
    /// An end without details.
    pub fn of(end: End) -> Self {
        Self { end, cause: Label::default(), resource: None, phase: Label::default() }
    }

    /// The end by the exit status of a process (wait(2)), for one that did not say more.
    pub fn of_status(status: i32) -> Self {
        match ExitStatus::of_wait(status) {
            ExitStatus::Signal(signal) => {
                let end = if REQUESTS.contains(&signal) { End::Terminated } else { End::Killed };
                Self { cause: format::signal(u64::from(signal.unsigned_abs())).into(), ..Self::of(end) }
            }
            ExitStatus::Code(0) => Self::of(End::Finished),
            ExitStatus::Code(code) => Self { cause: code.to_string().into(), ..Self::of(End::Failed) },
        }
    }

    /// The end in words.
    pub fn words(&self) -> String {
        let cause = printable::escaped(self.cause.as_str());
        match (self.end, self.resource) {
            (End::OutOfMemory, Some(Medium::Device)) => "out of GPU memory".to_owned(),
            (End::OutOfMemory, Some(Medium::Host)) => "out of host memory".to_owned(),
            (End::OutOfMemory, _) => "out of memory".to_owned(),
            (End::OomKill, _) => "killed by the OOM killer".to_owned(),
            (End::Aborted, _) => "aborted, as it would not fit".to_owned(),
            (End::Killed, _) => format!("killed by {cause}"),
            (End::Exception, _) => format!("exception {cause}"),
            (End::Failed, _) => format!("exit status {cause}"),
            (End::Terminated, _) if self.cause.is_empty() => "terminated".to_owned(),
            (End::Terminated, _) => format!("terminated by {cause}"),
            (End::Ended, _) => "ended without a word".to_owned(),
            (End::Finished, _) => "finished".to_owned(),
        }
    }
}

/// The highest memory that was measured in a phase on a resource: that of the rank with the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhasePeak {
    pub phase: Phase,
    /// The kind of the resource.
    pub resource: Medium,
    /// The highest memory, in bytes, in the terms of [`Medium`].
    pub bytes: u64,
}

/// The highest memory that a process of a run held over its life, in measured phases or not: of the one with the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifePeak {
    /// The kind of the resource: `device`, as the allocators report it, or `host`, the resident memory.
    pub resource: Medium,
    /// The highest memory, in bytes.
    pub bytes: u64,
    /// How much of it came after the first [`SETTLING`] steps, in bytes; absent where it completed fewer. That of the one with
    /// the most.
    pub growth_bytes: Option<u64>,
}

/// Steps in which a run reaches its usual memory. The Python client measures as many.
pub const SETTLING: u64 = 16;

/// One run, on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PastRun {
    /// Counts all runs of the node.
    pub number: u64,
    /// The name of the run; empty where it is not known.
    pub run: Label,
    /// Number of its processes on this node that reported.
    pub ranks: u64,
    /// When its first rank was seen, in seconds since 1970.
    pub started_unix_seconds: f64,
    /// When its last rank had ended, in seconds since 1970.
    pub ended_unix_seconds: f64,
    /// The last optimizer step that a rank completed; absent before the first one.
    pub step: Option<u64>,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// By phase and resource.
    pub peaks: Vec<PhasePeak>,
    /// By resource.
    #[serde(default)]
    pub life_peaks: Vec<LifePeak>,
    /// How much the peak of a step rises with each token of a micro-batch, in bytes, as the job estimated it last; absent where
    /// it did not.
    pub bytes_per_token: Option<f64>,
}

/// A run with its command, as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShownRun {
    #[serde(flatten)]
    pub command: Command,
    #[serde(flatten)]
    pub past: PastRun,
}

/// What the daemon answers to `memwarden history` and `memwarden compare`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShownRuns {
    /// Grows when a key changes its meaning or disappears.
    pub schema_version: u32,
    /// The newest first.
    pub runs: Vec<ShownRun>,
}

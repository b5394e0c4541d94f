//! What is kept of a run that has ended.

use serde::{Deserialize, Serialize};

use crate::model::ends::{End, EndCause, EndEvidence, ExitStatus};
use crate::model::fit::{Medium, Phase};
use crate::model::format;
use crate::model::label::Label;
use crate::model::printable::escaped;

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

/// How a run or one of its ranks ended, by the typed end of the process, or by what the rank said where it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub cause: EndCause,
    /// Absent where it is not known.
    #[serde(default)]
    pub status: Option<ExitStatus>,
    /// The type of the exception that ended it; empty where none did.
    #[serde(default)]
    pub exception: Label,
    /// Which memory the failed allocation was of; absent where that is not known, and for other ends.
    #[serde(default)]
    pub resource: Option<Medium>,
    /// The phase in which it ended, as the job names it; empty where it is not known, and where it finished.
    #[serde(default)]
    pub phase: Label,
}

impl From<EndCause> for Outcome {
    /// An end without details.
    fn from(cause: EndCause) -> Self {
        Self { cause, ..Self::default() }
    }
}

impl From<&End> for Outcome {
    fn from(end: &End) -> Self {
        let mut own = Self { phase: end.phase.clone(), ..end.cause.into() };
        for seen in &end.evidence {
            match seen {
                EndEvidence::Status(status) => own.status = Some(*status),
                EndEvidence::Exception { name } => own.exception = name.clone(),
                _ => {}
            }
        }
        own.resource = match end.cause {
            EndCause::GpuMemory | EndCause::GpuNeighbor | EndCause::GpuFragmentation => Some(Medium::Device),
            EndCause::ProcessLimit => Some(Medium::Host),
            _ => None,
        };
        own
    }
}

impl Outcome {
    /// The end by the exit status of a process (wait(2)), for one that did not say more.
    pub fn of_status(status: i32) -> Self {
        let status = ExitStatus::of_wait(status);
        let cause = match status {
            ExitStatus::Signal(signal) if signal == KILL || REQUESTS.contains(&signal) => EndCause::Killed,
            ExitStatus::Code(0) => EndCause::Finished,
            _ => EndCause::Failed,
        };
        Self { status: Some(status), ..cause.into() }
    }

    fn signal(&self) -> Option<i32> {
        match self.status? {
            ExitStatus::Signal(signal) => Some(signal),
            ExitStatus::Code(_) => None,
        }
    }

    /// Whether it was ended on purpose: by a signal of people and launchers, or Ctrl-C.
    fn is_request(&self) -> bool {
        let by_signal = self.signal().is_some_and(|signal| REQUESTS.contains(&signal));
        self.cause == EndCause::Killed && (by_signal || !self.exception.is_empty())
    }

    /// Whether it died: neither finished, nor was ended on purpose.
    pub fn is_death(&self) -> bool {
        !matches!(self.cause, EndCause::Finished | EndCause::Unknown) && !self.is_request()
    }

    /// Of the ends of several ranks, the one with the lowest explains the others.
    pub(super) fn order(&self) -> u8 {
        match self.cause {
            EndCause::CgroupLimit | EndCause::HostMemory | EndCause::NumaNodes | EndCause::OomKill => 0,
            EndCause::WillNotFit => 2,
            EndCause::Finished => 8,
            EndCause::Unknown => 7,
            EndCause::Killed if self.is_request() => 6,
            EndCause::Killed | EndCause::Memwarden => 3,
            EndCause::Failed if self.signal().is_some() => 3,
            EndCause::Failed if !self.exception.is_empty() => 4,
            EndCause::Failed => 5,
            _ => 1,
        }
    }

    /// The end in words.
    pub fn words(&self) -> String {
        let exception = escaped(self.exception.as_str());
        match (self.cause, self.resource, self.status) {
            (EndCause::CgroupLimit | EndCause::HostMemory | EndCause::NumaNodes | EndCause::OomKill, ..) => {
                "killed by the OOM killer".to_owned()
            }
            (cause, Some(Medium::Device), _) if cause.is_memory() => "out of GPU memory".to_owned(),
            (cause, Some(Medium::Host), _) if cause.is_memory() => "out of host memory".to_owned(),
            (EndCause::WillNotFit, ..) => "aborted, as it would not fit".to_owned(),
            (EndCause::Memwarden, ..) => "ended by memory protection".to_owned(),
            (EndCause::Failed | EndCause::Killed, ..) if !exception.is_empty() => {
                format!("exception {exception}")
            }
            (EndCause::Failed | EndCause::Killed, _, Some(ExitStatus::Signal(signal))) => {
                let how = if self.is_request() { "terminated" } else { "killed" };
                format!("{how} by {}", format::signal(u64::from(signal.unsigned_abs())))
            }
            (EndCause::Failed | EndCause::Killed, _, Some(ExitStatus::Code(code))) => {
                format!("exit status {code}")
            }
            (EndCause::Unknown, ..) => "ended without a word".to_owned(),
            (cause, ..) => cause.label().replace('_', " "),
        }
    }
}

/// The signals by which people and launchers end a process: SIGHUP, SIGINT and SIGTERM.
const REQUESTS: [i32; 3] = [1, 2, 15];
/// `SIGKILL`.
const KILL: i32 = 9;

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

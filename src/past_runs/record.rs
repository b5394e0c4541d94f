//! What is kept of a run that has ended.

use serde::{Deserialize, Serialize};

use crate::model::fit::{Medium, Phase};
use crate::model::label::Label;

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

/// How a run ended, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// A rank reported that an allocation failed, and completed no step after it.
    OutOfMemory,
    /// The kernel's OOM killer killed a rank.
    OomKill,
    /// Every rank said that it ends.
    Finished,
    /// The connection of a rank was closed without a word: it crashed, or was killed or canceled.
    Ended,
}

impl End {
    /// Whether the run ended for lack of memory.
    pub const fn is_memory(self) -> bool {
        matches!(self, Self::OutOfMemory | Self::OomKill)
    }

    /// The end in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out of memory",
            Self::OomKill => "killed by the OOM killer",
            Self::Finished => "finished",
            Self::Ended => "ended without a word",
        }
    }
}

/// The highest memory that was measured in a phase on a resource: that of the rank with the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhasePeak {
    /// The phase.
    pub phase: Phase,
    /// The kind of the resource.
    pub resource: Medium,
    /// The highest memory, in bytes, in the terms of [`Medium`].
    pub bytes: u64,
}

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
    pub end: End,
    /// By phase and resource.
    pub peaks: Vec<PhasePeak>,
    /// How much the peak of a step rises with each token of a micro-batch, in bytes, as the job estimated it last; absent where
    /// it did not.
    pub bytes_per_token: Option<f64>,
}

impl PastRun {
    /// The step in which it ended; absent where it completed none: a run that was resumed does not begin at the first one.
    pub fn last_step(&self) -> Option<u64> {
        self.step.map(|step| step.saturating_add(1))
    }
}

/// A run with its command, as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShownRun {
    /// The command.
    #[serde(flatten)]
    pub command: Command,
    /// The run.
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

//! What happened to training jobs, in the order in which it was heard of.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::label::Label;

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A rank reported itself.
    Start,
    /// It finished its first step.
    FirstStep,
    /// The job named something that happened.
    Event,
    /// The allocator gave up.
    Oom,
    /// A checkpoint is being saved, is saved, or failed.
    Checkpoint,
    /// The rank ended; the step is its last.
    End,
}

/// One thing that happened.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Entry {
    /// Counts entries from 1.
    pub sequence: u64,
    /// When, in seconds since 1970: as the job told it, or when it was heard of.
    pub unix_seconds: f64,
    /// What kind of thing.
    pub kind: Kind,
    /// The workload; empty where the process belongs to none.
    pub workload: Label,
    /// The rank.
    pub rank: Label,
    /// The process.
    pub pid: u32,
    /// In the job's words, or the state of a checkpoint.
    pub name: Label,
    /// At which step, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// An object of the kind's own; the job's for an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<RawValue>>,
}

/// The newest of what happened, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// What is still remembered.
    pub entries: Vec<Arc<Entry>>,
    /// How many are not remembered any more.
    pub forgotten: u64,
}

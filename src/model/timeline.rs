//! Events of training jobs, in the order in which they were received.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::label::Label;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A rank reported itself.
    Start,
    /// The rank finished its first step.
    FirstStep,
    /// The job reported an event.
    Event,
    /// An allocation failed with an out-of-memory error.
    Oom,
    /// A checkpoint is being saved, is saved, or failed.
    Checkpoint,
    /// Types, tensors, figures or lines of the program have grown, as its client counted.
    Growth,
    /// The rank ended; the step is its last.
    End,
}

#[derive(Clone, Debug, serde::Serialize)]
pub struct Entry {
    /// Counts entries from 1.
    pub sequence: u64,
    /// Time in seconds since 1970, as the job reported it or when it was received.
    pub unix_seconds: f64,
    pub kind: EntryKind,
    /// The workload; empty where the process belongs to none.
    pub workload: Label,
    pub rank: Label,
    pub pid: u32,
    /// The name that the job gave the event, or the state of a checkpoint.
    pub name: Label,
    /// The step, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Details that depend on the type; for an event, those of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<RawValue>>,
}

/// The newest events, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The kept events.
    pub entries: Vec<Arc<Entry>>,
    /// Number of older events that were removed.
    pub forgotten: u64,
}

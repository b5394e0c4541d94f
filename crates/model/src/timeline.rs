//! Events of training jobs, in the order in which they were received.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::label::Label;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A rank reported itself.
    #[default]
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

/// Who reads what a job has told in its own words: the texts that the messages of the job socket declare as its owner's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Viewer {
    /// Root, and clients that the web-config file authenticates.
    #[default]
    All,
    /// A user of the node.
    User(u32),
    /// Somebody whose user is not known.
    Stranger,
}

impl Viewer {
    /// Whether it reads the texts of this user's processes.
    pub fn sees(self, user: u32) -> bool {
        self == Self::All || self == Self::User(user)
    }
}

#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Entry {
    /// Counts entries from 1.
    pub sequence: u64,
    /// The user of the process.
    #[serde(skip)]
    pub user: u32,
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

impl Entry {
    /// The entry as somebody may read it: to others than the owner without its details, and without a name in the words of
    /// the job.
    pub fn seen_by(&self, viewer: Viewer) -> Cow<'_, Self> {
        if viewer.sees(self.user) {
            return Cow::Borrowed(self);
        }
        let is_private = matches!(self.kind, EntryKind::Event | EntryKind::Growth);
        let name = if is_private { Label::default() } else { self.name.clone() };
        let (workload, rank) = (self.workload.clone(), self.rank.clone());
        Cow::Owned(Self { name, workload, rank, detail: None, ..*self })
    }
}

/// The newest events, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The kept events.
    pub entries: Vec<Arc<Entry>>,
    /// Number of older events that were removed.
    pub forgotten: u64,
}

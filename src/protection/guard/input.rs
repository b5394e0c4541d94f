//! What the guard is told once a sample: who there is, and what takes longer to know than a read of a file.

use std::sync::Arc;

use crate::model::time::Timestamp;
use crate::protection::enforce::levels::GroupMeter;
use crate::protection::plan::victim::Roster;
use crate::protection::policy::{Escalation, Forecast, Members, Reading};
use crate::protection::status::Unfit;
use crate::protection::words::scope::Scope;

/// Jobs that are protected at once.
pub const SLOTS: usize = 64;

/// Everything, by seat.
#[derive(Debug)]
pub struct GuardInput {
    /// When the sample was taken.
    pub at: Timestamp,
    /// As many as [`SLOTS`].
    pub slots: Vec<Option<JobInput>>,
}

/// What is known of a resource that the guard cannot read itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Known {
    /// The target has no such thing.
    #[default]
    Absent,
    /// It has, and nobody could say how much is left.
    Unknown,
    /// What is left.
    Read(Reading),
}

/// What is known of who sits in one seat.
#[derive(Debug)]
pub struct JobInput {
    /// Tells this job from the one that sat there before.
    pub serial: u64,
    /// The place of its target.
    pub target: usize,
    /// Whose job it is; absent where there is none.
    pub user: Option<u32>,
    /// Its ladder, when it sits down.
    pub escalation: Option<Escalation>,
    /// Its processes.
    pub roster: Arc<Roster>,
    /// How many there are; absent where nobody could say.
    pub members: Option<Members>,
    /// Who may be touched, where that has changed.
    pub scope: Option<Scope>,
    /// What reads its group's limits, where that has changed; `Some(None)` where there is none any more.
    pub meter: Option<Option<GroupMeter>>,
    /// The GPUs it uses.
    pub gpu: Known,
    /// Its allocator.
    pub allocator: Known,
    /// What is foreseen; absent where nobody looks.
    pub forecast: Option<Option<Forecast>>,
    /// Whether a leak is confirmed; absent where nobody looks.
    pub leak: Option<bool>,
    /// Whether an alert fires that is for it, and since when it was not said again.
    pub alert: Option<Timestamp>,
    /// Why nothing may be done for it.
    pub unfit: Option<Unfit>,
}

impl GuardInput {
    /// Keeps from facts that were never read what comes only once.
    pub fn keep(&mut self, unread: &mut Self) {
        for (new, old) in self.slots.iter_mut().zip(&mut unread.slots) {
            if let (Some(new), Some(old)) = (new, old)
                && new.serial == old.serial
            {
                new.escalation = new.escalation.take().or_else(|| old.escalation.take());
                new.scope = new.scope.take().or_else(|| old.scope.take());
                new.meter = new.meter.take().or_else(|| old.meter.take());
            }
        }
    }
}

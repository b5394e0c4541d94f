//! The processes that an incident terminates, and whether they have ended.

use std::sync::Arc;
use std::time::Duration;

use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::plan::victim::Roster;

/// Time after which a failed wait for the end of victims is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The processes that an incident terminates.
#[derive(Debug, Default)]
pub(in super::super) struct Verification {
    /// The victims; absent before the first signal that terminates.
    pub(super) victims: Option<Arc<Roster>>,
    /// The resident memory of the processes of the newest acting transition.
    pub(in super::super) resident: Bytes,
    /// Victims that have not ended; absent while there are none, or while that is not known.
    pub(in super::super) alive: Option<u32>,
    /// How many of them had not ended at the end of a time limit.
    pub(in super::super) counted: Option<u32>,
    /// When a wait for their end was last begun or attempted.
    pub(in super::super) awaited: Option<Timestamp>,
    /// When the first kill of the incident was carried out.
    pub(in super::super) killed: Option<Timestamp>,
}

impl Verification {
    /// Whether there are victims that may be alive, and the last attempt to await their end was a second ago or more.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        let due = self.awaited.is_some_and(|before| now.since(before) >= RETRY_INTERVAL);
        self.victims.is_some() && self.alive != Some(0) && due
    }

    /// Whether some of them have ended and others have not; absent before they were counted.
    pub(super) fn half_dead(&self) -> Option<bool> {
        let all = self.victims.as_ref()?.largest.len();
        let left = self.counted? as usize;
        Some(left > 0 && left < all)
    }

    /// The incident is over.
    pub(super) fn end(&mut self) {
        *self = Self { resident: self.resident, ..Self::default() };
    }
}

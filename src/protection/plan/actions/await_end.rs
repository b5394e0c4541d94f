//! Waiting until the victims are gone.

use std::sync::Arc;
use std::time::Duration;

use crate::protection::plan::{Action, Plan, Trip};
use crate::protection::words::step::{Stage, Work};

/// Waits for the end of every victim.
pub(super) struct AwaitEnd;

impl Action for AwaitEnd {
    fn plan(&self, trip: &Trip<'_>, out: &mut Plan) {
        let limits = &trip.target.limits;
        let within = match trip.stage {
            Stage::Term => limits.term_grace,
            _ => limits.verify_timeout + Duration::from_secs(trip.roster.resident.get() >> 30),
        };
        let processes = Arc::clone(&trip.roster.largest);
        out.push(trip, Work::AwaitEnd { processes, group: trip.roster.group.clone(), within });
    }
}

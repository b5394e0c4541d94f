//! Asking a job to save itself: one signal to each rank that catches it, and waiting for its word.

use std::sync::Arc;

use crate::protection::plan::{Action, Plan, Trip};
use crate::protection::words::step::Work;

/// Sends the checkpoint signal, once in an incident.
pub(super) struct Ask;

impl Action for Ask {
    fn plan(&self, trip: &Trip<'_>, out: &mut Plan) {
        let Some(signal) = trip.target.ask.signal.filter(|_| trip.transition.ask) else { return };
        let first = u16::try_from(out.steps().len()).unwrap_or(0);
        for asked in &trip.roster.ask {
            let unless = asked.above.and_then(|above| above.checked_add(first));
            let work = Work::Signal { process: asked.key, signal, only_if_caught: true };
            out.push_unless(trip, work, unless);
        }
    }
}

/// Waits for the file that the job writes; its words over the job socket are heard by the guard itself.
pub(super) struct Await;

impl Action for Await {
    fn plan(&self, trip: &Trip<'_>, out: &mut Plan) {
        if let Some(by) = trip.target.ask.file.as_ref().filter(|_| trip.transition.ask) {
            out.push(trip, Work::Await { by: Arc::clone(by), within: trip.target.limits.longest_grace });
        }
    }
}

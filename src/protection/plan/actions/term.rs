//! SIGTERM: leaves first, launchers last.

use crate::protection::plan::{Action, Plan, Trip};
use crate::protection::words::step::{SignalNumber, Work};

/// Asks every victim to end.
pub(super) struct Term;

impl Action for Term {
    fn plan(&self, trip: &Trip<'_>, out: &mut Plan) {
        for process in &trip.roster.end {
            let signal = SignalNumber::TERM;
            out.push(trip, Work::Signal { process: *process, signal, only_if_caught: false });
        }
    }
}

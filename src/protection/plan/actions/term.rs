//! SIGTERM: leaves first, launchers last.

use crate::protection::plan::{Action, Plan, PlanInput};
use crate::protection::types::step::{SignalNumber, Work};

/// Sends SIGTERM to every victim.
pub(super) struct Term;

impl Action for Term {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        for process in &input.roster.end {
            let signal = SignalNumber::TERM;
            out.push(input, Work::Signal { process: *process, signal, only_if_caught: false });
        }
    }
}

//! Waits until the victims have ended.

use std::sync::Arc;
use std::time::Duration;

use crate::protection::plan::{Action, Plan, PlanInput};
use crate::protection::types::rung::{Rung, State};
use crate::protection::types::step::Work;

/// Waits for the end of every victim.
pub(super) struct AwaitEnd;

impl Action for AwaitEnd {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        let limits = &input.target.limits;
        let within = match input.stage {
            State::At(Rung::Term) => limits.term_grace,
            _ => limits.verify_timeout + Duration::from_secs(input.roster.resident.get() >> 30),
        };
        let processes = Arc::clone(&input.roster.largest);
        out.push(input, Work::AwaitEnd { processes, group: input.roster.group.clone(), within });
    }
}

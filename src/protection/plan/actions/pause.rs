//! Freezes the cgroup while the hook runs, and thaws it.

use crate::protection::plan::{Action, Plan, PlanInput};
use crate::protection::types::step::Work;

/// Freezes the target's cgroup, where it holds only the target's processes.
pub(super) struct Pause;

impl Action for Pause {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        if let Some(group) = input.roster.group.clone().filter(|_| input.target.freeze) {
            out.push(input, Work::Freeze { group });
        }
    }
}

/// Thaws it; this has no effect on a cgroup that is not frozen.
pub(super) struct Resume;

impl Action for Resume {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        if let Some(group) = input.roster.group.clone().filter(|_| input.target.freeze) {
            out.push(input, Work::Thaw { group });
        }
    }
}

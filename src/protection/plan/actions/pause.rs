//! Pausing a group while the hook tries, and letting it go on.

use crate::protection::plan::{Action, Plan, PlanInput};
use crate::protection::words::step::Work;

/// Freezes the target's group, where it has one for itself.
pub(super) struct Pause;

impl Action for Pause {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        if let Some(group) = input.roster.group.clone().filter(|_| input.target.freeze) {
            out.push(input, Work::Freeze { group });
        }
    }
}

/// Lets it go on; a group that is not frozen does not notice.
pub(super) struct Resume;

impl Action for Resume {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        if let Some(group) = input.roster.group.clone().filter(|_| input.target.freeze) {
            out.push(input, Work::Thaw { group });
        }
    }
}

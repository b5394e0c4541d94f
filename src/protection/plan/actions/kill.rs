//! SIGKILL: the whole cgroup at once where it holds only the victims, otherwise their process trees.

use std::sync::Arc;

use crate::protection::plan::{Action, Plan, PlanInput};
use crate::protection::types::step::Work;

/// Kills every victim.
pub(super) struct Kill;

impl Action for Kill {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        let place = out.steps().len();
        if let Some(group) = input.roster.group.clone() {
            out.push(input, Work::KillGroup { group });
            // Where the cgroup cannot be killed at once, its processes are killed one by one.
            let tree = Work::KillTree { roots: Arc::clone(&input.roster.largest) };
            out.push_unless(input, tree, u16::try_from(place).ok());
        } else {
            out.push(input, Work::KillTree { roots: Arc::clone(&input.roster.largest) });
        }
    }
}

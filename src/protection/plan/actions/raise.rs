//! Raises the limit of the target's cgroup, where the host has memory left.

use crate::protection::plan::{Action, Plan, PlanInput};
use crate::protection::policy::{Reason, Resource};
use crate::protection::types::step::Work;

/// Raises the cgroup limit that leaves the least memory, where its cgroup is the target's.
pub(super) struct Raise;

impl Action for Raise {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        let about = input.transition.reason;
        if about != Reason::Level(Resource::Cgroup) {
            return;
        }
        let observed = input.observed;
        if let (Some(raise), Some(group), Some(limited), Some(limit), Some(host)) = (
            input.target.raise,
            input.roster.group.clone(),
            observed.groups.least(),
            observed.reading(Resource::Cgroup),
            observed.reading(Resource::Host),
        ) {
            let from = limit.value.total;
            // What is left below the limit now can be used too.
            let available = host.value.headroom.saturating_sub(limit.value.headroom);
            if let Some(to) = raise.limit(from, available, host.value.total) {
                out.push(input, Work::Raise { group, limited, from, to });
            }
        }
    }
}

//! Raises the limit of the target's cgroup, where the host has memory left.

use crate::protection::plan::{Action, Plan, PlanInput};
use crate::protection::policy::{Reason, Resource};
use crate::protection::words::step::Work;

/// Raises the cgroup limit that leaves the least memory, where all processes below it belong to the target.
pub(super) struct Raise;

impl Action for Raise {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        let about = input.transition.reason;
        if !matches!(about, Reason::Level(Resource::Cgroup) | Reason::Forecast) {
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
            if let Some(to) = raise.limit(from, host.value.headroom, host.value.total) {
                out.push(input, Work::Raise { group, limited, from, to });
            }
        }
    }
}

//! The limits of a policy: levels, times, and the maximum state of each trigger.

use std::time::Duration;

use super::observed::{ByResource, Resource};
use super::transition::Mode;
use crate::model::names::named;
use crate::model::units::Amount;
use crate::types::rung::Rung;

/// Time that the memory of a killed process can take to be free on a host whose GPUs use its memory: more than a minute was
/// reported of 90 GB on a GB10 (sovgrid.org/blog/fixes-sglang-restart-oom-fix), and each GiB adds a second.
const RELEASE: Duration = Duration::from_secs(60);

/// The levels of one resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    /// At or below this headroom the escalation begins.
    pub soft: Amount,
    /// At or below this headroom the victims are killed immediately; absent where no level kills.
    pub hard: Option<Amount>,
    /// An older reading triggers nothing.
    pub max_age: Duration,
}

named! {
    /// Whether free swap counts as memory that is left.
    #[derive(Default, serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum SwapCounts {
        /// It counts: a level is crossed where memory and swap are at or below it.
        #[default]
        Count = "count",
        /// It counts, and a job below whose soft level of memory only swap is left is warned of.
        Warn = "warn",
        /// It does not count for the soft level. The hard level counts it, so that no state is skipped.
        Ignore = "ignore",
    }
}

/// The limits of a trigger other than a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// Last state that it can lead to.
    pub max_state: Option<Rung>,
    /// An older value triggers nothing.
    pub max_age: Duration,
}

/// The limits of one target's policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Whether the target is observed or acted on.
    pub mode: Mode,
    /// Last state of the escalation, whatever triggers it.
    pub max_state: Option<Rung>,
    /// Absent where the resource is not watched.
    pub levels: ByResource<Option<Levels>>,
    /// The levels of the host where GPUs use its memory.
    pub of_pool: Option<Levels>,
    /// Whether swap counts as left.
    pub swap: SwapCounts,
    /// Memory above the soft level that must be left before the shortage counts as over.
    pub hysteresis: Amount,
    /// Time for which a trigger must hold before the escalation begins.
    pub for_time: Duration,
    /// Time for which the shortage must be over before a warning ends.
    pub clear_for: Duration,
    /// The analyzers' forecast, or the current rate.
    pub forecast: Trigger,
    /// Predicted time to exhaustion below which a warning is issued.
    pub warn_within: Duration,
    /// Predicted time to exhaustion below which the escalation begins: the time that a checkpoint takes, plus a
    /// margin.
    pub soft_within: Duration,
    /// A confirmed leak.
    pub leak: Trigger,
    pub alert: Trigger,
    /// Time that the hook has before a checkpoint is requested.
    pub hook_wait: Duration,
    /// Whether the limit of its cgroup may be raised.
    pub raises: bool,
    /// Time limit for a checkpoint while the job reports nothing.
    pub grace: Duration,
    /// Time limit for a checkpoint while the job reports that it is saving.
    pub longest_grace: Duration,
    /// Minimum time between two checkpoint requests, over all incidents.
    pub request_interval: Duration,
    /// Whether a job that ends after a checkpoint request has saved.
    pub exit_saves: bool,
    /// Time to exhaustion at the current rate, below the soft level, under which the job is killed immediately.
    pub kill_margin: Duration,
    /// Time between SIGTERM and SIGKILL.
    pub term_grace: Duration,
    /// Time that victims have to end, in addition to one second for each GiB of their memory.
    pub verify_timeout: Duration,
    /// Minimum time after an incident in which nothing is done.
    pub cooldown: Duration,
    /// Maximum number of terminations per hour.
    pub max_kills_per_hour: u32,
    /// Whether the hard level kills although the rate limit is used up.
    pub hard_ignores_rate: bool,
}

impl Limits {
    /// The watched resources, with their levels.
    pub fn watched(&self) -> impl Iterator<Item = (Resource, &Levels)> + Clone {
        Resource::ALL
            .into_iter()
            .filter_map(|resource| Some((resource, self.levels[resource.place()].as_ref()?)))
    }

    /// The hard level of a resource.
    pub fn hard(&self, resource: Resource) -> Option<Amount> {
        self.levels[resource.place()].as_ref()?.hard
    }

    /// Changes the limits to those for a host whose GPUs use its memory: those of [`Limits::of_pool`], and victims have at least
    /// [`RELEASE`] to end.
    pub(super) fn for_pool(&mut self) {
        self.levels[Resource::Host.place()] = self.of_pool;
        self.verify_timeout = self.verify_timeout.max(RELEASE);
    }

    /// A maximum state, limited to that of the policy.
    pub fn within(&self, max_state: Option<Rung>) -> Option<Rung> {
        max_state.min(self.max_state)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::limits;
    use super::*;

    #[test]
    fn a_pool_has_its_own_levels_and_its_memory_has_longer_to_return() {
        let of =
            |share| Some(Levels { soft: Amount::Share(share), hard: None, max_age: Duration::from_secs(3) });
        let seconds = Duration::from_secs;
        for (verify_timeout, on_pool) in [(seconds(10), seconds(60)), (seconds(90), seconds(90))] {
            let levels = [of(0.05), of(0.1), None, None, of(0.05), None];
            let mut limits = Limits { levels, of_pool: of(0.2), verify_timeout, ..limits() };
            limits.for_pool();
            let expected = [of(0.2), of(0.1), None, None, of(0.05), None];
            assert_eq!((limits.levels, limits.verify_timeout), (expected, on_pool));
        }
    }
}

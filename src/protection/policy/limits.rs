//! The limits of a policy: levels, times, and the maximum state of each trigger.

use std::time::Duration;

use super::observed::Resource;
use super::transition::Mode;
use crate::model::units::{Amount, Bytes};
use crate::protection::types::rung::Rung;

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
    /// By [`Resource::place`]; absent where the resource is not watched.
    pub levels: [Option<Levels>; 4],
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
    /// An alert.
    pub alert: Trigger,
    /// Time that the hook has before a checkpoint is requested.
    pub hook_wait: Duration,
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

    /// Changes the limits to those for a host whose GPUs use its memory, which is `total`: the levels of the host are doubled, to
    /// half of the memory at most, and victims have at least [`RELEASE`] to end.
    ///
    /// The driver of a GB10 failed to allocate with 12.7 of 119 GiB available (NVIDIA/dgx-spark-playbooks#116), after which
    /// hosts hang without an OOM kill (NVIDIA/open-gpu-kernel-modules#1358), while jobs with 7 GiB available went on
    /// (MiaAI-Lab/Qwen3.8-Flash-Next-Single-DGX-Spark#54): twice the default levels, 10 % and 4 %, are on either side.
    pub(super) fn for_pool(&mut self, total: Bytes) {
        let doubled = |level: &mut Amount| {
            let once = level.of(total);
            let half = Bytes::new(total.get() / 2);
            *level = Amount::Bytes(once.saturating_add(once).min(half).max(once));
        };
        if let Some(levels) = &mut self.levels[Resource::Host.place()] {
            doubled(&mut levels.soft);
            levels.hard.iter_mut().for_each(doubled);
        }
        self.verify_timeout = self.verify_timeout.max(RELEASE);
    }

    /// A maximum state, limited to that of the policy.
    pub fn within(&self, max_state: Option<Rung>) -> Option<Rung> {
        max_state.min(self.max_state)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{GIB, limits};
    use super::*;

    #[test]
    fn the_levels_of_a_pool_are_doubled_and_its_memory_has_longer_to_return() {
        let total = Bytes::new(119 * GIB);
        let of = |soft, hard| {
            let levels = Levels { soft, hard, max_age: Duration::from_secs(3) };
            let mut limits = Limits { levels: [Some(levels), Some(levels), None, None], ..limits() };
            limits.for_pool(total);
            let [Some(host), Some(cgroup), ..] = limits.levels else { panic!("{limits:?}") };
            assert_eq!((cgroup, limits.verify_timeout), (levels, Duration::from_secs(60)));
            (host.soft.of(total).get(), host.hard.map(|hard| hard.of(total).get()))
        };
        let gib = |gib: u64| Amount::Bytes(Bytes::new(gib * GIB));
        assert_eq!(of(gib(6), Some(gib(2))), (12 * GIB, Some(4 * GIB)));
        assert_eq!(of(Amount::Share(0.25), None), (119 * GIB / 2, None));
        // No level is raised above half of the memory, and none is lowered.
        assert_eq!(of(gib(50), Some(gib(70))), (119 * GIB / 2, Some(70 * GIB)));
        let mut patient = Limits { verify_timeout: Duration::from_secs(90), ..limits() };
        patient.for_pool(total);
        assert_eq!((patient.levels, patient.verify_timeout), (limits().levels, Duration::from_secs(90)));
    }
}

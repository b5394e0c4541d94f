//! The conditions of a policy, one by one, so that "why did it not act" has an answer.

use super::observed::Resource;
use crate::model::names::named;

named! {
    /// Whether a condition is met.
    #[derive(Default, serde::Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Truth {
        /// The policy does not evaluate it.
        #[default]
        Unasked = "unasked",
        /// It holds.
        Met = "met",
        /// It does not hold.
        NotMet = "not met",
        /// Unknown: its readings are missing or too old.
        Unknown = "unknown",
    }
}

impl Truth {
    /// Met or not.
    pub const fn of(met: bool) -> Self {
        if met { Self::Met } else { Self::NotMet }
    }

    /// Met, not met, or unknown for `None`.
    pub const fn known(met: Option<bool>) -> Self {
        match met {
            Some(met) => Self::of(met),
            None => Self::Unknown,
        }
    }

    /// Whether it is known to hold.
    pub const fn met(self) -> bool {
        matches!(self, Self::Met)
    }
}

named! {
    /// A condition that a policy evaluates before it acts.
    pub enum Condition {
        /// The self-tests passed.
        Fit = "fit",
        /// All watched readings are recent.
        Fresh = "fresh",
        /// The mode is `enforce`.
        Enforced = "enforced",
        /// The target has processes.
        HasMembers = "has_members",
        /// The host's headroom is below the soft level.
        HostSoft = "host_soft",
        /// The host's headroom is below the hard level.
        HostHard = "host_hard",
        /// The cgroup's headroom is below the soft level.
        CgroupSoft = "cgroup_soft",
        /// The cgroup's headroom is below the hard level.
        CgroupHard = "cgroup_hard",
        /// The GPU's headroom is below the soft level.
        GpuSoft = "gpu_soft",
        /// The GPU's headroom is below the hard level.
        GpuHard = "gpu_hard",
        /// The allocator's headroom is below the soft level.
        AllocatorSoft = "allocator_soft",
        /// The allocator's headroom is below the hard level.
        AllocatorHard = "allocator_hard",
        /// The headroom of the NUMA nodes that the job may use is below the soft level.
        NodesSoft = "numa_nodes_soft",
        /// The headroom of these nodes is below the hard level.
        NodesHard = "numa_nodes_hard",
        /// The headroom below `memory.high` is below the soft level.
        HighSoft = "memory_high_soft",
        /// Exhaustion is predicted within `warn_within`.
        ForecastWarn = "forecast_warn",
        /// Exhaustion is predicted within `soft_within`.
        ForecastSoft = "forecast_soft",
        /// It is predicted that within `soft_within`, a checkpoint can no longer be saved.
        NoSaveSoon = "no_save_soon",
        /// At the current rate, the time to exhaustion is below `kill_margin`.
        NoTimeLeft = "no_time_left",
        /// A leak is confirmed.
        Leak = "leak",
        /// An alert that names the policy fires.
        Alert = "alert",
        /// A trigger has held for the time `for`.
        Held = "held",
        /// Every headroom is above its soft level plus the hysteresis, and no other trigger holds.
        Recovered = "recovered",
        /// A process has a handler for the checkpoint signal.
        Catches = "catches_checkpoint",
        /// No checkpoint was requested within `request_interval`.
        MayAsk = "may_ask",
        /// The memory that a checkpoint takes while it is saved, as the job predicts it, leaves more than the hard levels.
        SaveFits = "save_fits",
        /// The job reports that it is saving a checkpoint.
        Saving = "saving",
        /// The job reports that its checkpoint is saved.
        Saved = "saved",
        /// The time limit of the checkpoint is over.
        GraceOver = "grace_over",
        /// The time limit after SIGTERM is over.
        TermOver = "term_over",
        /// The rate limits allow a termination.
        RateLeft = "rate_left",
        /// No other target is freeing a shared resource.
        AloneOnHost = "alone_on_host",
        /// Ending the job gives back what is lacking below each crossed level, or its share of it.
        Helps = "helps",
        /// All victims have ended.
        VictimsGone = "victims_gone",
    }
}

impl Condition {
    /// The soft and the hard condition of a resource; no hard one where no level of it ends a job.
    pub const fn levels(resource: Resource) -> (Self, Option<Self>) {
        match resource {
            Resource::Host => (Self::HostSoft, Some(Self::HostHard)),
            Resource::Cgroup => (Self::CgroupSoft, Some(Self::CgroupHard)),
            Resource::Gpu => (Self::GpuSoft, Some(Self::GpuHard)),
            Resource::Allocator => (Self::AllocatorSoft, Some(Self::AllocatorHard)),
            Resource::Nodes => (Self::NodesSoft, Some(Self::NodesHard)),
            Resource::High => (Self::HighSoft, None),
        }
    }
}

/// The truth of every condition at one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions([Truth; Condition::ALL.len()]);

impl Default for Conditions {
    /// No condition is evaluated.
    fn default() -> Self {
        Self([Truth::Unasked; Condition::ALL.len()])
    }
}

impl Conditions {
    pub const fn get(&self, condition: Condition) -> Truth {
        self.0[condition as usize]
    }

    pub const fn set(&mut self, condition: Condition, truth: Truth) {
        self.0[condition as usize] = truth;
    }

    /// Every condition that the policy evaluates, with its truth.
    pub fn evaluated(&self) -> impl Iterator<Item = (Condition, Truth)> + '_ {
        Condition::ALL
            .iter()
            .map(|condition| (*condition, self.get(*condition)))
            .filter(|(_, truth)| *truth != Truth::Unasked)
    }
}

//! Why protection moves to another state, and the resources that can run short.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::names::named;

named! {
    /// A resource of a target that can be exhausted.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Resource {
        /// The host's memory.
        Host = "host",
        /// The smallest limit on the path of the target's cgroup.
        Cgroup = "cgroup",
        /// The memory of the GPU with the least memory left of those that the target uses.
        Gpu = "gpu",
        /// The memory that the job's allocator can still allocate, as the job reports.
        Allocator = "allocator",
        /// The memory of the NUMA nodes that the cpuset of the job allows, where these are not all.
        #[serde(rename = "numa_nodes")]
        Nodes = "numa_nodes",
        /// The least `memory.high` on the path of the target's cgroup, above which its processes are throttled and not ended.
        #[serde(rename = "memory_high")]
        High = "memory_high",
    }
}

impl Resource {
    /// Its index in arrays.
    pub const fn place(self) -> usize {
        self as usize
    }

    /// Its memory in a sentence.
    pub const fn memory(self) -> &'static str {
        match self {
            Self::Host => "host memory",
            Self::Cgroup => "cgroup memory",
            Self::Gpu => "gpu memory",
            Self::Allocator => "allocator memory",
            Self::Nodes => "the memory of the NUMA nodes that the job may use",
            Self::High => "memory below memory.high",
        }
    }
}

/// The reason of a transition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "reason", content = "resource", rename_all = "snake_case")]
pub enum Reason {
    /// The hard level of a resource is crossed.
    #[serde(rename = "hard_level")]
    Hard(Resource),
    /// The soft level of a resource is crossed for the time `for`.
    #[serde(rename = "soft_level")]
    Level(Resource),
    /// A resource is near its soft level.
    #[serde(rename = "near_soft_level")]
    Near(Resource),
    /// The soft level of a resource is crossed, and the end of the job would not give back what is lacking.
    WouldNotHelp(Resource),
    /// Exhaustion is predicted.
    Forecast,
    /// It is predicted that a checkpoint can no longer be saved soon.
    NoSaveSoon,
    /// A leak is confirmed.
    Leak,
    /// An alert that names this policy fires.
    Alert,
    /// Another node of the run asks for a checkpoint.
    RunRequest,
    /// systemd-oomd is about to kill the cgroup.
    Prekill,
    /// The waiting time of the hook is over.
    #[serde(rename = "hook_wait_over")]
    HookWait,
    /// The time to exhaustion is below `kill_margin`.
    NoTimeLeft,
    /// No checkpoint is requested, because saving it needs more memory than is left.
    SaveTooLarge,
    /// The time limit of the checkpoint is over.
    GraceOver,
    /// The job reports that its checkpoint is complete.
    Saved,
    /// No process has a handler for the checkpoint signal.
    NobodyCatches,
    /// The time limit after SIGTERM is over.
    #[serde(rename = "term_grace_over")]
    TermOver,
    /// The kill was carried out.
    Killed,
    /// The job has ended after a checkpoint request, which its framework does after it has saved.
    SavedAndGone,
    /// Some processes of the job have ended after SIGTERM and others have not: the job cannot continue.
    HalfDead,
    /// All victims have ended.
    Gone,
    /// The shortage is over.
    Recovered,
    /// Victims, or processes that received SIGTERM and may not be killed, have not ended within their time limit.
    Unkillable,
    /// The victims have ended and the shortage is not over within the time limit.
    #[serde(rename = "memory_not_back")]
    NotBack,
    /// No watched reading is recent.
    Stale,
    /// Readings are recent again.
    Fresh,
    /// A self-test failed.
    Unfit,
    /// The rate limit is used up.
    #[serde(rename = "rate_used_up")]
    RateUsed,
    /// An action is due and the rate limit forbids it.
    Withheld,
    /// Actions are allowed again.
    Rearmed,
    /// The cooldown is over.
    #[default]
    Quiet,
}

impl Reason {
    /// The word for records and labels.
    pub const fn label(self) -> &'static str {
        self.texts().0
    }

    /// Its word and its sentence, where `{}` stands for the resource.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Hard(_) => ("hard_level", "the hard level of {} is crossed"),
            Self::Level(_) => ("soft_level", "the soft level of {} is crossed"),
            Self::Near(_) => ("near_soft_level", "{} is near its soft level"),
            Self::WouldNotHelp(_) => (
                "would_not_help",
                "the soft level of {} is crossed, and ending the job would not give back what is lacking",
            ),
            Self::Forecast => ("forecast", "exhaustion is predicted"),
            Self::NoSaveSoon => {
                ("no_save_soon", "it is predicted that a checkpoint can no longer be saved soon")
            }
            Self::Leak => ("leak", "a leak is confirmed"),
            Self::Alert => ("alert", "an alert fires"),
            Self::RunRequest => ("run_request", "another node of the run asks for a checkpoint"),
            Self::Prekill => ("prekill", "systemd-oomd is about to kill the cgroup"),
            Self::HookWait => ("hook_wait_over", "the waiting time of the hook is over"),
            Self::NoTimeLeft => ("no_time_left", "time to exhaustion is below kill_margin"),
            Self::SaveTooLarge => ("save_too_large", "saving a checkpoint needs more memory than is left"),
            Self::GraceOver => ("grace_over", "the time limit of the checkpoint is over"),
            Self::Saved => ("saved", "the checkpoint is complete"),
            Self::NobodyCatches => ("nobody_catches", "no process has a handler for the checkpoint signal"),
            Self::TermOver => ("term_grace_over", "the time limit after SIGTERM is over"),
            Self::Killed => ("killed", "the kill was carried out"),
            Self::SavedAndGone => ("saved_and_gone", "the job has ended, which it does after it has saved"),
            Self::HalfDead => {
                ("half_dead", "processes of the job have ended after SIGTERM and others have not")
            }
            Self::Gone => ("gone", "all victims have ended"),
            Self::Recovered => ("recovered", "the shortage is over"),
            Self::Unkillable => ("unkillable", "victims have not ended within their time limit"),
            Self::NotBack => ("memory_not_back", "the victims have ended and the shortage is not over"),
            Self::Stale => ("stale", "no watched reading is recent"),
            Self::Fresh => ("fresh", "readings are recent again"),
            Self::Unfit => ("unfit", "a self-test failed"),
            Self::RateUsed => ("rate_used_up", "the rate limit is used up"),
            Self::Withheld => ("withheld", "an action is due and the rate limit forbids it"),
            Self::Rearmed => ("rearmed", "actions are allowed again"),
            Self::Quiet => ("quiet", "the cooldown is over"),
        }
    }

    /// The resource it is about, where it is about one.
    pub const fn resource(self) -> Option<Resource> {
        match self {
            Self::Hard(resource)
            | Self::Level(resource)
            | Self::Near(resource)
            | Self::WouldNotHelp(resource) => Some(resource),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, text) = self.texts();
        match self.resource().zip(text.split_once("{}")) {
            Some((resource, (before, after))) => write!(f, "{before}{}{after}", resource.memory()),
            None => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_recorded_by_its_word_and_its_resource() {
        let of = |reason: Reason| serde_json::to_value(reason).unwrap();
        for reason in [
            Reason::Hard(Resource::Host),
            Reason::Level(Resource::Gpu),
            Reason::Near(Resource::High),
            Reason::WouldNotHelp(Resource::Nodes),
            Reason::HookWait,
            Reason::TermOver,
            Reason::NotBack,
            Reason::RateUsed,
            Reason::SavedAndGone,
            Reason::Quiet,
        ] {
            let json = of(reason);
            assert_eq!(json["reason"], reason.label());
            let resource = reason.resource().map(Resource::label);
            assert_eq!(json["resource"].as_str(), resource);
            assert_eq!(serde_json::from_value::<Reason>(json).unwrap(), reason);
        }
    }
}

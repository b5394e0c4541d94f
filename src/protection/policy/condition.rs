//! Each condition by itself, so that "why did it not act" has an answer.

use super::observed::Resource;

/// Whether a condition is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Truth {
    /// The policy does not ask for it.
    #[default]
    Unasked,
    /// It holds.
    Met,
    /// It does not hold.
    NotMet,
    /// Nobody knows: what it rests on is missing or too old.
    Unknown,
}

impl Truth {
    /// Met or not.
    pub const fn of(met: bool) -> Self {
        if met { Self::Met } else { Self::NotMet }
    }

    /// Met, not met, or unknown where there is nothing to tell by.
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

    /// The word for records.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unasked => "unasked",
            Self::Met => "met",
            Self::NotMet => "not met",
            Self::Unknown => "unknown",
        }
    }
}

macro_rules! conditions {
    ($($(#[doc = $doc:literal])+ $id:ident: $label:literal;)+) => {
        /// What a policy asks before it acts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Condition {
            $($(#[doc = $doc])+ $id,)+
        }

        impl Condition {
            /// Every condition.
            pub const ALL: &'static [Self] = &[$(Self::$id),+];

            /// The value of the `condition` label.
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$id => $label,)+
                }
            }
        }
    };
}

conditions! {
    /// The self-tests passed.
    Fit: "fit";
    /// Everything that is watched was read lately.
    Fresh: "fresh";
    /// The mode is `enforce`.
    Enforced: "enforced";
    /// The target has processes.
    HasMembers: "has_members";
    /// The host's headroom is below the soft level.
    HostSoft: "host_soft";
    /// The host's headroom is below the hard level.
    HostHard: "host_hard";
    /// The cgroup's headroom is below the soft level.
    CgroupSoft: "cgroup_soft";
    /// The cgroup's headroom is below the hard level.
    CgroupHard: "cgroup_hard";
    /// The GPU's headroom is below the soft level.
    GpuSoft: "gpu_soft";
    /// The GPU's headroom is below the hard level.
    GpuHard: "gpu_hard";
    /// The allocator's headroom is below the soft level.
    AllocatorSoft: "allocator_soft";
    /// The allocator's headroom is below the hard level.
    AllocatorHard: "allocator_hard";
    /// Exhaustion is foreseen within the time of a warning.
    ForecastWarn: "forecast_warn";
    /// Exhaustion is foreseen within the time that a checkpoint takes.
    ForecastSoft: "forecast_soft";
    /// At the present rate there is no time left for anything but a kill.
    NoTimeLeft: "no_time_left";
    /// A leak is confirmed.
    Leak: "leak";
    /// An alert that names the policy fires.
    Alert: "alert";
    /// What asks for action has held for long enough.
    Held: "held";
    /// Memory is back above every soft level with the margin, and nothing else asks for action.
    Recovered: "recovered";
    /// A process catches the checkpoint signal.
    Catches: "catches_checkpoint";
    /// No checkpoint was asked for lately.
    MayAsk: "may_ask";
    /// The job says that it is saving.
    Saving: "saving";
    /// The job says that it has saved.
    Saved: "saved";
    /// The time to save is over.
    GraceOver: "grace_over";
    /// The time to end is over.
    TermOver: "term_over";
    /// The rate limits leave room for an incident.
    RateLeft: "rate_left";
    /// No victim of another target holds up a shared resource.
    AloneOnHost: "alone_on_host";
    /// The victims are gone.
    VictimsGone: "victims_gone";
}

impl Condition {
    /// The soft and the hard condition of a resource.
    pub const fn levels(resource: Resource) -> (Self, Self) {
        match resource {
            Resource::Host => (Self::HostSoft, Self::HostHard),
            Resource::Cgroup => (Self::CgroupSoft, Self::CgroupHard),
            Resource::Gpu => (Self::GpuSoft, Self::GpuHard),
            Resource::Allocator => (Self::AllocatorSoft, Self::AllocatorHard),
        }
    }
}

/// The truth of every condition at one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions([Truth; Condition::ALL.len()]);

impl Default for Conditions {
    fn default() -> Self {
        Self([Truth::Unasked; Condition::ALL.len()])
    }
}

impl Conditions {
    /// Whether one is met.
    pub const fn get(&self, condition: Condition) -> Truth {
        self.0[condition as usize]
    }

    /// Notes one.
    pub const fn set(&mut self, condition: Condition, truth: Truth) {
        self.0[condition as usize] = truth;
    }

    /// Every condition that the policy asks for, with its truth.
    pub fn evaluated(&self) -> impl Iterator<Item = (Condition, Truth)> + '_ {
        Condition::ALL
            .iter()
            .map(|condition| (*condition, self.get(*condition)))
            .filter(|(_, truth)| *truth != Truth::Unasked)
    }
}

//! The modes of a policy, and the transitions of an escalation with their reasons.

use std::fmt;

use super::observed::Resource;
use crate::model::names::named;
use crate::model::time::Timestamp;
use crate::protection::types::rung::State;

named! {
    /// Whether a policy acts.
    #[derive(Default, serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Mode {
        /// Nothing is watched.
        #[default]
        Off = "off",
        /// Everything is decided, exported and logged; nothing is done.
        Observe = "observe",
        /// What is decided is done.
        Enforce = "enforce",
    }
}

/// The reason of a transition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The hard level of a resource is crossed.
    Hard(Resource),
    /// The soft level of a resource is crossed for the time `for`.
    Level(Resource),
    /// A resource is near its soft level.
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
    NotBack,
    /// No watched reading is recent.
    Stale,
    /// Readings are recent again.
    Fresh,
    /// A self-test failed.
    Unfit,
    /// The rate limit is used up.
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

/// One transition of an escalation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Transition {
    /// When.
    pub at: Timestamp,
    /// The state before.
    pub from: State,
    /// The state after; the same as before where the transition only reports ([`Reason::SaveTooLarge`],
    /// [`Reason::Unkillable`], [`Reason::Withheld`]).
    pub to: State,
    /// Why.
    pub reason: Reason,
    /// The number of its incident, from 1; 0 outside incidents.
    pub incident: u64,
    /// Whether the checkpoint signal is due: at most once per incident.
    pub ask: bool,
    /// Whether it is the first of its incident that terminates the job, which the rate limits count.
    pub counts: bool,
}

impl Transition {
    /// Whether it carries out steps; a return from BLIND repeats none.
    pub fn acts(&self) -> bool {
        self.to.acts() && (self.to != self.from || self.ask) && self.reason != Reason::Fresh
    }
}

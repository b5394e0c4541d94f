//! What a policy allows: levels, times, how far each trigger may lead.

use std::time::Duration;

use super::observed::Resource;
use super::state::{MaxState, Mode};
use crate::model::units::Amount;

/// The levels of one resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    /// At or below this headroom the ladder begins.
    pub soft: Amount,
    /// At or below this headroom the victims are killed at once; absent where no level kills.
    pub hard: Option<Amount>,
    /// A reading that is older is not acted on.
    pub max_age: Duration,
}

/// How far a trigger that is no level may lead, and how old it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// How far.
    pub max_state: MaxState,
    /// What is older is not acted on.
    pub max_age: Duration,
}

/// Everything a policy says about one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Whether it acts.
    pub mode: Mode,
    /// The highest rung, whatever triggers it.
    pub max_state: MaxState,
    /// By [`Resource::place`]; absent where the resource is not watched.
    pub levels: [Option<Levels>; 4],
    /// How much more than the soft level must be left before memory counts as back.
    pub hysteresis: Amount,
    /// How long the soft level, or a forecast, must hold before the ladder begins.
    pub for_time: Duration,
    /// How long memory must be back before the ladder goes down from its warning.
    pub clear_for: Duration,
    /// The analyzers' forecast and the present rate.
    pub forecast: Trigger,
    /// A warning is given when exhaustion is foreseen within this time.
    pub warn_within: Duration,
    /// The ladder begins when exhaustion is foreseen within this time: what a checkpoint takes, and a margin.
    pub soft_within: Duration,
    /// A confirmed leak.
    pub leak: Trigger,
    /// An alert.
    pub alert: Trigger,
    /// How long the hook has before the checkpoint is asked for.
    pub hook_wait: Duration,
    /// How long a job that says nothing has for its checkpoint.
    pub grace: Duration,
    /// How long a job that says it is saving has.
    pub longest_grace: Duration,
    /// Time between two requests for a checkpoint, over all incidents.
    pub request_interval: Duration,
    /// With less than this until exhaustion, and below the soft level, only a kill is left.
    pub kill_margin: Duration,
    /// How long a job has to end after SIGTERM.
    pub term_grace: Duration,
    /// How long victims may take to go, beside a second for each GiB they had.
    pub verify_timeout: Duration,
    /// How long it is quiet after an incident, at least.
    pub cooldown: Duration,
    /// The most incidents in an hour that end a job.
    pub max_kills_per_hour: u32,
    /// Whether the hard level acts when the rate limit is used up.
    pub hard_ignores_rate: bool,
}

impl Limits {
    /// What is watched.
    pub fn watched(&self) -> impl Iterator<Item = (Resource, &Levels)> + Clone {
        Resource::ALL
            .into_iter()
            .filter_map(|resource| Some((resource, self.levels[resource.place()].as_ref()?)))
    }

    /// A reach within what the policy allows.
    pub fn within(&self, max_state: MaxState) -> MaxState {
        max_state.min(self.max_state)
    }
}

//! The words of the ladder: where it stands, how far it may go, why it moved.

use std::fmt;

use super::observed::Resource;
use crate::model::time::Timestamp;

/// Whether a policy acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nothing is watched.
    Off,
    /// Everything is decided, exported and logged; nothing is done.
    Observe,
    /// What is decided is done.
    Enforce,
}

impl Mode {
    /// The words of the configuration and of the `mode` label, least first.
    pub const WORDS: &'static [&'static str] = &["off", "observe", "enforce"];

    /// The mode of a word; nothing where it is none of [`Mode::WORDS`].
    pub fn of(word: &str) -> Option<Self> {
        [Self::Off, Self::Observe, Self::Enforce].into_iter().find(|mode| mode.label() == word)
    }

    /// Its word.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Observe => "observe",
            Self::Enforce => "enforce",
        }
    }
}

/// Where a ladder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Not fit to act: a self-test failed, or the rate limit is used up.
    Disarmed,
    /// Nothing that is watched was read lately.
    Blind,
    /// Nothing is wrong.
    Ok,
    /// Memory runs low, or is foreseen to.
    Warn,
    /// It is low: the record is written and the hook runs.
    Soft,
    /// The job was asked to save itself.
    Checkpoint,
    /// The job was asked to end.
    Term,
    /// The job is being killed.
    Kill,
    /// Whether the victims are gone and their memory is back is looked at.
    Verify,
    /// Quiet after an incident.
    Cooldown,
}

impl State {
    /// Every state, so that each has its series.
    pub const ALL: [Self; 10] = [
        Self::Disarmed,
        Self::Blind,
        Self::Ok,
        Self::Warn,
        Self::Soft,
        Self::Checkpoint,
        Self::Term,
        Self::Kill,
        Self::Verify,
        Self::Cooldown,
    ];

    /// The value of the `state` label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Disarmed => "disarmed",
            Self::Blind => "blind",
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Soft => "soft",
            Self::Checkpoint => "checkpoint",
            Self::Term => "term",
            Self::Kill => "kill",
            Self::Verify => "verify",
            Self::Cooldown => "cooldown",
        }
    }

    /// Whether something may be done on entering it.
    pub const fn acts(self) -> bool {
        matches!(self, Self::Soft | Self::Checkpoint | Self::Term | Self::Kill)
    }
}

/// How far up the ladder something may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MaxState {
    /// Nowhere.
    Ignore,
    /// To a warning.
    Warn,
    /// To the hook.
    Soft,
    /// To the checkpoint signal.
    Checkpoint,
    /// To SIGTERM.
    Term,
    /// To SIGKILL.
    Kill,
}

impl MaxState {
    /// The words of the configuration, the least first.
    pub const WORDS: &'static [&'static str] = &["ignore", "warn", "soft", "checkpoint", "term", "kill"];

    /// Its word.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ignore => "ignore",
            Self::Warn => "warn",
            Self::Soft => "soft",
            Self::Checkpoint => "checkpoint",
            Self::Term => "term",
            Self::Kill => "kill",
        }
    }

    /// The reach of a word; nothing where it is none of [`MaxState::WORDS`].
    pub fn of(word: &str) -> Option<Self> {
        [Self::Ignore, Self::Warn, Self::Soft, Self::Checkpoint, Self::Term, Self::Kill]
            .into_iter()
            .find(|max_state| max_state.label() == word)
    }
}

/// Why a ladder moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The hard level of a resource is crossed.
    Hard(Resource),
    /// The soft level of a resource is crossed, for long enough.
    Level(Resource),
    /// A resource is near its soft level.
    Near(Resource),
    /// Exhaustion is foreseen.
    Forecast,
    /// A leak is confirmed.
    Leak,
    /// An alert that names this policy fires.
    Alert,
    /// The hook had its time.
    HookWait,
    /// Too little time is left for anything but a kill.
    NoTimeLeft,
    /// The time to save is over.
    GraceOver,
    /// The job says that its checkpoint is complete.
    Saved,
    /// No process catches the checkpoint signal.
    NobodyCatches,
    /// The time to end is over.
    TermOver,
    /// The kill was carried out.
    Killed,
    /// No victim is left.
    Gone,
    /// Memory is back.
    Recovered,
    /// Victims, or whoever was asked to end and may not be killed, are still there after their time.
    Unkillable,
    /// The victims are gone and their memory is not back after its time.
    NotBack,
    /// Nothing that is watched was read lately.
    Stale,
    /// It can be read again.
    Fresh,
    /// A self-test failed.
    Unfit,
    /// The rate limit is used up.
    RateUsed,
    /// Something is due, and the rate limit withholds it.
    Withheld,
    /// Fit to act again.
    Rearmed,
    /// The quiet time is over.
    Quiet,
}

impl Reason {
    /// The word for records and labels.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Hard(_) => "hard_level",
            Self::Level(_) => "soft_level",
            Self::Near(_) => "near_soft_level",
            Self::Forecast => "forecast",
            Self::Leak => "leak",
            Self::Alert => "alert",
            Self::HookWait => "hook_time_over",
            Self::NoTimeLeft => "no_time_left",
            Self::GraceOver => "grace_over",
            Self::Saved => "saved",
            Self::NobodyCatches => "nobody_catches",
            Self::TermOver => "term_time_over",
            Self::Killed => "killed",
            Self::Gone => "gone",
            Self::Recovered => "recovered",
            Self::Unkillable => "unkillable",
            Self::NotBack => "memory_not_back",
            Self::Stale => "stale",
            Self::Fresh => "fresh",
            Self::Unfit => "unfit",
            Self::RateUsed => "rate_used_up",
            Self::Withheld => "withheld",
            Self::Rearmed => "rearmed",
            Self::Quiet => "quiet",
        }
    }

    /// The resource it is about, where it is about one.
    pub const fn resource(self) -> Option<Resource> {
        match self {
            Self::Hard(resource) | Self::Level(resource) | Self::Near(resource) => Some(resource),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hard(of) => write!(f, "the hard level of {} memory is crossed", of.label()),
            Self::Level(of) => write!(f, "the soft level of {} memory is crossed", of.label()),
            Self::Near(of) => write!(f, "{} memory is near its soft level", of.label()),
            Self::Forecast => f.write_str("exhaustion is foreseen"),
            Self::Leak => f.write_str("a leak is confirmed"),
            Self::Alert => f.write_str("an alert fires"),
            Self::HookWait => f.write_str("the hook had its time"),
            Self::NoTimeLeft => f.write_str("too little time is left for anything but a kill"),
            Self::GraceOver => f.write_str("the time to save is over"),
            Self::Saved => f.write_str("the checkpoint is complete"),
            Self::NobodyCatches => f.write_str("no process catches the checkpoint signal"),
            Self::TermOver => f.write_str("the time to end is over"),
            Self::Killed => f.write_str("the kill was carried out"),
            Self::Gone => f.write_str("no victim is left"),
            Self::Recovered => f.write_str("memory is back"),
            Self::Unkillable => f.write_str("victims are still there after their time"),
            Self::NotBack => f.write_str("the victims are gone and their memory is not back"),
            Self::Stale => f.write_str("nothing that is watched was read lately"),
            Self::Fresh => f.write_str("it can be read again"),
            Self::Unfit => f.write_str("a self-test failed"),
            Self::RateUsed => f.write_str("the rate limit is used up"),
            Self::Withheld => f.write_str("help is due, and the rate limit withholds it"),
            Self::Rearmed => f.write_str("fit to act again"),
            Self::Quiet => f.write_str("the quiet time is over"),
        }
    }
}

/// One move of a ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Transition {
    /// When.
    pub at: Timestamp,
    /// Where it stood.
    pub from: State,
    /// Where it stands; the same as before where only something is said ([`Reason::Unkillable`], [`Reason::Withheld`]).
    pub to: State,
    /// Why.
    pub reason: Reason,
    /// The incident it belongs to, counted from 1; 0 outside incidents.
    pub incident: u64,
    /// Whether the checkpoint signal is due: at most once in an incident.
    pub ask: bool,
    /// Whether it is the first of its incident that ends the job, which the rate limits count.
    pub counts: bool,
}

impl Transition {
    /// Whether something may be done because of it; a return from BLIND repeats nothing.
    pub fn acts(&self) -> bool {
        self.to.acts() && self.to != self.from && self.reason != Reason::Fresh
    }
}

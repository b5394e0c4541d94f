//! What a ladder is told at each step: plain values, each with its age.

use std::time::Duration;

use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// What can run out for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// The host's memory.
    Host,
    /// The smallest limit on the path of the target's cgroup.
    Cgroup,
    /// The memory of the GPU that has least left of those the target uses.
    Gpu,
    /// What the job's own allocator can still get, as the job says.
    Allocator,
}

impl Resource {
    /// Every resource, in the order of all arrays over them.
    pub const ALL: [Self; 4] = [Self::Host, Self::Cgroup, Self::Gpu, Self::Allocator];

    /// The value of the `resource` label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cgroup => "cgroup",
            Self::Gpu => "gpu",
            Self::Allocator => "allocator",
        }
    }

    /// Its place in arrays.
    pub const fn place(self) -> usize {
        self as usize
    }

    /// Whether another target's end can give it back.
    pub const fn shared(self) -> bool {
        matches!(self, Self::Host | Self::Gpu)
    }
}

/// A value and how long ago it was true.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aged<T> {
    /// The value.
    pub value: T,
    /// Its age at the time of the step.
    pub age: Duration,
}

impl<T> Aged<T> {
    /// A value of this instant.
    pub const fn now(value: T) -> Self {
        Self { value, age: Duration::ZERO }
    }

    /// A value of that long ago.
    pub const fn of(value: T, age: Duration) -> Self {
        Self { value, age }
    }
}

/// What is left of one resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Bytes until it is exhausted.
    pub headroom: Bytes,
    /// All there is of it.
    pub total: Bytes,
    /// How fast it goes lately (about 1 s), in bytes per second; absent before that is known.
    pub fast: Option<f64>,
    /// How fast it goes over half a minute, in bytes per second; absent before that is known.
    pub slow: Option<f64>,
}

/// Time to exhaustion by the analyzers, in seconds; the shortest of the target's resources.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// One in ten is earlier.
    pub p10: f64,
    /// As likely earlier as later.
    pub p50: f64,
}

/// The processes of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    /// How many there are.
    pub count: u32,
    /// How many of them have a handler for the checkpoint signal; absent where that was not looked at yet.
    pub catching: Option<u32>,
}

/// What the job said about its checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// What it said.
    pub kind: AckKind,
    /// When it was heard.
    pub at: Timestamp,
}

/// The states of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AckKind {
    /// It has begun: the job may take up to the longest grace.
    Saving,
    /// It could not be saved; the job gets the grace of one that says nothing.
    Failed,
    /// It is complete.
    Saved,
}

/// Everything a ladder is told at one step. What is not known is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// By [`Resource::place`].
    pub readings: [Option<Aged<Reading>>; 4],
    /// By [`Resource::place`]: the target has no such resource, so that nothing is missing where nothing is read.
    pub absent: [bool; 4],
    /// The analyzers' forecast; the value is absent where nothing is foreseen.
    pub forecast: Option<Aged<Option<Forecast>>>,
    /// Whether a leak in the target is confirmed.
    pub leak: Option<Aged<bool>>,
    /// Whether an alert that names the policy fires; the age is that of the newest notification.
    pub alert: Option<Aged<bool>>,
    /// Who would be signalled. They are identified again before each signal, so their age is shown and not judged.
    pub members: Option<Aged<Members>>,
    /// The newest word of the job about its checkpoint.
    pub ack: Option<Ack>,
    /// Victims that are not gone yet; absent before there are any, or where that is not known.
    pub alive: Option<u32>,
    /// What the victims had resident when they were killed.
    pub victims: Bytes,
    /// Whether a stage is still being carried out.
    pub busy: bool,
    /// Whether everything that must hold to act holds: the self-tests.
    pub fit: bool,
}

impl Observed {
    /// What is known of one resource.
    pub const fn reading(&self, resource: Resource) -> Option<&Aged<Reading>> {
        self.readings[resource.place()].as_ref()
    }
}

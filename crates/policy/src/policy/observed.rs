//! The observations of one step: plain values, each with its age.

use crate::model::checkpoint::CheckpointState;
use std::time::Duration;

use crate::model::limited_groups::LimitedGroups;
use crate::model::node_set::NodeSet;
use crate::model::outlook::Tte;
use crate::model::room::Room;
use crate::model::time::Timestamp;
use crate::model::units::{Amount, Bytes};
pub use crate::types::reason::Resource;
use crate::types::rung::Rung;

/// A value for each resource, by [`Resource::place`].
pub type ByResource<T> = [T; Resource::ALL.len()];

/// A value and its age.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aged<T> {
    pub value: T,
    /// Its age at the time of the step.
    pub age: Duration,
}

impl Reading {
    /// A reading before rates are known.
    pub const fn of(room: Room) -> Self {
        Self { room, fast: None, slow: None }
    }

    /// Bytes until it is exhausted.
    pub const fn headroom(&self) -> Bytes {
        self.room.left()
    }

    /// Whether no more than an amount is left; see [`Room::level`].
    pub fn is_within(&self, amount: Amount) -> bool {
        self.room.is_within(self.room.level(amount))
    }
}

impl<T> Aged<T> {
    /// A value of age zero.
    pub const fn now(value: T) -> Self {
        Self { value, age: Duration::ZERO }
    }

    pub const fn of(value: T, age: Duration) -> Self {
        Self { value, age }
    }
}

/// The memory left of one resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// What is left.
    pub room: Room,
    /// Rate of growth over about 1 s, in bytes per second; absent before it is known.
    pub fast: Option<f64>,
    /// Rate of growth over 30 s, in bytes per second; absent before it is known.
    pub slow: Option<f64>,
}

/// The processes of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    /// Number of processes.
    pub count: u32,
    /// Processes with a handler for the checkpoint signal; absent before it was sent.
    pub catching: Option<u32>,
}

/// An acknowledgement of a checkpoint request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    pub kind: CheckpointState,
    /// When it was received.
    pub at: Timestamp,
}

/// The observations of one step. Unknown values are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    pub readings: ByResource<Option<Aged<Reading>>>,
    /// Whether the target does not have the resource, so that a missing reading is expected.
    pub absent: ByResource<bool>,
    /// The memory that saving a checkpoint takes, as the job predicts; absent where it predicts none.
    pub save: ByResource<Option<Bytes>>,
    /// The groups whose limits the reading of the cgroup is about.
    pub groups: LimitedGroups,
    /// The NUMA nodes that the job may use, where these are not all.
    pub nodes: Option<NodeSet>,
    /// The soonest time to exhaustion of the target's resources; the value is absent where no exhaustion is predicted.
    pub forecast: Option<Aged<Option<Tte>>>,
    /// Bytes per second by which the memory that is left falls, by the same forecasts; absent where no exhaustion is predicted.
    pub falls: Option<Aged<ByResource<Option<f64>>>>,
    /// Growth of the job's own memory in bytes per second; absent where that is unknown.
    pub growth: Option<Aged<f64>>,
    /// Whether a leak in the target is confirmed.
    pub leak: Option<Aged<bool>>,
    /// The last state that the firing alert for the job can lead to; the value is absent where none fires. The age is that
    /// of the newest notification.
    pub alert: Option<Aged<Option<Option<Rung>>>>,
    /// The processes that would be signalled. Their age is not limited, because each is identified again before a
    /// signal.
    pub members: Option<Aged<Members>>,
    /// Whether the processes that the last checkpoint request went to have ended, and the job is others now: it was started again.
    pub restarted: bool,
    /// The newest acknowledgement.
    pub ack: Option<Ack>,
    /// The memory that the end of the victims gives back to the host and to the limits above them, in bytes: what only they hold,
    /// without files and tmpfs. Absent where that is not known.
    pub gives: Option<Bytes>,
    /// Whether some of the victims that received SIGTERM have ended and others have not; absent before they were counted at the end of
    /// its time limit.
    pub half_dead: Option<bool>,
    /// Victims that have not ended; absent before there are any, or where that is unknown.
    pub alive: Option<u32>,
    /// Resident memory of the victims when they were killed.
    pub victims: Bytes,
    /// Whether a kill is still being carried out.
    pub busy: bool,
    /// Whether a kill could not begin now; it is decided on again, with the readings of then.
    pub kill_waits: bool,
    /// Whether steps of the newest transition are left: nothing but a kill is decided on meanwhile.
    pub unfinished: bool,
    /// Whether the self-tests passed.
    pub fit: bool,
}

impl Observed {
    pub const fn reading(&self, resource: Resource) -> Option<&Aged<Reading>> {
        self.readings[resource.place()].as_ref()
    }
}

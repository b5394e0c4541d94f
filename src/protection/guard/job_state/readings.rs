//! Readings of a job: those that the sampler hands over with each frame, and those of the cgroup that the guard reads itself.

use std::time::Duration;

use crate::model::limited_groups::LimitedGroups;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::enforce::levels::{GroupMeter, MemoryLeft};
use crate::protection::guard::alerts::FiringAlert;
use crate::protection::guard::input::{JobInput, Known};
use crate::protection::policy::{Aged, Flow, Forecast, Members, Observed, Reading, Resource, Rung};
use crate::protection::status::Unfit;

/// The readings of the newest frame.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct SamplerReadings {
    /// When the frame was sampled.
    at: Timestamp,
    pub(super) gpu: Known,
    pub(super) allocator: Known,
    pub(super) members: Option<Members>,
    pub(super) forecast: Option<Option<Forecast>>,
    pub(super) leak: Option<bool>,
    /// The alert that fires for the job.
    alert: Option<FiringAlert>,
    /// Why no action is allowed for the job.
    pub(in super::super) unfit: Option<Unfit>,
}

impl SamplerReadings {
    pub(super) const fn new(at: Timestamp) -> Self {
        Self {
            at,
            gpu: Known::Absent,
            allocator: Known::Absent,
            members: None,
            forecast: None,
            leak: None,
            alert: None,
            unfit: None,
        }
    }

    pub(super) const fn receive(&mut self, input: &JobInput, at: Timestamp) {
        let JobInput { gpu, allocator, members, forecast, leak, alert, unfit, .. } = *input;
        *self = Self { at, gpu, allocator, members, forecast, leak, alert, unfit };
    }

    /// Time since the frame was sampled.
    pub(super) fn age(&self, now: Timestamp) -> Duration {
        now.since(self.at)
    }

    /// The last state that the firing alert can lead to; the age is that of its newest notification.
    pub(super) fn alert(&self, now: Timestamp) -> Aged<Option<Option<Rung>>> {
        let age = self.alert.map_or(Duration::ZERO, |alert| now.since(alert.at));
        Aged::of(self.alert.map(|alert| alert.most), age)
    }
}

impl Known {
    /// The reading, where there is one, which is as old as the frame.
    pub(super) fn reading(self, age: Duration) -> Option<Aged<Reading>> {
        match self {
            Self::Read(reading) => Some(Aged::of(reading, age)),
            Self::Absent | Self::Unknown => None,
        }
    }

    /// Whether the target does not have the resource.
    pub(super) fn is_absent(self) -> bool {
        self == Self::Absent
    }
}

/// The memory left below the limits of the job's cgroup, read in each round.
#[derive(Debug, Default)]
pub(in super::super) struct CgroupReadings {
    meter: Option<GroupMeter>,
    rates: Flow,
    /// The newest reading; absent where the cgroup has no limit.
    newest: Option<(Timestamp, Reading)>,
    /// The groups whose limits the newest reading is about.
    groups: LimitedGroups,
    /// Whether a limit was found. Without a cgroup there is none.
    limited: bool,
    /// When it was read last.
    read_at: Option<Timestamp>,
}

impl CgroupReadings {
    /// Exchanges the meter; the old one is left in `meter`. Readings and rates of another cgroup do not count.
    pub(super) fn replace_meter(&mut self, meter: &mut Option<GroupMeter>) {
        std::mem::swap(&mut self.meter, meter);
        (self.newest, self.limited, self.read_at) = (None, self.meter.is_some(), None);
        self.groups = LimitedGroups::default();
        self.rates = Flow::default();
    }

    /// Reads the memory left as [`CgroupReadings::read`], unless that was done at most `age` ago.
    pub(in super::super) fn read_if_older(&mut self, now: Timestamp, host: Bytes, age: Duration) {
        if self.read_at.is_none_or(|before| now.since(before) >= age) {
            self.read(now, host);
        }
    }

    /// Reads the memory left, where there is a meter. A failed read leaves the old reading, which ages. `host` is the
    /// host's memory, which bounds every limit.
    pub(in super::super) fn read(&mut self, now: Timestamp, host: Bytes) {
        let Some(meter) = &self.meter else { return };
        self.read_at = Some(now);
        match meter.read(host) {
            Ok(Some((left, groups))) => {
                (self.limited, self.groups) = (true, groups);
                self.newest = Some((now, reading_with_rates(&mut self.rates, now, left)));
            }
            Ok(None) => {
                (self.newest, self.limited, self.groups) = (None, false, LimitedGroups::default());
            }
            Err(_) => {}
        }
    }

    /// The newest reading.
    pub(in super::super) fn reading(&self) -> Option<Reading> {
        self.newest.map(|(_, reading)| reading)
    }

    /// The newest reading, and when it was made.
    pub(super) const fn timed(&self) -> Option<(Timestamp, Reading)> {
        self.newest
    }

    /// The groups whose limits the newest reading is about.
    pub(super) const fn groups(&self) -> LimitedGroups {
        self.groups
    }

    /// Whether the job has no limit of its own.
    pub(super) const fn unlimited(&self) -> bool {
        !self.limited
    }

    /// The highest rate of growth seen, in bytes per second.
    pub(in super::super) const fn highest_rate(&self) -> f64 {
        self.rates.fastest()
    }
}

/// A reading with its rates of growth.
pub(in super::super) fn reading_with_rates(rates: &mut Flow, now: Timestamp, left: MemoryLeft) -> Reading {
    /// More than any host has, and exact as a floating-point number.
    const ABOVE: Bytes = Bytes::new(1 << 52);
    // The least headroom of several limits has no jump where another limit becomes the least; the use below it has.
    let (fast, slow) = rates.record(now, ABOVE.saturating_sub(left.headroom));
    Reading { headroom: left.headroom, total: left.total, fast, slow }
}

/// The age of the oldest reading of the resources that a policy watches; absent where none was read.
pub(in super::super) fn oldest(observed: &Observed, watched: impl Fn(Resource) -> bool) -> Option<Duration> {
    let read = Resource::ALL.into_iter().filter(|resource| watched(*resource));
    read.filter_map(|resource| observed.reading(resource).map(|reading| reading.age)).max()
}

//! Readings of the limits of a job, which the guard makes itself.

use std::time::Duration;

use crate::model::limited_groups::LimitedGroups;
use crate::model::node_set::NodeSet;
use crate::model::room::{GroupSwap, Room};
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::enforce::levels::{GroupMeter, NodesMeter};
use crate::protection::enforce::process_meter::ProcessMeter;
use crate::protection::policy::{Flow, Observed, Reading, Resource};

/// What bounds every limit.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct HostLimits {
    /// The host's memory, in bytes.
    pub(in super::super) memory: Bytes,
    /// What cgroups can use of its swap.
    pub(in super::super) swap: GroupSwap,
}

impl Default for HostLimits {
    /// Before the host was read.
    fn default() -> Self {
        Self { memory: Bytes::new(u64::MAX), swap: GroupSwap::default() }
    }
}

/// The memory left below the limits of the job's cgroup and below the limit of its target, read in each round.
#[derive(Debug, Default)]
pub(in super::super) struct CgroupReadings {
    meter: Option<GroupMeter>,
    processes: Option<ProcessMeter>,
    rates: Flow,
    /// The newest reading below `memory.high`; absent where there is none.
    high: Option<(Timestamp, Reading)>,
    high_rates: Flow,
    /// The newest reading; absent where the cgroup has no limit.
    newest: Option<(Timestamp, Reading)>,
    /// The groups whose limits the newest reading is about.
    groups: LimitedGroups,
    /// Whether a limit was found. Without a cgroup there is none.
    limited: bool,
    /// When it was read last.
    read_at: Option<Timestamp>,
    /// When it was last found unchanged since.
    still_at: Option<Timestamp>,
}

impl CgroupReadings {
    /// Exchanges the meter; the old one is left in `meter`. Readings and rates of another cgroup do not count.
    pub(super) fn replace_meter(&mut self, meter: &mut Option<GroupMeter>) {
        std::mem::swap(&mut self.meter, meter);
        (self.newest, self.limited, self.read_at) = (None, self.meter.is_some(), None);
        self.groups = LimitedGroups::default();
        (self.rates, self.high, self.high_rates) = (Flow::default(), None, Flow::default());
    }

    /// Exchanges the meter of the job's processes; the old one is left in `meter`. The readings are still of the same job.
    pub(super) fn replace_process_meter(&mut self, meter: &mut Option<ProcessMeter>) {
        if let (Some(new), Some(old)) = (&mut *meter, &self.processes) {
            new.take_over(old);
        }
        std::mem::swap(&mut self.processes, meter);
    }

    /// Reads the memory left as [`CgroupReadings::read`], unless that was done at most `age` ago.
    pub(in super::super) fn read_if_older(&mut self, now: Timestamp, host: HostLimits, age: Duration) {
        if self.read_at.is_none_or(|before| now.since(before) >= age) {
            self.read(now, host);
        }
    }

    /// Reads the memory left, where there is a meter. A failed read leaves the old reading, which ages. `host` bounds
    /// every limit.
    pub(in super::super) fn read(&mut self, now: Timestamp, host: HostLimits) {
        if self.meter.is_none() && self.processes.is_none() {
            return;
        }
        self.read_at = Some(now);
        if let (Some(at), Some((_, before))) = (self.still_at.take(), &self.newest) {
            // Otherwise the growth since would seem to have lasted since the reading.
            let _ = reading_with_rates(&mut self.rates, at, before.room);
        }
        let group = self.meter.as_mut().map(|meter| meter.read(now, host.memory, host.swap));
        if let Some(Ok(rooms)) = &group {
            self.high = rooms.high.map(|room| (now, reading_with_rates(&mut self.high_rates, now, room)));
        }
        let own = self.processes.as_mut().map(|meter| meter.read(now));
        if self.processes.as_mut().is_some_and(ProcessMeter::has_jumped) {
            self.rates = Flow::default();
        }
        let group = match group.transpose() {
            Ok(rooms) => rooms.and_then(|rooms| rooms.max),
            Err(_) if own.is_none() => return,
            Err(_) => None,
        };
        // While it is unknown whether the job's own limit is reached, the older reading ages.
        if own == Some(None) && group.is_none() {
            self.limited = true;
            return;
        }
        let own = own.flatten().map(|room| (room, LimitedGroups::default()));
        match group.into_iter().chain(own).min_by_key(|(room, _)| room.left()) {
            Some((room, groups)) => {
                (self.limited, self.groups) = (true, groups);
                self.newest = Some((now, reading_with_rates(&mut self.rates, now, room)));
            }
            None => (self.newest, self.limited, self.groups) = (None, false, LimitedGroups::default()),
        }
    }

    /// Whether the usages have hardly changed since the last reading of everything; not known of processes.
    pub(in super::super) fn is_still(&mut self, now: Timestamp) -> bool {
        /// The usage may have changed by this share of the limit: at 12 GiB/s that is 0.2 ms of 512 MiB.
        const STILL: f64 = 1.0 / 256.0;
        /// What is no growth for the rates.
        const SAME: f64 = 1.0 / 65_536.0;
        let change = self.meter.as_ref().map_or(Some(0.0), GroupMeter::change);
        if change.is_some_and(|change| change <= SAME) {
            self.still_at = Some(now);
        }
        self.processes.is_none() && change.is_some_and(|change| change <= STILL)
    }

    /// Reads everything anew, also what seldom changes.
    pub(in super::super) fn read_whole(&mut self, now: Timestamp, host: HostLimits) {
        self.meter.iter_mut().for_each(GroupMeter::forget);
        self.read(now, host);
    }

    /// The newest reading.
    pub(in super::super) fn reading(&self) -> Option<Reading> {
        self.newest.map(|(_, reading)| reading)
    }

    /// The anonymous memory of the cgroup, and its shared memory beyond `files`, none where these are absent; absent where that is not
    /// known.
    pub(super) fn private(&self, files: Option<Bytes>) -> Option<Bytes> {
        self.meter.as_ref()?.private(files)
    }

    /// The memory of the job's processes, shared pages once; absent where the target does not limit it, and where it is not known.
    pub(super) fn own_used(&self) -> Option<Bytes> {
        self.processes.as_ref()?.used()
    }

    /// The newest reading below `memory.high`, and when it was made.
    pub(super) const fn high(&self) -> Option<(Timestamp, Reading)> {
        self.high
    }

    /// The newest reading, and when it was made.
    pub(super) const fn timed(&self) -> Option<(Timestamp, Reading)> {
        self.newest
    }

    /// The groups whose limits the newest reading is about.
    pub(super) const fn groups(&self) -> LimitedGroups {
        self.groups
    }

    /// Whether an exact reading of the job's processes was asked for a moment ago.
    pub(in super::super) fn is_awaited(&self) -> bool {
        self.processes.as_ref().zip(self.read_at).is_some_and(|(meter, at)| meter.is_awaited(at))
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

/// The memory left of the NUMA nodes that the job may use, where these are not all.
#[derive(Debug, Default)]
pub(in super::super) struct NodeReadings {
    meter: Option<NodesMeter>,
    rates: Flow,
    newest: Option<(Timestamp, Reading)>,
}

impl NodeReadings {
    /// Exchanges the meter; the old one is left in `meter`.
    pub(super) fn replace_meter(&mut self, meter: &mut Option<NodesMeter>) {
        std::mem::swap(&mut self.meter, meter);
        (self.newest, self.rates) = (None, Flow::default());
    }

    /// Reads the memory left. A failed read leaves the old reading, which ages.
    pub(in super::super) fn read(&mut self, now: Timestamp, host: HostLimits) {
        if let Some(Ok(room)) = self.meter.as_ref().map(|meter| meter.read(host.swap.v2)) {
            self.newest = Some((now, reading_with_rates(&mut self.rates, now, room)));
        }
    }

    pub(in super::super) fn nodes(&self) -> Option<NodeSet> {
        self.meter.as_ref().map(|meter| meter.nodes)
    }

    /// The newest reading, and when it was made.
    pub(super) const fn timed(&self) -> Option<(Timestamp, Reading)> {
        self.newest
    }

    /// The highest rate of growth seen, in bytes per second.
    pub(in super::super) const fn highest_rate(&self) -> f64 {
        self.rates.fastest()
    }
}

/// A reading with its rates of growth.
pub(in super::super) fn reading_with_rates(rates: &mut Flow, now: Timestamp, room: Room) -> Reading {
    /// More than any host has, and exact as a floating-point number.
    const ABOVE: Bytes = Bytes::new(1 << 52);
    // The least headroom of several limits has no jump where another limit becomes the least; the use below it has.
    let (fast, slow) = rates.record(now, ABOVE.saturating_sub(room.left()));
    Reading { room, fast, slow }
}

/// The age of the oldest reading of the resources that a policy watches; absent where none was read.
pub(in super::super) fn oldest(observed: &Observed, watched: impl Fn(Resource) -> bool) -> Option<Duration> {
    let read = Resource::ALL.into_iter().filter(|resource| watched(*resource));
    read.filter_map(|resource| observed.reading(resource).map(|reading| reading.age)).max()
}

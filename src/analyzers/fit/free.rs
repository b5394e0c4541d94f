//! What each rank holds, and what is free for it, in this tick.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use super::Asked;
use crate::analyzers::dmem::DeviceLimits;
use crate::model::analyzer::View;
use crate::model::facts::{Facts, ProcessRow};
use crate::model::finding::Subject;
use crate::model::fit::{Medium, Prediction, RankPredictions};
use crate::model::ids::{ProcessKey, path, within};
use crate::model::label::Label;
use crate::model::point::Point;
use crate::model::units::real;
use crate::sources::cgroup::metrics::{HEADROOM, LIMIT, WORKING_SET};
use crate::sources::memory::metrics::AVAILABLE;
use crate::sources::training::metrics::{ALLOCATED, DEVICE_FREE, RESERVED};

/// The allocator of a rank on one device: workload, rank, ordinal of the device.
type Allocator<'v> = (&'v str, &'v str, u16);

/// The statistics of an allocator that a rank reported longer ago are not used: the Python client reports them once a
/// second, unless the interpreter is busy in one call or the job sets another interval.
const FRESH: Duration = Duration::from_secs(10);

/// What each process could hold of the host (an empty label) or of a cgroup, in the last ticks.
pub(super) type Recent = HashMap<(ProcessKey, Label), VecDeque<f64>>;
/// Number of ticks whose median counts.
const TICKS: usize = 5;

/// The free memory of one tick.
#[derive(Debug)]
pub(super) struct Free<'v> {
    facts: Option<&'v Facts>,
    host: Option<f64>,
    allocated: HashMap<Allocator<'v>, f64>,
    reserved: HashMap<Allocator<'v>, f64>,
    /// Free memory of the device, of the same message as the reserved memory.
    device_free: HashMap<Allocator<'v>, f64>,
    device_limits: DeviceLimits<'v>,
    /// The region of device memory of each GPU, by UUID.
    regions: BTreeMap<&'v str, &'v str>,
    /// The room of each cgroup to its own limit.
    room: HashMap<&'v str, f64>,
    /// The limit of each cgroup.
    limits: HashMap<&'v str, f64>,
    /// The room of each cgroup on its whole path, as the source computes it.
    path_room: HashMap<&'v str, f64>,
    /// The largest process of the host, and the largest of another workload than its.
    largest: OnceCell<Option<[Option<ProcessKey>; 2]>>,
    /// See [`Free::steady`].
    steady: HashMap<(ProcessKey, Label), f64>,
}

/// A place that a phase takes memory from.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) subject: Subject,
    /// What the rank holds there and what is free; absent where that is not known.
    pub(super) capacity: Option<f64>,
    /// The limit in bytes that a cgroup is exposed with.
    pub(super) limit: Option<f64>,
    /// The other process that holds the most of it; absent for a cgroup, and where there is none.
    pub(super) neighbour: Option<Neighbour>,
}

/// Another process on a GPU, or on the host.
#[derive(Clone, Debug)]
pub(super) struct Neighbour {
    pub(super) pid: u32,
    /// The bytes that it holds there.
    pub(super) held: f64,
    /// Its user by name, or by number where it has none; absent where the process is not known.
    pub(super) user: Option<String>,
}

fn by_rank<'v>(points: &'v [Point]) -> HashMap<Allocator<'v>, f64> {
    let of = |point: &'v Point| {
        let [workload, rank, device, _] = &*point.labels else { return None };
        Some(((workload.as_str(), rank.as_str(), device.as_str().parse().ok()?), point.value))
    };
    points.iter().filter_map(of).collect()
}

/// The allocator of a prediction of a device; absent where the rank has not reported it lately.
fn allocator<'r>(rank: &'r RankPredictions, prediction: &Prediction) -> Option<Allocator<'r>> {
    let is_fresh = prediction.memory_age.is_some_and(|age| age <= FRESH);
    prediction.device.filter(|_| is_fresh).map(|device| (rank.workload.as_str(), rank.rank.as_str(), device))
}

fn by_cgroup(points: &[Point]) -> HashMap<&str, f64> {
    points.iter().filter_map(|point| Some((point.labels.first()?.as_str(), point.value))).collect()
}

/// The process of a rank in this tick; absent where it is not known, or has ended.
pub(super) fn row<'v>(facts: Option<&'v Facts>, rank: &RankPredictions) -> Option<&'v ProcessRow> {
    facts?.row(rank.process?)
}

impl<'v> Free<'v> {
    pub(super) fn of(view: &View<'v>, ranks: &[&RankPredictions]) -> Self {
        let on =
            |medium: Medium| ranks.iter().flat_map(|rank| &rank.predictions).any(|own| own.medium == medium);
        let device_limits = DeviceLimits::of(view);
        let used = by_cgroup(view.points(&WORKING_SET));
        let limits = by_cgroup(view.points(&LIMIT));
        let room =
            limits.iter().filter_map(|(cgroup, limit)| Some((*cgroup, (limit - used.get(cgroup)?).max(0.0))));
        Self {
            facts: view.facts(),
            host: view.value(&AVAILABLE, &[]),
            allocated: if on(Medium::Device) { by_rank(view.points(&ALLOCATED)) } else { HashMap::new() },
            reserved: if on(Medium::Device) { by_rank(view.points(&RESERVED)) } else { HashMap::new() },
            device_free: if on(Medium::Device) { by_rank(view.points(&DEVICE_FREE)) } else { HashMap::new() },
            regions: device_limits.regions(view),
            device_limits,
            room: room.collect(),
            limits,
            path_room: by_cgroup(view.points(&HEADROOM)),
            largest: OnceCell::new(),
            steady: HashMap::new(),
        }
    }

    /// Replaces what each rank holds and what is free for it on the host by the median of the last ticks. Both change with
    /// each micro-batch, and are read at different times.
    pub(super) fn steady(&mut self, ranks: &[&RankPredictions], recent: &mut Recent) {
        let mut before = std::mem::take(recent);
        for rank in ranks {
            let host = rank.predictions.iter().find(|own| own.medium == Medium::Host);
            let Some((process, prediction)) = rank.process.zip(host) else { continue };
            for place in self.places(rank, prediction) {
                let Some(capacity) = place.capacity else { continue };
                let key = (process, place.subject.cgroup);
                let mut last = before.remove(&key).unwrap_or_default();
                last.push_back(capacity);
                if last.len() > TICKS {
                    last.pop_front();
                }
                recent.insert(key, last);
            }
        }
        let median = |last: &VecDeque<f64>| {
            let mut sorted: Vec<f64> = last.iter().copied().collect();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len() / 2).copied()
        };
        self.steady = recent.iter().filter_map(|(key, last)| Some((key.clone(), median(last)?))).collect();
    }

    /// The memory that the rank holds in the terms of the prediction now; absent where it is not known.
    pub(super) fn holds(&self, rank: &RankPredictions, prediction: &Prediction) -> Option<f64> {
        match prediction.medium {
            Medium::Device => self.allocated.get(&allocator(rank, prediction)?).copied(),
            Medium::Host => Some(real(row(self.facts, rank)?.rss.get())),
            Medium::Shm | Medium::Disk => Some(0.0),
        }
    }

    /// The places from which the phase takes memory; the one with the least room decides.
    pub(super) fn places(&self, rank: &RankPredictions, prediction: &Prediction) -> Vec<Place> {
        match prediction.medium {
            Medium::Device => {
                self.gpu(rank, prediction).into_iter().chain(self.device_memory(rank, prediction)).collect()
            }
            Medium::Host => {
                let holds = self.holds(rank, prediction);
                let place = |subject: Subject, free: Option<f64>, limit| {
                    let steady =
                        rank.process.and_then(|process| self.steady.get(&(process, subject.cgroup.clone())));
                    let capacity =
                        steady.copied().or_else(|| holds.zip(free).map(|(holds, free)| holds + free));
                    Place { subject, capacity, limit, neighbour: None }
                };
                let mut places = vec![place(Subject::host(), self.host, None)];
                for (path, room, limit) in self.cgroups(rank) {
                    places.push(place(Subject::cgroup(&path.into()), Some(room), limit));
                }
                places
            }
            // The job states what is free there, in its own mount namespace.
            Medium::Shm | Medium::Disk => vec![Place {
                subject: Subject::place(prediction.medium.label()),
                capacity: prediction.free.map(|free| real(free.get())),
                limit: None,
                neighbour: None,
            }],
        }
    }

    fn gpu(&self, rank: &RankPredictions, prediction: &Prediction) -> Option<Place> {
        let (facts, uuid) = (self.facts?, prediction.uuid.as_ref()?);
        let key = allocator(rank, prediction);
        // Of one message: while an allocator grows, its reserved memory and the driver's free memory of different times
        // would count less than there is.
        let [reserved, free] = [&self.reserved, &self.device_free].map(|each| each.get(&key?));
        let capacity = reserved.zip(free).map(|(reserved, free)| reserved + free);
        let others = facts.gpu_processes.iter().filter(|other| {
            other.uuid == *uuid && rank.process.is_none_or(|process| process.pid != other.pid)
        });
        let held = others.filter_map(|other| Some((other.pid, real(other.memory?.get()))));
        let most = held.max_by(|(_, one), (_, other)| one.total_cmp(other));
        let neighbour = most.map(|(pid, held)| Neighbour { pid, held, user: self.user(pid) });
        let subject = Subject::gpu(prediction.gpu.as_ref()?, uuid);
        Some(Place { subject, capacity, limit: None, neighbour })
    }

    /// The cgroup on the path of the rank whose limit leaves the least memory of the GPU.
    fn device_memory(&self, rank: &RankPredictions, prediction: &Prediction) -> Option<Place> {
        let (uuid, gpu) = (prediction.uuid.as_ref()?, prediction.gpu.as_ref()?);
        let region = *self.regions.get(uuid.as_str())?;
        let own = row(self.facts, rank)?.cgroup.as_ref()?;
        let (cgroup, left) = self.device_limits.tightest(own.as_str(), region)?;
        // What the allocator has reserved is charged already.
        let reserved = allocator(rank, prediction).and_then(|key| self.reserved.get(&key));
        let subject = Subject::device_memory(&cgroup.into(), &region.into());
        Some(Place {
            subject: Subject { gpu: gpu.clone(), uuid: uuid.clone(), ..subject },
            capacity: reserved.map(|reserved| reserved + left),
            limit: None,
            neighbour: None,
        })
    }

    /// The process of another workload that holds the most memory of the host.
    pub(super) fn neighbour_on_host(&self, rank: &RankPredictions) -> Option<Neighbour> {
        let facts = self.facts?;
        let of = |process| facts.member(process).map(|workload| &workload.key);
        let own = of(rank.process?)?;
        // All processes are read once a tick, however many predictions fail.
        let largest = self.largest.get_or_init(|| {
            let rows = facts.processes.iter().flat_map(|table| &table.rows);
            let first = rows.clone().max_by_key(|row| row.rss)?;
            let others = rows.filter(|row| of(row.key).is_none() || of(row.key) != of(first.key));
            Some([Some(first.key), others.max_by_key(|row| row.rss).map(|row| row.key)])
        });
        let other = largest.iter().flatten().flatten().find(|process| of(**process) != Some(own))?;
        let row = facts.processes.as_ref()?.get(other.pid)?;
        Some(Neighbour { pid: other.pid, held: real(row.rss.get()), user: self.user(other.pid) })
    }

    /// The cgroups on the path of the rank that have a limit, with the room and the limit of each.
    fn cgroups(&self, rank: &RankPredictions) -> Vec<(&str, f64, Option<f64>)> {
        let Some(own) = row(self.facts, rank).and_then(|row| row.cgroup.as_ref()) else { return Vec::new() };
        let exposed = path(own.as_str())
            .filter_map(|path| Some((path, *self.room.get(path)?, self.limits.get(path).copied())));
        let mut all: Vec<_> = exposed.collect();
        // A limit above those that are exposed.
        let above = path(own.as_str()).find_map(|path| Some((path, *self.path_room.get(path)?, None)));
        all.extend(above.filter(|(_, room, _)| all.iter().all(|(_, other, _)| room < other)));
        all
    }

    /// Whether a prediction takes memory from a place.
    pub(super) fn takes_from(&self, other: &Asked<'_>, place: &Place) -> bool {
        let cgroup = &place.subject.cgroup;
        let own = || row(self.facts, other.rank).and_then(|row| row.cgroup.as_ref());
        let is_there = || cgroup.is_empty() || own().is_some_and(|own| within(own.as_str(), cgroup.as_str()));
        match other.prediction.medium {
            Medium::Device => other.prediction.uuid.as_ref() == Some(&place.subject.uuid) && is_there(),
            Medium::Host => is_there(),
            Medium::Shm | Medium::Disk => false,
        }
    }

    /// The user of a process by name, or by number where it has none.
    fn user(&self, pid: u32) -> Option<String> {
        let facts = self.facts?;
        let row = facts.processes.as_ref()?.get(pid)?;
        let named = facts.member(row.key).and_then(|workload| facts.names_of(&workload.key));
        Some(named.map_or_else(|| format!("user {}", row.uid), |names| names.user.to_string()))
    }
}

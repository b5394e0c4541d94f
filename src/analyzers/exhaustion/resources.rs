//! Finds the resources that can be exhausted in a frame, with the memory that counts against their limits.

use std::collections::{BTreeMap, BTreeSet};

use forecast::tracker::Sample;

use super::loads::Loads;
use super::nodes;
use super::phases::{HostMemory, Used};
use super::throttling::Throttling;
use crate::analyzers::dmem::DeviceLimits;
use crate::analyzers::ranks;
use crate::analyzers::subjects::{self, Sharing};
use crate::model::analyzer::View;
use crate::model::finding::Subject;
use crate::model::ids::within;
use crate::model::label::Label;
use crate::sources::{cgroup, memory, tmpfs, training, workload};

/// A resource that can be exhausted.
#[derive(Debug)]
pub(super) struct Resource {
    pub(super) subject: Subject,
    pub(super) sample: Sample,
    /// Memory that cannot be given to another use, in bytes: the used memory, without what allocators reserve on a GPU and
    /// have not given to tensors.
    pub(super) occupied: f64,
    /// Bytes.
    pub(super) limit: f64,
    /// Identifies the lifetime of the subject, in seconds: a different value means that the subject was restarted.
    pub(super) life: f64,
    pub(super) sharing: Sharing,
    /// Whose phases change it; absent where no job reports them.
    pub(super) phases_of: Option<PhasesOf>,
    /// Whether its limit throttles, and does.
    pub(super) is_stalled: bool,
}

/// Who reports the phases in which a resource has peaks.
#[derive(Debug)]
pub(super) enum PhasesOf {
    /// A rank of a workload, whose allocator it is.
    Rank([Label; 2]),
    /// The ranks of these workloads, whose host memory it is, or contains.
    Workloads(Vec<Label>, HostMemory),
}

/// Seconds by which each OOM kill changes the lifetime of a cgroup: more than the tolerated drift of a start time.
const KILL: f64 = 60.0;

impl Resource {
    /// With used and free swap, in bytes: memory is exhausted once both are. It is as full as the emptier of the two: the kernel swaps
    /// out before it ends a process.
    fn with_swap(mut self, swap: Option<(f64, f64)>) -> Self {
        let Some((used, free)) = swap.filter(|(used, free)| used + free > 0.0) else { return self };
        let share = f64::min(self.sample.used / self.limit, used / (used + free));
        self.limit += used + free;
        self.sample.used += used;
        self.sample.unreclaimable = self.sample.unreclaimable.map(|bytes| bytes + used);
        self.occupied = share * self.limit;
        self
    }

    pub(super) fn new(subject: Subject, sample: Sample, limit: f64) -> Self {
        Self {
            subject,
            sample,
            occupied: sample.used,
            limit,
            life: 0.0,
            sharing: Sharing::One,
            phases_of: None,
            is_stalled: false,
        }
    }
}

/// Every resource whose limit and used memory are known.
pub(super) fn all(view: &View<'_>, loads: &Loads, throttling: &Throttling) -> Vec<Resource> {
    let mut found = Vec::new();
    let host = host(view);
    let groups = groups(view, loads);
    let rest = host.as_ref().map(|host| host.limit - host.sample.used);
    found.extend(host);
    let (placed, turnovers) = (placed(view), subjects::turnovers(view));
    let reporting: BTreeSet<&Label> =
        view.points(&training::metrics::PHASES).iter().map(|point| &point.labels[0]).collect();
    let reporting = Vec::from_iter(reporting);
    for (path, group) in &groups {
        let is_in =
            |workload: &&Label| placed.get(*workload).is_some_and(|own| within(own.as_str(), path.as_str()));
        let of: Vec<Label> = reporting.iter().copied().filter(is_in).cloned().collect();
        found.push(Resource {
            life: group.life,
            sharing: Sharing::Workload(
                turnovers.iter().filter(|(workload, _)| is_in(workload)).map(|(_, turnover)| *turnover).sum(),
            ),
            phases_of: (!of.is_empty()).then(|| PhasesOf::Workloads(of, HostMemory::Cgroup(path.clone()))),
            ..Resource::new(Subject::cgroup(path), group.sample, group.limit).with_swap(group.swap)
        });
    }
    found.extend(throttling.resources(view));
    found.extend(nodes::of_bound_workloads(view));
    gpus(view, loads, &mut found);
    gpu_instances(view, &mut found);
    device_memory(view, &placed, &mut found);
    allocators(view, &mut found);
    found.extend(all_tmpfs(view));
    workloads(view, &groups, &placed, rest, &mut found);
    for Resource { subject, sharing, .. } in &mut found {
        let is_hosts_tmpfs = !subject.mount.is_empty() && subject.workload.is_empty();
        if *subject == Subject::host() || is_hosts_tmpfs || subject.resource.as_str() == "numa_nodes" {
            *sharing = Sharing::Many;
        } else if let Some(turnover) = turnovers.get(&subject.workload).filter(|_| subject.gpu.is_empty()) {
            *sharing = Sharing::Workload(*turnover);
        }
    }
    found
}

/// The used memory of each workload, and of the cgroups in which the phases of a workload have peaks.
pub(super) fn used(resources: &[Resource]) -> Used {
    let mut used = Used::new();
    for resource in resources {
        let Some(PhasesOf::Workloads(workloads, memory)) = &resource.phases_of else { continue };
        for workload in workloads {
            used.entry(workload.clone()).or_default().push((memory.clone(), resource.sample.used));
        }
    }
    used
}

/// The cgroup of each workload that has one.
pub(super) fn placed<'a>(view: &View<'a>) -> BTreeMap<&'a Label, &'a Label> {
    let place = workload::metrics::INFO.desc.labels.iter().position(|label| *label == "cgroup");
    view.points(&workload::metrics::INFO)
        .iter()
        .filter_map(|point| Some((&point.labels[0], point.labels.get(place?)?)))
        .filter(|(_, path)| !path.as_str().is_empty())
        .collect()
}

fn host(view: &View<'_>) -> Option<Resource> {
    let limit = view.value(&memory::metrics::TOTAL, &[])?;
    let used = limit - view.value(&memory::metrics::AVAILABLE, &[])?;
    let anon = view.value(&memory::metrics::ANON, &[]);
    let shmem = view.value(&memory::metrics::SHMEM, &[]);
    let unreclaimable = anon.zip(shmem).map(|(anon, shmem)| anon + shmem);
    let swap = view.value(&memory::metrics::SWAP_USED, &[]).zip(view.value(&memory::metrics::SWAP_FREE, &[]));
    let sample = Sample { used, unreclaimable, allocated: None, peak: None };
    Some(Resource::new(Subject::host(), sample, limit).with_swap(swap))
}

/// A cgroup with its own memory limit.
struct Group {
    sample: Sample,
    limit: f64,
    /// Used and free swap; absent where it has none.
    swap: Option<(f64, f64)>,
    life: f64,
}

impl Group {
    /// What is left below the limit, in bytes, with swap.
    fn left(&self) -> f64 {
        self.limit - self.sample.used + self.swap.map_or(0.0, |(_, free)| free)
    }
}

/// The cgroups with a limit. Only memory that the kernel cannot reclaim counts as used: a cgroup full of file cache
/// is healthy.
fn groups(view: &View<'_>, loads: &Loads) -> BTreeMap<Label, Group> {
    use cgroup::metrics::{ANON, EVENTS, KERNEL, LIMIT, SHMEM, SLAB, SWAP_HEADROOM, SWAP_USAGE, WORKING_SET};
    let held = view.by_label(&cgroup::metrics::HELD, 0);
    let limits = view.by_label(&LIMIT, 0);
    if limits.is_empty() {
        return BTreeMap::new();
    }
    let (anon, shmem) = (view.by_label(&ANON, 0), view.by_label(&SHMEM, 0));
    let (kernel, slab) = (view.by_label(&KERNEL, 0), view.by_label(&SLAB, 0));
    let (swap_used, swap_left) = (view.by_label(&SWAP_USAGE, 0), view.by_label(&SWAP_HEADROOM, 0));
    let working = view.by_label(&WORKING_SET, 0);
    let kills = |path: &Label| view.value(&EVENTS, &[path.clone(), "oom_kill".into()]).unwrap_or(0.0);
    let group = |(path, limit): (&Label, f64)| {
        let unreclaimable = anon.get(path).zip(shmem.get(path)).map(|(anon, shmem)| anon + shmem);
        // Most of the slab is dentry and inode caches, which are reclaimed first; without a separate slab value, no
        // kernel memory is added.
        let kernel =
            kernel.get(path).zip(slab.get(path)).map_or(0.0, |(kernel, slab)| (kernel - slab).max(0.0));
        let counted = unreclaimable.map(|bytes| bytes + kernel).or_else(|| working.get(path).copied());
        let used = held.get(path).copied().or(counted)?;
        let life = KILL * kills(path) + loads.life_of_group(path);
        let sample = Sample { used, unreclaimable, allocated: None, peak: None };
        let swap = swap_used.get(path).copied().zip(swap_left.get(path).copied());
        Some((path.clone(), Group { sample, limit, swap, life }))
    };
    limits.into_iter().filter_map(group).collect()
}

fn gpus(view: &View<'_>, loads: &Loads, found: &mut Vec<Resource>) {
    use crate::sources::gpu::metrics::{MEMORY_FREE, MEMORY_USED, MEMORY_USED_PEAK};
    let reserved = reserved(view);
    for point in view.points(&MEMORY_USED) {
        // The memory that the driver reserves for itself cannot be used.
        let Some(free) = view.value(&MEMORY_FREE, &point.labels) else { continue };
        let [gpu, uuid] = &*point.labels else { continue };
        let (used, limit) = (point.value, point.value + free);
        // Peaks count for the forecast. The level, and so protection by level, is the current one: ending a job for a
        // peak that is over would free nothing.
        let peak = view.value(&MEMORY_USED_PEAK, &point.labels);
        let sample = Sample { used, unreclaimable: None, allocated: None, peak };
        let occupied = (used - reserved.get(gpu).copied().unwrap_or(0.0)).max(0.0);
        let life = loads.life(uuid);
        found.push(Resource { occupied, life, ..Resource::new(Subject::gpu(gpu, uuid), sample, limit) });
    }
}

/// The GPU instances of MIG: the compute instances of one share its memory.
fn gpu_instances(view: &View<'_>, found: &mut Vec<Resource>) {
    use crate::sources::gpu::metrics::{MIG_FREE, MIG_USED};
    let mut seen = BTreeSet::new();
    for point in view.points(&MIG_USED) {
        let [gpu, uuid, number, _] = &*point.labels else { continue };
        // An instance whose number is not known shares no place with another one.
        let is_new = number.is_empty() || seen.insert([gpu, number]);
        let Some(free) = view.value(&MIG_FREE, &point.labels).filter(|_| is_new) else { continue };
        let sample = Sample { used: point.value, unreclaimable: None, allocated: None, peak: None };
        found.push(Resource::new(Subject::gpu_instance(gpu, uuid, number), sample, point.value + free));
    }
}

/// The device memory of each cgroup that limits it, and of the cgroups of workloads that a cgroup above them limits.
fn device_memory(view: &View<'_>, placed: &BTreeMap<&Label, &Label>, found: &mut Vec<Resource>) {
    let limits = DeviceLimits::of(view);
    let of_workloads: BTreeSet<&Label> = placed.values().copied().collect();
    for point in view.points(&cgroup::metrics::DEVICE_USAGE) {
        let [path, region] = &*point.labels else { continue };
        let used = point.value;
        let Some((_, left)) = limits.tightest(path.as_str(), region.as_str()) else { continue };
        let is_used = used > 0.0 && of_workloads.contains(path);
        // A limit of 0 forbids the region.
        if used + left > 0.0 && (is_used || limits.has(path.as_str(), region.as_str())) {
            let sample = Sample { used, unreclaimable: None, allocated: None, peak: None };
            found.push(Resource::new(Subject::device_memory(path, region), sample, used + left));
        }
    }
}

/// The memory of each GPU, by index, that allocators reserve and have not given to tensors, as the jobs report it.
fn reserved<'v>(view: &View<'v>) -> BTreeMap<&'v Label, f64> {
    use training::metrics::{ALLOCATED, RESERVED};
    let mut reserved = BTreeMap::new();
    for point in view.points(&RESERVED) {
        let Some(allocated) = view.value(&ALLOCATED, &point.labels) else { continue };
        if let [_, _, _, gpu] = &*point.labels {
            *reserved.entry(gpu).or_insert(0.0) += (point.value - allocated).max(0.0);
        }
    }
    reserved
}

/// Each rank's allocator: its allocated memory against the sum of its reserved memory and the free memory of the
/// device.
///
/// The allocator keeps its reserved memory, so that the memory that the driver reports is constant while the
/// allocated memory grows.
fn allocators(view: &View<'_>, found: &mut Vec<Resource>) {
    use training::metrics::{ALLOCATED, DEVICE_FREE, RESERVED};
    let pids = ranks::pids(view);
    let mut seen = BTreeSet::new();
    for point in view.points(&ALLOCATED) {
        let [workload, rank, _, gpu] = &*point.labels else { continue };
        let of = |metric| view.value(metric, &point.labels);
        let Some((reserved, free)) = of(&RESERVED).zip(of(&DEVICE_FREE)) else { continue };
        let Some(pid) = pids.get(&[workload, rank]) else { continue };
        let subject = Subject::allocator(workload, pid, gpu);
        // Of several devices with the same labels, only the first is tracked.
        if !seen.insert(subject.clone()) {
            continue;
        }
        let sample = Sample { used: point.value, unreclaimable: None, allocated: None, peak: None };
        found.push(Resource {
            phases_of: Some(PhasesOf::Rank([workload.clone(), rank.clone()])),
            ..Resource::new(subject, sample, reserved + free)
        });
    }
}

/// Each tmpfs against its size. Its memory is part of that of cgroups, workloads and the host too.
fn all_tmpfs<'v>(view: &View<'v>) -> impl Iterator<Item = Resource> + use<'v> {
    let starts = view.by_label(&workload::metrics::START, 0);
    let view = *view;
    view.points(&tmpfs::metrics::USED).iter().filter_map(move |point| {
        let [workload, mount] = &*point.labels else { return None };
        let limit = view.value(&tmpfs::metrics::SIZE, &point.labels)?;
        let sample = Sample { used: point.value, unreclaimable: None, allocated: None, peak: None };
        let life = starts.get(workload).copied().unwrap_or(0.0);
        Some(Resource { life, ..Resource::new(Subject::tmpfs(workload, mount), sample, limit) })
    })
}

/// Each workload against its nearest limit: the limits of its cgroup and of the cgroups above it, and the memory of
/// the host. Memory on GPUs that use the memory of the host counts only where no cgroup has a limit, because no cgroup is
/// charged for it.
fn workloads(
    view: &View<'_>,
    groups: &BTreeMap<Label, Group>,
    placed: &BTreeMap<&Label, &Label>,
    rest: Option<f64>,
    found: &mut Vec<Resource>,
) {
    use workload::metrics::{ANON, POOL, RSS, SHMEM, START};
    let (anon, shmem) = (view.by_label(&ANON, 0), view.by_label(&SHMEM, 0));
    let pool = view.by_label(&POOL, 0);
    for point in view.points(&RSS) {
        let name = &point.labels[0];
        let own = placed.get(name).map(|path| path.as_str());
        let limits = own.into_iter().flat_map(|path| {
            groups.iter().filter(move |(group, _)| within(path, group.as_str())).map(|(_, group)| group)
        });
        let below = limits.map(Group::left).reduce(f64::min);
        let Some(left) = below.into_iter().chain(rest).reduce(f64::min) else { continue };
        let on_gpus = pool.get(name).filter(|_| below.is_none()).map_or(0.0, |pool| pool - point.value);
        let unreclaimable = anon.get(name).zip(shmem.get(name)).map(|(anon, shmem)| anon + shmem + on_gpus);
        let used = unreclaimable.unwrap_or(point.value + on_gpus);
        let sample = Sample { used, unreclaimable, allocated: None, peak: None };
        let life = view.value(&START, std::slice::from_ref(name)).unwrap_or(0.0);
        let limit = used + left.max(0.0);
        let phases_of = Some(PhasesOf::Workloads(vec![name.clone()], HostMemory::Own));
        found.push(Resource { life, phases_of, ..Resource::new(Subject::workload(name), sample, limit) });
    }
}

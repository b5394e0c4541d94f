//! Forecasts, leaks and readings that concern one job, found by the identity of its processes.
//!
//! A value counts only where its process is one of the job's verified members. No metric label is read, because users
//! choose the names in labels.

use std::collections::BTreeSet;
use std::time::Duration;

use super::input::{SampledGives, SampledReading};
use crate::model::facts::{Allocator, Facts};
use crate::model::fit::{Medium, Phase};
use crate::model::ids::within;
use crate::model::ids::{ProcessKey, WorkloadKey};
use crate::model::outlook::{self, Outlook, Tte};
use crate::model::room::Room;
use crate::model::units::Bytes;
use crate::protection::plan::victim::Roster;
use crate::protection::policy::{ByResource, Reading, Resource};

/// Age of a rank's last message after which it may have died or hang; its client reports every second.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The memory that a save takes; absent where nothing is predicted.
pub(super) type SaveCosts = ByResource<Option<Bytes>>;

/// The identity of a job, for the search.
#[derive(Debug, Default)]
pub(super) struct Traits<'f> {
    /// Its processes.
    pub(super) members: BTreeSet<ProcessKey>,
    /// The workloads that consist of its members only, so that their sums are the job's own.
    pub(super) workloads: BTreeSet<&'f WorkloadKey>,
    /// Whether processes of others are in a workload of its members, so that the workload's forecast does not count.
    pub(super) mixed: bool,
    /// Its cgroup.
    pub(super) group: Option<&'f str>,
    /// The UUIDs of the GPUs that it uses.
    pub(super) gpus: BTreeSet<&'f str>,
    /// Whether its policy watches the memory of the host, NUMA nodes, GPUs and allocators.
    pub(super) host: bool,
    pub(super) nodes: bool,
    pub(super) gpu: bool,
    pub(super) allocator: bool,
}

/// The reading with the smaller headroom.
fn tighter(one: Option<(Bytes, Bytes)>, other: (Bytes, Bytes)) -> Option<(Bytes, Bytes)> {
    Some(one.filter(|one| one.0 <= other.0).unwrap_or(other))
}

/// The resource of the policy that a forecast is about.
const fn place(resource: &outlook::Resource) -> Resource {
    use outlook::Resource as Of;
    match resource {
        Of::Host => Resource::Host,
        Of::Nodes(_) => Resource::Nodes,
        Of::Cgroup(_) | Of::Workload(_) | Of::Process(_) => Resource::Cgroup,
        Of::Gpu { .. } | Of::GpuProcess { .. } => Resource::Gpu,
        Of::Allocator { .. } => Resource::Allocator,
    }
}

fn reading((left, limit): (Bytes, Bytes)) -> SampledReading {
    SampledReading::Read(Reading::of(Room::new(left, limit)))
}

impl Traits<'_> {
    /// Whether a forecast of a resource concerns this job.
    fn concerns(&self, resource: &outlook::Resource) -> bool {
        use outlook::Resource;
        match resource {
            Resource::Host => self.host,
            Resource::Cgroup(path) => self.group.is_some_and(|group| within(group, path.as_str())),
            Resource::Gpu { uuid } => self.gpu && self.gpus.contains(uuid.as_str()),
            Resource::Nodes(key) => self.nodes && self.workloads.contains(key),
            Resource::Workload(key) => self.workloads.contains(key),
            Resource::Allocator { process, .. } => self.allocator && self.members.contains(process),
            Resource::Process(_) | Resource::GpuProcess { .. } => false,
        }
    }

    /// Whether a leak in a resource is a leak of this job.
    fn leaks(&self, resource: &outlook::Resource) -> bool {
        use outlook::Resource;
        match resource {
            Resource::Workload(key) => self.workloads.contains(key),
            Resource::Process(process)
            | Resource::GpuProcess { process, .. }
            | Resource::Allocator { process, .. } => self.members.contains(process),
            Resource::Host | Resource::Nodes(_) | Resource::Cgroup(_) | Resource::Gpu { .. } => false,
        }
    }

    /// The memory that saving a checkpoint takes beyond what its processes hold, as they predict: of all ranks together on the host, of the largest on GPUs. What a job predicts concerns it alone.
    pub(super) fn save(&self, facts: &Facts) -> SaveCosts {
        let mut costs = SaveCosts::default();
        let ranks = facts.predictions.iter();
        let ours = ranks.filter(|rank| rank.process.is_some_and(|process| self.members.contains(&process)));
        for prediction in ours.flat_map(|rank| &rank.predictions).filter(|own| own.phase == Phase::Save) {
            let Some(peak) = prediction.peak else { continue };
            let takes = prediction.additional(peak.p90);
            let (places, whole) = match prediction.medium {
                Medium::Host => (&[Resource::Host, Resource::Cgroup, Resource::Nodes][..], true),
                Medium::Device => (&[Resource::Gpu, Resource::Allocator][..], false),
                Medium::Shm | Medium::Disk => continue,
            };
            for cost in places.iter().map(|resource| resource.place()) {
                let known = costs[cost].unwrap_or(Bytes::ZERO);
                costs[cost] = Some(if whole { known.saturating_add(takes) } else { known.max(takes) });
            }
        }
        costs
    }

    /// The soonest predicted exhaustion; the outer option is absent where no analyzer observes the job.
    pub(super) fn forecast(&self, outlook: &Outlook) -> Option<Option<Tte>> {
        let about = outlook.forecasts()?.filter(|(resource, _)| self.concerns(resource));
        let soonest = about
            .filter_map(|(_, forecast)| forecast.time_to_exhaustion)
            .min_by(|one, other| one.p50.total_cmp(&other.p50));
        // That no exhaustion is predicted is a result, which does not exist for a workload that no analyzer observes.
        (soonest.is_some() || !self.mixed).then_some(soonest)
    }

    /// Bytes per second by which the memory that is left falls, where it is predicted to be exhausted; absent
    /// as in [`Self::forecast`].
    pub(super) fn falls(&self, outlook: &Outlook) -> Option<ByResource<Option<f64>>> {
        let mut falls = ByResource::<Option<f64>>::default();
        for (resource, forecast) in outlook.forecasts()?.filter(|(resource, _)| self.concerns(resource)) {
            if let Some(tte) = forecast.time_to_exhaustion.filter(|tte| tte.p50 > 0.0) {
                let fastest = &mut falls[place(resource).place()];
                *fastest = Some(f64::max(fastest.unwrap_or(0.0), forecast.headroom_bytes() / tte.p50));
            }
        }
        (falls.iter().any(Option::is_some) || !self.mixed).then_some(falls)
    }

    /// What the end of the victims of this roster gives back.
    pub(super) fn gives(&self, outlook: &Outlook, facts: &Facts, roster: &Roster) -> SampledGives {
        let held = |key: &&WorkloadKey| {
            let mut all = outlook.forecasts()?;
            let own =
                all.find(|(resource, _)| matches!(resource, outlook::Resource::Workload(of) if of == *key))?;
            Some(own.1.used_bytes)
        };
        let held: Option<f64> = self.workloads.iter().map(held).sum();
        let held = held.filter(|_| !self.mixed && !self.workloads.is_empty()).map(Bytes::of);
        let on_gpus = facts.gpu_processes.iter().filter(|process| {
            facts.gpus_of_host_memory.contains(&process.uuid)
                && roster.largest.iter().any(|victim| victim.pid == process.pid)
        });
        let of_gpus = on_gpus.filter_map(|process| process.memory).sum();
        let resident = roster.resident.saturating_sub(of_gpus);
        let files = facts.tmpfs.as_ref().and_then(|table| {
            let seen = self.workloads.iter().map(|key| table.of_workload.get(*key));
            let seen: Option<Vec<_>> = seen.collect();
            let places: BTreeSet<usize> =
                seen?.into_iter().flat_map(|places| places.iter().copied()).collect();
            Some(places.into_iter().filter_map(|place| Some(table.file_systems.get(place)?.used)).sum())
        });
        SampledGives {
            resident: held.map_or(resident, |held| held.min(resident)),
            files: files.filter(|_| !self.mixed && !self.workloads.is_empty()),
            of_gpus,
        }
    }

    /// Growth of the memory of its workloads in bytes per second; absent where it is not known of all of them.
    pub(super) fn growth(&self, outlook: &Outlook) -> Option<f64> {
        if self.mixed || self.workloads.is_empty() {
            return None;
        }
        let growth = |key: &&WorkloadKey| {
            let mut all = outlook.growths()?;
            let own =
                all.find(|(resource, _)| matches!(resource, outlook::Resource::Workload(of) if of == *key))?;
            own.1.rate.map(|rate| rate.bytes_per_second)
        };
        self.workloads.iter().map(growth).sum()
    }

    /// Whether a leak is confirmed; absent where no analyzer observes the job.
    pub(super) fn leak(&self, outlook: &Outlook) -> Option<bool> {
        let mut leaking = outlook.growths()?.filter(|(_, growth)| growth.leaks());
        let leaks = leaking.any(|(resource, _)| self.leaks(resource));
        (leaks || !self.mixed).then_some(leaks)
    }

    /// The allocator with the least memory left of those that its processes report: free memory of the device, and
    /// reserved memory without a tensor. Unknown where a process has not reported for too long.
    pub(super) fn allocator_left(&self, facts: &Facts) -> SampledReading {
        let mut least = None;
        let ours =
            |allocator: &&Allocator| allocator.process.is_some_and(|process| self.members.contains(&process));
        for allocator in facts.allocators.iter().filter(ours) {
            let fresh = allocator.age.is_some_and(|age| age <= REPORT_TIMEOUT);
            let Some((reserved, free)) = allocator.reserved.zip(allocator.free).filter(|_| fresh) else {
                return SampledReading::Unknown;
            };
            let total = reserved.saturating_add(free);
            least = tighter(least, (total.saturating_sub(allocator.allocated), total));
        }
        // Allocator figures of a log or a push have no process, and no age.
        let spoken_of = |allocator: &Allocator| {
            allocator.workload.as_ref().is_some_and(|workload| self.workloads.contains(workload))
        };
        match least {
            Some(least) => reading(least),
            None if facts.allocators.iter().any(spoken_of) => SampledReading::Unknown,
            None => SampledReading::Absent,
        }
    }

    /// The GPU with the least memory left of those that the job uses.
    pub(super) fn gpu_left(&self, facts: &Facts) -> SampledReading {
        if self.gpus.is_empty() {
            return SampledReading::Absent;
        }
        let mut least = None;
        for uuid in &self.gpus {
            let Some(memory) = facts.gpu_memory.iter().find(|memory| memory.uuid.as_str() == *uuid) else {
                return SampledReading::Unknown;
            };
            least = tighter(least, (memory.free, memory.free.saturating_add(memory.used)));
        }
        least.map_or(SampledReading::Unknown, reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::{GpuMemory, GpuProcess, Membership};
    use crate::model::fit::{Peak, Prediction, RankPredictions};
    use crate::model::label::Label;
    use crate::model::outlook::{Conclusion, Growth, LeakState, Resource};

    const fn process(pid: u32) -> ProcessKey {
        ProcessKey { pid, start: 1 }
    }

    fn workload(name: &str) -> WorkloadKey {
        Membership::named(process(1), name).workload.key.clone()
    }

    /// What is left of ranks with so much allocated, reserved and free, each silent for so long.
    fn left(ranks: &[(u64, u64, Option<u64>, u64)]) -> SampledReading {
        left_of(ranks, ranks.len())
    }

    /// The same, where only so many of the first are members of the job.
    fn left_of(ranks: &[(u64, u64, Option<u64>, u64)], members: usize) -> SampledReading {
        let job = workload("job");
        let allocator =
            |(pid, (allocated, reserved, free, silent)): (u32, &(u64, u64, Option<u64>, u64))| Allocator {
                process: Some(process(pid)),
                workload: Some(job.clone()),
                allocated: Bytes::new(*allocated),
                reserved: Some(Bytes::new(*reserved)),
                free: free.map(Bytes::new),
                age: Some(Duration::from_secs(*silent)),
            };
        let facts = Facts { allocators: (0..).zip(ranks).map(allocator).collect(), ..Facts::default() };
        let members = (0..).take(members).map(process).collect();
        let traits = Traits { members, workloads: [&job].into_iter().collect(), ..Traits::default() };
        traits.allocator_left(&facts)
    }

    fn read(headroom: u64, total: u64) -> SampledReading {
        reading((Bytes::new(headroom), Bytes::new(total)))
    }

    #[test]
    fn an_allocator_has_what_it_holds_unused_and_what_is_free() {
        assert_eq!(left(&[]), SampledReading::Absent);
        assert_eq!(left(&[(50, 70, Some(10), 1)]), read(30, 80));
        assert_eq!(left(&[(50, 70, Some(10), 1), (60, 70, Some(10), 1)]), read(20, 80), "the least");
        assert_eq!(left(&[(50, 70, Some(10), 1), (60, 70, None, 1)]), SampledReading::Unknown);
        assert_eq!(left(&[(50, 70, Some(10), 60)]), SampledReading::Unknown, "it says nothing any more");
        assert_eq!(left(&[(90, 70, Some(10), 1)]), read(0, 80), "it says more than there is");
        assert_eq!(left(&[(0, u64::MAX, Some(u64::MAX), 1)]), read(u64::MAX, u64::MAX));
    }

    #[test]
    fn messages_of_a_process_outside_the_target_change_nothing() {
        let alice = (50, 70, Some(10), 1);
        let alone = left_of(&[alice], 1);
        // Another process speaks under the same workload: nothing is left, or it says nothing of what is free.
        for forged in [(70, 70, Some(0), 1), (70, 70, None, 1), (70, 70, Some(0), 60)] {
            assert_eq!(left_of(&[alice, forged], 1), alone);
        }
    }

    #[test]
    fn memory_of_the_host_that_is_held_through_a_gpu_is_given_back() {
        let job = workload("job");
        let held = |uuid: &str| GpuProcess {
            pid: 7,
            gpu: "0".into(),
            uuid: uuid.into(),
            memory: Some(Bytes::new(100)),
        };
        let facts = |of_host: &[&str]| Facts {
            gpu_processes: vec![held("GPU-a"), held("GPU-b")],
            gpus_of_host_memory: of_host.iter().map(|uuid| Label::from(*uuid)).collect(),
            ..Facts::default()
        };
        let traits = Traits { workloads: [&job].into_iter().collect(), ..Traits::default() };
        let roster = Roster { largest: [process(7)].into(), resident: Bytes::new(104), ..Roster::default() };
        let gives = |of_host: &[&str]| {
            let given = traits.gives(&Outlook::default(), &facts(of_host), &roster);
            (given.resident.get(), given.of_gpus.get(), given.files)
        };
        assert_eq!(gives(&["GPU-a"]), (4, 100, None), "files in memory are not known");
        assert_eq!(gives(&[]), (104, 0, None), "the memory of a GPU is not that of the host");
    }

    #[test]
    fn an_allocator_without_a_reporting_process_is_unknown() {
        assert_eq!(left_of(&[(50, 70, Some(10), 1)], 0), SampledReading::Unknown);
    }

    #[test]
    fn a_gpu_is_identified_by_its_uuid_and_unknown_where_the_driver_does_not_list_it() {
        let gpu = |uuid: &str, used, free| GpuMemory {
            uuid: uuid.into(),
            used: Bytes::new(used),
            free: Bytes::new(free),
        };
        let facts =
            Facts { gpu_memory: vec![gpu("GPU-a", 50, 30), gpu("GPU-b", 70, 10)], ..Facts::default() };
        let left = |gpus: &[&'static str]| {
            let gpus = gpus.iter().copied().collect();
            Traits { gpus, ..Traits::default() }.gpu_left(&facts)
        };
        assert_eq!(left(&[]), SampledReading::Absent);
        assert_eq!(left(&["GPU-a"]), read(30, 80));
        assert_eq!(left(&["GPU-a", "GPU-b"]), read(10, 80), "the least");
        assert_eq!(left(&["GPU-a", "GPU-c"]), SampledReading::Unknown);
    }

    fn foreseen(resource: Resource, seconds: f64) -> Conclusion {
        let time_to_exhaustion = Some(Tte { p10: seconds, p50: seconds + 1.0, p90: None });
        let forecast = outlook::Forecast { time_to_exhaustion, ..outlook::Forecast::default() };
        Conclusion { identity: Some(resource), forecast: Some(forecast), ..Conclusion::default() }
    }

    fn leaks(resource: Resource) -> Conclusion {
        let growth = Growth { state: LeakState::Leaking, ..Growth::default() };
        Conclusion { identity: Some(resource), growth: Some(growth), ..Conclusion::default() }
    }

    #[test]
    fn a_forecast_of_another_job_of_the_same_name_changes_nothing() {
        let job = workload("job");
        let allocator = Resource::Allocator { process: process(66), device: None };
        let all = [allocator.clone(), Resource::Workload(job)];
        let leaking = all.iter().cloned().chain([Resource::Process(process(66))]).map(leaks);
        let conclusions =
            leaking.chain(all.iter().cloned().map(|resource| foreseen(resource, 3.0))).collect();
        let outlook = Outlook { conclusions, has_forecasts: true, has_leaks: true, ..Outlook::default() };
        let own = Traits {
            members: [process(55)].into_iter().collect(),
            allocator: true,
            mixed: true,
            ..Traits::default()
        };
        assert_eq!((own.forecast(&outlook), own.leak(&outlook)), (None, None), "it is not known");
        // The same pid in another life is another process.
        let reused = ProcessKey { pid: 66, start: 2 };
        let reused = Traits { members: [reused].into_iter().collect(), ..own };
        assert_eq!((reused.forecast(&outlook), reused.leak(&outlook)), (None, None));
        let forged = Traits { members: [process(66)].into_iter().collect(), ..reused };
        let soon = Some(Some(Tte { p10: 3.0, p50: 4.0, p90: None }));
        assert_eq!((forged.forecast(&outlook), forged.leak(&outlook)), (soon, Some(true)));
    }

    #[test]
    fn the_growth_of_a_job_is_that_of_all_its_workloads() {
        let (one, other) = (workload("one"), workload("other"));
        let grows = |key: &WorkloadKey, rate: Option<f64>| {
            let rate = rate.map(|rate| outlook::Rate { bytes_per_second: rate, error_bytes_per_second: 1.0 });
            let growth = Growth { rate, ..Growth::default() };
            let identity = Some(Resource::Workload(key.clone()));
            Conclusion { identity, growth: Some(growth), ..Conclusion::default() }
        };
        let growth = |rates: [Option<f64>; 2], mixed| {
            let conclusions = vec![grows(&one, rates[0]), grows(&other, rates[1])];
            let outlook = Outlook { conclusions, has_leaks: true, ..Outlook::default() };
            let workloads = [&one, &other].into_iter().collect();
            Traits { workloads, mixed, ..Traits::default() }.growth(&outlook)
        };
        assert_eq!(growth([Some(3.0), Some(-1.0)], false), Some(2.0));
        assert_eq!(growth([Some(3.0), None], false), None);
        assert_eq!(growth([Some(3.0), Some(-1.0)], true), None, "others are in them");
        assert_eq!(Traits::default().growth(&Outlook::default()), None);
    }

    #[test]
    fn the_soonest_of_the_resources_of_a_job_counts() {
        let job = workload("job");
        let conclusions = vec![
            foreseen(Resource::Host, 1.0),
            foreseen(Resource::Gpu { uuid: "GPU-a".into() }, 2.0),
            foreseen(Resource::Cgroup("/jobs/b".into()), 3.0),
            foreseen(Resource::Workload(workload("other")), 4.0),
            foreseen(Resource::Workload(job.clone()), 9.0),
            foreseen(Resource::Cgroup("/jobs".into()), 8.0),
        ];
        let outlook = Outlook { conclusions, has_forecasts: true, has_leaks: false, ..Outlook::default() };
        let own = Traits {
            workloads: [&job].into_iter().collect(),
            group: Some("/jobs/a"),
            gpus: ["GPU-a"].into_iter().collect(),
            ..Traits::default()
        };
        let soonest = |traits: &Traits<'_>| traits.forecast(&outlook).unwrap().unwrap().p10;
        assert!((soonest(&own) - 8.0).abs() < 1e-9, "its own, and the group that it is in");
        assert!((soonest(&Traits { gpu: true, ..own }) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_leak_on_a_gpu_is_a_leak_of_the_job_whose_process_it_is() {
        let resource = Resource::GpuProcess { process: process(5), uuid: "GPU-a".into() };
        let conclusions = vec![leaks(resource)];
        let outlook = Outlook { conclusions, has_forecasts: false, has_leaks: true, ..Outlook::default() };
        let leaks = |pid| {
            let members = [process(pid)].into_iter().collect();
            Traits { members, ..Traits::default() }.leak(&outlook)
        };
        assert_eq!((leaks(5), leaks(6)), (Some(true), Some(false)));
    }

    #[test]
    fn a_missing_forecast_differs_from_a_forecast_of_nothing() {
        let own = Traits { host: true, ..Traits::default() };
        assert_eq!((own.forecast(&Outlook::default()), own.leak(&Outlook::default())), (None, None));
        let forecast = Some(outlook::Forecast::default());
        let calm = Conclusion { forecast, ..foreseen(Resource::Host, 1.0) };
        let outlook =
            Outlook { conclusions: vec![calm], has_forecasts: true, has_leaks: true, ..Outlook::default() };
        assert_eq!((own.forecast(&outlook), own.leak(&outlook)), (Some(None), Some(false)));
    }

    /// A process that holds 100 bytes predicts that its save takes these many more.
    fn saves(pid: u32, medium: Medium, takes: u64) -> RankPredictions {
        let peak = Bytes::new(100 + takes);
        RankPredictions {
            process: Some(process(pid)),
            key: None,
            workload: Label::default(),
            rank: Label::default(),
            run: Label::default(),
            past: String::new(),
            predictions: vec![Prediction {
                held: Some(Bytes::new(100)),
                ..Prediction::of(Phase::Save, medium, Peak { p50: peak, p90: peak })
            }],
        }
    }

    #[test]
    fn the_fastest_fall_of_each_resource_counts() {
        let own = Traits { group: Some("/jobs/a"), host: true, ..Traits::default() };
        let falling = |resource, p50: f64| {
            let forecast = outlook::Forecast {
                used_bytes: 20.0,
                limit_bytes: 100.0,
                time_to_exhaustion: Some(Tte { p10: p50, p50, p90: None }),
                ..outlook::Forecast::default()
            };
            Conclusion { identity: Some(resource), forecast: Some(forecast), ..Conclusion::default() }
        };
        let group = |path: &str| Resource::Cgroup(path.into());
        let conclusions = vec![
            falling(Resource::Host, 160.0),
            falling(group("/jobs"), 80.0),
            falling(group("/jobs/a"), 40.0),
            falling(group("/other"), 1.0),
        ];
        let outlook = Outlook { conclusions, has_forecasts: true, ..Outlook::default() };
        assert_eq!(own.falls(&outlook), Some([Some(0.5), Some(2.0), None, None, None, None]));
        assert_eq!(own.falls(&Outlook::default()), None);
    }

    #[test]
    fn the_ranks_of_a_job_save_together_and_others_do_not_count() {
        let predictions = vec![
            saves(7, Medium::Host, 5),
            saves(8, Medium::Host, 6),
            saves(9, Medium::Host, 1 << 40),
            saves(7, Medium::Device, 3),
            saves(8, Medium::Device, 4),
        ];
        let facts = Facts { predictions, ..Facts::default() };
        let own = Traits { members: [process(7), process(8)].into(), ..Traits::default() };
        let [host, together, one] = [11, 11, 4].map(|bytes| Some(Bytes::new(bytes)));
        assert_eq!(own.save(&facts), [host, together, one, one, host, None]);
    }
}

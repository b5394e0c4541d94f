//! Workloads and processes.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};
use serde::{Deserialize, Serialize};

use super::forecast::{Forecast, Forecasts, Growth};
use super::lookup::Lookup;
use super::owner::Owner;
use super::problem::{Link, Problem};
use super::training::Rank;
use crate::catalog::{cgroup, gpu, workload};
use crate::model::acknowledged::ProblemId;
use crate::model::desc::Desc;
use crate::model::finding::Subject;
use crate::model::format;
use crate::model::health::Health;
use crate::model::outlook;
use crate::model::units::whole;

/// A workload; all amounts in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    pub name: String,
    /// `slurm`, `pod`, `container`, `unit`, `matcher`, `gpu` or `job`.
    pub kind: String,
    /// Its user; empty where it is not known.
    pub user: String,
    /// The run of its ranks; empty where they have none.
    pub run: String,
    /// Its cgroup; empty where it is not known.
    pub cgroup: String,
    pub health: Health,
    /// Resident memory.
    pub rss: Option<f64>,
    /// Anonymous memory.
    pub anonymous: Option<f64>,
    /// Shared memory, such as /dev/shm.
    pub shared: Option<f64>,
    /// Anonymous and shared memory, where a page that several processes map counts once; absent but for a workload that is
    /// configured by a pid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// File-backed memory.
    pub file: Option<f64>,
    /// Memory in swap.
    pub swap: Option<f64>,
    /// Huge pages of a pool, which are no part of the resident memory.
    #[serde(default)]
    pub huge_pages: Option<f64>,
    /// CPU time of its processes in seconds.
    pub cpu_seconds: Option<f64>,
    /// The largest resident memory that one of its processes has had.
    pub process_peak: Option<f64>,
    /// Number of its processes that have exited.
    pub exited: Option<f64>,
    /// The largest resident memory that one of those had.
    pub exited_peak: Option<f64>,
    /// Processes in its cgroup, or below, that the kernel has killed for lack of memory since the cgroup was created; absent
    /// where the cgroup can have processes of others: that of a workload that its matcher or its GPU names.
    pub oom_kills: Option<f64>,
    pub gpu_memory: Option<f64>,
    /// Memory by GPU: its index, and the amount where the driver reports it.
    pub gpus: Vec<(String, Option<f64>)>,
    /// Number of its processes.
    pub process_count: Option<f64>,
    /// When its oldest process started, in seconds since 1970.
    pub started: Option<f64>,
    pub growth: Option<Growth>,
    /// What is predicted of its memory.
    pub forecast: Option<Forecast>,
    pub ranks: Vec<Rank>,
    pub processes: Vec<Process>,
    /// Processes that are not listed.
    pub other_processes: Option<f64>,
}

impl Workload {
    /// The problem that ranks of it make no step, at `now` seconds since 1970.
    pub(super) fn stalled(&self, now: f64) -> Option<Problem> {
        let stalled = self.ranks.iter().filter(|rank| rank.is_stalled);
        let ages: Vec<f64> = stalled.filter_map(|rank| rank.step_age).collect();
        let shortest = ages.iter().copied().reduce(f64::min)?;
        Some(Problem {
            health: Health::Warning,
            what: format!(
                "{} of {} completed no step for {}",
                format::counted(ages.len(), "rank"),
                format::short(&self.name, 40),
                format::duration(shortest)
            ),
            owner: Some(Owner::of(self)),
            advice: "Inspect the stacks of the ranks, such as with py-spy dump; they wait for each other or for storage."
                .to_owned(),
            since: Some(now - shortest),
            workload: Some(self.name.clone()),
            link: Link::Workload(self.name.clone()),
            id: ProblemId::new("steps", Subject::workload(&self.name.as_str().into())),
            ..Problem::default()
        })
    }

    /// Its state in one word: `fragmented` where an allocator of its ranks is and its memory does not leak, else the state of
    /// its growth; empty where nothing is assessed.
    pub fn state(&self) -> &str {
        let leaks = self.growth.as_ref().is_some_and(Growth::leaks);
        let mut allocators = self.ranks.iter().filter_map(Rank::allocator_state);
        match allocators.find(|(_, health)| *health > Health::Unknown).filter(|_| !leaks) {
            Some((state, _)) => state,
            None => self.growth.as_ref().map_or("", |growth| growth.state.label()),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub pid: String,
    /// The name of its executable, which the process can change.
    pub name: String,
    /// Resident memory in bytes.
    pub rss: Option<f64>,
    /// Memory by GPU: its index and bytes.
    pub gpus: Vec<(String, f64)>,
    /// Its rank; empty where it has none.
    pub rank: String,
}

type Field = fn(&mut Workload) -> &mut Option<f64>;

fn figures() -> [(&'static Desc, Field); 12] {
    [
        (&workload::RSS.desc, |own| &mut own.rss),
        (&workload::ANON.desc, |own| &mut own.anonymous),
        (&workload::SHMEM.desc, |own| &mut own.shared),
        (&workload::MEMORY.desc, |own| &mut own.memory),
        (&workload::FILE.desc, |own| &mut own.file),
        (&workload::SWAP.desc, |own| &mut own.swap),
        (&workload::HUGE.desc, |own| &mut own.huge_pages),
        (&workload::CPU.desc, |own| &mut own.cpu_seconds),
        (&workload::PROCESS_PEAK.desc, |own| &mut own.process_peak),
        (&workload::EXITED.desc, |own| &mut own.exited),
        (&workload::START.desc, |own| &mut own.started),
        (&workload::OTHER.desc, |own| &mut own.other_processes),
    ]
}

pub(super) fn workloads(
    lookup: &Lookup<'_>,
    forecasts: &Forecasts<'_>,
    mut ranks: BTreeMap<String, Vec<Rank>>,
) -> Vec<Workload> {
    let mut all = BTreeMap::<&str, Workload>::new();
    for row in lookup.current(&workload::INFO.desc) {
        let own = all.entry(row.label("workload")).or_default();
        for (field, label) in [(&mut own.kind, "kind"), (&mut own.user, "user"), (&mut own.cgroup, "cgroup")]
        {
            row.label(label).clone_into(field);
        }
    }
    for (desc, field) in figures() {
        for row in lookup.rows(desc).filter(|row| !row.label("workload").is_empty()) {
            *field(all.entry(row.label("workload")).or_default()) = Some(row.value());
        }
    }
    for row in lookup.rows(&workload::PROCESSES_BY_ACTIVITY.desc) {
        let own = all.entry(row.label("workload")).or_default();
        own.process_count = Some(own.process_count.unwrap_or(0.0) + row.value());
    }
    for row in lookup.rows(&workload::GPU_PROCESSES.desc) {
        let own = all.entry(row.label("workload")).or_default();
        own.gpus.push((row.label("gpu").to_owned(), None));
    }
    for row in lookup.rows(&workload::GPU_MEMORY.desc) {
        let own = all.entry(row.label("workload")).or_default();
        own.gpu_memory = Some(own.gpu_memory.unwrap_or(0.0) + row.value());
        match own.gpus.iter_mut().find(|(gpu, _)| gpu == row.label("gpu")) {
            Some((_, memory)) => *memory = Some(row.value()),
            None => own.gpus.push((row.label("gpu").to_owned(), Some(row.value()))),
        }
    }
    // Ranks of a workload that is not measured are shown all the same.
    let unmeasured: Vec<String> =
        ranks.keys().filter(|name| !name.is_empty() && !all.contains_key(name.as_str())).cloned().collect();
    for name in &unmeasured {
        all.entry(name).or_default();
    }
    // It is exposed for a while after the end of a workload, which is not listed then.
    for row in lookup.rows(&workload::EXITED_PEAK.desc) {
        if let Some(own) = all.get_mut(row.label("workload")) {
            own.exited_peak = Some(row.value());
        }
    }
    let mut processes = processes(lookup);
    let kills = lookup.rows(&cgroup::EVENTS.desc).filter(|row| row.label("event") == "oom_kill");
    let kills: HashMap<&str, f64> = kills.map(|row| (row.label("cgroup"), row.value())).collect();
    let rows = all.into_iter().map(|(name, mut own)| {
        name.clone_into(&mut own.name);
        let subject = Subject::workload(&name.into());
        let has_own_cgroup = matches!(own.kind.as_str(), "slurm" | "pod" | "container" | "unit");
        own.oom_kills = kills.get(own.cgroup.as_str()).copied().filter(|_| has_own_cgroup);
        own.growth = forecasts.growth(&subject);
        own.forecast = forecasts.forecast(&subject);
        own.ranks = ranks.remove(name).unwrap_or_default();
        own.run = own
            .ranks
            .iter()
            .find(|rank| !rank.run.is_empty())
            .map_or_else(String::new, |rank| rank.run.clone());
        own.gpus.sort_by_key(|(gpu, _)| gpu.parse::<u32>().unwrap_or(u32::MAX));
        own.processes = processes.remove(name).unwrap_or_default();
        for process in &mut own.processes {
            if let Some(rank) = own.ranks.iter().find(|rank| rank.pid == process.pid) {
                process.rank.clone_from(&rank.rank);
            }
        }
        own.health = match own.rss {
            None => Health::Unknown,
            Some(_) => outlook::health(own.forecast.as_ref(), own.growth.as_ref()),
        };
        own
    });
    rows.collect()
}

/// The processes by workload, largest first.
fn processes<'f>(lookup: &Lookup<'f>) -> HashMap<&'f str, Vec<Process>> {
    let mut on_gpus = HashMap::<&str, Vec<(String, f64)>>::new();
    for row in lookup.rows(&gpu::PROCESS_MEMORY.desc) {
        on_gpus.entry(row.label("pid")).or_default().push((row.label("gpu").to_owned(), row.value()));
    }
    let mut all = HashMap::<&str, Vec<Process>>::new();
    for row in lookup.rows(&workload::PROCESS_RSS.desc) {
        let pid = row.label("pid");
        all.entry(row.label("workload")).or_default().push(Process {
            pid: pid.to_owned(),
            name: row.label("comm").to_owned(),
            rss: Some(row.value()),
            gpus: on_gpus.get(pid).cloned().unwrap_or_default(),
            rank: String::new(),
        });
    }
    for processes in all.values_mut() {
        processes.sort_by(|one, next| next.rss.unwrap_or(0.0).total_cmp(&one.rss.unwrap_or(0.0)));
    }
    all
}

/// The processes of one workload; those of none for an empty name.
pub(super) fn processes_of(lookup: &Lookup<'_>, name: &str) -> Vec<Process> {
    processes(lookup).remove(name).unwrap_or_default()
}

/// Workloads that are not tracked because the limit is reached.
pub(super) fn omitted(lookup: &Lookup<'_>) -> u64 {
    lookup.value(&workload::OMITTED.desc).map_or(0, whole)
}

//! From subjects, which are named for people, to identities: as the sources told them in the same tick.

use foldhash::{HashMap, HashMapExt as _};

use crate::model::analyzer::View;
use crate::model::facts::{Facts, GpuProcess, ProcessTable};
use crate::model::finding::Subject;
use crate::model::ids::{ProcessKey, WorkloadKey};
use crate::model::label::Label;
use crate::model::outlook::Resource;

/// The identities behind the names of one tick.
#[derive(Debug, Default)]
pub(super) struct Identities<'v> {
    /// By the name that is shown, which no other living workload has.
    workloads: HashMap<&'v Label, &'v WorkloadKey>,
    processes: Option<&'v ProcessTable>,
    /// The processes that speak over the job socket, by pid.
    ranks: HashMap<u32, ProcessKey>,
    gpu_processes: &'v [GpuProcess],
}

impl<'v> Identities<'v> {
    /// Those of this tick; none where nothing was told but points.
    pub(super) fn of(view: &View<'v>) -> Self {
        let Some(facts) = view.facts() else { return Self::default() };
        let Facts { processes, workloads, ranks, gpu_processes, .. } = facts;
        let mut named = HashMap::with_capacity(workloads.len());
        named.extend(workloads.iter().map(|workload| (&workload.name, &workload.key)));
        let ranks = ranks.iter().filter_map(|rank| rank.key).map(|key| (key.pid, key)).collect();
        Self { workloads: named, processes: processes.as_deref(), ranks, gpu_processes }
    }

    /// What a subject is; absent where nobody told who it is, and for what cannot run out or leak.
    pub(super) fn resource(&self, subject: &Subject) -> Option<Resource> {
        Some(match subject.resource.as_str() {
            "host" => Resource::Host,
            "cgroup" => Resource::Cgroup(subject.cgroup.clone()),
            "gpu" => Resource::Gpu { uuid: subject.uuid.clone() },
            "workload" => Resource::Workload(self.workloads.get(&subject.workload).copied()?.clone()),
            "process" => Resource::Process(self.process(subject)?),
            "gpu_process" => {
                Resource::GpuProcess { process: self.process(subject)?, uuid: subject.uuid.clone() }
            }
            "allocator" => {
                // The pid alone may be in use again: the one that spoke is meant.
                let process = *self.ranks.get(&pid(subject)?)?;
                let on = |other: &&GpuProcess| other.pid == process.pid && other.gpu == subject.gpu;
                let device = self.gpu_processes.iter().find(on).map(|other| other.uuid.clone());
                Resource::Allocator { process, device }
            }
            _ => return None,
        })
    }

    /// The process that has the subject's pid in the list that the figures were taken with.
    fn process(&self, subject: &Subject) -> Option<ProcessKey> {
        self.processes?.get(pid(subject)?).map(|row| row.key)
    }
}

fn pid(subject: &Subject) -> Option<u32> {
    subject.pid.as_str().parse().ok()
}

//! Maps subjects, which carry display names, to identities, by the facts that the sources reported in the same tick.

use foldhash::{HashMap, HashMapExt as _};

use crate::model::analyzer::View;
use crate::model::facts::{Facts, GpuProcess, ProcessTable};
use crate::model::finding::Subject;
use crate::model::ids::{ProcessKey, WorkloadKey};
use crate::model::label::Label;
use crate::model::outlook::Resource;

/// The identities of one tick, by name.
#[derive(Debug, Default)]
pub(super) struct Identities<'v> {
    /// By displayed name, which is unique among the running workloads.
    workloads: HashMap<&'v Label, &'v WorkloadKey>,
    processes: Option<&'v ProcessTable>,
    /// The processes connected to the job socket, by pid.
    ranks: HashMap<u32, ProcessKey>,
    gpu_processes: &'v [GpuProcess],
}

impl<'v> Identities<'v> {
    /// The identities of this tick; empty where the view has no facts.
    pub(super) fn of(view: &View<'v>) -> Self {
        let Some(facts) = view.facts() else { return Self::default() };
        let Facts { processes, workloads, ranks, gpu_processes, .. } = facts;
        let mut named = HashMap::with_capacity(workloads.len());
        named.extend(workloads.iter().map(|workload| (&workload.name, &workload.key)));
        let ranks = ranks.iter().filter_map(|rank| rank.key).map(|key| (key.pid, key)).collect();
        Self { workloads: named, processes: processes.as_deref(), ranks, gpu_processes }
    }

    /// The identity of a subject; absent where the sources did not report it, and for subjects that can neither be
    /// exhausted nor leak.
    pub(super) fn resource(&self, subject: &Subject) -> Option<Resource> {
        Some(match subject.resource.as_str() {
            "host" => Resource::Host,
            "cgroup" => Resource::Cgroup(subject.cgroup.clone()),
            "gpu" => Resource::Gpu { uuid: subject.uuid.clone() },
            "workload" => Resource::Workload(self.workloads.get(&subject.workload).copied()?.clone()),
            "numa_nodes" => Resource::Nodes(self.workloads.get(&subject.workload).copied()?.clone()),
            "process" => Resource::Process(self.process(subject)?),
            "gpu_process" | "outside_allocator" => {
                Resource::GpuProcess { process: self.process(subject)?, uuid: subject.uuid.clone() }
            }
            "allocator" => {
                // The pid alone may be reused: the subject is the process that is connected.
                let process = *self.ranks.get(&pid(subject)?)?;
                let on = |other: &&GpuProcess| other.pid == process.pid && other.gpu == subject.gpu;
                let device = self.gpu_processes.iter().find(on).map(|other| other.uuid.clone());
                Resource::Allocator { process, device }
            }
            _ => return None,
        })
    }

    /// The process with the subject's pid in the process table that the samples were taken with.
    fn process(&self, subject: &Subject) -> Option<ProcessKey> {
        self.processes?.get(pid(subject)?).map(|row| row.key)
    }
}

fn pid(subject: &Subject) -> Option<u32> {
    subject.pid.as_str().parse().ok()
}

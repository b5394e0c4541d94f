//! The meters of the limits of a job, which the guard reads.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::job_slots::JobSlot;
use super::InputBuilder;
use crate::host::process::{stat, status};
use crate::host::room::processes::Levels;
use crate::host::{huge_pages, numa};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::node_set::NodeSet;
use crate::model::units::{Amount, Bytes};
use crate::protection::enforce::levels::{GroupMeter, HostMeter, NodesMeter};
use crate::protection::enforce::process_meter::ProcessMeter;
use crate::protection::enforce::process_set::ProcessSet;
use crate::protection::options::target::Target;
use crate::protection::plan::victim::ProcessInfo;
use crate::protection::policy::{Limits, Resource};
use crate::protection::types::step::Group;

impl InputBuilder {
    /// The meter of the host, where the NUMA nodes of GPUs have changed: the driver adds them when it starts a GPU.
    pub(super) fn host_meter(&mut self) -> Option<HostMeter> {
        let nodes = numa::gpu_nodes(&self.roots);
        if nodes == self.gpu_nodes {
            return None;
        }
        let meter = HostMeter::open(&self.roots.proc, &nodes).ok()?;
        self.gpu_nodes = nodes;
        Some(meter)
    }

    pub(super) fn group(&self, path: Label) -> Option<Group> {
        let folder = self.hierarchy.as_ref()?.root.join(path.as_str().trim_start_matches('/'));
        let inode = rustix::fs::stat(&folder).ok()?.st_ino;
        Some(Group { path, inode })
    }

    /// The meter of a cgroup's limits, where the cgroup has changed, also for one created again at the same path,
    /// because descriptors of a removed cgroup cannot be read.
    pub(super) fn meter(&self, job: &mut JobSlot, path: Option<&str>) -> Option<Option<GroupMeter>> {
        let group = path.and_then(|path| self.group(path.into()));
        if job.group == group {
            return None;
        }
        let meter = group.as_ref().zip(self.hierarchy.as_ref()).and_then(|(group, hierarchy)| {
            let path = group.path.as_str();
            let opened = GroupMeter::open(hierarchy, path);
            opened
                .inspect_err(|error| tracing::debug!(path, %error, "Cannot read the limits of a cgroup."))
                .ok()
        });
        job.group = group;
        Some(meter)
    }

    /// The meter of the NUMA nodes that a job may use, where these have changed: those that the cpuset of its largest process allows,
    /// because that is the one which the kernel ends where they are full.
    pub(super) fn nodes_meter(
        &self,
        job: &mut JobSlot,
        processes: &[ProcessInfo],
        all: NodeSet,
    ) -> Option<Option<NodesMeter>> {
        if all.is_empty() {
            // They are not known in this tick.
            return None;
        }
        let own = match processes.iter().max_by_key(|process| process.resident) {
            Some(largest) if all.iter().nth(1).is_some() => {
                let (user, mut buffer) = (job.claim.user.unwrap_or_default(), Vec::new());
                // One that cannot be read changes nothing.
                let text = self.proc.status((largest.key.pid, user), None, &mut buffer).ok()?;
                let own = status(text).nodes?.and(all);
                // Another process could have its pid by now.
                let now = stat(self.proc.read(largest.key.pid, "stat", &mut buffer).ok()?)?;
                if now.start != largest.key.start {
                    return None;
                }
                own
            }
            _ => all,
        };
        let nodes: Vec<_> = match own.is_empty() || own == all {
            true => Vec::new(),
            false => {
                let nodes = numa::host_nodes(&self.roots).into_iter();
                nodes.filter(|(number, _)| own.contains(*number)).collect()
            }
        };
        let pools = nodes.iter().map(|(_, folder)| huge_pages::in_pools(&self.roots, folder));
        let wanted = (!nodes.is_empty()).then(|| (own, pools.fold(Bytes::ZERO, Bytes::saturating_add)));
        if job.nodes == wanted {
            return None;
        }
        let meter = wanted.map(|(_, pools)| NodesMeter::open(&nodes, pools)).transpose();
        let meter = meter
            .inspect_err(|error| tracing::debug!(%error, "Cannot read the memory of NUMA nodes."))
            .ok()?;
        job.nodes = wanted;
        Some(meter)
    }

    /// The meter of a job's processes, where they have changed and the target limits their memory; of more than it keeps open
    /// always a new one, because it has the memory of the others from here.
    pub(super) fn process_meter(
        &self,
        job: &mut JobSlot,
        target: &Target,
        processes: &[ProcessInfo],
    ) -> Option<ProcessMeter> {
        let limit = target.memory_limit?.of(self.host?);
        let keys: BTreeSet<ProcessKey> = processes.iter().map(|process| process.key).collect();
        if job.metered == keys && keys.len() <= ProcessMeter::KEPT {
            return None;
        }
        job.metered = keys;
        let mut largest: Vec<_> = processes.iter().map(|process| (process.key, process.resident)).collect();
        largest.sort_unstable_by_key(|(_, resident)| std::cmp::Reverse(*resident));
        let (proc, user) = (&self.roots.proc, job.claim.user?);
        let set = job.set.get_or_insert_with(|| ProcessSet::new(proc.clone(), user, target.name.clone()));
        let levels = levels_of(limit, &target.limits);
        ProcessMeter::open(proc, levels, &largest, Arc::clone(set)).ok()
    }
}

/// The levels of a limit of the job's own, which are those of its cgroup.
fn levels_of(limit: Bytes, limits: &Limits) -> Levels {
    let levels = limits.levels[Resource::Cgroup.place()];
    let at =
        |left: Option<Amount>| left.map_or(Bytes::new(u64::MAX), |left| limit.saturating_sub(left.of(limit)));
    let (soft, hard) = (levels.map(|levels| levels.soft), levels.and_then(|levels| levels.hard));
    Levels { limit, reached: [at(soft), at(hard)] }
}

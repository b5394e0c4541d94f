//! The load of each GPU and of each cgroup: it begins when none of the processes or workloads that were there before is left.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::analyzer::View;
use crate::model::ids::{ProcessKey, within};
use crate::model::label::Label;
use crate::model::units::{TICKS, real};
use crate::sources::cgroup::metrics::LIMIT;
use crate::sources::gpu::metrics::PROCESSES;
use crate::sources::workload::metrics::START;

use super::resources;

/// The life of a GPU without a process, in seconds: no process started then.
const EMPTY: f64 = -1_000.0;

#[derive(Debug, Default)]
pub(super) struct Loads {
    /// By UUID; lives are in seconds since boot.
    gpus: BTreeMap<Label, Load<ProcessKey>>,
    /// By path: the workloads, with the bits of the second in which each started, which are in the order of time.
    groups: BTreeMap<Label, Load<(Label, u64)>>,
}

#[derive(Debug)]
struct Load<M> {
    members: BTreeSet<M>,
    /// When the oldest member of its beginning started, in seconds.
    life: f64,
}

/// Adds the members of a tick to the load of `name`.
fn follow<M: Ord>(loads: &mut BTreeMap<Label, Load<M>>, name: &Label, members: BTreeSet<M>, life: f64) {
    match loads.get_mut(name) {
        None => {
            loads.insert(name.clone(), Load { members, life });
        }
        Some(load) => {
            if load.members != members && load.members.is_disjoint(&members) {
                load.life = life;
            }
            load.members = members;
        }
    }
}

impl Loads {
    /// Takes the processes of a tick. A GPU whose driver does not list them keeps its load.
    pub(super) fn update(&mut self, view: &View<'_>) {
        self.update_groups(view);
        let Some((facts, table)) = view.facts().and_then(|facts| Some((facts, facts.processes.as_ref()?)))
        else {
            return;
        };
        let listed = view.points(&PROCESSES).iter().filter_map(|point| point.labels.get(1));
        let mut now: BTreeMap<&Label, BTreeSet<ProcessKey>> =
            listed.map(|uuid| (uuid, BTreeSet::new())).collect();
        for process in &facts.gpu_processes {
            if let Some((of_gpu, row)) = now.get_mut(&process.uuid).zip(table.get(process.pid)) {
                of_gpu.insert(row.key);
            }
        }
        for (uuid, processes) in now {
            let oldest = processes.iter().map(|key| key.start).min();
            let life = oldest.map_or(EMPTY, |ticks| real(ticks) / TICKS);
            follow(&mut self.gpus, uuid, processes, life);
        }
    }

    /// Takes the workloads of each cgroup with a limit. A cgroup without a workload keeps its load until another begins.
    fn update_groups(&mut self, view: &View<'_>) {
        let (limits, placed) = (view.by_label(&LIMIT, 0), resources::placed(view));
        self.groups.retain(|path, _| limits.contains_key(path));
        for path in limits.into_keys() {
            let inside = view.points(&START).iter().filter(|point| {
                placed.get(&point.labels[0]).is_some_and(|own| within(own.as_str(), path.as_str()))
            });
            let members: BTreeSet<(Label, u64)> = inside
                .map(|point| (point.labels[0].clone(), point.value.max(0.0).round().to_bits()))
                .collect();
            if let Some(oldest) = members.iter().map(|(_, start)| *start).min() {
                follow(&mut self.groups, path, members, f64::from_bits(oldest));
            }
        }
    }

    /// Identifies the load of a GPU; 0 where its processes are not known.
    pub(super) fn life(&self, uuid: &Label) -> f64 {
        self.gpus.get(uuid).map_or(0.0, |load| load.life)
    }

    /// Identifies the load of a cgroup; 0 before it has had a workload.
    pub(super) fn life_of_group(&self, path: &Label) -> f64 {
        self.groups.get(path).map_or(0.0, |load| load.life)
    }
}

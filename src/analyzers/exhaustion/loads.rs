//! The load of each GPU: it begins when none of the processes that were there before is left.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::analyzer::View;
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::units::{TICKS, real};
use crate::sources::gpu::metrics::PROCESSES;

/// The life of a GPU without a process, in seconds: no process started then.
const EMPTY: f64 = -1_000.0;

/// The loads of all GPUs, by UUID.
#[derive(Debug, Default)]
pub(super) struct Loads(BTreeMap<Label, Load>);

#[derive(Debug)]
struct Load {
    processes: BTreeSet<ProcessKey>,
    /// When the oldest process of its beginning started, in seconds since boot.
    life: f64,
}

impl Loads {
    /// Takes the processes of a tick. A GPU whose driver does not list them keeps its load.
    pub(super) fn update(&mut self, view: &View<'_>) {
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
            match self.0.get_mut(uuid) {
                None => {
                    self.0.insert(uuid.clone(), Load { processes, life });
                }
                Some(load) => {
                    if load.processes != processes && load.processes.is_disjoint(&processes) {
                        load.life = life;
                    }
                    load.processes = processes;
                }
            }
        }
    }

    /// Identifies the load of a GPU; 0 where its processes are not known.
    pub(super) fn life(&self, uuid: &Label) -> f64 {
        self.0.get(uuid).map_or(0.0, |load| load.life)
    }
}

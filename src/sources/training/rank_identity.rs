//! The identity of a connection: its workload, the label of its rank and its GPUs, from the kernel and the driver.

use std::collections::{BTreeMap, HashSet};

use super::client::Client;
use crate::formats::messages::Hello;
use crate::model::facts::{EnvironmentRank, Facts};
use crate::model::ids::{ProcessKey, WorkloadKey};
use crate::model::label::Label;
use crate::model::units::Bytes;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RankIdentity {
    /// The name of its workload; empty if the process belongs to none.
    pub(super) workload: Label,
    pub(super) key: Option<WorkloadKey>,
    /// The rank's label, unique within the workload.
    pub(super) rank: Label,
    /// Index and UUID of each GPU on which the driver lists the process.
    pub(super) gpus: Vec<(Label, Label)>,
    /// Free memory of devices that the process does not report, by its ordinal.
    pub(super) free: Vec<(u16, Bytes)>,
    /// The run that it is a part of; empty where it is not known.
    pub(super) run: Label,
}

impl RankIdentity {
    /// That of a connection that has ended and was seen by no sample.
    pub(super) fn of_ended(client: &Client, hello: &Hello, facts: &Facts) -> Self {
        let workload = client.key.and_then(|key| {
            let now = facts.member(key).map(|workload| &workload.name);
            now.or_else(|| facts.before.workload(key)).cloned()
        });
        let run = hello.run.as_deref().map(Label::printable).unwrap_or_default();
        let rank = hello.rank.unwrap_or(0).into();
        Self { workload: workload.unwrap_or_default(), rank, run, ..Self::default() }
    }

    /// The labels `workload` and `rank`, which identify its series.
    pub(super) fn labels(&self) -> [Label; 2] {
        [self.workload.clone(), self.rank.clone()]
    }

    /// The index of the GPU that the process calls `ordinal`; nothing if the driver does not confirm it.
    pub(super) fn gpu(&self, hello: &Hello, ordinal: u16) -> Option<&Label> {
        self.gpu_and_uuid(hello, ordinal).map(|(gpu, _)| gpu)
    }

    /// The index and the UUID of that GPU.
    pub(super) fn gpu_and_uuid(&self, hello: &Hello, ordinal: u16) -> Option<&(Label, Label)> {
        let devices = hello.devices.as_deref().unwrap_or_default();
        let device = devices.iter().find(|(other, _)| *other == ordinal);
        if let Some(uuid) = device.and_then(|(_, device)| device.uuid.as_deref()) {
            // PyTorch omits the prefix that NVML's UUIDs have.
            let same = |other: &Label| {
                let other = other.as_str();
                other == uuid || other.strip_prefix("GPU-") == Some(uuid)
            };
            return self.gpus.iter().find(|(_, other)| same(other));
        }
        match &self.gpus[..] {
            [only] if devices.len() <= 1 => Some(only),
            _ => None,
        }
    }
}

/// Index and UUID of each GPU that a process of this tick uses.
fn gpus(process: ProcessKey, facts: &Facts) -> Vec<(Label, Label)> {
    let own = facts.gpu_processes.iter().filter(|other| other.pid == process.pid);
    let mut gpus: Vec<(Label, Label)> =
        own.map(|process| (process.gpu.clone(), process.uuid.clone())).collect();
    gpus.sort_unstable();
    gpus.dedup();
    gpus
}

/// Whether the process is newly known as a rank, so that the next sample may assign it to a workload.
pub(super) fn is_new(key: ProcessKey, facts: &Facts) -> bool {
    facts.member(key).is_none() && !facts.reporting.contains(&key)
}

#[derive(Debug, Default)]
pub(super) struct RankIdentities {
    taken: HashSet<[Label; 2]>,
    /// Number of ranks of each workload that report a rank number that another process has.
    pub(super) conflicts: BTreeMap<Label, u64>,
    /// Number of ranks of each workload.
    pub(super) ranks: BTreeMap<Label, u64>,
    /// Largest world size of each workload's ranks.
    pub(super) worlds: BTreeMap<Label, u64>,
}

impl RankIdentities {
    /// Reserves the labels of a connection that has ended; returns whether they were free.
    pub(super) fn reserve(&mut self, identity: &RankIdentity) -> bool {
        self.taken.insert(identity.labels())
    }

    /// The identity of a connection whose process exists; the first one requested keeps its rank number.
    pub(super) fn of(&mut self, client: &Client, hello: &Hello, facts: &Facts) -> Option<RankIdentity> {
        if let (Some(table), Some(key)) = (&facts.processes, client.key)
            && table.get(key.pid).is_none_or(|row| row.key != key)
        {
            // Another process holds the connection open, or this tick's process list is older than the process.
            return None;
        }
        let workload = client.key.and_then(|key| facts.member(key));
        let key = workload.map(|workload| workload.key.clone());
        let workload = workload.map(|workload| workload.name.clone()).unwrap_or_default();
        let number = hello.rank.unwrap_or(0);
        let mut rank = Label::from(number);
        *self.ranks.entry(workload.clone()).or_default() += 1;
        self.meet_world(&workload, hello.world);
        self.conflicts.entry(workload.clone()).or_default();
        if !self.taken.insert([workload.clone(), rank.clone()]) {
            *self.conflicts.entry(workload.clone()).or_default() += 1;
            rank = match client.pid {
                Some(pid) => format!("{number}@{pid}").into(),
                None => format!("{number}@c{}", client.number).into(),
            };
            if !self.taken.insert([workload.clone(), rank.clone()]) {
                rank = format!("{rank}.{}", client.number).into();
                self.taken.insert([workload.clone(), rank.clone()]);
            }
        }
        // The driver lists pids; the check above showed that this pid is still the same process.
        let gpus = client.key.map(|key| gpus(key, facts)).unwrap_or_default();
        // The configuration goes before the name that the job reports, and that before the launcher's.
        let known = key.as_ref().and_then(|key| facts.names_of(key)).map(|names| names.run.clone());
        let reported = hello.run.as_deref().map(Label::printable).filter(|run| !run.is_empty());
        let run = match (known, reported) {
            (Some(run), _) if run.configured => run.name,
            (_, Some(reported)) => reported,
            (known, None) => known.unwrap_or_default().name,
        };
        Some(RankIdentity { workload, key, rank, gpus, free: Vec::new(), run })
    }

    fn meet_world(&mut self, workload: &Label, world: Option<u64>) {
        if let Some(world) = world {
            let largest = self.worlds.entry(workload.clone()).or_default();
            *largest = world.max(*largest);
        }
    }

    /// The identity of a rank that is not connected. Absent where a connected process of its workload has its number.
    pub(super) fn of_unconnected(&mut self, rank: &EnvironmentRank, facts: &Facts) -> Option<RankIdentity> {
        let workload = rank.workload.name.clone();
        let mut label = Label::from(rank.rank);
        if self.ranks.contains_key(&workload) && self.taken.contains(&[workload.clone(), label.clone()]) {
            return None;
        }
        if !self.taken.insert([workload.clone(), label.clone()]) {
            label = format!("{label}@{}", rank.process.pid).into();
            if !self.taken.insert([workload.clone(), label.clone()]) {
                return None;
            }
        }
        self.meet_world(&workload, rank.world.map(u64::from));
        let key = rank.workload.key.clone();
        let run = facts.names_of(&key).map(|names| names.run.name.clone()).unwrap_or_default();
        let gpus = gpus(rank.process, facts);
        Some(RankIdentity { workload, key: Some(key), rank: label, gpus, free: Vec::new(), run })
    }
}

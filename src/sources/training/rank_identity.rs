//! Who a connection is: its workload, its rank's label, and its GPUs, from the kernel and the driver.

use std::collections::{BTreeMap, HashSet};

use super::client::Client;
use crate::formats::messages::Hello;
use crate::model::facts::{Facts, GpuProcess};
use crate::model::ids::{ProcessKey, WorkloadKey};
use crate::model::label::Label;

/// Who a connection is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RankIdentity {
    /// Empty where the process belongs to none.
    pub(super) workload: Label,
    /// What makes that workload one.
    pub(super) key: Option<WorkloadKey>,
    /// The rank, told from others of the same number.
    pub(super) rank: Label,
    /// Index and UUID of each GPU that the driver sees the process on.
    pub(super) gpus: Vec<(Label, Label)>,
}

impl RankIdentity {
    /// Whether somebody has it: the names of a face that nobody has are its workload and rank.
    pub(super) fn labels(&self) -> [Label; 2] {
        [self.workload.clone(), self.rank.clone()]
    }

    /// The index of the GPU that the process calls `ordinal`; nothing where the driver does not confirm it.
    pub(super) fn gpu(&self, hello: &Hello, ordinal: u16) -> Option<&Label> {
        let devices = hello.devices.as_deref().unwrap_or_default();
        let told = devices.iter().find(|(other, _)| *other == ordinal);
        if let Some(uuid) = told.and_then(|(_, device)| device.uuid.as_deref()) {
            // PyTorch leaves the prefix out that NVML has.
            let same = |other: &Label| {
                let other = other.as_str();
                other == uuid || other.strip_prefix("GPU-") == Some(uuid)
            };
            return self.gpus.iter().find(|(_, other)| same(other)).map(|(gpu, _)| gpu);
        }
        match &self.gpus[..] {
            [(gpu, _)] if devices.len() <= 1 => Some(gpu),
            _ => None,
        }
    }
}

/// Whether a process may be given a workload for being a rank: with the next sample, which hears that it is one.
pub(super) fn is_new(key: ProcessKey, facts: &Facts) -> bool {
    facts.member(key).is_none() && !facts.spoke.contains(&key)
}

/// The faces of one sample.
#[derive(Debug, Default)]
pub(super) struct RankIdentities {
    taken: HashSet<[Label; 2]>,
    /// How many of each workload gave themselves a rank that another one has.
    pub(super) conflicts: BTreeMap<Label, u64>,
    /// How many ranks each workload has.
    pub(super) ranks: BTreeMap<Label, u64>,
}

impl RankIdentities {
    /// Takes the names of a face that has ended; whether nobody has them.
    pub(super) fn claim(&mut self, identity: &RankIdentity) -> bool {
        self.taken.insert(identity.labels())
    }

    /// The face of a connection whose process lives; whoever is asked for first keeps its rank.
    pub(super) fn of(&mut self, client: &Client, hello: &Hello, facts: &Facts) -> Option<RankIdentity> {
        if let (Some(table), Some(key)) = (&facts.processes, client.key)
            && table.get(key.pid).is_none_or(|row| row.key != key)
        {
            // Somebody else holds the stream open, or this tick's list is older than the process.
            return None;
        }
        let workload = client.key.and_then(|key| facts.member(key));
        let key = workload.map(|workload| workload.key.clone());
        let workload = workload.map(|workload| workload.name.clone()).unwrap_or_default();
        let number = hello.rank.unwrap_or(0);
        let mut rank = Label::from(number);
        *self.ranks.entry(workload.clone()).or_default() += 1;
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
        // The driver tells pids; that this one is still the same process was seen above.
        let on = |process: &&GpuProcess| client.key.is_some_and(|key| key.pid == process.pid);
        let mut gpus: Vec<(Label, Label)> = facts
            .gpu_processes
            .iter()
            .filter(on)
            .map(|process| (process.gpu.clone(), process.uuid.clone()))
            .collect();
        gpus.sort_unstable();
        gpus.dedup();
        Some(RankIdentity { workload, key, rank, gpus })
    }
}

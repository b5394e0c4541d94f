//! Energy per token: the energy of the GPUs that a workload's ranks use, divided by the tokens of those ranks.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::metrics as m;
use super::rate::Rate;
use crate::model::analyzer::View;
use crate::model::facts::Facts;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::time::Timestamp;
use crate::model::units::{Joules, PerSecond, whole};

/// Energy rate of each GPU, by UUID.
#[derive(Debug, Default)]
pub(super) struct Energy {
    /// In millijoules, with the last total, which restarts with the driver.
    gpus: HashMap<Label, (Rate, u64)>,
}

/// Tokens and GPUs of the ranks of one workload.
#[derive(Debug, Default)]
pub(super) struct Effort {
    /// Tokens per second, each replica's counted once; nothing if one of the ranks does not report them.
    pub(super) tokens: Option<f64>,
    /// The UUIDs of their GPUs.
    pub(super) gpus: BTreeSet<Label>,
    pub(super) pids: BTreeSet<u32>,
    /// Whether one of them is on no GPU that the driver confirms.
    pub(super) elsewhere: bool,
}

impl Energy {
    /// Reads the energy totals of this sample.
    fn read(&mut self, at: Timestamp, out: &Batch) {
        use crate::sources::gpu::metrics::ENERGY;
        let points = View::new(out.families()).points(&ENERGY);
        self.gpus.retain(|uuid, _| points.iter().any(|point| point.labels.get(1) == Some(uuid)));
        for point in points {
            let Some(uuid) = point.labels.get(1) else { continue };
            let total = whole(point.value * 1e3);
            let (rate, last) = self.gpus.entry(uuid.clone()).or_default();
            if total < *last {
                *rate = Rate::default();
            }
            *last = total;
            rate.push(at, total);
        }
    }

    /// Puts the energy per token of each workload.
    pub(super) fn put(&mut self, efforts: &BTreeMap<Label, Effort>, at: Timestamp, out: &mut Batch) {
        self.read(at, out);
        for (workload, effort) in efforts {
            let label = std::slice::from_ref(workload);
            out.put_some(&m::WORKLOAD_TOKEN_RATE, label, effort.tokens.and_then(PerSecond::new));
            let joules = self.per_token(effort, &out.facts, at).and_then(Joules::new);
            out.put_some(&m::JOULES_PER_TOKEN, label, joules);
        }
    }

    fn per_token(&self, effort: &Effort, facts: &Facts, at: Timestamp) -> Option<f64> {
        let tokens = effort.tokens.filter(|tokens| *tokens > 0.0 && !effort.elsewhere)?;
        let shared = facts
            .gpu_processes
            .iter()
            .any(|process| effort.gpus.contains(&process.uuid) && !effort.pids.contains(&process.pid));
        if shared || effort.gpus.is_empty() {
            return None;
        }
        let watts = |uuid: &Label| Some(self.gpus.get(uuid)?.0.per_second(at)? / 1e3);
        let watts: Option<f64> = effort.gpus.iter().map(watts).sum();
        Some(watts? / tokens)
    }
}

impl Effort {
    /// Adds one rank: its tokens per second, times its own share of them.
    pub(super) fn add(&mut self, first: bool, tokens: Option<f64>) {
        self.tokens = match (first, self.tokens) {
            (true, _) => tokens,
            (false, before) => before.zip(tokens).map(|(before, more)| before + more),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::GpuProcess;
    use crate::sources::gpu::metrics::ENERGY;

    #[test]
    fn a_token_costs_what_its_gpus_use_unless_they_are_shared() {
        let mut energy = Energy::default();
        let mut cost = |second: u64, pids: &[u32]| {
            let mut batch = Batch::new();
            for (gpu, watts) in [("0", 400.0), ("1", 200.0), ("2", 999.0)] {
                #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
                let joules = Joules::new(1e6 + watts * second as f64).unwrap();
                batch.put(&ENERGY, &[gpu.into(), format!("GPU-{gpu}").into()], joules);
            }
            for (pid, gpu) in pids.iter().zip(["0", "1", "1"]) {
                let uuid = format!("GPU-{gpu}").into();
                batch.facts.gpu_processes.push(GpuProcess { pid: *pid, gpu: gpu.into(), uuid, memory: None });
            }
            let effort = Effort {
                tokens: Some(1_200.0),
                gpus: ["GPU-0".into(), "GPU-1".into()].into(),
                pids: [7, 8].into(),
                elsewhere: false,
            };
            energy.put(&[("job".into(), effort)].into(), Timestamp::from_secs(second), &mut batch);
            let (families, ..) = batch.seal();
            let family =
                families.into_iter().find(|family| std::ptr::eq(family.desc, &m::JOULES_PER_TOKEN.desc));
            family.map(|family| family.points[0].value)
        };
        assert_eq!(cost(1, &[7, 8]), None);
        assert_eq!(cost(11, &[7, 8]), Some(0.5));
        assert_eq!(cost(12, &[7, 8, 9]), None, "another workload uses it");
    }
}

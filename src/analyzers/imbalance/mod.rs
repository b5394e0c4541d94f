//! Detects whether a workload uses its GPUs evenly, and which GPU or rank delays the others.
//!
//! # What it says
//! For each workload on two or more GPUs, and for the node: how far the fullest GPU is above the mean and which one
//! it is, how much memory of the others remains unused when it is full, how far the least utilized GPU is below the
//! mean and which one it is. For each workload, its share of the node's resident memory. For each run with two or
//! more ranks on the node that report steps: the slowest rank and by how much, the differences in waiting for data, how many
//! steps the last rank is behind, and the rank with the most allocated memory.
//!
//! # Method
//! Memory as the driver attributes it to the workload's processes, (largest − mean) / mean. Utilization as an
//! exponential mean over a minute, (mean − least) / mean, because the GPUs of a pipeline are busy in turns. A finding
//! requires a spread of at least 0.2, or a lag of at least 0.3, that has lasted for a minute. Step times and waiting
//! for data are exponential means over a minute; a finding requires a difference of 10 % that has lasted for a
//! minute, or a rank that has been three steps, and ten seconds of steps, behind for a minute.
//!
//! # When it stays silent
//! On one GPU; where the driver does not attribute memory; for the lag, while the GPUs idle (mean utilization below 5
//! %). A workload whose processes train independently (several runs, or each a world of one rank) is not compared.
//!
//! # False alarms
//! Pipeline stages are uneven by design: such a finding is information until the fullest GPU is at 90 %. The driver
//! counts a GPU that waits in a collective as busy, so that the least utilized GPU is often the one that the others
//! wait for. Synchronous ranks all take as long as the slowest: their step times do not differ then, but their
//! waiting for data or the utilization of their GPUs does.

mod lasting;
pub mod metrics;
mod ranks;
mod spread;

use std::collections::BTreeMap;

use self::lasting::{Lasting, mean};
use self::spread::Spread;
use super::Registration;
use super::latch::Latch;
use crate::model::analyzer::{Analysis, Analyzer, View};
use crate::model::finding::{Evidence, Finding, Severity, Subject};
use crate::model::format;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Flag, Ratio};
use crate::sources::gpu::metrics::UTILIZATION;
use crate::sources::workload;

/// Minimum spread, and minimum lag, of a finding.
const UNEVEN: f64 = 0.2;
const LAGS: f64 = 0.3;
/// Mean utilization below which GPUs count as idle.
const IDLE: f64 = 0.05;
/// Used share from which the fullest GPU is a bottleneck: its workload is close to running out of memory.
const FULL: f64 = 0.9;

/// Registration of the `imbalance` analyzer.
pub static REGISTRATION: Registration = Registration {
    name: "imbalance",
    about: "Detects workloads that use their GPUs unevenly, and the GPU or rank that slows the others down.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_| Box::new(Imbalance::default()))
};

#[derive(Debug, Default)]
struct Imbalance {
    /// By UUID: mean utilization.
    busy: BTreeMap<Label, f64>,
    last: Option<f64>,
    uneven: Lasting,
    /// Whether the fullest GPU is at [`FULL`] or above.
    full: Latch<bool>,
    ranks: ranks::Ranks,
}

/// The memory that a workload uses on one GPU.
#[derive(Clone, Debug)]
struct GpuUse {
    gpu: Label,
    uuid: Label,
    used: f64,
}

/// Memory of a GPU, used by any process.
#[derive(Clone, Copy, Debug, Default)]
struct Device {
    used: f64,
    free: f64,
}

impl Analyzer for Imbalance {
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        let devices = devices(view);
        self.full.begin(now);
        self.follow(view, now);
        let mut groups: BTreeMap<Label, Vec<GpuUse>> = BTreeMap::new();
        for point in view.points(&workload::metrics::GPU_MEMORY) {
            let [name, gpu, uuid] = &*point.labels else { continue };
            let own_use = GpuUse { gpu: gpu.clone(), uuid: uuid.clone(), used: point.value };
            groups.entry(name.clone()).or_default().push(own_use);
        }
        let node = devices.iter().map(|((gpu, uuid), device)| GpuUse {
            gpu: gpu.clone(),
            uuid: uuid.clone(),
            used: device.used,
        });
        groups.insert(Label::default(), node.collect());
        self.uneven.begin();
        let independent = super::ranks::independent(view);
        let compared = |name: &Label, uses: &[GpuUse]| uses.len() > 1 && !independent.contains(name);
        for (name, uses) in groups.iter().filter(|(name, uses)| compared(name, uses)) {
            self.memory(name, uses, &devices, now, out);
            self.utilization(name, uses, now, out);
        }
        self.ranks.analyze(view, now, out);
        shares(view, out);
    }
}

impl Imbalance {
    /// Updates the mean utilizations with this tick.
    fn follow(&mut self, view: &View<'_>, now: Timestamp) {
        let at = now.monotonic().as_secs_f64();
        let passed = self.last.replace(at).map_or(0.0, |last| (at - last).max(0.0));
        let before = std::mem::take(&mut self.busy);
        let now = view.by_label(&UTILIZATION, 1).into_iter();
        let mean =
            |(uuid, value): (&Label, f64)| (uuid.clone(), mean(before.get(uuid).copied(), value, passed));
        self.busy = now.map(mean).collect();
    }

    fn memory(
        &mut self,
        name: &Label,
        uses: &[GpuUse],
        devices: &BTreeMap<(Label, Label), Device>,
        now: Timestamp,
        out: &mut Analysis,
    ) {
        let used: Vec<f64> = uses.iter().map(|own_use| own_use.used).collect();
        let Some(spread) = Spread::of(&used) else { return };
        let label = std::slice::from_ref(name);
        out.batch.put_some(&metrics::SPREAD, label, Ratio::new(spread.above));
        let fullest = &uses[spread.largest];
        out.batch.put(&metrics::BOTTLENECK, &place(name, fullest), Flag(true));
        let device = |own_use: &GpuUse| devices.get(&(own_use.gpu.clone(), own_use.uuid.clone())).copied();
        let Some(full) = device(fullest) else { return };
        let others = uses.iter().filter_map(device).map(|other| (other.free - full.free).max(0.0));
        let stranded: f64 = others.sum();
        out.batch.put(&metrics::STRANDED, label, Bytes::of(stranded));
        // The jobs of a node are independent: one that fills its GPU does not limit the others.
        let uneven = spread.above >= UNEVEN && !name.is_empty();
        let Some(since) = self.uneven.since(&whole(name), "memory", uneven, now) else { return };
        let share = full.used / (full.used + full.free).max(1.0);
        let subject = subject(name);
        let full = self.full.update(&subject, share >= FULL, now).0;
        let level = if full { ("bottleneck", Severity::Warning) } else { ("uneven", Severity::Info) };
        out.findings.push(Finding {
            analyzer: REGISTRATION.name,
            subject,
            state: level.0,
            severity: level.1,
            since_unix_seconds: since,
            summary: format!(
                "GPU {} uses {} more memory than the mean of the GPUs of {}.",
                fullest.gpu,
                format::percent(spread.above),
                shown(name)
            ),
            evidence: vec![
                Evidence { what: "spread_ratio", value: spread.above },
                Evidence { what: "fullest_used_bytes", value: fullest.used },
                Evidence { what: "mean_used_bytes", value: spread.mean },
                Evidence { what: "stranded_bytes", value: stranded },
            ],
            advice: "Move layers or shards off the fullest GPU; keep data loading and logging off rank 0's GPU.",
        });
    }

    fn utilization(&mut self, name: &Label, uses: &[GpuUse], now: Timestamp, out: &mut Analysis) {
        let busy: Vec<f64> =
            uses.iter().filter_map(|own_use| self.busy.get(&own_use.uuid).copied()).collect();
        // Only if every GPU has a value: a GPU without one could be the least utilized.
        let Some(spread) = Spread::of(&busy).filter(|_| busy.len() == uses.len()) else { return };
        if spread.mean < IDLE {
            return;
        }
        let idlest = &uses[spread.least];
        out.batch.put_some(&metrics::IDLEST, std::slice::from_ref(name), Ratio::new(spread.below));
        out.batch.put(&metrics::STRAGGLER, &place(name, idlest), Flag(true));
        let lags = spread.below >= LAGS && !name.is_empty();
        let Some(since) = self.uneven.since(&whole(name), "utilization", lags, now) else { return };
        let mut subject = subject(name);
        (subject.gpu, subject.uuid) = (idlest.gpu.clone(), idlest.uuid.clone());
        out.findings.push(Finding {
            analyzer: REGISTRATION.name,
            subject,
            state: "straggler",
            severity: Severity::Info,
            since_unix_seconds: since,
            summary: format!(
                "GPU {} is {} less utilized than the mean of the GPUs of {}.",
                idlest.gpu,
                format::percent(spread.below),
                shown(name)
            ),
            evidence: vec![
                Evidence { what: "lag_ratio", value: spread.below },
                Evidence { what: "mean_utilization_ratio", value: spread.mean },
            ],
            advice: "Check the input pipeline and the CPU affinity of its rank.",
        });
    }
}

/// A workload, with all of its runs.
fn whole(name: &Label) -> [Label; 2] {
    [name.clone(), Label::default()]
}

fn subject(name: &Label) -> Subject {
    if name.is_empty() { Subject::host() } else { Subject::workload(name) }
}

fn shown(name: &Label) -> &str {
    if name.is_empty() { "the node" } else { name.as_str() }
}

fn place(name: &Label, own_use: &GpuUse) -> [Label; 3] {
    [name.clone(), own_use.gpu.clone(), own_use.uuid.clone()]
}

/// Adds each workload's share of the resident memory of all workloads.
fn shares(view: &View<'_>, out: &mut Analysis) {
    let points = view.points(&workload::metrics::RSS);
    let all: f64 = points.iter().map(|point| point.value).sum();
    for point in points.iter().filter(|_| all > 0.0) {
        out.batch.put_some(&metrics::SHARE, &point.labels, Ratio::new(point.value / all));
    }
}

fn devices(view: &View<'_>) -> BTreeMap<(Label, Label), Device> {
    use crate::sources::gpu::metrics::{MEMORY_FREE, MEMORY_USED};
    let device = |point: &crate::model::point::Point| {
        let [gpu, uuid] = &*point.labels else { return None };
        let free = view.value(&MEMORY_FREE, &point.labels)?;
        Some(((gpu.clone(), uuid.clone()), Device { used: point.value, free }))
    };
    view.points(&MEMORY_USED).iter().filter_map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::point::Batch;
    use crate::sources::gpu;
    use expect_test::expect;

    /// Ninety seconds of two GPUs with these used GiB and utilizations, both of one workload.
    fn say(used: [u64; 2], busy: [f64; 2]) -> (Vec<String>, Vec<String>) {
        say_of(used, busy, "2")
    }

    /// The same of two ranks of a world of this size.
    fn say_of(used: [u64; 2], busy: [f64; 2], world: &str) -> (Vec<String>, Vec<String>) {
        let mut analyzer = Imbalance::default();
        let mut last = Analysis::default();
        for second in 0..90 {
            let mut batch = Batch::new();
            for (gpu, (used, busy)) in ["0", "1"].into_iter().zip(used.into_iter().zip(busy)) {
                let labels: [Label; 2] = [gpu.into(), format!("GPU-{gpu}").into()];
                batch.put(&gpu::metrics::MEMORY_USED, &labels, Bytes::new(used << 30));
                batch.put(&gpu::metrics::MEMORY_FREE, &labels, Bytes::new((80 - used) << 30));
                batch.put_some(&gpu::metrics::UTILIZATION, &labels, Ratio::new(busy));
                let labels = ["train".into(), labels[0].clone(), labels[1].clone()];
                batch.put(&workload::metrics::GPU_MEMORY, &labels, Bytes::new(used << 30));
                ranks::tests::meet(&mut batch, &[labels[0].clone(), labels[1].clone()], "sweep", world);
            }
            batch.put(&workload::metrics::RSS, &["train".into()], Bytes::new(1 << 30));
            last = Analysis::default();
            analyzer.analyze(&View::new(batch.families()), Timestamp::from_secs(second), &mut last);
        }
        let (families, ..) = last.batch.seal();
        let shown = families.iter().flat_map(|family| {
            family.points.iter().map(|point| {
                let labels: Vec<_> = point.labels.iter().map(|label| label.as_str()).collect();
                format!("{} {labels:?} {:.3}", family.desc.name, point.value)
            })
        });
        let findings = last.findings.iter().map(|finding| format!("{}: {}", finding.state, finding.summary));
        (shown.collect(), findings.collect())
    }

    #[test]
    fn an_even_workload_has_no_finding() {
        let (shown, findings) = say([40, 40], [0.9, 0.9]);
        assert_eq!(findings, [""; 0]);
        expect![[r#"
            memwarden_imbalance_memory_spread_ratio [""] 0.000
            memwarden_imbalance_memory_spread_ratio ["train"] 0.000
            memwarden_imbalance_memory_bottleneck_info ["", "0", "GPU-0"] 1.000
            memwarden_imbalance_memory_bottleneck_info ["train", "0", "GPU-0"] 1.000
            memwarden_imbalance_stranded_bytes [""] 0.000
            memwarden_imbalance_stranded_bytes ["train"] 0.000
            memwarden_imbalance_utilization_lag_ratio [""] 0.000
            memwarden_imbalance_utilization_lag_ratio ["train"] 0.000
            memwarden_imbalance_straggler_info ["", "0", "GPU-0"] 1.000
            memwarden_imbalance_straggler_info ["train", "0", "GPU-0"] 1.000
            memwarden_imbalance_workload_memory_share_ratio ["train"] 1.000"#]]
        .assert_eq(&shown.join("\n"));
    }

    #[test]
    fn the_fullest_and_the_idlest_are_named() {
        let (shown, findings) = say([30, 75], [0.9, 0.3]);
        assert!(shown.iter().any(|line| line.ends_with(r#"["train"] 48318382080.000"#)), "{shown:?}");
        expect![[r#"
            bottleneck: GPU 1 uses 43 % more memory than the mean of the GPUs of train.
            straggler: GPU 1 is 50 % less utilized than the mean of the GPUs of train."#]]
        .assert_eq(&findings.join("\n"));
    }

    #[test]
    fn the_gpus_of_independent_processes_are_not_compared() {
        let (shown, findings) = say_of([30, 75], [0.9, 0.3], "1");
        assert!(findings.is_empty(), "{findings:?}");
        assert!(!shown.iter().any(|line| line.contains("spread") && line.contains("train")), "{shown:?}");
    }

    #[test]
    fn gpus_that_idle_have_no_straggler() {
        let (shown, findings) = say([30, 30], [0.0, 0.02]);
        assert!(findings.is_empty() && !shown.iter().any(|line| line.contains("straggler")), "{shown:?}");
    }
}

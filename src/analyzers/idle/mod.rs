//! Detects memory that is held and not used: on GPUs that do nothing, and of workloads that do nothing.
//!
//! # What it says
//! For each workload: the memory that it holds on each unused GPU, since when, and the GPU time for which it did; the
//! host memory that it holds without any activity, and since when. One finding for each of both.
//!
//! # Method
//! A GPU is unused while its utilization is below 1 % in every sample. A period is reported after `after`, or after four
//! times that if the workload used more than a tenth of a CPU core in the period: start-up, data preparation and saving
//! a checkpoint use CPUs and no GPU. A workload has no activity while it uses less than a hundredth of a core, averaged
//! over `after`, and none of its GPUs is used; this is reported after four times `after`.
//!
//! # When it stays silent
//! Below `min_gpu_memory` and `min_host_memory`; while a rank of the workload reports that it saves a checkpoint; where
//! the utilization of the GPU is unknown, as on GPUs in MIG mode; for host memory of systemd units, because services
//! such as databases hold memory on purpose.
//!
//! # False alarms
//! An inference server without requests holds memory on purpose. A GPU that several workloads share is used for all of
//! them while any of them uses it.

pub mod metrics;
mod period;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::period::Period;
use super::Registration;
use crate::model::analyzer::{Analysis, Analyzer, View};
use crate::model::finding::{Evidence, Finding, Severity, Subject};
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Seconds, Unit};
use crate::sources::gpu::metrics::UTILIZATION;
use crate::sources::{training, workload};

/// Utilization from which a GPU is used. NVML reports whole percents.
const USED: f64 = 0.01;
/// Mean CPU cores above which a workload is at work although its GPUs are not used.
const AT_WORK: f64 = 0.1;
/// Mean CPU cores below which a workload without a used GPU has no activity.
const INACTIVE: f64 = 0.01;
/// How many times longer a period lasts before it is reported while the workload uses CPUs, and for host memory.
const LONGER: u32 = 4;

crate::options! {
    /// The options of the analyzer.
    struct Options {
        /// Time for which a GPU must not be used before the memory that a workload holds on it is reported as idle; four
        /// times that while the workload uses CPUs, and for host memory.
        after: Duration = 15m in 10s..=1d;
        /// Memory of a workload on a GPU below which it is not reported as idle. A CUDA context alone takes about
        /// 500 MiB.
        min_gpu_memory: Bytes = 1GiB;
        /// Anonymous and shared memory of a workload below which it is not reported as idle.
        min_host_memory: Bytes = 8GiB;
    }
}

/// Registration of the `idle` analyzer.
pub static REGISTRATION: Registration = Registration {
    name: "idle",
    about: "Detects memory that is held and not used, on GPUs and on the host.",
    options: Options::OPTIONS,
    metrics: metrics::METRICS,
    ..Registration::built_by(|settings| Box::new(Idle::new(&Options::read(settings))))
};

#[derive(Default)]
struct Idle {
    after: Duration,
    /// In bytes.
    min_gpu: f64,
    /// In bytes.
    min_host: f64,
    /// By workload, GPU and UUID.
    gpus: BTreeMap<[Label; 3], Period>,
    /// By workload.
    hosts: BTreeMap<Label, Period>,
    /// GPU seconds of reported periods, by workload.
    counted: BTreeMap<Label, f64>,
}

/// The state of all workloads and GPUs in one tick.
struct Tick<'v> {
    now: Timestamp,
    /// CPU seconds, by workload.
    cpu: BTreeMap<&'v Label, f64>,
    /// By UUID; a GPU without a known utilization is absent.
    utilization: BTreeMap<&'v Label, f64>,
    /// Workloads with a rank that saves a checkpoint.
    saving: BTreeSet<&'v Label>,
}

impl Analyzer for Idle {
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        let saving = view.points(&training::metrics::CHECKPOINT).iter().filter(|point| {
            matches!(&*point.labels, [_, _, state] if state.as_str() == "saving") && point.value > 0.0
        });
        let tick = Tick {
            now,
            cpu: view.by_label(&workload::metrics::CPU, 0),
            utilization: view.by_label(&UTILIZATION, 1),
            saving: saving.map(|point| &point.labels[0]).collect(),
        };
        self.gpus(view, &tick, out);
        self.hosts(view, &tick, out);
    }
}

impl Idle {
    fn new(options: &Options) -> Self {
        Self {
            after: options.after,
            min_gpu: options.min_gpu_memory.value(),
            min_host: options.min_host_memory.value(),
            ..Self::default()
        }
    }

    fn gpus(&mut self, view: &View<'_>, tick: &Tick<'_>, out: &mut Analysis) {
        let mut before = std::mem::take(&mut self.gpus);
        let mut idle: BTreeMap<&Label, Vec<(&Label, f64, Period)>> = BTreeMap::new();
        let running: BTreeSet<&Label> =
            view.points(&workload::metrics::RSS).iter().map(|point| &point.labels[0]).collect();
        self.counted.retain(|name, _| running.contains(name));
        for point in view.points(&workload::metrics::GPU_MEMORY) {
            let [name, gpu, uuid] = &*point.labels else { continue };
            let unused = tick.utilization.get(uuid).is_some_and(|value| *value < USED);
            if !unused || tick.saving.contains(name) || point.value < self.min_gpu {
                continue;
            }
            let key = [name.clone(), gpu.clone(), uuid.clone()];
            let cpu = tick.cpu.get(name).copied();
            let mut period = before.remove(&key).unwrap_or_else(|| Period::new(tick.now, cpu));
            let longer = period.cores(tick.now, cpu).is_some_and(|cores| cores > AT_WORK);
            let wait = if longer { self.after * LONGER } else { self.after };
            if period.lasted(tick.now) >= wait {
                *self.counted.entry(name.clone()).or_default() += period.uncounted(tick.now);
                out.batch.put(&metrics::GPU_BYTES, &key, Bytes::of(point.value));
                out.batch.put_some(&metrics::GPU_SINCE, &key, Seconds::new(period.since_unix()));
                idle.entry(name).or_default().push((gpu, point.value, period));
            }
            self.gpus.insert(key, period);
        }
        for (name, seconds) in &self.counted {
            out.batch.put_some(&metrics::GPU_SECONDS, std::slice::from_ref(name), Seconds::new(*seconds));
        }
        for (name, gpus) in idle {
            let held: f64 = gpus.iter().map(|(_, held, _)| held).sum();
            let seconds: f64 = gpus.iter().map(|(_, _, period)| period.lasted(tick.now).as_secs_f64()).sum();
            let since = gpus.iter().map(|(_, _, period)| period.since_unix()).fold(f64::INFINITY, f64::min);
            let indices: Vec<&str> = gpus.iter().map(|(gpu, ..)| gpu.as_str()).collect();
            out.findings.push(Finding {
                analyzer: REGISTRATION.name,
                subject: Subject::workload(name),
                state: "gpu_idle",
                severity: Severity::Info,
                since_unix_seconds: since,
                summary: format!(
                    "{name} holds memory on {} {} without using {}.",
                    if indices.len() == 1 { "GPU" } else { "GPUs" },
                    indices.join(", "),
                    if indices.len() == 1 { "it" } else { "them" }
                ),
                evidence: vec![
                    Evidence { what: "held_bytes", value: held },
                    Evidence { what: "idle_gpu_hours", value: seconds / 3600.0 },
                ],
                advice: "End the processes, or release their GPUs: a job that hangs or has ended its work keeps others from using them.",
            });
        }
    }

    fn hosts(&mut self, view: &View<'_>, tick: &Tick<'_>, out: &mut Analysis) {
        let mut before = std::mem::take(&mut self.hosts);
        let units: BTreeSet<&Label> = view
            .points(&workload::metrics::INFO)
            .iter()
            .filter(|point| point.labels[1].as_str() == "unit")
            .map(|point| &point.labels[0])
            .collect();
        let mut on_used_gpu: BTreeSet<&Label> = BTreeSet::new();
        for point in view.points(&workload::metrics::GPU_PROCESSES) {
            let [name, _, uuid] = &*point.labels else { continue };
            // A GPU of unknown utilization may be in use.
            if tick.utilization.get(uuid).is_none_or(|value| *value >= USED) {
                on_used_gpu.insert(name);
            }
        }
        for point in view.points(&workload::metrics::ANON) {
            let name = &point.labels[0];
            let shared = view.value(&workload::metrics::SHMEM, &point.labels).unwrap_or_default();
            let held = point.value + shared;
            let Some(cpu) = tick.cpu.get(name).copied() else { continue };
            if units.contains(name)
                || on_used_gpu.contains(name)
                || tick.saving.contains(name)
                || held < self.min_host
            {
                continue;
            }
            let mut period = before.remove(name).unwrap_or_else(|| Period::new(tick.now, Some(cpu)));
            if !period.stays_below(INACTIVE, self.after, tick.now, cpu) {
                period = Period::new(tick.now, Some(cpu));
            }
            if period.lasted(tick.now) >= self.after * LONGER {
                let label = std::slice::from_ref(name);
                out.batch.put(&metrics::HOST_BYTES, label, Bytes::of(held));
                out.batch.put_some(&metrics::HOST_SINCE, label, Seconds::new(period.since_unix()));
                out.findings.push(Finding {
                    analyzer: REGISTRATION.name,
                    subject: Subject::workload(name),
                    state: "host_idle",
                    severity: Severity::Info,
                    since_unix_seconds: period.since_unix(),
                    summary: format!("{name} holds host memory without using a CPU or GPU."),
                    evidence: vec![
                        Evidence { what: "held_bytes", value: held },
                        Evidence { what: "idle_seconds", value: period.lasted(tick.now).as_secs_f64() },
                    ],
                    advice: "End the processes, or attach a debugger to find what they wait for.",
                });
            }
            self.hosts.insert(name.clone(), period);
        }
    }
}

#[cfg(test)]
mod tests;

//! GPUs whose drivers use the kernel's Direct Rendering Manager: sysfs, hwmon and the fdinfo of DRM clients.
//!
//! A vendor has one folder, which declares a [`vendor::Vendor`], and one line in `VENDORS`. The metrics are those of the
//! source `gpu`, so that analyzers, pages and protection need no change for a vendor. NVIDIA's GPUs are left to that source.

pub mod amd;
pub mod card;
pub mod clients;
pub mod fdinfo;
pub mod files;
pub mod intel;
pub mod metrics;
#[cfg(test)]
mod tests;
pub mod vendor;
pub mod watch;

use std::sync::Arc;
use std::time::Duration;

use self::vendor::Vendor;
use self::watch::{DeviceState, Sample, Setup, Shared};
use crate::host::apart;
use crate::host::background::Background;
use crate::model::bounds::MEMORY;
use crate::model::facts::{GpuMemory, GpuProcess};
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::point::Batch;
use crate::model::source::{Failure, Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Flag};
use crate::sources::Registration;
use crate::sources::gpu::metrics as m;

static VENDORS: &[&Vendor] = &[&amd::VENDOR, &intel::VENDOR];

/// A sample is stale after this many intervals, as of the source `gpu`.
const STALE: u32 = 5;
/// The shortest time after which a sample is stale.
const SHORTEST_STALE: Duration = Duration::from_secs(3);

crate::options! {
    /// The options of the source.
    struct Options {
        /// Time between two reads of each GPU.
        interval: Duration = 1s in 100ms..=1m;
        /// Whether memory and utilization are read for each process; requires the source process.
        processes: bool = true;
    }
}

/// The source of GPUs of AMD and Intel.
pub static REGISTRATION: Registration = Registration {
    name: "drm",
    about: "GPUs of AMD and Intel and their processes, from sysfs and the kernel's statistics of DRM clients. Unavailable on a node without such a GPU.",
    options: Options::OPTIONS,
    metrics: metrics::METRICS,
    ..Registration::built_by(|settings, context| {
        let Options { interval, processes } = Options::read(settings);
        let setup = Setup {
            proc: context.roots.proc.clone(),
            sys: context.roots.sys.clone(),
            interval,
            processes,
            vendors: VENDORS,
        };
        Box::new(Drm { setup, background: None })
    })
};

struct Drm {
    setup: Setup,
    background: Option<Background<Shared>>,
}

impl Source for Drm {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let setup = self.setup.clone();
        let shared = Background::of(&mut self.background, "finds GPUs", |shared, stopped| {
            apart::spawn("gpu-clients", move || watch::find(&setup, &shared, &stopped))
        })?;
        lock(&shared.processes).clone_from(&out.facts.processes);
        // Held only while pointers are copied: the threads hold no lock while they read.
        let (searched, error, gpus) = {
            let world = lock(&shared.world);
            let states: Vec<DeviceState> = world.gpus.iter().map(|state| lock(state).clone()).collect();
            (world.searched, world.error.clone(), states)
        };
        let stale = (self.setup.interval * STALE).max(SHORTEST_STALE);
        let mut wrong = Vec::new();
        for gpu in &gpus {
            let condition = condition(gpu, at, stale);
            put(gpu, condition, at, stale, out);
            if ["lost", "hung"].contains(&condition) {
                wrong.push((condition, &gpu.card.labels[0]));
            }
        }
        if let Some((condition, _)) = wrong.first() {
            let kind = if *condition == "hung" { Failure::Timeout } else { Failure::Lost };
            let named: Vec<String> =
                wrong.iter().map(|(condition, gpu)| format!("GPU {gpu}: {condition}")).collect();
            return Err(SourceError::failed(kind, named.join(", ")));
        }
        match error {
            Some(error) => Err(SourceError::failed(Failure::Io, error)),
            None if !searched => Err(SourceError::unavailable("GPUs have not been searched yet")),
            None if gpus.is_empty() => Err(SourceError::unavailable("there is no GPU of AMD or Intel")),
            None => Ok(()),
        }
    }
}

/// The status of a GPU, as of the source `gpu`.
fn condition(gpu: &DeviceState, at: Timestamp, stale: Duration) -> &'static str {
    if gpu.lost {
        return "lost";
    }
    if age(gpu, at) > stale {
        return "hung";
    }
    match &gpu.sample {
        Some(sample) if !sample.sleeps => "ok",
        _ => "unobserved",
    }
}

/// Time since its newest complete read, or since it was found.
fn age(gpu: &DeviceState, at: Timestamp) -> Duration {
    at.since(gpu.sampled.unwrap_or(gpu.since))
}

fn put(gpu: &DeviceState, condition: &'static str, at: Timestamp, stale: Duration, out: &mut Batch) {
    let labels = &gpu.card.labels;
    let with = |label: &str| [labels[0].clone(), labels[1].clone(), label.into()];
    for possible in ["ok", "lost", "hung", "unknown_error", "unobserved"] {
        out.put(&m::STATUS, &with(possible), Flag(possible == condition));
    }
    if let Some(file) = gpu.reading.as_ref().filter(|_| condition == "hung") {
        out.put(&m::HUNG_CALL, &with(file.as_str()), Flag(true));
    }
    out.put(&m::SAMPLE_AGE, labels, age(gpu, at).into());
    let (card, none) = (&gpu.card, String::new());
    let mut info = labels.to_vec();
    let texts = [&card.name, &card.serial, &card.pci, &none, &none, &none, &none];
    info.extend(texts.map(Label::from));
    info.push(card.vendor.name.into());
    out.put(&m::INFO, &info, Flag(true));
    if let Some(sample) = gpu.sample.as_ref().filter(|_| condition == "ok" && age(gpu, at) <= stale) {
        values(labels, sample, out);
    }
}

fn values(labels: &[Label; 2], sample: &Arc<Sample>, out: &mut Batch) {
    let [index, uuid] = labels;
    let with = |label: &str| [index.clone(), uuid.clone(), label.into()];
    let values = &sample.values;
    let (mut memory_total, mut memory_used) = (values.memory_total, values.memory_used);
    if sample.uses_host_memory {
        // The limit is that of the host. What the firmware set aside is often nearly full, and ends no allocation.
        out.put(&m::USES_HOST_MEMORY, labels, Flag(true));
        out.put_some(&metrics::CARVEOUT_TOTAL, labels, memory_total.take());
        out.put_some(&metrics::CARVEOUT_USED, labels, memory_used.take());
        out.facts.gpus_of_host_memory.push(uuid.clone());
        out.facts.host_memory_is_pool = true;
    }
    if memory_total.zip(memory_used).is_some_and(|(total, used)| total == Bytes::ZERO || used > total) {
        // Which of them is wrong is not known.
        (memory_total, memory_used) = (None, None);
        out.put(
            &m::FIELD_STATUS,
            &[index.clone(), uuid.clone(), "memory_used".into(), "implausible".into(), 0.into()],
            Flag(true),
        );
    }
    let free = memory_total.zip(memory_used).map(|(total, used)| total.saturating_sub(used));
    out.put_some(&m::MEMORY_TOTAL, labels, memory_total);
    out.put_some(&m::MEMORY_USED, labels, memory_used);
    out.put_some(&m::MEMORY_USED_PEAK, labels, memory_used);
    out.put_some(&m::MEMORY_FREE, labels, free);
    out.put_some(&metrics::GTT_TOTAL, labels, values.gtt_total);
    out.put_some(&metrics::GTT_USED, labels, values.gtt_used);
    out.put_some(&m::UTILIZATION, labels, values.utilization);
    out.put_some(&m::MEMORY_UTILIZATION, labels, values.memory_utilization);
    out.put_some(&m::TEMPERATURE, labels, values.temperature);
    out.put_some(&m::MEMORY_TEMPERATURE, labels, values.memory_temperature);
    out.put_some(&m::POWER, labels, values.power);
    out.put_some(&m::POWER_LIMIT, labels, values.power_limit);
    out.put_some(&m::ENERGY, labels, values.energy);
    out.put_some(&m::CLOCK, &with("graphics"), values.clock);
    out.put_some(&m::CLOCK, &with("memory"), values.memory_clock);
    out.put_some(&m::PCIE_REPLAYS, labels, values.pcie_replays);
    for (error, count) in [("corrected", values.ecc_corrected), ("uncorrected", values.ecc_uncorrected)] {
        let labels = [index.clone(), uuid.clone(), error.into(), "volatile".into()];
        out.put_some(&m::ECC_ERRORS, &labels, count);
    }
    for refused in &sample.refused {
        let labels =
            [index.clone(), uuid.clone(), refused.field.into(), refused.status.into(), refused.code.into()];
        out.put(&m::FIELD_STATUS, &labels, Flag(true));
    }
    let memory = memory_used.zip(free);
    out.facts.gpu_memory.extend(memory.map(|(used, free)| GpuMemory { uuid: uuid.clone(), used, free }));
    let Some(usages) = &sample.usages else { return };
    out.put(&m::PROCESSES, labels, Count(usages.processes.len() as u64));
    let mut attributed = Bytes::ZERO;
    for usage in &usages.processes {
        let labels = [index.clone(), uuid.clone(), usage.pid.into()];
        let memory = usage.memory.filter(|memory| *memory <= MEMORY).map(Bytes::new);
        attributed = attributed.saturating_add(memory.unwrap_or(Bytes::ZERO));
        out.put_some(&m::PROCESS_MEMORY, &labels, memory);
        out.put_some(&m::PROCESS_SM, &labels, usage.busy);
        out.facts.gpu_processes.push(GpuProcess {
            pid: usage.pid,
            gpu: index.clone(),
            uuid: uuid.clone(),
            memory,
        });
    }
    let unattributed = memory_used.filter(|_| usages.whole).map(|used| used.saturating_sub(attributed));
    out.put_some(&m::MEMORY_UNATTRIBUTED, labels, unattributed);
}

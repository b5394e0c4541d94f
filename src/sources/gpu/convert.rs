//! Converts a GPU's sample and identity to points.

use super::field::Field;
use super::metrics as m;
use super::parts;
use super::protocol::{Reason, Refusal, Sample};
use super::state::Gpu;
use crate::model::desc::Metric;
use crate::model::facts::{GpuMemory, GpuProcess};
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::units::{Bytes, BytesPerSecond, Celsius, Count, Flag, Hertz, Joules, Ratio, Unit, Watts};

/// The bits of `nvmlClocksEventReasons` (nvml.h).
const THROTTLE_REASONS: [(u64, &str); 9] = [
    (0x1, "gpu_idle"),
    (0x2, "application_clocks"),
    (0x4, "power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal"),
    (0x40, "hw_thermal"),
    (0x80, "hw_power_brake"),
    (0x100, "display_clocks"),
];

/// The modes of `nvmlGpuVirtualizationMode_t` (nvml.h).
const VIRTUALIZATION_MODES: [&str; 5] = ["none", "passthrough", "vgpu", "host_vgpu", "host_vsga"];

/// The actions of `nvmlDeviceGpuRecoveryAction_t` (nvml.h).
const RECOVERY_ACTIONS: [&str; 5] = ["none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"];

/// Puts the values of the GPU's newest sample.
pub fn values(gpu: &Gpu, sample: &Sample, out: &mut Batch) {
    let mut put = Put { gpu, out };
    for (field, value) in &sample.values {
        put.field(*field, *value);
    }
    for (field, refusal) in &sample.refused {
        put.refusal(*field, *refusal);
    }
    let memory = value(sample, Field::MemoryUsed).zip(value(sample, Field::MemoryFree));
    out.facts.gpu_memory.extend(memory.map(|(used, free)| GpuMemory {
        uuid: gpu.labels[1].clone(),
        used: Bytes::new(used),
        free: Bytes::new(free),
    }));
    // Without a new sample since the last tick, the level is that of the newest one.
    let peak = value(sample, Field::MemoryUsed).map(|used| Bytes::new(gpu.peak.max(used)));
    out.put_some(&m::MEMORY_USED_PEAK, &gpu.labels, peak);
    out.put_some(&m::MEMORY_POLLS, &gpu.labels, Some(Count(gpu.polls)).filter(|_| sample.polled.is_some()));
    let reports_none = |(field, refusal): &(Field, Refusal)| {
        *field == Field::MemoryUsed && refusal.reason == Reason::Unsupported
    };
    // A MIG device and a virtual GPU report the memory of the instance.
    let has_processes = sample.processes.is_some() && sample.instances.is_empty();
    if has_processes && sample.refused.iter().any(reports_none) {
        out.put(&m::USES_HOST_MEMORY, &gpu.labels, Flag(true));
        out.facts.gpus_of_host_memory.push(gpu.labels[1].clone());
        out.facts.host_memory_is_pool = true;
    }
    processes(gpu, sample, out);
    for instance in &sample.instances {
        parts::instance(gpu, instance, out);
    }
    for link in &sample.links {
        parts::link(gpu, link, out);
    }
}

/// Puts the GPU's identity (`memwarden_gpu_info`).
pub fn info(gpu: &Gpu, out: &mut Batch) {
    let identity = &gpu.identity;
    let mig = match gpu.sample.as_ref().and_then(|sample| value(sample, Field::MigMode)) {
        Some(0) => "disabled",
        Some(_) => "enabled",
        None => "",
    };
    let minor = identity.minor.map_or_else(String::new, |minor| minor.to_string());
    let values =
        [&identity.name, &identity.serial, &identity.pci, &minor, &identity.vbios, &identity.architecture];
    let mut labels = gpu.labels.to_vec();
    labels.extend(values.map(Label::from));
    labels.extend([mig.into(), "nvidia".into()]);
    out.put(&m::INFO, &labels, Flag(true));
}

fn value(sample: &Sample, wanted: Field) -> Option<u64> {
    sample.values.iter().find(|(field, _)| *field == wanted).map(|(_, value)| *value)
}

fn processes(gpu: &Gpu, sample: &Sample, out: &mut Batch) {
    let Some(processes) = &sample.processes else { return };
    let [index, uuid] = &gpu.labels;
    out.put(&m::PROCESSES, &gpu.labels, Count((processes.len() + gpu.unproven) as u64));
    let unknown = Some(Count(gpu.unproven as u64)).filter(|count| count.0 > 0);
    out.put_some(&m::PROCESSES_UNKNOWN, &gpu.labels, unknown);
    let mut attributed = Some(Bytes::ZERO);
    for process in processes {
        let labels = [index.clone(), uuid.clone(), process.pid.into()];
        let memory = process.memory.map(Bytes::new);
        out.put_some(&m::PROCESS_MEMORY, &labels, memory);
        out.put_some(&m::PROCESS_SM, &labels, process.sm.and_then(|sm| percent(sm.into())));
        // Most processes never use them.
        let used =
            |share: Option<u32>| share.filter(|share| *share > 0).and_then(|share| percent(share.into()));
        out.put_some(&m::PROCESS_ENCODER, &labels, used(process.encoder));
        out.put_some(&m::PROCESS_DECODER, &labels, used(process.decoder));
        attributed = attributed.zip(memory).map(|(sum, memory)| sum.saturating_add(memory));
        out.facts.gpu_processes.push(GpuProcess {
            pid: process.pid,
            gpu: index.clone(),
            uuid: uuid.clone(),
            memory,
        });
    }
    // A list that is refused in part lacks processes, so that the difference would be wrong.
    let whole = !sample.refused.iter().any(|(field, _)| *field == Field::Processes);
    let used = value(sample, Field::MemoryUsed).map(Bytes::new).filter(|_| whole);
    let unattributed = used.zip(attributed).map(|(used, attributed)| used.saturating_sub(attributed));
    out.put_some(&m::MEMORY_UNATTRIBUTED, &gpu.labels, unattributed);
}

pub(super) fn percent(value: u64) -> Option<Ratio> {
    Bytes::new(value).share_of(Bytes::new(100))
}

/// A share in millionths.
pub(super) fn millionths(value: u64) -> Option<Ratio> {
    Bytes::new(value).share_of(Bytes::new(1_000_000))
}

pub(super) fn celsius(value: u64) -> Option<Celsius> {
    Celsius::new(Count(value).value())
}

pub(super) fn watts(milliwatts: u64) -> Option<Watts> {
    Watts::new(Count(milliwatts).value() / 1e3)
}

pub(super) fn hertz(megahertz: u64) -> Option<Hertz> {
    Hertz::new(Count(megahertz).value() * 1e6)
}

pub(super) fn joules(millijoules: u64) -> Option<Joules> {
    Joules::new(Count(millijoules).value() / 1e3)
}

pub(super) fn rate(bytes: u64) -> Option<BytesPerSecond> {
    BytesPerSecond::new(Count(bytes).value())
}

pub(super) fn flag(value: u64) -> Flag {
    Flag(value != 0)
}

/// Puts the values of one GPU.
pub(super) struct Put<'a> {
    gpu: &'a Gpu,
    out: &'a mut Batch,
}

impl Put<'_> {
    /// Puts a value, with labels besides those of the GPU.
    pub(super) fn with<M: Metric, const N: usize>(
        &mut self,
        metric: &'static M,
        labels: [&str; N],
        value: impl Into<Option<M::Unit>>,
    ) {
        let all: Vec<Label> = self.gpu.labels.iter().cloned().chain(labels.map(Label::from)).collect();
        self.out.put_some(metric, &all, value.into());
    }

    fn refusal(&mut self, field: Field, refusal: Refusal) {
        let code = refusal.code.to_string();
        self.with(&m::FIELD_STATUS, [field.label(), refusal.reason.label(), &code], Flag(true));
    }

    fn field(&mut self, field: Field, value: u64) {
        match field {
            Field::ThrottleReasons => {
                for (bit, reason) in THROTTLE_REASONS {
                    self.with(&m::THROTTLED, [reason], Flag(value & bit != 0));
                }
            }
            Field::PcieSent => self.with(&m::PCIE_SENT, [], Bytes::new(self.gpu.pcie_sent.total())),
            Field::PcieReceived => {
                self.with(&m::PCIE_RECEIVED, [], Bytes::new(self.gpu.pcie_received.total()))
            }
            Field::VirtualizationMode => {
                let place = usize::try_from(value).ok();
                if let Some(mode) = place.and_then(|place| VIRTUALIZATION_MODES.get(place)) {
                    self.with(&m::VIRTUALIZATION, [mode], Flag(true));
                }
            }
            Field::RecoveryAction => {
                for (number, action) in (0..).zip(RECOVERY_ACTIONS) {
                    self.with(&m::RECOVERY_ACTION, [action], Flag(value == number));
                }
            }
            field => field.put(value, self),
        }
    }
}

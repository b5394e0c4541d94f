//! Converts a GPU's sample and identity to points.

use super::field::Field;
use super::metrics as m;
use super::parts;
use super::protocol::{Process, Reason, Refusal, Sample};
use super::state::Gpu;
use crate::model::desc::Metric;
use crate::model::facts::{GpuMemory, GpuProcess};
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::units::{
    Bytes, BytesPerSecond, Celsius, Count, Flag, Hertz, Joules, Ratio, Seconds, Unit, Watts,
};

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

/// The fields that NVML reports in percent.
const PERCENT: [Field; 4] =
    [Field::Utilization, Field::MemoryUtilization, Field::EncoderUtilization, Field::DecoderUtilization];

/// The call succeeded but returned an impossible value.
const IMPLAUSIBLE: Refusal = Refusal { reason: Reason::Implausible, code: 0 };

/// Puts the values of the GPU's newest sample.
pub fn values(gpu: &Gpu, sample: &Sample, out: &mut Batch) {
    let mut put = Put { gpu, out };
    for (field, value) in &sample.values {
        put.field(*field, *value);
        if PERCENT.contains(field) && percent(*value).is_none() {
            put.refusal(*field, IMPLAUSIBLE);
        }
    }
    for (field, refusal) in &sample.refused {
        put.refusal(*field, *refusal);
    }
    let utilization = |process: &Process| [process.sm, process.encoder, process.decoder];
    let mut shares = sample.processes.iter().flatten().flat_map(utilization).flatten();
    if shares.any(|share| percent(share.into()).is_none()) {
        put.refusal(Field::ProcessUtilization, IMPLAUSIBLE);
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
    out.put(&m::PROCESSES, &gpu.labels, Count(processes.len() as u64));
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

/// Nothing above 100 percent, which is an invalid reading.
fn percent(value: u64) -> Option<Ratio> {
    if value > 100 {
        return None;
    }
    Bytes::new(value).share_of(Bytes::new(100))
}

/// A share in millionths.
pub(super) fn millionths(value: u64) -> Option<Ratio> {
    Bytes::new(value).share_of(Bytes::new(1_000_000))
}

fn celsius(value: u64) -> Option<Celsius> {
    Celsius::new(Count(value).value())
}

fn watts(milliwatts: u64) -> Option<Watts> {
    Watts::new(Count(milliwatts).value() / 1e3)
}

fn hertz(megahertz: u64) -> Option<Hertz> {
    Hertz::new(Count(megahertz).value() * 1e6)
}

struct Put<'a> {
    gpu: &'a Gpu,
    out: &'a mut Batch,
}

impl Put<'_> {
    /// Puts a value without further labels.
    fn put<M: Metric>(&mut self, metric: &'static M, value: impl Into<Option<M::Unit>>) {
        self.out.put_some(metric, &self.gpu.labels, value.into());
    }

    /// Puts a value with further labels.
    fn with<M: Metric, const N: usize>(
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
        use Field as F;
        let bytes = Bytes::new(value);
        let count = Count(value);
        let flag = Flag(value != 0);
        let share = millionths(value);
        let rate = BytesPerSecond::new(count.value());
        let time = Seconds::from_nanos(value);
        match field {
            F::MemoryTotal => self.put(&m::MEMORY_TOTAL, bytes),
            F::MemoryUsed => self.put(&m::MEMORY_USED, bytes),
            F::MemoryFree => self.put(&m::MEMORY_FREE, bytes),
            F::MemoryReserved => self.put(&m::MEMORY_RESERVED, bytes),
            F::Bar1Total => self.put(&m::BAR1_TOTAL, bytes),
            F::Bar1Used => self.put(&m::BAR1_USED, bytes),
            F::Utilization => self.put(&m::UTILIZATION, percent(value)),
            F::MemoryUtilization => self.put(&m::MEMORY_UTILIZATION, percent(value)),
            F::EncoderUtilization => self.put(&m::ENCODER_UTILIZATION, percent(value)),
            F::DecoderUtilization => self.put(&m::DECODER_UTILIZATION, percent(value)),
            F::Temperature => self.put(&m::TEMPERATURE, celsius(value)),
            F::MemoryTemperature => self.put(&m::MEMORY_TEMPERATURE, celsius(value)),
            F::SlowdownTemperature => {
                self.with(&m::TEMPERATURE_THRESHOLD, ["slowdown"], celsius(value));
            }
            F::ShutdownTemperature => {
                self.with(&m::TEMPERATURE_THRESHOLD, ["shutdown"], celsius(value));
            }
            F::Power => self.put(&m::POWER, watts(value)),
            F::PowerLimit => self.put(&m::POWER_LIMIT, watts(value)),
            F::Energy => self.put(&m::ENERGY, Joules::new(count.value() / 1e3)),
            F::ClockGraphics => self.with(&m::CLOCK, ["graphics"], hertz(value)),
            F::ClockSm => self.with(&m::CLOCK, ["sm"], hertz(value)),
            F::ClockMemory => self.with(&m::CLOCK, ["memory"], hertz(value)),
            F::ClockGraphicsMax => self.with(&m::CLOCK_LIMIT, ["graphics"], hertz(value)),
            F::ClockSmMax => self.with(&m::CLOCK_LIMIT, ["sm"], hertz(value)),
            F::ClockMemoryMax => self.with(&m::CLOCK_LIMIT, ["memory"], hertz(value)),
            F::PerformanceState => self.put(&m::PERFORMANCE_STATE, count),
            F::ThrottleReasons => {
                for (bit, reason) in THROTTLE_REASONS {
                    self.with(&m::THROTTLED, [reason], Flag(value & bit != 0));
                }
            }
            F::ThrottledPowerCap => self.with(&m::THROTTLED_TIME, ["power_cap"], time),
            F::ThrottledThermal => self.with(&m::THROTTLED_TIME, ["thermal"], time),
            F::ThrottledSyncBoost => self.with(&m::THROTTLED_TIME, ["sync_boost"], time),
            F::ThrottledBoardLimit => self.with(&m::THROTTLED_TIME, ["board_limit"], time),
            F::ThrottledLowUtilization => self.with(&m::THROTTLED_TIME, ["low_utilization"], time),
            F::ThrottledReliability => self.with(&m::THROTTLED_TIME, ["reliability"], time),
            F::ThrottledSwThermal => self.with(&m::THROTTLED_TIME, ["sw_thermal"], time),
            F::ThrottledHwThermal => self.with(&m::THROTTLED_TIME, ["hw_thermal"], time),
            F::ThrottledHwPowerBrake => self.with(&m::THROTTLED_TIME, ["hw_power_brake"], time),
            F::EccMode => self.put(&m::ECC_ENABLED, flag),
            F::EccCorrectedVolatile => self.with(&m::ECC_ERRORS, ["corrected", "volatile"], count),
            F::EccUncorrectedVolatile => self.with(&m::ECC_ERRORS, ["uncorrected", "volatile"], count),
            F::EccCorrectedAggregate => self.with(&m::ECC_ERRORS, ["corrected", "aggregate"], count),
            F::EccUncorrectedAggregate => self.with(&m::ECC_ERRORS, ["uncorrected", "aggregate"], count),
            F::RemappedCorrectable => self.with(&m::REMAPPED_ROWS, ["correctable"], count),
            F::RemappedUncorrectable => self.with(&m::REMAPPED_ROWS, ["uncorrectable"], count),
            F::RemapPending => self.put(&m::REMAP_PENDING, flag),
            F::RemapFailure => self.put(&m::REMAP_FAILURE, flag),
            F::RetiredPending => self.put(&m::RETIREMENT_PENDING, flag),
            F::PcieSent => self.put(&m::PCIE_SENT, Bytes::new(self.gpu.pcie_sent.total())),
            F::PcieReceived => self.put(&m::PCIE_RECEIVED, Bytes::new(self.gpu.pcie_received.total())),
            F::PcieReplays => self.put(&m::PCIE_REPLAYS, count),
            F::PcieGeneration => self.with(&m::PCIE_GENERATION, ["current"], count),
            F::PcieWidth => self.with(&m::PCIE_WIDTH, ["current"], count),
            F::PcieGenerationMax => self.with(&m::PCIE_GENERATION, ["maximum"], count),
            F::PcieWidthMax => self.with(&m::PCIE_WIDTH, ["maximum"], count),
            F::NvlinkActive => self.put(&m::NVLINK_ACTIVE, count),
            F::NvlinkSent => self.with(&m::NVLINK_SENT, ["data"], Bytes::from_kib(value)),
            F::NvlinkReceived => self.with(&m::NVLINK_RECEIVED, ["data"], Bytes::from_kib(value)),
            F::NvlinkRawSent => self.with(&m::NVLINK_SENT, ["raw"], Bytes::from_kib(value)),
            F::NvlinkRawReceived => self.with(&m::NVLINK_RECEIVED, ["raw"], Bytes::from_kib(value)),
            F::NvlinkCrcFlit => self.with(&m::NVLINK_ERRORS, ["crc_flit"], count),
            F::NvlinkCrcData => self.with(&m::NVLINK_ERRORS, ["crc_data"], count),
            F::NvlinkReplay => self.with(&m::NVLINK_ERRORS, ["replay"], count),
            F::NvlinkRecovery => self.with(&m::NVLINK_ERRORS, ["recovery"], count),
            F::MigMode => self.put(&m::MIG_ENABLED, flag),
            F::EngineActivity => self.put(&m::ENGINE_ACTIVITY, share),
            F::SmActivity => self.put(&m::SM_ACTIVITY, share),
            F::SmOccupancy => self.put(&m::SM_OCCUPANCY, share),
            F::TensorActivity => self.with(&m::PIPE_ACTIVITY, ["tensor"], share),
            F::Fp64Activity => self.with(&m::PIPE_ACTIVITY, ["fp64"], share),
            F::Fp32Activity => self.with(&m::PIPE_ACTIVITY, ["fp32"], share),
            F::Fp16Activity => self.with(&m::PIPE_ACTIVITY, ["fp16"], share),
            F::IntegerActivity => self.with(&m::PIPE_ACTIVITY, ["integer"], share),
            F::DramActivity => self.put(&m::DRAM_ACTIVITY, share),
            F::PcieSentRate => self.with(&m::PCIE_RATE, ["sent"], rate),
            F::PcieReceivedRate => self.with(&m::PCIE_RATE, ["received"], rate),
            F::NvlinkSentRate => self.with(&m::NVLINK_RATE, ["sent"], rate),
            F::NvlinkReceivedRate => self.with(&m::NVLINK_RATE, ["received"], rate),
            F::RetiredSingleBit => self.with(&m::RETIRED_PAGES, ["single_bit"], count),
            F::RetiredDoubleBit => self.with(&m::RETIRED_PAGES, ["double_bit"], count),
            F::RemapBanksMax => self.with(&m::REMAP_BANKS, ["max"], count),
            F::RemapBanksHigh => self.with(&m::REMAP_BANKS, ["high"], count),
            F::RemapBanksPartial => self.with(&m::REMAP_BANKS, ["partial"], count),
            F::RemapBanksLow => self.with(&m::REMAP_BANKS, ["low"], count),
            F::RemapBanksNone => self.with(&m::REMAP_BANKS, ["none"], count),
            F::VirtualizationMode => {
                let place = usize::try_from(value).ok();
                if let Some(mode) = place.and_then(|place| VIRTUALIZATION_MODES.get(place)) {
                    self.with(&m::VIRTUALIZATION, [mode], Flag(true));
                }
            }
            F::ConfidentialCompute => self.put(&m::CONFIDENTIAL, flag),
            F::ProtectedMemory => self.with(&m::CONFIDENTIAL_MEMORY, ["protected"], Bytes::from_kib(value)),
            F::UnprotectedMemory => {
                self.with(&m::CONFIDENTIAL_MEMORY, ["unprotected"], Bytes::from_kib(value))
            }
            // A MIG instance has it, no GPU.
            F::Multiprocessors => {}
            // These fields have no number.
            F::Processes | F::ProcessUtilization | F::MigInstances | F::Xids | F::Gpm | F::NvlinkLinks => {}
        }
    }
}

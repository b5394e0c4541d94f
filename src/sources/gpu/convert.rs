//! Converts a GPU's sample and identity to points.

use super::field::Field;
use super::metrics as m;
use super::parts;
use super::protocol::{Process, Reason, Refusal, Sample};
use super::state::Gpu;
use crate::model::desc::{Counter, Gauge};
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
    /// Puts a gauge without further labels.
    fn gauge<U: Unit>(&mut self, metric: &'static Gauge<U>, value: impl Into<Option<U>>) {
        self.out.put_some(metric, &self.gpu.labels, value.into());
    }

    /// Puts a counter without further labels.
    fn counter<U: Unit>(&mut self, metric: &'static Counter<U>, value: impl Into<Option<U>>) {
        self.out.put_some(metric, &self.gpu.labels, value.into());
    }

    /// Puts a gauge with further labels.
    fn more<U: Unit, const N: usize>(
        &mut self,
        metric: &'static Gauge<U>,
        labels: [Label; N],
        value: impl Into<Option<U>>,
    ) {
        let all: Vec<Label> = self.gpu.labels.iter().cloned().chain(labels).collect();
        self.out.put_some(metric, &all, value.into());
    }

    /// Puts a counter with further labels.
    fn count<U: Unit, const N: usize>(
        &mut self,
        metric: &'static Counter<U>,
        labels: [&str; N],
        value: impl Into<Option<U>>,
    ) {
        let all: Vec<Label> = self.gpu.labels.iter().cloned().chain(labels.map(Label::from)).collect();
        self.out.put_some(metric, &all, value.into());
    }

    fn refusal(&mut self, field: Field, refusal: Refusal) {
        let labels = [field.name().into(), refusal.reason.label().into(), refusal.code.into()];
        self.more(&m::FIELD_STATUS, labels, Flag(true));
    }

    fn clock(&mut self, metric: &'static Gauge<Hertz>, clock: &str, value: u64) {
        self.more(metric, [clock.into()], hertz(value));
    }

    fn pipe(&mut self, pipe: &str, value: u64) {
        self.more(&m::PIPE_ACTIVITY, [pipe.into()], millionths(value));
    }

    fn rate(&mut self, metric: &'static Gauge<BytesPerSecond>, direction: &str, value: u64) {
        self.more(metric, [direction.into()], BytesPerSecond::new(Count(value).value()));
    }

    fn banks(&mut self, spare_rows: &str, value: u64) {
        self.more(&m::REMAP_BANKS, [spare_rows.into()], Count(value));
    }

    fn confidential_memory(&mut self, kind: &str, kib: u64) {
        self.more(&m::CONFIDENTIAL_MEMORY, [kind.into()], Bytes::from_kib(kib));
    }

    fn throttled(&mut self, reason: &str, nanos: u64) {
        self.count(&m::THROTTLED_TIME, [reason], Seconds::from_nanos(nanos));
    }

    fn field(&mut self, field: Field, value: u64) {
        use Field as F;
        let bytes = Bytes::new(value);
        let count = Count(value);
        let flag = Flag(value != 0);
        match field {
            F::MemoryTotal => self.gauge(&m::MEMORY_TOTAL, bytes),
            F::MemoryUsed => self.gauge(&m::MEMORY_USED, bytes),
            F::MemoryFree => self.gauge(&m::MEMORY_FREE, bytes),
            F::MemoryReserved => self.gauge(&m::MEMORY_RESERVED, bytes),
            F::Bar1Total => self.gauge(&m::BAR1_TOTAL, bytes),
            F::Bar1Used => self.gauge(&m::BAR1_USED, bytes),
            F::Utilization => self.gauge(&m::UTILIZATION, percent(value)),
            F::MemoryUtilization => self.gauge(&m::MEMORY_UTILIZATION, percent(value)),
            F::EncoderUtilization => self.gauge(&m::ENCODER_UTILIZATION, percent(value)),
            F::DecoderUtilization => self.gauge(&m::DECODER_UTILIZATION, percent(value)),
            F::Temperature => self.gauge(&m::TEMPERATURE, celsius(value)),
            F::MemoryTemperature => self.gauge(&m::MEMORY_TEMPERATURE, celsius(value)),
            F::SlowdownTemperature => {
                self.more(&m::TEMPERATURE_THRESHOLD, ["slowdown".into()], celsius(value));
            }
            F::ShutdownTemperature => {
                self.more(&m::TEMPERATURE_THRESHOLD, ["shutdown".into()], celsius(value));
            }
            F::Power => self.gauge(&m::POWER, watts(value)),
            F::PowerLimit => self.gauge(&m::POWER_LIMIT, watts(value)),
            F::Energy => self.counter(&m::ENERGY, Joules::new(count.value() / 1e3)),
            F::ClockGraphics => self.clock(&m::CLOCK, "graphics", value),
            F::ClockSm => self.clock(&m::CLOCK, "sm", value),
            F::ClockMemory => self.clock(&m::CLOCK, "memory", value),
            F::ClockGraphicsMax => self.clock(&m::CLOCK_LIMIT, "graphics", value),
            F::ClockSmMax => self.clock(&m::CLOCK_LIMIT, "sm", value),
            F::ClockMemoryMax => self.clock(&m::CLOCK_LIMIT, "memory", value),
            F::PerformanceState => self.gauge(&m::PERFORMANCE_STATE, count),
            F::ThrottleReasons => {
                for (bit, reason) in THROTTLE_REASONS {
                    self.more(&m::THROTTLED, [reason.into()], Flag(value & bit != 0));
                }
            }
            F::ThrottledPowerCap => self.throttled("power_cap", value),
            F::ThrottledThermal => self.throttled("thermal", value),
            F::ThrottledSyncBoost => self.throttled("sync_boost", value),
            F::ThrottledBoardLimit => self.throttled("board_limit", value),
            F::ThrottledLowUtilization => self.throttled("low_utilization", value),
            F::ThrottledReliability => self.throttled("reliability", value),
            F::ThrottledSwThermal => self.throttled("sw_thermal", value),
            F::ThrottledHwThermal => self.throttled("hw_thermal", value),
            F::ThrottledHwPowerBrake => self.throttled("hw_power_brake", value),
            F::EccMode => self.gauge(&m::ECC_ENABLED, flag),
            F::EccCorrectedVolatile => self.count(&m::ECC_ERRORS, ["corrected", "volatile"], count),
            F::EccUncorrectedVolatile => self.count(&m::ECC_ERRORS, ["uncorrected", "volatile"], count),
            F::EccCorrectedAggregate => self.count(&m::ECC_ERRORS, ["corrected", "aggregate"], count),
            F::EccUncorrectedAggregate => self.count(&m::ECC_ERRORS, ["uncorrected", "aggregate"], count),
            F::RemappedCorrectable => self.more(&m::REMAPPED_ROWS, ["correctable".into()], count),
            F::RemappedUncorrectable => self.more(&m::REMAPPED_ROWS, ["uncorrectable".into()], count),
            F::RemapPending => self.gauge(&m::REMAP_PENDING, flag),
            F::RemapFailure => self.gauge(&m::REMAP_FAILURE, flag),
            F::RetiredPending => self.gauge(&m::RETIREMENT_PENDING, flag),
            F::PcieSent => self.counter(&m::PCIE_SENT, Bytes::new(self.gpu.pcie_sent.total())),
            F::PcieReceived => self.counter(&m::PCIE_RECEIVED, Bytes::new(self.gpu.pcie_received.total())),
            F::PcieReplays => self.counter(&m::PCIE_REPLAYS, count),
            F::PcieGeneration => self.more(&m::PCIE_GENERATION, ["current".into()], count),
            F::PcieWidth => self.more(&m::PCIE_WIDTH, ["current".into()], count),
            F::PcieGenerationMax => self.more(&m::PCIE_GENERATION, ["maximum".into()], count),
            F::PcieWidthMax => self.more(&m::PCIE_WIDTH, ["maximum".into()], count),
            F::NvlinkActive => self.gauge(&m::NVLINK_ACTIVE, count),
            F::NvlinkSent => self.count(&m::NVLINK_SENT, ["data"], Bytes::from_kib(value)),
            F::NvlinkReceived => self.count(&m::NVLINK_RECEIVED, ["data"], Bytes::from_kib(value)),
            F::NvlinkRawSent => self.count(&m::NVLINK_SENT, ["raw"], Bytes::from_kib(value)),
            F::NvlinkRawReceived => self.count(&m::NVLINK_RECEIVED, ["raw"], Bytes::from_kib(value)),
            F::NvlinkCrcFlit => self.count(&m::NVLINK_ERRORS, ["crc_flit"], count),
            F::NvlinkCrcData => self.count(&m::NVLINK_ERRORS, ["crc_data"], count),
            F::NvlinkReplay => self.count(&m::NVLINK_ERRORS, ["replay"], count),
            F::NvlinkRecovery => self.count(&m::NVLINK_ERRORS, ["recovery"], count),
            F::MigMode => self.gauge(&m::MIG_ENABLED, flag),
            F::EngineActivity => self.gauge(&m::ENGINE_ACTIVITY, millionths(value)),
            F::SmActivity => self.gauge(&m::SM_ACTIVITY, millionths(value)),
            F::SmOccupancy => self.gauge(&m::SM_OCCUPANCY, millionths(value)),
            F::TensorActivity => self.pipe("tensor", value),
            F::Fp64Activity => self.pipe("fp64", value),
            F::Fp32Activity => self.pipe("fp32", value),
            F::Fp16Activity => self.pipe("fp16", value),
            F::IntegerActivity => self.pipe("integer", value),
            F::DramActivity => self.gauge(&m::DRAM_ACTIVITY, millionths(value)),
            F::PcieSentRate => self.rate(&m::PCIE_RATE, "sent", value),
            F::PcieReceivedRate => self.rate(&m::PCIE_RATE, "received", value),
            F::NvlinkSentRate => self.rate(&m::NVLINK_RATE, "sent", value),
            F::NvlinkReceivedRate => self.rate(&m::NVLINK_RATE, "received", value),
            F::RetiredSingleBit => self.more(&m::RETIRED_PAGES, ["single_bit".into()], count),
            F::RetiredDoubleBit => self.more(&m::RETIRED_PAGES, ["double_bit".into()], count),
            F::RemapBanksMax => self.banks("max", value),
            F::RemapBanksHigh => self.banks("high", value),
            F::RemapBanksPartial => self.banks("partial", value),
            F::RemapBanksLow => self.banks("low", value),
            F::RemapBanksNone => self.banks("none", value),
            F::VirtualizationMode => {
                let place = usize::try_from(value).ok();
                if let Some(mode) = place.and_then(|place| VIRTUALIZATION_MODES.get(place)) {
                    self.more(&m::VIRTUALIZATION, [(*mode).into()], Flag(true));
                }
            }
            F::ConfidentialCompute => self.gauge(&m::CONFIDENTIAL, flag),
            F::ProtectedMemory => self.confidential_memory("protected", value),
            F::UnprotectedMemory => self.confidential_memory("unprotected", value),
            // A MIG instance has it, no GPU.
            F::Multiprocessors => {}
            // These fields have no number.
            F::Processes | F::ProcessUtilization | F::MigInstances | F::Xids | F::Gpm | F::NvlinkLinks => {}
        }
    }
}

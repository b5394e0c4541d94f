//! One sweep over everything a GPU tells.

use nvml_wrapper::Device;
use nvml_wrapper::FieldIdScheme;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::{problem, raw};
use crate::sources::gpu::field::Field;
use crate::sources::gpu::options::Options;
use crate::sources::gpu::protocol::{Instance, Memory, Process, Reason, Refusal, Sample};

/// What changes slowly is read once in so many sweeps.
const SLOW_EVERY: u64 = 5;

/// NVML has at most this many links (nvml.h, `NVML_NVLINK_MAX_LINKS`).
const MOST_LINKS: u32 = 18;

/// Attempts to fetch a list of processes that keeps growing between count and fetch.
const ATTEMPTS: usize = 4;

/// A node cannot have more MIG instances on one GPU than this.
const MOST_INSTANCES: u32 = 64;

/// Fields by number, read in one call.
const FIELDS: [(u32, Field); 17] = [
    (82, Field::MemoryTemperature),
    (197, Field::PcieSent),
    (198, Field::PcieReceived),
    (138, Field::NvlinkSent),
    (139, Field::NvlinkReceived),
    (140, Field::NvlinkRawSent),
    (141, Field::NvlinkRawReceived),
    (38, Field::NvlinkCrcFlit),
    (45, Field::NvlinkCrcData),
    (52, Field::NvlinkReplay),
    (59, Field::NvlinkRecovery),
    (74, Field::ThrottledPowerCap),
    (75, Field::ThrottledThermal),
    (76, Field::ThrottledSyncBoost),
    (77, Field::ThrottledBoardLimit),
    (78, Field::ThrottledLowUtilization),
    (79, Field::ThrottledReliability),
];

/// Fields whose number depends on the driver: before 580.82 from 251, since then from 269.
const RENUMBERED: [Field; 3] =
    [Field::ThrottledSwThermal, Field::ThrottledHwThermal, Field::ThrottledHwPowerBrake];

/// Fields by number that change rarely.
const SLOW_FIELDS: [(u32, Field); 4] = [
    (142, Field::RemappedCorrectable),
    (143, Field::RemappedUncorrectable),
    (144, Field::RemapPending),
    (145, Field::RemapFailure),
];

/// What one sweep, or its slow part, found.
#[derive(Clone, Debug, Default)]
struct Found {
    values: Vec<(Field, u64)>,
    refused: Vec<(Field, Refusal)>,
    fatal: Option<Refusal>,
}

impl Found {
    fn take<T: Into<u64>>(&mut self, field: Field, result: Result<T, NvmlError>) {
        match result {
            Ok(value) => self.values.push((field, value.into())),
            Err(error) => self.refuse(field, problem::refusal(error)),
        }
    }

    fn refuse(&mut self, field: Field, refusal: Refusal) {
        if matches!(refusal.reason, Reason::Lost | Reason::Gone) {
            self.fatal.get_or_insert(refusal);
        }
        self.refused.push((field, refusal));
    }

    /// Whether the GPU has stopped answering, which ends a sweep.
    fn check(&self) -> Result<(), Refusal> {
        self.fatal.map_or(Ok(()), Err)
    }
}

/// Sweeps one GPU again and again.
#[derive(Debug)]
pub(super) struct Sweeper {
    processes: bool,
    field_values: bool,
    events: Option<Refusal>,
    sweeps: u64,
    slow: Found,
    instances: Vec<Instance>,
    /// The time of the newest process utilization seen, in microseconds of the driver's clock.
    utilization_seen: Option<u64>,
}

impl Sweeper {
    /// `events` is why XIDs are not told, where they are not.
    pub(super) fn new(options: &Options, events: Option<Refusal>) -> Self {
        Self {
            processes: options.processes,
            field_values: options.field_values,
            events,
            sweeps: 0,
            slow: Found::default(),
            instances: Vec::new(),
            utilization_seen: None,
        }
    }

    /// Asks everything once. A GPU that stopped answering is an error; a value that is refused is not.
    pub(super) fn sweep(&mut self, device: &Device<'_>, gpu: u32) -> Result<Sample, Refusal> {
        let mut found = Found::default();
        self.fast(device, &mut found);
        found.check()?;
        let processes = if self.processes { self.list(device, &mut found) } else { None };
        found.check()?;
        if self.sweeps.is_multiple_of(SLOW_EVERY) {
            self.slow = slow(device, self.field_values);
            self.slow.check()?;
        }
        self.sweeps += 1;
        let partitioned = self.slow.values.contains(&(Field::MigMode, 1));
        self.instances = if partitioned { instances(device, &mut found) } else { Vec::new() };
        found.check()?;
        if let Some(refusal) = self.events {
            found.refused.push((Field::Xids, refusal));
        }
        found.values.extend(&self.slow.values);
        found.refused.extend(&self.slow.refused);
        Ok(Sample {
            gpu,
            values: found.values,
            refused: found.refused,
            processes,
            instances: self.instances.clone(),
        })
    }

    fn fast(&self, device: &Device<'_>, found: &mut Found) {
        match memory(device) {
            Ok(memory) => {
                found.values.extend([
                    (Field::MemoryTotal, memory.total),
                    (Field::MemoryUsed, memory.used),
                    (Field::MemoryFree, memory.free),
                ]);
                found.values.extend(memory.reserved.map(|reserved| (Field::MemoryReserved, reserved)));
            }
            Err(error) => found.refuse(Field::MemoryUsed, problem::refusal(error)),
        }
        match device.utilization_rates() {
            Ok(rates) => found.values.extend([
                (Field::Utilization, rates.gpu.into()),
                (Field::MemoryUtilization, rates.memory.into()),
            ]),
            Err(error) => found.refuse(Field::Utilization, problem::refusal(error)),
        }
        found.take(Field::EncoderUtilization, device.encoder_utilization().map(|info| info.utilization));
        found.take(Field::DecoderUtilization, device.decoder_utilization().map(|info| info.utilization));
        found.take(Field::Temperature, device.temperature(TemperatureSensor::Gpu));
        found.take(Field::Power, device.power_usage());
        found.take(Field::PowerLimit, device.enforced_power_limit());
        found.take(Field::Energy, device.total_energy_consumption());
        found.take(Field::ClockGraphics, device.clock_info(Clock::Graphics));
        found.take(Field::ClockSm, device.clock_info(Clock::SM));
        found.take(Field::ClockMemory, device.clock_info(Clock::Memory));
        found.take(Field::PerformanceState, performance_state(device));
        found.take(Field::ThrottleReasons, device.current_throttle_reasons().map(|reasons| reasons.bits()));
        if self.field_values && found.fatal.is_none() {
            let first = match device.nvml().field_id_scheme() {
                FieldIdScheme::V12 => 251,
                FieldIdScheme::V13Update1 => 269,
            };
            let ids: Vec<_> = FIELDS.into_iter().chain((first..).zip(RENUMBERED)).collect();
            numbered(device, &ids, found);
        }
    }

    /// The processes with their memory and utilization; nothing where the driver does not list them.
    fn list(&mut self, device: &Device<'_>, found: &mut Found) -> Option<Vec<Process>> {
        let mut listed: Vec<(ProcessInfoKey, Option<u64>)> = Vec::new();
        let lists: [List; 3] = [
            |device| device.running_compute_processes(),
            |device| device.running_graphics_processes(),
            |device| device.mps_running_compute_processes(),
        ];
        let mut refused = None;
        let mut answered = false;
        for list in lists {
            match patiently(|| list(device)) {
                Ok(processes) => {
                    answered = true;
                    merge(&mut listed, processes);
                }
                // Before MPS and off the display, a list of its kind need not be.
                Err(error) => {
                    let refusal = problem::refusal(error);
                    if refusal.reason != Reason::Unsupported || refused.is_none() {
                        refused = Some(refusal);
                    }
                }
            }
        }
        if let Some(refusal) = refused
            && (!answered || refusal.reason != Reason::Unsupported)
        {
            found.refuse(Field::Processes, refusal);
            if !answered {
                return None;
            }
        }
        let utilization = self.process_utilization(device, found);
        Some(by_pid(&listed, &utilization))
    }

    /// The newest utilization of each process that ran since the last sweep.
    fn process_utilization(&mut self, device: &Device<'_>, found: &mut Found) -> Vec<(u32, u32)> {
        let samples = match patiently(|| device.process_utilization_stats(self.utilization_seen)) {
            Ok(samples) => samples,
            // NVML says so where no process ran (nvml-wrapper issue 56).
            Err(NvmlError::NotFound) => Vec::new(),
            Err(error) => {
                found.refuse(Field::ProcessUtilization, problem::refusal(error));
                return Vec::new();
            }
        };
        let first = self.utilization_seen.is_none();
        let newest = samples.iter().map(|sample| sample.timestamp).max();
        self.utilization_seen = newest.or(self.utilization_seen).or(Some(0));
        if first {
            // The driver's whole buffer, of processes that may be long gone.
            return Vec::new();
        }
        let mut samples: Vec<_> = samples;
        samples.sort_by_key(|sample| (sample.pid, std::cmp::Reverse(sample.timestamp)));
        samples.dedup_by_key(|sample| sample.pid);
        samples.iter().map(|sample| (sample.pid, sample.sm_util)).collect()
    }
}

/// A call that lists processes of one kind.
type List = fn(&Device<'_>) -> Result<Vec<ProcessInfo>, NvmlError>;

/// A process on one instance: pid, GPU instance, compute instance.
type ProcessInfoKey = (u32, Option<u32>, Option<u32>);

/// Adds a list; a process that is in two lists has the same memory in both.
fn merge(listed: &mut Vec<(ProcessInfoKey, Option<u64>)>, processes: Vec<ProcessInfo>) {
    for process in processes {
        let key = (process.pid, process.gpu_instance_id, process.compute_instance_id);
        let memory = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        match listed.iter_mut().find(|known| known.0 == key) {
            Some(known) => known.1 = known.1.max(memory),
            None => listed.push((key, memory)),
        }
    }
}

/// One entry a pid; its memory is unknown where that on any instance is.
fn by_pid(listed: &[(ProcessInfoKey, Option<u64>)], utilization: &[(u32, u32)]) -> Vec<Process> {
    let mut processes: Vec<Process> = Vec::with_capacity(listed.len());
    for ((pid, ..), memory) in listed {
        match processes.iter_mut().find(|known| known.pid == *pid) {
            Some(known) => {
                known.memory = known.memory.zip(*memory).map(|(one, other)| one.saturating_add(other));
            }
            None => {
                let sm = utilization.iter().find(|sample| sample.0 == *pid).map(|sample| sample.1);
                processes.push(Process { pid: *pid, memory: *memory, sm });
            }
        }
    }
    processes
}

/// Repeats a call in two steps whose answer grew between them.
fn patiently<T>(mut call: impl FnMut() -> Result<T, NvmlError>) -> Result<T, NvmlError> {
    for _ in 1..ATTEMPTS {
        match call() {
            Err(NvmlError::InsufficientSize(_)) => {}
            answer => return answer,
        }
    }
    call()
}

/// Memory, from the older call where the driver has not the newer.
fn memory(device: &Device<'_>) -> Result<Memory, NvmlError> {
    match device.memory_info() {
        Ok(memory) => Ok(Memory {
            total: memory.total,
            used: memory.used,
            free: memory.free,
            reserved: Some(memory.reserved),
        }),
        Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound | NvmlError::NotSupported) => {
            raw::memory_v1(device)
        }
        Err(error) => Err(error),
    }
}

fn performance_state(device: &Device<'_>) -> Result<u64, NvmlError> {
    let state = u64::from(device.performance_state()?.as_c());
    // 32 is nvml.h's "unknown".
    if state <= 15 { Ok(state) } else { Err(NvmlError::NoData) }
}

fn numbered(device: &Device<'_>, ids: &[(u32, Field)], found: &mut Found) {
    let numbers: Vec<u32> = ids.iter().map(|(id, _)| *id).collect();
    match raw::fields(device, &numbers) {
        Ok(values) => {
            for ((_, field), value) in ids.iter().zip(values) {
                match value {
                    // A driver that does not know a field's number calls it an invalid argument.
                    Err(NvmlError::InvalidArg) => found.take::<u64>(*field, Err(NvmlError::NotSupported)),
                    value => found.take(*field, value),
                }
            }
        }
        Err(error) => {
            let refusal = problem::refusal(error);
            ids.iter().for_each(|(_, field)| found.refuse(*field, refusal));
        }
    }
}

/// What changes rarely, or only in steps.
fn slow(device: &Device<'_>, field_values: bool) -> Found {
    let mut found = Found::default();
    match device.bar1_memory_info() {
        Ok(bar1) => found.values.extend([(Field::Bar1Total, bar1.total), (Field::Bar1Used, bar1.used)]),
        Err(error) => found.refuse(Field::Bar1Used, problem::refusal(error)),
    }
    let threshold = |threshold| device.temperature_threshold(threshold);
    found.take(Field::SlowdownTemperature, threshold(TemperatureThreshold::Slowdown));
    found.take(Field::ShutdownTemperature, threshold(TemperatureThreshold::Shutdown));
    found.take(Field::ClockGraphicsMax, device.max_clock_info(Clock::Graphics));
    found.take(Field::ClockSmMax, device.max_clock_info(Clock::SM));
    found.take(Field::ClockMemoryMax, device.max_clock_info(Clock::Memory));
    let ecc = device.is_ecc_enabled().map(|ecc| ecc.currently_enabled);
    let counting = matches!(ecc, Ok(true));
    found.take(Field::EccMode, ecc);
    if counting {
        for (field, error, counter) in [
            (Field::EccCorrectedVolatile, MemoryError::Corrected, EccCounter::Volatile),
            (Field::EccUncorrectedVolatile, MemoryError::Uncorrected, EccCounter::Volatile),
            (Field::EccCorrectedAggregate, MemoryError::Corrected, EccCounter::Aggregate),
            (Field::EccUncorrectedAggregate, MemoryError::Uncorrected, EccCounter::Aggregate),
        ] {
            found.take(field, device.total_ecc_errors(error, counter));
        }
    }
    found.take(Field::RetiredPending, device.are_pages_pending_retired());
    found.take(Field::PcieReplays, device.pcie_replay_counter());
    found.take(Field::PcieGeneration, device.current_pcie_link_gen());
    found.take(Field::PcieWidth, device.current_pcie_link_width());
    found.take(Field::PcieGenerationMax, device.max_pcie_link_gen());
    found.take(Field::PcieWidthMax, device.max_pcie_link_width());
    found.take(Field::NvlinkActive, active_links(device));
    found.take(Field::MigMode, device.mig_mode().map(|mode| mode.current));
    if field_values && found.fatal.is_none() {
        numbered(device, &SLOW_FIELDS, &mut found);
    }
    found
}

/// The number of links that are up; asking for a link that is not there ends the count.
fn active_links(device: &Device<'_>) -> Result<u64, NvmlError> {
    let mut active = 0;
    for link in 0..MOST_LINKS {
        match device.link_wrapper_for(link).is_active() {
            Ok(up) => active += u64::from(up),
            Err(NvmlError::InvalidArg | NvmlError::NotSupported) if link > 0 => break,
            Err(NvmlError::InvalidArg) => return Err(NvmlError::NotSupported),
            Err(error) => return Err(error),
        }
    }
    Ok(active)
}

/// The MIG instances; places without one are passed over.
fn instances(device: &Device<'_>, found: &mut Found) -> Vec<Instance> {
    let count = match device.mig_device_count() {
        Ok(count) => count.min(MOST_INSTANCES),
        Err(error) => {
            found.refuse(Field::MigInstances, problem::refusal(error));
            return Vec::new();
        }
    };
    let mut instances = Vec::new();
    for place in 0..count {
        match device.mig_device_by_index(place) {
            Ok(instance) => {
                let Ok(uuid) = instance.uuid() else { continue };
                let (gi, ci) = raw::instance(&instance);
                instances.push(Instance {
                    uuid,
                    name: instance.name().unwrap_or_default(),
                    gi: gi.ok(),
                    ci: ci.ok(),
                    memory: memory(&instance).ok(),
                });
            }
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
            Err(error) => found.refuse(Field::MigInstances, problem::refusal(error)),
        }
    }
    instances
}

//! Reads all values of a GPU once.

use std::cell::OnceCell;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::error::NvmlError;

use super::calls::call;
use super::gpm::Gpm;
use super::processes::Processes;
use super::{detail, links, problem, raw};
use crate::sources::gpu::field::Field;
use crate::sources::gpu::options::Options;
use crate::sources::gpu::protocol::{Instance, Link, Memory, Reason, Refusal, Sample};

/// Values that change slowly are read once in this many sweeps.
const SLOW_EVERY: u64 = 5;

/// The most MIG instances read on one GPU, more than any GPU has.
const MOST_INSTANCES: u32 = 64;

/// Field values by id, read in one call.
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

/// Errors over all links: fields by id that Hopper and newer GPUs refuse, and those that Ampere and newer ones have.
const LINK_ERRORS: [(u32, Field); 3] =
    [(161, Field::NvlinkReplay), (162, Field::NvlinkRecovery), (163, Field::NvlinkCrcFlit)];

/// Fields whose ids depend on the driver: [`renumbered`].
const RENUMBERED: [Field; 3] =
    [Field::ThrottledSwThermal, Field::ThrottledHwThermal, Field::ThrottledHwPowerBrake];

/// The first id of [`RENUMBERED`]. Before 575, the ids from 251 on are settings of power smoothing (nvml.h of R570).
fn renumbered(driver: &str) -> Option<u32> {
    let mut parts = driver.split('.').map(|part| part.parse::<u32>().ok());
    match (parts.next()??, parts.next()??) {
        (..575, _) => None,
        (..580, _) | (580, ..82) => Some(251),
        _ => Some(269),
    }
}

/// Field values by id that change rarely.
const SLOW_FIELDS: [(u32, Field); 7] = [
    (29, Field::RetiredSingleBit),
    (30, Field::RetiredDoubleBit),
    (142, Field::RemappedCorrectable),
    (143, Field::RemappedUncorrectable),
    (144, Field::RemapPending),
    (145, Field::RemapFailure),
    (230, Field::RecoveryAction),
];

/// The values read in one sweep, or in its slow part.
#[derive(Clone, Debug, Default)]
pub(super) struct SweepResult {
    values: Vec<(Field, u64)>,
    refused: Vec<(Field, Refusal)>,
    fatal: Option<Refusal>,
}

impl SweepResult {
    fn take<T: Into<u64>>(&mut self, field: Field, result: Result<T, NvmlError>) {
        match result {
            Ok(value) => self.values.push((field, value.into())),
            Err(error) => self.refuse(field, problem::refusal(error)),
        }
    }

    /// Reads the value of a field with an NVML call, whose name in nvml.h is `function`.
    fn read<T: Into<u64>>(
        &mut self,
        field: Field,
        function: &'static str,
        run: impl FnOnce() -> Result<T, NvmlError>,
    ) {
        self.take(field, call(function, run));
    }

    pub(super) fn refuse(&mut self, field: Field, refusal: Refusal) {
        if matches!(refusal.reason, Reason::Lost | Reason::Gone) {
            self.fatal.get_or_insert(refusal);
        }
        self.refused.push((field, refusal));
    }

    /// Adds a value that was read, or the reason why there is none.
    pub(super) fn record(&mut self, field: Field, result: Result<u64, Refusal>) {
        match result {
            Ok(value) => self.values.push((field, value)),
            Err(refusal) => self.refuse(field, refusal),
        }
    }

    /// Adds a value that another call refused.
    pub(super) fn replace(&mut self, field: Field, value: u64) {
        self.refused.retain(|(refused, _)| *refused != field);
        self.values.push((field, value));
    }

    /// Adds everything of another result.
    pub(super) fn append(&mut self, other: &Self) {
        self.note_fatal(other);
        other.give(&mut self.values, &mut self.refused);
    }

    /// Ends the sweep if another result does.
    pub(super) fn note_fatal(&mut self, other: &Self) {
        self.fatal = self.fatal.or(other.fatal);
    }

    /// Adds the values and the refusals to these lists.
    pub(super) fn give(&self, values: &mut Vec<(Field, u64)>, refused: &mut Vec<(Field, Refusal)>) {
        values.extend(&self.values);
        refused.extend(&self.refused);
    }

    /// Fails if the GPU stopped responding, which ends a sweep.
    fn check(&self) -> Result<(), Refusal> {
        self.fatal.map_or(Ok(()), Err)
    }
}

/// Reads the values of one GPU repeatedly.
#[derive(Debug)]
pub(super) struct Sweeper {
    field_values: bool,
    sweeps: u64,
    slow: SweepResult,
    processes: Option<Processes>,
    gpm: Option<Gpm>,
    /// The links, where they are requested.
    links: Option<Vec<Link>>,
    renumbered: OnceCell<Option<u32>>,
}

impl Sweeper {
    /// The first sweep reads everything.
    pub(super) fn new(options: &Options) -> Self {
        Self {
            processes: options.processes.then(Processes::default),
            field_values: options.field_values,
            sweeps: 0,
            slow: SweepResult::default(),
            gpm: options.gpm.then(Gpm::default),
            links: options.nvlink_links.then(Vec::new),
            renumbered: OnceCell::new(),
        }
    }

    /// Reads all values once. A GPU that stopped responding is an error; a value that cannot be read is not.
    /// `events` is the reason why XIDs cannot be read, if they cannot.
    pub(super) fn sweep(
        &mut self,
        device: &Device<'static>,
        gpu: u32,
        events: Option<Refusal>,
    ) -> Result<Sample, Refusal> {
        let mut found = SweepResult::default();
        self.fast(device, &mut found);
        found.check()?;
        let processes = self.processes.as_mut().and_then(|processes| processes.list(device, &mut found));
        found.check()?;
        if self.sweeps.is_multiple_of(SLOW_EVERY) {
            self.slow = slow(device, self.field_values, self.links.as_mut());
            self.slow.check()?;
        }
        self.sweeps += 1;
        let partitioned = self.slow.values.contains(&(Field::MigMode, 1));
        let mut instances = if partitioned { instances(device, &mut found) } else { Vec::new() };
        found.check()?;
        match &mut self.gpm {
            Some(gpm) if partitioned => gpm.read_instances(device, &mut instances, &mut found),
            Some(gpm) => gpm.read(device, &mut found),
            None => {}
        }
        found.check()?;
        if let Some(refusal) = events {
            found.refused.push((Field::Xids, refusal));
        }
        found.append(&self.slow);
        Ok(Sample {
            gpu,
            values: found.values,
            refused: found.refused,
            processes,
            instances,
            links: self.links.clone().unwrap_or_default(),
            polled: None,
        })
    }

    fn fast(&self, device: &Device<'_>, found: &mut SweepResult) {
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
        match call("nvmlDeviceGetUtilizationRates", || device.utilization_rates()) {
            Ok(rates) => found.values.extend([
                (Field::Utilization, rates.gpu.into()),
                (Field::MemoryUtilization, rates.memory.into()),
            ]),
            Err(error) => found.refuse(Field::Utilization, problem::refusal(error)),
        }
        found.read(Field::EncoderUtilization, "nvmlDeviceGetEncoderUtilization", || {
            device.encoder_utilization().map(|info| info.utilization)
        });
        found.read(Field::DecoderUtilization, "nvmlDeviceGetDecoderUtilization", || {
            device.decoder_utilization().map(|info| info.utilization)
        });
        found.read(Field::Temperature, "nvmlDeviceGetTemperature", || {
            device.temperature(TemperatureSensor::Gpu)
        });
        found.read(Field::Power, "nvmlDeviceGetPowerUsage", || device.power_usage());
        found.read(Field::PowerLimit, "nvmlDeviceGetEnforcedPowerLimit", || device.enforced_power_limit());
        found
            .read(Field::Energy, "nvmlDeviceGetTotalEnergyConsumption", || device.total_energy_consumption());
        found.read(Field::ClockGraphics, "nvmlDeviceGetClockInfo", || device.clock_info(Clock::Graphics));
        found.read(Field::ClockSm, "nvmlDeviceGetClockInfo", || device.clock_info(Clock::SM));
        found.read(Field::ClockMemory, "nvmlDeviceGetClockInfo", || device.clock_info(Clock::Memory));
        found.take(Field::PerformanceState, performance_state(device));
        found.read(Field::ThrottleReasons, "nvmlDeviceGetCurrentClocksThrottleReasons", || {
            device.current_throttle_reasons().map(|reasons| reasons.bits())
        });
        if self.field_values && found.fatal.is_none() {
            let first = *self.renumbered.get_or_init(|| {
                let driver = call("nvmlSystemGetDriverVersion", || device.nvml().sys_driver_version());
                driver.ok().and_then(|driver| renumbered(&driver))
            });
            if first.is_none() {
                let refusal = problem::refusal(NvmlError::NotSupported);
                RENUMBERED.into_iter().for_each(|field| found.refuse(field, refusal));
            }
            let renumbered = first.into_iter().flat_map(|first| (first..).zip(RENUMBERED));
            let ids: Vec<_> = FIELDS.into_iter().chain(renumbered).collect();
            numbered(device, &ids, found);
            self.link_errors(device, found);
        }
    }

    /// Reads the errors of the links by their newer ids where the older ones are refused.
    fn link_errors(&self, device: &Device<'_>, found: &mut SweepResult) {
        let links = self.slow.values.iter().find(|(field, _)| *field == Field::NvlinkActive);
        let active = links.map_or(0, |(_, links)| *links);
        let mut ids = LINK_ERRORS.to_vec();
        ids.retain(|(_, field)| found.refused.iter().any(|(refused, _)| refused == field));
        if active > 0 && !ids.is_empty() {
            found.refused.retain(|(refused, _)| !ids.iter().any(|(_, field)| field == refused));
            numbered(device, &ids, found);
            if found.refused.iter().any(|(refused, _)| *refused == Field::NvlinkRecovery) {
                links::newest_errors(device, active, found);
            }
        }
    }
}

/// Memory, from the older call if the driver does not support the newer one.
pub(super) fn memory(device: &Device<'_>) -> Result<Memory, NvmlError> {
    match call("nvmlDeviceGetMemoryInfo_v2", || device.memory_info()) {
        Ok(memory) => Ok(Memory {
            total: memory.total,
            used: memory.used,
            free: memory.free,
            reserved: Some(memory.reserved),
        }),
        Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound | NvmlError::NotSupported) => {
            call("nvmlDeviceGetMemoryInfo", || raw::memory_v1(device))
        }
        Err(error) => Err(error),
    }
}

fn performance_state(device: &Device<'_>) -> Result<u64, NvmlError> {
    let state = u64::from(call("nvmlDeviceGetPerformanceState", || device.performance_state())?.as_c());
    // 32 is nvml.h's "unknown".
    if state <= 15 { Ok(state) } else { Err(NvmlError::NoData) }
}

fn numbered(device: &Device<'_>, ids: &[(u32, Field)], found: &mut SweepResult) {
    let scoped: Vec<(u32, u32)> = ids.iter().map(|(id, _)| (*id, raw::whole(*id))).collect();
    match call("nvmlDeviceGetFieldValues", || raw::fields(device, &scoped)) {
        Ok(values) => ids.iter().zip(values).for_each(|((_, field), value)| found.record(*field, value)),
        Err(error) => {
            let refusal = problem::refusal(error);
            ids.iter().for_each(|(_, field)| found.refuse(*field, refusal));
        }
    }
}

/// Values that change rarely, or only in steps.
fn slow(device: &Device<'_>, field_values: bool, links: Option<&mut Vec<Link>>) -> SweepResult {
    let mut found = SweepResult::default();
    match call("nvmlDeviceGetBAR1MemoryInfo", || device.bar1_memory_info()) {
        Ok(bar1) => found.values.extend([(Field::Bar1Total, bar1.total), (Field::Bar1Used, bar1.used)]),
        Err(error) => found.refuse(Field::Bar1Used, problem::refusal(error)),
    }
    let threshold =
        |threshold| call("nvmlDeviceGetTemperatureThreshold", || device.temperature_threshold(threshold));
    found.take(Field::SlowdownTemperature, threshold(TemperatureThreshold::Slowdown));
    found.take(Field::ShutdownTemperature, threshold(TemperatureThreshold::Shutdown));
    found.read(Field::ClockGraphicsMax, "nvmlDeviceGetMaxClockInfo", || {
        device.max_clock_info(Clock::Graphics)
    });
    found.read(Field::ClockSmMax, "nvmlDeviceGetMaxClockInfo", || device.max_clock_info(Clock::SM));
    found.read(Field::ClockMemoryMax, "nvmlDeviceGetMaxClockInfo", || device.max_clock_info(Clock::Memory));
    let ecc = call("nvmlDeviceGetEccMode", || device.is_ecc_enabled()).map(|ecc| ecc.currently_enabled);
    let counting = matches!(ecc, Ok(true));
    found.take(Field::EccMode, ecc);
    if counting {
        for (field, error, counter) in [
            (Field::EccCorrectedVolatile, MemoryError::Corrected, EccCounter::Volatile),
            (Field::EccUncorrectedVolatile, MemoryError::Uncorrected, EccCounter::Volatile),
            (Field::EccCorrectedAggregate, MemoryError::Corrected, EccCounter::Aggregate),
            (Field::EccUncorrectedAggregate, MemoryError::Uncorrected, EccCounter::Aggregate),
        ] {
            found.read(field, "nvmlDeviceGetTotalEccErrors", || device.total_ecc_errors(error, counter));
        }
    }
    found.read(Field::RetiredPending, "nvmlDeviceGetRetiredPagesPendingStatus", || {
        device.are_pages_pending_retired()
    });
    found.read(Field::PcieReplays, "nvmlDeviceGetPcieReplayCounter", || device.pcie_replay_counter());
    found.read(Field::PcieGeneration, "nvmlDeviceGetCurrPcieLinkGeneration", || {
        device.current_pcie_link_gen()
    });
    found.read(Field::PcieWidth, "nvmlDeviceGetCurrPcieLinkWidth", || device.current_pcie_link_width());
    found.read(Field::PcieGenerationMax, "nvmlDeviceGetMaxPcieLinkGeneration", || device.max_pcie_link_gen());
    found.read(Field::PcieWidthMax, "nvmlDeviceGetMaxPcieLinkWidth", || device.max_pcie_link_width());
    match links::states(device) {
        Ok(states) => {
            found.values.push((Field::NvlinkActive, states.iter().map(|link| u64::from(link.active)).sum()));
            if let Some(links) = links {
                *links = states;
                links::counters(device, links, &mut found);
            }
        }
        Err(error) => {
            found.refuse(Field::NvlinkActive, problem::refusal(error));
            // What they were before is not what they are.
            links.into_iter().for_each(Vec::clear);
        }
    }
    detail::read(device, &mut found);
    found.read(Field::MigMode, "nvmlDeviceGetMigMode", || device.mig_mode().map(|mode| mode.current));
    if field_values && found.fatal.is_none() {
        numbered(device, &SLOW_FIELDS, &mut found);
    }
    found
}

/// The MIG instances; indices without one are skipped.
fn instances(device: &Device<'_>, found: &mut SweepResult) -> Vec<Instance> {
    let count = match call("nvmlDeviceGetMaxMigDeviceCount", || device.mig_device_count()) {
        Ok(count) => count.min(MOST_INSTANCES),
        Err(error) => {
            found.refuse(Field::MigInstances, problem::refusal(error));
            return Vec::new();
        }
    };
    let mut instances = Vec::new();
    for place in 0..count {
        match call("nvmlDeviceGetMigDeviceHandleByIndex", || device.mig_device_by_index(place)) {
            Ok(instance) => {
                let Ok(uuid) = call("nvmlDeviceGetUUID", || instance.uuid()) else { continue };
                let (gi, ci) = call("nvmlDeviceGetGpuInstanceId", || raw::instance(&instance));
                instances.push(Instance {
                    uuid,
                    name: call("nvmlDeviceGetName", || instance.name()).unwrap_or_default(),
                    gi: gi.ok(),
                    ci: ci.ok(),
                    memory: memory(&instance).ok(),
                    values: detail::of_instance(&instance),
                    refused: Vec::new(),
                });
            }
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
            Err(error) => found.refuse(Field::MigInstances, problem::refusal(error)),
        }
    }
    instances
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_throttle_times_follow_the_driver() {
        for (driver, first) in [
            ("470.256.02", None),
            ("570.133.20", None),
            ("575.57.08", Some(251)),
            ("580.65.06", Some(251)),
            ("580.82.07", Some(269)),
            ("590.48.01", Some(269)),
            ("615.10", Some(269)),
            ("", None),
        ] {
            assert_eq!(renumbered(driver), first, "{driver}");
        }
    }
}

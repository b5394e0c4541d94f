//! nvmlDeviceGetFieldValues: the metrics that have a number instead of a function.

use super::device_calls;
use super::nvlink::{active_link, link};
use super::reliability::{counting, total};
use crate::abi::{Code, FieldValue, OutArray};
use crate::clock;
use crate::scenario::{Architecture, NvLink};
use crate::target::Target;
use crate::value::Value;

const UNSIGNED_INT: u32 = 1;
const UNSIGNED_LONG_LONG: u32 = 3;

/// The scope for the sum over all links.
const ALL_LINKS: u32 = u32::MAX;

/// A value with its `nvmlValueType_t`.
struct Typed(u32, u64);

fn int(number: u64) -> Result<Typed, Code> {
    Ok(Typed(UNSIGNED_INT, number.min(u32::MAX.into())))
}

fn long(number: u64) -> Result<Typed, Code> {
    Ok(Typed(UNSIGNED_LONG_LONG, number))
}

fn field(target: &Target, id: u32, scope: u32) -> Result<Typed, Code> {
    let gpu = target.physical()?;
    gpu.field_returns.get(&id).map_or(Ok(()), |code| code.check())?;
    if let Some(value) = gpu.fields.get(&id) {
        let value_type = gpu.field_types.get(&id).copied().unwrap_or(UNSIGNED_LONG_LONG);
        return Ok(Typed(value_type, target.at(value)));
    }
    let read = |value: &Option<Value>| target.read::<u64>(value.as_ref());
    let is_newest = gpu.architecture as u32 >= Architecture::Blackwell as u32;
    match id {
        1..=31 => ecc(target, id),
        148..=168 if is_newest => Err(Code::NOT_SUPPORTED),
        208 | 215 | 219 if is_newest => link_health(target, id, scope),
        32..=59 | 96..=119 | 148..=168 => link_health(target, id, scope),
        74..=81 => long(target.read(gpu.violations_ns.of(policy(id)))?),
        82 => int(read(&gpu.memory_temperature)?),
        83 => long(read(&gpu.energy)?),
        84..=91 | 132..=137 => link_shape(target, id),
        94 => int(read(&gpu.pcie.replays)?),
        138 => traffic(target, scope, |nvlink| &nvlink.data_tx_kib),
        139 => traffic(target, scope, |nvlink| &nvlink.data_rx_kib),
        140 => traffic(target, scope, |nvlink| &nvlink.raw_tx_kib),
        141 => traffic(target, scope, |nvlink| &nvlink.raw_rx_kib),
        142..=145 => remapped(target, id),
        185 | 186 => int(read(&gpu.power_milliwatts)?),
        187 => int(read(&gpu.power_min_limit)?),
        188 => int(read(&gpu.power_max_limit)?),
        189 => int(read(&gpu.power_default_limit)?),
        190 | 192 => int(read(&gpu.power_limit)?),
        197 => long(read(&gpu.pcie.tx_bytes)?),
        198 => long(read(&gpu.pcie.rx_bytes)?),
        251..=255 if !target.loaded.scenario.renumbered_fields() => slowdown(target, id - 251),
        269..=273 if target.loaded.scenario.renumbered_fields() => slowdown(target, id - 269),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

/// Ids 74 to 81 are the performance policies, whose enumeration has a gap.
fn policy(id: u32) -> u32 {
    if id < 80 { id - 74 } else { id - 70 }
}

fn slowdown(target: &Target, reason: u32) -> Result<Typed, Code> {
    let violations = &target.physical()?.violations_ns;
    let counter = match reason {
        0 => &violations.sw_thermal,
        1 => &violations.hw_thermal,
        2 => &violations.hw_power_brake,
        _ => &None,
    };
    long(target.read(counter.as_ref())?)
}

fn ecc(target: &Target, id: u32) -> Result<Typed, Code> {
    let gpu = target.physical()?;
    let dram = |error, counter| {
        let value = counting(target)?.dram.of(error, counter);
        long(target.read(value)?)
    };
    let pages = |cause| {
        let retired = gpu.retired_pages.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        int(retired.of(cause).map_or(0, |pages| pages.len() as u64))
    };
    match id {
        1 => int(gpu.ecc.as_ref().ok_or(Code::NOT_SUPPORTED)?.enabled.into()),
        2 => int(gpu.ecc.as_ref().ok_or(Code::NOT_SUPPORTED)?.pending.into()),
        3 => long(total(target, 0, 0)?),
        4 => long(total(target, 1, 0)?),
        5 => long(total(target, 0, 1)?),
        6 => long(total(target, 1, 1)?),
        11 => dram(0, 0),
        12 => dram(1, 0),
        22 => dram(0, 1),
        23 => dram(1, 1),
        29 => pages(0),
        30 => pages(1),
        31 => int(gpu.retired_pages.as_ref().ok_or(Code::NOT_SUPPORTED)?.pending.into()),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

fn remapped(target: &Target, id: u32) -> Result<Typed, Code> {
    let rows = target.physical()?.remapped_rows.as_ref().ok_or(Code::NOT_SUPPORTED)?;
    int(match id {
        142 => target.at(&rows.corrected),
        143 => target.at(&rows.uncorrected),
        144 => rows.pending.into(),
        _ => rows.failure.into(),
    })
}

/// Kibibytes over one link, or over all that are active.
fn traffic(target: &Target, scope: u32, figure: impl Fn(&NvLink) -> &Option<Value>) -> Result<Typed, Code> {
    if scope == ALL_LINKS {
        let nvlink = link(target, 0)?;
        let each: u64 = target.read(figure(nvlink).as_ref())?;
        return long(each.saturating_mul(nvlink.active()));
    }
    let nvlink = active_link(target, scope)?;
    long(target.read(figure(nvlink).as_ref())?)
}

/// Speeds and numbers of links; ids 84 to 89 and 132 to 137 name links 0 to 11.
fn link_shape(target: &Target, id: u32) -> Result<Typed, Code> {
    let number = match id {
        84..=89 => id - 84,
        132..=137 => id - 126,
        _ => 0,
    };
    match id {
        91 => int(link(target, 0)?.links.into()),
        90 => int(target.at(&link(target, 0)?.speed_mbps)),
        _ => int(target.at(&active_link(target, number)?.speed_mbps)),
    }
}

/// The totals of the older ids and the scoped ids 161 to 166.
fn link_health(target: &Target, id: u32, scope: u32) -> Result<Typed, Code> {
    let nvlink = link(target, 0)?;
    let errors = &nvlink.errors;
    let sum = |value: &Value| long(target.at::<u64>(value).saturating_mul(nvlink.active()));
    let each = |value: &Value| {
        if scope == ALL_LINKS {
            sum(value)
        } else {
            active_link(target, scope).and_then(|_| long(target.at(value)))
        }
    };
    // Hopper and newer GPUs refuse the totals.
    let is_older = (target.physical()?.architecture as u32) < Architecture::Hopper as u32;
    match id {
        38 | 45 | 52 | 59 if !is_older => Err(Code::NOT_SUPPORTED),
        38 => sum(&errors.crc_flit),
        45 => sum(&errors.crc_data),
        52 => sum(&errors.replay),
        59 => sum(&errors.recovery),
        160 => sum(&errors.ecc_data),
        161 => each(&errors.replay),
        162 => each(&errors.recovery),
        163 => each(&errors.crc_flit),
        164 => int(target.at(&active_link(target, scope)?.speed_mbps)),
        165 => int(link(target, scope)?.is_active(scope).into()),
        166 => int(active_link(target, scope)?.version.into()),
        208 | 219 => active_link(target, scope).and_then(|_| long(target.at(&errors.crc_flit))),
        215 => active_link(target, scope).and_then(|_| long(target.at(&errors.recovery))),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

device_calls! {
    nvmlDeviceGetFieldValues(target, count: i32, values: OutArray<FieldValue>) {
        let count = usize::try_from(count).map_err(|_| Code::INVALID_ARGUMENT)?;
        if count == 0 || values.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let timestamp = i64::try_from(clock::unix_micros()).unwrap_or(i64::MAX);
        for value in (0..count).map(|index| values.at(index)) {
            let [id, scope] = value.words()?;
            let (code, Typed(value_type, bits)) = match field(&target, id, scope) {
                Ok(typed) => (Code::SUCCESS, typed),
                Err(code) => (code, Typed(UNSIGNED_INT, 0)),
            };
            value.set(FieldValue { field: id, scope, timestamp, latency: 1, value_type, code, bits })?;
        }
        Ok(())
    }
}

//! Clocks, performance states, and why clocks are low.

use super::{device_calls, gauges};
use crate::abi::{Code, Out, Violation};
use crate::clock;

/// The bits nvml.h defines for the reasons.
const EVERY_REASON: u64 = 0x1FF;

gauges! {
    nvmlDeviceGetPerformanceState: u32 = pstate;
    nvmlDeviceGetPowerState: u32 = pstate;
    nvmlDeviceGetCurrentClocksThrottleReasons: u64 = throttle;
    nvmlDeviceGetCurrentClocksEventReasons: u64 = throttle;
}

device_calls! {
    nvmlDeviceGetClockInfo(target, domain: u32, mhz: Out<u32>) {
        in_range(domain)?;
        mhz.set(target.read(target.physical()?.clocks.of(domain))?)
    }

    nvmlDeviceGetMaxClockInfo(target, domain: u32, mhz: Out<u32>) {
        in_range(domain)?;
        mhz.set(target.read(target.physical()?.clocks.max.of(domain))?)
    }

    nvmlDeviceGetClock(target, domain: u32, id: u32, mhz: Out<u32>) {
        in_range(domain)?;
        let clocks = &target.physical()?.clocks;
        match id {
            0 => mhz.set(target.read(clocks.of(domain))?),
            3 => mhz.set(target.read(clocks.max.of(domain))?),
            _ => Err(Code::NOT_SUPPORTED),
        }
    }

    nvmlDeviceGetSupportedClocksThrottleReasons(target, reasons: Out<u64>) {
        target.physical()?;
        reasons.set(EVERY_REASON)
    }

    nvmlDeviceGetSupportedClocksEventReasons(target, reasons: Out<u64>) {
        target.physical()?;
        reasons.set(EVERY_REASON)
    }

    nvmlDeviceGetViolationStatus(target, policy: u32, violation: Out<Violation>) {
        let spent = target.read(target.physical()?.violations_ns.of(policy))?;
        violation.set(Violation { reference: clock::unix_micros(), violation: spent })
    }
}

/// `nvmlClockType_t` ends at 3, video.
fn in_range(domain: u32) -> Result<(), Code> {
    if domain <= 3 { Ok(()) } else { Err(Code::INVALID_ARGUMENT) }
}

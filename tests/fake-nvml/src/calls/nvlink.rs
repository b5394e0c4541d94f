//! NVLink state and errors; its traffic is read through field values.

use super::device_calls;
use crate::abi::{Code, Out};
use crate::scenario::{LinkErrors, NvLink};
use crate::target::Target;
use crate::value::Value;

/// A link to an NVSwitch, in `nvmlIntNvLinkDeviceType_t`.
const TO_SWITCH: u32 = 2;

/// The GPU's links, once the numbered one is known to exist.
pub(super) fn link(target: &Target, link: u32) -> Result<&NvLink, Code> {
    let nvlink = target.physical()?.nvlink.as_ref().ok_or(Code::NOT_SUPPORTED)?;
    if link < nvlink.links { Ok(nvlink) } else { Err(Code::INVALID_ARGUMENT) }
}

/// The GPU's links, once the numbered one is known to be active.
pub(super) fn active_link(target: &Target, number: u32) -> Result<&NvLink, Code> {
    let nvlink = link(target, number)?;
    if nvlink.is_active(number) { Ok(nvlink) } else { Err(Code::NOT_SUPPORTED) }
}

/// The counter of an `nvmlNvLinkErrorCounter_t`.
fn counter(errors: &LinkErrors, kind: u32) -> Option<&Value> {
    [&errors.replay, &errors.recovery, &errors.crc_flit, &errors.crc_data, &errors.ecc_data]
        .get(kind as usize)
        .copied()
}

device_calls! {
    nvmlDeviceGetNvLinkState(target, number: u32, active: Out<u32>) {
        active.set(u32::from(link(&target, number)?.is_active(number)))
    }

    nvmlDeviceGetNvLinkVersion(target, number: u32, version: Out<u32>) {
        version.set(active_link(&target, number)?.version)
    }

    nvmlDeviceGetNvLinkErrorCounter(target, number: u32, kind: u32, count: Out<u64>) {
        let errors = &active_link(&target, number)?.errors;
        count.set(target.at(counter(errors, kind).ok_or(Code::INVALID_ARGUMENT)?))
    }

    nvmlDeviceGetNvLinkRemoteDeviceType(target, number: u32, kind: Out<u32>) {
        active_link(&target, number)?;
        kind.set(TO_SWITCH)
    }
}

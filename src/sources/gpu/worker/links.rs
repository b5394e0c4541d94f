//! The NVLink links of one GPU.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::calls::call;
use super::sweep::SweepResult;
use super::{problem, raw};
use crate::sources::gpu::field::Field;
use crate::sources::gpu::protocol::Link;

/// The most links that NVML supports (nvml.h 13.3, `NVML_NVLINK_MAX_LINKS`; 18 in earlier versions).
const MOST: u32 = 36;

/// Field values whose scope is a link (nvml.h: `NVML_FI_DEV_NVLINK_THROUGHPUT_*` and
/// `NVML_FI_DEV_NVLINK_ERROR_DL_*`).
const COUNTERS: [(u32, Field); 7] = [
    (138, Field::NvlinkSent),
    (139, Field::NvlinkReceived),
    (140, Field::NvlinkRawSent),
    (141, Field::NvlinkRawReceived),
    (161, Field::NvlinkReplay),
    (162, Field::NvlinkRecovery),
    (163, Field::NvlinkCrcFlit),
];

/// What NVLink 5 counts, by link: it has no total of all links (nvml.h: `NVML_FI_DEV_NVLINK_COUNT_*`).
const NEWEST: [(u32, Field); 3] =
    [(208, Field::NvlinkReceiveErrors), (215, Field::NvlinkRecovery), (219, Field::NvlinkEffectiveErrors)];

/// Adds the errors of all links of NVLink 5, where at least the `active` links tell theirs: the sum of fewer would fall and rise.
pub(super) fn newest_errors(device: &Device<'_>, active: u64, found: &mut SweepResult) {
    let scoped: Vec<(u32, u32)> = (0..MOST).flat_map(|link| NEWEST.map(|(id, _)| (id, link))).collect();
    let Ok(values) = call("nvmlDeviceGetFieldValues", || raw::fields(device, &scoped)) else { return };
    for (place, (_, field)) in NEWEST.into_iter().enumerate() {
        let known = values.iter().skip(place).step_by(NEWEST.len()).filter_map(|value| value.ok());
        let (links, sum) =
            known.fold((0, 0_u64), |(links, sum), count| (links + 1, sum.saturating_add(count)));
        if links > 0 && links >= active {
            found.replace(field, sum);
        }
    }
}

/// The state of each link; the first link that does not exist ends the list.
pub(super) fn states(device: &Device<'_>) -> Result<Vec<Link>, NvmlError> {
    let mut links = Vec::new();
    for number in 0..MOST {
        match call("nvmlDeviceGetNvLinkState", || device.link_wrapper_for(number).is_active()) {
            Ok(active) => links.push(Link { number, active, values: Vec::new() }),
            Err(NvmlError::InvalidArg | NvmlError::NotSupported) if number > 0 => break,
            Err(NvmlError::InvalidArg) => return Err(NvmlError::NotSupported),
            Err(error) => return Err(error),
        }
    }
    Ok(links)
}

/// Reads the counters of the links that are up.
pub(super) fn counters(device: &Device<'_>, links: &mut [Link], found: &mut SweepResult) {
    let mut links: Vec<&mut Link> = links.iter_mut().filter(|link| link.active).collect();
    let scoped: Vec<(u32, u32)> =
        links.iter().flat_map(|link| COUNTERS.map(|(id, _)| (id, link.number))).collect();
    if scoped.is_empty() {
        return;
    }
    match call("nvmlDeviceGetFieldValues", || raw::fields(device, &scoped)) {
        Ok(values) => {
            let mut refused = None;
            for (link, values) in links.iter_mut().zip(values.chunks(COUNTERS.len())) {
                for ((_, field), value) in COUNTERS.into_iter().zip(values) {
                    match value {
                        Ok(value) => link.values.push((field, *value)),
                        Err(refusal) => refused = Some(*refusal),
                    }
                }
            }
            if let Some(refusal) = refused {
                found.refuse(Field::NvlinkLinks, refusal);
            }
        }
        Err(error) => found.refuse(Field::NvlinkLinks, problem::refusal(error)),
    }
}

//! Values that change only with a reset of the GPU or with an error of its memory.

use nvml_wrapper::Device;

use super::calls::call;
use super::sweep::SweepResult;
use super::{problem, raw};
use crate::sources::gpu::field::Field;

/// Banks by their spare rows, in the order of `nvmlRowRemapperHistogramValues_t`.
const BANKS: [Field; 5] = [
    Field::RemapBanksMax,
    Field::RemapBanksHigh,
    Field::RemapBanksPartial,
    Field::RemapBanksLow,
    Field::RemapBanksNone,
];

/// Reads the spare rows of the memory, and the states of virtualization and of confidential compute.
pub(super) fn read(device: &Device<'_>, found: &mut SweepResult) {
    match call("nvmlDeviceGetRowRemapperHistogram", || raw::remap_banks(device)) {
        Ok(banks) => {
            BANKS.into_iter().zip(banks).for_each(|(field, banks)| found.record(field, Ok(banks.into())));
        }
        Err(error) => found.refuse(Field::RemapBanksMax, problem::refusal(error)),
    }
    let mode = call("nvmlDeviceGetVirtualizationMode", || device.virtualization_mode());
    found.record(Field::VirtualizationMode, mode.map(|mode| mode.as_c().into()).map_err(problem::refusal));
    let confidential = call("nvmlSystemGetConfComputeState", || raw::confidential_compute(device.nvml()));
    let enabled = matches!(confidential, Ok(true));
    found.record(Field::ConfidentialCompute, confidential.map(u64::from).map_err(problem::refusal));
    if enabled {
        match call("nvmlDeviceGetConfComputeMemSizeInfo", || raw::confidential_memory(device)) {
            Ok([protected, unprotected]) => {
                found.record(Field::ProtectedMemory, Ok(protected));
                found.record(Field::UnprotectedMemory, Ok(unprotected));
            }
            Err(error) => found.refuse(Field::ProtectedMemory, problem::refusal(error)),
        }
    }
}

pub(super) fn of_instance(instance: &Device<'_>) -> Vec<(Field, u64)> {
    let attributes = call("nvmlDeviceGetAttributes_v2", || instance.attributes());
    attributes
        .map(|attributes| (Field::Multiprocessors, attributes.multiprocessor_count.into()))
        .into_iter()
        .collect()
}

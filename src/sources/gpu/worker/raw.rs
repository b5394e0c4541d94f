//! NVML calls that nvml-wrapper lacks or wraps differently from what is needed here.
#![expect(unsafe_code, reason = "NVML is a C library")]

use std::mem;

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as c;

use super::problem;
use crate::sources::gpu::protocol::{Memory, Refusal};

/// The scope that requests the sum over all links (nvml.h, `nvmlFieldValue_t`).
const ALL: u32 = u32::MAX;

/// An event set. It belongs to one thread; one that is dropped exists until NVML is shut down.
#[derive(Debug)]
pub(super) struct EventSet(c::nvmlEventSet_t);

/// Shuts NVML down.
pub(super) fn shutdown(nvml: &Nvml) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlShutdown.as_ref())?;
    // SAFETY: no thread is inside NVML, and none calls it afterwards: the caller waited for all of them to leave it.
    nvml_try(unsafe { call() })
}

/// The scope with which a field value is of the whole GPU.
pub(super) const fn whole(id: u32) -> u32 {
    // Only link fields read the scope; the driver refuses it for none of the others.
    if matches!(id, 138..=141 | 161..=163) { ALL } else { 0 }
}

/// Reads field values by id and scope; each has its own result.
pub(super) fn fields(
    device: &Device<'_>,
    ids: &[(u32, u32)],
) -> Result<Vec<Result<u64, Refusal>>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
    let mut values: Vec<c::nvmlFieldValue_t> = ids
        .iter()
        .map(|(id, scope)| {
            // SAFETY: the structure has only integers and a union of numbers; zeros are valid for all of them.
            let mut value: c::nvmlFieldValue_t = unsafe { mem::zeroed() };
            value.fieldId = *id;
            value.scopeId = *scope;
            value
        })
        .collect();
    let count = i32::try_from(values.len()).map_err(|_| NvmlError::InvalidArg)?;
    // SAFETY: `values` has `count` entries and outlives the call.
    nvml_try(unsafe { call(device.handle(), count, values.as_mut_ptr()) })?;
    Ok(values.iter().map(|value| number(value).map_err(field_refusal)).collect())
}

/// A driver that does not know a field's id returns an invalid argument.
fn field_refusal(error: NvmlError) -> Refusal {
    problem::refusal(if matches!(error, NvmlError::InvalidArg) { NvmlError::NotSupported } else { error })
}

fn number(field: &c::nvmlFieldValue_t) -> Result<u64, NvmlError> {
    nvml_try(field.nvmlReturn)?;
    let value = field.value;
    let signed = |number: i64| u64::try_from(number).map_err(|_| NvmlError::Unknown);
    // SAFETY: the union started as zeros and every member is a number, so any member may be read.
    unsafe {
        match field.valueType {
            c::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => Ok(u64::from(value.uiVal)),
            c::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG => Ok(value.ulVal),
            c::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => Ok(value.ullVal),
            c::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => signed(value.sllVal),
            c::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => signed(i64::from(value.siVal)),
            c::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => Ok(u64::from(value.usVal)),
            other => Err(NvmlError::UnexpectedVariant(other)),
        }
    }
}

/// Memory as drivers before 510 report it: what the driver reserves counts as used.
pub(super) fn memory_v1(device: &Device<'_>) -> Result<Memory, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = c::nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: `memory` outlives the call.
    nvml_try(unsafe { call(device.handle(), &raw mut memory) })?;
    Ok(Memory { total: memory.total, used: memory.used, free: memory.free, reserved: None })
}

/// The GPU instance and the compute instance of a MIG device.
pub(super) fn instance(device: &Device<'_>) -> (Result<u32, NvmlError>, Result<u32, NvmlError>) {
    let lib = device.nvml().lib();
    let query =
        |call: Result<&unsafe extern "C" fn(c::nvmlDevice_t, *mut u32) -> c::nvmlReturn_t, NvmlError>| {
            let mut id = 0;
            // SAFETY: `id` outlives the call.
            nvml_try(unsafe { call?(device.handle(), &raw mut id) }).map(|()| id)
        };
    (
        query(nvml_sym(lib.nvmlDeviceGetGpuInstanceId.as_ref())),
        query(nvml_sym(lib.nvmlDeviceGetComputeInstanceId.as_ref())),
    )
}

/// Banks of memory with all, most, some, one and none of their spare rows.
pub(super) fn remap_banks(device: &Device<'_>) -> Result<[u32; 5], NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetRowRemapperHistogram.as_ref())?;
    let mut banks = c::nvmlRowRemapperHistogramValues_t { max: 0, high: 0, partial: 0, low: 0, none: 0 };
    // SAFETY: `banks` outlives the call.
    nvml_try(unsafe { call(device.handle(), &raw mut banks) })?;
    Ok([banks.max, banks.high, banks.partial, banks.low, banks.none])
}

/// Whether confidential compute is enabled on the machine.
pub(super) fn confidential_compute(nvml: &Nvml) -> Result<bool, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlSystemGetConfComputeState.as_ref())?;
    let mut state = c::nvmlConfComputeSystemState_t { environment: 0, ccFeature: 0, devToolsMode: 0 };
    // SAFETY: `state` outlives the call.
    nvml_try(unsafe { call(&raw mut state) })?;
    Ok(state.ccFeature == c::NVML_CC_SYSTEM_FEATURE_ENABLED)
}

/// Sizes of the protected and of the unprotected memory, in KiB.
pub(super) fn confidential_memory(device: &Device<'_>) -> Result<[u64; 2], NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetConfComputeMemSizeInfo.as_ref())?;
    let mut sizes = c::nvmlConfComputeMemSizeInfo_t { protectedMemSizeKib: 0, unprotectedMemSizeKib: 0 };
    // SAFETY: `sizes` outlives the call.
    nvml_try(unsafe { call(device.handle(), &raw mut sizes) })?;
    Ok([sizes.protectedMemSizeKib, sizes.unprotectedMemSizeKib])
}

/// An empty set of events.
pub(super) fn event_set(nvml: &Nvml) -> Result<EventSet, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlEventSetCreate.as_ref())?;
    let mut set = std::ptr::null_mut();
    // SAFETY: `set` outlives the call.
    nvml_try(unsafe { call(&raw mut set) })?;
    Ok(EventSet(set))
}

/// Adds a GPU's XIDs to a set.
pub(super) fn register(device: &Device<'_>, set: &EventSet) -> Result<(), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceRegisterEvents.as_ref())?;
    // SAFETY: a set that was freed cannot be named.
    nvml_try(unsafe { call(device.handle(), u64::from(c::nvmlEventTypeXidCriticalError), set.0) })
}

/// The XID of a set's next event.
/// The XID of the next event; nothing for that of another GPU.
pub(super) fn wait(device: &Device<'_>, set: &EventSet, timeout_ms: u32) -> Result<Option<u64>, NvmlError> {
    let nvml = device.nvml();
    let call = nvml_sym(nvml.lib().nvmlEventSetWait_v2.as_ref())?;
    // SAFETY: the structure has a pointer and integers; zeros are valid for all of them.
    let mut data: c::nvmlEventData_t = unsafe { mem::zeroed() };
    // SAFETY: a set that was freed cannot be named; `data` outlives the call.
    nvml_try(unsafe { call(set.0, &raw mut data, timeout_ms) })?;
    // SAFETY: as above.
    let own = unsafe { device.handle() };
    let is_other = data.device != own && !data.device.is_null() && {
        // SAFETY: NVML has given the handle just now.
        let named = unsafe { Device::new(data.device, nvml) };
        named.index().is_ok_and(|index| device.index().is_ok_and(|own| own != index))
    };
    Ok((!is_other).then_some(data.eventData))
}

pub(super) fn free(nvml: &Nvml, set: EventSet) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlEventSetFree.as_ref())?;
    // SAFETY: the set belongs to this thread and is never used again.
    nvml_try(unsafe { call(set.0) })
}

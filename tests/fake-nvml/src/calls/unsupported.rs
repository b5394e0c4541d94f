//! Calls of clients that this GPU does not support.

use super::device_calls;
use crate::abi::Code;

/// Exports calls that answer NOT_SUPPORTED. Arguments after the device are not declared: the C
/// calling conventions of Linux leave them to the caller.
macro_rules! unsupported {
    ($($name:ident)*) => {
        device_calls! {$(
            $name(_target) { Err(Code::NOT_SUPPORTED) }
        )*}
    };
}

unsupported! {
    nvmlDeviceGetApplicationsClock
    nvmlDeviceGetDriverModel
    nvmlDeviceGetDriverModel_v2
    nvmlDeviceGetGpuFabricInfo
    nvmlDeviceGetGpuFabricInfoV
    nvmlDeviceGetNumaNodeId
    nvmlDeviceGetSamples
    nvmlDeviceGetSramEccErrorStatus
}

//! Calls of clients that this GPU does not support.

use super::device_calls;
use crate::abi::{Code, GpmSupport, Out, answer};
use crate::target::enter_system;

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
    nvmlGpmSampleGet
}

device_calls! {
    nvmlGpmQueryDeviceSupport(target, support: Out<GpmSupport>) {
        target.physical()?;
        let [version] = support.words()?;
        support.set(GpmSupport { version, supported: 0 })
    }
}

/// Exports GPM calls without a device, which fail alike.
macro_rules! unsupported_system {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of nvml.h; GPM is not supported.")]
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> Code {
            answer(|| {
                enter_system(stringify!($name))?;
                Err(Code::NOT_SUPPORTED)
            })
        }
    )*};
}

unsupported_system! {
    nvmlGpmMetricsGet
    nvmlGpmMigSampleGet
    nvmlGpmSampleAlloc
    nvmlGpmSampleFree
}

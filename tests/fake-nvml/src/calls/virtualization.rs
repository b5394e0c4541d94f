//! Virtual GPUs and confidential compute.

use super::{device_calls, system_calls};
use crate::abi::{Code, ConfidentialMemory, ConfidentialState, Out};

/// The production environment (nvml.h, `NVML_CC_SYSTEM_ENVIRONMENT_PROD`).
const PRODUCTION: u32 = 2;

device_calls! {
    nvmlDeviceGetVirtualizationMode(target, mode: Out<u32>) {
        mode.set(target.physical()?.virtualization.ok_or(Code::NOT_SUPPORTED)?)
    }

    nvmlDeviceGetConfComputeMemSizeInfo(target, sizes: Out<ConfidentialMemory>) {
        target.physical()?;
        let state = target.loaded.scenario.confidential_compute.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        sizes.set(ConfidentialMemory { protected: state.protected_kib, unprotected: state.unprotected_kib })
    }
}

system_calls! {
    nvmlSystemGetConfComputeState(loaded, state: Out<ConfidentialState>) {
        let found = loaded.scenario.confidential_compute.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        let environment = if found.enabled { PRODUCTION } else { 0 };
        state.set(ConfidentialState { environment, feature: found.enabled.into(), developer_tools: 0 })
    }
}

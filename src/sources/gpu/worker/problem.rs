//! Converts NVML's errors.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::nvmlReturn_t;

use crate::sources::gpu::protocol::{Reason, Refusal, Status};

/// The reason why a call about a GPU returned no value.
pub(super) fn refusal(error: NvmlError) -> Refusal {
    use NvmlError as E;
    let reason = match &error {
        E::NotSupported | E::FailedToLoadSymbol(_) | E::FunctionNotFound | E::NotFound | E::NoData => {
            Reason::Unsupported
        }
        E::NoPermission => Reason::Permission,
        E::GpuLost | E::ResetRequired => Reason::Lost,
        E::Uninitialized | E::DriverNotLoaded => Reason::Gone,
        E::UnexpectedVariant(_) => Reason::UnknownCode,
        _ => Reason::Error,
    };
    // The wrapper knows no code for a function that the library lacks: NVML_ERROR_FUNCTION_NOT_FOUND.
    let code = if matches!(error, E::FailedToLoadSymbol(_)) { 13 } else { nvmlReturn_t::from(error) };
    Refusal { reason, code }
}

/// The status of NVML after a failed initialization, and the return code if there was one.
pub(super) fn status(error: NvmlError) -> (Status, Option<u32>) {
    use NvmlError as E;
    let status = match &error {
        E::LibloadingError(_) | E::LibraryNotFound => Status::LibraryAbsent,
        E::DriverNotLoaded => Status::DriverNotLoaded,
        E::NoPermission => Status::NoPermission,
        E::LibRmVersionMismatch => Status::VersionMismatch,
        _ => Status::UnknownError,
    };
    let from_nvml = !matches!(error, E::LibloadingError(_) | E::FailedToLoadSymbol(_));
    (status, from_nvml.then(|| nvmlReturn_t::from(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_return_code_has_a_reason() {
        let shown: Vec<_> = [1, 2, 3, 4, 6, 8, 10, 15, 16, 18, 25, 27, 999, 4242]
            .map(|code| format!("{code}:{}", refusal(NvmlError::from(code)).reason.label()))
            .into();
        expect_test::expect![[
            "1:gone 2:error 3:unsupported 4:permission 6:unsupported 8:error 10:error 15:lost 16:lost 18:error 25:unknown_code 27:unknown_code 999:error 4242:unknown_code"
        ]]
        .assert_eq(&shown.join(" "));
        assert_eq!(refusal(NvmlError::from(4242)).code, 4242);
        assert_eq!(refusal(NvmlError::FailedToLoadSymbol(String::new())).code, 13);
    }

    #[test]
    fn a_failed_start_has_a_status() {
        assert_eq!(status(NvmlError::from(9)), (Status::DriverNotLoaded, Some(9)));
        assert_eq!(status(NvmlError::from(4)), (Status::NoPermission, Some(4)));
        assert_eq!(status(NvmlError::from(18)), (Status::VersionMismatch, Some(18)));
        assert_eq!(status(NvmlError::from(77)), (Status::UnknownError, Some(77)));
        assert_eq!(status(NvmlError::FailedToLoadSymbol(String::new())), (Status::UnknownError, None));
    }
}

//! `nvmlReturn_t`: the numbers, their scenario names, and nvmlErrorString's texts.

use std::ffi::CStr;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// An `nvmlReturn_t`; any number is allowed, because real drivers return unlisted ones too.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

macro_rules! codes {
    ($($constant:ident = $number:literal, $name:literal, $text:literal;)*) => {
        impl Code {
            $(#[allow(dead_code, reason = "the table is nvml.h's; not every code has a caller")]
            pub(crate) const $constant: Self = Self($number);)*
        }

        /// Number, scenario name and error string of every code of nvml.h.
        const TABLE: &[(u32, &str, &CStr)] = &[$(($number, $name, $text),)*];
    };
}

codes! {
    SUCCESS = 0, "success", c"Success";
    UNINITIALIZED = 1, "uninitialized", c"Uninitialized";
    INVALID_ARGUMENT = 2, "invalid_argument", c"Invalid Argument";
    NOT_SUPPORTED = 3, "not_supported", c"Not Supported";
    NO_PERMISSION = 4, "no_permission", c"Insufficient Permissions";
    ALREADY_INITIALIZED = 5, "already_initialized", c"Already Initialized";
    NOT_FOUND = 6, "not_found", c"Not Found";
    INSUFFICIENT_SIZE = 7, "insufficient_size", c"Insufficient Size";
    INSUFFICIENT_POWER = 8, "insufficient_power", c"Insufficient External Power";
    DRIVER_NOT_LOADED = 9, "driver_not_loaded", c"Driver Not Loaded";
    TIMEOUT = 10, "timeout", c"Timeout";
    IRQ_ISSUE = 11, "irq_issue", c"Interrupt Request Issue";
    LIBRARY_NOT_FOUND = 12, "library_not_found", c"NVML Shared Library Not Found";
    FUNCTION_NOT_FOUND = 13, "function_not_found", c"Function Not Found";
    CORRUPTED_INFOROM = 14, "corrupted_inforom", c"Corrupted infoROM";
    GPU_IS_LOST = 15, "gpu_is_lost", c"GPU is lost";
    RESET_REQUIRED = 16, "reset_required", c"GPU requires reset";
    OPERATING_SYSTEM = 17, "operating_system", c"The operating system has blocked the request";
    LIB_RM_VERSION_MISMATCH = 18, "lib_rm_version_mismatch", c"RM has detected an NVML/RM version mismatch.";
    IN_USE = 19, "in_use", c"In use by another client";
    MEMORY = 20, "memory", c"Insufficient Memory";
    NO_DATA = 21, "no_data", c"No data";
    VGPU_ECC_NOT_SUPPORTED = 22, "vgpu_ecc_not_supported", c"vGPU ECC not supported";
    INSUFFICIENT_RESOURCES = 23, "insufficient_resources", c"Insufficient Resources";
    FREQ_NOT_SUPPORTED = 24, "freq_not_supported", c"Frequency not supported";
    ARGUMENT_VERSION_MISMATCH = 25, "argument_version_mismatch", c"Argument version mismatch";
    DEPRECATED = 26, "deprecated", c"Deprecated";
    NOT_READY = 27, "not_ready", c"Not Ready";
    GPU_NOT_FOUND = 28, "gpu_not_found", c"GPU not found";
    INVALID_STATE = 29, "invalid_state", c"Invalid state";
    RESET_TYPE_NOT_SUPPORTED = 30, "reset_type_not_supported", c"Reset type not supported";
    UNKNOWN = 999, "unknown", c"Unknown Error";
}

impl Code {
    /// The text nvmlErrorString gives; unlisted codes read as unknown, as with the real library.
    pub(crate) fn text(self) -> &'static CStr {
        TABLE.iter().find(|(number, _, _)| *number == self.0).map_or(c"Unknown Error", |(_, _, text)| text)
    }

    /// `Ok` for success, so that a scenario's override can end a call with `?`.
    pub(crate) fn check(self) -> Result<(), Self> {
        if self == Self::SUCCESS { Ok(()) } else { Err(self) }
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrNumber;

        impl Visitor<'_> for NameOrNumber {
            type Value = Code;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an nvmlReturn_t as a number or a name such as \"not_supported\"")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Code, E> {
                u32::try_from(number).map(Code).map_err(|_| E::custom("a return code fits 32 bits"))
            }

            fn visit_str<E: de::Error>(self, wanted: &str) -> Result<Code, E> {
                TABLE
                    .iter()
                    .find(|(_, name, _)| *name == wanted)
                    .map(|(number, _, _)| Code(*number))
                    .ok_or_else(|| E::custom(format!("no return code is named {wanted:?}")))
            }
        }

        deserializer.deserialize_any(NameOrNumber)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Option<Code> {
        serde_json::from_str(json).ok()
    }

    #[test]
    fn names_and_numbers_are_codes() {
        assert_eq!(read("\"driver_not_loaded\""), Some(Code(9)));
        assert_eq!(read("27"), Some(Code::NOT_READY));
        assert_eq!(read("4242"), Some(Code(4242)));
        assert_eq!(read("\"no_such_name\""), None);
        assert_eq!(read("-1"), None);
    }

    #[test]
    fn unlisted_codes_have_a_text() {
        assert_eq!(Code(77).text(), c"Unknown Error");
        assert_eq!(Code::GPU_IS_LOST.text(), c"GPU is lost");
    }
}

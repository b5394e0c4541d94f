//! The messages of the GPU worker: one JSON object per line.
//!
//! The parent trusts nothing blindly: lines have a maximum length, unknown
//! shapes are rejected, and indices and texts are only used as data.

use super::field::Field;
use crate::model::names::named;

/// The longest line that the parent accepts, in bytes; 512 processes on one GPU need about 40 KiB.
pub const LONGEST: usize = 256 * 1024;

/// The most GPUs accepted, more than any node has; a larger count is an invalid message.
pub const MOST_GPUS: u32 = 256;

/// Written by the parent to make the worker shut NVML down and exit.
pub const RELEASE: &[u8] = b"release\n";

/// One message of the worker.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// Heartbeat of the worker's main thread.
    Beat {
        /// NVML calls that were in progress at the last heartbeat and still are.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lasting: Vec<Lasting>,
    },
    State(State),
    Device(Box<Identity>),
    Sample(Box<Sample>),
    /// A GPU could not be sampled.
    Trouble(Trouble),
    /// A GPU reported a critical error.
    Xid(Xid),
}

named! {
    #[derive(Default, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Status {
        /// NVML works.
        Ok = "ok",
        /// The library is not installed or cannot be loaded.
        LibraryAbsent = "library_absent",
        /// The library found no loaded driver.
        DriverNotLoaded = "driver_not_loaded",
        /// The driver denied access.
        NoPermission = "no_permission",
        /// The library and the driver are of different versions.
        VersionMismatch = "version_mismatch",
        /// NVML has not finished initializing.
        #[default]
        Initializing = "initializing",
        /// NVML was shut down on request.
        Released = "released",
        /// The worker cannot be started, crashed, or does not respond.
        WorkerFailed = "worker_failed",
        /// NVML returned an error without a specific status.
        UnknownError = "unknown_error",
    }
}

#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    pub status: Status,
    /// The reason, if the status is not `ok`.
    #[serde(default)]
    pub why: String,
    /// NVML's return code, if a call failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u32>,
    #[serde(default)]
    pub gpus: u32,
    #[serde(default)]
    pub driver: String,
    /// The library's version.
    #[serde(default)]
    pub nvml: String,
    /// The newest CUDA version that the driver supports.
    #[serde(default)]
    pub cuda: String,
}

/// The identity of a GPU; a text that the GPU does not report is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// NVML's index.
    pub gpu: u32,
    pub uuid: String,
    #[serde(default)]
    pub name: String,
    /// The board's serial number.
    #[serde(default)]
    pub serial: String,
    #[serde(default)]
    pub pci: String,
    /// The minor number of the device file (N of /dev/nvidiaN).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    #[serde(default)]
    pub vbios: String,
    #[serde(default)]
    pub architecture: String,
}

/// The values of one GPU in one sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// NVML's index.
    pub gpu: u32,
    pub values: Vec<(Field, u64)>,
    /// The fields without a value, and the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<(Field, Refusal)>,
    /// The processes that use the GPU; absent if the driver does not list them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<Process>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<Instance>,
    /// The NVLink links; empty unless they are requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// The reads of its memory since the sample before; absent if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub polled: Option<Polled>,
}

/// Reads of a GPU's memory between two samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Polled {
    /// Largest value of the memory in use, in bytes, as in [`Field::MemoryUsed`].
    pub used: u64,
    pub reads: u32,
}

/// One process on a GPU, or on one MIG instance of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    pub pid: u32,
    /// Bytes; absent if the driver does not report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Percent of the time in which it ran on the SMs; absent if it did not run, or if the driver does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm: Option<u32>,
    /// Percent of the time in which it used the video encoder; absent as `sm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoder: Option<u32>,
    /// Percent of the time in which it used the video decoder; absent as `sm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decoder: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Its number, from 0.
    pub number: u32,
    /// Whether it is up.
    pub active: bool,
    /// The counters that were read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<(Field, u64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    pub uuid: String,
    /// Its product name, which contains the MIG profile.
    #[serde(default)]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gi: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Other values that were read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<(Field, u64)>,
    /// The fields without a value, and the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<(Field, Refusal)>,
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    pub total: u64,
    /// In use, without reserved memory if that is reported separately.
    pub used: u64,
    pub free: u64,
    /// Reserved by the driver; absent if it is not reported separately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
}

named! {
    /// Why a value is absent.
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Reason {
        /// The GPU or the library does not support it.
        Unsupported = "unsupported",
        /// The driver denied access.
        Permission = "permission",
        /// A return code that nvml.h did not define when this was written.
        UnknownCode = "unknown_code",
        Error = "error",
        /// The GPU fell off the bus or needs a reset.
        Lost = "lost",
        /// The call returned an impossible value.
        Implausible = "implausible",
        /// NVML was shut down or the driver was reloaded while the worker ran.
        Gone = "gone",
    }
}

/// An NVML call that returned no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    pub reason: Reason,
    /// NVML's return code.
    pub code: u32,
}

/// A GPU that could not be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trouble {
    /// NVML's index.
    pub gpu: u32,
    pub refusal: Refusal,
}

/// A critical error of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xid {
    /// NVML's index.
    pub gpu: u32,
    pub xid: u32,
}

/// An NVML call that has been in progress for at least one heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lasting {
    /// NVML's index; absent if NVML is being initialized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The function's name in nvml.h.
    pub function: String,
}

impl Lasting {
    /// Whether the name is plausible for an NVML function: it becomes a label value.
    pub fn is_sound(&self) -> bool {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        self.function.starts_with("nvml") && self.function.len() <= 64 && self.function.bytes().all(letter)
    }
}

impl Line {
    /// A heartbeat without calls in progress.
    pub const fn alive() -> Self {
        Self::Beat { lasting: Vec::new() }
    }

    /// Serializes the message, with a newline.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Parses one line; nothing if it is not a valid message.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_read_back_unchanged() {
        let lines = [
            Line::alive(),
            Line::Beat { lasting: vec![Lasting { gpu: Some(1), function: "nvmlDeviceGetName".into() }] },
            Line::State(State {
                status: Status::Ok,
                gpus: 2,
                driver: "580.95.05".into(),
                ..State::default()
            }),
            Line::Sample(Box::new(Sample {
                gpu: 1,
                values: vec![(Field::MemoryUsed, u64::MAX)],
                refused: vec![(Field::Power, Refusal { reason: Reason::UnknownCode, code: 27 })],
                processes: Some(vec![Process { pid: 7, sm: Some(3), ..Process::default() }]),
                instances: vec![Instance { gi: Some(1), ..Instance::default() }],
                links: vec![Link { number: 3, active: true, values: vec![(Field::NvlinkSent, 1)] }],
                polled: Some(Polled { used: 5, reads: 12 }),
            })),
            Line::Xid(Xid { gpu: 0, xid: 79 }),
        ];
        for line in lines {
            let bytes = line.write();
            assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(Line::read(&bytes), Some(line));
        }
    }

    #[test]
    fn unknown_lines_are_refused() {
        for hostile in [
            &b""[..],
            b"{}",
            b"null",
            b"{\"xid\":{\"gpu\":-1,\"xid\":3}}",
            b"{\"xid\":{\"gpu\":1,\"xid\":3,\"more\":1}}",
            b"{\"xid\":{\"gpu\":4294967296,\"xid\":3}}",
            b"{\"sample\":{\"gpu\":0,\"values\":[[\"no_such_field\",1]]}}",
            b"{\"sample\":{\"gpu\":0,\"values\":[[\"power\",1.5]]}}",
            b"{\"beat\":{}}{\"beat\":{}}",
            b"\xff\xfe",
        ] {
            assert_eq!(Line::read(hostile), None, "{}", String::from_utf8_lossy(hostile));
        }
        assert_eq!(Line::read(&[b'['; 100_000]), None);
    }

    proptest! {
        #[test]
        fn reading_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Line::read(&bytes);
        }
    }
}

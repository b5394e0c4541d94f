//! What the worker writes: one JSON object a line.
//!
//! The parent believes none of it blindly: a line is bounded, an unknown
//! shape is refused, and an index or a text is only ever data.

use super::field::Field;

/// The longest line the parent accepts, in bytes; 512 processes on one GPU need about 40 KiB.
pub const LONGEST: usize = 256 * 1024;

/// More GPUs than any one node has; a larger count is a broken answer.
pub const MOST_GPUS: u32 = 256;

/// What the parent writes to ask the worker to let go of the driver and end.
pub const RELEASE: &[u8] = b"release\n";

/// One line.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// The worker's main thread lives.
    Beat {
        /// The calls of NVML that were under way at the last beat and are still.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lasting: Vec<Lasting>,
    },
    /// How NVML was found.
    State(State),
    /// Who a GPU is.
    Device(Box<Identity>),
    /// What a GPU said.
    Sample(Box<Sample>),
    /// A GPU refused to be sampled.
    Trouble(Trouble),
    /// A GPU reported a critical error.
    Xid(Xid),
}

/// How NVML is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It answers.
    Ok,
    /// The library is not on this host, or cannot be loaded.
    LibraryAbsent,
    /// The library found no driver in the kernel.
    DriverNotLoaded,
    /// The driver refuses us.
    NoPermission,
    /// The library and the driver are of different versions.
    VersionMismatch,
    /// It has not answered yet.
    #[default]
    Initializing,
    /// It was let go of on request.
    Released,
    /// The worker cannot be started, dies, or does not answer.
    WorkerFailed,
    /// It answered with an error that has no status of its own.
    UnknownError,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 9] = [
        Self::Ok,
        Self::LibraryAbsent,
        Self::DriverNotLoaded,
        Self::NoPermission,
        Self::VersionMismatch,
        Self::Initializing,
        Self::Released,
        Self::WorkerFailed,
        Self::UnknownError,
    ];

    /// The value of the `status` label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::LibraryAbsent => "library_absent",
            Self::DriverNotLoaded => "driver_not_loaded",
            Self::NoPermission => "no_permission",
            Self::VersionMismatch => "version_mismatch",
            Self::Initializing => "initializing",
            Self::Released => "released",
            Self::WorkerFailed => "worker_failed",
            Self::UnknownError => "unknown_error",
        }
    }
}

/// How NVML was found.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// How it is.
    pub status: Status,
    /// Why, where it is not `ok`.
    #[serde(default)]
    pub why: String,
    /// What the failed call returned, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u32>,
    /// The number of GPUs.
    #[serde(default)]
    pub gpus: u32,
    /// The driver's version.
    #[serde(default)]
    pub driver: String,
    /// The library's version.
    #[serde(default)]
    pub nvml: String,
    /// The newest CUDA version the driver knows.
    #[serde(default)]
    pub cuda: String,
}

/// Who a GPU is; what it does not tell is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// NVML's index.
    pub gpu: u32,
    /// The UUID.
    pub uuid: String,
    /// The product's name.
    #[serde(default)]
    pub name: String,
    /// The board's serial number.
    #[serde(default)]
    pub serial: String,
    /// The PCI address.
    #[serde(default)]
    pub pci: String,
    /// The N of the device file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// The VBIOS version.
    #[serde(default)]
    pub vbios: String,
    /// The architecture's name.
    #[serde(default)]
    pub architecture: String,
}

/// What a GPU said in one sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// NVML's index.
    pub gpu: u32,
    /// The numbers it told.
    pub values: Vec<(Field, u64)>,
    /// The fields it did not tell, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<(Field, Refusal)>,
    /// The processes on it; absent where it does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<Process>>,
    /// The MIG instances on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<Instance>,
}

/// One process on a GPU, or on one MIG instance of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// The pid.
    pub pid: u32,
    /// Bytes; absent where the driver does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Percent of time it ran on the SMs; absent where it did not, or the driver does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm: Option<u32>,
}

/// One MIG instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// Its UUID.
    pub uuid: String,
    /// Its product name, which has the profile.
    #[serde(default)]
    pub name: String,
    /// The GPU instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gi: Option<u32>,
    /// The compute instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci: Option<u32>,
    /// Its memory: total, used, free, reserved (where it is told apart).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// In use, without the driver's where that is told apart.
    pub used: u64,
    /// Free.
    pub free: u64,
    /// The driver's; absent where it is not told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
}

/// Why a value is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The GPU or the library has no such thing.
    Unsupported,
    /// The driver refuses us.
    Permission,
    /// A return code that nvml.h did not have when this was written.
    UnknownCode,
    /// Any other error.
    Error,
    /// The GPU fell off the bus or needs a reset.
    Lost,
    /// The call returned a value that cannot be.
    Implausible,
    /// NVML was shut down or the driver was reloaded under us.
    Gone,
}

impl Reason {
    /// The value of the `status` label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unsupported => "unsupported",
            Self::Permission => "permission",
            Self::UnknownCode => "unknown_code",
            Self::Error => "error",
            Self::Lost => "lost",
            Self::Implausible => "implausible",
            Self::Gone => "gone",
        }
    }
}

/// A call that gave no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// NVML's return code.
    pub code: u32,
}

/// A GPU that refused to be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trouble {
    /// NVML's index.
    pub gpu: u32,
    /// How it refused.
    pub refusal: Refusal,
}

/// A critical error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xid {
    /// NVML's index.
    pub gpu: u32,
    /// The error's number.
    pub xid: u32,
}

/// A call of NVML that has not returned for a while.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lasting {
    /// NVML's index; absent where NVML is being started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The function's name in nvml.h.
    pub function: String,
}

impl Lasting {
    /// Whether the name can be one of NVML's: it becomes a label.
    pub fn is_sound(&self) -> bool {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        self.function.starts_with("nvml") && self.function.len() <= 64 && self.function.bytes().all(letter)
    }
}

impl Line {
    /// A beat while no call lasts.
    pub const fn alive() -> Self {
        Self::Beat { lasting: Vec::new() }
    }

    /// As bytes, with the line's end.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// From the bytes of one line; nothing where they are not one of ours.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_survive_the_pipe() {
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
                processes: Some(vec![Process { pid: 7, memory: None, sm: Some(3) }]),
                instances: vec![Instance { gi: Some(1), ..Instance::default() }],
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
    fn what_is_not_ours_is_refused() {
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

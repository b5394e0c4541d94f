//! Identities that survive reuse of a number.

/// A process: a pid means nothing without the time it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct ProcessKey {
    /// The pid in the daemon's pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: clock ticks after boot.
    pub start: u64,
}

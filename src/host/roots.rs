//! Paths of the kernel's file systems.

use std::path::PathBuf;

/// The roots below which all sources read; tests replace them by fixtures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// The process file system.
    pub proc: PathBuf,
    /// The device file system.
    pub sys: PathBuf,
    /// The root of the cgroup hierarchies.
    pub cgroup: PathBuf,
    /// The kernel log.
    pub kmsg: PathBuf,
    /// The password file.
    pub passwd: PathBuf,
}

impl Roots {
    /// All roots below one folder: `proc`, `sys`, `cgroup`, `kmsg`, `passwd`.
    pub fn under(folder: &std::path::Path) -> Self {
        Self {
            proc: folder.join("proc"),
            sys: folder.join("sys"),
            cgroup: folder.join("cgroup"),
            kmsg: folder.join("kmsg"),
            passwd: folder.join("passwd"),
        }
    }
}

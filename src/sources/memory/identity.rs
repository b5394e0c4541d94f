//! Names of the host, its kernel and its distribution, which do not change while the daemon runs.

use crate::model::label::Label;

/// Names of the host, its kernel and its distribution; empty if not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub hostname: Label,
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: Label,
    /// The distribution's name and version.
    pub os: Label,
}

impl Identity {
    /// Reads the names of the running system.
    pub fn of_this_host() -> Self {
        let label = |name: Option<String>| Label::from(name.unwrap_or_default());
        Self {
            hostname: label(sysinfo::System::host_name()),
            kernel: label(sysinfo::System::kernel_version()),
            os: label(sysinfo::System::long_os_version()),
        }
    }
}

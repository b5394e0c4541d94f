//! Processes: lists them, keeps their files open, and parses these files.
//!
//! Reading a descriptor of a file below `/proc/PID` returns `ESRCH` once that
//! process has ended, even if another process has its pid.

mod cgroup;
mod io;
mod limit;
mod mounts;
mod raw;
pub mod readers;
mod root;
mod set;
mod stat;
mod status;
mod status_reads;
mod thread;

#[cfg(test)]
pub(crate) mod testing;

pub use cgroup::{Cgroups, cgroups};
pub use io::{Io, io};
pub use limit::{ReadLimits, descriptor_limit, own_limits};
pub use mounts::{TmpfsMount, mount_id, tmpfs_mounts};
pub use root::{Listed, Population, ProcFile, ProcRoot, has_exited};
pub use set::{SetMemory, set_memory};
pub use stat::{Boot, Stat, boot, caught, clock_ticks, page_size, seconds, stat, statm, ticks, unix_seconds};
pub use status::{Credentials, Status, credentials, pss, status, users};
pub use thread::{LivingThread, living_thread};

/// Parses a number in `digits`; nothing if it is invalid or does not fit.
pub fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// The value of a `Name:   value` line, without surrounding spaces.
fn field<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l [u8]> {
    line.strip_prefix(name)?.strip_prefix(b":").map(<[u8]>::trim_ascii)
}

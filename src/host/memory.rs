//! Keeping what is in memory there, so that a shortage cannot make us wait for the disk.

use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// Locks every page once it is touched, now and later.
///
/// Pages that are never touched take nothing: without "on fault" each thread's whole stack would (20 to 70 MiB measured
/// with 8 threads, against 1.6 MiB).
///
/// # Errors
/// The operating system's, and `PermissionDenied` without `CAP_IPC_LOCK` where there is a limit: a later allocation
/// that exceeds it would fail.
pub fn lock() -> io::Result<()> {
    let unlimited = getrlimit(Resource::Memlock).current.is_none();
    let may = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    if !may && !unlimited {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)?)
}

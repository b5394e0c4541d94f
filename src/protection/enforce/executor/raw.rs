//! The call that neither the standard library nor rustix provides.
#![expect(unsafe_code, reason = "process_mrelease(2) has no safe wrapper in any crate we know")]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Releases the memory of a process that is being killed; blocks, because the caller does the work.
///
/// # Errors
/// The operating system's: `EINVAL` where no `SIGKILL` is pending, `ESRCH` where nothing is left to take,
/// `ENOSYS` before Linux 5.15.
pub(super) fn mrelease(process: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: process_mrelease(2) takes a descriptor and flags by value, and neither reads nor writes memory of
    // ours. `process` is open for the whole call, because it is borrowed. Only memory of a process with a pending
    // SIGKILL is taken, which the kernel checks.
    let answer = unsafe { libc::syscall(libc::SYS_process_mrelease, process.as_raw_fd(), 0_u32) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

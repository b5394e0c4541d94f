//! The system call that gives a thread its own descriptor table.
#![expect(unsafe_code, reason = "close_range(2) has no safe wrapper in any crate we know")]

use std::io;

/// The first descriptor that is not a standard one.
const FIRST: libc::c_uint = 3;

/// Gives the calling thread its own descriptor table, with only the standard descriptors.
///
/// Must be called first in a thread that neither uses descriptors of others nor passes any on.
///
/// # Errors
/// Errors of the operating system; nothing has changed then: `ENOSYS` before Linux 5.9, `EPERM` because of a filter.
pub(super) fn leave_descriptors() -> io::Result<()> {
    // SAFETY: close_range(2) takes three numbers and accesses no memory of the process. CLOSE_RANGE_UNSHARE first gives
    // the calling thread a separate table, so that no descriptor of other threads is closed; if that fails, none is
    // closed. This thread owns no descriptor yet: `spawn` calls this before anything else.
    let answer =
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether this kernel has the system call.
#[cfg(test)]
pub(super) fn leave_descriptors_is_known() -> bool {
    // SAFETY: as above; the range is empty, which a kernel with the call refuses as invalid.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, 1, 0, 0) };
    answer < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

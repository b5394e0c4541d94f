//! The call that compares the memory of two processes.
#![expect(unsafe_code, reason = "kcmp(2) has no safe wrapper in any crate we know")]

use std::cmp::Ordering;
use std::io;

/// `KCMP_VM` (include/uapi/linux/kcmp.h).
const VM: libc::c_int = 1;

/// Compares the address spaces of two processes or threads, in an order that stays the same until the host is booted. Equal are those
/// of processes after vfork(2) or clone(2) with `CLONE_VM`.
///
/// # Errors
/// The operating system's: `ENOSYS` for a kernel without the call, `EPERM` without permission to trace both, `ESRCH` where
/// one has ended.
pub(super) fn compare_memory(one: u32, other: u32) -> io::Result<Ordering> {
    // SAFETY: kcmp(2) takes five numbers, of which KCMP_VM does not use the last two, and accesses no memory of this process.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, one, other, VM, 0_u64, 0_u64) };
    match answer {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        _ => Err(io::Error::last_os_error()),
    }
}

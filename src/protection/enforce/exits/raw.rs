//! The call that returns how a process ended that is not a child.
#![expect(unsafe_code, reason = "PIDFD_GET_INFO has no safe wrapper in any crate we know")]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// `struct pidfd_info` in its first version (include/uapi/linux/pidfd.h, Linux 6.13; the exit code since 6.15).
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    /// pid, tgid, ppid, and the user and group ids.
    ids: [u32; 11],
    exit_code: i32,
}

/// `PIDFD_INFO_EXIT`: asked for, and set in the answer where the exit code is there.
const EXIT: u64 = 1 << 3;

/// `_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)`.
const GET_INFO: libc::c_ulong = 0xC000_FF0B | ((size_of::<Info>() as libc::c_ulong) << 16);

/// The status (wait(2)) of a process that was reaped; absent before.
///
/// # Errors
/// The operating system's: `ENOTTY` or `EINVAL` before Linux 6.15.
pub(super) fn status(process: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut info = Info { mask: EXIT, ..Info::default() };
    // SAFETY: the call takes the size from its number, which is made of the size of `Info`, and reads and writes that
    // many bytes at the pointer; `info` is that large, has no padding and only integers, and outlives the call.
    // `process` is open for the whole call, because it is borrowed.
    let answer = unsafe { libc::ioctl(process.as_raw_fd(), GET_INFO, &raw mut info) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((info.mask & EXIT != 0).then_some(info.exit_code))
}

/// The record has the size that the kernel's first version has.
const _: () = assert!(size_of::<Info>() == 64);

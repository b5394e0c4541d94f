//! The call that returns the ids of a process, and how it ended.
#![expect(unsafe_code, reason = "PIDFD_GET_INFO has no safe wrapper in any crate we know")]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// `struct pidfd_info` in its first version (include/uapi/linux/pidfd.h, Linux 6.13; the exit code since 6.15).
#[repr(C)]
#[derive(Default)]
pub(super) struct Info {
    pub(super) mask: u64,
    cgroup: u64,
    /// pid, tgid, ppid; then the real, effective, saved and file system ids, of the user and the group in turn.
    pub(super) ids: [u32; 11],
    pub(super) exit_code: i32,
}

/// `_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)`.
const GET_INFO: libc::c_ulong = 0xC000_FF0B | ((size_of::<Info>() as libc::c_ulong) << 16);

/// What the kernel tells of a process; `mask` asks for more than the ids.
///
/// # Errors
/// The operating system's: `ENOTTY` or `EINVAL` before Linux 6.13; `ESRCH` where the process was reaped, unless its exit
/// status is asked for.
pub(super) fn info(process: BorrowedFd<'_>, mask: u64) -> io::Result<Info> {
    let mut info = Info { mask, ..Info::default() };
    // SAFETY: the call takes the size from its number, which is made of the size of `Info`, and reads and writes that
    // many bytes at the pointer; `info` is that large, has no padding and only integers, and outlives the call.
    // `process` is open for the whole call, because it is borrowed.
    let answer = unsafe { libc::ioctl(process.as_raw_fd(), GET_INFO, &raw mut info) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(info) }
}

/// The record has the size that the kernel's first version has.
const _: () = assert!(size_of::<Info>() == 64);

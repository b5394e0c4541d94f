//! What the kernel tells of a process by its pidfd (`PIDFD_GET_INFO`).

mod raw;

use std::io;
use std::os::fd::BorrowedFd;

/// `PIDFD_INFO_CREDS`: set in the answer where the ids are there.
const CREDS: u64 = 1 << 1;
/// `PIDFD_INFO_EXIT`: asked for, and set in the answer where the exit code is there.
const EXIT: u64 = 1 << 3;

/// The status (wait(2)) of a process that was reaped; absent before.
///
/// # Errors
/// The operating system's: `ENOTTY` or `EINVAL` before Linux 6.15.
pub fn exit_status(process: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let info = raw::info(process, EXIT)?;
    Ok((info.mask & EXIT != 0).then_some(info.exit_code))
}

/// The real, effective and saved user id of a process; absent where the kernel does not tell them (before Linux 6.13), or the
/// process has ended.
///
/// The time that this takes depends on nothing that the process has done. That of `/proc/PID/status` grows with its
/// supplementary groups: 65,536 of them take up to 40 ms.
pub fn users(process: BorrowedFd<'_>) -> Option<[u32; 3]> {
    let info = raw::info(process, CREDS).ok().filter(|info| info.mask & CREDS != 0)?;
    Some([info.ids[3], info.ids[5], info.ids[7]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    #[test]
    fn our_own_users_are_those_of_status_where_the_kernel_tells_them() {
        let own = rustix::process::getpid();
        let pidfd = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).unwrap();
        let Some(users) = users(pidfd.as_fd()) else {
            return crate::skip::skip("this kernel does not tell the ids of a process (before 6.13)");
        };
        let status = std::fs::read("/proc/self/status").unwrap();
        let [real, effective, saved, _] = crate::host::process::credentials(&status).unwrap().users;
        assert_eq!(users, [real, effective, saved]);
    }
}

//! Touches a file for a process of a user: with the user's rights, and as the process sees the path.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{self as rfs, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{self, CapabilitySet, CapabilitySets};

use super::{Refusal, regular};
use crate::host::process::{self, Credentials};
use crate::model::ids::ProcessKey;

/// Opens a folder only to walk on.
const WALK: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Creates a file without following a link at its name, and without blocking on a FIFO.
const TOUCH: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);
/// Why the ids of a user cannot be taken.
const BARRED: &str =
    "the ids of the user cannot be taken: CAP_SETUID and CAP_SETGID are missing (memwarden-touch.conf)";
/// Maximum size of `status`: 65,536 groups with ids of 10 digits are 704 KiB.
const LONGEST: u64 = 1 << 20;

/// Creates a file, or sets its time to now, as the process would.
///
/// `user` is the user that the caller has found permitted. All user ids of the process must be this one, and all its group
/// ids one, before and after its root folder is opened: a process that runs a setuid or setgid program is refused. Only
/// its groups are taken over from it, and no capability is kept, also where the user is root.
///
/// The calling thread takes over these rights for good, so that it must be a thread of its own that ends afterwards. Links
/// are resolved within the root folder of the process: a user can redirect the path only to files that the user can write.
///
/// # Errors
/// A process that has ended; [`Refusal::Identity`]; a path that is no regular file; rights that the process does not
/// have; a kernel without openat2(2) (before Linux 5.6).
pub fn touch_as(proc: &Path, wanted: ProcessKey, user: u32, path: &Path) -> io::Result<()> {
    let folder = rfs::open(proc.join(wanted.pid.to_string()), WALK, Mode::empty())?;
    let rights = rights(&folder, wanted, user)?;
    let root = rfs::openat(&folder, "root", WALK, Mode::empty())?;
    // A program with more rights may have been there meanwhile, and have opened the way to this folder.
    if self::rights(&folder, wanted, user)? != rights {
        return Err(Refusal::Identity.into());
    }
    drop(folder);
    assume(&rights)?;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = match rfs::openat2(&root, path, TOUCH, Mode::from_raw_mode(0o644), within) {
        Ok(file) => File::from(file),
        Err(Errno::LOOP) => return Err(Refusal::Link.into()),
        Err(Errno::NXIO | Errno::ISDIR) => return Err(Refusal::NotRegular.into()),
        Err(error) => return Err(error.into()),
    };
    regular(&file.metadata()?)?;
    let now = Timespec { tv_sec: 0, tv_nsec: rfs::UTIME_NOW };
    Ok(rfs::futimens(&file, &Timestamps { last_access: now, last_modification: now })?)
}

/// The rights of a process, whose folder is open, if all of its ids are those of `user` and of one group.
fn rights(folder: &OwnedFd, wanted: ProcessKey, user: u32) -> io::Result<Credentials> {
    check_start(folder, wanted.start)?;
    let rights = process::credentials(&read(folder, "status", LONGEST)?).ok_or(Errno::PROTO)?;
    if rights.users != [user; 4] || rights.groups != [rights.groups[0]; 4] {
        return Err(Refusal::Identity.into());
    }
    Ok(rights)
}

/// Whether the process whose folder is open started at this time.
pub(super) fn check_start(folder: &OwnedFd, start: u64) -> io::Result<()> {
    let text = read(folder, "stat", LONGEST)?;
    let is_same = process::stat(&text).is_some_and(|stat| stat.start == start);
    if is_same { Ok(()) } else { Err(Errno::SRCH.into()) }
}

/// The first `most` bytes of a file of the process whose folder is open.
pub(super) fn read(folder: &OwnedFd, name: &str, most: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut bytes = Vec::new();
    File::from(rfs::openat(folder, name, flags, Mode::empty())?).take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Gives the calling thread the rights of a user, without any capability.
///
/// Only the effective ids change. Signals and resource limits of a thread apply to its whole process, and are permitted
/// to the user that the real and the saved id name: these stay those of the daemon.
pub(super) fn assume(rights: &Credentials) -> io::Result<()> {
    let ([_, user, ..], [_, group, ..]) = (rights.users, rights.groups);
    if rustix::process::geteuid().as_raw() != user {
        let groups: Vec<Gid> = rights.supplementary.iter().copied().map(Gid::from_raw).collect();
        thread::set_thread_groups(&groups)
            .and_then(|()| thread::set_thread_res_gid(None, Gid::from_raw(group), None))
            .and_then(|()| thread::set_thread_res_uid(None, Uid::from_raw(user), None))
            .map_err(|error| match error {
                Errno::PERM => io::Error::new(io::ErrorKind::PermissionDenied, BARRED),
                error => error.into(),
            })?;
    }
    let none = CapabilitySet::empty();
    Ok(thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )?)
}

//! Touches a file for a process of a user: with the user's rights, and as the process sees the path.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{self as rfs, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread;

use super::{Refusal, regular};
use crate::host::process;
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

/// Creates a file, or sets its time to now, as the process would.
///
/// The calling thread takes over the user and the groups of the process for good, so that it must be a thread of its
/// own that ends afterwards. Links are resolved within the root folder of the process: a user can redirect the path
/// only to files that the user can write.
///
/// # Errors
/// A process that has ended; a path that is no regular file; rights that the process does not have; a kernel without
/// openat2(2) (before Linux 5.6).
pub fn touch_as(proc: &Path, wanted: ProcessKey, path: &Path) -> io::Result<()> {
    let folder = rfs::open(proc.join(wanted.pid.to_string()), WALK, Mode::empty())?;
    let started = process::stat(&read(&folder, "stat")?).is_some_and(|stat| stat.start == wanted.start);
    if !started {
        return Err(Errno::SRCH.into());
    }
    let text = read(&folder, "status")?;
    let [_, user] = process::users(&text).ok_or(Errno::PROTO)?;
    let (group, groups) = process::groups(&text).ok_or(Errno::PROTO)?;
    let root = rfs::openat(&folder, "root", WALK, Mode::empty())?;
    drop(folder);
    become_user(user, group, &groups)?;
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

fn read(folder: &OwnedFd, name: &str) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut bytes = Vec::new();
    File::from(rfs::openat(folder, name, flags, Mode::empty())?).take(64 * 1024).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Gives the calling thread the rights of a user; nothing changes where it has them.
fn become_user(user: u32, group: u32, groups: &[u32]) -> io::Result<()> {
    if rustix::process::geteuid().as_raw() == user {
        return Ok(());
    }
    let gid = |id: u32| Gid::from_raw(id);
    let groups: Vec<Gid> = groups.iter().copied().map(gid).collect();
    thread::set_thread_groups(&groups)?;
    thread::set_thread_res_gid(gid(group), gid(group), gid(group))?;
    let user = Uid::from_raw(user);
    // Without the user id 0 the thread has no capabilities either.
    Ok(thread::set_thread_res_uid(user, user, user)?)
}

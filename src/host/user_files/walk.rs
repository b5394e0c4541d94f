//! From a path to the open folder of its last component.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{self as rfs, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Refusal;

/// Links followed on one way, as many as the kernel follows.
const LINKS: usize = 40;

/// Opens a folder for walking on and nothing else; an automatic mount is made.
const WALK: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Nothing is waited for, and nothing becomes our terminal.
const CALM: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const INSIDE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// What to do with a link that is the last component, in a trusted folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    Followed,
    Kept,
}

/// Where a path leads.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) folder: OwnedFd,
    /// Whether nobody but root and ourselves could have changed anything on the way.
    pub(super) trusted: bool,
    /// One component; `.` for the folder itself.
    pub(super) name: OsString,
}

/// Walks to the folder of a path's last component, which need not be there.
pub(super) fn place(path: &Path, last: Last) -> io::Result<Place> {
    let mut left = components(path);
    let (mut folder, mut trusted) = start(path)?;
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if !trusted {
            return rest(folder, name, left);
        }
        let is_last = left.is_empty();
        if name == ".." {
            folder = rfs::openat(&folder, "..", WALK, Mode::empty())?;
            trusted = is_safe(&folder)?;
            continue;
        }
        if !(is_last && last == Last::Kept) {
            match rfs::readlinkat(&folder, &name, Vec::new()) {
                Ok(target) => {
                    links += 1;
                    if links > LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                    if target.is_absolute() {
                        (folder, trusted) = start(&target)?;
                    }
                    let mut ahead = components(&target);
                    ahead.append(&mut left);
                    left = ahead;
                    continue;
                }
                // It is no link, or not there.
                Err(Errno::INVAL | Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if is_last {
            return Ok(Place { folder, trusted, name });
        }
        folder = rfs::openat(&folder, &name, WALK, Mode::empty())?;
        trusted = is_safe(&folder)?;
    }
    Ok(Place { folder, trusted, name: OsString::from(".") })
}

fn start(path: &Path) -> io::Result<(OwnedFd, bool)> {
    let folder = rfs::open(if path.is_absolute() { "/" } else { "." }, WALK, Mode::empty())?;
    let trusted = is_safe(&folder)?;
    Ok((folder, trusted))
}

fn components(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    named.collect()
}

/// The rest of a way on which others can write.
fn rest(folder: OwnedFd, first: OsString, left: VecDeque<OsString>) -> io::Result<Place> {
    let mut names: Vec<OsString> = std::iter::once(first).chain(left).collect();
    if names.iter().any(|name| name == "..") {
        return Err(Refusal::Up.into());
    }
    let name = names.pop().unwrap_or_else(|| OsString::from("."));
    let folder = if names.is_empty() { folder } else { inside(&folder, &names)? };
    Ok(Place { folder, trusted: false, name })
}

/// A folder below another, without links on the way.
fn inside(folder: &OwnedFd, names: &[OsString]) -> io::Result<OwnedFd> {
    let way: PathBuf = names.iter().collect();
    match rfs::openat2(folder, &way, WALK, Mode::empty(), INSIDE) {
        Ok(found) => return Ok(found),
        Err(Errno::LOOP) => return Err(Refusal::Link.into()),
        // An old kernel, or a filter of system calls that does not know the call. And where the last is no folder, the
        // steps tell whether it is a link.
        Err(Errno::NOSYS | Errno::PERM | Errno::NOTDIR) => {}
        Err(error) => return Err(error.into()),
    }
    by_steps(folder, names)
}

/// The same, one component after the other.
pub(super) fn by_steps(folder: &OwnedFd, names: &[OsString]) -> io::Result<OwnedFd> {
    let mut now = folder.try_clone()?;
    for name in names {
        now = step(&now, name)?;
    }
    Ok(now)
}

/// Opens a folder of a folder; a link is refused.
pub(super) fn step(folder: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    rfs::openat(folder, name, WALK, Mode::empty()).map_err(|error| match error {
        Errno::NOTDIR | Errno::LOOP if entry(folder, name).is_ok_and(|status| status.is_symlink()) => {
            Refusal::Link.into()
        }
        error => error.into(),
    })
}

/// Whether nobody but root and ourselves may change what is in a folder.
pub(super) fn is_safe(folder: impl AsFd) -> io::Result<bool> {
    let status = rfs::fstat(folder)?;
    Ok(is_safe_mode(status.st_uid, status.st_gid, status.st_mode))
}

/// The owner, the group and the mode of a folder; links are followed.
pub(super) fn owned(folder: &Path) -> Option<(u32, u32, u32)> {
    let status = rfs::stat(folder).ok()?;
    Some((status.st_uid, status.st_gid, status.st_mode))
}

/// Whether nobody but root and ourselves may change what is in a folder with this owner, group and mode.
pub(super) fn is_safe_mode(owner: u32, group: u32, mode: u32) -> bool {
    let owned = owner == 0 || owner == rustix::process::geteuid().as_raw();
    // The rights of an access control list are in the group's bits.
    owned && mode & 0o002 == 0 && (mode & 0o020 == 0 || group == 0)
}

/// What an entry of a folder is; of a link, the link.
pub(super) fn entry(folder: &OwnedFd, name: &OsStr) -> io::Result<Metadata> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    File::from(rfs::openat(folder, name, flags, Mode::empty())?).metadata()
}

/// Opens an entry of a folder that is not to be created.
pub(super) fn open(folder: &OwnedFd, name: &OsStr, flags: OFlags) -> io::Result<File> {
    create(folder, name, flags, Mode::empty())
}

/// Opens an entry of a folder, with a mode for one that is created.
pub(super) fn create(folder: &OwnedFd, name: &OsStr, flags: OFlags, mode: Mode) -> io::Result<File> {
    let opened = match rfs::openat2(folder, name, flags | CALM, mode, INSIDE) {
        Err(Errno::NOSYS | Errno::PERM) => rfs::openat(folder, name, flags | CALM, mode),
        opened => opened,
    };
    match opened {
        Ok(file) => Ok(file.into()),
        Err(Errno::LOOP) => Err(Refusal::Link.into()),
        // A pipe without a reader, or a socket.
        Err(Errno::NXIO) => Err(Refusal::NotRegular.into()),
        Err(error) => Err(error.into()),
    }
}

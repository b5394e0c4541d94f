//! Resolves a path to the open folder of its last component.

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

/// Most symbolic links followed in one path; the kernel's own limit.
const LINKS: usize = 40;

/// Opens a folder only to walk on; automounts are triggered.
pub(super) const WALK: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Does not block, and does not acquire a controlling terminal.
const CALM: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
pub(super) const INSIDE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Whether to follow a link that is the last component, in a trusted folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    Followed,
    Kept,
}

/// The result of resolving a path.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) folder: OwnedFd,
    /// Whether only root and the calling user could have changed anything on the path.
    pub(super) trusted: bool,
    /// A single component; `.` for the folder itself.
    pub(super) name: OsString,
}

/// Resolves a path to the folder of its last component, which need not exist.
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
                // It is not a link, or does not exist.
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

/// Resolves the rest of a path in which others can write.
fn rest(folder: OwnedFd, first: OsString, left: VecDeque<OsString>) -> io::Result<Place> {
    let mut names: Vec<OsString> = std::iter::once(first).chain(left).collect();
    if names.iter().any(|name| name == "..") {
        return Err(Refusal::Up.into());
    }
    let name = names.pop().unwrap_or_else(|| OsString::from("."));
    let folder = if names.is_empty() { folder } else { inside(&folder, &names)? };
    Ok(Place { folder, trusted: false, name })
}

/// Opens a folder below another, without following links.
fn inside(folder: &OwnedFd, names: &[OsString]) -> io::Result<OwnedFd> {
    let way: PathBuf = names.iter().collect();
    match rfs::openat2(folder, &way, WALK, Mode::empty(), INSIDE) {
        Ok(found) => return Ok(found),
        Err(Errno::LOOP) => return Err(Refusal::Link.into()),
        // An old kernel, or a seccomp filter that does not know the call. And if the last component is not a
        // folder, the steps find out whether it is a link.
        Err(Errno::NOSYS | Errno::PERM | Errno::NOTDIR) => {}
        Err(error) => return Err(error.into()),
    }
    by_steps(folder, names)
}

/// Opens a folder below another, one component at a time.
pub(super) fn by_steps(folder: &OwnedFd, names: &[OsString]) -> io::Result<OwnedFd> {
    let mut now = folder.try_clone()?;
    for name in names {
        now = step(&now, name)?;
    }
    Ok(now)
}

/// Opens a subfolder; a symbolic link is refused.
pub(super) fn step(folder: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    rfs::openat(folder, name, WALK, Mode::empty()).map_err(|error| match error {
        Errno::NOTDIR | Errno::LOOP if entry(folder, name).is_ok_and(|status| status.is_symlink()) => {
            Refusal::Link.into()
        }
        error => error.into(),
    })
}

/// Whether only root and the calling user may change the entries of a folder.
pub(super) fn is_safe(folder: impl AsFd) -> io::Result<bool> {
    let status = rfs::fstat(folder)?;
    Ok(is_safe_mode(status.st_uid, status.st_gid, status.st_mode))
}

/// The owner, group and mode of a folder; links are followed.
pub(super) fn owned(folder: &Path) -> Option<(u32, u32, u32)> {
    let status = rfs::stat(folder).ok()?;
    Some((status.st_uid, status.st_gid, status.st_mode))
}

/// Whether only root and the calling user may change the entries of a folder with this owner, group and mode.
pub(super) fn is_safe_mode(owner: u32, group: u32, mode: u32) -> bool {
    let owned = owner == 0 || owner == rustix::process::geteuid().as_raw();
    // The permissions of an access control list are in the group's bits.
    owned && mode & 0o002 == 0 && (mode & 0o020 == 0 || group == 0)
}

/// Metadata of an entry; symbolic links are not followed.
pub(super) fn entry(folder: &OwnedFd, name: &OsStr) -> io::Result<Metadata> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    File::from(rfs::openat(folder, name, flags, Mode::empty())?).metadata()
}

/// Opens an existing entry of a folder.
pub(super) fn open(folder: &OwnedFd, name: &OsStr, flags: OFlags) -> io::Result<File> {
    create(folder, name, flags, Mode::empty())
}

/// Opens an entry of a folder, which is created with this mode if `flags` request it.
pub(super) fn create(folder: &OwnedFd, name: &OsStr, flags: OFlags, mode: Mode) -> io::Result<File> {
    let opened = match rfs::openat2(folder, name, flags | CALM, mode, INSIDE) {
        Err(Errno::NOSYS | Errno::PERM) => rfs::openat(folder, name, flags | CALM, mode),
        opened => opened,
    };
    match opened {
        Ok(file) => Ok(file.into()),
        Err(Errno::LOOP) => Err(Refusal::Link.into()),
        // A FIFO without a reader, or a socket.
        Err(Errno::NXIO) => Err(Refusal::NotRegular.into()),
        Err(error) => Err(error.into()),
    }
}

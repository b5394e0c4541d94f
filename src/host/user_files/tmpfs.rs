//! Reads how full each tmpfs is that a process sees, and asks no other file system anything.
//!
//! A user can mount what it likes in a mount namespace of its own, at any path and at any time: also FUSE, whose server does
//! not answer. Therefore:
//!
//! - A mount point is opened with `O_PATH` and `RESOLVE_CACHED`, below the root folder of the process: the kernel takes
//!   the path from its cache, where the folders above a mount are always, or refuses it. No link is followed.
//! - Which mount was opened, `/proc/thread-self/fdinfo` tells, without the file system.
//! - `mountinfo` is read after that. While a mount is open, no other one has its id, and its type does not change: what
//!   is listed there as a tmpfs is one.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self as rfs, Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::touch::{check_start, read};
use super::walk::{INSIDE, WALK};
use crate::host::process::{self, TmpfsMount};

/// Opens a folder of `/proc`, or the root folder of a process, only to walk on.
const ENTER: OFlags = WALK.difference(OFlags::NOFOLLOW);
/// Most bytes of `fdinfo`.
const LONGEST_FDINFO: u64 = 4096;

/// A process whose mount namespace is read.
#[derive(Debug)]
pub struct Namespace {
    folder: OwnedFd,
    /// The number of the mount namespace, which is unique among those that exist.
    pub id: u64,
}

/// A tmpfs with a size limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TmpfsLevel {
    pub device: Box<str>,
    pub point: PathBuf,
    /// In bytes.
    pub size: u64,
    pub used: u64,
    /// The bytes of the files in its top folder by user, those with the most first; only where more than [`CROWDED`] of it
    /// are used.
    pub owners: Vec<(u32, u64)>,
}

/// Used percentage from which the owners of the files are determined.
pub const CROWDED: u64 = 80;
/// Most files whose owners are determined, and most owners.
const MOST_FILES: usize = 256;
const MOST_OWNERS: usize = 4;

impl Namespace {
    /// Opens the process that `name` is in `/proc`: a pid or `self`; of a pid, only the process that started then, where
    /// `start` is given.
    ///
    /// # Errors
    /// Errors of the operating system: the process has ended, or may not be inspected.
    pub fn open(proc: &Path, name: &str, start: Option<u64>) -> io::Result<Self> {
        let folder = rfs::open(proc.join(name), ENTER, Mode::empty())?;
        if let Some(start) = start {
            check_start(&folder, start)?;
        }
        let link = rfs::readlinkat(&folder, "ns/mnt", Vec::new())?;
        let id =
            link.to_str().ok().and_then(|link| link.strip_prefix("mnt:[")?.strip_suffix(']')?.parse().ok());
        Ok(Self { folder, id: id.ok_or(Errno::PROTO)? })
    }

    /// The mounts of a tmpfs, from the first `most` bytes of the list of all mounts.
    pub fn mounts(&self, most: u64) -> io::Result<Vec<TmpfsMount>> {
        Ok(process::tmpfs_mounts(&read(&self.folder, "mountinfo", most)?))
    }

    /// How full the tmpfs at these mount points are, and the mounts as [`Namespace::mounts`] lists them now. A point at
    /// which there is none now, or that cannot be opened at once, is left out.
    pub fn levels(
        &self,
        proc: &Path,
        points: &[PathBuf],
        most: u64,
    ) -> io::Result<(Vec<TmpfsLevel>, Vec<TmpfsMount>)> {
        let root = rfs::openat(&self.folder, "root", ENTER, Mode::empty())?;
        let own = rfs::open(proc.join("thread-self"), ENTER, Mode::empty())?;
        let mut open = Vec::new();
        for point in points {
            if let Ok(file) = open_cached(&root, point) {
                let fdinfo = read(&own, &format!("fdinfo/{}", file.as_raw_fd()), LONGEST_FDINFO)?;
                open.extend(process::mount_id(&fdinfo).map(|id| (id, file)));
            }
        }
        let mounts = self.mounts(most)?;
        let mut levels = Vec::new();
        for (id, file) in open {
            let Some(mount) = mounts.iter().find(|mount| mount.id == id) else { continue };
            let status = rfs::fstatfs(&file)?;
            let block = u64::try_from(status.f_bsize).unwrap_or(0);
            let size = status.f_blocks.saturating_mul(block);
            // Without a limit, its size is 0.
            if size > 0 {
                let used = size.saturating_sub(status.f_bfree.saturating_mul(block));
                let is_crowded = used.saturating_mul(100) > size.saturating_mul(CROWDED);
                let owners = if is_crowded { owners(&file).unwrap_or_default() } else { Vec::new() };
                let (device, point) = (mount.device.clone(), mount.point.clone());
                levels.push(TmpfsLevel { device, point, size, used, owners });
            }
        }
        Ok((levels, mounts))
    }
}

/// The owners of the first files in the top folder of a tmpfs, without what is mounted in it.
fn owners(folder: &OwnedFd) -> io::Result<Vec<(u32, u64)>> {
    /// Bytes of a block of stat(2).
    const BLOCK: u64 = 512;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entries = Dir::new(rfs::openat(folder, ".", flags, Mode::empty())?)?;
    let within = INSIDE.union(ResolveFlags::CACHED).union(ResolveFlags::NO_XDEV);
    let entry = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut sums = BTreeMap::<u32, u64>::new();
    for name in entries.flatten().take(MOST_FILES) {
        let Ok(file) = rfs::openat2(folder, name.file_name(), entry, Mode::empty(), within) else { continue };
        let status = rfs::fstat(&file)?;
        let sum = sums.entry(status.st_uid).or_default();
        *sum = sum.saturating_add(u64::try_from(status.st_blocks).unwrap_or(0).saturating_mul(BLOCK));
    }
    let mut owners: Vec<(u32, u64)> = sums.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
    owners.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    owners.truncate(MOST_OWNERS);
    Ok(owners)
}

/// Whether mount points can be opened without asking a file system.
///
/// # Errors
/// `Unsupported` before Linux 5.12, and where a filter denies openat2(2).
pub fn check_support() -> io::Result<()> {
    let root = rfs::open("/", WALK, Mode::empty())?;
    let opened = open_cached(&root, Path::new("/"));
    opened.map(drop).map_err(|error| {
        let why = format!("openat2(2) with RESOLVE_CACHED is required (Linux 5.12): {error}");
        io::Error::new(io::ErrorKind::Unsupported, why)
    })
}

/// Opens a folder below `root`, if the kernel knows it without asking a file system.
fn open_cached(root: &OwnedFd, point: &Path) -> Result<OwnedFd, Errno> {
    let inside = point.strip_prefix("/").unwrap_or(point);
    let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
    rfs::openat2(root, inside, WALK, Mode::empty(), INSIDE.union(ResolveFlags::CACHED))
}

//! A cgroup that is acted on as a whole: identified by its inode, listed, killed, frozen.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom, StatVfsMountFlags};
use rustix::io::Errno;

use super::process_status::Short;
use crate::host::cgroup::{Hierarchy, Version};
use crate::model::units::Bytes;
use crate::protection::types::step::{Group, StepError};

/// Maximum depth of descendants that are listed; each takes a descriptor. A user may create any number in a delegated cgroup.
const DEEPEST: usize = 4096;
/// Maximum number of ancestors whose limits are raised.
const ABOVE: usize = 16;
/// One read of `cgroup.procs`: about 1,000 pids.
const PIDS: usize = 8 * 1024;

/// The hierarchy of the targets' cgroups.
#[derive(Debug)]
pub(super) struct Groups {
    hierarchy: Hierarchy,
    /// The mount point of the v1 freezer, a hierarchy of its own.
    freezer: Option<PathBuf>,
}

/// An open cgroup.
#[derive(Debug)]
pub(super) struct OpenGroup {
    folder: OwnedFd,
    version: Version,
}

impl Groups {
    /// The cgroups below `hierarchy`; `cgroup` is where all hierarchies are mounted.
    pub(super) fn new(hierarchy: Hierarchy, cgroup: &Path) -> Self {
        let freezer = (hierarchy.version == Version::V1).then(|| cgroup.join("freezer"));
        Self { freezer: freezer.filter(|path| path.is_dir()), hierarchy }
    }

    /// The version of the cgroup interface.
    pub(super) fn version(&self) -> Version {
        self.hierarchy.version
    }

    /// Opens a cgroup, if path and inode still match.
    ///
    /// # Errors
    /// [`StepError::OtherGroup`] if it was removed or replaced; otherwise errors of the kernel.
    pub(super) fn open(&self, group: &Group) -> Result<OpenGroup, StepError> {
        let other = || StepError::OtherGroup { path: group.path.clone() };
        let folder = below(&self.hierarchy.root, group.path.as_str()).ok_or_else(other)?;
        let folder = open(&folder).map_err(|error| match error {
            Errno::NOENT | Errno::NODEV | Errno::NOTDIR | Errno::LOOP => other(),
            error => failed("open", error),
        })?;
        let inode = rustix::fs::fstat(&folder).map_err(|error| failed("fstat", error))?.st_ino;
        if inode == group.inode {
            Ok(OpenGroup { folder, version: self.hierarchy.version })
        } else {
            Err(other())
        }
    }

    /// Opens the cgroup at a path, whatever its inode.
    ///
    /// # Errors
    /// [`StepError::OtherGroup`] if there is none.
    pub(super) fn at(&self, path: &str) -> Result<OpenGroup, StepError> {
        let folder = below(&self.hierarchy.root, path).and_then(|folder| open(&folder).ok());
        let folder = folder.ok_or_else(|| StepError::OtherGroup { path: path.into() })?;
        Ok(OpenGroup { folder, version: self.hierarchy.version })
    }

    /// The v1 freezer's cgroup of the same path, where there is one.
    pub(super) fn freezer(&self, group: &Group) -> Option<OpenGroup> {
        let folder = below(self.freezer.as_ref()?, group.path.as_str())?;
        Some(OpenGroup { folder: open(&folder).ok()?, version: Version::V1 })
    }
}

impl OpenGroup {
    /// Calls `visit` with every pid of the cgroup and its descendants; some may be repeated. Returns whether these are
    /// all: not where some are in another pid namespace, or too deep.
    ///
    /// # Errors
    /// Errors of the kernel; a descendant that is removed meanwhile is not an error.
    pub(super) fn pids(&self, mut visit: impl FnMut(u32)) -> Result<bool, Errno> {
        walk(&self.folder, DEEPEST, &mut |folder| pids_of(folder, &mut visit))
    }

    /// Kills all its processes at once (`cgroup.kill`, Linux 5.14).
    ///
    /// # Errors
    /// `ENOENT` where the kernel or the hierarchy has no such file.
    pub(super) fn kill(&self) -> Result<(), Errno> {
        self.write("cgroup.kill", b"1")
    }

    /// Freezes or thaws it; the kernel may not have finished when this returns.
    ///
    /// # Errors
    /// `ENOENT` where the hierarchy has no such file.
    pub(super) fn freeze(&self, frozen: bool) -> Result<(), Errno> {
        match (self.version, frozen) {
            (Version::V2, true) => self.write("cgroup.freeze", b"1"),
            (Version::V2, false) => self.write("cgroup.freeze", b"0"),
            (Version::V1, true) => self.write("freezer.state", b"FROZEN"),
            (Version::V1, false) => self.write("freezer.state", b"THAWED"),
        }
    }

    /// Whether its files could be written; nothing is written.
    ///
    /// # Errors
    /// `EROFS` where the cgroup file system is mounted read-only; other errors of the kernel.
    pub(super) fn writable(&self) -> Result<(), Errno> {
        match rustix::fs::fstatvfs(&self.folder)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
            true => Err(Errno::ROFS),
            false => Ok(()),
        }
    }

    pub(super) fn inode(&self) -> Option<u64> {
        rustix::fs::fstat(&self.folder).ok().map(|status| status.st_ino)
    }

    /// Its memory limit in bytes; absent where it has none.
    ///
    /// # Errors
    /// Errors of the kernel; `ENOENT`, without a memory controller, is no limit.
    pub(super) fn limit(&self) -> Result<Option<u64>, Errno> {
        match self.number(self.limits().0) {
            Err(Errno::NOENT) => Ok(None),
            limit => limit,
        }
    }

    /// Raises a memory limit that is below `to`; another one stays. Its limit of throttling (v2 `memory.high`) rises by the same
    /// amount, unless the kernel would then reclaim memory before the write returns; the limit with swap (v1
    /// `memory.memsw.limit_in_bytes`) is not left below it.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(super) fn raise(&self, to: Bytes) -> Result<(), Errno> {
        let (limit, beside) = self.limits();
        let Some(from) = self.limit()?.filter(|limit| *limit < to.get()) else { return Ok(()) };
        let beside_now = self.number(beside).ok().flatten();
        let beside_then = match self.version {
            Version::V2 => {
                let used = self.number("memory.current")?.unwrap_or(u64::MAX);
                let then = beside_now.map(|high| high.saturating_add(to.get() - from));
                then.filter(|high| used < *high)
            }
            Version::V1 => beside_now.filter(|with_swap| *with_swap < to.get()).map(|_| to.get()),
        };
        if let Some(then) = beside_then {
            self.write_number(beside, then)?;
        }
        self.write_number(limit, to.get())
    }

    /// The names of the limit, and of the one beside it.
    const fn limits(&self) -> (&'static str, &'static str) {
        match self.version {
            Version::V2 => ("memory.max", "memory.high"),
            Version::V1 => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        }
    }

    /// The number in a file; absent for a word.
    fn number(&self, name: &str) -> Result<Option<u64>, Errno> {
        let mut buffer = [0; 32];
        let length = self.read(name, &mut buffer)?;
        let text = std::str::from_utf8(&buffer[..length]).map_err(|_| Errno::INVAL)?;
        Ok(text.trim().parse().ok())
    }

    fn write_number(&self, name: &str, number: u64) -> Result<(), Errno> {
        self.write(name, Short::of(format_args!("{number}")).bytes())
    }

    /// Whether it and its descendants are empty. Zombies do not count (v2).
    pub(super) fn empty(&self) -> bool {
        let mut buffer = [0; 256];
        if let Ok(length) = self.read("cgroup.events", &mut buffer) {
            return buffer[..length].split(|byte| *byte == b'\n').any(|line| line == b"populated 0");
        }
        let walked = walk(&self.folder, DEEPEST, &mut |folder| {
            let mut nobody = true;
            let all = pids_of(folder, &mut |_| nobody = false)?;
            if nobody && all { Ok(true) } else { Err(Errno::BUSY) }
        });
        // It was removed, which requires that it is empty.
        matches!(walked, Ok(true) | Err(Errno::NODEV | Errno::NOENT))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Errno> {
        #[cfg(test)]
        if let Some(edges) = crate::host::testing::edges() {
            edges.write_group(self.inode().unwrap_or(0), name, bytes)?;
        }
        let name = Short::of(format_args!("{name}"));
        let file =
            rustix::fs::openat(&self.folder, name.bytes(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, bytes).map(drop)
    }

    fn read(&self, name: &str, buffer: &mut [u8]) -> Result<usize, Errno> {
        let file = rustix::fs::openat(&self.folder, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::read(&file, buffer)
    }
}

/// A path and those of its ancestors, without the root.
pub(super) fn upwards(path: &str) -> impl Iterator<Item = &str> {
    fn above<'p>(path: &&'p str) -> Option<&'p str> {
        path.rsplit_once('/').map(|(above, _)| above).filter(|above| !above.is_empty())
    }
    std::iter::successors(Some(path), above).take(ABOVE)
}

/// A failed call that concerns no single process.
pub(super) fn failed(call: &'static str, error: Errno) -> StepError {
    StepError::System { call, pid: 0, errno: error.raw_os_error() }
}

/// The folder of a cgroup; absent for a path that leads out of the hierarchy.
fn below(root: &Path, path: &str) -> Option<PathBuf> {
    let relative = path.strip_prefix('/')?;
    let clean = relative.split('/').all(|part| !matches!(part, "" | "." | ".."));
    clean.then(|| root.join(relative))
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Calls `visit` with a cgroup and its descendants of at most `deepest` generations; returns whether all of them were visited
/// and said so.
fn walk(
    top: &OwnedFd,
    deepest: usize,
    visit: &mut dyn FnMut(&OwnedFd) -> Result<bool, Errno>,
) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut all = visit(top)?;
    // The way down, each with the place in its listing; not the stack of the thread, which a user could make overflow. A
    // separate descriptor for the top, so that the position of the listing is not shared.
    let mut way = Vec::with_capacity(ABOVE);
    way.push((rustix::fs::openat(top, ".", flags, Mode::empty())?, 0));
    let mut room = [MaybeUninit::uninit(); 2048];
    while let Some((folder, place)) = way.last_mut() {
        let child = match next_child(folder, place, &mut room) {
            Err(Errno::NODEV | Errno::NOENT) => None,
            child => child?,
        };
        let Some(child) = child else {
            way.pop();
            continue;
        };
        match visit(&child) {
            // It was removed, which requires that it is empty.
            Err(Errno::NODEV | Errno::NOENT) => continue,
            below => all &= below?,
        }
        if way.len() > deepest {
            all = false;
        } else {
            way.push((child, 0));
        }
    }
    Ok(all)
}

/// Opens the next subfolder after a place in the listing of a folder, and advances the place.
fn next_child(
    folder: &OwnedFd,
    place: &mut u64,
    room: &mut [MaybeUninit<u8>],
) -> Result<Option<OwnedFd>, Errno> {
    rustix::fs::seek(folder, SeekFrom::Start(*place))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut entries = RawDir::new(folder, room);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        *place = entry.next_entry_cookie();
        let name = entry.file_name();
        if entry.file_type() != FileType::Directory || matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match rustix::fs::openat(folder, name, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::NODEV) => {}
            opened => return opened.map(Some),
        }
    }
    Ok(None)
}

/// Calls `visit` with the pids of one cgroup; returns whether these are all.
fn pids_of(folder: &OwnedFd, visit: &mut dyn FnMut(u32)) -> Result<bool, Errno> {
    let file = rustix::fs::openat(folder, "cgroup.procs", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [0; PIDS];
    let (mut number, mut all): (Option<u32>, bool) = (None, true);
    loop {
        let read = match rustix::io::read(&file, &mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(Errno::INTR) => continue,
            // A threaded group: its processes are listed further up (cgroups(7), "Thread mode").
            Err(Errno::OPNOTSUPP) => break,
            Err(error) => return Err(error),
        };
        for byte in &buffer[..read] {
            if byte.is_ascii_digit() {
                let digit = u32::from(byte - b'0');
                number = Some(number.unwrap_or(0).saturating_mul(10).saturating_add(digit));
            } else if let Some(pid) = number.take() {
                // Processes of another pid namespace are written as 0.
                if pid > 0 {
                    visit(pid);
                } else {
                    all = false;
                }
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    fn groups(root: &Path) -> Groups {
        Groups::new(Hierarchy { version: Version::V2, root: root.to_owned() }, root)
    }

    #[test]
    fn a_group_is_the_one_with_the_inode() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        std::fs::create_dir_all(&path).unwrap();
        let inode = std::fs::metadata(&path).unwrap().ino();
        let open = |path: &str, inode| groups(root.path()).open(&Group { path: path.into(), inode });
        assert!(open("/a/b", inode).is_ok());
        for (path, inode) in
            [("/a/b", inode + 1), ("/a/../a/b", inode), ("/c", inode), ("a/b", inode), ("/", 1)]
        {
            let error = open(path, inode).unwrap_err();
            assert_eq!(error, StepError::OtherGroup { path: path.into() }, "{path}");
        }
    }

    #[test]
    fn pids_are_listed_through_the_whole_subtree() {
        let root = tempfile::tempdir().unwrap();
        for (path, pids) in [("a", "1\n22\n0\n"), ("a/b", ""), ("a/b/c", "333\n")] {
            std::fs::create_dir_all(root.path().join(path)).unwrap();
            std::fs::write(root.path().join(path).join("cgroup.procs"), pids).unwrap();
        }
        let long: String = (1..5000).map(|pid| format!("{pid}\n")).collect();
        std::fs::create_dir_all(root.path().join("long")).unwrap();
        std::fs::write(root.path().join("long/cgroup.procs"), long).unwrap();
        let list = |path: &str| {
            let inode = std::fs::metadata(root.path().join(path)).unwrap().ino();
            let group = Group { path: format!("/{path}").into(), inode };
            let group = groups(root.path()).open(&group).unwrap();
            let mut found = Vec::new();
            let all = group.pids(|pid| found.push(pid)).unwrap();
            (found, group.empty(), all)
        };
        assert_eq!(list("a"), (vec![1, 22, 333], false, false), "there is one who cannot be seen from here");
        assert_eq!(list("long"), ((1..5000).collect::<Vec<u32>>(), false, true));
        let deep = vec!["deep"; 100].join("/");
        std::fs::create_dir_all(root.path().join(&deep)).unwrap();
        for (depth, folder) in root.path().join(&deep).ancestors().take(100).enumerate() {
            std::fs::create_dir(folder.join("beside")).unwrap();
            for (name, pid) in [("cgroup.procs", 1000 + depth), ("beside/cgroup.procs", 2000 + depth)] {
                std::fs::write(folder.join(name), format!("{pid}\n")).unwrap();
            }
        }
        let (mut found, _, all) = list("deep");
        found.sort_unstable();
        assert_eq!((found, all), ((1000..1100).chain(2000..2100).collect(), true));
        let top = open(&root.path().join("deep")).unwrap();
        for (deepest, complete) in [(1, false), (99, false), (100, true)] {
            assert_eq!(walk(&top, deepest, &mut |_| Ok(true)), Ok(complete), "{deepest}");
        }
    }
}

//! Location and version of the memory controller's cgroup hierarchy.
//!
//! Paths are relative to the mount as the daemon sees it: in a container or a
//! cgroup namespace, `/` is the topmost visible cgroup.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::host::fs::{read_at_start, read_text};
use crate::model::names::named;

named! {
    /// The two interfaces of the memory controller.
    pub enum Version {
        /// A separate hierarchy (`memory.usage_in_bytes`).
        V1 = "v1",
        /// The unified hierarchy (`memory.current`).
        V2 = "v2",
    }
}

impl Version {
    /// The file with the usage of a cgroup.
    pub const fn usage_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.usage_in_bytes",
            Self::V2 => "memory.current",
        }
    }
}

/// The hierarchy that the memory controller belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its interface.
    pub version: Version,
    /// Its topmost visible cgroup.
    pub root: PathBuf,
}

/// Whether the hierarchies with the memory controller and the freezer can be written; absent where there is none.
pub fn writable(root: &Path) -> Option<bool> {
    let hierarchy = memory_hierarchy(root).ok()?.ok()?;
    let freezer =
        (hierarchy.version == Version::V1).then(|| root.join("freezer")).filter(|path| path.is_dir());
    let read_only = |path: PathBuf| {
        Some(rustix::fs::statvfs(&path).ok()?.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
    };
    let read_only: Option<Vec<bool>> = [hierarchy.root].into_iter().chain(freezer).map(read_only).collect();
    Some(!read_only?.contains(&true))
}

/// Finds the memory controller below the root of the cgroup file systems.
///
/// Tried in this order: v2 mounted there, v1 in its folder `memory`, v2 in its folder
/// `unified` (hybrid), and v1 mounted there alone. `Ok(Err(why))` means that the host
/// has no memory controller.
///
/// # Errors
/// An error of the operating system for a file that exists and cannot be read, with its path.
pub fn memory_hierarchy(root: &Path) -> Result<Result<Hierarchy, String>, (PathBuf, io::Error)> {
    let mut unified_without = None;
    let places = [
        (Version::V2, root.to_path_buf()),
        (Version::V1, root.join("memory")),
        (Version::V2, root.join("unified")),
        (Version::V1, root.to_path_buf()),
    ];
    for (version, place) in places {
        let found = match version {
            Version::V1 => exists(place.join(version.usage_file()))?,
            Version::V2 => match controllers(place.join("cgroup.controllers"))? {
                Some(listed) if listed.split_ascii_whitespace().any(|name| name == "memory") => true,
                Some(listed) => {
                    unified_without = Some((place.clone(), listed.trim().to_owned()));
                    false
                }
                None => false,
            },
        };
        if found {
            return Ok(Ok(Hierarchy { version, root: place }));
        }
    }
    Ok(Err(match unified_without {
        Some((place, listed)) => {
            format!("no memory controller in {} (it has: {listed})", place.display())
        }
        None => format!("no memory controller under {}", root.display()),
    }))
}

/// Opens a file for reading, without following a symbolic link and without blocking on a FIFO.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Reads a whole cgroup file, with a single `pread` if the buffer is large enough.
///
/// The kernel writes each of these files as one record, which is never truncated by
/// a buffer into which it fits; a second read to find the end would cost a third
/// of the time for most of them.
///
/// # Errors
/// Errors of the operating system, or `InvalidData` for a file that is far too long.
pub fn read(file: &File, buffer: &mut Vec<u8>) -> io::Result<()> {
    /// A `memory.stat` has about 2 KiB.
    const CHUNK: usize = 8192;
    buffer.clear();
    buffer.reserve(CHUNK);
    // Reads into the spare capacity: zeroing it first took a third of a tick's instructions.
    rustix::io::pread(file, rustix::buffer::spare_capacity(buffer), 0)?;
    if buffer.len() == buffer.capacity() {
        return read_at_start(file, buffer);
    }
    Ok(())
}

fn exists(path: PathBuf) -> Result<bool, (PathBuf, io::Error)> {
    path.try_exists().map_err(|error| (path, error))
}

fn controllers(path: PathBuf) -> Result<Option<String>, (PathBuf, io::Error)> {
    match read_text(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err((path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hierarchy found in a folder with these files.
    #[track_caller]
    fn check(files: &[(&str, &str)], expected: Result<(Version, &str), &str>) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let expected = match expected {
            Ok((version, "")) => Ok(Hierarchy { version, root: folder.path().to_path_buf() }),
            Ok((version, place)) => Ok(Hierarchy { version, root: folder.path().join(place) }),
            Err(why) => Err(why.replace("ROOT", folder.path().to_str().unwrap())),
        };
        assert_eq!(memory_hierarchy(folder.path()).unwrap(), expected);
    }

    #[test]
    fn each_layout_is_detected() {
        let v1 = ("memory/memory.usage_in_bytes", "1\n");
        check(&[("cgroup.controllers", "cpuset cpu io memory pids\n")], Ok((Version::V2, "")));
        check(&[v1, ("cpu/cpu.shares", "1024\n")], Ok((Version::V1, "memory")));
        check(&[v1, ("unified/cgroup.controllers", "\n")], Ok((Version::V1, "memory")));
        check(&[("unified/cgroup.controllers", "memory\n")], Ok((Version::V2, "unified")));
        check(&[("memory.usage_in_bytes", "1\n")], Ok((Version::V1, "")));
    }

    #[test]
    fn a_host_without_the_controller_is_an_error() {
        check(&[], Err("no memory controller under ROOT"));
        check(
            &[("cgroup.controllers", "cpu memory_recursiveprot pids\n")],
            Err("no memory controller in ROOT (it has: cpu memory_recursiveprot pids)"),
        );
        check(&[("cpu/cpu.shares", "1024\n")], Err("no memory controller under ROOT"));
    }

    #[test]
    fn a_file_is_read_whole_whatever_its_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut buffer = Vec::new();
        for length in [0, 1, 8191, 8192, 8193, 40_000, 3] {
            std::fs::write(&path, "x".repeat(length)).unwrap();
            read(&open(&path).unwrap(), &mut buffer).unwrap();
            assert_eq!(buffer.len(), length);
        }
        assert!(read(&open(Path::new("/dev/zero")).unwrap(), &mut buffer).is_err());
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("real"), "1\n").unwrap();
        std::os::unix::fs::symlink(folder.path().join("real"), folder.path().join("link")).unwrap();
        assert!(open(&folder.path().join("real")).is_ok());
        assert!(open(&folder.path().join("link")).is_err());
    }
}

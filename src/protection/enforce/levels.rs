//! The memory left of the host and of a cgroup, read through kept descriptors without allocating.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::host::cgroup::{Hierarchy, Version};
use crate::host::numa::GpuNode;
use crate::host::process::number;
use crate::model::limited_groups::LimitedGroups;
use crate::model::units::Bytes;

/// A `memory.stat` has about 2 KiB; what is needed of `/proc/meminfo` is in its first lines.
const ROOM: usize = 8192;

/// The memory left, and the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLeft {
    /// Bytes until it is exhausted.
    pub headroom: Bytes,
    /// Total bytes.
    pub total: Bytes,
}

/// The host's memory, without NUMA nodes that are memory of GPUs.
#[derive(Debug)]
pub struct HostMeter {
    meminfo: OwnedFd,
    gpu_nodes: Vec<OwnedFd>,
}

impl HostMeter {
    /// Opens `meminfo` below `proc`, and that of the nodes.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(proc: &Path, gpu_nodes: &[GpuNode]) -> io::Result<Self> {
        let gpu_nodes = gpu_nodes.iter().map(|node| open(&node.meminfo)).collect::<io::Result<_>>()?;
        Ok(Self { meminfo: open(&proc.join("meminfo"))?, gpu_nodes })
    }

    /// Reads the memory left.
    ///
    /// # Errors
    /// I/O errors, or `InvalidData` for text that cannot be parsed.
    pub fn read(&self) -> io::Result<MemoryLeft> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidData);
        let mut room = [0; ROOM];
        let mut left = parse_host(text(&self.meminfo, &mut room)?).ok_or_else(wrong)?;
        for node in &self.gpu_nodes {
            let node = parse_node(text(node, &mut room)?).ok_or_else(wrong)?;
            left.headroom = left.headroom.saturating_sub(node.headroom);
            left.total = left.total.saturating_sub(node.total);
        }
        Ok(left)
    }
}

/// The limits of a cgroup and its ancestors.
#[derive(Debug)]
pub struct GroupMeter {
    version: Version,
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    /// The inode of the group, which distinguishes it from all that exist at the same time.
    group: u64,
    limit: OwnedFd,
    usage: OwnedFd,
    stat: OwnedFd,
}

impl GroupMeter {
    /// Opens the files of the cgroup at `path` and its ancestors.
    ///
    /// # Errors
    /// If there is no such cgroup. A cgroup without limit files is skipped, for example where the memory controller is
    /// enabled only further up (v2).
    pub fn open(hierarchy: &Hierarchy, path: &str) -> io::Result<Self> {
        let (limit, usage) = match hierarchy.version {
            Version::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            Version::V2 => ("memory.max", "memory.current"),
        };
        let mut levels = Vec::new();
        let mut rest = path.trim_matches('/');
        std::fs::metadata(hierarchy.root.join(rest))?;
        loop {
            let folder = hierarchy.root.join(rest);
            let level = || {
                Ok::<_, io::Error>(Level {
                    group: rustix::fs::stat(&folder)?.st_ino,
                    limit: open(&folder.join(limit))?,
                    usage: open(&folder.join(usage))?,
                    stat: open(&folder.join("memory.stat"))?,
                })
            };
            match level() {
                Err(error) if error.kind() != io::ErrorKind::NotFound && !rest.is_empty() => {
                    return Err(error);
                }
                level => levels.extend(level),
            }
            match rest.rsplit_once('/') {
                Some((above, _)) => rest = above,
                None if rest.is_empty() => break,
                None => rest = "",
            }
        }
        Ok(Self { version: hierarchy.version, levels })
    }

    /// The smallest memory left below any limit on the path, and the groups with such limits; absent where no limit is
    /// below `host`.
    ///
    /// # Errors
    /// I/O errors, also once the cgroup is removed, or `InvalidData`.
    pub fn read(&self, host: Bytes) -> io::Result<Option<(MemoryLeft, LimitedGroups)>> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidData);
        let mut least: Option<MemoryLeft> = None;
        let mut groups = LimitedGroups::default();
        for level in &self.levels {
            let mut room = [0; ROOM];
            let limit = text(&level.limit, &mut room)?.trim_ascii();
            // v1 represents no limit by a number larger than any memory.
            let limit = if limit == b"max" { None } else { Some(number(limit).ok_or_else(wrong)?) };
            let Some(limit) = limit.filter(|limit| *limit < host.get()) else { continue };
            let usage = number(text(&level.usage, &mut room)?.trim_ascii()).ok_or_else(wrong)?;
            let stat = text(&level.stat, &mut room)?;
            let cache = field(stat, self.inactive()).ok_or_else(wrong)?;
            let headroom = limit.saturating_sub(usage.saturating_sub(cache));
            groups.add(level.group);
            if least.is_none_or(|least| headroom < least.headroom.get()) {
                least = Some(MemoryLeft { headroom: Bytes::new(headroom), total: Bytes::new(limit) });
                groups.set_least(level.group);
            }
        }
        Ok(least.map(|least| (least, groups)))
    }

    /// Page cache that is reclaimed first; v1 has it for the whole subtree under another name.
    const fn inactive(&self) -> &'static [u8] {
        match self.version {
            Version::V1 => b"total_inactive_file",
            Version::V2 => b"inactive_file",
        }
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn text<'r>(file: &OwnedFd, room: &'r mut [u8; ROOM]) -> io::Result<&'r [u8]> {
    let length = rustix::io::pread(file, &mut room[..], 0)?;
    Ok(&room[..length])
}

/// `MemTotal` and `MemAvailable` of `/proc/meminfo` (proc_meminfo(5)).
fn parse_host(text: &[u8]) -> Option<MemoryLeft> {
    Some(MemoryLeft { headroom: kib(text, b"MemAvailable")?, total: kib(text, b"MemTotal")? })
}

/// The memory of a NUMA node that `MemAvailable` and `MemTotal` of the host contain.
fn parse_node(text: &[u8]) -> Option<MemoryLeft> {
    let parts = [&b"MemFree"[..], b"Active(file)", b"Inactive(file)", b"SReclaimable"];
    let parts = parts.map(|name| kib(text, name));
    Some(MemoryLeft { headroom: parts.into_iter().sum::<Option<_>>()?, total: kib(text, b"MemTotal")? })
}

/// The value of a line of a `meminfo`; in that of a NUMA node, `Node N ` is before the name.
fn kib(text: &[u8], name: &[u8]) -> Option<Bytes> {
    let value = text.split(|byte| *byte == b'\n').find_map(|line| {
        let own = line.strip_prefix(b"Node ").and_then(|rest| rest.splitn(2, |byte| *byte == b' ').nth(1));
        own.unwrap_or(line).strip_prefix(name)?.strip_prefix(b":")
    })?;
    let digits = value.trim_ascii().strip_suffix(b" kB")?;
    number(digits.trim_ascii()).and_then(Bytes::from_kib)
}

/// The value of a `name value` line.
fn field(text: &[u8], name: &[u8]) -> Option<u64> {
    let line = text
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(name).filter(|rest| rest.first() == Some(&b' ')))?;
    number(line.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn left(headroom: u64, total: u64) -> MemoryLeft {
        MemoryLeft { headroom: Bytes::new(headroom), total: Bytes::new(total) }
    }

    fn memory_left(meter: &GroupMeter, host: Bytes) -> Option<MemoryLeft> {
        meter.read(host).unwrap().map(|(left, _)| left)
    }

    #[test]
    fn the_host_is_what_is_available() {
        let folder = tempfile::tempdir().unwrap();
        write(
            folder.path(),
            "meminfo",
            "MemTotal:       1024 kB\nMemFree:  12 kB\nMemAvailable:    512 kB\nBuffers: 1 kB\n",
        );
        let meter = HostMeter::open(folder.path(), &[]).unwrap();
        assert_eq!(meter.read().unwrap(), left(512 << 10, 1 << 20));
        for broken in
            ["", "MemTotal: 1 kB\n", "MemTotal: x kB\nMemAvailable: 1 kB", "MemAvailable: 5\nMemTotal: 5 kB"]
        {
            write(folder.path(), "meminfo", broken);
            assert!(meter.read().is_err(), "{broken:?}");
        }
    }

    #[test]
    fn nodes_that_are_memory_of_gpus_are_not_the_hosts() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/host/gh200");
        let nodes = crate::host::numa::gpu_nodes(&crate::host::roots::Roots::under(&root));
        let meter = HostMeter::open(&root.join("proc"), &nodes).unwrap();
        // As the source `memory` has it.
        assert_eq!(meter.read().unwrap(), left(496_385_792 << 10, 501_797_888 << 10));
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "meminfo", "Node 1 MemTotal: 9 kB\n");
        let broken = [GpuNode { number: 1, meminfo: folder.path().join("meminfo") }];
        assert!(HostMeter::open(&root.join("proc"), &broken).unwrap().read().is_err());
        let gone = [GpuNode { number: 1, meminfo: folder.path().join("none") }];
        assert!(HostMeter::open(&root.join("proc"), &gone).is_err());
    }

    #[test]
    fn the_smallest_limit_on_the_path_counts() {
        let folder = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy { version: Version::V2, root: folder.path().to_owned() };
        for (path, max, current) in [("a/b", "max", 100), ("a", "209715200", 150), (".", "1073741824", 400)] {
            write(folder.path(), &format!("{path}/memory.max"), &format!("{max}\n"));
            write(folder.path(), &format!("{path}/memory.current"), &format!("{}\n", current * MIB));
            write(folder.path(), &format!("{path}/memory.stat"), "anon 5\ninactive_file 10485760\nx 1\n");
        }
        let host = Bytes::new(8 << 30);
        let meter = GroupMeter::open(&hierarchy, "/a/b").unwrap();
        assert_eq!(memory_left(&meter, host), Some(left(60 * MIB, 200 * MIB)));
        assert_eq!(meter.read(Bytes::new(100 * MIB)).unwrap(), None, "no limit that the host does not have");
        write(folder.path(), "a/memory.max", "nonsense\n");
        assert!(meter.read(host).is_err());
        assert!(GroupMeter::open(&hierarchy, "/none").is_err());
    }

    #[test]
    fn a_group_without_the_controller_has_the_limits_above_it() {
        let folder = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy { version: Version::V2, root: folder.path().to_owned() };
        write(folder.path(), "pod/memory.max", "209715200\n");
        write(folder.path(), "pod/memory.current", "104857600\n");
        write(folder.path(), "pod/memory.stat", "inactive_file 0\n");
        std::fs::create_dir(folder.path().join("pod/task")).unwrap();
        let meter = GroupMeter::open(&hierarchy, "/pod/task").unwrap();
        assert_eq!(memory_left(&meter, Bytes::new(8 << 30)), Some(left(100 * MIB, 200 * MIB)));
    }

    #[test]
    fn a_shortage_belongs_to_the_group_with_the_limit_and_to_all_below_it() {
        let folder = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy { version: Version::V2, root: folder.path().to_owned() };
        let groups = |path: &str| GroupMeter::open(&hierarchy, path).unwrap().read(Bytes::new(8 << 30));
        for (path, max, current) in
            [("job", 200, 190), ("job/a", 100, 50), ("job/b", 9000, 140), ("other", 50, 49)]
        {
            write(folder.path(), &format!("{path}/memory.max"), &format!("{}\n", max * MIB));
            write(folder.path(), &format!("{path}/memory.current"), &format!("{}\n", current * MIB));
            write(folder.path(), &format!("{path}/memory.stat"), "inactive_file 0\n");
        }
        let [a, b, other] = ["job/a", "job/b", "other"].map(|path| groups(path).unwrap().unwrap().1);
        assert!(a.least().is_some() && a.least() == b.least());
        assert!(a.contain(b.least().unwrap()) && b.contain(a.least().unwrap()));
        assert!(!a.contain(other.least().unwrap()) && !other.contain(a.least().unwrap()));
        // What ends in the inner group frees memory of the outer one, not the other way round.
        write(folder.path(), "job/a/memory.current", &format!("{}\n", 99 * MIB));
        let inner = groups("job/a").unwrap().unwrap().1;
        assert!(!b.contain(inner.least().unwrap()) && inner.contain(b.least().unwrap()));
    }

    #[test]
    fn the_old_interface_has_other_names() {
        let folder = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy { version: Version::V1, root: folder.path().to_owned() };
        write(folder.path(), "j/memory.limit_in_bytes", "104857600\n");
        write(folder.path(), "j/memory.usage_in_bytes", "94371840\n");
        write(folder.path(), "j/memory.stat", "inactive_file 1\ntotal_inactive_file 4194304\n");
        let meter = GroupMeter::open(&hierarchy, "/j").unwrap();
        assert_eq!(memory_left(&meter, Bytes::new(8 << 30)), Some(left(14 * MIB, 100 * MIB)));
        write(folder.path(), "j/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(meter.read(Bytes::new(8 << 30)).unwrap(), None);
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text: Vec<u8>) {
            let _ = (parse_host(&text), field(&text, b"inactive_file"), number(&text));
        }
    }
}

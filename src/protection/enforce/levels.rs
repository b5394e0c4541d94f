//! The memory left of the host, of some of its NUMA nodes, and of a cgroup, read through kept descriptors without allocating.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::host::cgroup::{Hierarchy, Version};
use crate::host::numa::GpuNode;
use crate::host::room::group::{self, Bound};
use crate::host::room::meminfo;
use crate::model::limited_groups::LimitedGroups;
use crate::model::node_set::NodeSet;
use crate::model::room::{GroupSwap, Room, SwapRoom};
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Unit as _};

/// A `memory.stat` and a `/proc/meminfo` have about 2 KiB.
const BUFFER: usize = 8192;

/// The host's memory, without NUMA nodes that are memory of GPUs.
#[derive(Debug)]
pub struct HostMeter {
    meminfo: OwnedFd,
    gpu_nodes: Vec<OwnedFd>,
    /// Absent on a host without ZFS.
    arcstats: Option<OwnedFd>,
    is_of_container: bool,
    swappiness: Option<OwnedFd>,
}

impl HostMeter {
    /// Opens `meminfo` below `proc`, and that of the nodes.
    pub fn open(proc: &Path, gpu_nodes: &[GpuNode]) -> io::Result<Self> {
        let gpu_nodes = gpu_nodes.iter().map(|node| open(&node.meminfo)).collect::<io::Result<_>>()?;
        let file = open(&proc.join("meminfo"))?;
        let is_of_container = meminfo::is_of_container(&file);
        Ok(Self {
            meminfo: file,
            gpu_nodes,
            arcstats: open_some(&proc.join(meminfo::ARCSTATS))?.filter(|_| !is_of_container),
            is_of_container,
            swappiness: open_some(&proc.join(meminfo::SWAPPINESS))?,
        })
    }

    /// Reads what is left.
    ///
    /// # Errors
    /// I/O errors, or `InvalidData` for text that cannot be parsed, and for impossible amounts.
    pub fn read(&self) -> io::Result<Room> {
        let mut buffer = [0; BUFFER];
        let mut found = meminfo::meminfo(text(&self.meminfo, &mut buffer)?);
        if self.is_of_container {
            found.leave_out_pools();
        }
        for node in &self.gpu_nodes {
            let node = meminfo::meminfo(text(node, &mut buffer)?).of_node();
            if node.total.is_none() || node.available.is_none() {
                return Err(invalid());
            }
            found.leave_out(&node);
        }
        let arc = match &self.arcstats {
            Some(file) => Some(meminfo::arc(text(file, &mut buffer)?).ok_or_else(invalid)?),
            None => None,
        };
        found.room(arc).ok_or_else(invalid)
    }

    /// The swap that processes in cgroups can use, of the room of the host.
    pub fn swap_of_groups(&self, host: Room) -> GroupSwap {
        let mut buffer = [0; BUFFER];
        let swappiness = self.swappiness.as_ref().and_then(|file| text(file, &mut buffer).ok());
        meminfo::swap_of_groups(host.swap(), swappiness.unwrap_or_default())
    }
}

/// The memory of some NUMA nodes, outside of their pools of huge pages.
#[derive(Debug)]
pub struct NodesMeter {
    pub nodes: NodeSet,
    /// Memory in their pools of huge pages, which their `meminfo` tells for one size only, in bytes.
    pools: Bytes,
    meminfo: Vec<OwnedFd>,
}

impl NodesMeter {
    /// Opens the `meminfo` of nodes, each given by its number and its folder.
    pub fn open(nodes: &[(u32, PathBuf)], pools: Bytes) -> io::Result<Self> {
        let meminfo =
            nodes.iter().map(|(_, folder)| open(&folder.join("meminfo"))).collect::<io::Result<_>>()?;
        Ok(Self { nodes: nodes.iter().map(|(number, _)| *number).collect(), pools, meminfo })
    }

    /// Whether it is that of these nodes with pools of this size.
    pub fn is_of(&self, nodes: NodeSet, pools: Bytes) -> bool {
        self.nodes == nodes && self.pools == pools
    }

    /// Reads what is left, with `swap`, which every node can use.
    ///
    /// # Errors
    /// I/O errors, or `InvalidData` for text that cannot be parsed, and for impossible amounts.
    pub fn read(&self, swap: SwapRoom) -> io::Result<Room> {
        let mut buffer = [0; BUFFER];
        let mut sum = [Bytes::ZERO; 2];
        for file in &self.meminfo {
            let node = meminfo::meminfo(text(file, &mut buffer)?).of_node();
            let amounts = node.available.zip(node.total).ok_or_else(invalid)?;
            sum = [sum[0].saturating_add(amounts.0), sum[1].saturating_add(amounts.1)];
        }
        let room = Room::new(sum[0], sum[1].saturating_sub(self.pools)).with_swap(swap);
        if room.is_implausible() { Err(invalid()) } else { Ok(room) }
    }
}

/// The limits of a cgroup and its ancestors.
#[derive(Debug)]
pub struct GroupMeter {
    version: Version,
    /// The inode of the cgroup.
    own: u64,
    /// From the root on.
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    /// The inode of the group, which distinguishes it from all that exist at the same time.
    group: u64,
    limit: OwnedFd,
    /// `memory.high` (v2); the root has none.
    high: Option<OwnedFd>,
    usage: OwnedFd,
    /// Absent where the kernel does not provide it: what can be reclaimed is not known.
    stat: Option<OwnedFd>,
    /// The limit of swap, or of memory and swap (v1), and its usage; absent where the kernel does not account swap.
    swap: Option<[OwnedFd; 2]>,
    /// `memory.swappiness` (v1).
    swappiness: Option<OwnedFd>,
    /// The least limit above that is not visible (v1), as last read.
    hidden: Option<Bytes>,
    whole: Option<Whole>,
}

/// What costs much to read: the kernel adds up `memory.stat` over all processors.
#[derive(Clone, Copy, Debug)]
struct Whole {
    at: Timestamp,
    /// The lowest limit and the usage at that time, in bytes.
    limit: Bytes,
    usage: Bytes,
    /// What the kernel could take back, in bytes.
    reclaimable: Bytes,
}

impl Whole {
    /// While no more than this has passed, [`Whole::is_valid`] decides.
    const LONGEST: Duration = Duration::from_secs(1);

    /// Whether it can stand for a new reading. Far below the limit the kernel takes nothing back for it, so that cache that is given up
    /// shows in the usage; near the limit it can be exchanged for other memory without a change of the usage.
    fn is_valid(&self, now: Timestamp, usage: Bytes, limit: Bytes) -> bool {
        let [near, little] = [16, 64].map(|part| limit.get() / part);
        now.since(self.at) < Self::LONGEST
            && limit.saturating_sub(usage).get() > near
            && usage.get().abs_diff(self.usage.get()) <= little
    }
}

/// What is left below the limits of a cgroup and its ancestors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupRooms {
    /// The least room below any limit, and the groups with such limits; absent where no limit is below the memory of the host.
    pub max: Option<(Room, LimitedGroups)>,
    /// The least room below any `memory.high` that is below the limit of its group; absent where there is none.
    pub high: Option<Room>,
}

impl Level {
    fn open(version: Version, folder: &Path) -> io::Result<Self> {
        let [limit, usage, swap_limit, swap_usage] = match version {
            Version::V1 => [
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "memory.memsw.limit_in_bytes",
                "memory.memsw.usage_in_bytes",
            ],
            Version::V2 => ["memory.max", "memory.current", "memory.swap.max", "memory.swap.current"],
        };
        let swap = open_some(&folder.join(swap_limit))?.zip(open_some(&folder.join(swap_usage))?);
        let [high, swappiness] = match version {
            Version::V1 => [None, open_some(&folder.join("memory.swappiness"))?],
            Version::V2 => [open_some(&folder.join("memory.high"))?, None],
        };
        Ok(Self {
            group: rustix::fs::stat(folder)?.st_ino,
            limit: open(&folder.join(limit))?,
            high,
            usage: open(&folder.join(usage))?,
            stat: open_some(&folder.join("memory.stat"))?,
            swap: swap.map(|(limit, usage)| [limit, usage]),
            swappiness,
            hidden: None,
            whole: None,
        })
    }

    /// Learns the least limit of the groups above it, which are not visible in a container (v1).
    fn look_above(&mut self) {
        let mut buffer = [0; BUFFER];
        let stat = self.stat.as_ref().and_then(|file| text(file, &mut buffer).ok());
        self.hidden = stat.and_then(|text| group::stat(text, Version::V1).hierarchical_limit.bytes());
    }

    /// What the kernel takes back before it ends or throttles a process.
    fn reclaimable(
        &mut self,
        now: Timestamp,
        usage: Bytes,
        limit: Bytes,
        version: Version,
    ) -> io::Result<Bytes> {
        if let Some(whole) = self.whole.filter(|whole| whole.is_valid(now, usage, limit)) {
            return Ok(whole.reclaimable);
        }
        let mut buffer = [0; BUFFER];
        let stat = text(self.stat.as_ref().ok_or_else(invalid)?, &mut buffer)?;
        let stat = group::stat(stat, version);
        let reclaimable = stat.reclaimable().ok_or_else(invalid)?;
        self.hidden = self.hidden.and(stat.hierarchical_limit.bytes());
        self.whole = Some(Whole { at: now, limit, usage, reclaimable });
        Ok(reclaimable)
    }

    /// The swap that its processes can use, of that of the group above.
    fn swap_below(
        &self,
        above: SwapRoom,
        version: Version,
        limit: Option<Bytes>,
        usage: Bytes,
    ) -> io::Result<SwapRoom> {
        if above == SwapRoom::default() {
            return Ok(above);
        }
        let Some([swap_limit, swap_usage]) = self.swap.as_ref().filter(|_| above.left > Bytes::ZERO) else {
            return Ok(above);
        };
        let Some(swap_limit) = read_limit(swap_limit)? else { return Ok(above) };
        let swap_usage = read_bytes(swap_usage)?;
        Ok(match (version, limit) {
            (Version::V2, _) => group::swap_below(above, swap_limit, swap_usage),
            (Version::V1, Some(limit)) => {
                group::swap_below_both(above, [swap_limit, swap_usage], [limit, usage])
            }
            (Version::V1, None) => above,
        })
    }

    /// The room within its limit of memory and swap together (v1).
    fn within_both(&self, room: Room, reclaimable: Bytes, version: Version) -> io::Result<Room> {
        let Some([limit, usage]) = self.swap.as_ref().filter(|_| version == Version::V1) else {
            return Ok(room);
        };
        Ok(match read_limit(limit)? {
            Some(limit) => group::within_both(room, [limit, read_bytes(usage)?], reclaimable),
            None => room,
        })
    }
}

impl GroupMeter {
    /// Opens the files of the cgroup at `path` and its ancestors.
    ///
    /// # Errors
    /// If there is no such cgroup. A cgroup without limit files is skipped, for example where the memory controller is
    /// enabled only further up (v2).
    pub fn open(hierarchy: &Hierarchy, path: &str) -> io::Result<Self> {
        let path = path.trim_matches('/');
        let own = rustix::fs::stat(hierarchy.root.join(path))?.st_ino;
        let parts = path.match_indices('/').map(|(end, _)| &path[..end]);
        let mut levels = Vec::new();
        for part in std::iter::once("").chain(parts).chain((!path.is_empty()).then_some(path)) {
            match Level::open(hierarchy.version, &hierarchy.root.join(part)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound && !part.is_empty() => {
                    return Err(error);
                }
                level => levels.extend(level),
            }
        }
        if hierarchy.version == Version::V1 {
            levels.first_mut().into_iter().for_each(Level::look_above);
        }
        Ok(Self { version: hierarchy.version, own, levels })
    }

    /// Anonymous memory of the cgroup itself, and its shared memory beyond `files`, none where these are absent, in bytes; absent where
    /// that is not known, or its folder has no such counter.
    pub fn private(&self, files: Option<Bytes>) -> Option<Bytes> {
        let mut buffer = [0; BUFFER];
        let own = self.levels.last().filter(|level| level.group == self.own)?;
        let stat = group::stat(text(own.stat.as_ref()?, &mut buffer).ok()?, self.version);
        let shared = stat.shmem.zip(files).map_or(Bytes::ZERO, |(shmem, files)| shmem.saturating_sub(files));
        Some(stat.anon?.saturating_add(shared))
    }

    /// Reads what is left. `swap` is what cgroups can use of the swap of the host, which has `host` bytes of memory. What can be
    /// reclaimed may be that of a reading less than a second before, unless [`GroupMeter::forget`] was called.
    ///
    /// # Errors
    /// I/O errors, also once the cgroup is removed, or `InvalidData`, also where what the kernel can reclaim is not known.
    pub fn read(&mut self, now: Timestamp, host: Bytes, swap: GroupSwap) -> io::Result<GroupRooms> {
        let (mut least, mut groups): (Option<Room>, _) = (None, LimitedGroups::default());
        let (mut least_high, mut swap): (Option<Room>, _) = (None, self.swap_of_own(swap)?);
        for level in &mut self.levels {
            // v1 represents no limit by a number larger than any memory.
            let limit =
                read_limit(&level.limit)?.into_iter().chain(level.hidden).min().filter(|limit| *limit < host);
            let high = level.high.as_ref().map(read_limit).transpose()?.flatten();
            let high = high.filter(|high| (Bytes::new(1)..limit.unwrap_or(host)).contains(high));
            let usage = match limit.or(high) {
                Some(_) => read_bytes(&level.usage)?,
                None => Bytes::ZERO,
            };
            swap = level.swap_below(swap, self.version, limit, usage)?;
            let Some(lowest) = high.or(limit) else { continue };
            let reclaimable = level.reclaimable(now, usage, lowest, self.version)?;
            let below = |limit| group::room(limit, usage, reclaimable, swap);
            if let Some(room) = limit.map(below) {
                let room = level.within_both(room, reclaimable, self.version)?;
                groups.add(level.group);
                if least.is_none_or(|least| room.left() <= least.left()) {
                    least = Some(room);
                    groups.set_least(level.group);
                }
            }
            least_high = least_high.into_iter().chain(high.map(below)).min_by_key(|room| room.left());
        }
        Ok(GroupRooms { max: least.map(|least| (least, groups)), high: least_high })
    }

    /// The swap that its processes can use without any limit of swap: on v1 none where its own swappiness is 0.
    fn swap_of_own(&self, host: GroupSwap) -> io::Result<SwapRoom> {
        let mut buffer = [0; BUFFER];
        Ok(match self.levels.last().and_then(|own| own.swappiness.as_ref()) {
            Some(swappiness) if group::never_swaps(text(swappiness, &mut buffer)?) => SwapRoom::default(),
            _ if self.version == Version::V1 => host.v1,
            _ => host.v2,
        })
    }

    /// The largest share of a limit by which the usage below it differs from that of the last reading of everything; absent where one
    /// cannot be read.
    pub fn change(&self) -> Option<f64> {
        let wholes = self.levels.iter().filter_map(|level| Some((level, level.whole?)));
        wholes
            .map(|(level, whole)| {
                let usage = read_bytes(&level.usage).ok()?;
                let moved = Bytes::new(usage.get().abs_diff(whole.usage.get()));
                Some(moved.value() / whole.limit.value().max(1.0))
            })
            .try_fold(0.0_f64, |most, change| Some(most.max(change?)))
    }

    /// The next reading reads everything.
    pub fn forget(&mut self) {
        self.levels.iter_mut().for_each(|level| level.whole = None);
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn text<'r>(file: &OwnedFd, buffer: &'r mut [u8; BUFFER]) -> io::Result<&'r [u8]> {
    let length = rustix::io::pread(file, &mut buffer[..], 0)?;
    Ok(&buffer[..length])
}

/// Opens a file; absent where it does not exist.
fn open_some(path: &Path) -> io::Result<Option<OwnedFd>> {
    match open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some),
    }
}

fn read_bytes(file: &OwnedFd) -> io::Result<Bytes> {
    let mut buffer = [0; BUFFER];
    group::number(text(file, &mut buffer)?).map(Bytes::new).ok_or_else(invalid)
}

/// A limit; absent where there is none.
fn read_limit(file: &OwnedFd) -> io::Result<Option<Bytes>> {
    let mut buffer = [0; BUFFER];
    group::amount(text(file, &mut buffer)?).map(Bound::bytes).ok_or_else(invalid)
}

fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
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

    fn left(headroom: u64, total: u64) -> Room {
        Room::new(Bytes::new(headroom), Bytes::new(total))
    }

    /// The rooms of a new meter for the group.
    fn rooms(hierarchy: &Hierarchy, path: &str, host: Bytes, swap: SwapRoom) -> GroupRooms {
        let swap = GroupSwap { v1: swap, v2: swap };
        GroupMeter::open(hierarchy, path).unwrap().read(Timestamp::from_secs(0), host, swap).unwrap()
    }

    fn memory_left(hierarchy: &Hierarchy, path: &str, host: Bytes) -> Option<Room> {
        rooms(hierarchy, path, host, SwapRoom::default()).max.map(|(left, _)| left)
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
    fn a_limit_that_a_container_does_not_see_counts() {
        let folder = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy { version: Version::V1, root: folder.path().to_path_buf() };
        let group = |path: &str, usage: u64| {
            let stat = format!(
                "total_inactive_file 0\ntotal_active_file 0\nhierarchical_memory_limit {}\n",
                100 * MIB
            );
            write(folder.path(), &format!("{path}memory.limit_in_bytes"), "9223372036854771712\n");
            write(folder.path(), &format!("{path}memory.usage_in_bytes"), &format!("{}\n", usage * MIB));
            write(folder.path(), &format!("{path}memory.stat"), &stat);
        };
        group("", 90);
        group("job/", 40);
        let host = Bytes::new(8 << 30);
        assert_eq!(memory_left(&hierarchy, "/job", host), Some(left(10 * MIB, 100 * MIB)));
        // What its processes share in memory beyond all files ends with them.
        write(folder.path(), "job/memory.stat", "total_rss 3\ntotal_shmem 9\n");
        let meter = GroupMeter::open(&hierarchy, "/job").unwrap();
        let private =
            [None, Some(2), Some(20)].map(|files| meter.private(files.map(Bytes::new)).unwrap().get());
        assert_eq!(private, [3, 10, 3]);
    }

    #[test]
    fn on_v1_swap_counts_by_the_own_swappiness() {
        let folder = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy { version: Version::V1, root: folder.path().to_path_buf() };
        let host = SwapRoom { left: Bytes::new(30 * MIB), limit: Bytes::new(40 * MIB) };
        let swap = |swappiness: [u32; 2], vm: SwapRoom| {
            for (path, own) in ["", "job/"].into_iter().zip(swappiness) {
                write(folder.path(), &format!("{path}memory.limit_in_bytes"), &format!("{}\n", 100 * MIB));
                write(folder.path(), &format!("{path}memory.usage_in_bytes"), &format!("{}\n", 90 * MIB));
                write(folder.path(), &format!("{path}memory.stat"), "total_inactive_file 0\n");
                write(folder.path(), &format!("{path}memory.swappiness"), &format!("{own}\n"));
            }
            let mut meter = GroupMeter::open(&hierarchy, "/job").unwrap();
            let rooms =
                meter.read(Timestamp::from_secs(0), Bytes::new(8 << 30), GroupSwap { v1: host, v2: vm });
            rooms.unwrap().max.unwrap().0.swap.get() / MIB
        };
        let none = SwapRoom::default();
        assert_eq!([swap([0, 60], none), swap([60, 0], host), swap([60, 60], none)], [30, 0, 30]);
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
        assert_eq!(memory_left(&hierarchy, "/a/b", host), Some(left(60 * MIB, 200 * MIB)));
        assert_eq!(
            memory_left(&hierarchy, "/a/b", Bytes::new(100 * MIB)),
            None,
            "no limit that the host does not have"
        );
        write(folder.path(), "a/memory.max", "nonsense\n");
        let mut meter = GroupMeter::open(&hierarchy, "/a/b").unwrap();
        assert!(meter.read(Timestamp::from_secs(0), host, GroupSwap::default()).is_err());
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
        assert_eq!(
            memory_left(&hierarchy, "/pod/task", Bytes::new(8 << 30)),
            Some(left(100 * MIB, 200 * MIB))
        );
    }

    #[test]
    fn memory_high_is_a_limit_of_its_own_where_it_is_the_lower_one() {
        let folder = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy { version: Version::V2, root: folder.path().to_owned() };
        for (path, high, max) in [(".", "max", "max"), ("job", "100", "200"), ("job/rank", "90", "80")] {
            let bytes = |mib: &str| mib.parse::<u64>().map_or(mib.to_owned(), |mib| (mib * MIB).to_string());
            write(folder.path(), &format!("{path}/memory.high"), &format!("{}\n", bytes(high)));
            write(folder.path(), &format!("{path}/memory.max"), &format!("{}\n", bytes(max)));
            write(folder.path(), &format!("{path}/memory.current"), &format!("{}\n", 70 * MIB));
            write(folder.path(), &format!("{path}/memory.stat"), "inactive_file 10485760\n");
        }
        let high = |swap| rooms(&hierarchy, "/job/rank", Bytes::new(8 << 30), swap).high;
        assert_eq!(
            high(SwapRoom::default()),
            Some(left(40 * MIB, 100 * MIB)),
            "not the one above memory.max"
        );
        let swap = SwapRoom { left: Bytes::new(MIB), limit: Bytes::new(MIB) };
        assert_eq!(high(swap), Some(left(40 * MIB, 100 * MIB).with_swap(swap)));
        assert_eq!(
            rooms(&hierarchy, "/job/rank", Bytes::new(50 * MIB), swap).high,
            None,
            "no limit that the host does not have"
        );
        write(folder.path(), "job/memory.high", "max\n");
        assert_eq!(high(swap), None);
    }

    #[test]
    fn nodes_are_left_what_they_have_outside_of_their_pools() {
        let folder = tempfile::tempdir().unwrap();
        let node = |number: u32| {
            let text = format!(
                "Node {number} MemTotal: 4096 kB\nNode {number} MemFree: 1024 kB\nNode {number} Active(file): 16 kB\n\
                 Node {number} Inactive(file): 32 kB\nNode {number} SReclaimable: 64 kB\n"
            );
            write(folder.path(), &format!("node{number}/meminfo"), &text);
            (number, folder.path().join(format!("node{number}")))
        };
        let meter = NodesMeter::open(&[node(0), node(2)], Bytes::new(2 << 20)).unwrap();
        let swap = SwapRoom { left: Bytes::new(5), limit: Bytes::new(9) };
        assert_eq!(meter.read(swap).unwrap(), left(2272 << 10, 6 << 20).with_swap(swap));
        write(folder.path(), "node2/meminfo", "Node 2 MemTotal: 4096 kB\n");
        assert!(meter.read(swap).is_err(), "one that is not known is not nothing");
    }

    #[test]
    fn a_shortage_belongs_to_the_group_with_the_limit_and_to_all_below_it() {
        let folder = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy { version: Version::V2, root: folder.path().to_owned() };
        let groups = |path: &str| rooms(&hierarchy, path, Bytes::new(8 << 30), SwapRoom::default()).max;
        for (path, max, current) in
            [("job", 200, 190), ("job/a", 100, 50), ("job/b", 9000, 140), ("other", 50, 49)]
        {
            write(folder.path(), &format!("{path}/memory.max"), &format!("{}\n", max * MIB));
            write(folder.path(), &format!("{path}/memory.current"), &format!("{}\n", current * MIB));
            write(folder.path(), &format!("{path}/memory.stat"), "inactive_file 0\n");
        }
        let [a, b, other] = ["job/a", "job/b", "other"].map(|path| groups(path).unwrap().1);
        assert!(a.least().is_some() && a.least() == b.least());
        assert!(a.contain(b.least().unwrap()) && b.contain(a.least().unwrap()));
        assert!(!a.contain(other.least().unwrap()) && !other.contain(a.least().unwrap()));
        // What ends in the inner group frees memory of the outer one, not the other way round.
        write(folder.path(), "job/a/memory.current", &format!("{}\n", 99 * MIB));
        let inner = groups("job/a").unwrap().1;
        assert!(!b.contain(inner.least().unwrap()) && inner.contain(b.least().unwrap()));
    }

    #[test]
    fn the_old_interface_has_other_names() {
        let folder = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy { version: Version::V1, root: folder.path().to_owned() };
        write(folder.path(), "j/memory.limit_in_bytes", "104857600\n");
        write(folder.path(), "j/memory.usage_in_bytes", "94371840\n");
        write(folder.path(), "j/memory.stat", "inactive_file 1\ntotal_inactive_file 4194304\n");
        assert_eq!(memory_left(&hierarchy, "/j", Bytes::new(8 << 30)), Some(left(14 * MIB, 100 * MIB)));
        write(folder.path(), "j/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(memory_left(&hierarchy, "/j", Bytes::new(8 << 30)), None);
    }

    #[test]
    fn what_can_be_reclaimed_is_read_again_before_it_can_be_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy { version: Version::V2, root: folder.path().to_owned() };
        let says = |used: u64, cache: u64| {
            write(folder.path(), "j/memory.max", &format!("{}\n", 640 * MIB));
            write(folder.path(), "j/memory.current", &format!("{}\n", used * MIB));
            write(folder.path(), "j/memory.stat", &format!("inactive_file {}\n", cache * MIB));
        };
        says(300, 100);
        let mut meter = GroupMeter::open(&hierarchy, "/j").unwrap();
        let left = |meter: &mut GroupMeter, milliseconds: u64| {
            let now = Timestamp::from_secs(9).plus(Duration::from_millis(milliseconds));
            let rooms = meter.read(now, Bytes::new(8 << 30), GroupSwap::default()).unwrap();
            rooms.max.unwrap().0.left().get() / MIB
        };
        assert_eq!(left(&mut meter, 0), 440);
        says(310, 50);
        assert_eq!(left(&mut meter, 40), 430, "the usage is new, the cache is that of before");
        says(311, 50);
        assert_eq!(left(&mut meter, 80), 379, "the usage has changed by more than a 64th of the limit");
        says(311, 90);
        assert_eq!(left(&mut meter, 120), 379);
        meter.forget();
        assert_eq!(left(&mut meter, 160), 419);
        says(311, 0);
        assert_eq!(left(&mut meter, 1_160), 329, "a second has passed");
        says(601, 80);
        assert_eq!(left(&mut meter, 1_200), 119);
        says(601, 20);
        assert_eq!(left(&mut meter, 1_240), 59, "near the limit it is always read");
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text: Vec<u8>) {
            let _ = (group::stat(&text, Version::V1).reclaimable(), group::amount(&text));
        }
    }
}

//! `/proc/meminfo` (Documentation/filesystems/proc.rst), in KiB, and the room that is left of the host's memory.

use crate::model::room::{GroupSwap, Room, SwapRoom};
use crate::model::units::Bytes;

/// More swap than any host has: lxcfs writes 2^63 bytes where a container has no limit (lxc/lxcfs#170).
const NO_SWAP_LIMIT: Bytes = Bytes::new(1 << 62);

macro_rules! meminfo {
    ($($(#[$doc:meta])* $field:ident = $line:literal;)+) => {
        /// The known lines; absent if the kernel does not write them.
        #[derive(Debug, Default, PartialEq, Eq)]
        pub struct Meminfo {
            $($(#[$doc])* pub $field: Option<Bytes>,)+
            /// `HugePages_Total`, in pages.
            pub huge_total: Option<u64>,
        }

        impl Meminfo {
            fn set(&mut self, name: &str, value: &str) {
                match name {
                    $($line => self.$field = kib(value),)+
                    "HugePages_Total" => self.huge_total = value.parse().ok(),
                    _ => {}
                }
            }

            /// Leaves out a NUMA node. Amounts that only the host or only the node has stay as they are.
            pub fn leave_out(&mut self, node: &Self) {
                let without = |whole: &mut Option<Bytes>, part: Option<Bytes>| {
                    *whole = whole.map(|whole| whole.saturating_sub(part.unwrap_or_default()));
                };
                $(without(&mut self.$field, node.$field);)+
                let pages = |total: u64| total.saturating_sub(node.huge_total.unwrap_or(0));
                self.huge_total = self.huge_total.map(pages);
            }
        }
    };
}

meminfo! {
    total = "MemTotal";
    free = "MemFree";
    /// `MemAvailable`; since 3.14, and absent in some containers' emulated files.
    available = "MemAvailable";
    buffers = "Buffers";
    cached = "Cached";
    shmem = "Shmem";
    slab_reclaimable = "SReclaimable";
    slab_unreclaimable = "SUnreclaim";
    anon = "AnonPages";
    anon_huge = "AnonHugePages";
    mapped = "Mapped";
    unevictable = "Unevictable";
    kernel_stack = "KernelStack";
    page_tables = "PageTables";
    dirty = "Dirty";
    writeback = "Writeback";
    commit_limit = "CommitLimit";
    committed = "Committed_AS";
    swap_total = "SwapTotal";
    swap_free = "SwapFree";
    /// `Hugepagesize`: the default size of a huge page.
    huge_size = "Hugepagesize";
    active_file = "Active(file)";
    inactive_file = "Inactive(file)";
    /// Page cache of a NUMA node, with block devices, shared memory and tmpfs.
    file_pages = "FilePages";
    /// Memory that the allocator NvMap of a Jetson has given to its GPU and other engines.
    nvmap = "NvMapMemUsed";
    /// Memory in the pools of huge pages of all sizes.
    hugetlb = "Hugetlb";
}

impl Meminfo {
    /// Completes the amounts of a NUMA node, whose `meminfo` has neither `MemAvailable` nor `Cached`.
    ///
    /// The kernel's estimate for the host (`si_mem_available`) counts free memory, page cache and reclaimable slabs, less a part
    /// of the watermarks, which are left out here: what is left of the host's estimate without the node is too small by
    /// at most these, not too large.
    #[must_use]
    pub fn of_node(self) -> Self {
        let parts = [self.free, self.active_file, self.inactive_file, self.slab_reclaimable];
        Self { available: parts.into_iter().sum(), cached: self.file_pages, ..self }
    }

    /// Memory in the pools of huge pages, used or not: `MemTotal` contains it, `MemAvailable` does not, and no process gets it
    /// but those that ask for huge pages. A kernel without the line `Hugetlb` tells the pool of the default size only.
    pub fn pools(&self) -> Bytes {
        self.hugetlb.or_else(|| self.huge(self.huge_total)).unwrap_or_default()
    }

    /// Leaves out what lxcfs passes through of the host in the `meminfo` of a container: the pools of huge pages.
    pub const fn leave_out_pools(&mut self) {
        (self.hugetlb, self.huge_total) = (None, None);
    }

    /// Free swap space and its size; absent where the amounts are impossible, as those of some containers are (lxc/lxcfs#115).
    pub fn swap(&self) -> Option<SwapRoom> {
        let (limit, left) = self.swap_total.zip(self.swap_free)?;
        (left <= limit && limit < NO_SWAP_LIMIT).then_some(SwapRoom { left, limit })
    }

    /// What is left of the host's memory: what the kernel estimates to be available, with the part of the ARC of ZFS that is given back on
    /// demand, of all memory outside of the pools of huge pages. Absent where the kernel makes no estimate, or an impossible one:
    /// lxcfs can tell more available memory than there is.
    pub fn room(&self, arc: Option<Arc>) -> Option<Room> {
        let memory = self.available?.saturating_add(arc.unwrap_or_default().reclaimable());
        let limit = self.total?.saturating_sub(self.pools());
        let room = Room::new(memory, limit).with_swap(self.swap().unwrap_or_default());
        (!room.is_implausible()).then_some(room)
    }

    /// The size of this many huge pages of the default size.
    pub fn huge(&self, pages: Option<u64>) -> Option<Bytes> {
        self.huge_size?.get().checked_mul(pages?).map(Bytes::new)
    }
}

/// Parses the text of `/proc/meminfo`, or of the `meminfo` of a NUMA node, whose lines begin with `Node N `; a line that is
/// truncated or invalid is ignored.
pub fn meminfo(text: &[u8]) -> Meminfo {
    let mut found = Meminfo::default();
    for line in String::from_utf8_lossy(text).split_inclusive('\n') {
        // A line without newline may have lost digits, and would be read as a smaller number.
        let Some((name, value)) = line.strip_suffix('\n').and_then(|line| line.split_once(':')) else {
            continue;
        };
        let name =
            name.strip_prefix("Node ").and_then(|rest| rest.split_once(' ')).map_or(name, |(_, name)| name);
        found.set(name, value.trim_start());
    }
    found
}

/// The file of [`swap_of_groups`], below the process file system.
pub const SWAPPINESS: &str = "sys/vm/swappiness";

/// The swap that processes in cgroups can use, of that of the host. With `vm.swappiness` 0, the kernel swaps nothing out to keep a
/// cgroup below its limit (`get_scan_count` in mm/vmscan.c); on v1 the swappiness of the group counts whose pages they are.
pub fn swap_of_groups(host: SwapRoom, swappiness: &[u8]) -> GroupSwap {
    let v2 = if super::group::never_swaps(swappiness) { SwapRoom::default() } else { host };
    GroupSwap { v1: host, v2 }
}

/// Whether this `meminfo` is one that a FUSE file system makes for a container, as lxcfs does: it tells the container's memory, while the
/// ARC and the pools of huge pages are those of the host.
pub fn is_of_container(meminfo: impl std::os::fd::AsFd) -> bool {
    /// `FUSE_SUPER_MAGIC` (linux/magic.h).
    const FUSE: u64 = 0x6573_5546;
    rustix::fs::fstatfs(meminfo).is_ok_and(|found| u64::try_from(found.f_type) == Ok(FUSE))
}

/// The file of [`arc`], below the process file system.
pub const ARCSTATS: &str = "spl/kstat/zfs/arcstats";

/// The adaptive replacement cache of ZFS. The kernel does not count it as page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arc {
    pub size: Bytes,
    /// The size down to which ZFS shrinks it where others need memory.
    pub least: Bytes,
}

impl Arc {
    /// The part that ZFS gives back on demand.
    pub fn reclaimable(self) -> Bytes {
        self.size.saturating_sub(self.least)
    }
}

/// Parses `arcstats`: lines of a name, a type and a value. Absent where `size` or `c_min` is missing.
pub fn arc(text: &[u8]) -> Option<Arc> {
    let value = |wanted: &str| {
        let lines = text.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
        lines.filter_map(|line| std::str::from_utf8(line).ok()).find_map(|line| {
            let mut words = line.split_ascii_whitespace();
            (words.next() == Some(wanted)).then(|| words.nth(1)?.parse().ok().map(Bytes::new)).flatten()
        })
    };
    Some(Arc { size: value("size")?, least: value("c_min")? })
}

fn kib(value: &str) -> Option<Bytes> {
    value.strip_suffix(" kB").and_then(|kib| kib.parse().ok()).and_then(Bytes::from_kib)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_line_is_ignored() {
        let found = meminfo(b"MemTotal:       24684092 kB\nMemFree:        2436 kB\nMemAvailable:   24310");
        assert_eq!(found.total, Bytes::from_kib(24_684_092));
        assert_eq!(found.available, None);
        assert_eq!(meminfo(b"MemTotal:       24684092 kB").total, None);
        assert_eq!(found.room(None), None);
    }

    #[test]
    fn invalid_amounts_are_absent() {
        for value in ["-1 kB", "1 MB", "1", "kB", "", "18446744073709551615 kB", "1 2 kB", "\u{0663} kB"] {
            let text = format!("MemTotal: {value}\nHugePages_Total: {value}x\n");
            assert_eq!(meminfo(text.as_bytes()), Meminfo::default(), "{value}");
        }
    }

    #[test]
    fn huge_pages_that_overflow_are_absent() {
        let found = meminfo(b"HugePages_Total: 18446744073709551615\nHugepagesize: 2048 kB\n");
        assert_eq!(found.huge(found.huge_total), None);
    }

    const GIB: u64 = 1 << 30;

    fn room(text: &str, arc: Option<Arc>) -> Option<[u64; 4]> {
        let room = meminfo(text.as_bytes()).room(arc)?;
        Some([room.memory, room.limit, room.swap, room.swap_limit].map(Bytes::get))
    }

    #[test]
    fn pools_of_huge_pages_of_any_size_are_set_apart() {
        let of =
            |pools: &str| room(&format!("MemTotal: 8388608 kB\nMemAvailable: 1048576 kB\n{pools}"), None);
        let rest = |gib: u64| Some([GIB, gib * GIB, 0, 0]);
        assert_eq!(of(""), rest(8));
        assert_eq!(of("HugePages_Total: 1024\nHugepagesize: 2048 kB\n"), rest(6));
        assert_eq!(of("HugePages_Total: 0\nHugepagesize: 2048 kB\nHugetlb: 4194304 kB\n"), rest(4));
    }

    #[test]
    fn what_zfs_gives_back_is_available() {
        let text =
            b"9 1 0x01 147 39984 4512345678 998877665544\nname type data\nsize_x 4 7\nc_min 4 2\nsize 4 9\n";
        let arc = arc(text).unwrap();
        assert_eq!(arc, Arc { size: Bytes::new(9), least: Bytes::new(2) });
        assert_eq!(room("MemTotal: 1 kB\nMemAvailable: 0 kB\n", Some(arc)), Some([7, 1024, 0, 0]));
        assert_eq!(Arc { least: Bytes::new(10), ..arc }.reclaimable(), Bytes::ZERO);
        for broken in [&b""[..], b"size 4 9\n", b"size 4 9\nc_min 4 2", b"size 4 x\nc_min 4 2\n"] {
            assert_eq!(super::arc(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn impossible_amounts_are_unknown() {
        let memory = "MemTotal: 4 kB\nMemAvailable: 2 kB\n";
        assert_eq!(
            room(&format!("{memory}SwapTotal: 2 kB\nSwapFree: 1 kB\n"), None),
            Some([2048, 4096, 1024, 2048])
        );
        for swap in [
            "SwapTotal: 0 kB\nSwapFree: 18446744073709551488 kB\n",
            "SwapTotal: 1 kB\nSwapFree: 2 kB\n",
            "SwapTotal: 9007199246672720 kB\nSwapFree: 9007199246535028 kB\n",
        ] {
            assert_eq!(room(&format!("{memory}{swap}"), None), Some([2048, 4096, 0, 0]), "{swap}");
        }
        assert_eq!(room("MemTotal: 4 kB\nMemAvailable: 5 kB\n", None), None);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: Vec<u8>, cut in 0..200_usize) {
            let _ = (meminfo(&text).room(arc(&text)), arc(&text));
            let real = b"MemTotal:       24684092 kB\nHugePages_Total:       3\nHugepagesize:       2048 kB\n";
            let found = meminfo(&real[..cut.min(real.len())]);
            found.huge(found.huge_total);
        }
    }
}

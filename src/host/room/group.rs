//! The amounts of a cgroup that decide what is left below its limit (Documentation/admin-guide/cgroup-v1/memory.rst,
//! cgroup-v2.rst), and what they leave.
//!
//! A line without newline may be truncated within a number, so it is ignored like an invalid line.

use crate::host::cgroup::Version;
use crate::model::room::{Room, SwapRoom};
use crate::model::units::Bytes;

/// A limit at or above this value means no limit: v1 writes the largest number of
/// pages in bytes, which depends on the page size.
const UNLIMITED: u64 = 1 << 62;

/// The smallest of several amounts, if there is one and it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// An amount could not be read; the smallest known one could be too large.
    Unknown,
    /// There is no limit.
    #[default]
    Unbounded,
    /// The smallest amount.
    At(Bytes),
}

impl Bound {
    /// The smaller of both; unknown if either is unknown.
    #[must_use]
    pub fn tighter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Unbounded, bound) | (bound, Self::Unbounded) => bound,
            (Self::At(one), Self::At(two)) => Self::At(one.min(two)),
        }
    }

    /// The amount, if there is one and it is known.
    pub fn bytes(self) -> Option<Bytes> {
        match self {
            Self::At(bytes) => Some(bytes),
            Self::Unknown | Self::Unbounded => None,
        }
    }
}

/// The content of `memory.stat` for a cgroup and all cgroups below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Anonymous memory.
    pub anon: Option<Bytes>,
    /// Page cache, shared memory included.
    pub file: Option<Bytes>,
    /// Shared memory and tmpfs.
    pub shmem: Option<Bytes>,
    /// All kernel memory (v2, Linux 5.18 and later).
    pub kernel: Option<Bytes>,
    /// The kernel's slab caches (v2).
    pub slab: Option<Bytes>,
    /// Page cache that was not used again, which is reclaimed first.
    pub inactive_file: Option<Bytes>,
    /// Page cache that was used again.
    pub active_file: Option<Bytes>,
    /// Slab caches that the kernel reclaims (v2).
    pub slab_reclaimable: Option<Bytes>,
    /// Swapped-out memory (v1).
    pub swap: Option<Bytes>,
    /// The smallest limit on the path, including ancestors that are not visible (v1).
    pub hierarchical_limit: Bound,
}

impl Stat {
    /// What the kernel takes back before it ends a process: page cache of files and slab caches, not memory in tmpfs. Absent where the
    /// page cache is not known.
    pub fn reclaimable(&self) -> Option<Bytes> {
        let cache = self.inactive_file?.saturating_add(self.active_file.unwrap_or_default());
        Some(cache.saturating_add(self.slab_reclaimable.unwrap_or_default()))
    }
}

/// Parses a file with a single number.
pub fn number(text: &[u8]) -> Option<u64> {
    digits(text.strip_suffix(b"\n")?)
}

/// Parses a file with a limit: a number, or `max`.
pub fn amount(text: &[u8]) -> Option<Bound> {
    if text == b"max\n" { Some(Bound::Unbounded) } else { number(text).map(limit) }
}

/// Parses `memory.stat` of either version.
pub fn stat(text: &[u8], version: Version) -> Stat {
    let mut found = Stat::default();
    for (key, value) in keyed(text) {
        let bytes = Some(Bytes::new(value));
        match (version, key) {
            (Version::V2, b"anon") | (Version::V1, b"total_rss") => found.anon = bytes,
            (Version::V2, b"file") | (Version::V1, b"total_cache") => found.file = bytes,
            (Version::V2, b"shmem") | (Version::V1, b"total_shmem") => found.shmem = bytes,
            (Version::V2, b"inactive_file") | (Version::V1, b"total_inactive_file") => {
                found.inactive_file = bytes;
            }
            (Version::V2, b"active_file") | (Version::V1, b"total_active_file") => found.active_file = bytes,
            (Version::V2, b"slab_reclaimable") => found.slab_reclaimable = bytes,
            (Version::V2, b"kernel") => found.kernel = bytes,
            (Version::V2, b"slab") => found.slab = bytes,
            (Version::V1, b"total_swap") => found.swap = bytes,
            (Version::V1, b"hierarchical_memory_limit") => found.hierarchical_limit = limit(value),
            _ => {}
        }
    }
    found
}

/// Whether a value of `memory.swappiness` (v1) or `vm.swappiness` keeps the kernel from swapping memory of a cgroup out at its limit.
pub fn never_swaps(swappiness: &[u8]) -> bool {
    swappiness.trim_ascii() == b"0"
}

/// The swap that processes of a cgroup can use: that of the cgroup above, or of the host, bounded by the cgroup's own limit of swap.
pub fn swap_below(above: SwapRoom, limit: Bytes, used: Bytes) -> SwapRoom {
    SwapRoom { left: above.left.min(limit.saturating_sub(used)), limit: above.limit.min(limit) }
}

/// The same on v1, whose limit is one of memory and swap together: both are given as those of memory and swap, and of memory.
pub fn swap_below_both(
    above: SwapRoom,
    [both_limit, both_usage]: [Bytes; 2],
    [limit, usage]: [Bytes; 2],
) -> SwapRoom {
    swap_below(above, both_limit.saturating_sub(limit), both_usage.saturating_sub(usage))
}

/// What is left below the limit of a cgroup: its usage is compared without what the kernel takes back on demand, and processes may
/// swap out what the rest needs.
pub fn room(limit: Bytes, usage: Bytes, reclaimable: Bytes, swap: SwapRoom) -> Room {
    let memory = limit.saturating_sub(usage.saturating_sub(reclaimable));
    Room::new(memory, limit).with_swap(swap)
}

/// The same where memory and swap together have a limit too (v1): what the host has swapped out counts towards it.
pub fn within_both(room: Room, [limit, usage]: [Bytes; 2], reclaimable: Bytes) -> Room {
    let left = limit.saturating_sub(usage.saturating_sub(reclaimable));
    let memory = room.memory.min(left);
    Room { memory, swap: room.swap.min(left.saturating_sub(memory)), ..room }
}

fn limit(bytes: u64) -> Bound {
    if bytes >= UNLIMITED { Bound::Unbounded } else { Bound::At(Bytes::new(bytes)) }
}

/// The complete lines that consist of a key, a space and a number.
pub fn keyed(text: &[u8]) -> impl Iterator<Item = (&[u8], u64)> {
    let lines = text.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
    lines.filter_map(|line| {
        let space = line.iter().position(|byte| *byte == b' ')?;
        Some((&line[..space], digits(&line[space + 1..])?))
    })
}

fn digits(text: &[u8]) -> Option<u64> {
    // A number may not begin with a sign.
    std::str::from_utf8(text).ok()?.parse().ok().filter(|_| text[0].is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn mib(mib: u64) -> Bytes {
        Bytes::new(mib * MIB)
    }

    fn swap(left: u64, limit: u64) -> SwapRoom {
        SwapRoom { left: mib(left), limit: mib(limit) }
    }

    #[test]
    fn page_cache_and_reclaimable_slab_are_left_and_tmpfs_is_not() {
        let text = b"anon 4\nfile 70\nshmem 50\ninactive_file 10\nactive_file 10\nslab_reclaimable 5\n";
        assert_eq!(stat(text, Version::V2).reclaimable(), Some(Bytes::new(25)));
        let v1 = b"total_inactive_file 3\ntotal_active_file 4\ninactive_file 90\n";
        assert_eq!(stat(v1, Version::V1).reclaimable(), Some(Bytes::new(7)));
        assert_eq!(stat(b"active_file 10\n", Version::V2).reclaimable(), None);
        assert_eq!(room(mib(100), mib(90), mib(25), swap(0, 0)).left(), mib(35));
        assert_eq!(room(mib(100), mib(130), mib(25), swap(0, 0)).left(), mib(0));
    }

    #[test]
    fn swap_is_bounded_by_every_limit_above() {
        let host = swap(900, 1000);
        let pod = swap_below(host, mib(500), mib(200));
        assert_eq!(pod, swap(300, 500));
        assert_eq!(swap_below(pod, mib(400), mib(0)), swap(300, 400));
        assert_eq!(swap_below(pod, mib(0), mib(0)), swap(0, 0), "memory.swap.max is 0");
        assert_eq!(swap_below(swap(10, 1000), mib(500), mib(200)), swap(10, 500), "the host has no more");
    }

    #[test]
    fn a_limit_of_both_leaves_swap_beyond_that_of_memory() {
        let below = |both_limit, both_usage| {
            swap_below_both(swap(900, 1000), [mib(both_limit), mib(both_usage)], [mib(100), mib(80)])
        };
        assert_eq!(below(200, 130), swap(50, 100), "50 MiB are swapped out");
        assert_eq!(below(100, 80), swap(0, 0));
        // The host has swapped out 40 MiB of a group that may have no more than 100 MiB.
        let both = |limit, usage| {
            within_both(room(mib(100), mib(55), mib(5), swap(0, 0)), [mib(limit), mib(usage)], mib(5))
        };
        assert_eq!([both(100, 95).left(), both(100, 60).left()], [mib(10), mib(45)]);
        let swapping = room(mib(100), mib(55), mib(5), swap(30, 40));
        assert_eq!(
            within_both(swapping, [mib(140), mib(95)], mib(5)).left(),
            mib(50),
            "45 MiB beside 5 MiB of page cache"
        );
    }
}

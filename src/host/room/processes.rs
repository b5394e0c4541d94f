//! The memory of a set of processes, with the pages that they share counted once.
//!
//! An exact reading adds up `smaps_rollup` of all address spaces, which takes about 6 ms per GiB of small pages. Between two of
//! them, the resident memory in `statm` says how much the set has at most, and how much its processes have grown.

use std::time::Duration;

use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// Time between two exact readings, as a multiple of what the first took: a process that maps or unmaps memory waits meanwhile.
const REST: u32 = 20;
/// The same where the set may have grown beyond a level since the last one.
const REST_AT_LEVEL: u32 = 2;
/// Least time between two exact readings where the set may have reached a level that it had not, and otherwise.
const OFTEN: Duration = Duration::from_millis(100);
const SELDOM: Duration = Duration::from_secs(1);
/// Share of the limit that unread processes may hold before they are read, far from all levels.
const UNREAD: u64 = 16;

/// The memory of one address space that the kernel charges to a cgroup or has in files, where a page that several map is
/// divided among them (`Pss_Anon`, `Pss_File` and `Pss_Shmem`, proc_pid_smaps(5), since Linux 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollup {
    /// Heaps, stacks and private copies, without pages that the process has freed and the kernel takes back when it needs them
    /// (`LazyFree`, madvise(2): MADV_FREE).
    pub anon: Bytes,
    /// Files, programs and libraries.
    pub file: Bytes,
    /// Shared memory, such as files in /dev/shm.
    pub shmem: Bytes,
}

/// Parses `smaps_rollup`; nothing if a part is missing, truncated or invalid.
pub fn rollup(text: &[u8]) -> Option<Rollup> {
    let part = |name: &str| {
        // Without newline, the last digits may be missing.
        let lines = text.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
        let mut values = lines.filter_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"));
        let digits = std::str::from_utf8(values.next()?.trim_ascii()).ok()?.strip_suffix(" kB")?;
        digits.parse().ok().and_then(Bytes::from_kib)
    };
    let anon = part("Pss_Anon")?.saturating_sub(part("LazyFree").unwrap_or_default());
    Some(Rollup { anon, file: part("Pss_File")?, shmem: part("Pss_Shmem")? })
}

/// An exact reading of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exact {
    /// When it ended.
    pub at: Timestamp,
    /// What it took.
    pub took: Duration,
    /// Anonymous and shared memory, each page once.
    pub used: Bytes,
    /// Resident memory of files, which does not count.
    pub file: Bytes,
    /// Whether all processes were read; otherwise the set uses at least `used`.
    pub complete: bool,
}

/// The levels of a limit, each as the use at which it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// The limit itself.
    pub limit: Bytes,
    /// The soft and the hard level; `u64::MAX` bytes for one that is not watched.
    pub reached: [Bytes; 2],
}

/// What is known of a set at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetState {
    /// The last exact reading; absent before there is one.
    pub exact: Option<Exact>,
    /// The most that the set can use now: the resident memory of its processes, without that of files.
    pub bound: Bytes,
    /// Growth in bytes since the exact reading, of the address spaces that it has read.
    pub growth: i64,
    /// Resident memory of processes that it has not read.
    pub unread: Bytes,
}

impl SetState {
    /// The memory that the set uses. A level is reached only where an exact reading has found it reached.
    ///
    /// Absent where the set may have reached a level and no recent exact reading says whether it has.
    pub fn used(&self, levels: &Levels, now: Timestamp) -> Option<Bytes> {
        let [soft, _] = levels.reached;
        let Some(exact) = self.exact else { return (self.bound < soft).then_some(self.bound) };
        let estimate = self.estimate(&exact);
        if self.bound < soft {
            return Some(if exact.complete { estimate } else { self.bound });
        }
        let longest = Duration::from_secs(2) + exact.took * 2 * REST;
        if now.since(exact.at) > longest || (!exact.complete && exact.used < soft) {
            return None;
        }
        let next = levels.reached.into_iter().find(|level| exact.used < *level);
        Some(next.map_or(estimate, |next| estimate.min(next.saturating_sub(Bytes::new(1)))))
    }

    /// How long after the end of the last exact reading another one is to begin; absent where none is needed.
    pub fn pause(&self, levels: &Levels) -> Option<Duration> {
        let Some(exact) = self.exact else { return Some(Duration::ZERO) };
        // A process that it has not read may share all its memory with others, or none.
        let most = self.estimate(&exact).saturating_add(self.unread).min(self.bound);
        let grown = levels.reached.iter().any(|level| exact.used < *level && most >= *level);
        if grown {
            return Some(exact.took * REST_AT_LEVEL);
        }
        // Its processes may cease to share their pages without any growth.
        let may_reach = levels.reached.iter().any(|level| exact.used < *level && self.bound >= *level);
        let is_near = self.bound >= levels.reached[0];
        let many = self.unread.get() > levels.limit.get() / UNREAD;
        let least = if may_reach { OFTEN } else { SELDOM };
        (is_near || many).then(|| (exact.took * REST).max(least))
    }

    /// The exact reading and the growth since, or the most that the set can use, if that is less.
    pub fn estimate(&self, exact: &Exact) -> Bytes {
        Bytes::new(exact.used.get().saturating_add_signed(self.growth)).min(self.bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LEVELS: Levels =
        Levels { limit: Bytes::new(400 * MIB), reached: [Bytes::new(340 * MIB), Bytes::new(388 * MIB)] };

    fn mib(mib: u64) -> Bytes {
        Bytes::new(mib * MIB)
    }

    fn exact(used: u64) -> Exact {
        let took = Duration::from_millis(8);
        Exact { at: Timestamp::from_secs(10), took, used: mib(used), file: Bytes::ZERO, complete: true }
    }

    fn state(exact: Option<Exact>, bound: u64, growth: i64) -> SetState {
        SetState { exact, bound: mib(bound), growth: growth << 20, unread: Bytes::ZERO }
    }

    fn used(state: SetState) -> Option<u64> {
        state.used(&LEVELS, Timestamp::from_secs(10)).map(Bytes::get)
    }

    #[test]
    fn the_parts_of_a_rollup_are_read_whole_or_not_at_all() {
        let text = "00-ff ---p 00 00:00 0 [rollup]\nRss: 99 kB\nPss: 60 kB\nPss_Dirty: 9 kB\n\
                    Pss_Anon:  30 kB\nPss_File: 20 kB\nPss_Shmem: 10 kB\nAnonymous: 44 kB\n";
        let kib = |kib| Bytes::from_kib(kib).unwrap();
        let all = Rollup { anon: kib(30), file: kib(20), shmem: kib(10) };
        assert_eq!(rollup(text.as_bytes()), Some(all));
        let freed = format!("{text}LazyFree: 12 kB\n");
        assert_eq!(rollup(freed.as_bytes()), Some(Rollup { anon: kib(18), ..all }));
        for end in 0..text.find("Anonymous").unwrap() {
            assert_eq!(rollup(&text.as_bytes()[..end]), None, "{end}");
        }
        for bad in
            ["Pss_Anon: -1 kB", "Pss_Anon: 99999999999999999999 kB", "Pss_Anon: 1 MB", "Pss_Anonx: 1 kB"]
        {
            assert_eq!(rollup(text.replace("Pss_Anon:  30 kB", bad).as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn pages_that_children_share_reach_no_level() {
        // 150 MiB and six children that share them.
        assert_eq!(used(state(Some(exact(150)), 1050, 0)), Some(150 * MIB));
        // A child between fork and exec has all pages of its parent once more, and was not read.
        assert_eq!(used(state(Some(exact(300)), 600, 0)), Some(300 * MIB));
        assert_eq!(used(state(None, 600, 0)), None, "unknown before it was read");
        assert_eq!(used(state(None, 100, 0)), Some(100 * MIB), "so little reaches no level in any case");
    }

    #[test]
    fn a_level_is_reached_only_as_an_exact_reading_has_it() {
        let below = |level: u64| level * MIB - 1;
        assert_eq!(used(state(Some(exact(330)), 400, 15)), Some(below(340)));
        assert_eq!(used(state(Some(exact(340)), 400, 10)), Some(350 * MIB));
        assert_eq!(used(state(Some(exact(340)), 400, 60)), Some(below(388)));
        assert_eq!(used(state(Some(exact(388)), 500, 60)), Some(448 * MIB));
        // Memory that is freed counts at once.
        assert_eq!(used(state(Some(exact(388)), 400, -100)), Some(288 * MIB));
        assert_eq!(used(state(Some(exact(388)), 90, 0)), Some(90 * MIB));
    }

    #[test]
    fn what_was_not_read_in_time_or_in_part_is_unknown() {
        let at = |second, exact| state(Some(exact), 400, 0).used(&LEVELS, Timestamp::from_secs(second));
        assert_eq!(at(12, exact(100)), Some(mib(100)));
        assert_eq!(at(13, exact(100)), None);
        let part = |used| Exact { complete: false, ..exact(used) };
        assert_eq!(at(10, part(339)), None);
        assert_eq!(at(10, part(340)), Some(mib(340)), "at least as much is used");
        assert_eq!(used(state(Some(part(100)), 200, 0)), Some(mib(200).get()));
    }

    #[test]
    fn a_set_is_read_again_as_soon_as_that_can_change_anything() {
        let pause =
            |exact, bound, growth| state(exact, bound, growth).pause(&LEVELS).map(|pause| pause.as_millis());
        assert_eq!(pause(None, 1, 0), Some(0));
        assert_eq!(pause(Some(exact(100)), 339, 10), None, "no level is reached");
        assert_eq!(pause(Some(exact(100)), 340, 10), Some(160), "its processes may cease to share");
        assert_eq!(pause(Some(exact(330)), 360, 10), Some(16), "it has grown beyond a level");
        assert_eq!(pause(Some(exact(345)), 360, 10), Some(1000), "the level is known to be reached");
        let unread = SetState { unread: mib(26), ..state(Some(exact(100)), 200, 0) };
        assert_eq!(unread.pause(&LEVELS), Some(Duration::from_secs(1)));
        let new = SetState { unread: mib(250), ..state(Some(exact(100)), 500, 0) };
        assert_eq!(new.pause(&LEVELS), Some(Duration::from_millis(16)), "with it the level may be reached");
    }

    proptest::proptest! {
        #[test]
        fn no_level_is_reached_without_an_exact_reading(
            read in proptest::option::of((0_u64..600, proptest::bool::ANY)),
            bound in 0_u64..2000,
            growth in -600_i64..600,
            second in 10_u64..20,
        ) {
            let exact = read.map(|(used, complete)| Exact { complete, ..exact(used) });
            let found = state(exact, bound, growth).used(&LEVELS, Timestamp::from_secs(second));
            for level in LEVELS.reached {
                let reached = found.is_some_and(|found| found >= level);
                assert!(!reached || exact.is_some_and(|exact| exact.used >= level));
            }
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = rollup(&bytes);
        }
    }
}

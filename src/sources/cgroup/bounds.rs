//! The limits that apply to a cgroup: its own and those of all ancestors.

use super::reading::Reading;
use crate::host::room::group::{self, Bound};
use crate::model::room::{Room, SwapRoom};
use crate::model::units::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub limit: Bound,
    /// The smallest room below one of the limits, swap included.
    pub headroom: Bound,
    /// The same without swap.
    pub memory: Bound,
    /// The swap that its processes can use.
    pub swap: SwapRoom,
}

impl Bounds {
    /// Limits above the topmost visible cgroup, where this swap can be used.
    pub const fn none(swap: SwapRoom) -> Self {
        Self { limit: Bound::Unbounded, headroom: Bound::Unbounded, memory: Bound::Unbounded, swap }
    }

    /// Limits of a parent that could not be read.
    pub const UNKNOWN: Self = Self {
        limit: Bound::Unknown,
        headroom: Bound::Unknown,
        memory: Bound::Unknown,
        swap: SwapRoom { left: Bytes::ZERO, limit: Bytes::ZERO },
    };

    /// The limits of a cgroup whose parent has the limits `self`.
    ///
    /// Each limit is compared with the usage of the cgroup that has it: a parent's limit is shared with siblings.
    #[must_use]
    pub fn below(self, reading: &Reading) -> Self {
        let swap = reading.swap_below(self.swap);
        let used = reading.usage.zip(reading.stat.reclaimable());
        let room = |limit: Bytes| {
            let (usage, reclaimable) = used?;
            let room = group::room(limit, usage, reclaimable, swap);
            let both = reading.both_limit.bytes().zip(reading.both_usage);
            Some(both.map_or(room, |(limit, usage)| group::within_both(room, [limit, usage], reclaimable)))
        };
        let left = |limit: Bound, part: fn(Room) -> Bytes| match limit {
            Bound::At(limit) => room(limit).map_or(Bound::Unknown, |room| Bound::At(part(room))),
            other => other,
        };
        let of_swap = [self.headroom, self.memory];
        let parts: [fn(Room) -> Bytes; 2] = [Room::left, |room| room.memory];
        // v1 reports the smallest limit on the path, including ancestors outside a container. Their usage is at least that of the
        // cgroup, which gives an upper bound of the headroom.
        let hidden = reading.stat.hierarchical_limit;
        let [headroom, memory] = [0, 1].map(|place| {
            let part = parts[place];
            of_swap[place].tighter(left(reading.limit, part)).tighter(left(hidden, part))
        });
        Self { limit: self.limit.tighter(reading.limit).tighter(hidden), headroom, memory, swap }
    }

    /// These limits for the processes of a group whose pages are never swapped out to stay below them (v1).
    #[must_use]
    pub const fn without_swap(self) -> Self {
        let none = SwapRoom { left: Bytes::ZERO, limit: Bytes::ZERO };
        Self { headroom: self.memory, swap: none, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::room::group::Stat;

    fn reading(limit: Bound, usage: u64, inactive_file: Option<u64>) -> Reading {
        Reading {
            limit,
            usage: Some(Bytes::new(usage)),
            stat: Stat { inactive_file: inactive_file.map(Bytes::new), ..Stat::default() },
            ..Reading::default()
        }
    }

    fn at(bytes: u64) -> Bound {
        Bound::At(Bytes::new(bytes))
    }

    /// The limits of the last of these cgroups, each of which is below the one before.
    #[track_caller]
    fn check(path: &[Reading], limit: Bound, headroom: Bound) {
        let swap = SwapRoom { left: Bytes::new(30), limit: Bytes::new(40) };
        for (host, more) in [(SwapRoom::default(), 0), (swap, 30)] {
            let found = path.iter().fold(Bounds::none(host), Bounds::below);
            let with_swap = headroom.bytes().map(|bytes| Bound::At(Bytes::new(bytes.get() + more)));
            assert_eq!((found.limit, found.headroom), (limit, with_swap.unwrap_or(headroom)));
        }
    }

    #[test]
    fn the_smallest_limit_may_leave_more_headroom() {
        let parent = || reading(at(100), 95, Some(0));
        check(&[parent(), reading(at(50), 10, Some(0))], at(50), at(5));
        check(&[parent(), reading(Bound::Unbounded, 10, Some(0))], at(100), at(5));
        check(&[reading(at(40), 10, Some(0)), reading(at(80), 5, Some(0))], at(40), at(30));
    }

    #[test]
    fn reclaimable_cache_is_headroom_and_excess_usage_is_not() {
        check(&[reading(at(100), 90, Some(60))], at(100), at(70));
        check(&[reading(at(100), 130, Some(0))], at(100), at(0));
        check(&[reading(at(100), 10, Some(60))], at(100), at(100));
    }

    #[test]
    fn unknown_headroom_is_absent() {
        check(
            &[reading(Bound::Unknown, 1, Some(0)), reading(at(9), 1, Some(0))],
            Bound::Unknown,
            Bound::Unknown,
        );
        check(&[reading(at(9), 1, None)], at(9), Bound::Unknown);
        check(&[reading(Bound::Unbounded, 1, None)], Bound::Unbounded, Bound::Unbounded);
    }

    #[test]
    fn a_limit_of_swap_or_of_both_bounds_what_can_be_swapped_out() {
        let host = Bounds::none(SwapRoom { left: Bytes::new(1000), limit: Bytes::new(1000) });
        let headroom = |reading: &Reading| host.below(reading).headroom;
        let of_v1 = |both: Bound, used: u64| Reading {
            both_limit: both,
            both_usage: Some(Bytes::new(used)),
            ..reading(at(100), 60, Some(0))
        };
        assert_eq!(
            headroom(&of_v1(at(100), 90)),
            at(10),
            "30 bytes were swapped out for the host, and count"
        );
        assert_eq!(headroom(&of_v1(at(150), 90)), at(60));
        assert_eq!(headroom(&of_v1(Bound::Unbounded, 90)), at(1040));
        let of_v2 = |limit: Option<u64>, used: u64| Reading {
            swap_limit: limit.map(Bytes::new),
            swap_usage: Some(Bytes::new(used)),
            ..reading(at(100), 60, Some(0))
        };
        assert_eq!(
            [of_v2(Some(0), 0), of_v2(Some(50), 20), of_v2(None, 20)].map(|own| headroom(&own)),
            [at(40), at(70), at(1040)]
        );
    }

    #[test]
    fn swap_counts_by_the_swappiness_of_the_group_whose_pages_they_are() {
        let host = Bounds::none(SwapRoom { left: Bytes::new(30), limit: Bytes::new(40) });
        let parent = Reading { never_swaps: true, ..reading(at(100), 95, Some(0)) };
        let below = host.below(&parent).below(&reading(Bound::Unbounded, 90, Some(0)));
        assert_eq!((below.headroom, below.without_swap().headroom), (at(35), at(5)));
        assert_eq!(below.without_swap().swap, SwapRoom::default());
    }

    #[test]
    fn v1_knows_limits_above_a_container() {
        let mut inside = reading(Bound::Unbounded, 30, Some(10));
        inside.stat.hierarchical_limit = at(50);
        check(&[inside], at(50), at(30));
    }
}

//! The limits that apply to a cgroup: its own and those of all ancestors.

use super::reading::Reading;
use crate::model::units::Bytes;

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

    /// The bound minus `used`, or zero if more is used.
    fn minus(self, used: Option<Bytes>) -> Self {
        match (self, used) {
            (Self::At(limit), Some(used)) => Self::At(limit.saturating_sub(used)),
            (Self::At(_), None) => Self::Unknown,
            (other, _) => other,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub limit: Bound,
    /// The smallest headroom below one of the limits.
    pub headroom: Bound,
}

impl Bounds {
    /// Limits above the topmost visible cgroup.
    pub const NONE: Self = Self { limit: Bound::Unbounded, headroom: Bound::Unbounded };

    /// Limits of a parent that could not be read.
    pub const UNKNOWN: Self = Self { limit: Bound::Unknown, headroom: Bound::Unknown };

    /// The limits of a cgroup whose parent has the limits `self`.
    ///
    /// Each limit is compared with the working set of the cgroup that has it:
    /// a parent's limit is shared with siblings.
    #[must_use]
    pub fn below(self, reading: &Reading) -> Self {
        let working_set = reading.working_set();
        // v1 reports the smallest limit on the path, including ancestors outside a
        // container. Their usage is at least that of the cgroup, which gives an upper bound of the headroom.
        let hidden = reading.stat.hierarchical_limit;
        let both_used = reading
            .both_usage
            .zip(reading.stat.inactive_file)
            .map(|(used, cache)| used.saturating_sub(cache));
        Self {
            limit: self.limit.tighter(reading.limit).tighter(hidden),
            headroom: self
                .headroom
                .tighter(reading.limit.minus(working_set))
                .tighter(hidden.minus(working_set))
                .tighter(reading.both_limit.minus(both_used)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::cgroup::parse::Stat;

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
        let found = path.iter().fold(Bounds::NONE, Bounds::below);
        assert_eq!(found, Bounds { limit, headroom });
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
    fn memory_with_swap_can_be_the_bound() {
        let mut swapped = reading(at(100), 60, Some(0));
        swapped.both_limit = at(100);
        swapped.both_usage = Some(Bytes::new(90));
        check(&[swapped], at(100), at(10));
    }

    #[test]
    fn v1_knows_limits_above_a_container() {
        let mut inside = reading(Bound::Unbounded, 30, Some(10));
        inside.stat.hierarchical_limit = at(50);
        check(&[inside], at(50), at(30));
    }
}

//! Peak memory of processes that ended, kept for a while in bounded memory.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::fair::{Room, Table};
use crate::model::label::Label;
use crate::model::shortage::{Refusals, Shortage};
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// Most workloads kept; beyond it, the workload of the user with the most whose last exit is the oldest is removed.
const MOST_WORKLOADS: usize = 1_000;
/// Most candidates of one workload: one per sample, and only while each peak is smaller than the one before.
const MOST_CANDIDATES: usize = 64;

/// Peaks of ended processes, by workload; an entry outlives the workload's last process.
#[derive(Debug)]
pub(super) struct Exits {
    workloads: Table<u32, Label, Ended>,
    /// Workloads that were removed recently. This happens when others end, so not at every sample.
    evicted: Refusals,
}

/// The ended processes of one workload.
///
/// Times increase, peaks decrease: an older entry that is not larger can never be exposed.
type Ended = VecDeque<(Timestamp, Bytes)>;

impl Default for Exits {
    fn default() -> Self {
        Self { workloads: Table::new(MOST_WORKLOADS), evicted: Refusals::new("exited_workload_peaks") }
    }
}

impl Exits {
    /// Records a process that ended, in a workload of this user.
    pub(super) fn record(&mut self, workload: &Label, user: u32, peak: Bytes, at: Timestamp) {
        if !self.workloads.contains_key(workload) {
            let oldest = |_: &Label, peaks: &Ended| peaks.back().map(|(at, _)| at.monotonic());
            match self.workloads.make_room(user, oldest) {
                Room::Free => {}
                Room::Evicted(other, ..) => self.evicted.note(Some(other), at),
                Room::Refused => {
                    self.evicted.note(Some(user), at);
                    if self.workloads.evict(user, oldest).is_none() {
                        return;
                    }
                }
            }
            self.workloads.insert(user, workload.clone(), Ended::new());
        }
        let Some(peaks) = self.workloads.get_mut(workload) else { return };
        while peaks.back().is_some_and(|(_, smaller)| *smaller <= peak) {
            peaks.pop_back();
        }
        let full = peaks.len() >= MOST_CANDIDATES;
        match peaks.back_mut() {
            Some((last, _)) if *last == at => {}
            // The smallest entry is kept longer, in place of the new one: the value may be too large, never too small.
            Some((last, _)) if full => *last = at,
            _ => peaks.push_back((at, peak)),
        }
    }

    /// Removes processes that ended longer ago than `hold`.
    pub(super) fn forget(&mut self, at: Timestamp, hold: Duration) {
        self.workloads.retain(|_, peaks| {
            while peaks.front().is_some_and(|(ended, _)| at.since(*ended) > hold) {
                peaks.pop_front();
            }
            !peaks.is_empty()
        });
    }

    /// Number of workloads removed recently, by user.
    pub(super) fn shortages(&mut self, at: Timestamp) -> impl Iterator<Item = Shortage> {
        self.evicted.shortages(MOST_WORKLOADS, at)
    }

    /// The largest peak of each workload.
    pub(super) fn peaks(&self) -> impl Iterator<Item = (&Label, Bytes)> {
        self.workloads.iter().filter_map(|(name, ended)| Some((name, ended.front()?.1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_secs(3600);

    fn at(second: u64) -> Timestamp {
        Timestamp::from_secs(second)
    }

    fn size(exits: &Exits) -> usize {
        exits.workloads.iter().map(|(_, ended)| ended.len()).sum()
    }

    #[test]
    fn many_exits_take_little_memory_and_the_largest_is_shown() {
        let job = Label::from("job");
        let mut exits = Exits::default();
        for second in 0..600 {
            for place in 0..1_000 {
                // Decreasing peaks are the worst case: none of them replaces another.
                exits.record(&job, 0, Bytes::new(1_000_000_000 - second * 1_000 - place), at(second));
            }
            exits.forget(at(second), HOLD);
            assert!(size(&exits) <= MOST_CANDIDATES);
        }
        assert_eq!(exits.peaks().next(), Some((&job, Bytes::new(1_000_000_000))));
        // The last one is never removed too early, and at most once too late.
        exits.forget(at(599).plus(HOLD), HOLD);
        assert_eq!(size(&exits), 1);
        exits.forget(at(600).plus(HOLD), HOLD);
        assert_eq!(exits.peaks().count(), 0);
    }

    #[test]
    fn more_workloads_than_fit_evict_the_oldest() {
        let name = |number: u64| Label::from(format!("job-{number}"));
        let mut exits = Exits::default();
        for number in 0..1_500 {
            exits.record(&name(number), 0, Bytes::new(7), at(number));
            exits.record(&name(0), 0, Bytes::new(9), at(number));
        }
        assert_eq!(exits.workloads.len(), MOST_WORKLOADS);
        assert!(exits.workloads.contains_key(&name(0)) && exits.workloads.contains_key(&name(1_499)));
        assert!(!exits.workloads.contains_key(&name(1)));
    }

    #[test]
    fn a_user_with_many_ended_workloads_evicts_its_own() {
        let mut exits = Exits::default();
        exits.record(&"ada".into(), 1001, Bytes::new(7), at(0));
        for number in 0..3_000 {
            exits.record(&format!("eve-{number}").into(), 1002, Bytes::new(7), at(1 + number));
        }
        assert!(exits.workloads.contains_key(&Label::from("ada")));
        let mut shortages_at = |second| -> Vec<_> {
            exits
                .shortages(at(second))
                .map(|shortage| (shortage.limit, shortage.user, shortage.left_out))
                .collect()
        };
        let stated = vec![("exited_workload_peaks", Some(1002), 2_001)];
        // It is reported also while nothing ends, so that the finding does not appear and disappear.
        assert_eq!(
            [shortages_at(3_000), shortages_at(3_001), shortages_at(3_059)],
            [stated.clone(), stated.clone(), stated]
        );
        assert!(shortages_at(3_060).is_empty());
        exits.record(&"bob".into(), 1003, Bytes::new(7), at(9_000));
        assert!(exits.workloads.contains_key(&Label::from("bob")));
        exits.forget(at(20_000), HOLD);
        assert_eq!((exits.workloads.len(), exits.workloads.of(1002)), (0, 0));
    }

    proptest::proptest! {
        #[test]
        fn the_peak_is_that_of_all_that_ended_within_the_hold(
            peaks in proptest::collection::vec((0_u64..3, 0_u64..50), 1..60),
            hold in 0_u64..20,
        ) {
            let (job, hold) = (Label::from("job"), Duration::from_secs(hold));
            let (mut exits, mut all, mut second) = (Exits::default(), Vec::new(), 0);
            for (pause, peak) in peaks {
                second += pause;
                exits.record(&job, 0, Bytes::new(peak), at(second));
                all.push((at(second), Bytes::new(peak)));
                exits.forget(at(second), hold);
                let held = all.iter().filter(|(ended, _)| at(second).since(*ended) <= hold);
                let largest = held.map(|(_, peak)| *peak).max();
                proptest::prop_assert_eq!(exits.peaks().next().map(|(_, peak)| peak), largest);
            }
        }
    }
}

//! The peaks of members that ended, held for a while in bounded memory.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// The most workloads remembered; the one that nobody left for the longest makes room.
const MOST_WORKLOADS: usize = 1_000;
/// The most candidates of one workload: one a sample, and only while each peak is smaller than the one before.
const MOST_CANDIDATES: usize = 64;

/// Peaks of the ended, by workload; a workload outlives its last member here.
#[derive(Debug, Default)]
pub(super) struct Exits {
    /// Times rise, peaks fall: what is older and no larger can never be shown.
    workloads: BTreeMap<Label, VecDeque<(Timestamp, Bytes)>>,
}

impl Exits {
    /// Remembers a member that ended.
    pub(super) fn record(&mut self, workload: &Label, peak: Bytes, at: Timestamp) {
        if self.workloads.len() >= MOST_WORKLOADS && !self.workloads.contains_key(workload) {
            let last = |queue: &VecDeque<(Timestamp, Bytes)>| queue.back().map(|(at, _)| at.monotonic());
            let oldest = self.workloads.iter().min_by_key(|(_, queue)| last(queue));
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.workloads.remove(&oldest);
            }
        }
        let queue = self.workloads.entry(workload.clone()).or_default();
        while queue.back().is_some_and(|(_, smaller)| *smaller <= peak) {
            queue.pop_back();
        }
        let full = queue.len() >= MOST_CANDIDATES;
        match queue.back_mut() {
            Some((last, _)) if *last == at => {}
            // The smallest is held a little longer for the new one: too much, never too little.
            Some((last, _)) if full => *last = at,
            _ => queue.push_back((at, peak)),
        }
    }

    /// Forgets what ended longer ago than `hold`.
    pub(super) fn forget(&mut self, at: Timestamp, hold: Duration) {
        self.workloads.retain(|_, queue| {
            while queue.front().is_some_and(|(ended, _)| at.since(*ended) > hold) {
                queue.pop_front();
            }
            !queue.is_empty()
        });
    }

    /// The largest peak of each workload.
    pub(super) fn peaks(&self) -> impl Iterator<Item = (&Label, Bytes)> {
        self.workloads.iter().filter_map(|(name, queue)| Some((name, queue.front()?.1)))
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
        exits.workloads.values().map(VecDeque::len).sum()
    }

    #[test]
    fn a_storm_of_exits_stays_small_and_the_largest_stays_shown() {
        let job = Label::from("job");
        let mut exits = Exits::default();
        for second in 0..600 {
            for place in 0..1_000 {
                // Falling peaks are the worst case: none of them replaces another.
                exits.record(&job, Bytes::new(1_000_000_000 - second * 1_000 - place), at(second));
            }
            exits.forget(at(second), HOLD);
            assert!(size(&exits) <= MOST_CANDIDATES);
        }
        assert_eq!(exits.peaks().next(), Some((&job, Bytes::new(1_000_000_000))));
        // The last one is never forgotten too early, nor more than once too late.
        exits.forget(at(599).plus(HOLD), HOLD);
        assert_eq!(size(&exits), 1);
        exits.forget(at(600).plus(HOLD), HOLD);
        assert_eq!(exits.peaks().count(), 0);
    }

    #[test]
    fn more_workloads_than_fit_push_out_the_oldest() {
        let name = |number: u64| Label::from(format!("job-{number}"));
        let mut exits = Exits::default();
        for number in 0..1_500 {
            exits.record(&name(number), Bytes::new(7), at(number));
            exits.record(&name(0), Bytes::new(9), at(number));
        }
        assert_eq!(exits.workloads.len(), MOST_WORKLOADS);
        assert!(exits.workloads.contains_key(&name(0)) && exits.workloads.contains_key(&name(1_499)));
        assert!(!exits.workloads.contains_key(&name(1)));
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
                exits.record(&job, Bytes::new(peak), at(second));
                all.push((at(second), Bytes::new(peak)));
                exits.forget(at(second), hold);
                let held = all.iter().filter(|(ended, _)| at(second).since(*ended) <= hold);
                let largest = held.map(|(_, peak)| *peak).max();
                proptest::prop_assert_eq!(exits.peaks().next().map(|(_, peak)| peak), largest);
            }
        }
    }
}

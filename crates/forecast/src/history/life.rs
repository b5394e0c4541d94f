//! The complete history of one series: its newest samples in fine buckets, its past in coarse ones.
//!
//! A leak that began ten minutes ago in a program that has run for a week is visible in the newest samples; one of a
//! little each day, in the whole history. Both have a fixed size.

use serde::{Deserialize, Serialize};

use crate::history::buckets::{Bucket, Buckets, CHANNELS};
use crate::history::excursions::Excursions;
use crate::history::past::Past;
use crate::rules::Rules;

/// The history of one series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Life {
    recent: Buckets,
    past: Past,
    #[serde(default)]
    peaks: Excursions,
}

impl Life {
    /// Maximum size in bytes, including the heap.
    pub const BOUND: usize = Buckets::BOUND + Past::BOUND + Excursions::BOUND;

    /// Records the finite values of one sample, and the larger value that the first channel had since the sample
    /// before, if it had one.
    pub fn push(&mut self, at: f64, values: [Option<f64>; CHANNELS], peak: Option<f64>, rules: &Rules) {
        for value in peak.into_iter().chain(values[0]) {
            self.peaks.push(at, value, rules);
        }
        if let Some(left) = self.recent.push(at, values, peak) {
            self.past.take(&left);
        }
    }

    /// The newest samples.
    pub fn recent(&self) -> &Buckets {
        &self.recent
    }

    /// The older samples; empty in a short history.
    pub fn past(&self) -> &Past {
        &self.past
    }

    /// The newest peaks of the first channel.
    pub fn peaks(&self) -> &Excursions {
        &self.peaks
    }

    /// Passes all buckets to `each`, oldest first, the newest samples as coarse as the past.
    pub fn whole(&self, mut each: impl FnMut(Bucket)) {
        self.past.all().for_each(&mut each);
        self.recent.in_groups_of(self.past.width(), each);
    }

    /// Moves the newest samples before `at`, in seconds since the series began, into the past. A short history has no
    /// past: there they are removed.
    pub fn retire(&mut self, at: f64) {
        let old = !self.past.is_empty();
        self.peaks.cut(at);
        for bucket in self.recent.cut(at) {
            if old {
                self.past.take(&bucket);
            }
        }
    }

    /// Removes the past before `at`, in seconds since the series began.
    pub fn cut_past(&mut self, at: f64) {
        self.past.cut(at);
    }

    /// Removes the values of one channel.
    pub fn clear_channel(&mut self, channel: usize) {
        self.recent.clear_channel(channel);
        self.past.clear_channel(channel);
    }

    /// Whether a restored state is valid at `now`.
    pub fn is_sound(&self, now: f64) -> bool {
        let newest = self.past.all().last().map_or(0.0, |bucket| f64::from(bucket.at));
        let oldest =
            self.recent.all().first().map_or(now, |bucket| self.recent.base() + f64::from(bucket.at));
        // Times have 24 bits of precision.
        self.recent.is_sound(now)
            && self.past.is_sound(now)
            && self.peaks.is_sound(now)
            && newest <= oldest * 1.000_001
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(life: &Life) -> Vec<Bucket> {
        let mut all = Vec::new();
        life.whole(|bucket| all.push(bucket));
        all
    }

    #[test]
    fn a_long_history_fits_evenly_with_its_extremes_and_its_mean() {
        let mut life = Life::default();
        for i in 0..1_000_000_u32 {
            let value = if i == 31_415 { 9.0 } else { f64::from(i % 2) };
            life.push(f64::from(i), [Some(value), None], None, Rules::DAEMON);
            if i % 997 == 0 {
                assert!(life.is_sound(f64::from(i)) && whole(&life).len() <= 60, "after {i}");
            }
        }
        let all = whole(&life);
        assert!(all.len() >= 18 && all.is_sorted_by(|one, next| one.at < next.at));
        let spans: Vec<_> = all.iter().filter_map(|bucket| bucket.span(0)).collect();
        assert!(spans.iter().any(|span| (span.max - 9.0).abs() < 0.1));
        assert!(spans.iter().all(|span| span.min < 0.01 && (span.mean - 0.5).abs() < 0.01));
        let gaps: Vec<f32> = all.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
        let widest = gaps.iter().copied().fold(0.0, f32::max);
        assert!(widest < 1_000_000.0 / 17.0, "{gaps:?}");
        assert!(all.last().is_some_and(|newest| newest.at > 999_000.0));
    }

    #[test]
    fn only_a_long_history_has_older_values() {
        let mut life = Life::default();
        for i in 0..1_000_u32 {
            life.push(f64::from(i), [Some(1.0), None], None, Rules::DAEMON);
        }
        assert!(life.past().is_empty());
        life.retire(400.0);
        assert!(life.past().is_empty() && whole(&life)[0].at >= 400.0);
        for i in 1_000..5_000_u32 {
            life.push(f64::from(i), [Some(1.0), None], None, Rules::DAEMON);
        }
        let before = whole(&life);
        life.retire(4_500.0);
        assert!(!life.past().is_empty() && life.is_sound(5_000.0) && !life.is_sound(4_000.0));
        assert_eq!(whole(&life).first(), before.first());
        life.cut_past(f64::from(before[3].at));
        assert_eq!(whole(&life)[0].at, before[3].at);
        life.cut_past(4_900.0);
        assert!(life.past().is_empty() && life.is_sound(5_000.0));
        life.clear_channel(0);
        assert!(whole(&life).iter().all(|bucket| bucket.span(0).is_none()));
    }
}

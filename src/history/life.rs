//! The whole life of one series: its newest samples finely, its past coarsely.
//!
//! A program that has run for a week and leaks since ten minutes is seen in the newest samples; one that leaks a
//! little each day, in the whole. Both have a fixed size.

use serde::{Deserialize, Serialize};

use super::buckets::{Bucket, Buckets, CHANNELS};
use super::past::Past;

/// The history of one series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Life {
    recent: Buckets,
    past: Past,
}

impl Life {
    /// The most bytes that a life takes, heap included.
    pub const BOUND: usize = Buckets::BOUND + Past::BOUND;

    /// Records the finite values of one sample, taken `at` seconds after the series began.
    pub fn push(&mut self, at: f64, values: [Option<f64>; CHANNELS]) {
        if let Some(left) = self.recent.push(at, values) {
            self.past.take(&left);
        }
    }

    /// The newest samples.
    pub fn recent(&self) -> &Buckets {
        &self.recent
    }

    /// What is older than those; nothing in a young life.
    pub fn past(&self) -> &Past {
        &self.past
    }

    /// Tells the buckets of all of it, oldest first, the newest samples as coarsely as the past.
    pub fn whole(&self, mut tell: impl FnMut(Bucket)) {
        self.past.all().for_each(&mut tell);
        self.recent.in_groups_of(self.past.width(), tell);
    }

    /// Moves the newest samples before the bucket `first` into the past. A young life has none: there they are forgotten.
    pub fn retire(&mut self, first: usize) {
        if !self.past.is_empty() {
            let leaving = first.min(self.recent.all().len());
            for bucket in &self.recent.all()[..leaving] {
                self.past.take(bucket);
            }
        }
        self.recent.cut(first);
    }

    /// Forgets the `first` oldest buckets of the past.
    pub fn cut_past(&mut self, first: usize) {
        self.past.cut(first);
    }

    /// Forgets one channel.
    pub fn clear_channel(&mut self, channel: usize) {
        self.recent.clear_channel(channel);
        self.past.clear_channel(channel);
    }

    /// Whether a state that was read back can have been written by this program.
    pub fn is_sound(&self) -> bool {
        self.recent.is_sound() && self.past.is_sound()
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
    fn a_long_life_fits_evenly_with_its_extremes_and_its_mean() {
        let mut life = Life::default();
        for i in 0..1_000_000_u32 {
            let value = if i == 31_415 { 9.0 } else { f64::from(i % 2) };
            life.push(f64::from(i), [Some(value), None]);
            if i % 997 == 0 {
                assert!(life.is_sound() && whole(&life).len() <= 60, "after {i}");
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
    fn a_young_life_has_no_past_and_an_old_one_keeps_it() {
        let mut life = Life::default();
        for i in 0..1_000_u32 {
            life.push(f64::from(i), [Some(1.0), None]);
        }
        assert!(life.past().is_empty());
        life.retire(20);
        assert!(life.past().is_empty());
        for i in 1_000..5_000_u32 {
            life.push(f64::from(i), [Some(1.0), None]);
        }
        let before = whole(&life);
        life.retire(20);
        assert!(!life.past().is_empty() && life.is_sound());
        assert_eq!(whole(&life).first(), before.first());
        life.cut_past(3);
        assert!(whole(&life)[0].at > before[2].at);
        life.cut_past(1_000);
        assert!(life.past().is_empty() && life.is_sound());
        life.clear_channel(0);
        assert!(whole(&life).iter().all(|bucket| bucket.span(0).is_none()));
    }
}

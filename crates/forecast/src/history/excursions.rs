//! The newest peaks of one series, and the tallest of them, for longer than its newest samples.
//!
//! A level that rises by a threshold and then falls by it had a peak (a zigzag filter). The threshold is a share of
//! the highest peak in memory, so that noise below large peaks is not recorded. A fixed number of peaks is kept,
//! however far they are apart. There are two records: one of the tallest peaks, and one of nearly all, because a
//! checkpoint every hour and an evaluation every minute have different peaks.

use serde::{Deserialize, Serialize};

use crate::rules::Rules;

/// Twice the largest accepted value of memory, in bytes: 16 PiB.
const LARGEST: f32 = 1.8e16;
/// Maximum number of peaks in each record.
pub const CAPACITY: usize = 14;

/// A peak, in bytes and in seconds since the series began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// When it nearly reached its highest value.
    pub at: f64,
    /// Its highest value.
    pub top: f64,
    /// The smaller one of its rise and its fall.
    pub height: f64,
}

/// The peaks of one series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Excursions {
    tall: Zigzag,
    all: Zigzag,
}

impl Excursions {
    /// Maximum size in bytes, including the heap.
    pub const BOUND: usize = size_of::<Self>() + 2 * CAPACITY * size_of::<Kept>();

    /// Records a finite value, taken `at` seconds after the series began.
    pub fn push(&mut self, at: f64, value: f64, rules: &Rules) {
        self.tall.push(at, value, rules.peak_tall, rules);
        self.all.push(at, value, rules.peak_all, rules);
    }

    /// The tallest peaks, oldest first.
    pub fn tall(&self) -> impl ExactSizeIterator<Item = Peak> {
        self.tall.peaks()
    }

    /// Nearly all peaks, oldest first.
    pub fn all(&self) -> impl ExactSizeIterator<Item = Peak> {
        self.all.peaks()
    }

    /// The rise that the newest samples are in, with its highest value so far, as the record of tall peaks or of all
    /// sees it; absent while the level falls.
    pub fn rising(&self, tall: bool) -> Option<Peak> {
        if tall { self.tall.rising() } else { self.all.rising() }
    }

    /// Removes the peaks before `at`, in seconds since the series began.
    pub fn cut(&mut self, at: f64) {
        self.tall.cut(at);
        self.all.cut(at);
    }

    /// Whether a restored state is valid at `now`.
    pub fn is_sound(&self, now: f64) -> bool {
        self.tall.is_sound(now) && self.all.is_sound(now)
    }
}

/// A recorded peak; its time is relative to [`Zigzag::base`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    at: f32,
    top: f32,
    height: f32,
}

/// The newest peaks above a share of the highest one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Zigzag {
    /// The base of the times, in seconds since the series began.
    base: f64,
    peaks: Vec<Kept>,
    /// The height of the highest peak, which fades.
    highest: f32,
    /// The highest value since the last low point, or the lowest one since the last peak.
    turn: f32,
    /// When that value was nearly reached, relative to the base.
    turn_at: f32,
    /// The low point before.
    low: f32,
    rises: bool,
    begun: bool,
}

impl Zigzag {
    #[expect(clippy::cast_possible_truncation, reason = "24 bits of a value and of a time are enough")]
    fn push(&mut self, at: f64, value: f64, share: f32, rules: &Rules) {
        let (at, value) = ((at - self.base) as f32, value as f32);
        if !self.begun {
            (self.turn, self.turn_at, self.low, self.rises, self.begun) = (value, at, value, true, true);
            return;
        }
        self.highest *= rules.peak_remains;
        let least = (share * self.highest).max(rules.peak_least * value);
        if self.rises {
            if value > self.turn {
                if value > self.turn + rules.peak_top * least {
                    self.turn_at = at;
                }
                self.turn = value;
            } else if value < self.turn - least {
                self.record();
                (self.turn, self.rises) = (value, false);
            }
        } else {
            self.turn = self.turn.min(value);
            if value > self.turn + least {
                self.complete(share);
                (self.low, self.turn, self.turn_at, self.rises) = (self.turn, value, at, true);
            }
        }
    }

    /// Records the peak that has just ended, with its rise as its height.
    fn record(&mut self) {
        if self.peaks.len() == CAPACITY {
            self.peaks.remove(0);
            let by = self.peaks[0].at;
            for kept in &mut self.peaks {
                kept.at -= by;
            }
            self.turn_at -= by;
            self.base += f64::from(by);
        }
        if self.peaks.len() == self.peaks.capacity() {
            let more = CAPACITY.min(self.peaks.len().max(2) * 2) - self.peaks.len();
            self.peaks.reserve_exact(more);
        }
        self.peaks.push(Kept { at: self.turn_at, top: self.turn, height: (self.turn - self.low).max(0.0) });
    }

    /// Limits the height of the newest peak to its fall, and keeps only peaks that reach the threshold: the end of a
    /// start-up is a rise without a fall.
    fn complete(&mut self, share: f32) {
        let Some(last) = self.peaks.last_mut() else { return };
        last.height = last.height.min(last.top - self.turn).max(0.0);
        self.highest = self.highest.max(last.height);
        let least = share * self.highest;
        self.peaks.retain(|kept| kept.height >= least);
    }

    fn peak(&self, kept: &Kept) -> Peak {
        Peak { at: self.base + f64::from(kept.at), top: f64::from(kept.top), height: f64::from(kept.height) }
    }

    fn peaks(&self) -> impl ExactSizeIterator<Item = Peak> {
        self.peaks.iter().map(|kept| self.peak(kept))
    }

    fn rising(&self) -> Option<Peak> {
        let height = self.turn - self.low;
        self.rises.then(|| self.peak(&Kept { at: self.turn_at, top: self.turn, height }))
    }

    fn cut(&mut self, at: f64) {
        let base = self.base;
        self.peaks.retain(|kept| base + f64::from(kept.at) >= at);
        self.highest = self.peaks.iter().map(|kept| kept.height).fold(0.0, f32::max);
    }

    fn is_sound(&self, now: f64) -> bool {
        let values = [self.highest, self.turn, self.low];
        let bytes = |value: &f32| (0.0..=LARGEST).contains(value);
        let time = |at: f32| (0.0..=now * 1.000_001).contains(&(self.base + f64::from(at)));
        self.peaks.len() <= CAPACITY
            && (0.0..=now).contains(&self.base)
            && time(self.turn_at)
            && values.iter().all(bytes)
            && self.peaks.iter().all(|kept| time(kept.at) && bytes(&kept.top) && bytes(&kept.height))
            && self.peaks.is_sorted_by(|one, next| one.at <= next.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(samples: u32, level: impl Fn(u32) -> f64) -> Excursions {
        let mut peaks = Excursions::default();
        for i in 0..samples {
            peaks.push(f64::from(i), level(i), Rules::DAEMON);
            assert!(peaks.is_sound(f64::from(i)), "after {i}");
        }
        peaks
    }

    #[test]
    fn each_peak_has_its_time_its_top_and_its_height() {
        let level = |i: u32| 1e9 + 1e5 * f64::from(i) + if i % 100 >= 90 { 3e8 } else { 0.0 };
        let peaks = recorded(1_000, level);
        let all: Vec<Peak> = peaks.tall().collect();
        assert_eq!(all.len(), 9);
        for (peak, i) in all.iter().zip(0_u32..) {
            let wanted = f64::from(90 + 100 * i);
            assert!((peak.at - wanted).abs() <= 1.0, "{peak:?}");
            assert!((peak.top - level(99 + 100 * i)).abs() < 1e5, "{peak:?}");
            assert!((peak.height - 3e8).abs() < 2e7, "{peak:?}");
        }
        // The tenth one goes on.
        assert!(peaks.rising(true).is_some_and(|peak| (peak.at - 990.0).abs() <= 1.0));
    }

    #[test]
    fn the_end_of_a_start_up_is_no_peak() {
        let peaks =
            recorded(500, |i| 1e7 + 1e9 * f64::from(i.min(50)) / 50.0 - if i == 60 { 1e8 } else { 0.0 });
        assert!(peaks.tall().all(|peak| peak.height <= 1e8 + 1.0), "{peaks:?}");
    }

    #[test]
    fn rare_tall_peaks_are_kept_below_which_frequent_ones_recur() {
        // One of 1 GB each 1,500 samples, one of 0.4 GB each 60.
        let level = |i: u32| match i {
            i if i % 1_500 >= 1_490 => 2e9,
            i if i % 60 >= 50 => 1.4e9,
            _ => 1e9,
        };
        let peaks = recorded(15_000, level);
        let tall: Vec<Peak> = peaks.tall().collect();
        assert!(tall.len() >= 8 && tall.iter().all(|peak| peak.top == 2e9), "{tall:?}");
        assert!(peaks.all().filter(|peak| peak.top < 2e9).count() >= 10);
        assert!(peaks.all().len() <= CAPACITY);
    }

    #[test]
    fn samples_before_a_cut_are_removed() {
        let mut peaks = recorded(1_000, |i| if i % 100 >= 90 { 2e9 } else { 1e9 });
        peaks.cut(500.0);
        assert!(peaks.tall().len() > 3 && peaks.tall().all(|peak| peak.at >= 500.0));
        peaks.cut(5_000.0);
        assert!(peaks.tall().len() == 0 && peaks.is_sound(1_000.0));
    }

    #[test]
    fn a_damaged_state_is_not_sound() {
        let peaks = recorded(1_000, |i| if i % 100 >= 90 { 2e9 } else { 1e9 });
        let text = serde_json::to_string(&peaks).unwrap();
        assert!(serde_json::from_str::<Excursions>(&text).unwrap().is_sound(1_000.0));
        assert!(!peaks.is_sound(500.0));
        let wrong = text.replacen("\"highest\":", "\"highest\":-", 1);
        assert!(!serde_json::from_str::<Excursions>(&wrong).unwrap().is_sound(1_000.0));
    }
}

//! The whole life of one series in 64 buckets: the recent past finely, the rest coarsely.
//!
//! A bucket holds the same number of samples as its neighbors, so no sampling
//! interval is built in. Four fine buckets become a coarse one when they age;
//! when there is no room, all merge in pairs. A sample costs a few
//! nanoseconds, and a series never more than [`Buckets::BOUND`] bytes.

use serde::{Deserialize, Serialize};

/// Values that are recorded side by side: what is used, and what is watched for leaks.
pub const CHANNELS: usize = 2;

/// Fine buckets that are kept at least, once there are as many.
const FINE: usize = 24;
/// Fine buckets in a coarse one.
const FOLD: usize = 4;
/// Buckets of both kinds.
const CAPACITY: usize = 64;

/// The values of one channel in one bucket, in bytes; 24 bits of precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The smallest value.
    pub min: f32,
    /// The mean value.
    pub mean: f32,
    /// The largest value.
    pub max: f32,
}

/// Samples that followed one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// The mean time of its samples, in seconds since the series began.
    pub at: f32,
    /// How many samples each channel had, at most 65,535.
    counts: [u16; CHANNELS],
    spans: [Span; CHANNELS],
}

impl Bucket {
    /// What a channel was, if it was known.
    pub fn span(&self, channel: usize) -> Option<Span> {
        (self.counts[channel] > 0).then_some(self.spans[channel])
    }

    fn merged(all: &[Self]) -> Self {
        let mut whole = Gathering::default();
        for bucket in all {
            let weight = bucket.counts.iter().copied().max().map_or(0.0, f64::from).max(1.0);
            whole.time += f64::from(bucket.at) * weight;
            whole.samples += weight;
            for channel in 0..CHANNELS {
                if let Some(span) = bucket.span(channel) {
                    whole.take(channel, span, f64::from(bucket.counts[channel]));
                }
            }
        }
        whole.close()
    }
}

/// A bucket that is being filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Gathering {
    time: f64,
    samples: f64,
    counts: [f64; CHANNELS],
    sums: [f64; CHANNELS],
    spans: [Span; CHANNELS],
}

impl Gathering {
    fn take(&mut self, channel: usize, span: Span, weight: f64) {
        let own = &mut self.spans[channel];
        if self.counts[channel] == 0.0 {
            *own = span;
        }
        own.min = own.min.min(span.min);
        own.max = own.max.max(span.max);
        self.counts[channel] += weight;
        self.sums[channel] += f64::from(span.mean) * weight;
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "24 bits of a value are enough; the count is cut to its range"
    )]
    fn close(&self) -> Bucket {
        let mut bucket =
            Bucket { at: (self.time / self.samples) as f32, spans: self.spans, ..Bucket::default() };
        for channel in 0..CHANNELS {
            if self.counts[channel] > 0.0 {
                bucket.spans[channel].mean = (self.sums[channel] / self.counts[channel]) as f32;
                bucket.counts[channel] = self.counts[channel].clamp(1.0, 65_535.0) as u16;
            }
        }
        bucket
    }
}

/// The history of one series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buckets {
    /// Coarse ones, then fine ones, in the order of time.
    all: Vec<Bucket>,
    coarse: usize,
    /// Samples in a fine bucket: a power of two.
    width: u32,
    filling: Gathering,
    gathered: u32,
}

impl Default for Buckets {
    fn default() -> Self {
        Self { all: Vec::new(), coarse: 0, width: 1, filling: Gathering::default(), gathered: 0 }
    }
}

impl Buckets {
    /// The most bytes that a history takes, heap included.
    pub const BOUND: usize = size_of::<Self>() + CAPACITY * size_of::<Bucket>();

    /// Records the finite values of one sample, taken `at` seconds after the series began.
    /// Returns whether a bucket was closed by it.
    pub fn push(&mut self, at: f64, values: [Option<f64>; CHANNELS]) -> bool {
        self.filling.time += at;
        self.filling.samples += 1.0;
        for (channel, value) in values.into_iter().enumerate() {
            if let Some(value) = value {
                #[expect(clippy::cast_possible_truncation, reason = "24 bits of a value are enough")]
                let value = value as f32;
                self.filling.take(channel, Span { min: value, mean: value, max: value }, 1.0);
            }
        }
        self.gathered += 1;
        if self.gathered < self.width {
            return false;
        }
        if self.all.len() == self.all.capacity() {
            let more = CAPACITY.min(self.all.len().max(8) * 2) - self.all.len();
            self.all.reserve_exact(more);
        }
        self.all.push(self.filling.close());
        self.filling = Gathering::default();
        self.gathered = 0;
        if self.all.len() - self.coarse == FINE + FOLD {
            self.fold();
        }
        true
    }

    /// Four fine buckets become a coarse one; all merge in pairs when that leaves no room.
    fn fold(&mut self) {
        let begin = self.coarse;
        self.all[begin] = Bucket::merged(&self.all[begin..begin + FOLD]);
        self.all.drain(begin + 1..begin + FOLD);
        self.coarse += 1;
        if self.coarse + FINE + FOLD >= CAPACITY {
            let pairs: usize = self.all.len() / 2;
            for pair in 0..pairs {
                self.all[pair] = Bucket::merged(&self.all[2 * pair..2 * pair + 2]);
            }
            self.all.truncate(pairs);
            self.coarse /= 2;
            self.width = self.width.saturating_mul(2);
        }
    }

    /// The closed buckets, oldest first.
    pub fn all(&self) -> &[Bucket] {
        &self.all
    }

    /// How many samples a fine bucket holds.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Forgets what was before the bucket `first`.
    pub fn cut(&mut self, first: usize) {
        let first = first.min(self.all.len());
        self.all.drain(..first);
        self.coarse = self.coarse.saturating_sub(first);
    }

    /// Forgets one channel.
    pub fn clear_channel(&mut self, channel: usize) {
        for bucket in &mut self.all {
            bucket.counts[channel] = 0;
        }
        self.filling.counts[channel] = 0.0;
        self.filling.sums[channel] = 0.0;
    }

    /// Whether a state that was read back can have been written by this program.
    pub fn is_sound(&self) -> bool {
        let finite = |bucket: &Bucket| {
            bucket.at.is_finite()
                && bucket.spans.iter().all(|s| s.min.is_finite() && s.mean.is_finite() && s.max.is_finite())
        };
        self.all.len() <= CAPACITY
            && self.coarse <= self.all.len()
            && self.all.len() - self.coarse < FINE + FOLD
            && self.coarse + FINE + FOLD <= CAPACITY + 1
            && self.width.is_power_of_two()
            && self.gathered < self.width
            && self.all.iter().all(finite)
            && self.all.is_sorted_by(|one, next| one.at <= next.at)
            && self.filling.time.is_finite()
            && self.filling.sums.iter().all(|sum| sum.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_life_fits_with_its_extremes_and_its_mean() {
        let mut history = Buckets::default();
        for i in 0..100_000_u32 {
            let value = if i == 31_415 { 9.0 } else { f64::from(i % 2) };
            history.push(f64::from(i), [Some(value), None]);
            assert!(history.all().len() <= CAPACITY && history.is_sound(), "after {i}");
        }
        let spans: Vec<Span> = history.all().iter().filter_map(|bucket| bucket.span(0)).collect();
        assert!(spans.iter().any(|span| span.max == 9.0));
        assert!(spans.iter().all(|span| span.min == 0.0 && (span.mean - 0.5).abs() < 0.01));
        assert!(history.all().iter().all(|bucket| bucket.span(1).is_none()));
        assert!(history.all().len() >= 30);
        let newest = history.all().len() - 12;
        let fine = history.all()[newest].at - history.all()[newest - 1].at;
        assert!(fine <= 100_000.0 / 92.0, "{fine}");
    }

    #[test]
    fn what_is_cut_is_gone() {
        let mut history = Buckets::default();
        for i in 0..500_u32 {
            history.push(f64::from(i), [Some(1.0), Some(2.0)]);
        }
        let all = history.all().len();
        history.cut(all - 5);
        assert_eq!(history.all().len(), 5);
        history.clear_channel(1);
        assert!(history.all().iter().all(|bucket| bucket.span(1).is_none() && bucket.span(0).is_some()));
        for i in 500..5000_u32 {
            history.push(f64::from(i), [Some(1.0), Some(2.0)]);
            assert!(history.is_sound(), "after {i}");
        }
        history.cut(1000);
        assert!(history.all().is_empty() && history.is_sound());
    }
}

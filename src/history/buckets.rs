//! The newest samples of one series in 64 buckets: the last ones finely, those before coarsely.
//!
//! A bucket holds the same number of samples as its neighbors, so no sampling
//! interval is built in. Four fine buckets become a coarse one when they age.
//! When there is no room, all merge in pairs, until a fine bucket holds
//! [`WIDEST`] samples; from then on the oldest leaves for the
//! [past](super::past). A sample costs a few nanoseconds, and a series never
//! more than [`Buckets::BOUND`] bytes.

use serde::{Deserialize, Serialize};

/// Values that are recorded side by side: what is used, and what is watched for leaks.
pub const CHANNELS: usize = 2;

/// Fine buckets that are kept at least, once there are as many.
const FINE: usize = 24;
/// Fine buckets in a coarse one.
const FOLD: usize = 4;
/// Buckets of both kinds.
const CAPACITY: usize = 64;
/// Samples in a fine bucket at most: 22 minutes of seconds in all, so that what begins today is seen today.
const WIDEST: u32 = 8;

/// The values of one channel in one bucket, in bytes; the mean to 24 bits, its distance from the others to 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The smallest value.
    pub min: f32,
    /// The mean value.
    pub mean: f32,
    /// The largest value.
    pub max: f32,
}

/// A span in 8 bytes. Values are bytes and never negative: a negative mean says that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Packed {
    mean: f32,
    below: u16,
    above: u16,
}

impl Default for Packed {
    fn default() -> Self {
        Self { mean: -1.0, below: 0, above: 0 }
    }
}

impl From<Span> for Packed {
    fn from(span: Span) -> Self {
        // The upper half of a number of 32 bits, to the nearest: its sign, its exponent and 8 bits of it.
        let half = |apart: f32| (apart.max(0.0).to_bits().saturating_add(0x8000) >> 16) as u16;
        Self { mean: span.mean, below: half(span.mean - span.min), above: half(span.max - span.mean) }
    }
}

impl Packed {
    fn span(self) -> Option<Span> {
        let whole = |half: u16| f32::from_bits(u32::from(half) << 16);
        let (min, max) = ((self.mean - whole(self.below)).max(0.0), self.mean + whole(self.above));
        (self.mean >= 0.0).then_some(Span { min, mean: self.mean, max })
    }
}

/// Samples that followed one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// The mean time of its samples, in seconds since the series began.
    pub at: f32,
    spans: [Packed; CHANNELS],
}

impl Bucket {
    /// What a channel was, if it was known.
    pub fn span(&self, channel: usize) -> Option<Span> {
        self.spans[channel].span()
    }

    /// Several of them as one; each counts as much as the others.
    fn merged(all: &[Self]) -> Self {
        let mut whole = Gathering::default();
        for bucket in all {
            whole.take(bucket, 1.0);
        }
        whole.close()
    }

    pub(super) fn forget(&mut self, channel: usize) {
        self.spans[channel] = Packed::default();
    }

    /// Whether it can have been written by this program.
    pub(super) fn is_sound(&self) -> bool {
        let spans = (0..CHANNELS).filter_map(|channel| self.span(channel));
        self.at.is_finite() && spans.into_iter().all(|span| span.min.is_finite() && span.max.is_finite())
    }
}

/// A bucket that is being filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Gathering {
    time: f64,
    weight: f64,
    weights: [f64; CHANNELS],
    sums: [f64; CHANNELS],
    spans: [Span; CHANNELS],
}

impl Gathering {
    fn pass(&mut self, at: f64, weight: f64) {
        self.time += at * weight;
        self.weight += weight;
    }

    fn add(&mut self, channel: usize, span: Span, weight: f64) {
        let own = &mut self.spans[channel];
        if self.weights[channel] == 0.0 {
            *own = span;
        }
        own.min = own.min.min(span.min);
        own.max = own.max.max(span.max);
        self.weights[channel] += weight;
        self.sums[channel] += f64::from(span.mean) * weight;
    }

    /// Takes in what a bucket holds.
    pub(super) fn take(&mut self, bucket: &Bucket, weight: f64) {
        self.pass(f64::from(bucket.at), weight);
        for channel in 0..CHANNELS {
            if let Some(span) = bucket.span(channel) {
                self.add(channel, span, weight);
            }
        }
    }

    pub(super) fn forget(&mut self, channel: usize) {
        self.weights[channel] = 0.0;
        self.sums[channel] = 0.0;
    }

    #[expect(clippy::cast_possible_truncation, reason = "24 bits of a value are enough")]
    pub(super) fn close(&self) -> Bucket {
        let mut bucket = Bucket { at: (self.time / self.weight) as f32, ..Bucket::default() };
        for channel in 0..CHANNELS {
            if self.weights[channel] > 0.0 {
                let mean = (self.sums[channel] / self.weights[channel]) as f32;
                bucket.spans[channel] = Span { mean, ..self.spans[channel] }.into();
            }
        }
        bucket
    }

    pub(super) fn is_sound(&self) -> bool {
        self.time.is_finite() && self.weight.is_finite() && self.sums.iter().all(|sum| sum.is_finite())
    }
}

/// The newest samples of one series.
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

    /// Records the finite values of one sample, taken `at` seconds after the series began. Returns the bucket that had
    /// to leave for it.
    pub fn push(&mut self, at: f64, values: [Option<f64>; CHANNELS]) -> Option<Bucket> {
        self.filling.pass(at, 1.0);
        for (channel, value) in values.into_iter().enumerate() {
            if let Some(value) = value {
                #[expect(clippy::cast_possible_truncation, reason = "24 bits of a value are enough")]
                let value = value as f32;
                self.filling.add(channel, Span { min: value, mean: value, max: value }, 1.0);
            }
        }
        self.gathered += 1;
        if self.gathered < self.width {
            return None;
        }
        if self.all.len() == self.all.capacity() {
            let more = CAPACITY.min(self.all.len().max(8) * 2) - self.all.len();
            self.all.reserve_exact(more);
        }
        self.all.push(self.filling.close());
        self.filling = Gathering::default();
        self.gathered = 0;
        if self.all.len() - self.coarse == FINE + FOLD { self.fold() } else { None }
    }

    /// Four fine buckets become a coarse one; where that leaves no room all merge in pairs, or the oldest leaves.
    fn fold(&mut self) -> Option<Bucket> {
        let begin = self.coarse;
        self.all[begin] = Bucket::merged(&self.all[begin..begin + FOLD]);
        self.all.drain(begin + 1..begin + FOLD);
        self.coarse += 1;
        if self.coarse + FINE + FOLD < CAPACITY {
            return None;
        }
        if self.width >= WIDEST {
            self.coarse -= 1;
            return Some(self.all.remove(0));
        }
        let pairs: usize = self.all.len() / 2;
        for pair in 0..pairs {
            self.all[pair] = Bucket::merged(&self.all[2 * pair..2 * pair + 2]);
        }
        self.all.truncate(pairs);
        self.coarse /= 2;
        self.width = self.width.saturating_mul(2);
        None
    }

    /// Tells each of the closed buckets, oldest first, so many coarse ones' worth of samples at a time.
    pub(super) fn in_groups_of(&self, coarse: u32, mut tell: impl FnMut(Bucket)) {
        let (mut group, mut held) = (Gathering::default(), 0);
        let most = FOLD * usize::try_from(coarse).unwrap_or(usize::MAX).min(CAPACITY);
        for (i, bucket) in self.all.iter().enumerate() {
            let fine = if i < self.coarse { FOLD } else { 1 };
            #[expect(clippy::cast_precision_loss, reason = "1 or 4")]
            group.take(bucket, fine as f64);
            held += fine;
            if held >= most || i + 1 == self.all.len() {
                tell(group.close());
                (group, held) = (Gathering::default(), 0);
            }
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
            bucket.forget(channel);
        }
        self.filling.forget(channel);
    }

    /// Whether a state that was read back can have been written by this program.
    pub fn is_sound(&self) -> bool {
        self.all.len() <= CAPACITY
            && self.coarse <= self.all.len()
            && self.all.len() - self.coarse < FINE + FOLD
            && self.coarse + FINE + FOLD <= CAPACITY + 1
            && self.width.is_power_of_two()
            && self.width <= WIDEST
            && self.gathered < self.width
            && self.all.iter().all(Bucket::is_sound)
            && self.all.is_sorted_by(|one, next| one.at <= next.at)
            && self.filling.is_sound()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_samples_are_kept_and_the_oldest_leave_in_order() {
        let mut history = Buckets::default();
        let mut left: Vec<Bucket> = Vec::new();
        for i in 0..10_000_u32 {
            let value = if i == 9_415 { 9.0 } else { f64::from(i % 2) };
            left.extend(history.push(f64::from(i), [Some(value), None]));
            assert!(history.all().len() <= CAPACITY && history.is_sound(), "after {i}");
        }
        let spans: Vec<Span> = history.all().iter().filter_map(|bucket| bucket.span(0)).collect();
        assert!(spans.iter().any(|span| (span.max - 9.0).abs() < 0.05));
        assert!(spans.iter().all(|span| span.min == 0.0 && (span.mean - 0.5).abs() < 0.5));
        assert!(history.all().iter().all(|bucket| bucket.span(1).is_none()));
        assert!(history.all().len() >= 59);
        let newest = history.all().len() - 12;
        let fine = history.all()[newest].at - history.all()[newest - 1].at;
        assert!((fine - 8.0).abs() < 0.1, "{fine}");
        let times: Vec<f32> = left.iter().chain(history.all()).map(|bucket| bucket.at).collect();
        assert!(times.is_sorted(), "{times:?}");
        let coarse = left.iter().all(|bucket| (bucket.at - 15.5).rem_euclid(32.0) == 0.0);
        assert!(coarse && left.len() > 200, "{}", left.len());
    }

    #[test]
    fn a_span_keeps_its_mean_and_nearly_its_extremes() {
        for (min, mean, max) in [(0.0, 0.0, 0.0), (7.0e9, 7.0e9, 7.0e9), (1.0, 3.0e9, 9.0e15)] {
            let kept = Packed::from(Span { min, mean, max }).span().unwrap();
            assert_eq!(kept.mean, mean);
            assert!((kept.min - min).abs() <= 0.004 * (mean - min), "{kept:?}");
            assert!((kept.max - max).abs() <= 0.004 * (max - mean), "{kept:?}");
        }
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

//! The newest samples of one series in 64 buckets: the last ones fine, the earlier ones coarse.
//!
//! A bucket holds the same number of samples as its neighbors, so no sampling interval is built in. Four fine buckets
//! are merged into a coarse one when they age. When all buckets are used, all merge in pairs, until a fine bucket
//! holds eight samples; from then on the oldest bucket moves to the [past](super::past). A sample takes a few
//! nanoseconds, and a series at most [`Buckets::BOUND`] bytes.

use serde::{Deserialize, Serialize};

/// Twice the largest accepted value of memory, in bytes: 16 PiB.
const LARGEST: f32 = 1.8e16;

/// Number of values per sample: the used memory, and the memory that is evaluated for leaks.
pub const CHANNELS: usize = 2;

/// Minimum number of fine buckets, once there are as many.
const FINE: usize = 24;
/// Number of fine buckets in a coarse one.
const FOLD: usize = 4;
/// Maximum number of buckets of both kinds.
const CAPACITY: usize = 64;
/// Maximum number of samples in a fine bucket: 22 minutes in total at one sample a second, so that new growth is
/// detected within minutes.
const WIDEST: u32 = 8;

/// The values of one channel in one bucket, in bytes; the mean with 24 bits of precision, its distance from the
/// others with 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The smallest value.
    pub min: f32,
    /// The mean value.
    pub mean: f32,
    /// The largest value.
    pub max: f32,
}

/// A span in 8 bytes. Values are bytes and never negative; a negative mean marks a missing span.
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

/// The upper half of a 32-bit float, rounded to nearest: its sign, its exponent and 8 bits of precision; 0 for
/// smaller numbers.
pub(crate) fn half(number: f32) -> u16 {
    (number.max(0.0).to_bits().saturating_add(0x8000) >> 16) as u16
}

/// The float of an upper half.
pub(crate) fn doubled(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

impl From<Span> for Packed {
    fn from(span: Span) -> Self {
        Self { mean: span.mean, below: half(span.mean - span.min), above: half(span.max - span.mean) }
    }
}

impl Packed {
    fn span(self) -> Option<Span> {
        let (min, max) = ((self.mean - doubled(self.below)).max(0.0), self.mean + doubled(self.above));
        (self.mean >= 0.0).then_some(Span { min, mean: self.mean, max })
    }
}

/// Consecutive samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// The mean time of its samples, in seconds since the series began.
    pub at: f32,
    spans: [Packed; CHANNELS],
}

impl Bucket {
    /// The values of a channel; absent where they are unknown.
    pub fn span(&self, channel: usize) -> Option<Span> {
        self.spans[channel].span()
    }

    /// Merges several buckets with equal weight.
    fn merged(all: &[Self]) -> Self {
        let mut whole = Gathering::default();
        for bucket in all {
            whole.take(bucket, 1.0);
        }
        whole.close()
    }

    pub(crate) fn forget(&mut self, channel: usize) {
        self.spans[channel] = Packed::default();
    }

    /// Whether it is valid at `now`, with its time relative to `base`.
    pub(crate) fn is_sound(&self, base: f64, now: f64) -> bool {
        let mut spans = (0..CHANNELS).filter_map(|channel| self.span(channel));
        // Times have 24 bits of precision.
        (0.0..=now * 1.000_001).contains(&(base + f64::from(self.at)))
            && spans.all(|span| span.min.is_finite() && span.max <= LARGEST)
    }
}

/// A bucket that is being filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gathering {
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

    /// Adds the values of a bucket.
    pub(crate) fn take(&mut self, bucket: &Bucket, weight: f64) {
        self.pass(f64::from(bucket.at), weight);
        for channel in 0..CHANNELS {
            if let Some(span) = bucket.span(channel) {
                self.add(channel, span, weight);
            }
        }
    }

    pub(crate) fn forget(&mut self, channel: usize) {
        self.weights[channel] = 0.0;
        self.sums[channel] = 0.0;
    }

    #[expect(clippy::cast_possible_truncation, reason = "24 bits of a value are enough")]
    pub(crate) fn close(&self) -> Bucket {
        let mut bucket = Bucket { at: (self.time / self.weight) as f32, ..Bucket::default() };
        for channel in 0..CHANNELS {
            if self.weights[channel] > 0.0 {
                let mean = (self.sums[channel] / self.weights[channel]) as f32;
                bucket.spans[channel] = Span { mean, ..self.spans[channel] }.into();
            }
        }
        bucket
    }

    /// Whether it is valid with this number of samples at `now`, in seconds relative to its base.
    pub(crate) fn is_sound(&self, gathered: u32, now: f64) -> bool {
        let mut channels = self.sums.iter().zip(&self.weights).zip(&self.spans);
        (0.0..=now * self.weight * 1.000_001).contains(&self.time)
            && self.weight.is_finite()
            && (self.weight > 0.0) == (gathered > 0)
            && channels.all(|((sum, weight), span)| {
                (0.0..=self.weight).contains(weight)
                    && (0.0..=f64::from(LARGEST) * weight).contains(sum)
                    && (0.0..=LARGEST).contains(&span.min)
                    && (0.0..=LARGEST).contains(&span.max)
            })
    }
}

/// Seconds after which the base of the times is moved to the oldest bucket: with 24 bits, months leave no precision
/// of seconds.
const FAR: f32 = 500_000.0;

/// The newest samples of one series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buckets {
    /// The base of the times, in seconds since the series began.
    base: f64,
    /// Coarse buckets, then fine ones, in the order of time.
    all: Vec<Bucket>,
    coarse: usize,
    /// Number of samples in a fine bucket: a power of two.
    width: u32,
    filling: Gathering,
    gathered: u32,
}

impl Default for Buckets {
    fn default() -> Self {
        Self { base: 0.0, all: Vec::new(), coarse: 0, width: 1, filling: Gathering::default(), gathered: 0 }
    }
}

impl Buckets {
    /// Maximum size in bytes, including the heap.
    pub const BOUND: usize = size_of::<Self>() + CAPACITY * size_of::<Bucket>();

    /// Records the finite values of one sample, taken `at` seconds after the series began, and the `peak` of the first
    /// channel since the sample before, if it was higher. Returns the bucket that was removed for it.
    pub fn push(&mut self, at: f64, values: [Option<f64>; CHANNELS], peak: Option<f64>) -> Option<Bucket> {
        self.filling.pass(at - self.base, 1.0);
        for (channel, value) in values.into_iter().enumerate() {
            if let Some(value) = value {
                #[expect(clippy::cast_possible_truncation, reason = "24 bits of a value are enough")]
                let (value, peak) = (value as f32, peak.filter(|_| channel == 0).map(|peak| peak as f32));
                let max = peak.map_or(value, |peak| peak.max(value));
                self.filling.add(channel, Span { min: value, mean: value, max }, 1.0);
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
        if self.all.len() - self.coarse < FINE + FOLD {
            return None;
        }
        let left = self.fold().map(|bucket| self.absolute(&bucket));
        if self.all[0].at > FAR {
            let by = self.all[0].at;
            for bucket in &mut self.all {
                bucket.at -= by;
            }
            self.base += f64::from(by);
        }
        left
    }

    /// The bucket with its time relative to the start of the series.
    #[expect(clippy::cast_possible_truncation, reason = "24 bits are enough of what is old")]
    fn absolute(&self, bucket: &Bucket) -> Bucket {
        Bucket { at: (self.base + f64::from(bucket.at)) as f32, ..*bucket }
    }

    /// Merges four fine buckets into a coarse one; if all buckets are still used, merges all in pairs or removes the
    /// oldest.
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

    /// Passes the closed buckets to `each`, oldest first, each merged from `coarse` coarse buckets' worth of samples.
    pub(crate) fn in_groups_of(&self, coarse: u32, mut each: impl FnMut(Bucket)) {
        let (mut group, mut held) = (Gathering::default(), 0);
        let most = FOLD * usize::try_from(coarse).unwrap_or(usize::MAX).min(CAPACITY);
        for (i, bucket) in self.all.iter().enumerate() {
            let fine = if i < self.coarse { FOLD } else { 1 };
            #[expect(clippy::cast_precision_loss, reason = "1 or 4")]
            group.take(bucket, fine as f64);
            held += fine;
            if held >= most || i + 1 == self.all.len() {
                each(self.absolute(&group.close()));
                (group, held) = (Gathering::default(), 0);
            }
        }
    }

    /// The closed buckets, oldest first; their times are relative to [`Buckets::base`].
    pub fn all(&self) -> &[Bucket] {
        &self.all
    }

    /// The base of the buckets' times, in seconds since the series began.
    pub fn base(&self) -> f64 {
        self.base
    }

    /// Removes the buckets before `at`, in seconds since the series began; returns them, with times relative to that
    /// start.
    pub(crate) fn cut(&mut self, at: f64) -> Vec<Bucket> {
        let first = self.all.partition_point(|bucket| self.base + f64::from(bucket.at) < at);
        let cut = self.all[..first].iter().map(|bucket| self.absolute(bucket)).collect();
        self.all.drain(..first);
        self.coarse = self.coarse.saturating_sub(first);
        cut
    }

    /// Removes the values of one channel.
    pub fn clear_channel(&mut self, channel: usize) {
        for bucket in &mut self.all {
            bucket.forget(channel);
        }
        self.filling.forget(channel);
    }

    /// Whether a restored state is valid at `now`.
    pub fn is_sound(&self, now: f64) -> bool {
        self.base.is_finite()
            && self.all.len() <= CAPACITY
            && self.coarse <= self.all.len()
            && self.all.len() - self.coarse < FINE + FOLD
            && self.coarse + FINE + FOLD <= CAPACITY + 1
            && self.width.is_power_of_two()
            && self.width <= WIDEST
            && self.gathered < self.width
            && self.all.iter().all(|bucket| bucket.is_sound(self.base, now))
            && self.all.is_sorted_by(|one, next| one.at <= next.at)
            && self.filling.is_sound(self.gathered, now - self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_samples_are_kept_and_the_oldest_are_dropped_in_order() {
        let mut history = Buckets::default();
        let mut left: Vec<Bucket> = Vec::new();
        for i in 0..10_000_u32 {
            let value = if i == 9_415 { 9.0 } else { f64::from(i % 2) };
            left.extend(history.push(f64::from(i), [Some(value), None], None));
            assert!(history.all().len() <= CAPACITY && history.is_sound(f64::from(i)), "after {i}");
        }
        let spans: Vec<Span> = history.all().iter().filter_map(|bucket| bucket.span(0)).collect();
        assert!(spans.iter().any(|span| (span.max - 9.0).abs() < 0.05));
        assert!(spans.iter().all(|span| span.min == 0.0 && (span.mean - 0.5).abs() < 0.5));
        assert!(history.all().iter().all(|bucket| bucket.span(1).is_none()));
        assert!(history.all().len() >= 59);
        let newest = history.all().len() - 12;
        let fine = history.all()[newest].at - history.all()[newest - 1].at;
        assert!((fine - 8.0).abs() < 0.1, "{fine}");
        assert_eq!(history.base(), 0.0);
        let times: Vec<f32> = left.iter().chain(history.all()).map(|bucket| bucket.at).collect();
        assert!(times.is_sorted(), "{times:?}");
        let coarse = left.iter().all(|bucket| (bucket.at - 15.5).rem_euclid(32.0) == 0.0);
        assert!(coarse && left.len() > 200, "{}", left.len());
    }

    #[test]
    fn times_are_exact_after_a_year() {
        let mut history = Buckets::default();
        let year = 31_557_600.0;
        for i in 0..3_000_u32 {
            history.push(if i < 1_000 { 0.0 } else { year } + f64::from(i), [Some(1.0), None], None);
        }
        assert!(history.is_sound(year + 3_000.0) && !history.is_sound(year - 1.0));
        let newest = history.all();
        let gap = f64::from(newest[newest.len() - 1].at - newest[newest.len() - 2].at);
        assert!((gap - 8.0).abs() < 0.01, "{gap}");
        let last = history.base() + f64::from(newest[newest.len() - 1].at);
        assert!((last - (year + 3_000.0)).abs() < 20.0, "{last}");
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
    fn removed_samples_are_gone() {
        let mut history = Buckets::default();
        for i in 0..500_u32 {
            history.push(f64::from(i), [Some(1.0), Some(2.0)], None);
        }
        let all = history.all().len();
        let at = f64::from(history.all()[all - 5].at);
        let cut = history.cut(at);
        assert_eq!((cut.len(), history.all().len()), (all - 5, 5));
        history.clear_channel(1);
        assert!(history.all().iter().all(|bucket| bucket.span(1).is_none() && bucket.span(0).is_some()));
        for i in 500..5000_u32 {
            history.push(f64::from(i), [Some(1.0), Some(2.0)], None);
            assert!(history.is_sound(f64::from(i)), "after {i}");
        }
        history.cut(1e9);
        assert!(history.all().is_empty() && history.is_sound(5_000.0));
    }
}

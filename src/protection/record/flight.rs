//! The readings of the last minutes, at the rate of reading: a ring buffer of fixed size.

use std::time::Duration;

use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::types::incident::Sample;

/// The newest samples of all watched subjects.
#[derive(Debug)]
pub struct Flight {
    samples: Vec<PackedSample>,
    next: usize,
    /// Number of samples so far.
    count: u64,
}

/// Capacity in samples: five minutes at 50 per second, or four hours at one.
pub const CAPACITY: usize = 16_384;

/// A sample in 48 bytes, because there are many.
#[derive(Debug)]
struct PackedSample {
    /// Nanoseconds on both clocks.
    monotonic: u64,
    unix: u64,
    subject: Label,
    /// Bytes, or [`NONE`].
    used: u64,
    limit: u64,
}

/// The value for unknown.
const NONE: u64 = u64::MAX;

impl From<Sample> for PackedSample {
    fn from(sample: Sample) -> Self {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bytes = |bytes: Option<Bytes>| bytes.map_or(NONE, Bytes::get);
        Self {
            monotonic: nanoseconds(sample.at.monotonic()),
            unix: nanoseconds(sample.at.unix()),
            subject: sample.subject,
            used: bytes(sample.used),
            limit: bytes(sample.limit),
        }
    }
}

impl From<&PackedSample> for Sample {
    fn from(kept: &PackedSample) -> Self {
        let bytes = |bytes| (bytes != NONE).then(|| Bytes::new(bytes));
        Self {
            at: Timestamp::new(Duration::from_nanos(kept.monotonic), Duration::from_nanos(kept.unix)),
            subject: kept.subject.clone(),
            used: bytes(kept.used),
            limit: bytes(kept.limit),
        }
    }
}

impl Default for Flight {
    fn default() -> Self {
        Self::new(CAPACITY)
    }
}

impl Flight {
    /// A buffer of this capacity, which is allocated here.
    pub fn new(most: usize) -> Self {
        Self { samples: Vec::with_capacity(most.max(1)), next: 0, count: 0 }
    }

    /// Adds a sample, in place of the oldest where the buffer is full.
    pub fn push(&mut self, sample: Sample) {
        self.count += 1;
        if self.samples.len() < self.samples.capacity() {
            self.samples.push(sample.into());
        } else if let Some(place) = self.samples.get_mut(self.next) {
            *place = sample.into();
            self.next = (self.next + 1) % self.samples.len();
        }
    }

    /// The samples after the first `known` ones of all so far, oldest first, and the number of all.
    pub fn since(&self, known: u64) -> (Vec<Sample>, u64) {
        let (newer, older) = self.samples.split_at(self.next.min(self.samples.len()));
        let new = usize::try_from(self.count.saturating_sub(known)).unwrap_or(usize::MAX);
        let old = self.samples.len().saturating_sub(new);
        (older.iter().chain(newer).skip(old).map(Sample::from).collect(), self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_in_order() {
        let mut flight = Flight::new(4);
        let times = |flight: &Flight| -> Vec<u64> {
            flight.since(0).0.iter().map(|sample| sample.at.monotonic().as_secs()).collect()
        };
        for second in 0..10 {
            let at = Timestamp::from_secs(second);
            flight.push(Sample { at, subject: "host".into(), used: None, limit: None });
            if second == 2 {
                assert_eq!(times(&flight), [0, 1, 2]);
            }
        }
        assert_eq!(times(&flight), [6, 7, 8, 9]);
        let since = |known| (flight.since(known).0.len(), flight.since(known).1);
        assert_eq!([3, 8, 10].map(since), [(4, 10), (2, 10), (0, 10)]);
    }

    #[test]
    fn a_sample_is_small_and_comes_back_as_it_was() {
        assert_eq!(size_of::<PackedSample>(), 48);
        let at = Timestamp::new(Duration::new(7, 9), Duration::new(1_790_000_000, 999_999_999));
        for (used, limit) in [(Some(Bytes::new(0)), None), (None, Some(Bytes::new(1 << 60)))] {
            let sample = Sample { at, subject: "host".into(), used, limit };
            assert_eq!(Sample::from(&PackedSample::from(sample.clone())), sample);
        }
    }
}

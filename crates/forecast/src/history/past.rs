//! The past of a series, older than its newest samples: all of it in buckets of equal width, which grows with its
//! length.

use serde::{Deserialize, Serialize};

use crate::history::buckets::{Bucket, CHANNELS, Gathering, doubled, half};

/// Maximum number of buckets; a power of two, which is the capacity of a restored list.
const CAPACITY: usize = 32;
/// Initial number of added buckets in one bucket of the past.
const WIDTH: u32 = 2;

/// The highest mean of the buckets added in an interval, by channel, in half precision; 0 without a value. The mean
/// of a day does not show the level of an hour.
type Top = [u16; CHANNELS];

/// Buckets removed from the newest samples, merged into buckets of equal width, which doubles when they are all used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Past {
    all: Vec<Bucket>,
    tops: Vec<Top>,
    width: u32,
    filling: Gathering,
    top: Top,
    gathered: u32,
}

impl Default for Past {
    fn default() -> Self {
        let (all, tops, filling) = (Vec::new(), Vec::new(), Gathering::default());
        Self { all, tops, width: WIDTH, filling, top: [0; CHANNELS], gathered: 0 }
    }
}

/// Positive floats are ordered like their bits.
fn higher(one: Top, next: Top) -> Top {
    std::array::from_fn(|channel| one[channel].max(next[channel]))
}

impl Past {
    /// Maximum size in bytes, including the heap.
    pub const BOUND: usize = size_of::<Self>() + CAPACITY * (size_of::<Bucket>() + size_of::<Top>());

    /// Adds a bucket that is newer than all others.
    pub(crate) fn take(&mut self, bucket: &Bucket) {
        self.filling.take(bucket, 1.0);
        let means = std::array::from_fn(|channel| bucket.span(channel).map_or(0, |span| half(span.mean)));
        self.top = higher(self.top, means);
        self.gathered += 1;
        if self.gathered < self.width {
            return;
        }
        if self.all.len() == CAPACITY {
            for pair in 0..CAPACITY / 2 {
                let mut one = Gathering::default();
                one.take(&self.all[2 * pair], 1.0);
                one.take(&self.all[2 * pair + 1], 1.0);
                self.all[pair] = one.close();
                self.tops[pair] = higher(self.tops[2 * pair], self.tops[2 * pair + 1]);
            }
            self.all.truncate(CAPACITY / 2);
            self.tops.truncate(CAPACITY / 2);
            self.width = self.width.saturating_mul(2);
            // The values gathered so far are now half of a bucket.
            return;
        }
        if self.all.len() == self.all.capacity() {
            let more = CAPACITY.min(self.all.len().max(4) * 2) - self.all.len();
            self.all.reserve_exact(more);
            self.tops.reserve_exact(more);
        }
        self.all.push(self.filling.close());
        self.tops.push(self.top);
        (self.filling, self.top, self.gathered) = (Gathering::default(), [0; CHANNELS], 0);
    }

    /// Number of added buckets in one bucket.
    pub(crate) fn width(&self) -> u32 {
        self.width
    }

    /// Whether there are no samples older than the newest ones.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.gathered == 0
    }

    /// All buckets, oldest first.
    pub fn all(&self) -> impl Iterator<Item = Bucket> {
        self.all.iter().copied().chain((self.gathered > 0).then(|| self.filling.close()))
    }

    /// The highest mean of each interval (half a minute at one sample a second), oldest first.
    pub fn tops(&self, channel: usize) -> impl Iterator<Item = f32> {
        let all = self.tops.iter().chain((self.gathered > 0).then_some(&self.top));
        all.map(move |top| doubled(top[channel])).filter(|top| *top > 0.0)
    }

    /// Removes the buckets before `at`, in seconds since the series began.
    pub(crate) fn cut(&mut self, at: f64) {
        let first = self.all.partition_point(|bucket| f64::from(bucket.at) < at);
        if first == self.all.len() {
            // The values gathered so far include earlier samples.
            *self = Self::default();
        } else {
            self.all.drain(..first);
            self.tops.drain(..first);
        }
    }

    /// Removes the values of one channel.
    pub(crate) fn clear_channel(&mut self, channel: usize) {
        for bucket in &mut self.all {
            bucket.forget(channel);
        }
        self.filling.forget(channel);
        for top in self.tops.iter_mut().chain([&mut self.top]) {
            top[channel] = 0;
        }
    }

    /// Whether a restored state is valid at `now`.
    pub fn is_sound(&self, now: f64) -> bool {
        self.all.len() <= CAPACITY
            && self.tops.len() == self.all.len()
            && self.tops.iter().chain([&self.top]).flatten().all(|top| doubled(*top).is_finite())
            && self.width.is_power_of_two()
            && self.width >= WIDTH
            && self.gathered < self.width
            && self.all.iter().all(|bucket| bucket.is_sound(0.0, now))
            && self.all.is_sorted_by(|one, next| one.at <= next.at)
            && self.filling.is_sound(self.gathered, now)
    }
}

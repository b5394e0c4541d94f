//! What is older than the newest samples of a series: all of it, evenly, ever more coarsely.

use serde::{Deserialize, Serialize};

use super::buckets::{Bucket, Gathering};

/// Buckets at most.
const CAPACITY: usize = 36;
/// Buckets that came in one of them at first.
const WIDTH: u32 = 2;

/// Buckets that left a history, in ever wider ones of equal width.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Past {
    all: Vec<Bucket>,
    width: u32,
    filling: Gathering,
    gathered: u32,
}

impl Default for Past {
    fn default() -> Self {
        Self { all: Vec::new(), width: WIDTH, filling: Gathering::default(), gathered: 0 }
    }
}

impl Past {
    /// The most bytes that a past takes, heap included.
    pub const BOUND: usize = size_of::<Self>() + CAPACITY * size_of::<Bucket>();

    /// Takes in a bucket that is newer than all before.
    pub(super) fn take(&mut self, bucket: &Bucket) {
        self.filling.take(bucket, 1.0);
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
            }
            self.all.truncate(CAPACITY / 2);
            self.width = self.width.saturating_mul(2);
            // What is gathered is half of a bucket now.
            return;
        }
        if self.all.len() == self.all.capacity() {
            let more = CAPACITY.min(self.all.len().max(4) * 2) - self.all.len();
            self.all.reserve_exact(more);
        }
        self.all.push(self.filling.close());
        self.filling = Gathering::default();
        self.gathered = 0;
    }

    /// Buckets that came in one of these.
    pub(super) fn width(&self) -> u32 {
        self.width
    }

    /// Whether nothing is older than the newest samples.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.gathered == 0
    }

    /// All of it, oldest first.
    pub fn all(&self) -> impl Iterator<Item = Bucket> {
        self.all.iter().copied().chain((self.gathered > 0).then(|| self.filling.close()))
    }

    /// Forgets the `first` oldest buckets.
    pub(super) fn cut(&mut self, first: usize) {
        if first > self.all.len() {
            *self = Self::default();
        } else {
            self.all.drain(..first);
        }
    }

    /// Forgets one channel.
    pub(super) fn clear_channel(&mut self, channel: usize) {
        for bucket in &mut self.all {
            bucket.forget(channel);
        }
        self.filling.forget(channel);
    }

    /// Whether a state that was read back can have been written by this program.
    pub fn is_sound(&self) -> bool {
        self.all.len() <= CAPACITY
            && self.width.is_power_of_two()
            && self.width >= WIDTH
            && self.gathered < self.width
            && self.all.iter().all(Bucket::is_sound)
            && self.all.is_sorted_by(|one, next| one.at <= next.at)
            && self.filling.is_sound()
    }
}

//! The last minutes of what is watched, at the rate it was read: a fixed room, the newest samples win.

use crate::model::incident::Sample;

/// The newest samples of everything that is watched.
#[derive(Debug)]
pub struct Flight {
    samples: Vec<Sample>,
    next: usize,
}

/// Samples that are kept: five minutes at 50 a second, or four hours at one.
pub const KEPT: usize = 16_384;

impl Default for Flight {
    fn default() -> Self {
        Self::new(KEPT)
    }
}

impl Flight {
    /// One that keeps so many; its memory is taken here.
    pub fn new(most: usize) -> Self {
        Self { samples: Vec::with_capacity(most.max(1)), next: 0 }
    }

    /// Takes a sample in, in place of the oldest where there is no room.
    pub fn push(&mut self, sample: Sample) {
        if self.samples.len() < self.samples.capacity() {
            self.samples.push(sample);
        } else if let Some(place) = self.samples.get_mut(self.next) {
            *place = sample;
            self.next = (self.next + 1) % self.samples.len();
        }
    }

    /// The samples, oldest first.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        let (newer, older) = self.samples.split_at(self.next.min(self.samples.len()));
        older.iter().chain(newer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Timestamp;

    #[test]
    fn the_newest_are_kept_in_order() {
        let mut flight = Flight::new(4);
        let times = |flight: &Flight| -> Vec<u64> {
            flight.samples().map(|sample| sample.at.monotonic().as_secs()).collect()
        };
        for second in 0..10 {
            let at = Timestamp::from_secs(second);
            flight.push(Sample { at, subject: "host".into(), used: None, limit: None });
            if second == 2 {
                assert_eq!(times(&flight), [0, 1, 2]);
            }
        }
        assert_eq!(times(&flight), [6, 7, 8, 9]);
    }
}

//! A histogram whose bounds are powers of two.
//!
//! These bounds are those of Prometheus' native histograms of schema 0, so that a server that converts classic
//! buckets loses no precision.

/// Values counted by size. The bounds are `2^FROM`, `2^(FROM+1)`, … and infinity, `COUNT` finite ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Buckets<const FROM: i32, const COUNT: usize> {
    counts: [u64; COUNT],
    /// Number of values above the last finite bound.
    above: u64,
    sum: f64,
}

impl<const FROM: i32, const COUNT: usize> Default for Buckets<FROM, COUNT> {
    fn default() -> Self {
        Self { counts: [0; COUNT], above: 0, sum: 0.0 }
    }
}

impl<const FROM: i32, const COUNT: usize> Buckets<FROM, COUNT> {
    /// Counts one value; values that are not finite or below 0 are ignored.
    pub fn observe(&mut self, value: f64) {
        if !value.is_finite() || value < 0.0 {
            return;
        }
        let place = bounds::<FROM, COUNT>().position(|bound| value <= bound);
        match place.and_then(|place| self.counts.get_mut(place)) {
            Some(count) => *count += 1,
            None => self.above += 1,
        }
        self.sum = (self.sum + value).min(f64::MAX);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.above
    }

    pub const fn sum(&self) -> f64 {
        self.sum
    }

    /// Each finite bound with the number of values up to it.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut sum = 0;
        bounds::<FROM, COUNT>().zip(&self.counts).map(move |(bound, count)| {
            sum += count;
            (bound, sum)
        })
    }
}

fn bounds<const FROM: i32, const COUNT: usize>() -> impl Iterator<Item = f64> {
    (0..COUNT).scan(f64::from(FROM).exp2(), |next, _| {
        let bound = *next;
        *next *= 2.0;
        Some(bound)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_is_within_it() {
        let mut buckets = Buckets::<-1, 3>::default();
        for value in [0.0, 0.5, 0.75, 1.0, 2.0, 2.25, f64::NAN, -1.0, f64::INFINITY] {
            buckets.observe(value);
        }
        let cumulative: Vec<_> = buckets.cumulative().collect();
        assert_eq!(cumulative, [(0.5, 2), (1.0, 4), (2.0, 5)]);
        assert_eq!((buckets.count(), buckets.sum()), (6, 6.5));
    }
}

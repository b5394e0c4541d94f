//! Distance of the extremes of a few numbers from their mean.

/// The mean and the extremes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) mean: f64,
    /// (largest − mean) / mean.
    pub(super) above: f64,
    /// (mean − least) / mean.
    pub(super) below: f64,
    /// Index of the largest value; the first of several.
    pub(super) largest: usize,
    pub(super) least: usize,
}

impl Spread {
    /// Computes the spread of finite numbers; absent for fewer than two, and where their mean is not above zero.
    #[expect(clippy::cast_precision_loss, reason = "a node has a few GPUs")]
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        if values.len() < 2 || mean <= 0.0 {
            return None;
        }
        let mut found = Self { mean, above: 0.0, below: 0.0, largest: 0, least: 0 };
        for (place, value) in values.iter().enumerate() {
            if *value > values[found.largest] {
                found.largest = place;
            }
            if *value < values[found.least] {
                found.least = place;
            }
        }
        found.above = (values[found.largest] - mean) / mean;
        found.below = (mean - values[found.least]) / mean;
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_are_given_as_shares_of_the_mean() {
        let spread = Spread::of(&[2.0, 6.0, 4.0]).unwrap();
        assert_eq!(spread, Spread { mean: 4.0, above: 0.5, below: 0.5, largest: 1, least: 0 });
        assert_eq!(Spread::of(&[1.0]), None);
        assert_eq!(Spread::of(&[0.0, 0.0]), None);
        assert_eq!(Spread::of(&[]), None);
    }
}

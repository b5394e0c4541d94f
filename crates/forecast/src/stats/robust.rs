//! Order statistics and Theil-Sen slopes of a few dozen numbers.

/// The quantile `p` (0 to 1) of `values`, by nearest rank; reorders them. 0 for an empty slice.
pub fn quantile(values: &mut [f64], p: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index into a few dozen values"
    )]
    let index = ((values.len() - 1) as f64 * p.clamp(0.0, 1.0)).round() as usize;
    *values.select_nth_unstable_by(index, f64::total_cmp).1
}

/// The median of `values`; reorders them. 0 for an empty slice.
pub fn median(values: &mut [f64]) -> f64 {
    quantile(values, 0.5)
}

/// Maximum number of points that [`theil_sen`] uses.
pub const MOST: usize = 16;

/// The median slope of all pairs of points; robust against 29 % of outliers (Sen, JASA 63, 1968).
///
/// Points beyond [`MOST`] and pairs at the same time are ignored.
pub fn theil_sen(times: &[f64], values: &[f64]) -> f64 {
    let mut slopes = [0.0; MOST * (MOST - 1) / 2];
    let mut count = 0;
    let points = times.len().min(values.len()).min(MOST);
    let (times, values) = (&times[..points], &values[..points]);
    for later in 1..points {
        for earlier in 0..later {
            let apart = times[later] - times[earlier];
            slopes[count] = (values[later] - values[earlier]) / apart;
            count += usize::from(apart > 0.0);
        }
    }
    let slopes = &mut slopes[..count];
    if slopes.is_empty() {
        return 0.0;
    }
    let middle = (slopes.len() - 1).div_ceil(2);
    // A partial comparison is cheaper than the total order, and finite values contain no NaN.
    let compare = |one: &f64, next: &f64| one.partial_cmp(next).unwrap_or(std::cmp::Ordering::Equal);
    *slopes.select_nth_unstable_by(middle, compare).1
}

/// Whether [`theil_sen`] of these points exceeds `slope`: only counts the pairs that do, which costs a tenth of it.
pub fn theil_sen_exceeds(times: &[f64], values: &[f64], slope: f64) -> bool {
    let points = times.len().min(values.len()).min(MOST);
    let (times, values) = (&times[..points], &values[..points]);
    let (mut pairs, mut above) = (0, 0);
    for later in 1..points {
        for earlier in 0..later {
            let apart = times[later] - times[earlier];
            pairs += usize::from(apart > 0.0);
            above += usize::from(apart > 0.0 && values[later] - values[earlier] > slope * apart);
        }
    }
    // The median is at this index in the order, with all that exceed it after it.
    if pairs == 0 { slope < 0.0 } else { above >= pairs - (pairs - 1).div_ceil(2) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_slope_exceeds_what_is_below_it(
            points in prop::collection::vec((0_u32..40, -1000_i32..1000), 0..18),
            slope in -2000_i32..2000,
        ) {
            let times: Vec<f64> = points.iter().map(|(at, _)| f64::from(*at)).collect();
            let values: Vec<f64> = points.iter().map(|(_, value)| f64::from(*value)).collect();
            // Between the quotients of such numbers, so that rounding decides nothing.
            let slope = f64::from(slope) / 64.0 + 1e-5;
            prop_assert_eq!(theil_sen_exceeds(&times, &values, slope), theil_sen(&times, &values) > slope);
        }
    }

    #[test]
    fn a_third_of_wrong_points_does_not_matter() {
        let times: Vec<f64> = (0..12).map(f64::from).collect();
        let mut values: Vec<f64> = times.iter().map(|t| 5.0 + 3.0 * t).collect();
        values[2] = 1e9;
        values[7] = -1e9;
        assert!((theil_sen(&times, &values) - 3.0).abs() < 1e-9);
        assert_eq!(theil_sen(&[], &[]), 0.0);
        assert_eq!(quantile(&mut [], 0.5), 0.0);
        assert_eq!(quantile(&mut [3.0, 1.0, 2.0], 1.0), 3.0);
    }
}

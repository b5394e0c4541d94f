//! Drift of a short series, with an error that allows for its random variation.

use crate::rules::Rules;
use crate::stats::robust;

/// A slope with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drift {
    /// The Theil-Sen slope, per second.
    pub slope: f64,
    /// Its standard error, per second.
    pub error: f64,
    /// Part of the variance of neighboring differences that does not accumulate (twice that of white noise).
    pub noise: f64,
    /// Part of the variance that accumulates from neighbor to neighbor, as in a random walk.
    pub walk: f64,
}

impl Drift {
    /// The slope in standard errors; 0 for a constant.
    pub fn z(&self) -> f64 {
        if self.slope == 0.0 { 0.0 } else { self.slope / self.error.max(f64::MIN_POSITIVE) }
    }
}

/// The drift of points at about equal intervals.
///
/// The residuals are modeled as white noise plus a random walk, separated by their variogram: the variance of
/// differences over one step and over a quarter of the points. White noise of variance σ² gives the slope a variance
/// of 12σ²/n³, a random walk of variance q per step 1.2 q/n (Harvey, "Forecasting, structural time series models",
/// 1989, local level model). A Mann-Kendall test takes a random walk for a trend half of the time.
pub fn drift(times: &[f64], values: &[f64], rules: &Rules) -> Drift {
    let n = times.len().min(values.len()).min(robust::MOST);
    if n < 4 || times[n - 1] <= times[0] {
        return Drift::default();
    }
    #[expect(clippy::cast_precision_loss, reason = "a few dozen")]
    let count = n as f64;
    let slope = robust::theil_sen(times, values);
    let left = |i: usize| values[i] - slope * (times[i] - times[0]);
    let lag = (n / 4).max(2);
    let spread = |lag: usize| {
        let sum: f64 = (lag..n).map(|i| (left(i) - left(i - lag)).powi(2)).sum();
        #[expect(clippy::cast_precision_loss, reason = "a few dozen")]
        let pairs = (n - lag) as f64;
        sum / pairs
    };
    #[expect(clippy::cast_precision_loss, reason = "a few dozen")]
    let steps = lag as f64;
    let (near, far) = (spread(1), spread(lag));
    // Removing a fitted line removes the share lag/n of a random walk's variance.
    let walk = ((far / (1.0 - steps / count) - near) / (steps - 1.0)).max(rules.walk_at_least * near);
    let noise = (near - walk).max(0.0);
    let step = (times[n - 1] - times[0]) / (count - 1.0);
    let variance =
        6.0 * noise / count.powi(3) + 1.2 * walk / count + 6.0 * rules.grain_bytes.powi(2) / count.powi(3);
    Drift { slope, error: variance.sqrt() / step, noise, walk }
}

/// [`Drift::walk`] without the largest step, if this step is most of the variation: memory that rose at once, as at the
/// start of a job, does not say how it varies afterwards. The step may be divided between two differences, and counts in
/// the older half only: what follows a new one is not known.
pub fn walk_without_step(times: &[f64], values: &[f64], rules: &Rules) -> f64 {
    let whole = drift(times, values, rules);
    let n = times.len().min(values.len()).min(robust::MOST);
    if n < 8 {
        return whole.walk;
    }
    // The median of the differences: a step in the middle changes the slope of the whole.
    let mut slopes = [0.0; robust::MOST];
    for (i, slope) in slopes.iter_mut().enumerate().take(n - 1) {
        *slope = (values[i + 1] - values[i]) / (times[i + 1] - times[i]).max(f64::MIN_POSITIVE);
    }
    let slope = robust::median(&mut slopes[..n - 1]);
    let difference = |i: usize| values[i] - values[i - 1] - slope * (times[i] - times[i - 1]);
    let square = |i: usize| difference(i).powi(2);
    let all: f64 = (1..n).map(square).sum();
    let pair = |i: usize| square(i) + square(i + 1);
    let Some(at) = (1..n / 2).max_by(|a, b| pair(*a).total_cmp(&pair(*b))) else { return whole.walk };
    if pair(at) <= rules.walk_step * (all - pair(at)) {
        return whole.walk;
    }
    let step = difference(at) + difference(at + 1);
    let mut without = [0.0; robust::MOST];
    for (i, value) in without[..n].iter_mut().enumerate() {
        *value = match i {
            _ if i < at => values[i] + step,
            _ if i == at => values[at + 1] - slope * (times[at + 1] - times[at]),
            _ => values[i],
        };
    }
    drift(&times[..n], &without[..n], rules).walk.min(whole.walk)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For values of about one.
    const FINE: Rules = Rules { grain_bytes: 1e-3, ..*Rules::DAEMON };

    #[test]
    fn one_step_is_no_walk_and_many_are() {
        let times: Vec<f64> = (0..16).map(f64::from).collect();
        let noise = |i: u32| 0.01 * f64::from(i * 7 % 5);
        let line: Vec<f64> = (0..16).map(|i| f64::from(i) + noise(i)).collect();
        let plain = drift(&times, &line, &FINE).walk;
        for at in 1..8_u32 {
            for part in [0.0, 0.4, 1.0] {
                let jump = |i: u32| {
                    if i < at {
                        -60.0
                    } else if i == at {
                        -60.0 * part
                    } else {
                        0.0
                    }
                };
                let values: Vec<f64> = (0..16).map(|i| f64::from(i) + noise(i) + jump(i)).collect();
                let (with, without) =
                    (drift(&times, &values, &FINE).walk, walk_without_step(&times, &values, &FINE));
                assert!(
                    with > 100.0 * plain && without < 4.0 * plain,
                    "{at} {part}: {plain} {with} {without}"
                );
            }
        }
        let late: Vec<f64> =
            (0..16).map(|i| if i < 12 { f64::from(i) } else { f64::from(i) + 60.0 }).collect();
        assert_eq!(walk_without_step(&times, &late, &FINE), drift(&times, &late, &FINE).walk, "a new step");
        let steps: Vec<f64> = (0..16).map(|i| f64::from(i / 3 * 3) + noise(i)).collect();
        let walk = drift(&times, &steps, &FINE).walk;
        assert_eq!(walk_without_step(&times, &steps, &FINE), walk, "a stair");
    }

    fn z(values: &[f64]) -> f64 {
        let times: Vec<f64> = (0..12).map(f64::from).collect();
        drift(&times, values, &FINE).z()
    }

    #[test]
    fn a_line_is_certain_growth_and_a_jump_is_not() {
        let line: Vec<f64> = (0..12).map(|i| f64::from(i) + 0.1 * f64::from(i % 2)).collect();
        assert!(z(&line) > 10.0, "{}", z(&line));
        let jump: Vec<f64> = (0..12).map(|i| if i < 6 { 0.0 } else { 10.0 }).collect();
        assert!(z(&jump) < 2.5, "{}", z(&jump));
        assert_eq!(z(&[5.0; 12]), 0.0);
        assert_eq!(drift(&[0.0, 1.0], &[0.0, 1.0], &FINE), Drift::default());
    }
}

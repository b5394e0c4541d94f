//! When a random walk with drift first reaches a level: the inverse Gaussian distribution.

use crate::stats::normal;

/// A random walk with drift, from now on.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// The distance to the limit, in bytes.
    pub distance: f64,
    /// The standard error of that distance, in bytes.
    pub distance_error: f64,
    /// The drift, in bytes per second.
    pub rate: f64,
    /// The standard error of the drift, in bytes per second.
    pub rate_error: f64,
    /// The variance that the walk gains per second, in bytes².
    pub diffusion: f64,
}

impl Walk {
    /// The probability that the limit is reached within `horizon` seconds.
    ///
    /// The first passage of Brownian motion with drift μ and variance σ² per second over d is Φ((μh − d)/s) +
    /// exp(2μd/v)·Φ(−(μh + d)/s), s = σ√h, v = s²/h (Schrödinger 1915; Folks and Chhikara, "The inverse Gaussian
    /// distribution", 1978). The uncertainties of the drift and of the distance are added to s², as Si et al. do for
    /// remaining useful life.
    pub fn within(&self, horizon: f64) -> f64 {
        if self.distance <= 0.0 {
            return 1.0;
        }
        if horizon <= 0.0 || !horizon.is_finite() {
            return 0.0;
        }
        let (d, mean) = (self.distance, self.rate * horizon);
        let variance =
            self.diffusion * horizon + (self.rate_error * horizon).powi(2) + self.distance_error.powi(2);
        if variance <= f64::MIN_POSITIVE {
            return if mean >= d { 1.0 } else { 0.0 };
        }
        let s = variance.sqrt();
        let straight = normal::cdf((mean - d) / s);
        // Only diffusion can reach the limit and return before the horizon.
        let reflected = if self.diffusion > 0.0 {
            let exponent = 2.0 * mean * d / variance + normal::log_cdf(-(mean + d) / s);
            exponent.min(0.0).exp() * (self.diffusion * horizon / variance)
        } else {
            0.0
        };
        (straight + reflected).clamp(0.0, 1.0)
    }

    /// The time in seconds by which the limit is reached with probability `p`; absent if never.
    pub fn quantile(&self, p: f64, longest: f64) -> Option<f64> {
        if self.distance <= 0.0 {
            return Some(0.0);
        }
        if self.within(longest) < p {
            return None;
        }
        let (mut low, mut high) = (0.0, longest);
        // 40 bisections of 30 years give 1 ms.
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            if self.within(middle) < p { low = middle } else { high = middle }
        }
        Some(high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SURE: Walk =
        Walk { distance: 100.0, distance_error: 0.0, rate: 2.0, rate_error: 0.0, diffusion: 0.0 };

    #[test]
    fn a_straight_line_arrives_when_it_must() {
        assert_eq!((SURE.within(49.9), SURE.within(50.1)), (0.0, 1.0));
        let at = SURE.quantile(0.5, 1e9).unwrap();
        assert!((at - 50.0).abs() < 0.01, "{at}");
        assert_eq!(Walk { distance: -1.0, ..SURE }.within(1.0), 1.0);
        assert_eq!(Walk { rate: -2.0, ..SURE }.quantile(0.5, 1e9), None);
    }

    #[test]
    fn a_walk_without_drift_follows_the_reflection_principle() {
        let walk = Walk { rate: 0.0, diffusion: 4.0, ..SURE };
        let (p, wanted) = (walk.within(400.0), 2.0 * normal::cdf(-100.0 / 40.0));
        assert!((p - wanted).abs() < 1e-9, "{p} {wanted}");
    }

    #[test]
    fn quantiles_are_in_order() {
        let walk = Walk { distance_error: 5.0, rate_error: 0.2, diffusion: 3.0, ..SURE };
        let [low, middle, high] = [0.1, 0.5, 0.9].map(|p| walk.quantile(p, 1e9).unwrap());
        assert!(low < middle && middle < high, "{low} {middle} {high}");
    }
}

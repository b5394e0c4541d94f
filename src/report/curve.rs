//! One observed series in bounded memory: exact extremes and mean, and points for a plot.

use serde::Serialize;

/// Number of points kept; at twice as many, each pair is merged into the larger value, so that peaks remain.
const MOST: usize = 1024;

/// An observed series.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    points: Vec<(f64, f64)>,
    count: f64,
    sum: f64,
    least: Option<f64>,
    peak: Option<(f64, f64)>,
    last: Option<(f64, f64)>,
}

/// Statistics of a series over the observed time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// The newest value.
    pub current: f64,
    /// The smallest.
    pub min: f64,
    /// The mean over samples.
    pub mean: f64,
    /// The 95 % quantile.
    pub p95: f64,
    /// The largest.
    pub max: f64,
    /// When the largest value occurred, in seconds since the start.
    pub max_at_seconds: f64,
}

impl Curve {
    /// Adds a value at a time in seconds; values that are not finite are ignored.
    pub fn push(&mut self, at: f64, value: f64) {
        if !at.is_finite() || !value.is_finite() {
            return;
        }
        self.count += 1.0;
        self.sum += value;
        self.least = Some(self.least.map_or(value, |least| least.min(value)));
        if self.peak.is_none_or(|(_, peak)| value > peak) {
            self.peak = Some((at, value));
        }
        self.last = Some((at, value));
        self.points.push((at, value));
        if self.points.len() >= 2 * MOST {
            let larger = |pair: &[(f64, f64)]| pair.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
            self.points = self.points.chunks(2).filter_map(larger).collect();
        }
    }

    /// The newest time and value.
    pub fn last(&self) -> Option<(f64, f64)> {
        self.last
    }

    /// The time and the value of the peak.
    pub fn peak(&self) -> Option<(f64, f64)> {
        self.peak
    }

    /// The points for a plot.
    pub fn points(&self) -> Vec<(f64, Option<f64>)> {
        self.points.iter().map(|(at, value)| (*at, Some(*value))).collect()
    }

    /// The statistics; absent without values.
    pub fn statistics(&self) -> Option<Statistics> {
        let (max_at_seconds, max) = self.peak?;
        let mut values: Vec<f64> = self.points.iter().map(|(_, value)| *value).collect();
        values.sort_by(f64::total_cmp);
        // Nearest rank: a value that occurred.
        let rank = (values.len() * 95).div_ceil(100).max(1) - 1;
        Some(Statistics {
            current: self.last?.1,
            min: self.least?,
            mean: self.sum / self.count,
            p95: *values.get(rank)?,
            max,
            max_at_seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_are_those_of_the_samples() {
        let mut curve = Curve::default();
        assert_eq!(curve.statistics(), None);
        for i in 1..=100_u32 {
            curve.push(f64::from(i), f64::from(if i == 40 { 500 } else { i }));
        }
        curve.push(101.0, f64::NAN);
        let found = curve.statistics().unwrap();
        assert_eq!((found.current, found.min, found.max, found.max_at_seconds), (100.0, 1.0, 500.0, 40.0));
        assert_eq!((found.mean, found.p95), ((5050.0 - 40.0 + 500.0) / 100.0, 96.0));
    }

    #[test]
    fn a_long_watch_stays_small_and_keeps_its_peak() {
        let mut curve = Curve::default();
        for i in 0..100_000_u32 {
            curve.push(f64::from(i), if i == 77_777 { 9.0 } else { 1.0 });
        }
        assert!(curve.points.len() < 2 * MOST);
        assert!(curve.points().contains(&(77_777.0, Some(9.0))));
        assert_eq!(curve.statistics().unwrap().mean, (99_999.0 + 9.0) / 100_000.0);
    }
}

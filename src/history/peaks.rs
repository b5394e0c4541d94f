//! The largest value of each series over a sliding window.
//!
//! A scrape every 15 s of a daemon that samples every second would miss the peaks in between; the window is longer
//! than the scrape interval, so that every scraper sees every peak, and two scrapers see the same ones.

use std::collections::VecDeque;
use std::time::Duration;

use foldhash::HashMap;

use crate::model::label::Label;
use crate::model::time::Timestamp;

/// Rolling maxima, by metric name and labels.
#[derive(Debug, Default)]
pub struct Peaks {
    metrics: HashMap<&'static str, HashMap<Box<[Label]>, Series>>,
}

/// The candidates of a window, with ascending times and descending values (a monotonic queue).
#[derive(Debug)]
struct Series {
    candidates: VecDeque<(Timestamp, f64)>,
    last_sample: Timestamp,
}

impl Peaks {
    /// Creates empty windows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a value at `now` and returns the largest of the last `window`.
    pub fn record(
        &mut self,
        metric: &'static str,
        labels: &[Label],
        value: f64,
        now: Timestamp,
        window: Duration,
    ) -> f64 {
        let known = self.metrics.entry(metric).or_default();
        let series = match known.get_mut(labels) {
            Some(series) => series,
            None => known
                .entry(labels.into())
                .or_insert_with(|| Series { candidates: VecDeque::new(), last_sample: now }),
        };
        series.last_sample = now;
        while series.candidates.back().is_some_and(|(_, smaller)| *smaller <= value) {
            series.candidates.pop_back();
        }
        series.candidates.push_back((now, value));
        while series.candidates.front().is_some_and(|(at, _)| now.since(*at) > window) {
            series.candidates.pop_front();
        }
        series.candidates.front().map_or(value, |(_, largest)| *largest)
    }

    /// Removes every series that was not recorded at `now`.
    pub fn forget_unseen(&mut self, now: Timestamp) {
        self.metrics.retain(|_, known| {
            known.retain(|_, series| series.last_sample == now);
            !known.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_that_of_the_window() {
        let mut peaks = Peaks::new();
        let window = Duration::from_secs(3);
        let seen: Vec<f64> = [1.0, 5.0, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0]
            .into_iter()
            .zip(0..)
            .map(|(value, second)| peaks.record("m", &[], value, Timestamp::from_secs(second), window))
            .collect();
        assert_eq!(seen, [1.0, 5.0, 5.0, 5.0, 5.0, 3.0, 3.0, 1.0]);
        peaks.forget_unseen(Timestamp::from_secs(99));
        assert!(peaks.metrics.is_empty());
    }
}

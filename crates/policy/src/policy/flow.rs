//! Rates of growth of a resource, over two windows. Allocates nothing after construction.

use std::time::Duration;

use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// Samples kept for a window.
const SAMPLES: usize = 32;
/// The window of the fast rate.
pub const FAST_WINDOW: Duration = Duration::from_secs(1);
/// The window of the slow rate.
pub const SLOW_WINDOW: Duration = Duration::from_secs(30);

/// The use at the end of the last few parts of a window.
#[derive(Clone, Copy, Debug)]
struct Window {
    length: Duration,
    /// The oldest first.
    kept: [(Timestamp, u64); SAMPLES],
    count: usize,
}

impl Window {
    const fn new(length: Duration) -> Self {
        Self { length, kept: [(Timestamp::from_secs(0), 0); SAMPLES], count: 0 }
    }

    fn record(&mut self, now: Timestamp, used: u64) {
        let part = self.length / 16;
        if self.count > 0 && now.since(self.kept[self.count - 1].0) < part {
            return;
        }
        if self.count == SAMPLES {
            self.kept.copy_within(1.., 0);
            self.count -= 1;
        }
        self.kept[self.count] = (now, used);
        self.count += 1;
    }

    /// Bytes per second since the oldest sample within the window; nothing before a quarter of it has passed.
    #[expect(clippy::cast_precision_loss, reason = "bytes of memory; 2^53 bytes are 8 PiB")]
    fn rate(&self, now: Timestamp, used: u64) -> Option<f64> {
        let oldest = self.kept[..self.count].iter().find(|(at, _)| now.since(*at) <= self.length)?;
        let passed = now.since(oldest.0);
        (passed >= self.length / 4).then(|| (used as f64 - oldest.1 as f64) / passed.as_secs_f64())
    }
}

/// The two rates of one resource.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    fast: Window,
    slow: Window,
    /// The highest rate so far.
    fastest: f64,
}

impl Default for Flow {
    fn default() -> Self {
        Self { fast: Window::new(FAST_WINDOW), slow: Window::new(SLOW_WINDOW), fastest: 0.0 }
    }
}

impl Flow {
    /// Records the current use, and returns the fast and the slow rate in bytes per second, where they are known.
    pub fn record(&mut self, now: Timestamp, used: Bytes) -> (Option<f64>, Option<f64>) {
        let used = used.get();
        let rates = (self.fast.rate(now, used), self.slow.rate(now, used));
        self.fast.record(now, used);
        self.slow.record(now, used);
        self.fastest = self.fastest.max(rates.0.unwrap_or(0.0));
        rates
    }

    /// The highest rate so far, in bytes per second; 0 before one is known.
    pub const fn fastest(&self) -> f64 {
        self.fastest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ramp_has_its_rate_after_a_quarter_of_the_window() {
        let mut flow = Flow::default();
        let mut rates = Vec::new();
        for tick in 0..400_u32 {
            let now = Timestamp::from_secs(50).plus(Duration::from_millis(100) * tick);
            let used = if tick < 300 { u64::from(tick) * 1000 } else { 300_000 };
            let (fast, slow) = flow.record(now, Bytes::new(used));
            if [0, 4, 5, 74, 75, 200, 300, 330, 399].contains(&tick) {
                rates.push(format!("{tick} {fast:?} {slow:?}"));
            }
        }
        expect_test::expect![[r#"
            0 None None
            4 Some(10000.0) None
            5 Some(10000.0) None
            74 Some(10000.0) None
            75 Some(10000.0) Some(10000.0)
            200 Some(10000.0) Some(10000.0)
            300 Some(10000.0) Some(10000.0)
            330 Some(0.0) Some(8972.602739726028)
            399 Some(0.0) Some(6526.315789473684)"#]]
        .assert_eq(&rates.join("\n"));
        assert!((flow.fastest() - 10_000.0).abs() < 1.0);
    }

    #[test]
    fn a_pause_makes_no_rate_of_old_samples() {
        let mut flow = Flow::default();
        flow.record(Timestamp::from_secs(0), Bytes::new(0));
        assert_eq!(flow.record(Timestamp::from_secs(100), Bytes::new(1 << 30)), (None, None));
    }
}

//! Growth rate of a total over the last 30 seconds or the last few steps, whichever is longer.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::time::Timestamp;
use crate::model::units::real;

const WINDOW: Duration = Duration::from_secs(30);
/// Minimum distance of two kept values, so that few are enough for any rate of steps.
const APART: Duration = Duration::from_secs(1);
/// Fewest values kept, for jobs whose steps take longer than the window.
const FEWEST: usize = 4;
/// Most values kept.
const MOST: usize = 40;
/// A step may be this late before the rate decreases.
const SLACK: Duration = Duration::from_secs(5);

/// The history of one total.
#[derive(Clone, Debug, Default)]
pub struct Rate {
    kept: VecDeque<(Timestamp, u64)>,
    newest: Option<(Timestamp, u64)>,
}

impl Rate {
    /// Adds the total at a time.
    pub fn push(&mut self, at: Timestamp, total: u64) {
        self.newest = Some((at, total));
        if self.kept.back().is_some_and(|(last, _)| at.since(*last) < APART) {
            return;
        }
        self.kept.push_back((at, total));
        while self.kept.len() > FEWEST
            && (self.kept.len() > MOST
                || self.kept.get(1).is_some_and(|(second, _)| at.since(*second) >= WINDOW))
        {
            self.kept.pop_front();
        }
    }

    /// Growth per second; nothing before two steps that are a second apart.
    ///
    /// If no step follows, the rate decreases after twice the usual time between steps.
    pub fn per_second(&self, now: Timestamp) -> Option<f64> {
        let ((first, before), (last, total)) = (*self.kept.front()?, self.newest?);
        let elapsed = last.since(first);
        if elapsed < APART {
            return None;
        }
        let steps = u32::try_from(self.kept.len().saturating_sub(1)).unwrap_or(1).max(1);
        let due = last.plus(SLACK + elapsed / steps * 2);
        let until = if now.since(due).is_zero() { elapsed } else { elapsed + now.since(due) };
        Some(real(total.saturating_sub(before)) / until.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Timestamp {
        Timestamp::new(Duration::from_millis(millis), Duration::from_millis(millis))
    }

    #[test]
    fn steps_of_any_length_give_a_rate() {
        for step_ms in [10, 500, 1_000, 7_000, 120_000] {
            let mut rate = Rate::default();
            for step in 0..2_000 {
                rate.push(ms(step * step_ms), step * 4_096);
            }
            let now = ms(1_999 * step_ms + step_ms / 2);
            let expected = 4_096_000.0 / Duration::from_millis(step_ms).as_secs_f64() / 1e3;
            let found = rate.per_second(now).unwrap();
            assert!((found / expected - 1.0).abs() < 1e-9, "{step_ms}: {found} and not {expected}");
            assert!(rate.kept.len() <= MOST);
        }
    }

    #[test]
    fn the_rate_of_a_stalled_job_decreases() {
        let mut rate = Rate::default();
        assert_eq!(rate.per_second(ms(0)), None);
        rate.push(ms(0), 0);
        rate.push(ms(500), 10);
        assert_eq!(rate.per_second(ms(600)), None, "less than a second is too short");
        for second in 1..=30 {
            rate.push(ms(second * 1_000), second * 100);
        }
        let at = |second: u64| rate.per_second(ms(second * 1_000)).unwrap();
        assert_eq!((at(31), at(37)), (100.0, 100.0));
        assert!(at(67) < 55.0 && at(3_600) < 1.0, "{} {}", at(67), at(3_600));
    }
}

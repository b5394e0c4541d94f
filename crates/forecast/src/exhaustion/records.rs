//! The new maxima of growing memory: growth that goes on reaches levels that were never reached before.

use crate::rules::Rules;
use crate::view::View;

/// The new maxima since growth began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Records {
    /// Whether a level before the growth was as high as the present one.
    returns: bool,
    /// The time since the last maximum, as a multiple of the longest time between two of them.
    pause: f64,
}

impl Records {
    /// The maxima of `view` since `from`; `from` and `now` on the view's clock, all times in seconds.
    pub(crate) fn since(from: f64, view: &View, now: f64) -> Self {
        let first = view.from(from);
        let before = view.max()[..first].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (mut highest, mut last, mut longest) = (f64::NEG_INFINITY, from, 0.0_f64);
        for (at, top) in view.at()[first..].iter().zip(&view.max()[first..]) {
            if *top > highest {
                longest = longest.max(at - last);
                (highest, last) = (*top, *at);
            }
        }
        let longest = longest.max(f64::MIN_POSITIVE);
        Self { returns: highest <= before, pause: (now - last).max(0.0) / longest }
    }

    /// The probability that growth goes on, as far as these maxima say. `leaks` is whether it has lasted for long
    /// enough to be a leak.
    pub(crate) fn goes_on(self, leaks: bool, rules: &Rules) -> f64 {
        let exceeds = if self.returns && !leaks { rules.returns } else { 1.0 };
        exceeds * (rules.record_pause / self.pause.max(rules.record_pause)).powi(rules.record_fades)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::life::Life;

    /// The maxima since `from` of a series with one sample a second.
    fn records(seconds: u32, from: f64, value: impl Fn(f64) -> f64) -> Records {
        let mut history = Life::default();
        for at in (0..seconds).map(f64::from) {
            history.push(at, [Some(value(at)), None], None, Rules::DAEMON);
        }
        Records::since(from, &View::recent(&history, 0), f64::from(seconds))
    }

    #[test]
    fn growth_without_new_maxima_does_not_go_on() {
        let stairs = |until: f64| move |at: f64| 1e9 + 1e7 * (at.min(until) / 40.0).floor();
        assert_eq!(records(390, 0.0, stairs(1e9)).goes_on(true, Rules::DAEMON), 1.0);
        assert!(records(400, 0.0, stairs(360.0)).goes_on(true, Rules::DAEMON) > 0.5, "a step is due");
        let later =
            [480, 560, 640].map(|seconds| records(seconds, 0.0, stairs(360.0)).goes_on(true, Rules::DAEMON));
        assert!(later.is_sorted_by(|one, next| one > next) && later[2] < 0.2, "{later:?}");
    }

    #[test]
    fn a_return_to_an_earlier_level_hardly_exceeds_it() {
        let cycle = |at: f64| 2e9 - 1e9 * (std::f64::consts::TAU * at / 400.0).cos();
        let rises = records(560, 420.0, cycle);
        assert_eq!(
            (rises.goes_on(false, Rules::DAEMON), rises.goes_on(true, Rules::DAEMON)),
            (Rules::DAEMON.returns, 1.0)
        );
        assert_eq!(records(150, 20.0, cycle).goes_on(false, Rules::DAEMON), 1.0, "the first rise");
    }
}

//! One series at three resolutions: the last 10 minutes by the second, 2 hours in steps of 10 s, and a day in steps of a
//! minute.
//!
//! A value takes two bytes: a multiple of the series' unit, a power of two that grows with the largest value, so that
//! the error is at most a 32,768th of that. The coarse steps keep their smallest and their largest value. A step
//! without a sample is missing, never zero.

use crate::model::names::named;
use crate::model::units::{real, whole};
use std::collections::VecDeque;

named! {
    /// A resolution of [`Rings`].
    pub enum Range {
        /// 10 minutes in steps of 1 s.
        Minutes = "10m",
        /// 2 hours in steps of 10 s.
        Hours = "2h",
        /// 24 hours in steps of 60 s.
        Day = "24h",
    }
}

impl Range {
    /// Seconds in one step.
    pub const fn step(self) -> u32 {
        match self {
            Self::Minutes => 1,
            Self::Hours => 10,
            Self::Day => 60,
        }
    }

    /// Maximum number of steps.
    pub const fn steps(self) -> usize {
        match self {
            Self::Minutes => 600,
            Self::Hours => 720,
            Self::Day => 1440,
        }
    }

    /// Its length in seconds.
    pub fn seconds(self) -> f64 {
        f64::from(self.step()) * real(self.steps() as u64)
    }
}

/// The smallest and the largest value of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

/// The code of a step without a sample.
const MISSING: u16 = u16::MAX;
/// The largest code of a value.
const LARGEST: f64 = 65_534.0;
/// The exponent of the smallest unit, for shares of 1.
const SMALLEST_UNIT: i32 = -16;

/// The steps of one resolution; `W` codes a step.
#[derive(Clone, Debug, Default, PartialEq)]
struct Ring<const W: usize> {
    steps: VecDeque<[u16; W]>,
    /// The number of the newest step since the time origin.
    newest: u64,
}

impl<const W: usize> Ring<W> {
    /// Adds a value's code at the step with this number; steps in between are missing. Earlier steps are ignored.
    fn push(&mut self, step: u64, code: u16, most: usize) {
        if let Some(last) = self.steps.back_mut() {
            if step < self.newest {
                return;
            }
            if step == self.newest {
                let known = last[0] != MISSING;
                last[0] = if known { last[0].max(code) } else { code };
                if W > 1 {
                    last[W - 1] = if known { last[W - 1].min(code) } else { code };
                }
                return;
            }
            let missing = step - self.newest - 1;
            if missing >= most as u64 {
                self.steps.clear();
            } else {
                for _ in 0..missing {
                    self.add([MISSING; W], most);
                }
            }
        }
        self.newest = step;
        self.add([code; W], most);
    }

    fn add(&mut self, codes: [u16; W], most: usize) {
        if self.steps.len() >= most {
            self.steps.pop_front();
        } else if self.steps.len() == self.steps.capacity() {
            let more = most.min(self.steps.len().max(30) * 2) - self.steps.len();
            self.steps.reserve_exact(more);
        }
        self.steps.push_back(codes);
    }

    fn halve(&mut self, times: u32) {
        for code in self.steps.iter_mut().flatten().filter(|code| **code != MISSING) {
            *code = code.checked_shr(times).unwrap_or(0);
        }
    }
}

/// The newest samples of one series.
#[derive(Clone, Debug, PartialEq)]
pub struct Rings {
    /// The unit is 2 to this power.
    unit: i32,
    seconds: Ring<1>,
    tens: Ring<2>,
    minutes: Ring<2>,
}

impl Default for Rings {
    fn default() -> Self {
        Self {
            unit: SMALLEST_UNIT,
            seconds: Ring::default(),
            tens: Ring::default(),
            minutes: Ring::default(),
        }
    }
}

impl Rings {
    /// Maximum size in bytes, including the heap.
    pub const BOUND: usize =
        size_of::<Self>() + 2 * Range::Minutes.steps() + 4 * Range::Hours.steps() + 4 * Range::Day.steps();

    /// Records a value, at least 0, at `at` seconds since an origin that never steps.
    pub fn push(&mut self, at: f64, value: f64) {
        if !(value.is_finite() && value >= 0.0 && at.is_finite() && at >= 0.0) {
            return;
        }
        let mut more = 0;
        while value / 2_f64.powi(self.unit) > LARGEST {
            // Half of the codes stay free, so that a growing series is seldom converted.
            self.unit += 1;
            more += 1;
        }
        if more > 0 {
            self.seconds.halve(more);
            self.tens.halve(more);
            self.minutes.halve(more);
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in range")]
        let code = (value / 2_f64.powi(self.unit)).round() as u16;
        let step = |range: Range| whole(at / f64::from(range.step()));
        self.seconds.push(step(Range::Minutes), code, Range::Minutes.steps());
        self.tens.push(step(Range::Hours), code, Range::Hours.steps());
        self.minutes.push(step(Range::Day), code, Range::Day.steps());
    }

    /// The steps of a range, oldest first: the start of each in seconds since the origin, and its values; absent where
    /// no sample was taken.
    pub fn steps(&self, range: Range) -> Vec<(f64, Option<Extent>)> {
        match range {
            Range::Minutes => self.decoded(&self.seconds, range),
            Range::Hours => self.decoded(&self.tens, range),
            Range::Day => self.decoded(&self.minutes, range),
        }
    }

    fn decoded<const W: usize>(&self, ring: &Ring<W>, range: Range) -> Vec<(f64, Option<Extent>)> {
        let unit = 2_f64.powi(self.unit);
        let first = (ring.newest + 1).saturating_sub(ring.steps.len() as u64);
        let tell = |(number, codes): (u64, &[u16; W])| {
            let at = real(number) * f64::from(range.step());
            let known = codes[0] != MISSING;
            let (max, min) = (f64::from(codes[0]) * unit, f64::from(codes[W - 1]) * unit);
            (at, known.then_some(Extent { min, max }))
        };
        (first..).zip(&ring.steps).map(tell).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = (f64, f64)>) -> Rings {
        let mut rings = Rings::default();
        values.into_iter().for_each(|(at, value)| rings.push(at, value));
        rings
    }

    #[test]
    fn each_range_keeps_its_length() {
        let rings = of((0..100_000_u32).map(|at| (f64::from(at), 5.0)));
        for range in Range::ALL {
            let steps = rings.steps(range);
            assert_eq!(steps.len(), range.steps());
            assert!(
                steps[0].0 >= 99_999.0 - range.seconds() - f64::from(range.step()),
                "{range:?} {}",
                steps[0].0
            );
            assert!(steps.iter().all(|(_, extent)| *extent == Some(Extent { min: 5.0, max: 5.0 })));
            assert_eq!(Range::of_label(range.label()), Some(range));
        }
        assert_eq!(Range::of_label("1y"), None);
        const { assert!(Rings::BOUND < 10_100) };
    }

    #[test]
    fn a_step_keeps_its_extremes_and_a_missing_sample_is_a_gap() {
        let rings = of([(0.0, 8.0), (4.0, 2.0), (9.0, 3.0), (30.0, 1.0)]);
        let known = Some(Extent { min: 2.0, max: 8.0 });
        let last = Some(Extent { min: 1.0, max: 1.0 });
        assert_eq!(rings.steps(Range::Hours), [(0.0, known), (10.0, None), (20.0, None), (30.0, last)]);
        assert_eq!(rings.steps(Range::Minutes).iter().filter(|(_, extent)| extent.is_some()).count(), 4);
        // A zero is a value.
        assert_eq!(of([(0.0, 0.0)]).steps(Range::Day), [(0.0, Some(Extent { min: 0.0, max: 0.0 }))]);
    }

    #[test]
    fn a_long_pause_leaves_only_what_came_after_it() {
        let rings = of([(0.0, 1.0), (1_000_000.0, 2.0)]);
        assert_eq!(rings.steps(Range::Day).len(), 1);
        assert_eq!(rings.steps(Range::Day)[0].0, 999_960.0);
    }

    #[test]
    fn values_of_every_size_are_kept_closely() {
        for scale in [1.0, 1e6, 8e10, 1e15] {
            let rings = of((0..600_u32).map(|at| (f64::from(at), f64::from(at) / 600.0 * scale)));
            for (at, extent) in rings.steps(Range::Minutes) {
                let error = (extent.unwrap().max - at / 600.0 * scale).abs();
                // Codes are cut when the unit grows, a few times at most.
                assert!(error <= scale / 16_000.0, "{scale} {at} {error}");
            }
        }
    }

    #[test]
    fn what_is_no_value_is_no_sample() {
        let rings = of([(0.0, f64::NAN), (1.0, -1.0), (f64::INFINITY, 1.0)]);
        assert_eq!(rings, Rings::default());
        // A clock that goes back adds nothing.
        let rings = of([(100.0, 5.0), (50.0, 9.0)]);
        assert_eq!(rings.steps(Range::Minutes).len(), 1);
    }
}

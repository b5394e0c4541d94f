//! Numbers that may change with time: constant, ramp, sawtooth, steps.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};

/// A number of the scenario, as a function of the seconds since its epoch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Always the same.
    Fixed(f64),
    /// A number that moves.
    Moving(Shape),
}

/// How a number moves.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Shape {
    /// A straight line, ending at `max` and starting again at `wrap` where these are given.
    Ramp(Ramp),
    /// From low to high in each period, then at once back to low.
    Sawtooth(Sawtooth),
    /// Pairs of a second and the value from then on; the first value also holds before it.
    Steps(Vec<(f64, f64)>),
    /// One peak in each period, at a phase that looks random and depends only on the seed and the period's number.
    Peaks(Peaks),
}

/// The figures of a ramp.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ramp {
    from: f64,
    per_second: f64,
    max: Option<f64>,
    wrap: Option<f64>,
}

/// The figures of a sawtooth.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sawtooth {
    low: f64,
    high: f64,
    period_s: f64,
}

/// The figures of peaks.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Peaks {
    low: f64,
    high: f64,
    /// Added to `high` once for each period before, so that each peak has its own height.
    #[serde(default)]
    step: f64,
    length_s: f64,
    period_s: f64,
    #[serde(default)]
    seed: u64,
}

impl Peaks {
    fn at(&self, t: f64) -> f64 {
        if self.period_s <= 0.0 || t < 0.0 {
            return self.low;
        }
        let period = (t / self.period_s).floor();
        let room = (self.period_s - self.length_s).max(0.0);
        let begin = period.mul_add(self.period_s, room * share(self.seed, period.to_bits()));
        if (begin..begin + self.length_s).contains(&t) {
            self.step.mul_add(period, self.high)
        } else {
            self.low
        }
    }
}

/// A number from 0 to 1 for a seed and a period (the finalizer of SplitMix64).
fn share(seed: u64, period: u64) -> f64 {
    let mut mixed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(period);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    let top = u32::try_from((mixed ^ (mixed >> 31)) >> 32).unwrap_or(0);
    f64::from(top) / f64::from(u32::MAX)
}

impl Value {
    /// The number at `t` seconds after the epoch, never below zero and without its fraction.
    pub(crate) fn at(&self, t: f64) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the cast saturates, and the fraction is to be dropped"
        )]
        let whole = self.exact(t) as u64;
        whole
    }

    /// The number at `t` seconds after the epoch, with its fraction.
    pub(crate) fn exact(&self, t: f64) -> f64 {
        match self {
            Self::Fixed(number) => *number,
            Self::Moving(Shape::Ramp(ramp)) => {
                let reached = ramp.per_second.mul_add(t, ramp.from);
                let ended = ramp.max.map_or(reached, |max| reached.min(max));
                match ramp.wrap {
                    Some(wrap) if wrap > 0.0 => ended.rem_euclid(wrap),
                    _ => ended,
                }
            }
            Self::Moving(Shape::Sawtooth(saw)) if saw.period_s > 0.0 => {
                let part = (t / saw.period_s).rem_euclid(1.0);
                (saw.high - saw.low).mul_add(part, saw.low)
            }
            Self::Moving(Shape::Sawtooth(saw)) => saw.low,
            Self::Moving(Shape::Peaks(peaks)) => peaks.at(t),
            Self::Moving(Shape::Steps(steps)) => steps
                .iter()
                .take_while(|(from, _)| *from <= t)
                .last()
                .or(steps.first())
                .map_or(0.0, |(_, value)| *value),
        }
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Fixed(f64::from(number))
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrShape;

        impl<'de> Visitor<'de> for NumberOrShape {
            type Value = Value;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter
                    .write_str("a number, or one of {\"ramp\"}, {\"sawtooth\"}, {\"steps\"}, {\"peaks\"}")
            }

            #[expect(
                clippy::cast_precision_loss,
                reason = "exact up to 2^53, which is 8 PiB and 285 years of microseconds"
            )]
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Value, E> {
                Ok(Value::Fixed(number as f64))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Value, E> {
                Ok(Value::Fixed(number))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
                Shape::deserialize(MapAccessDeserializer::new(map)).map(Value::Moving)
            }
        }

        deserializer.deserialize_any(NumberOrShape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, expected: &[(f64, u64)]) {
        let value: Value = serde_json::from_str(json).unwrap();
        for (t, number) in expected {
            assert_eq!(value.at(*t), *number, "{json} at {t} s");
        }
    }

    #[test]
    fn constants_do_not_change() {
        check("85899345920", &[(0.0, 85_899_345_920), (1e9, 85_899_345_920)]);
        check("12.9", &[(5.0, 12)]);
        check("18446744073709551615", &[(0.0, u64::MAX)]);
    }

    #[test]
    fn ramps_grow_and_end() {
        let ramp = r#"{"ramp": {"from": 100, "per_second": 10, "max": 150}}"#;
        check(ramp, &[(0.0, 100), (2.55, 125), (5.0, 150), (600.0, 150)]);
    }

    #[test]
    fn ramps_may_decrease_but_not_below_zero() {
        check(r#"{"ramp": {"from": 10, "per_second": -4}}"#, &[(1.0, 6), (3.0, 0)]);
    }

    #[test]
    fn ramps_wrap_as_hardware_counters_do() {
        let ramp = r#"{"ramp": {"from": 0, "per_second": 30, "wrap": 100}}"#;
        check(ramp, &[(3.0, 90), (4.0, 20)]);
    }

    #[test]
    fn sawtooths_reset() {
        let saw = r#"{"sawtooth": {"low": 10, "high": 20, "period_s": 4}}"#;
        check(saw, &[(0.0, 10), (2.0, 15), (4.0, 10), (7.0, 17)]);
    }

    #[test]
    fn steps_hold() {
        let steps = r#"{"steps": [[1, 5], [3, 9]]}"#;
        check(steps, &[(0.0, 5), (1.0, 5), (2.9, 5), (3.0, 9), (99.0, 9)]);
    }

    #[test]
    fn each_period_has_one_peak_at_its_own_phase() {
        let json =
            r#"{"peaks": {"low": 10, "high": 1000, "step": 1, "length_s": 0.1, "period_s": 1, "seed": 3}}"#;
        let value: Value = serde_json::from_str(json).unwrap();
        let mut phases = Vec::new();
        for period in 0..100_u32 {
            let high: Vec<u32> =
                (0..1_000).filter(|ms| value.at(f64::from(period) + f64::from(*ms) / 1e3) > 10).collect();
            assert!((99..=101).contains(&high.len()), "{high:?}");
            let middle = f64::from(period) + f64::from(high[50]) / 1e3;
            assert_eq!(value.at(middle), 1_000 + u64::from(period));
            phases.push(high[0]);
        }
        for tenth in 0..9 {
            assert!(phases.iter().any(|phase| phase / 100 == tenth), "no peak in this tenth: {tenth}");
        }
    }

    #[test]
    fn mistakes_are_refused() {
        for json in [
            r#"{"ramp": {"from": 1}}"#,
            r#"{"ramp": {"from": 1, "per_second": 1, "mx": 2}}"#,
            r#"{"slope": 1}"#,
            r#""7""#,
            "-1",
        ] {
            assert!(serde_json::from_str::<Value>(json).is_err(), "{json}");
        }
    }
}

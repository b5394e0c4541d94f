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

    fn exact(&self, t: f64) -> f64 {
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
                formatter.write_str("a number, or one of {\"ramp\"}, {\"sawtooth\"}, {\"steps\"}")
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

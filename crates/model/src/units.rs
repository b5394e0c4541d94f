//! Quantities. Each unit is a type, so that a wrong unit does not compile.

use std::fmt;

/// Bytes of a mebibyte and of a gibibyte, for amounts that are computed as floats.
pub const MIB: f64 = 1_048_576.0;
pub const GIB: f64 = 1_073_741_824.0;

/// Ticks in a second of the times of a process in `/proc` (`USER_HZ`, 100 on every architecture that memwarden supports).
pub const TICKS: f64 = 100.0;

/// A quantity of a metric, in the base unit that Prometheus requires.
pub trait Unit: Copy + fmt::Debug {
    /// Unit suffix of the Prometheus name (before `_total`), or empty.
    const SUFFIX: &'static str;
    /// The UCUM unit sent over OTLP; the standard translation converts it to [`Unit::SUFFIX`].
    const UCUM: &'static str;
    fn value(self) -> f64;
}

/// A count as a floating-point number; exact to 2^53, which is 8 PiB when the number counts bytes.
#[expect(clippy::cast_precision_loss, reason = "exposition is in f64; 2^53 bytes are 8 PiB")]
pub const fn real(count: u64) -> f64 {
    count as f64
}

/// A floating-point number without its fraction; 0 for what is negative or not a number, the largest number for what
/// does not fit.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
pub const fn whole(number: f64) -> u64 {
    number as u64
}

/// An amount of memory or traffic, in bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(u64);

impl Bytes {
    /// Zero bytes: a measured zero, never a placeholder for "unknown".
    pub const ZERO: Self = Self(0);

    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Creates an amount from KiB; absent where it does not fit 64 bits.
    pub const fn from_kib(kib: u64) -> Option<Self> {
        match kib.checked_mul(1024) {
            Some(bytes) => Some(Self(bytes)),
            None => None,
        }
    }

    /// The amount of a number as points and conclusions have it; see [`whole`].
    pub const fn of(bytes: f64) -> Self {
        Self(whole(bytes))
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    /// The difference, or zero where `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum, or the largest amount if it does not fit.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// This amount as a share of `whole`; absent for a whole of zero.
    pub fn share_of(self, whole: Self) -> Option<Ratio> {
        if whole.0 == 0 { None } else { Ratio::new(real(self.0) / real(whole.0)) }
    }
}

/// An absolute amount, or a share of a total.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Bytes(Bytes),
    /// A share, 0 to 1.
    Share(f64),
}

impl Amount {
    /// The amount in bytes for a given total.
    pub fn of(self, total: Bytes) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => Bytes(whole(real(total.0) * share.clamp(0.0, 1.0))),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Share(share) => write!(f, "{} %", share * 100.0),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STEPS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut amount = real(self.0) / 1024.0;
        let mut step = 0;
        while amount >= 1024.0 && step + 1 < STEPS.len() {
            amount /= 1024.0;
            step += 1;
        }
        write!(f, "{amount:.1} {}", STEPS[step])
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Self::saturating_add)
    }
}

impl Unit for Bytes {
    const SUFFIX: &'static str = "_bytes";
    const UCUM: &'static str = "By";
    fn value(self) -> f64 {
        real(self.0)
    }
}

macro_rules! real_unit {
    ($(#[$doc:meta])* $name:ident, $suffix:literal, $ucum:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd, serde::Serialize)]
        #[serde(transparent)]
        pub struct $name(f64);

        impl $name {
            /// The quantity; absent where the number is not finite.
            pub fn new(value: f64) -> Option<Self> {
                value.is_finite().then_some(Self(value))
            }

            pub const fn get(self) -> f64 {
                self.0
            }
        }

        impl Unit for $name {
            const SUFFIX: &'static str = $suffix;
            const UCUM: &'static str = $ucum;
            fn value(self) -> f64 {
                self.0
            }
        }
    };
}

real_unit!(
    /// A share, 0 to 1 (a usage can exceed its limit, so more than 1 is possible).
    Ratio, "_ratio", "1"
);
real_unit!(
    /// A duration or a point in time, in seconds.
    Seconds, "_seconds", "s"
);
real_unit!(
    /// A temperature, in degrees Celsius.
    Celsius, "_celsius", "Cel"
);
real_unit!(
    /// A power, in watts.
    Watts, "_watts", "W"
);
real_unit!(
    /// An energy, in joules.
    Joules, "_joules", "J"
);
real_unit!(
    /// A frequency, in hertz.
    Hertz, "_hertz", "Hz"
);
real_unit!(
    /// A growth rate or a throughput, in bytes per second.
    BytesPerSecond, "_bytes_per_second", "By/s"
);
real_unit!(
    /// A growth of memory, in bytes per training step.
    BytesPerStep, "_bytes_per_step", "By/{step}"
);
real_unit!(
    /// A rate per second; the declaration states of what, as `{token}/s`.
    PerSecond, "_per_second", "{item}/s"
);
real_unit!(
    /// A dimensionless number that is neither a count nor a share; the declaration states of what, as `{loss}`.
    Number, "", "{item}"
);

impl Seconds {
    /// From whole nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(real(nanos) / 1e9)
    }

    /// From whole microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(real(micros) / 1e6)
    }
}

impl From<std::time::Duration> for Seconds {
    fn from(duration: std::time::Duration) -> Self {
        Self(duration.as_secs_f64())
    }
}

/// A number of things: processes, events, errors, an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

impl Unit for Count {
    const SUFFIX: &'static str = "";
    const UCUM: &'static str = "{item}";
    fn value(self) -> f64 {
        real(self.0)
    }
}

/// Yes (1) or no (0); also the constant 1 of an `_info` series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag(pub bool);

impl Unit for Flag {
    const SUFFIX: &'static str = "";
    const UCUM: &'static str = "{flag}";
    fn value(self) -> f64 {
        if self.0 { 1.0 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_iec_units() {
        let shown: Vec<String> =
            [0, 1023, 1024, 1536, 16 << 30, u64::MAX].map(|bytes| Bytes::new(bytes).to_string()).into();
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "16.0 GiB", "16.0 EiB"]);
    }

    #[test]
    fn values_that_are_not_finite_are_rejected() {
        assert_eq!(Ratio::new(f64::NAN), None);
        assert_eq!(Seconds::new(f64::INFINITY), None);
        assert_eq!(Bytes::new(1).share_of(Bytes::ZERO), None);
        assert_eq!(Bytes::new(1).share_of(Bytes::new(4)), Ratio::new(0.25));
    }
}

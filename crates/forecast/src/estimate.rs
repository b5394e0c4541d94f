//! What is estimated of a series: the state of its growth, its rate, and the time to exhaustion.

use serde::{Deserialize, Serialize};

/// A growth rate in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// The rate, below 0 where memory shrinks.
    pub bytes_per_second: f64,
    /// Its standard error.
    pub error_bytes_per_second: f64,
}

/// The quantity that the distance to the limit is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Used memory, as it counts against the limit.
    Used,
    /// Memory allocated by the job's allocator, because the used memory is constant.
    Allocated,
}

impl Basis {
    /// The value of the label `basis`, also used in texts.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Allocated => "allocated",
        }
    }
}

/// Quantiles of a time to exhaustion in seconds, provided that growth continues at its current rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tte {
    /// 10 % quantile.
    pub p10: f64,
    /// Median.
    pub p50: f64,
    /// 90 % quantile; absent where the rate is too uncertain.
    pub p90: Option<f64>,
}

impl Tte {
    /// The quantiles `seconds` later.
    #[must_use]
    pub fn after(self, seconds: f64) -> Self {
        let left = |quantile: f64| (quantile - seconds).max(0.0);
        Self { p10: left(self.p10), p50: left(self.p50), p90: self.p90.map(left) }
    }
}

/// The growth state of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeakState {
    /// Too few samples.
    #[default]
    Insufficient,
    /// No growth.
    Steady,
    /// Growth that slows down: a warm-up, a cache that fills.
    Warming,
    /// Growth that may still end.
    Growing,
    /// Growth so long and steady that it counts as a leak.
    Leaking,
}

impl LeakState {
    /// Every state.
    pub const ALL: [Self; 5] =
        [Self::Insufficient, Self::Steady, Self::Warming, Self::Growing, Self::Leaking];

    /// The value of the label `state`, also used in texts.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Insufficient => "insufficient",
            Self::Steady => "steady",
            Self::Warming => "warming",
            Self::Growing => "growing",
            Self::Leaking => "leaking",
        }
    }
}

//! Time as data: modules without a clock get it as an argument.

use std::time::Duration;

/// One instant, on both clocks, taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Timestamp {
    /// Time since an arbitrary start; never steps. Every age and rate is computed from this.
    monotonic: Duration,
    /// Time since 1970-01-01 UTC; may step when the host's clock is set. Only for display and file names.
    unix: Duration,
}

impl Timestamp {
    /// An instant from both clocks.
    pub const fn new(monotonic: Duration, unix: Duration) -> Self {
        Self { monotonic, unix }
    }

    /// Seconds on the monotonic clock, for tests and recorded series.
    pub const fn from_secs(seconds: u64) -> Self {
        Self { monotonic: Duration::from_secs(seconds), unix: Duration::from_secs(seconds) }
    }

    /// The time since `earlier`, zero where `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        self.monotonic.saturating_sub(earlier.monotonic)
    }

    /// The earlier of the two on the monotonic clock.
    #[must_use]
    pub fn earlier(self, other: Self) -> Self {
        if other.monotonic < self.monotonic { other } else { self }
    }

    /// The monotonic clock's reading.
    pub const fn monotonic(self) -> Duration {
        self.monotonic
    }

    /// Time since 1970-01-01 UTC.
    pub const fn unix(self) -> Duration {
        self.unix
    }

    /// The instant that is `later` after this one, on both clocks.
    #[must_use]
    pub const fn plus(self, later: Duration) -> Self {
        Self { monotonic: self.monotonic.saturating_add(later), unix: self.unix.saturating_add(later) }
    }
}

//! The only module that reads the time.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Seconds since the Unix epoch.
#[expect(
    clippy::disallowed_methods,
    reason = "the library is its own process guest and has no host::clock to be given"
)]
pub(crate) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Microseconds since the Unix epoch, the unit of NVML's timestamps.
#[expect(
    clippy::disallowed_methods,
    reason = "the library is its own process guest and has no host::clock to be given"
)]
pub(crate) fn unix_micros() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0))
}

/// The monotonic clock, for timeouts and the pace of file checks.
#[expect(
    clippy::disallowed_methods,
    reason = "the library is its own process guest and has no host::clock to be given"
)]
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

//! The one place that asks what time it is.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::model::time::Timestamp;

/// Now, on both clocks.
///
/// The monotonic one counts from the boot and goes on while the host sleeps,
/// so that what an earlier run of the daemon kept still has a time.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn now() -> Timestamp {
    let monotonic = Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or(Duration::ZERO);
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp::new(monotonic, unix)
}

/// CPU time of the thread that asks.
pub fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or(Duration::ZERO)
}

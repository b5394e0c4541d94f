//! The clock: the only module that reads the time.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::model::time::Timestamp;

/// The current time, on both clocks.
///
/// The monotonic clock counts from boot and continues while the host is suspended,
/// so that times kept by an earlier run of the daemon remain valid.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn now() -> Timestamp {
    #[cfg(test)]
    if let Some(edges) = super::testing::edges() {
        return edges.now();
    }
    let monotonic = Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or(Duration::ZERO);
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp::new(monotonic, unix)
}

/// Waits for at most this time, or until another thread wakes this one.
pub fn wait(longest: Duration) {
    #[cfg(test)]
    if let Some(edges) = super::testing::edges() {
        return edges.wait(longest);
    }
    std::thread::park_timeout(longest);
}

/// Waits for this time, whatever wakes the thread: who wakes it for something else is not missed by the next [`wait`].
pub fn sleep(time: Duration) {
    #[cfg(test)]
    if let Some(edges) = super::testing::edges() {
        return edges.wait(time);
    }
    std::thread::sleep(time);
}

/// CPU time of the calling thread.
pub fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or(Duration::ZERO)
}

/// The time after boot of a reading of the kernel's clock that stands still while the host is suspended (CLOCK_MONOTONIC).
pub fn after_boot(awake: Duration) -> Duration {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    awake + self::now().monotonic().saturating_sub(now)
}

//! The one place that asks what time it is.

use std::time::{Duration, Instant, SystemTime};

use crate::model::time::Timestamp;

/// Now, on both clocks.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn now() -> Timestamp {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let monotonic = START.get_or_init(Instant::now).elapsed();
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp::new(monotonic, unix)
}

//! Age of the newest frame, by the monotonic clock of this server.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::frame::Frame;
use crate::model::lock::lock;

/// Records when the newest frame was first seen.
#[derive(Debug, Default)]
pub(super) struct Freshness {
    newest: Mutex<Option<(u64, Duration, Instant)>>,
}

impl Freshness {
    /// The time since `frame` was first seen here.
    pub(super) fn age(&self, frame: &Frame) -> Duration {
        let mut newest = lock(&self.newest);
        match *newest {
            Some((sequence, at, seen)) if (sequence, at) == (frame.sequence, frame.at.monotonic()) => {
                seen.elapsed()
            }
            _ => {
                *newest = Some((frame.sequence, frame.at.monotonic(), Instant::now()));
                Duration::ZERO
            }
        }
    }
}

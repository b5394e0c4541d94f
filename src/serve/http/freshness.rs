//! Age of the newest frame, by the monotonic clock of this server.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::frame::Frame;

/// Records when the newest frame was first seen.
#[derive(Debug, Default)]
pub(super) struct Freshness {
    newest: Mutex<Option<(u64, Duration, Instant)>>,
}

impl Freshness {
    /// The time since `frame` was first seen here.
    pub(super) fn age(&self, frame: &Frame) -> Duration {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
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

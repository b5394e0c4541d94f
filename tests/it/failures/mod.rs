//! Failures around the daemon, end to end: each is reported, affects nothing else, and recovery is detected.

mod collector;
mod gpu;
mod hidden;
mod processes;

use std::time::Duration;

/// Long enough for a loaded machine; nothing waits so long unless it fails.
const SOON: Duration = Duration::from_secs(60);

//! The process that the sampler is reading, so that a stall can be attributed to it.

use std::sync::atomic::{AtomicU32, Ordering};

/// There is one sampler in a process; 0 means no process.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Records that the sampler begins to read this process.
pub fn attend(pid: u32) {
    PROCESS.store(pid, Ordering::Relaxed);
}

/// Records that the sampler reads no process.
pub fn rest() {
    attend(0);
}

/// The process that the sampler is reading.
pub fn attended() -> Option<u32> {
    Some(PROCESS.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
}

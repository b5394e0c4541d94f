//! Which process the sampler looks at right now, for whoever sees that it hangs.

use std::sync::atomic::{AtomicU32, Ordering};

/// There is one sampler in a process; 0 is nobody.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The sampler looks at this process from now on.
pub fn attend(pid: u32) {
    PROCESS.store(pid, Ordering::Relaxed);
}

/// The sampler looks at no process any more.
pub fn rest() {
    attend(0);
}

/// The process that the sampler looks at.
pub fn attended() -> Option<u32> {
    Some(PROCESS.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
}

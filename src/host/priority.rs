//! Scheduling priority of threads.

/// Gives the calling thread the highest priority below realtime; returns whether that is permitted (`CAP_SYS_NICE` or
/// `RLIMIT_NICE`). On Linux the nice value applies to a single thread (setpriority(2)).
pub fn go_first() -> bool {
    /// The highest priority.
    const NICE: i32 = -20;
    rustix::process::setpriority_process(None, NICE).is_ok()
}

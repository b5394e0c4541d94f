//! Who goes first where the processors are busy.

/// Lets the calling thread go before all others but realtime ones; whether that is allowed (`CAP_SYS_NICE`, or
/// `RLIMIT_NICE`). On Linux the nice value is the thread's own (setpriority(2)).
pub fn go_first() -> bool {
    /// The first in line.
    const NICE: i32 = -20;
    rustix::process::setpriority_process(None, NICE).is_ok()
}

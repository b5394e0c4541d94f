//! The limit of open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Assumed if there is no limit: more than any host has processes worth keeping open.
const UNLIMITED: u64 = 1 << 20;

/// Descriptors that the daemon needs in any case: threads, servers, helpers, and the files that it reads at each tick.
const OWN: usize = 40;

/// Raises the soft limit of descriptors to the hard limit and returns how many may be kept open or used for
/// clients: the resulting limit, minus what the daemon itself needs.
pub fn descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // A process may always raise its own soft limit; if a sandbox denies it, the old limit remains.
    let holds = match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    usize::try_from(holds.unwrap_or(UNLIMITED).min(UNLIMITED)).unwrap_or(usize::MAX).saturating_sub(OWN)
}

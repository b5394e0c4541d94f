//! How many descriptors this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Assumed where there is no limit: more than any host has processes worth keeping open.
const UNLIMITED: u64 = 1 << 20;

/// What the daemon needs whatever it keeps open: its threads, servers, helpers, and the files it reads each tick.
const OWN: usize = 40;

/// Raises the soft limit on descriptors to the hard one and returns how many of them may be kept open or given to
/// clients: what then holds, less what the daemon needs for itself.
pub fn descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // A process may always raise its own soft limit; where a sandbox forbids it, the old one holds.
    let holds = match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    usize::try_from(holds.unwrap_or(UNLIMITED).min(UNLIMITED)).unwrap_or(usize::MAX).saturating_sub(OWN)
}

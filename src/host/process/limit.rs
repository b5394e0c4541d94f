//! The limit of open files of this process, and the limit of CPU time of another one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Assumed if there is no limit: more than any host has processes worth keeping open.
const UNLIMITED: u64 = 1 << 20;

/// Descriptors that the daemon needs in any case: threads, servers, helpers, and the files that it reads at each tick.
const OWN: usize = 40;

/// The hard limit of CPU time in seconds, from `/proc/PID/limits`; absent for none.
pub fn cpu_limit(text: &[u8]) -> Option<u64> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let line = lines.find_map(|line| line.strip_prefix(b"Max cpu time"))?;
    // The soft limit, the hard limit and the unit.
    std::str::from_utf8(line).ok()?.split_whitespace().nth(1)?.parse().ok()
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hard_limit_of_cpu_time_is_read() {
        let head = "Limit                     Soft Limit           Hard Limit           Units     \n";
        let text = |line: &str| {
            format!(
                "{head}{line}\nMax file size             5                    6                    bytes     \n"
            )
        };
        let read = |line: &str| cpu_limit(text(line).as_bytes());
        assert_eq!(
            read("Max cpu time              2                    30                   seconds   "),
            Some(30)
        );
        assert_eq!(
            read("Max cpu time              unlimited            unlimited            seconds   "),
            None
        );
        assert_eq!((cpu_limit(b""), cpu_limit(b"Max cpu time\n"), cpu_limit(b"\xff")), (None, None, None));
    }
}

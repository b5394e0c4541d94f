//! The limit of open files of this process, and limits of another one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Assumed if there is no limit: more than any host has processes worth keeping open.
const UNLIMITED: u64 = 1 << 20;

/// Descriptors that the daemon needs in any case: threads, servers, helpers, and the files that it reads at each tick.
const OWN: usize = 40;

/// Limits of a process of its own, from `/proc/PID/limits`; absent for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadLimits {
    /// The hard limit of CPU time in seconds: at the soft one the process receives SIGXCPU.
    pub cpu: Option<u64>,
    /// The soft limit of the address space in bytes, at which the kernel refuses memory.
    pub address_space: Option<u64>,
}

/// Parses `/proc/PID/limits`.
pub fn own_limits(text: &[u8]) -> ReadLimits {
    // The soft limit, the hard limit and the unit.
    let value = |name: &[u8], place: usize| {
        let mut lines = text.split(|byte| *byte == b'\n');
        let line = lines.find_map(|line| line.strip_prefix(name))?;
        std::str::from_utf8(line).ok()?.split_whitespace().nth(place)?.parse().ok()
    };
    ReadLimits { cpu: value(b"Max cpu time", 1), address_space: value(b"Max address space", 0) }
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
    fn the_limits_of_another_process_are_read() {
        let head = "Limit                     Soft Limit           Hard Limit           Units     \n";
        let text = |line: &str| {
            format!(
                "{head}{line}\nMax file size             5                    6                    bytes     \n"
            )
        };
        let read = |line: &str| own_limits(text(line).as_bytes()).cpu;
        assert_eq!(
            read("Max cpu time              2                    30                   seconds   "),
            Some(30)
        );
        assert_eq!(
            read("Max cpu time              unlimited            unlimited            seconds   "),
            None
        );
        let line = b"Max address space         629145600            unlimited            bytes     \n";
        assert_eq!(own_limits(line), ReadLimits { cpu: None, address_space: Some(600 << 20) });
        for text in [&b""[..], b"Max cpu time\n", b"\xff"] {
            assert_eq!(own_limits(text), ReadLimits::default());
        }
    }
}

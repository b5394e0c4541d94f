//! Parses `/proc/PID/stat` (proc_pid_stat(5)) and the two lines of `/proc/stat` about processes.

use std::time::Duration;

use super::number;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Seconds};

/// `PF_KTHREAD` of the `flags` field.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// The content of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat<'t> {
    /// The kernel's name of the process: any bytes, including parentheses and newlines.
    pub comm: &'t [u8],
    /// The state letter.
    pub state: u8,
    /// The parent's pid; 0 if it has none in this namespace.
    pub parent: u32,
    /// The pid of the session leader; 0 if there is none.
    pub session: u32,
    /// Device number of the controlling terminal; 0 if there is none.
    pub terminal: i32,
    pub kernel: bool,
    pub major_faults: u64,
    /// User and system CPU time, in clock ticks.
    pub cpu_ticks: u64,
    pub threads: u64,
    /// Start time, in clock ticks after boot.
    pub start: u64,
    /// Resident pages; an estimate since Linux 6.2, whose error grows with the number of CPUs.
    pub rss_pages: u64,
}

impl Stat<'_> {
    /// Whether the thread that the file is about has ended: for a process its first one.
    pub const fn first_thread_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// Whether the process has ended: its last thread has. The number of threads includes a first one that has ended.
    pub const fn ended(&self) -> bool {
        self.first_thread_ended() && self.threads <= 1
    }
}

/// Parses `/proc/PID/stat`; nothing if it is truncated or invalid.
pub fn stat(text: &[u8]) -> Option<Stat<'_>> {
    // The name may contain parentheses; the text after it never does.
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let comm = text.get(open + 1..close)?;
    let rest = text.get(close + 1..)?.strip_prefix(b" ")?;
    // Text after the resident pages shows that their digits are complete.
    let mut fields = rest.split(|byte| *byte == b' ');
    let state = *fields.next()?.first()?;
    let parent = signed(fields.next()?)?;
    let session = signed(fields.nth(1)?)?;
    let terminal = signed(fields.next()?)?;
    let flags = number(fields.nth(1)?)?;
    let major_faults = number(fields.nth(2)?)?;
    let user = number(fields.nth(1)?)?;
    let system = number(fields.next()?)?;
    let threads = signed(fields.nth(4)?)?;
    let start = number(fields.nth(1)?)?;
    let rss_pages = number(fields.nth(1)?)?;
    fields.next()?;
    Some(Stat {
        comm,
        state,
        parent: u32::try_from(parent).unwrap_or(0),
        session: u32::try_from(session).unwrap_or(0),
        terminal: i32::try_from(terminal).unwrap_or(0),
        kernel: flags & KERNEL_THREAD != 0,
        major_faults,
        cpu_ticks: user.saturating_add(system),
        threads: u64::try_from(threads).unwrap_or(0),
        start,
        rss_pages,
    })
}

/// The signals 1 to 31 with a handler in `/proc/PID/stat`, as bits; the lowest is signal 1. Nothing if it is truncated.
///
/// `/proc/PID/status` has them too, and takes a time that grows with the supplementary groups of the process.
pub fn caught(text: &[u8]) -> Option<u64> {
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = text.get(close + 1..)?.strip_prefix(b" ")?.split(|byte| *byte == b' ');
    let mask = number(fields.nth(31)?)?;
    // Text after it shows that its digits are complete.
    fields.next()?;
    Some(mask)
}

/// The pids of a process that is being reaped are written as -1.
fn signed(digits: &[u8]) -> Option<i64> {
    match digits.strip_prefix(b"-") {
        Some(digits) => i64::try_from(number(digits)?).ok().map(|value| -value),
        None => i64::try_from(number(digits)?).ok(),
    }
}

/// The size of a page, in bytes.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// Clock ticks per second: 100 on all supported architectures.
pub fn clock_ticks() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

/// Converts a time since boot to clock ticks, the unit of start times.
pub fn ticks(since_boot: Duration) -> u64 {
    let ticks = since_boot.as_nanos() * u128::from(clock_ticks()) / 1_000_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// A number of clock ticks as a time.
pub fn seconds(ticks: u64) -> Seconds {
    unix_seconds(0, ticks)
}

/// The time of a number of clock ticks after the boot, which was at `boot`; both since 1970.
pub fn unix_seconds(boot: u64, ticks: u64) -> Seconds {
    // A clock tick is a whole number of microseconds.
    let micros = ticks.saturating_mul(1_000_000 / clock_ticks());
    Seconds::from_micros(boot.saturating_mul(1_000_000).saturating_add(micros))
}

/// The virtual and the resident memory in `/proc/PID/statm`. The resident memory is exact; that of `stat` is an estimate
/// since Linux 6.2.
pub fn statm(text: &[u8]) -> Option<[Bytes; 2]> {
    // Text after the numbers shows that their digits are complete.
    let mut fields = text.split(|byte| *byte == b' ');
    let [all, resident] = [number(fields.next()?)?, number(fields.next()?)?];
    fields.next()?;
    let bytes = |pages: u64| pages.checked_mul(page_size()).map(Bytes::new);
    Some([bytes(all)?, bytes(resident)?])
}

/// Boot time and process counter in `/proc/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boot {
    /// When the host was booted, in seconds since 1970.
    pub time: Option<u64>,
    /// Processes and threads created since boot.
    pub forks: Option<u64>,
}

impl Boot {
    /// The boot from which start times count, in seconds since 1970, at the time `at`; absent where `/proc/stat` has none.
    ///
    /// A container runtime can write the start of the container (lxcfs), while start times count from the boot of the host. The
    /// kernel computes `btime` as the difference of the two clocks of a [`Timestamp`]; where it is later than that difference, that
    /// difference is it.
    pub fn time_at(&self, at: Timestamp) -> Option<u64> {
        /// Seconds by which the two may differ: the clock may be set between their readings.
        const SLACK: u64 = 60;
        let by_clocks = at.unix().checked_sub(at.monotonic())?.as_secs();
        self.time.map(|time| if time > by_clocks.saturating_add(SLACK) { by_clocks } else { time })
    }
}

/// Parses `/proc/stat`; missing values are absent.
pub fn boot(text: &[u8]) -> Boot {
    let mut found = Boot::default();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        // Without newline, the last digits may be missing.
        let Some(line) = line.strip_suffix(b"\n") else { continue };
        if let Some(digits) = line.strip_prefix(b"btime ") {
            found.time = number(digits);
        } else if let Some(digits) = line.strip_prefix(b"processes ") {
            found.forks = number(digits);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASH: &str = "1234 (bash) S 1200 1234 1234 34816 5678 4194304 2510 90210 3 41 12 7 110 52 20 0 1 0 \
        884211 8081408 1290 18446744073709551615 94 95 140 0 0 0 65536 3670020 1266777851 1 0 0 17 1 0 0 0 0 0 \
        95 95 96 140 140 140 140 0\n";

    #[test]
    fn resident_memory_is_the_second_number_of_statm() {
        let memory = [900, 12].map(|pages| Bytes::new(pages * page_size()));
        assert_eq!(statm(b"900 12 3 0 0 0 0\n"), Some(memory));
        for hostile in ["", "1", "1 x 1", "1 18446744073709551615 1", "62000", "62000 3000", "-1 -1 -1"] {
            assert_eq!(statm(hostile.as_bytes()), None, "{hostile}");
        }
    }

    #[test]
    fn a_line_is_read() {
        expect_test::expect![[r#"
            Some(
                Stat {
                    comm: [
                        98,
                        97,
                        115,
                        104,
                    ],
                    state: 83,
                    parent: 1200,
                    session: 1234,
                    terminal: 34816,
                    kernel: false,
                    major_faults: 3,
                    cpu_ticks: 19,
                    threads: 1,
                    start: 884211,
                    rss_pages: 1290,
                },
            )
        "#]]
        .assert_debug_eq(&stat(BASH.as_bytes()));
    }

    #[test]
    fn a_name_can_be_anything() {
        for name in ["", ")", "(", ") R 1 1 1 (", "a b\nc", "x) S 9"] {
            let text = BASH.replace("bash", name);
            let found = stat(text.as_bytes()).unwrap();
            assert_eq!((found.comm, found.start, found.parent), (name.as_bytes(), 884_211, 1200));
        }
        let bytes: Vec<u8> = [b"7 (\xff\xfe) R".as_slice(), &BASH.as_bytes()[13..]].concat();
        assert_eq!(stat(&bytes).unwrap().comm, b"\xff\xfe");
    }

    #[test]
    fn the_signals_with_a_handler_are_read() {
        assert_eq!(caught(BASH.as_bytes()), Some(1_266_777_851));
        let complete = BASH.find(" 1 0 0 17").unwrap();
        assert_eq!(caught(&BASH.as_bytes()[..complete]), None);
    }

    #[test]
    fn kernel_threads_and_reaped_processes_are_parsed() {
        let kthread = BASH.replace("4194304", "2129984");
        assert!(stat(kthread.as_bytes()).unwrap().kernel);
        let reaped = BASH.replace("S 1200 1234 1234 34816", "X 0 -1 -1 0");
        assert_eq!(stat(reaped.as_bytes()).unwrap().session, 0);
    }

    #[test]
    fn truncated_lines_are_not_parsed_in_part() {
        let complete = BASH.find(" 18446744073709551615").unwrap();
        for end in 0..=complete {
            assert_eq!(stat(&BASH.as_bytes()[..end]), None, "{end}");
        }
        assert!(stat(&BASH.as_bytes()[..=complete]).is_some());
    }

    #[test]
    fn boot_is_read() {
        let text = b"cpu  1 2 3\nintr 9 9\nbtime 1700000000\nprocesses 4321\nprocs_running 3\n";
        assert_eq!(boot(text), Boot { time: Some(1_700_000_000), forks: Some(4321) });
        assert_eq!(boot(b"btime 17000"), Boot::default());
    }

    #[test]
    fn a_boot_after_the_one_of_the_clocks_is_that_of_a_container() {
        let up = Duration::from_secs(40 * 86_400);
        let at = Timestamp::new(up, Duration::from_secs(1_700_000_000) + up);
        for (time, expected) in [
            (None, None),
            (Some(1_700_000_000), Some(1_700_000_000)),
            (Some(1_700_000_002), Some(1_700_000_002)),
            (Some(1_600_000_000), Some(1_600_000_000)),
            (Some(1_703_450_000), Some(1_700_000_000)),
        ] {
            assert_eq!(Boot { time, forks: None }.time_at(at), expected, "{time:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, cut in 0_usize..300, hit: u8) {
            let _ = stat(&bytes);
            let _ = boot(&bytes);
            let mut text = BASH.as_bytes().to_vec();
            let place = cut % text.len();
            text[place] = hit;
            let _ = stat(&text);
        }
    }
}

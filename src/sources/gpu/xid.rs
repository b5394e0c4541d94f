//! The meaning of XIDs, and counting each event once although two sources report it.
//!
//! NVML cannot report some XIDs (79, 119, 120), the kernel log is not always
//! readable, and both report most XIDs.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::model::health::Health;
use crate::model::time::Timestamp;

/// The table entry of one XID.
#[derive(Debug)]
pub struct Meaning {
    pub xid: u32,
    /// Critical where the GPU or the job on it cannot continue without an operator, a warning where work is or will be lost,
    /// ok for errors of the job and information.
    pub severity: Health,
    /// What happened.
    pub what: &'static str,
    /// What to do about it.
    pub advice: &'static str,
}

const fn xid(xid: u32, severity: Health, what: &'static str, advice: &'static str) -> Meaning {
    Meaning { xid, severity, what, advice }
}

use Health::{Critical, Ok as Info, Warning};

const RESET: &str = "drain the node and reset the GPU";
const JOB: &str = "check the job first; if several jobs report it, test the GPU";
const RETURN: &str = "drain the node and reset the GPU; replace the GPU if the error recurs";

const LINK: &str = "check in the kernel log whether it is fatal; if so, drain the node and reset the GPU";

/// The XIDs in the table, sorted; their counters start at zero, so that `increase()` sees the first event.
pub static KNOWN: &[Meaning] = &[
    xid(13, Info, "graphics engine exception, such as an out-of-bounds access of a kernel", JOB),
    xid(31, Info, "GPU memory page fault: a kernel accessed memory that is not mapped", JOB),
    xid(32, Warning, "invalid or corrupted push buffer stream", JOB),
    xid(38, Warning, "driver firmware error", "update the driver"),
    xid(43, Info, "a job's channel was stopped; the GPU continues", JOB),
    xid(44, Warning, "graphics engine fault during a context switch", RESET),
    xid(
        45,
        Info,
        "preemptive cleanup of a job's work, mostly because the job ended or was killed",
        "no action",
    ),
    xid(46, Critical, "the GPU stopped processing", RESET),
    xid(48, Critical, "double-bit ECC error in GPU memory, which cannot be corrected", RESET),
    xid(54, Critical, "auxiliary power is not connected", "check the power cables"),
    xid(56, Warning, "display engine error", "update the driver"),
    xid(57, Warning, "error when programming the memory interface", RETURN),
    xid(61, Critical, "breakpoint of the GPU's internal microcontroller", RESET),
    xid(62, Critical, "halt of the GPU's internal microcontroller", RESET),
    xid(
        63,
        Warning,
        "a page of GPU memory was retired or a row was remapped",
        "reset the GPU when the job ends",
    ),
    xid(64, Critical, "a page of GPU memory could not be retired or a row could not be remapped", RETURN),
    xid(68, Warning, "video processor exception", JOB),
    xid(69, Warning, "graphics engine class error", JOB),
    xid(74, Critical, "NVLink error", "check the XIDs of the peer GPU, reset both GPUs"),
    xid(
        79,
        Critical,
        "the GPU fell off the bus",
        "restart the node; check power, temperature and the PCIe slot",
    ),
    xid(92, Warning, "high rate of single-bit ECC errors", "monitor the GPU, test it when the job ends"),
    xid(
        94,
        Warning,
        "contained uncorrectable ECC error: only the job that accessed the memory is affected",
        "restart the job; reset the GPU soon",
    ),
    xid(95, Critical, "uncontained uncorrectable ECC error: other jobs may be affected", RESET),
    xid(109, Warning, "context switch timeout", RESET),
    xid(119, Critical, "RPC timeout of the GPU system processor (GSP)", RESET),
    xid(120, Critical, "error of the GPU system processor (GSP)", RESET),
    xid(121, Warning, "corrected error on the link to the CPU (C2C)", "monitor the GPU"),
    xid(140, Critical, "unrecovered uncorrectable ECC error in the GPU's engines", RETURN),
    xid(143, Critical, "GPU initialization error", RETURN),
    xid(144, Warning, "NVLink 5: an error in the SAW block", LINK),
    xid(145, Warning, "NVLink 5: an error in the RLW block", LINK),
    xid(146, Warning, "NVLink 5: an error in the TLW block", LINK),
    xid(147, Warning, "NVLink 5: an error in the TREX block", LINK),
    xid(148, Warning, "NVLink 5: an error in the NVLPW_CTRL block", LINK),
    xid(149, Warning, "NVLink 5: an error in the NETIR block, such as a link that went down", LINK),
    xid(150, Warning, "NVLink 5: an error in the MSE block", LINK),
    xid(
        154,
        Warning,
        "the recovery action that the driver requests has changed",
        "check the recovery action in nvidia-smi -q",
    ),
];

/// The meaning of an XID according to the table.
pub fn meaning(xid: u32) -> &'static str {
    KNOWN.iter().find(|known| known.xid == xid).map_or("not in memwarden's table", |known| known.what)
}

/// The severity of an XID according to the table.
pub fn severity(xid: u32) -> Health {
    KNOWN.iter().find(|known| known.xid == xid).map_or(Health::Unknown, |known| known.severity)
}

/// The source that reported an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidSource {
    Nvml,
    /// The kernel log.
    Kernel,
}

/// Reports from both sources within this time are the same event: the log is read once a tick, which may come late.
const SAME: Duration = Duration::from_secs(5);

/// Most XIDs per GPU that are not in the table; others are dropped, because the numbers come from outside.
const MOST_UNKNOWN: usize = 32;

/// Most events kept to be matched with the other source's report.
const MOST_UNPAIRED: usize = 256;

#[derive(Debug)]
pub struct Xids {
    counts: BTreeMap<u32, u64>,
    newest: Option<u32>,
    unpaired: VecDeque<(Timestamp, XidSource, u32)>,
}

impl Default for Xids {
    fn default() -> Self {
        let counts = KNOWN.iter().map(|known| (known.xid, 0)).collect();
        Self { counts, newest: None, unpaired: VecDeque::new() }
    }
}

impl Xids {
    /// Counts one event, unless the other source reported it within the last five seconds.
    pub fn record(&mut self, at: Timestamp, source: XidSource, xid: u32) {
        self.unpaired.retain(|(reported, ..)| at.since(*reported) <= SAME);
        let other = self.unpaired.iter().position(|(_, by, what)| *by != source && *what == xid);
        if let Some(place) = other {
            self.unpaired.remove(place);
            return;
        }
        if self.unpaired.len() == MOST_UNPAIRED {
            self.unpaired.pop_front();
        }
        self.unpaired.push_back((at, source, xid));
        self.add(xid, 1);
    }

    /// Adds events that only one source can report.
    pub fn add(&mut self, xid: u32, events: u64) {
        self.newest = Some(xid);
        if self.counts.contains_key(&xid) || self.counts.len() < KNOWN.len() + MOST_UNKNOWN {
            let count = self.counts.entry(xid).or_default();
            *count = count.saturating_add(events);
        }
    }

    /// The XID that was counted last.
    pub const fn newest(&self) -> Option<u32> {
        self.newest
    }

    /// Every XID with the number of its events.
    pub fn counts(&self) -> impl Iterator<Item = (u32, u64)> {
        self.counts.iter().map(|(xid, count)| (*xid, *count))
    }
}

/// A PCI address: domain, bus, device.
pub type Address = (u32, u32, u32);

/// A PCI address, from NVML's `00000000:3B:00.0` or the kernel's `0000:3b:00`.
pub fn pci(text: &str) -> Option<Address> {
    let mut parts = text.trim().split(':').map(|part| {
        let digits = part.split('.').next().unwrap_or(part);
        u32::from_str_radix(digits, 16).ok()
    });
    let address = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `n` is an event reported by NVML, `k` one by the kernel, at the given tenths of a second; all are XID 31.
    fn check(story: &[(u64, char)], events: u64) {
        let mut xids = Xids::default();
        for (tenths, source) in story {
            let at = Timestamp::from_secs(0).plus(Duration::from_millis(tenths * 100));
            xids.record(at, if *source == 'n' { XidSource::Nvml } else { XidSource::Kernel }, 31);
        }
        assert_eq!(xids.counts().find(|(xid, _)| *xid == 31), Some((31, events)), "{story:?}");
    }

    #[test]
    fn an_event_from_both_sources_counts_once() {
        check(&[(0, 'n'), (9, 'k')], 1);
        check(&[(0, 'k'), (9, 'n')], 1);
        check(&[(0, 'n'), (50, 'k')], 1);
    }

    #[test]
    fn the_second_report_of_an_event_is_not_the_newest() {
        let mut xids = Xids::default();
        assert_eq!(xids.newest(), None);
        let events =
            [(XidSource::Nvml, 31), (XidSource::Nvml, 79), (XidSource::Kernel, 31), (XidSource::Kernel, 79)];
        for (source, xid) in events {
            xids.record(Timestamp::from_secs(1), source, xid);
        }
        assert_eq!(xids.newest(), Some(79));
        xids.record(Timestamp::from_secs(2), XidSource::Kernel, 48);
        assert_eq!(xids.newest(), Some(48));
    }

    #[test]
    fn equal_events_from_one_source_all_count() {
        check(&[(0, 'n'), (1, 'n')], 2);
        check(&[(0, 'n'), (1, 'n'), (9, 'k'), (9, 'k')], 2);
        check(&[(0, 'n'), (9, 'k'), (9, 'k')], 2);
        check(&[(0, 'k'), (1, 'n'), (2, 'n'), (10, 'k')], 2);
    }

    #[test]
    fn events_far_apart_are_two() {
        check(&[(0, 'n'), (51, 'k')], 2);
    }

    #[test]
    fn numbers_from_outside_are_bounded() {
        let mut xids = Xids::default();
        for xid in 1_000..2_000 {
            xids.record(Timestamp::from_secs(1), XidSource::Nvml, xid);
        }
        assert_eq!(xids.counts().count(), KNOWN.len() + MOST_UNKNOWN);
        assert_eq!(xids.unpaired.len(), MOST_UNPAIRED);
    }

    #[test]
    fn the_table_is_sorted_and_complete() {
        assert!(KNOWN.windows(2).all(|pair| pair[0].xid < pair[1].xid));
        assert!(KNOWN.iter().all(|known| known.severity != Health::Unknown));
        assert_eq!(severity(79), Health::Critical);
        assert_eq!(severity(7), Health::Unknown);
        assert_eq!(meaning(79), "the GPU fell off the bus");
        assert_eq!(meaning(7), "not in memwarden's table");
        assert!([144, 145, 146, 147, 148, 149, 150, 154].iter().all(|xid| severity(*xid) == Health::Warning));
    }

    #[test]
    fn both_spellings_of_an_address_are_one() {
        assert_eq!(pci("00000000:3B:00.0"), Some((0, 0x3b, 0)));
        assert_eq!(pci("0000:3b:00"), Some((0, 0x3b, 0)));
        assert_eq!(pci("0001:3b:00.0"), Some((1, 0x3b, 0)));
        for hostile in ["", ":", "3b:00", "0:0:0:0", "x:y:z", "0000:3b:"] {
            assert_eq!(pci(hostile), None, "{hostile}");
        }
    }

    proptest! {
        #[test]
        fn addresses_never_panic(text in ".*") {
            let _ = pci(&text);
        }
    }
}

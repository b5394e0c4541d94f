//! XIDs: what they mean, and counting each once though two roads tell it.
//!
//! NVML cannot tell some (79, 119, 120), the kernel log is not always
//! readable, and both tell most.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::model::time::Timestamp;

/// How bad an XID is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The GPU or the job on it cannot go on without an operator.
    Critical,
    /// Work was lost or will be, but the GPU goes on.
    Warning,
    /// Most often the job's own mistake, or only news.
    Info,
    /// Not in our table.
    Unknown,
}

impl Severity {
    /// The value of the `severity` label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Unknown => "unknown",
        }
    }
}

/// What is known of one XID.
#[derive(Debug)]
pub struct Meaning {
    /// Its number.
    pub xid: u32,
    /// How bad it is.
    pub severity: Severity,
    /// What happened.
    pub what: &'static str,
    /// What to do.
    pub advice: &'static str,
}

const fn xid(xid: u32, severity: Severity, what: &'static str, advice: &'static str) -> Meaning {
    Meaning { xid, severity, what, advice }
}

use Severity::{Critical, Info, Warning};

const RESET: &str = "drain the node and reset the GPU";
const JOB: &str = "look at the job first; if several jobs see it, test the GPU";
const RETURN: &str = "drain the node; reset, and replace the GPU if it returns";

const LINK: &str = "read in the kernel log whether it is fatal; then drain the node and reset the GPU";

/// The XIDs worth knowing, sorted; their counters start at zero, so that the first event counts.
pub static KNOWN: &[Meaning] = &[
    xid(13, Info, "a kernel raised an exception, such as an access out of bounds", JOB),
    xid(31, Info, "a kernel touched memory that is not mapped", JOB),
    xid(32, Warning, "the stream of commands to the GPU was broken", JOB),
    xid(38, Warning, "the GPU's firmware met an error of the driver", "update the driver"),
    xid(43, Info, "a job's channel was stopped; the GPU goes on", JOB),
    xid(44, Warning, "the graphics engine raised a fault at a switch of contexts", RESET),
    xid(45, Info, "a job's work was removed, mostly because it ended or was killed", "none by itself"),
    xid(46, Critical, "the GPU stopped answering the driver", RESET),
    xid(48, Critical, "memory had an error in two bits, which could not be corrected", RESET),
    xid(54, Critical, "auxiliary power is not connected", "check the power cables"),
    xid(56, Warning, "the display engine failed", "update the driver"),
    xid(57, Warning, "memory could not be trained at its speed", RETURN),
    xid(61, Critical, "the GPU's microcontroller stopped at a breakpoint", RESET),
    xid(62, Critical, "the GPU's microcontroller halted", RESET),
    xid(63, Warning, "a page was retired or a row remapped", "reset the GPU when the job ends"),
    xid(64, Critical, "a page could not be retired or a row not remapped", RETURN),
    xid(68, Warning, "the video processor raised an exception", JOB),
    xid(69, Warning, "the graphics engine raised a class error", JOB),
    xid(74, Critical, "an NVLink link failed", "check the other end's XIDs, reset both GPUs"),
    xid(79, Critical, "the GPU fell off the bus", "restart the node; check power, heat and the slot"),
    xid(92, Warning, "single-bit errors come often", "watch it, test it when the job ends"),
    xid(
        94,
        Warning,
        "an uncorrectable error was kept to the job that met it",
        "restart the job, reset the GPU soon",
    ),
    xid(95, Critical, "an uncorrectable error may have reached other jobs", RESET),
    xid(109, Warning, "a switch of contexts timed out", RESET),
    xid(119, Critical, "the GPU's system processor does not answer", RESET),
    xid(120, Critical, "the GPU's system processor met an error", RESET),
    xid(121, Warning, "the link to the CPU had a corrected error", "watch it"),
    xid(140, Critical, "an uncorrectable error was found in the GPU's own engines", RETURN),
    xid(143, Critical, "the GPU could not be initialized", RETURN),
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
        "the recovery that the driver asks for has changed",
        "see nvidia-smi's recovery action",
    ),
];

/// What an XID means, by our table.
pub fn meaning(xid: u32) -> &'static str {
    KNOWN.iter().find(|known| known.xid == xid).map_or("not in memwarden's table", |known| known.what)
}

/// How bad an XID is, by our table.
pub fn severity(xid: u32) -> Severity {
    KNOWN.iter().find(|known| known.xid == xid).map_or(Severity::Unknown, |known| known.severity)
}

/// Who told of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Road {
    /// NVML's event set.
    Nvml,
    /// The kernel log.
    Kernel,
}

/// Two roads tell of one event within this time: the log is read once a tick, which may come late.
const SAME: Duration = Duration::from_secs(5);

/// Numbers outside our table that one GPU may add; more are dropped, because they come from outside.
const MOST_UNKNOWN: usize = 32;

/// Events that wait for their other half.
const MOST_UNPAIRED: usize = 256;

/// The XIDs of one GPU.
#[derive(Debug)]
pub struct Xids {
    counts: BTreeMap<u32, u64>,
    unpaired: VecDeque<(Timestamp, Road, u32)>,
}

impl Default for Xids {
    fn default() -> Self {
        Self { counts: KNOWN.iter().map(|known| (known.xid, 0)).collect(), unpaired: VecDeque::new() }
    }
}

impl Xids {
    /// Counts one event, unless the other road told of it just before.
    pub fn record(&mut self, at: Timestamp, road: Road, xid: u32) {
        self.unpaired.retain(|(told, ..)| at.since(*told) <= SAME);
        let other = self.unpaired.iter().position(|(_, by, what)| *by != road && *what == xid);
        if let Some(place) = other {
            self.unpaired.remove(place);
            return;
        }
        if self.unpaired.len() == MOST_UNPAIRED {
            self.unpaired.pop_front();
        }
        self.unpaired.push_back((at, road, xid));
        self.add(xid, 1);
    }

    /// Counts events that only one road could tell.
    pub fn add(&mut self, xid: u32, events: u64) {
        if self.counts.contains_key(&xid) || self.counts.len() < KNOWN.len() + MOST_UNKNOWN {
            let count = self.counts.entry(xid).or_default();
            *count = count.saturating_add(events);
        }
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

    /// `n` is an event by NVML, `k` one by the kernel, at the given tenths of a second; all of XID 31.
    fn check(story: &[(u64, char)], events: u64) {
        let mut xids = Xids::default();
        for (tenths, road) in story {
            let at = Timestamp::from_secs(0).plus(Duration::from_millis(tenths * 100));
            xids.record(at, if *road == 'n' { Road::Nvml } else { Road::Kernel }, 31);
        }
        assert_eq!(xids.counts().find(|(xid, _)| *xid == 31), Some((31, events)), "{story:?}");
    }

    #[test]
    fn an_event_that_two_roads_tell_counts_once() {
        check(&[(0, 'n'), (9, 'k')], 1);
        check(&[(0, 'k'), (9, 'n')], 1);
        check(&[(0, 'n'), (50, 'k')], 1);
    }

    #[test]
    fn equal_events_of_one_road_all_count() {
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
            xids.record(Timestamp::from_secs(1), Road::Nvml, xid);
        }
        assert_eq!(xids.counts().count(), KNOWN.len() + MOST_UNKNOWN);
        assert_eq!(xids.unpaired.len(), MOST_UNPAIRED);
    }

    #[test]
    fn the_table_is_sorted_and_complete() {
        assert!(KNOWN.windows(2).all(|pair| pair[0].xid < pair[1].xid));
        assert!(KNOWN.iter().all(|known| known.severity != Severity::Unknown));
        assert_eq!(severity(79), Severity::Critical);
        assert_eq!(severity(7), Severity::Unknown);
        assert_eq!(meaning(79), "the GPU fell off the bus");
        assert_eq!(meaning(7), "not in memwarden's table");
        assert!(
            [144, 145, 146, 147, 148, 149, 150, 154].iter().all(|xid| severity(*xid) == Severity::Warning)
        );
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

//! Counts each XID event once although two sources report it.
//!
//! NVML cannot report some XIDs (79, 119, 120), the kernel log is not always
//! readable, and both report most XIDs.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::model::health::Health;
use crate::model::time::Timestamp;
use crate::model::xid::{self, KNOWN};

/// The source that reported an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidSource {
    Nvml,
    /// The kernel log.
    Kernel,
}

/// Reports from both sources within this time are the same event: the log is read once a tick, which may come late.
const SAME: Duration = Duration::from_secs(5);

/// Most series per GPU besides one for each XID of the table: of other severities, and of XIDs that are not in it; others are dropped,
/// because the numbers come from outside.
const MOST_MORE: usize = 40;

/// Most events kept to be matched with the other source's report.
const MOST_UNPAIRED: usize = 256;

#[derive(Debug)]
pub struct Xids {
    counts: BTreeMap<(u32, Health), u64>,
    newest: Option<u32>,
    unpaired: VecDeque<(Timestamp, XidSource, u32)>,
}

impl Default for Xids {
    fn default() -> Self {
        let told = KNOWN.iter().filter(|known| xid::is_told_by_line(known.xid));
        let told = told.map(|known| (known.xid, Health::Critical));
        let all = KNOWN.iter().map(|known| (known.xid, known.severity)).chain(told);
        Self { counts: all.map(|key| (key, 0)).collect(), newest: None, unpaired: VecDeque::new() }
    }
}

impl Xids {
    /// Counts one event, unless the other source reported it within the last five seconds, and with the same severity: only the kernel
    /// log tells another one than the table.
    pub fn record(&mut self, at: Timestamp, source: XidSource, xid: u32, severity: Health) {
        self.unpaired.retain(|(reported, ..)| at.since(*reported) <= SAME);
        let other = self.unpaired.iter().position(|(_, by, what)| *by != source && *what == xid);
        if let Some(place) = other {
            self.unpaired.remove(place);
            if severity != xid::severity(xid) {
                self.add(xid, severity, 1);
            }
            return;
        }
        if self.unpaired.len() == MOST_UNPAIRED {
            self.unpaired.pop_front();
        }
        self.unpaired.push_back((at, source, xid));
        self.add(xid, severity, 1);
    }

    /// Adds events that only one source can report.
    pub fn add(&mut self, xid: u32, severity: Health, events: u64) {
        self.newest = Some(xid);
        if self.counts.contains_key(&(xid, severity)) || self.counts.len() < KNOWN.len() + MOST_MORE {
            let count = self.counts.entry((xid, severity)).or_default();
            *count = count.saturating_add(events);
        }
    }

    /// The XID that was counted last.
    pub const fn newest(&self) -> Option<u32> {
        self.newest
    }

    /// Every XID with its severity and the number of its events.
    pub fn counts(&self) -> impl Iterator<Item = (u32, Health, u64)> {
        self.counts.iter().map(|((xid, severity), count)| (*xid, *severity, *count))
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
            xids.record(at, if *source == 'n' { XidSource::Nvml } else { XidSource::Kernel }, 31, Health::Ok);
        }
        assert_eq!(xids.counts().find(|(xid, ..)| *xid == 31), Some((31, Health::Ok, events)), "{story:?}");
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
            xids.record(Timestamp::from_secs(1), source, xid, xid::severity(xid));
        }
        assert_eq!(xids.newest(), Some(79));
        xids.record(Timestamp::from_secs(2), XidSource::Kernel, 48, Health::Critical);
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
            xids.record(Timestamp::from_secs(1), XidSource::Nvml, xid, Health::Unknown);
        }
        assert_eq!(xids.counts().count(), KNOWN.len() + MOST_MORE);
        assert_eq!(xids.unpaired.len(), MOST_UNPAIRED);
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

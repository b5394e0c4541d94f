//! XIDs of the kernel log about GPUs that have not reported their PCI address.
//!
//! When the driver cannot be initialized, the kernel log is the only source of
//! XIDs. They are kept until a GPU reports the address.

use std::collections::BTreeMap;

use super::unlisted;
use super::xid::{Address, pci};
use crate::model::facts::KernelXid;
use crate::model::health::Health;

/// Most pairs of address and XID; addresses come from outside, so events beyond it are counted without them.
const MOST: usize = 256;

/// XID counts by PCI address.
#[derive(Debug, Default)]
pub struct Unplaced {
    counts: BTreeMap<(Address, u32, Health), u64>,
    others: u64,
}

impl Unplaced {
    pub fn record(&mut self, event: &KernelXid) {
        let full = self.counts.len() >= MOST;
        match pci(&event.pci).map(|address| (address, event.xid, event.severity)) {
            Some(key) if !full || self.counts.contains_key(&key) => *self.counts.entry(key).or_default() += 1,
            _ => self.others += 1,
        }
    }

    /// Removes and returns the counts of an address: each XID, its severity and its number of events.
    pub fn place(&mut self, address: Address) -> Vec<(u32, Health, u64)> {
        let placed: Vec<_> = self
            .counts
            .range((address, 0, Health::Ok)..=(address, u32::MAX, Health::Critical))
            .map(|((_, xid, severity), events)| (*xid, *severity, *events))
            .collect();
        self.counts.retain(|(of, ..), _| *of != address);
        placed
    }

    /// The remaining counts: address, XID, severity and number of events.
    pub fn counts(&self) -> impl Iterator<Item = (String, u32, Health, u64)> {
        self.counts
            .iter()
            .map(|((address, xid, severity), events)| (unlisted::name(*address), *xid, *severity, *events))
    }

    /// The addresses of GPUs with an XID that is critical.
    pub fn critical(&self) -> impl Iterator<Item = Address> {
        let critical = self.counts.keys().filter(|(.., severity)| *severity == Health::Critical);
        critical.map(|(address, ..)| *address)
    }

    /// Events that were counted without their address.
    pub fn others(&self) -> u64 {
        self.others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(pci: &str, xid: u32) -> KernelXid {
        KernelXid { pci: pci.to_owned(), xid, severity: Health::Ok, kernel_us: 0 }
    }

    #[test]
    fn placed_events_are_removed() {
        let mut unplaced = Unplaced::default();
        for (pci, xid) in [("0000:3b:00", 79), ("0000:3b:00", 79), ("0000:5e:00", 119), ("0000:3b:00", 0)] {
            unplaced.record(&event(pci, xid));
        }
        assert_eq!(unplaced.place((0, 0x3b, 0)), [(0, Health::Ok, 1), (79, Health::Ok, 2)]);
        assert_eq!(unplaced.place((0, 0x3b, 0)), []);
        assert_eq!(unplaced.counts().collect::<Vec<_>>(), [("0000:5e:00".to_owned(), 119, Health::Ok, 1)]);
    }

    #[test]
    fn many_events_are_bounded_and_counted() {
        let mut unplaced = Unplaced::default();
        (0..1_000).for_each(|xid| unplaced.record(&event("0000:3b:00", xid)));
        unplaced.record(&event("no address", 79));
        assert_eq!((unplaced.counts().count(), unplaced.others()), (MOST, 745));
    }
}

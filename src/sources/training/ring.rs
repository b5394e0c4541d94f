//! The newest events of all jobs, shared fairly between users.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::model::timeline::{Entry, Timeline};

/// Most bytes of all entries.
const BYTES: usize = 4 << 20;

/// Approximate bytes of an entry in addition to its detail.
const EACH: usize = 256;

/// A bounded timeline.
#[derive(Debug, Default)]
pub(super) struct Ring {
    entries: VecDeque<(u32, Arc<Entry>)>,
    /// Bytes by user.
    shares: HashMap<u32, usize>,
    bytes: usize,
    most: usize,
    sequence: u64,
    forgotten: u64,
    /// The last result of [`Ring::timeline`], until the next event.
    shown: Option<Arc<Timeline>>,
}

impl Ring {
    pub(super) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// Adds an event of a job of this user, and numbers it.
    pub(super) fn push(&mut self, user: u32, mut entry: Entry) {
        self.shown = None;
        self.sequence += 1;
        entry.sequence = self.sequence;
        let size = size(&entry);
        self.bytes += size;
        *self.shares.entry(user).or_default() += size;
        self.entries.push_back((user, Arc::new(entry)));
        while self.entries.len() > self.most || self.bytes > BYTES {
            self.forget();
        }
    }

    /// Removes the oldest event of the user with the most bytes.
    fn forget(&mut self) {
        let largest = self.shares.iter().max_by_key(|(_, share)| **share).map(|(user, _)| *user);
        let place = self.entries.iter().position(|(user, _)| Some(*user) == largest);
        let Some((user, entry)) = self.entries.remove(place.unwrap_or(0)) else { return };
        let size = size(&entry);
        self.bytes = self.bytes.saturating_sub(size);
        self.forgotten += 1;
        if let Some(share) = self.shares.get_mut(&user) {
            *share = share.saturating_sub(size);
            if *share == 0 {
                self.shares.remove(&user);
            }
        }
    }

    /// The events that are kept.
    pub(super) fn timeline(&mut self) -> Arc<Timeline> {
        let shown = self.shown.get_or_insert_with(|| {
            let entries = self.entries.iter().map(|(_, entry)| Arc::clone(entry)).collect();
            Arc::new(Timeline { entries, forgotten: self.forgotten })
        });
        Arc::clone(shown)
    }
}

fn size(entry: &Entry) -> usize {
    EACH + entry.name.as_str().len() + entry.detail.as_ref().map_or(0, |detail| detail.get().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::timeline::EntryKind;

    fn entry(workload: &str, bytes: usize) -> Entry {
        Entry {
            unix_seconds: 1.0,
            kind: EntryKind::Event,
            workload: workload.into(),
            rank: "0".into(),
            pid: 1,
            name: "x".into(),
            step: None,
            detail: Some(serde_json::value::to_raw_value(&"y".repeat(bytes)).unwrap()),
            ..Entry::default()
        }
    }

    #[test]
    fn a_user_with_many_events_loses_its_own() {
        let mut ring = Ring::new(10);
        ring.push(7, entry("quiet", 1));
        ring.push(7, entry("quiet", 1));
        for job in 0..100 {
            ring.push(9, entry(&format!("noisy-{job}"), 1));
        }
        let shown = ring.timeline();
        let sequences: Vec<u64> = shown.entries.iter().map(|entry| entry.sequence).collect();
        assert_eq!(sequences, [1, 2, 95, 96, 97, 98, 99, 100, 101, 102]);
        assert_eq!(shown.forgotten, 92);
        assert!(Arc::ptr_eq(&shown, &ring.timeline()), "nothing happened");
    }

    #[test]
    fn bytes_are_bounded_too() {
        let mut ring = Ring::new(100_000);
        for _ in 0..1_000 {
            ring.push(7, entry("a", 16_000));
        }
        let bytes: usize = ring.timeline().entries.iter().map(|entry| size(entry)).sum();
        assert!(bytes <= BYTES && bytes == ring.bytes && bytes > BYTES / 2, "{bytes}");
        let mut none = Ring::new(0);
        none.push(7, entry("a", 1));
        assert_eq!((none.timeline().entries.len(), none.shares.len(), none.bytes), (0, 0, 0));
    }
}

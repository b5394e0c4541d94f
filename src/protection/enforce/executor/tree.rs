//! The processes of a tree, found by one pass over all processes.

use std::mem::MaybeUninit;

use rustix::fs::{RawDir, SeekFrom};
use rustix::io::Errno;

use super::process_status::Proc;
use crate::model::ids::ProcessKey;

/// Maximum number of processes that are inspected; a host has a few thousand.
const MOST: usize = 65_536;

#[derive(Clone, Copy, Debug)]
struct ListedProcess {
    key: ProcessKey,
    parent: u32,
    alive: bool,
    member: bool,
    /// Whether its ancestors were followed.
    decided: bool,
}

/// All processes at one time, in preallocated memory.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<ListedProcess>,
    listing: Box<[MaybeUninit<u8>]>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { rows: Vec::with_capacity(MOST), listing: vec![MaybeUninit::uninit(); 32 * 1024].into() }
    }

    /// Inspects every process, and marks those in `roots` and their descendants.
    ///
    /// # Errors
    /// If processes cannot be listed.
    pub(super) fn look(&mut self, proc: &mut Proc, roots: impl Fn(ProcessKey) -> bool) -> Result<(), Errno> {
        self.rows.clear();
        rustix::fs::seek(proc.folder(), SeekFrom::Start(0))?;
        // The listing borrows the folder, and reading needs the buffers beside it: pids first.
        let mut entries = RawDir::new(proc.folder(), &mut self.listing);
        while let Some(entry) = entries.next() {
            let name = entry?;
            let pid =
                std::str::from_utf8(name.file_name().to_bytes()).ok().and_then(|name| name.parse().ok());
            if let Some(pid) = pid
                && self.rows.len() < MOST
            {
                let key = ProcessKey { pid, start: 0 };
                self.rows.push(ListedProcess { key, parent: 0, alive: false, member: false, decided: false });
            }
        }
        self.rows.retain_mut(|row| match proc.glance(row.key.pid) {
            Ok((key, parent, dead)) => {
                *row = ListedProcess { key, parent, alive: !dead, member: roots(key), decided: false };
                true
            }
            Err(_) => false,
        });
        self.rows.sort_unstable_by_key(|row| row.key.pid);
        self.spread();
        Ok(())
    }

    /// Marks the descendants of marked processes. Each process is passed a constant number of times: the ancestors that were
    /// followed from one are decided for all others.
    fn spread(&mut self) {
        for first in 0..self.rows.len() {
            let (mut place, mut member) = (first, false);
            // Up to one that is decided, or has no parent; a cycle ends where it began.
            loop {
                let row = &mut self.rows[place];
                member |= row.member;
                if member || std::mem::replace(&mut row.decided, true) {
                    break;
                }
                match self.above(place) {
                    Some(above) => place = above,
                    None => break,
                }
            }
            // And down the same way, to mark them.
            let top = place;
            let mut place = first;
            while member && place != top {
                self.rows[place].member = true;
                let Some(above) = self.above(place) else { break };
                place = above;
            }
        }
    }

    /// The place of the parent of a process.
    fn above(&self, place: usize) -> Option<usize> {
        let row = &self.rows[place];
        let above = self.rows.binary_search_by_key(&row.parent, |row| row.key.pid).ok()?;
        // A process that is younger than its child only reuses the parent's pid.
        (row.parent != 0 && self.rows[above].key.start <= row.key.start).then_some(above)
    }

    /// The members that are alive.
    pub(super) fn members(&self) -> impl Iterator<Item = ProcessKey> + '_ {
        self.rows.iter().filter(|row| row.member && row.alive).map(|row| row.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(u32, u64, u32, bool)]) -> Vec<u32> {
        let mut table = Table::new();
        for (pid, start, parent, member) in rows {
            let key = ProcessKey { pid: *pid, start: *start };
            table.rows.push(ListedProcess {
                key,
                parent: *parent,
                alive: true,
                member: *member,
                decided: false,
            });
        }
        table.spread();
        table.members().map(|key| key.pid).collect()
    }

    #[test]
    fn descendants_are_found_wherever_their_pids_are() {
        // 9 is an ancestor with a higher pid than its descendants, since pids wrap around.
        let rows = [(2, 30, 5, false), (5, 20, 9, false), (7, 10, 1, false), (9, 10, 7, true)];
        assert_eq!(table(&rows), [2, 5, 9]);
    }

    #[test]
    fn a_long_chain_against_the_order_of_pids_is_found_in_one_pass() {
        // Each process has a lower pid than its parent: a pass from low to high for each generation would not end.
        let last = 60_000;
        let rows: Vec<_> =
            (2..=last).map(|pid| (pid, 10, if pid < last { pid + 1 } else { 1 }, pid == last)).collect();
        assert_eq!(table(&rows).len(), 59_999);
        let cycle =
            [(2, 10, 3, false), (3, 10, 2, false), (4, 10, 3, false), (5, 10, 1, true), (6, 10, 5, false)];
        assert_eq!(table(&cycle), [5, 6]);
    }

    #[test]
    fn a_parent_younger_than_its_child_is_none() {
        assert_eq!(table(&[(3, 10, 4, false), (4, 50, 1, true)]), [4]);
    }
}

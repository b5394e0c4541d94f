//! The processes of a tree, found by one pass over all processes.

use std::mem::MaybeUninit;

use rustix::fs::{RawDir, SeekFrom};
use rustix::io::Errno;

use super::process_status::Proc;
use crate::model::ids::ProcessKey;

/// Maximum number of processes that are inspected; a host has a few thousand.
const MOST: usize = 65_536;

#[derive(Clone, Copy, Debug)]
struct Row {
    key: ProcessKey,
    parent: u32,
    alive: bool,
    member: bool,
}

/// All processes at one time, in preallocated memory.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Row>,
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
                self.rows.push(Row { key, parent: 0, alive: false, member: false });
            }
        }
        self.rows.retain_mut(|row| match proc.glance(row.key.pid) {
            Ok((key, parent, dead)) => {
                *row = Row { key, parent, alive: !dead, member: roots(key) };
                true
            }
            Err(_) => false,
        });
        self.rows.sort_unstable_by_key(|row| row.key.pid);
        self.spread();
        Ok(())
    }

    /// Marks the children of marked processes, until nothing changes.
    fn spread(&mut self) {
        loop {
            let mut changed = false;
            for place in 0..self.rows.len() {
                let row = self.rows[place];
                if row.member || row.parent == 0 {
                    continue;
                }
                if let Ok(above) = self.rows.binary_search_by_key(&row.parent, |row| row.key.pid)
                    && self.rows[above].member
                    // A process that is younger than its child only reuses the parent's pid.
                    && self.rows[above].key.start <= row.key.start
                {
                    self.rows[place].member = true;
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
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
            table.rows.push(Row { key, parent: *parent, alive: true, member: *member });
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
    fn a_parent_younger_than_its_child_is_none() {
        assert_eq!(table(&[(3, 10, 4, false), (4, 50, 1, true)]), [4]);
    }
}

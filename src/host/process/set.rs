//! Reads the memory of a set of processes, each address space once.

use std::cmp::Ordering;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{self as rfs, Mode, OFlags};
use rustix::io::Errno;

use super::raw::compare_memory;
use super::{ProcRoot, has_exited, living_thread, stat};
use crate::host::clock;
use crate::host::room::processes::{Rollup, rollup};
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// `smaps_rollup` has about 800 bytes.
const ROOM: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetMemory {
    /// Anonymous and shared memory; a page that several of the processes map counts once. Of a page that others map too, the
    /// part of the set counts.
    pub used: Bytes,
    /// Resident memory of files.
    pub file: Bytes,
    /// Whether every process was read that has not ended; otherwise the set uses at least `used`.
    pub complete: bool,
    /// The processes that were found alive, and whether each is the first with its address space.
    pub found: Vec<(ProcessKey, bool)>,
}

/// An address space that was read.
struct Space {
    /// The process or thread by which it was read.
    task: u32,
    /// `statm` of it.
    statm: Vec<u8>,
}

/// Reads the processes of a set, which must be sorted by their start, until the time `until`.
///
/// A process is read before its children: one that ends or executes another program meanwhile leaves its pages to its parent, which
/// then count less, not more. Processes with one address space are found by kcmp(2); where that is not permitted, those with the
/// same `statm` count as such, so that none counts twice.
///
/// A read takes a lock of the process, and may never return.
pub fn set_memory(root: &ProcRoot, members: &[ProcessKey], until: Timestamp) -> SetMemory {
    let mut set = SetMemory { complete: true, ..SetMemory::default() };
    // In the order of the kernel.
    let mut spaces: Vec<Space> = Vec::new();
    for key in members {
        if until.since(clock::now()).is_zero() {
            set.complete = false;
            break;
        }
        match read(root, *key, &mut spaces) {
            Ok(Some(Rollup { anon, file, shmem })) => {
                set.used = set.used.saturating_add(anon).saturating_add(shmem);
                set.file = set.file.saturating_add(file);
                set.found.push((*key, true));
            }
            Ok(None) => set.found.push((*key, false)),
            Err(error) => set.complete &= has_exited(&error),
        }
    }
    set
}

/// Reads one process; nothing where its address space was read already.
fn read(root: &ProcRoot, key: ProcessKey, spaces: &mut Vec<Space>) -> io::Result<Option<Rollup>> {
    let mut buffer = [0; ROOM];
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rfs::openat(root.folder()?, key.pid.to_string(), flags, Mode::empty())?;
    let found = stat(text(&folder, "stat", &mut buffer)?).ok_or(Errno::PROTO)?;
    if found.start != key.start || found.ended() {
        return Err(Errno::SRCH.into());
    }
    let (mut task, mut files) = (key.pid, String::new());
    if found.first_thread_ended() {
        task = living_thread(&folder, None, &mut buffer).ok_or(Errno::AGAIN)?.id;
        files = format!("task/{task}/");
    }
    let statm = text(&folder, &format!("{files}statm"), &mut buffer)?.to_vec();
    let mut is_compared = root.has_own_pids();
    let place = spaces.binary_search_by(|space| {
        let order = if is_compared { compare_memory(space.task, task).ok() } else { None };
        is_compared &= order.is_some();
        order.unwrap_or(Ordering::Less)
    });
    let is_known = if is_compared { place.is_ok() } else { spaces.iter().any(|space| space.statm == statm) };
    if is_known {
        return Ok(None);
    }
    let rollup = rollup(text(&folder, &format!("{files}smaps_rollup"), &mut buffer)?).ok_or(Errno::PROTO)?;
    let (Ok(place) | Err(place)) = place;
    spaces.insert(place, Space { task, statm });
    Ok(Some(rollup))
}

fn text<'b>(folder: &OwnedFd, name: &str, buffer: &'b mut [u8; ROOM]) -> io::Result<&'b [u8]> {
    let file = rfs::openat(folder, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let length = rustix::io::read(&file, &mut buffer[..])?;
    if length == 0 { Err(Errno::SRCH.into()) } else { Ok(&buffer[..length]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::process::testing::{Process, Tree};
    use std::time::Duration;

    const MIB: u64 = 1 << 20;

    fn parts(anon: u64, file: u64, shmem: u64) -> String {
        format!(
            "00-ff ---p 00 00:00 0 [rollup]\nPss_Anon: {anon} kB\nPss_File: {file} kB\nPss_Shmem: {shmem} kB\n"
        )
    }

    fn process(pid: u32, statm: &str, rollup: &str) -> Process {
        Process::new(pid, "p").file("statm", statm).file("smaps_rollup", rollup)
    }

    fn memory(tree: &Tree, keys: &[(u32, u64)]) -> SetMemory {
        let mut root = ProcRoot::new(tree.proc());
        root.connect().unwrap();
        let keys: Vec<_> = keys.iter().map(|(pid, start)| ProcessKey { pid: *pid, start: *start }).collect();
        set_memory(&root, &keys, clock::now().plus(Duration::from_secs(600)))
    }

    #[test]
    fn each_address_space_counts_once() {
        let tree = Tree::new();
        tree.add(&process(5, "900 80 1 1 0 5 0\n", &parts(300, 20, 10)));
        tree.add(&process(6, "900 80 1 1 0 5 0\n", &parts(300, 20, 10)));
        tree.add(&process(7, "900 81 1 1 0 5 0\n", &parts(50, 5, 0)));
        let set = memory(&tree, &[(5, 5), (6, 6), (7, 7)]);
        let bytes = |kib| Bytes::from_kib(kib).unwrap();
        assert_eq!((set.used, set.file, set.complete), (bytes(360), bytes(25), true));
        assert_eq!(set.found.iter().map(|(_, first)| *first).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn a_process_without_its_first_thread_is_read_by_another() {
        let tree = Tree::new();
        let mut ended = process(5, "0 0 0 0 0 0 0\n", "").thread(5, 'Z', 0).thread(8, 'S', 70);
        (ended.state, ended.threads) = ('Z', 2);
        let ended = ended.file("task/8/statm", "900 70 1 1 0 5 0\n");
        tree.add(&ended.file("task/8/smaps_rollup", &parts(70, 1, 2)));
        let set = memory(&tree, &[(5, 5)]);
        assert_eq!((set.used, set.complete), (Bytes::from_kib(72).unwrap(), true));
    }

    #[test]
    fn what_has_ended_has_no_memory_and_what_cannot_be_read_is_unknown() {
        let tree = Tree::new();
        let mut zombie = process(4, "0 0 0 0 0 0 0\n", "");
        zombie.state = 'Z';
        tree.add(&zombie);
        tree.add(&process(5, "900 80 1 1 0 5 0\n", &parts(300, 20, 10)));
        let set = memory(&tree, &[(4, 4), (5, 5), (5, 9), (6, 6)]);
        assert_eq!(
            (set.used, set.complete),
            (Bytes::from_kib(310).unwrap(), true),
            "another process, and none"
        );
        tree.add(&process(6, "1 80 1 1 0 5 0\n", "Pss: 9 kB\n"));
        let set = memory(&tree, &[(5, 5), (6, 6)]);
        assert_eq!((set.used, set.complete), (Bytes::from_kib(310).unwrap(), false));
        let mut root = ProcRoot::new(tree.proc());
        root.connect().unwrap();
        let late = set_memory(&root, &[ProcessKey { pid: 5, start: 5 }], clock::now());
        assert_eq!((late.used, late.complete), (Bytes::ZERO, false));
    }

    #[test]
    fn our_own_memory_is_what_its_files_have() {
        let mut root = ProcRoot::new("/proc".into());
        root.connect().unwrap();
        let pid = std::process::id();
        let start = stat(&std::fs::read("/proc/self/stat").unwrap()).unwrap().start;
        let key = ProcessKey { pid, start };
        let held = vec![1_u8; 64 << 20];
        let set = set_memory(&root, &[key, key], clock::now().plus(Duration::from_secs(600)));
        assert!(set.complete && set.used.get() > 64 * MIB && held[5] == 1);
        let first: Vec<_> = set.found.iter().map(|(_, first)| *first).collect();
        match compare_memory(pid, pid) {
            Ok(order) => assert_eq!((order, first), (Ordering::Equal, vec![true, false])),
            Err(error) => crate::skip::skip(&format!("kcmp(2) is not permitted: {error}")),
        }
    }
}

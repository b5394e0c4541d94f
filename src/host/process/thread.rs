//! A living thread of a process whose first thread has ended.
//!
//! A process ends with its last thread. Where only the first one has ended (`pthread_exit` in `main`), the files below
//! `/proc/PID` show a zombie without memory, while `/proc/PID/task/TID` of a living thread has the memory that they share.

use std::io::Write as _;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{self as rfs, Mode, OFlags, RawDir};

use super::{number, stat};

/// Maximum number of threads that one call inspects. Threads that have ended disappear, unless a tracer keeps them.
const TRIES: usize = 16;
/// Maximum number of threads that one call lists.
const LISTED: usize = 128;

/// A thread that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivingThread {
    pub id: u32,
    /// Its state letter.
    pub state: u8,
    /// Resident pages of the process.
    pub rss_pages: u64,
}

/// Finds a living thread of the process with the open folder `process`, `known` first. It reads into `buffer`, and allocates
/// nothing. Each call inspects other threads, as long as it finds none.
pub fn living_thread(process: impl AsFd, known: Option<u32>, buffer: &mut [u8]) -> Option<LivingThread> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let task = rfs::openat(process, "task", flags, Mode::empty()).ok()?;
    if let Some(found) = known.and_then(|id| inspect(&task, id, buffer)) {
        return Some(found);
    }
    let mut ids = [0; LISTED];
    let mut count = 0;
    let mut listing = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&task, &mut listing);
    while let Some(Ok(entry)) = entries.next() {
        if let Some(id) = number(entry.file_name().to_bytes()).and_then(|id| u32::try_from(id).ok()) {
            ids[count] = id;
            count += 1;
        }
        if count == LISTED {
            break;
        }
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let first = if count > TRIES { NEXT.fetch_add(TRIES, Ordering::Relaxed) % count } else { 0 };
    let turned = ids[first..count].iter().chain(&ids[..first]);
    turned.take(TRIES).find_map(|id| inspect(&task, *id, buffer))
}

fn inspect(task: impl AsFd, id: u32, buffer: &mut [u8]) -> Option<LivingThread> {
    let mut name = [0; 32];
    let mut rest = &mut name[..];
    write!(rest, "{id}/stat").ok()?;
    let left = rest.len();
    let length = name.len() - left;
    let file = rfs::openat(task, &name[..length], OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    // One call returns all of it.
    let read = rustix::io::read(&file, &mut *buffer).ok()?;
    let stat = stat(buffer.get(..read)?)?;
    let found = LivingThread { id, state: stat.state, rss_pages: stat.rss_pages };
    (!stat.first_thread_ended()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::process::testing::{Process, Tree};

    #[test]
    fn a_thread_that_lives_is_found_wherever_it_is() {
        let tree = Tree::new();
        let mut process = Process::new(9, "p").pages(0);
        (process.state, process.threads) = ('Z', 41);
        for id in (9..50).filter(|id| *id != 33) {
            process = process.thread(id, 'Z', 0);
        }
        process = process.thread(33, 'R', 77);
        tree.add(&process);
        let folder = std::fs::File::open(tree.proc().join("9")).unwrap();
        let mut buffer = [0; 4096];
        let expected = LivingThread { id: 33, state: b'R', rss_pages: 77 };
        let found = (0..3).find_map(|_| living_thread(&folder, None, &mut buffer));
        assert_eq!(found, Some(expected));
        assert_eq!(living_thread(&folder, Some(33), &mut buffer), Some(expected));
        let ended = std::fs::File::open(tree.proc()).unwrap();
        assert_eq!(living_thread(&ended, Some(33), &mut buffer), None);
    }
}

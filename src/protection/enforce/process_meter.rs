//! The memory of a job's processes against a limit of its own.

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::process_set::ProcessSet;
use crate::host::process::{living_thread, number, page_size, stat};
use crate::host::room::processes::{Exact, Levels, SetState};
use crate::model::ids::ProcessKey;
use crate::model::room::Room;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// `stat` has about 350 bytes, `statm` less.
const ROOM: usize = 4096;
/// Time after which a reading is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Time within which a reading can be expected.
const SOON: Duration = Duration::from_millis(300);
/// Share of the limit by which an exact reading may differ from what was known before, and rates of growth go on.
const JUMP: u64 = 64;

/// The memory of the processes of a job against a limit of its own: pages that they share count once.
///
/// Each round reads `statm` of the largest processes, which says how much they use at most, and asks for an exact reading only
/// where that matters ([`SetState`]).
#[derive(Debug)]
pub struct ProcessMeter {
    levels: Levels,
    proc: OwnedFd,
    kept: Vec<Kept>,
    /// The resident memory of the processes whose files are not kept, when this was opened.
    rest: Bytes,
    set: Arc<ProcessSet>,
    exact: Option<Exact>,
    /// Since when an exact reading is awaited.
    asked: Option<Timestamp>,
    /// What was returned last.
    used: Option<Bytes>,
    /// Whether the readings before and after the last one are not comparable.
    jumped: bool,
}

/// A process whose `statm` is kept open.
#[derive(Debug)]
struct Kept {
    key: ProcessKey,
    /// Absent once it has ended.
    statm: Option<OwnedFd>,
    /// Whether the last exact reading has it.
    known: bool,
    /// Its anonymous memory then, in pages; absent where another process has the same address space.
    base: Option<u64>,
}

impl ProcessMeter {
    /// Maximum number of processes whose files are kept, the largest ones.
    pub const KEPT: usize = 64;

    /// Opens the files below `proc` of processes that are sorted by their resident memory, the largest first.
    ///
    /// # Errors
    /// The operating system's, if there is no process file system.
    pub fn open(
        proc: &Path,
        levels: Levels,
        processes: &[(ProcessKey, Bytes)],
        set: Arc<ProcessSet>,
    ) -> io::Result<Self> {
        let proc = rustix::fs::open(proc, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let (kept, others) = processes.split_at(processes.len().min(Self::KEPT));
        let rest = others.iter().fold(Bytes::ZERO, |sum, (_, resident)| sum.saturating_add(*resident));
        let kept = kept.iter().map(|(key, _)| Kept {
            key: *key,
            statm: open_statm(&proc, *key).ok(),
            known: false,
            base: None,
        });
        let kept = kept.collect();
        set.set_members(processes.iter().map(|(key, _)| *key).collect(), levels.reached[0]);
        Ok(Self { levels, kept, proc, rest, set, exact: None, asked: None, used: None, jumped: false })
    }

    /// Takes over what the meter before has read of the same job.
    pub fn take_over(&mut self, before: &Self) {
        (self.exact, self.asked, self.used) = (before.exact, before.asked, before.used);
        for kept in &mut self.kept {
            if let Some(before) = before.kept.iter().find(|before| before.key == kept.key) {
                (kept.known, kept.base) = (before.known, before.base);
            }
        }
    }

    /// The memory left: the limit without the anonymous and shared memory of the processes. Absent while no exact reading
    /// says whether a level is reached.
    pub fn read(&mut self, now: Timestamp) -> Option<Room> {
        let mut bound = 0_u64;
        let (mut growth, mut unread) = (0_i64, 0_u64);
        let answer = self.set.take();
        for kept in &mut self.kept {
            let Some([resident, anon]) = kept.read(&self.proc) else { continue };
            bound = bound.saturating_add(resident);
            if let Some(answer) = &answer {
                let found = answer.found.iter().find(|(key, _)| *key == kept.key);
                kept.known = found.is_some();
                kept.base = found.is_some_and(|(_, first)| *first).then_some(anon);
            }
            if !kept.known {
                unread = unread.saturating_add(resident);
            }
            if let Some(base) = kept.base {
                growth = growth.saturating_add_unsigned(anon).saturating_sub_unsigned(base);
            }
        }
        let before = self.used;
        let is_new = answer.is_some();
        if let Some(answer) = answer {
            (self.exact, self.asked) = (Some(answer.exact), None);
        }
        let file = self.exact.map_or(Bytes::ZERO, |exact| exact.file);
        let state = SetState {
            exact: self.exact,
            bound: bytes(bound).saturating_sub(file).saturating_add(self.rest),
            growth: growth.saturating_mul(i64::try_from(page_size()).unwrap_or(i64::MAX)),
            unread: bytes(unread),
        };
        self.used = state.used(&self.levels, now);
        let jump = self.levels.limit.get() / JUMP;
        self.jumped |= match (before, self.used) {
            (Some(before), Some(used)) => is_new && before.get().abs_diff(used.get()) > jump,
            (before, used) => before.is_some() != used.is_some(),
        };
        if let Some(pause) = state.pause(&self.levels)
            && self.exact.is_none_or(|exact| now.since(exact.at) >= pause)
            && self.asked.is_none_or(|asked| now.since(asked) >= ASK_AGAIN)
        {
            self.asked = Some(now);
            self.set.ask();
        }
        Some(Room::new(self.levels.limit.saturating_sub(self.used?), self.levels.limit))
    }

    /// What the last reading found in use, in bytes; absent while no exact reading says whether a level is reached.
    pub const fn used(&self) -> Option<Bytes> {
        self.used
    }

    /// Whether an exact reading was asked for a moment ago.
    pub fn is_awaited(&self, now: Timestamp) -> bool {
        self.asked.is_some_and(|asked| now.since(asked) < SOON)
    }

    /// Whether rates of growth from readings before cannot be continued; asked once after a reading.
    pub fn has_jumped(&mut self) -> bool {
        std::mem::take(&mut self.jumped)
    }
}

impl Kept {
    /// Its resident and its anonymous memory, in pages; nothing where it has ended. The kernel's counters are estimates since
    /// Linux 6.2, with an error of less than 2 MiB a process on a machine with 16 CPUs.
    fn read(&mut self, proc: &OwnedFd) -> Option<[u64; 2]> {
        let found = self.statm.as_ref().and_then(pages);
        if found.is_none() && self.statm.is_some() {
            // The thread has ended whose file it is, and perhaps the process.
            self.statm = open_statm(proc, self.key).ok();
            return self.statm.as_ref().and_then(pages);
        }
        found
    }
}

/// Resident pages, and those of them that are neither of files nor shared (proc_pid_statm(5)); nothing without memory.
fn pages(statm: &OwnedFd) -> Option<[u64; 2]> {
    let mut room = [0; ROOM];
    let text = text(statm, &mut room).ok()?;
    let mut fields = text.trim_ascii().split(|byte| *byte == b' ').map(number);
    let [all, resident, shared] = [fields.next()??, fields.next()??, fields.next()??];
    (all > 0).then_some([resident, resident.saturating_sub(shared)])
}

/// Opens `statm` of a process, if it is still this one; that of a living thread if the first one has ended. Allocates nothing.
fn open_statm(proc: &OwnedFd, key: ProcessKey) -> io::Result<OwnedFd> {
    let open = |at: &OwnedFd, name: std::fmt::Arguments<'_>, flags: OFlags| {
        let mut path = [0; 40];
        let mut rest = &mut path[..];
        rest.write_fmt(name)?;
        let left = rest.len();
        let length = path.len() - left;
        io::Result::Ok(rustix::fs::openat(at, &path[..length], flags | OFlags::CLOEXEC, Mode::empty())?)
    };
    let folder = open(proc, format_args!("{}", key.pid), OFlags::PATH | OFlags::DIRECTORY)?;
    let mut room = [0; ROOM];
    let file = open(&folder, format_args!("stat"), OFlags::RDONLY)?;
    let found = stat(text(&file, &mut room)?).filter(|stat| stat.start == key.start && !stat.ended());
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    if !found.ok_or_else(gone)?.first_thread_ended() {
        return open(&folder, format_args!("statm"), OFlags::RDONLY);
    }
    let thread = living_thread(&folder, None, &mut room).ok_or_else(gone)?;
    open(&folder, format_args!("task/{}/statm", thread.id), OFlags::RDONLY)
}

fn text<'r>(file: &OwnedFd, room: &'r mut [u8; ROOM]) -> io::Result<&'r [u8]> {
    let length = rustix::io::pread(file, &mut room[..], 0)?;
    Ok(&room[..length])
}

fn bytes(pages: u64) -> Bytes {
    Bytes::new(pages.saturating_mul(page_size()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::clock;
    use crate::host::process::testing::{Process, Tree};
    use std::thread::sleep;

    const MIB: u64 = 1 << 20;
    const LEVELS: Levels =
        Levels { limit: Bytes::new(400 * MIB), reached: [Bytes::new(340 * MIB), Bytes::new(388 * MIB)] };

    /// A process with this much resident memory, of which so much is its part of what it shares, all in MiB.
    fn process(pid: u32, resident: u64, part: u64) -> Process {
        let pages = resident * MIB / page_size();
        let parts = format!("Pss_Anon: {} kB\nPss_File: 0 kB\nPss_Shmem: 0 kB\n", part << 10);
        let statm = format!("{} {pages} 0 1 0 5 0\n", 9_000_000 + pid);
        Process::new(pid, "p").file("statm", &statm).file("smaps_rollup", &parts)
    }

    fn meter(tree: &Tree, pids: &[u32]) -> ProcessMeter {
        let set = ProcessSet::new(tree.proc(), 7, "train".into());
        let processes: Vec<_> = pids
            .iter()
            .map(|pid| (ProcessKey { pid: *pid, start: u64::from(*pid) }, Bytes::new(MIB)))
            .collect();
        ProcessMeter::open(&tree.proc(), LEVELS, &processes, set).unwrap()
    }

    /// Reads until it says as much.
    #[track_caller]
    fn until(meter: &mut ProcessMeter, used: Option<u64>) {
        let expected = used.map(|used| Bytes::new((400 - used) * MIB));
        for _ in 0..4_000 {
            let left = meter.read(clock::now());
            if left.map(Room::left) == expected && meter.exact.is_some() {
                return;
            }
            sleep(Duration::from_millis(10));
        }
        panic!("{meter:?} instead of {used:?}");
    }

    #[test]
    fn pages_that_processes_share_count_once() {
        let tree = Tree::new();
        tree.add(&process(5, 300, 150));
        tree.add(&process(6, 300, 150));
        let mut meter = meter(&tree, &[5, 6, 9]);
        assert_eq!(meter.read(clock::now()), None, "unknown before it was read");
        assert!(meter.is_awaited(clock::now()));
        until(&mut meter, Some(300));
        assert!(meter.has_jumped() && !meter.has_jumped());
        // They cease to share, which no other file shows.
        tree.add(&process(6, 300, 200));
        until(&mut meter, Some(350));
        // What one of them takes is seen at once.
        tree.add(&process(5, 330, 180));
        until(&mut meter, Some(380));
    }

    #[test]
    fn growth_reaches_a_level_once_a_reading_has_it() {
        let tree = Tree::new();
        tree.add(&process(5, 100, 100));
        let mut meter = meter(&tree, &[5]);
        until(&mut meter, Some(100));
        tree.add(&process(5, 390, 100));
        let left = meter.read(clock::now()).unwrap().left().get();
        assert_eq!(left, 60 * MIB + 1, "so far only the bound has it");
        tree.add(&process(5, 390, 390));
        until(&mut meter, Some(390));
        // A child after its fork was not there when the set was read.
        let before = meter;
        let mut meter = self::meter(&tree, &[5, 6]);
        tree.add(&process(6, 390, 390));
        meter.take_over(&before);
        until(&mut meter, Some(390));
    }

    #[test]
    fn without_an_exact_reading_no_level_is_known() {
        let tree = Tree::new();
        tree.add(&process(5, 390, 390).file("smaps_rollup", "Pss: 9 kB\n"));
        let mut meter = meter(&tree, &[5]);
        until(&mut meter, None);
        tree.add(&process(5, 30, 30).file("smaps_rollup", "Pss: 9 kB\n"));
        until(&mut meter, Some(30));
    }

    #[test]
    fn the_memory_of_a_process_without_its_first_thread_is_read() {
        let tree = Tree::new();
        tree.add(&process(5, 200, 200));
        let mut meter = meter(&tree, &[5]);
        until(&mut meter, Some(200));
        let other = process(5, 360, 360);
        let text = |name: &str| {
            let file = other.files.iter().find(|(other, _)| other == name).unwrap();
            String::from_utf8(file.1.clone()).unwrap()
        };
        let mut ended = Process::new(5, "p").thread(5, 'Z', 0).thread(8, 'S', 1);
        (ended.state, ended.threads) = ('Z', 2);
        let ended = ended.file("statm", "0 0 0 0 0 0 0\n").file("task/8/statm", &text("statm"));
        tree.add(&ended.file("task/8/smaps_rollup", &text("smaps_rollup")));
        until(&mut meter, Some(360));
    }
}

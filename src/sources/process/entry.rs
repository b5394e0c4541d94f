//! One known process: its row, its open descriptor, and when each value is read again.

use std::io;
use std::sync::Arc;

use crate::host::process::{self, Listed, ProcFile, ProcRoot, Stat};
use crate::model::facts::ProcessRow;
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::units::Bytes;

/// Samples between two reads of a kernel thread, and between two reads of an older process's owner and cgroup.
const KERNEL_EVERY: u32 = 16;
const OLD_EVERY: u32 = 64;

/// A small process without activity for this many samples is read only at every fourth sample, until it is active.
///
/// On a training node that is nearly every process. A process cannot grow
/// without CPU time, and one that becomes active and grows is seen this much later
/// only in its own series: hosts, cgroups and GPUs are read at each sample.
const QUIET_AFTER: u32 = 8;
const QUIET_EVERY: u32 = 4;
const SMALL: Bytes = Bytes::new(64 << 20);

pub(super) struct Entry {
    pub(super) row: ProcessRow,
    file: Option<ProcFile>,
    /// A living thread, where the first one has ended.
    thread: Option<u32>,
    /// Whether the first thread has ended, and another lives.
    first_ended: bool,
    inode: u64,
    /// Samples since it was found.
    age: u32,
    /// Consecutive samples without a change.
    quiet: u32,
    /// Whether it started while the daemon was running, or shortly before: its cgroup and owner may still be changed by its launcher.
    young: bool,
    comm: Box<[u8]>,
}

/// State shared by the reads of all processes.
pub(super) struct Reading {
    pub(super) buffer: Vec<u8>,
    page: u64,
    most_kept: usize,
    pub(super) kept: usize,
    /// By the content of the file: most processes share it with others.
    cgroups: foldhash::HashMap<Box<[u8]>, Arc<Cgroup>>,
}

struct Cgroup {
    memory: Option<Label>,
    naming: Option<Arc<str>>,
}

impl Entry {
    pub(super) const fn pid(&self) -> u32 {
        self.row.key.pid
    }

    pub(super) fn discover(
        listed: Listed,
        recent: u64,
        root: &ProcRoot,
        reading: &mut Reading,
    ) -> io::Result<Self> {
        let pid = listed.pid;
        let file = root.open(pid, "stat")?;
        let text = file.read(&mut reading.buffer)?;
        let invalid =
            || io::Error::new(io::ErrorKind::InvalidData, format!("{pid}/stat has an invalid format"));
        let stat = process::stat(text).ok_or_else(invalid)?;
        let row = ProcessRow {
            kernel: stat.kernel,
            ..ProcessRow::new(ProcessKey { pid, start: stat.start }, shown(stat.comm))
        };
        let mut entry = Self {
            row,
            file: None,
            thread: None,
            first_ended: false,
            inode: listed.inode,
            age: 0,
            quiet: 0,
            young: stat.start >= recent,
            comm: stat.comm.into(),
        };
        entry.take_over(&stat, reading.page);
        if entry.first_ended {
            entry.follow_thread(Bytes::ZERO, root, reading);
        }
        // If the owner cannot be read, the process has ended.
        entry.row.uid = root.uid(pid)?;
        entry.look_closer(root, reading);
        entry.read_cgroup(root, reading);
        if !entry.row.kernel && reading.kept < reading.most_kept {
            reading.kept += 1;
            entry.file = Some(file);
        }
        Ok(entry)
    }

    /// Reads a known process again; returns whether it still exists.
    pub(super) fn refresh(&mut self, listed: Listed, root: &ProcRoot, reading: &mut Reading) -> bool {
        self.age = self.age.saturating_add(1);
        let turn = self.age.wrapping_add(spread(self.pid()));
        let every = match self.row.kernel {
            true => KERNEL_EVERY,
            false if self.quiet >= QUIET_AFTER && self.row.rss < SMALL => QUIET_EVERY,
            false => 1,
        };
        let due = (self.young && self.age.is_power_of_two()) || turn.is_multiple_of(OLD_EVERY);
        if listed.inode == self.inode && !turn.is_multiple_of(every) && (self.row.kernel || !due) {
            return true;
        }
        self.inode = listed.inode;
        let mut buffer = std::mem::take(&mut reading.buffer);
        let text = match &self.file {
            Some(file) => file.read(&mut buffer),
            None => root.read(self.pid(), "stat", &mut buffer),
        };
        let stat = text.ok().and_then(process::stat).filter(|stat| stat.start == self.row.key.start);
        let renamed = stat.is_some_and(|stat| *self.comm != *stat.comm);
        let had_first = !self.first_ended;
        if let Some(stat) = &stat {
            if renamed {
                self.comm = stat.comm.into();
                self.row.comm = shown(stat.comm);
            }
            let before = self.doing();
            let rss = self.row.rss;
            self.take_over(stat, reading.page);
            if self.first_ended {
                self.follow_thread(rss, root, reading);
            }
            self.quiet = if before == self.doing() { self.quiet.saturating_add(1) } else { 0 };
        }
        let alive = stat.is_some();
        reading.buffer = buffer;
        if !alive {
            return false;
        }
        // What was read as the first thread ended may be its new cgroup.
        if !self.row.kernel && (renamed || due || (had_first && self.first_ended)) {
            self.row.uid = root.uid(self.pid()).unwrap_or(self.row.uid);
            self.look_closer(root, reading);
            self.read_cgroup(root, reading);
        }
        true
    }

    /// The values that change when a process is active.
    fn doing(&self) -> (u8, u32, Bytes, u64, u64, u64) {
        let row = &self.row;
        (row.state, row.parent, row.rss, row.cpu_ticks, row.threads, row.major_faults)
    }

    fn take_over(&mut self, stat: &Stat<'_>, page: u64) {
        let row = &mut self.row;
        (row.parent, row.session, row.terminal) = (stat.parent, stat.session, stat.terminal);
        (row.state, row.kernel) = (stat.state, stat.kernel);
        self.first_ended = stat.first_thread_ended() && !stat.ended();
        row.rss = Bytes::new(stat.rss_pages.saturating_mul(page));
        (row.cpu_ticks, row.threads, row.major_faults) = (stat.cpu_ticks, stat.threads, stat.major_faults);
    }

    /// Takes the state and the memory from a living thread where the first one has ended. If none is found, the state is
    /// unknown and the memory is that of the sample before, `rss`.
    fn follow_thread(&mut self, rss: Bytes, root: &ProcRoot, reading: &mut Reading) {
        let found = root.living_thread(self.pid(), self.thread, &mut reading.buffer);
        self.thread = found.map(|thread| thread.id).or(self.thread);
        (self.row.state, self.row.rss) = found.map_or((b'?', rss), |thread| {
            (thread.state, Bytes::new(thread.rss_pages.saturating_mul(reading.page)))
        });
    }

    /// Any process can make itself non-dumpable; its folder in /proc then belongs to root.
    fn look_closer(&mut self, root: &ProcRoot, reading: &mut Reading) {
        self.row.real_uid = None;
        if self.row.uid != 0 || self.row.kernel {
            return;
        }
        if let Ok([real, effective]) = root.users(self.pid(), 0, &mut reading.buffer) {
            (self.row.uid, self.row.real_uid) = (effective, Some(real));
        }
    }

    /// The cgroup of a living thread: one that has ended is in none, which reads as `/`. A process that ends meanwhile keeps its
    /// last value.
    fn read_cgroup(&mut self, root: &ProcRoot, reading: &mut Reading) {
        if self.row.kernel {
            return;
        }
        let mut buffer = std::mem::take(&mut reading.buffer);
        let text = match (self.first_ended, self.thread) {
            (true, Some(thread)) => root.read(self.pid(), &format!("task/{thread}/cgroup"), &mut buffer),
            (true, None) => Err(std::io::ErrorKind::NotFound.into()),
            (false, _) => root.read(self.pid(), "cgroup", &mut buffer),
        };
        if let Ok(text) = text {
            let cgroup = reading.cgroup(text);
            self.row.cgroup.clone_from(&cgroup.memory);
            self.row.naming_cgroup.clone_from(&cgroup.naming);
        }
        reading.buffer = buffer;
    }
}

impl Reading {
    pub(super) fn new(most_kept: usize) -> Self {
        Self {
            buffer: Vec::new(),
            page: process::page_size(),
            most_kept,
            kept: 0,
            cgroups: foldhash::HashMap::default(),
        }
    }

    /// Closes the descriptor of a process.
    #[expect(clippy::needless_pass_by_value, reason = "the entry ends here")]
    pub(super) fn release(&mut self, entry: Entry) {
        self.kept -= usize::from(entry.file.is_some());
    }

    fn cgroup(&mut self, text: &[u8]) -> Arc<Cgroup> {
        if let Some(known) = self.cgroups.get(text) {
            return Arc::clone(known);
        }
        let found = process::cgroups(text);
        let cgroup = Arc::new(Cgroup {
            memory: found.memory.as_deref().map(Label::from),
            naming: found.naming.as_deref().map(Arc::from),
        });
        self.cgroups.insert(text.into(), Arc::clone(&cgroup));
        cgroup
    }

    /// Job steps have paths of their own: the map is cleared when most of it must be stale.
    pub(super) fn forget_unused_cgroups(&mut self, processes: usize) {
        if self.cgroups.len() > 2 * processes + 64 {
            self.cgroups.clear();
        }
    }
}

/// Spreads pids evenly over turns: processes started together must not be read at the same sample.
const fn spread(pid: u32) -> u32 {
    // Knuth's multiplicative hash (The Art of Computer Programming, volume 3, section 6.4); the high bits are
    // well distributed.
    pid.wrapping_mul(2_654_435_769) >> 16
}

/// A process can choose any name; in a label, control characters are replaced.
fn shown(comm: &[u8]) -> Label {
    let text = String::from_utf8_lossy(comm);
    if text.contains(char::is_control) {
        Label::from(text.replace(char::is_control, " "))
    } else {
        Label::from(&*text)
    }
}

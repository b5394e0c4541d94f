//! One process of a workload, read closely: memory by kind, I/O, descriptors.
//!
//! `status` costs 8 µs. It is read each sample of those that are shown one by
//! one and of those whose `stat` changed, and every 4th sample of the others.

use std::time::Duration;

use crate::host::process::{self, Io, ProcFile, ProcRoot, Status, died};
use crate::model::facts::ProcessRow;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// Samples between two reads of the memory of a process that seems to do nothing: `stat` only estimates it.
const MEMORY_EVERY: u32 = 4;
/// Samples between two reads of the I/O of a process that does nothing, and of descriptors.
const QUIET_EVERY: u32 = 16;
/// Samples before a file that was refused is tried again.
const REFUSED_EVERY: u32 = 64;
/// Above this much anonymous memory `smaps_rollup` would stall the process: it holds its lock for about 15 ms a GiB.
const PSS_LIMIT: Bytes = Bytes::new(1 << 30);
const PSS_EVERY: Duration = Duration::from_secs(60);

/// What members share: where to read, and how much may be kept open.
pub(super) struct Files {
    pub(super) root: ProcRoot,
    pub(super) buffer: Vec<u8>,
    most_kept: usize,
    kept: usize,
}

/// One watched process.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub(super) status: Status,
    /// The most it ever had resident, kept when it turns into a zombie, which has no memory.
    pub(super) peak: Option<Bytes>,
    pub(super) open_files: Option<u64>,
    pub(super) io: Option<Io>,
    /// Whether the kernel does not show its I/O or its descriptors.
    pub(super) restricted: bool,
    /// What the workload has counted of it already.
    pub(super) counted: Counted,
    pub(super) pss: Option<Bytes>,
    pss_at: Option<Timestamp>,
    status_file: Option<ProcFile>,
    io_file: Option<ProcFile>,
    io_refused: bool,
    files_refused: bool,
    seen: (u8, Bytes, u64, u64, u64),
    age: u32,
}

/// Cumulative numbers of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) cpu_ticks: u64,
    pub(super) major_faults: u64,
    pub(super) read: Option<Bytes>,
    pub(super) written: Option<Bytes>,
}

impl Files {
    pub(super) const fn new(root: ProcRoot, most_kept: usize) -> Self {
        Self { root, buffer: Vec::new(), most_kept, kept: 0 }
    }

    /// Reads a file through its descriptor, which is kept where there is room.
    fn read(&mut self, pid: u32, name: &str, kept: &mut Option<ProcFile>) -> std::io::Result<&[u8]> {
        match kept {
            Some(file) => file.read(&mut self.buffer),
            None if self.kept < self.most_kept => {
                let file = kept.insert(self.root.open(pid, name)?);
                self.kept += 1;
                file.read(&mut self.buffer)
            }
            None => self.root.read(pid, name, &mut self.buffer),
        }
    }

    /// Closes what was kept on a member.
    #[expect(clippy::needless_pass_by_value, reason = "the member ends here")]
    pub(super) fn release(&mut self, member: Member) {
        self.kept -= usize::from(member.status_file.is_some()) + usize::from(member.io_file.is_some());
    }
}

impl Member {
    /// Reads what may have changed. A process that ends meanwhile keeps what was known of it.
    /// One that is `shown` by itself is read each time.
    pub(super) fn observe(&mut self, row: &ProcessRow, shown: bool, files: &mut Files) {
        let pid = row.key.pid;
        let now = (row.state, row.rss, row.cpu_ticks, row.threads, row.major_faults);
        // Spread by pid, so that a thousand quiet processes do not take their turns together.
        let turn = self.age.wrapping_add(pid);
        let due = self.age == 0 || turn.is_multiple_of(QUIET_EVERY);
        let changed = now != self.seen;
        self.seen = now;
        if (due || changed || shown || turn.is_multiple_of(MEMORY_EVERY))
            && let Ok(text) = files.read(pid, "status", &mut self.status_file)
        {
            self.status = process::status(text);
            self.peak = self.status.peak.or(self.peak);
        }
        if (due || changed) && (!self.io_refused || turn.is_multiple_of(REFUSED_EVERY)) {
            match files.read(pid, "io", &mut self.io_file).map(process::io) {
                Ok(io) => (self.io, self.io_refused) = (Some(io), false),
                Err(error) => self.io_refused |= !died(&error),
            }
        }
        if due && (!self.files_refused || self.age == 0 || turn.is_multiple_of(REFUSED_EVERY)) {
            match files.root.open_files(pid) {
                Ok(count) => (self.open_files, self.files_refused) = (Some(count), false),
                Err(error) => self.files_refused |= !died(&error),
            }
        }
        self.restricted = self.io_refused || self.files_refused;
        self.age = self.age.saturating_add(1);
    }

    /// Its resident memory: what its parts add up to, so that no part is ever larger than the whole.
    ///
    /// A zombie, and any process before Linux 4.5, has no such parts.
    pub(super) fn rss(&self, row: &ProcessRow) -> Bytes {
        let Status { anon: Some(anon), file: Some(file), shmem: Some(shmem), .. } = self.status else {
            return row.rss;
        };
        anon.saturating_add(file).saturating_add(shmem)
    }

    /// Reads the proportional set size where that is due and harms nobody; says whether it read.
    pub(super) fn observe_pss(&mut self, row: &ProcessRow, at: Timestamp, files: &mut Files) -> bool {
        if self.pss_at.is_some_and(|before| at.since(before) < PSS_EVERY) {
            return false;
        }
        self.pss_at = Some(at);
        self.pss = None;
        let Ok(text) = files.read(row.key.pid, "status", &mut self.status_file) else { return false };
        self.status = process::status(text);
        let small = self.status.anon.is_some_and(|anon| anon < PSS_LIMIT);
        if self.status.signalled || !small || !matches!(row.state, b'R' | b'S') {
            return false;
        }
        let read = files.root.read(row.key.pid, "smaps_rollup", &mut files.buffer);
        self.pss = read.ok().and_then(process::pss);
        true
    }
}

//! One process of a workload, read in detail: memory by kind, I/O, descriptors.
//!
//! `status` takes 8 µs to read. It is read at each sample for processes that are exposed individually and for those
//! whose `stat` changed, and at every 4th sample for the others.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::host::process::readers::{Pool, ReadRequests, ReadTarget};
use crate::host::process::{self, Io, ProcFile, ProcRoot, Status, has_exited};
use crate::model::facts::{OwnLimits, ProcessRow};
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// Samples between two reads of the memory of an inactive process, because `stat` only has an estimate of it.
const MEMORY_EVERY: u32 = 4;
/// Samples between two reads of the I/O of an inactive process, and of descriptors.
const QUIET_EVERY: u32 = 16;
/// Samples after which a file that was refused is tried again.
const REFUSED_EVERY: u32 = 64;
/// Above this much anonymous memory, `smaps_rollup` would stall the process: it holds the lock for about 15 ms per GiB.
const PSS_LIMIT: Bytes = Bytes::new(1 << 30);
const PSS_EVERY: Duration = Duration::from_secs(60);

/// Shared state of the members: the file system, the limit of descriptors, and the threads for reads that can hang.
pub(super) struct Files {
    pub(super) root: Arc<ProcRoot>,
    pub(super) buffer: Vec<u8>,
    pub(super) io: ReadRequests<io::Result<Io>>,
    pub(super) pss: ReadRequests<Option<Bytes>>,
    most_kept: usize,
    kept: usize,
}

/// One process of a tracked workload.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub(super) status: Status,
    /// Whether `status` was not read because of the time that it would take.
    pub(super) withheld: bool,
    /// Its peak resident memory, kept when it becomes a zombie, which has no memory.
    pub(super) peak: Option<Bytes>,
    pub(super) open_files: Option<u64>,
    pub(super) io: Option<Io>,
    /// The part of its totals that the workload's totals include.
    pub(super) counted: Counted,
    pub(super) pss: Option<Bytes>,
    pss_at: Option<Timestamp>,
    status_file: Option<ProcFile>,
    io_file: Option<Arc<ProcFile>>,
    io_refused: bool,
    files_refused: bool,
    limits: process::ReadLimits,
    /// From which CPU time on in ticks the limits are read again.
    limits_due: u64,
    last_stat: (u8, Bytes, u64, u64, u64),
    age: u32,
}

/// Cumulative values of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) cpu_ticks: u64,
    pub(super) major_faults: u64,
    pub(super) read: Option<Bytes>,
    pub(super) written: Option<Bytes>,
}

impl Files {
    pub(super) fn new(root: ProcRoot, most_kept: usize, pool: &Arc<Pool>) -> Self {
        Self {
            root: Arc::new(root),
            buffer: Vec::new(),
            io: ReadRequests::new(Arc::clone(pool)),
            pss: ReadRequests::new(Arc::clone(pool)),
            most_kept,
            kept: 0,
        }
    }

    /// Opens the process file system if it is not open.
    pub(super) fn connect(&mut self) -> io::Result<()> {
        match Arc::get_mut(&mut self.root) {
            Some(root) => root.connect(),
            // Only an open one can be shared.
            None => Ok(()),
        }
    }

    /// Reads `status` through its descriptor, which is kept if the limit allows.
    fn status(&mut self, row: &ProcessRow, kept: &mut Option<ProcFile>) -> io::Result<Status> {
        let pid = row.key.pid;
        if kept.is_none() && self.kept < self.most_kept {
            *kept = Some(self.root.open(pid, "status")?);
            self.kept += 1;
        }
        let status = self.root.status((pid, row.uid), kept.as_ref(), &mut self.buffer).map(process::status);
        if status.as_ref().is_err_and(has_exited) && kept.take().is_some() {
            // It may be that of a thread, and the process lives.
            self.kept -= 1;
        }
        status
    }

    /// Reads `status` of a living thread of a process whose first thread has ended, as [`Files::status`].
    fn status_of_thread(&mut self, row: &ProcessRow, kept: &mut Option<ProcFile>) -> io::Result<Status> {
        let file = self.root.open_of_thread(row.key.pid, "status", &mut self.buffer)?;
        let read = self.root.status((row.key.pid, row.uid), Some(&file), &mut self.buffer);
        let status = read.map(process::status);
        if kept.is_some() {
            *kept = Some(file);
        }
        status
    }

    /// Requests `io`; the read waits for a process that is in execve.
    fn request_io(&mut self, row: &ProcessRow, kept: &mut Option<Arc<ProcFile>>) {
        let pid = row.key.pid;
        if kept.is_none()
            && self.kept < self.most_kept
            && let Ok(file) = self.root.open(pid, "io")
        {
            *kept = Some(Arc::new(file));
            self.kept += 1;
        }
        let (file, root) = (kept.clone(), Arc::clone(&self.root));
        self.io.request(ReadTarget::of(row, "io"), move || {
            let mut buffer = Vec::new();
            match file {
                Some(file) => file.read(&mut buffer),
                None => root.read(pid, "io", &mut buffer),
            }
            .map(process::io)
        });
    }

    /// Requests the proportional set size; the read waits for the lock of the process's memory.
    fn request_pss(&mut self, row: &ProcessRow) {
        let (pid, root) = (row.key.pid, Arc::clone(&self.root));
        self.pss.request(ReadTarget::of(row, "smaps_rollup"), move || {
            root.read(pid, "smaps_rollup", &mut Vec::new()).ok().and_then(process::pss)
        });
    }

    /// Closes the descriptors of a member.
    #[expect(clippy::needless_pass_by_value, reason = "the member ends here")]
    pub(super) fn release(&mut self, member: Member) {
        self.kept -= usize::from(member.status_file.is_some()) + usize::from(member.io_file.is_some());
    }
}

impl Member {
    /// Reads what may have changed, and requests its I/O. A process that ends meanwhile keeps its last values.
    /// A process that is exposed individually (`shown`) is read each time.
    pub(super) fn observe(&mut self, row: &ProcessRow, shown: bool, files: &mut Files) {
        let pid = row.key.pid;
        let now = (row.state, row.rss, row.cpu_ticks, row.threads, row.major_faults);
        // Spread by pid, so that many inactive processes are not read at the same sample.
        let turn = self.age.wrapping_add(pid);
        let due = self.age == 0 || turn.is_multiple_of(QUIET_EVERY);
        let changed = now != self.last_stat;
        self.last_stat = now;
        if (due || changed || shown || turn.is_multiple_of(MEMORY_EVERY))
            && let Some(status) = self.read_status(row, files)
        {
            self.status = status;
            self.peak = self.status.peak.or(self.peak);
        }
        if (due || changed) && (!self.io_refused || turn.is_multiple_of(REFUSED_EVERY)) {
            files.request_io(row, &mut self.io_file);
        }
        if due && (!self.files_refused || self.age == 0 || turn.is_multiple_of(REFUSED_EVERY)) {
            match files.root.open_files(pid) {
                Ok(count) => (self.open_files, self.files_refused) = (Some(count), false),
                Err(error) => self.files_refused |= !has_exited(&error),
            }
        }
        // A process, or the shell that becomes it, sets its limits as it starts: read in its second sample, and at 0.25 s of CPU time,
        // 0.5 s, 1 s, ...
        if self.age == 1 || row.cpu_ticks >= self.limits_due.max(process::clock_ticks() / 4) {
            self.limits_due = row.cpu_ticks.saturating_mul(2);
            let text = files.root.read(pid, "limits", &mut files.buffer);
            self.limits = text.map(process::own_limits).unwrap_or_default();
        }
        self.age = self.age.saturating_add(1);
    }

    /// Its limits, where it has any.
    pub(super) fn own_limits(&self) -> Option<OwnLimits> {
        let process::ReadLimits { cpu, address_space } = self.limits;
        let address_space = address_space.map(Bytes::new).zip(self.status.address_space);
        let own = OwnLimits { cpu, address_space, is_init: self.status.is_init };
        (own != OwnLimits::default()).then_some(own)
    }

    /// Reads `status`. A file that would take long is not read: its values are unknown then, not those of before. Nothing
    /// if the process has ended.
    fn read_status(&mut self, row: &ProcessRow, files: &mut Files) -> Option<Status> {
        let mut status = files.status(row, &mut self.status_file);
        // The first thread has ended: its status has no memory.
        let ended = status.as_ref().is_ok_and(|status| status.anon.is_none());
        if ended && row.threads > 1 && row.rss > Bytes::ZERO {
            status = files.status_of_thread(row, &mut self.status_file).or(status);
        }
        self.withheld = status.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        if self.withheld { Some(Status::default()) } else { status.ok() }
    }

    /// Takes the result of the I/O request; nothing if an earlier read hangs.
    pub(super) fn take_io(&mut self, answer: Option<io::Result<Io>>) {
        match answer {
            Some(Ok(io)) => (self.io, self.io_refused) = (Some(io), false),
            Some(Err(error)) => self.io_refused |= !has_exited(&error),
            None => self.io_refused = true,
        }
    }

    /// Whether the kernel does not show its I/O or its descriptors.
    pub(super) const fn restricted(&self) -> bool {
        self.io_refused || self.files_refused
    }

    /// Its resident memory: the sum of its parts, so that no part is ever larger than the whole.
    ///
    /// A zombie, and any process before Linux 4.5, has no parts.
    pub(super) fn rss(&self, row: &ProcessRow) -> Bytes {
        let Status { anon: Some(anon), file: Some(file), shmem: Some(shmem), .. } = self.status else {
            return row.rss;
        };
        anon.saturating_add(file).saturating_add(shmem)
    }

    /// Requests the proportional set size if it is due and harmless; returns whether it was requested.
    pub(super) fn request_pss(&mut self, row: &ProcessRow, at: Timestamp, files: &mut Files) -> bool {
        if self.pss_at.is_some_and(|before| at.since(before) < PSS_EVERY) {
            return false;
        }
        self.pss_at = Some(at);
        self.pss = None;
        let Ok(status) = files.status(row, &mut self.status_file) else { return false };
        self.status = status;
        let small = self.status.anon.is_some_and(|anon| anon < PSS_LIMIT);
        if self.status.signalled || !small || !matches!(row.state, b'R' | b'S') {
            return false;
        }
        files.request_pss(row);
        true
    }
}

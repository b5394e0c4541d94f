//! The status of one process, read through one descriptor of its folder in the process file system.
//!
//! Everything here works in preallocated buffers. The descriptor of an ended process returns `ESRCH`, whichever process
//! has its pid by then.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::handle::Handle;
use crate::host::cgroup::Version;
use crate::host::{clock, process};
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;
use crate::protection::types::step::SignalNumber;

/// Maximum size of a status file: 1.5 KiB are usual, more with many supplementary groups.
const LONGEST: usize = 16 * 1024;
/// Maximum depth of a tree: deeper processes do not count as descendants.
const DEEPEST: usize = 64;
/// How long an ancestor that was read counts for other processes: in a chain of thousands each process has 64 ancestors,
/// which its neighbours have too. A pid is used again after seconds at the earliest.
const ANCESTOR_RETENTION: Duration = Duration::from_millis(50);
/// Maximum number of ancestors that are kept so long.
const MAX_ANCESTORS: usize = 8 * 1024;

/// The process file system, with buffers for reading it.
#[derive(Debug)]
pub(super) struct Proc {
    folder: OwnedFd,
    version: Version,
    buffer: Box<[u8]>,
    group: Box<[u8]>,
    ancestors: Vec<ProcessKey>,
    /// The keys and parents of processes read since `known_since`.
    known: HashMap<u32, (ProcessKey, u32), foldhash::fast::RandomState>,
    known_since: Timestamp,
    page: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessStatus {
    pub(super) key: ProcessKey,
    pub(super) parent: u32,
    /// Whether its last thread has ended.
    pub(super) dead: bool,
    pub(super) kernel: bool,
    pub(super) comm: [u8; 16],
    pub(super) resident: u64,
    /// Real, effective and saved.
    pub(super) users: [u32; 3],
    /// The signals 1 to 31 that it has a handler for, as bits; the lowest is signal 1.
    pub(super) caught: u64,
}

impl ProcessStatus {
    /// Whether it has a handler for the signal.
    pub(super) const fn catches(&self, signal: SignalNumber) -> bool {
        self.caught & (1 << (signal.get() - 1)) != 0
    }
}

/// A short path, written without the allocator.
pub(super) struct Short {
    bytes: [u8; 48],
    length: usize,
}

impl std::fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.length + text.len();
        let Some(room) = self.bytes.get_mut(self.length..end) else { return Err(std::fmt::Error) };
        room.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

impl Short {
    pub(super) fn of(arguments: std::fmt::Arguments<'_>) -> Self {
        let mut short = Self { bytes: [0; 48], length: 0 };
        // Two numbers and a file name always fit.
        let _ = short.write_fmt(arguments);
        short
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Proc {
    /// Opens the process file system at `path`; cgroups are those of the hierarchy of `version`.
    pub(super) fn open(path: &Path, version: Version) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            folder: rustix::fs::open(path, flags, Mode::empty())?,
            version,
            buffer: vec![0; LONGEST].into(),
            group: vec![0; LONGEST].into(),
            ancestors: Vec::with_capacity(DEEPEST),
            known: HashMap::with_capacity_and_hasher(MAX_ANCESTORS, foldhash::fast::RandomState::default()),
            known_since: clock::now(),
            page: process::page_size(),
        })
    }

    /// The descriptor for listing it.
    pub(super) fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    /// Reads one process and its ancestors, and its cgroup where requested, which takes a kernel lock. Its users are those
    /// that `process`, its pidfd, tells, where the kernel can; `status` has them too, and takes a time that grows with its
    /// supplementary groups.
    ///
    /// # Errors
    /// `ESRCH` or `ENOENT` where there is none, `EPROTO` for text that cannot be parsed.
    pub(super) fn look(
        &mut self,
        pid: u32,
        group: bool,
        process: Option<&Handle>,
    ) -> Result<ProcessStatus, Errno> {
        let told = process.and_then(Handle::users);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own =
            rustix::fs::openat(&self.folder, Short::of(format_args!("{pid}")).bytes(), flags, Mode::empty())?;
        let text = read(&own, b"stat", &mut self.buffer)?;
        let stat = process::stat(text).ok_or(Errno::PROTO)?;
        // A missing mask means no handler, so that no signal is sent that could terminate the process.
        let caught = process::caught(text).unwrap_or(0);
        let mut comm = [0; 16];
        for (place, byte) in comm.iter_mut().zip(stat.comm) {
            *place = *byte;
        }
        let mut found = ProcessStatus {
            key: ProcessKey { pid, start: stat.start },
            parent: stat.parent,
            dead: stat.ended(),
            kernel: stat.kernel,
            comm,
            resident: stat.rss_pages.saturating_mul(self.page),
            users: [0; 3],
            caught,
        };
        // The first thread has no memory and no cgroup once it has ended, although the process lives.
        let mut thread = None;
        if stat.first_thread_ended() && !found.dead {
            thread = process::living_thread(&own, None, &mut self.buffer);
            found.resident = thread.map_or(0, |thread| thread.rss_pages).saturating_mul(self.page);
        }
        found.users = match told {
            Some(users) => users,
            None => process::users(read(&own, b"status", &mut self.buffer)?).ok_or(Errno::PROTO)?,
        };
        let file = match thread {
            Some(thread) => Short::of(format_args!("task/{}/cgroup", thread.id)),
            None => Short::of(format_args!("cgroup")),
        };
        let length = if group { read(&own, file.bytes(), &mut self.group)?.len() } else { 0 };
        self.group[length..].fill(0);
        self.climb(found.key, found.parent);
        Ok(found)
    }

    /// Reads the key and the parent of one process, and whether it has ended.
    pub(super) fn glance(&mut self, pid: u32) -> Result<(ProcessKey, u32, bool), Errno> {
        let path = Short::of(format_args!("{pid}/stat"));
        let stat = process::stat(read(&self.folder, path.bytes(), &mut self.buffer)?).ok_or(Errno::PROTO)?;
        Ok((ProcessKey { pid, start: stat.start }, stat.parent, stat.ended()))
    }

    /// The cgroup of the process that was read last.
    pub(super) fn group(&self) -> Option<&str> {
        let text = self.group.split(|byte| *byte == 0).next()?;
        group_of(text, self.version)
    }

    /// The ancestors of the process that was read last, its parent first.
    pub(super) fn ancestors(&self) -> &[ProcessKey] {
        &self.ancestors
    }

    fn climb(&mut self, from: ProcessKey, parent: u32) {
        self.ancestors.clear();
        let now = clock::now();
        if now.since(self.known_since) >= ANCESTOR_RETENTION {
            self.known.clear();
            self.known_since = now;
        }
        let (mut below, mut next) = (from, parent);
        while next > 0 && self.ancestors.len() < DEEPEST {
            let (key, parent) = match self.known.get(&next) {
                Some(known) => *known,
                None => {
                    let Ok((key, parent, _)) = self.glance(next) else { return };
                    if self.known.len() < MAX_ANCESTORS {
                        self.known.insert(next, (key, parent));
                    }
                    (key, parent)
                }
            };
            // A process that is younger than its child only reuses the parent's pid.
            if key.start > below.start {
                return;
            }
            self.ancestors.push(key);
            (below, next) = (key, parent);
        }
    }
}

/// Reads a file below an open folder, from its start, as far as the buffer goes.
fn read<'b>(folder: &OwnedFd, name: &[u8], buffer: &'b mut [u8]) -> Result<&'b [u8], Errno> {
    let file = rustix::fs::openat(folder, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::read(&file, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    if filled == 0 { Err(Errno::SRCH) } else { Ok(&buffer[..filled]) }
}

/// The path in the hierarchy of `version`, from the text of `/proc/PID/cgroup` (cgroups(7)).
pub(super) fn group_of(text: &[u8], version: Version) -> Option<&str> {
    let mut found = None;
    for line in text.split(|byte| *byte == b'\n') {
        let line = std::str::from_utf8(line).unwrap_or_default();
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let wanted = match version {
            Version::V1 => controllers.split(',').any(|name| name == "memory"),
            Version::V2 => number == "0" && controllers.is_empty(),
        };
        if wanted && path.starts_with('/') {
            found = Some(path.strip_suffix(" (deleted)").unwrap_or(path));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_in_its_hierarchy() {
        let text = b"4:cpu,memory:/a:b\n1:name=systemd:/s\n0::/u (deleted)\n";
        assert_eq!(group_of(text, Version::V1), Some("/a:b"));
        assert_eq!(group_of(text, Version::V2), Some("/u"));
        assert_eq!(group_of(b"4:cpu:/a\n", Version::V1), None);
    }

    #[test]
    fn our_own_process_is_seen() {
        let mut proc = Proc::open(Path::new("/proc"), Version::V2).unwrap();
        let own = std::process::id();
        let process = proc.look(own, true, None).unwrap();
        assert_eq!((process.key.pid, process.kernel, process.dead), (own, false, false));
        assert_eq!(process.users[0], rustix::process::getuid().as_raw());
        assert!(process.resident > 0);
        assert_eq!(proc.ancestors().first().map(|key| key.pid), std::os::unix::process::parent_id().into());
        assert!(proc.look(u32::MAX, false, None).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, text in "[0-9]:[a-z,]{0,9}:[/a-f]{0,20}") {
            let _ = group_of(&bytes, Version::V1);
            let _ = group_of(text.as_bytes(), Version::V2);
        }
    }
}

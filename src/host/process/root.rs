//! The process file system: one descriptor to list it, and one for each file that is kept open.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{self as rfs, AtFlags, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::status_reads::{LARGE, MOST, StatusReads};
use super::{LivingThread, living_thread, number, users};
use crate::host::fs::LARGEST;
use crate::host::pidfd;
use crate::model::lock::lock;
use crate::model::shortage::Shortage;

/// The inode of the initial pid namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const INITIAL: u64 = 0xEFFF_FFFC;

/// Buffer for about 1,000 entries per call.
const LISTING: usize = 32 * 1024;

/// Initial size of a buffer: `stat` has about 350 bytes, `status` 1,500.
const FIRST: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub pid: u32,
    /// Inode number of its folder, which changes when another process gets the pid.
    pub inode: u64,
}

/// The process file system.
#[derive(Debug)]
pub struct ProcRoot {
    path: PathBuf,
    folder: Option<OwnedFd>,
    listing: Vec<MaybeUninit<u8>>,
    /// Whether it is the kernel's: the size of a fixture's folders has no meaning.
    real: bool,
    /// Whether its pids are those of this process's pid namespace.
    own: bool,
    status_reads: Mutex<StatusReads>,
    /// File of the [`Population`], in the initial pid namespace only.
    loadavg: Option<ProcFile>,
}

/// Two numbers, of which at least one changes whenever a process is created or reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Population {
    /// Number of processes and threads on the host; decreases with each that is reaped.
    threads: u64,
    /// The newest pid or thread id; changes with each that is created.
    newest: u64,
}

impl ProcRoot {
    /// The process file system at `path`, opened at the first listing.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            folder: None,
            listing: Vec::new(),
            real: false,
            own: false,
            status_reads: Mutex::default(),
            loadavg: None,
        }
    }

    /// Path of the file system.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file system if it is not open.
    pub fn connect(&mut self) -> io::Result<()> {
        if self.folder.is_none() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rfs::open(&self.path, flags, Mode::empty())?;
            self.real = rfs::fstatfs(&folder)?.f_type == rfs::PROC_SUPER_MAGIC;
            let own = rfs::readlinkat(&folder, "self", Vec::new()).ok();
            let pid = rustix::process::getpid().to_string();
            self.own = self.real && own.is_some_and(|own| own.to_bytes() == pid.as_bytes());
            // In other namespaces, the newest pid is the namespace's own, while the threads are the host's.
            let initial = || {
                rfs::statat(&folder, "self/ns/pid", AtFlags::empty()).ok()?.st_ino.eq(&INITIAL).then_some(())
            };
            let loadavg = self.real.then(initial).flatten().and_then(|()| {
                rfs::openat(&folder, "loadavg", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
            });
            self.loadavg = loadavg.map(ProcFile);
            self.folder = Some(folder);
        }
        Ok(())
    }

    /// Numbers that change with every created and reaped process; nothing if they are not available.
    ///
    /// Reading them takes a fiftieth of the time of listing 300 processes.
    pub fn population(&self, buffer: &mut Vec<u8>) -> Option<Population> {
        population(self.loadavg.as_ref()?.read(buffer).ok()?)
    }

    /// Lists every process, sorted by pid, into `found`, which is cleared first.
    pub fn list(&mut self, found: &mut Vec<Listed>) -> io::Result<()> {
        found.clear();
        self.connect()?;
        let folder = self.folder.as_ref().ok_or(Errno::BADF)?;
        rfs::seek(folder, SeekFrom::Start(0))?;
        self.listing.resize(LISTING, MaybeUninit::uninit());
        let mut entries = RawDir::new(folder, &mut self.listing);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let pid = number(entry.file_name().to_bytes()).and_then(|pid| u32::try_from(pid).ok());
            if let Some(pid) = pid {
                found.push(Listed { pid, inode: entry.ino() });
            }
        }
        found.sort_unstable_by_key(|listed| listed.pid);
        Ok(())
    }

    /// Opens a file of one process.
    ///
    /// # Errors
    /// Errors of the operating system; [`has_exited`] recognizes the end of the process.
    pub fn open(&self, pid: u32, name: &str) -> io::Result<ProcFile> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(ProcFile(rfs::openat(self.folder()?, format!("{pid}/{name}"), flags, Mode::empty())?))
    }

    /// Opens, reads and closes a file of one process.
    ///
    /// # Errors
    /// As [`ProcRoot::open`] and [`ProcFile::read`].
    pub fn read<'b>(&self, pid: u32, name: &str, buffer: &'b mut Vec<u8>) -> io::Result<&'b [u8]> {
        self.open(pid, name)?.read(buffer)
    }

    /// The owner of a process's folder: its effective user, or root if the process is not dumpable.
    pub fn uid(&self, pid: u32) -> io::Result<u32> {
        Ok(rfs::statat(self.folder()?, format!("{pid}"), AtFlags::empty())?.st_uid)
    }

    /// A thread that has not ended, of a process whose first one has; `known` is inspected first.
    pub fn living_thread(&self, pid: u32, known: Option<u32>, buffer: &mut Vec<u8>) -> Option<LivingThread> {
        buffer.resize(buffer.len().max(FIRST), 0);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let process = rfs::openat(self.folder().ok()?, format!("{pid}"), flags, Mode::empty()).ok()?;
        living_thread(process, known, buffer)
    }

    /// Opens a file about the memory of a process whose first thread has ended: that of a living thread.
    ///
    /// # Errors
    /// As [`ProcRoot::open`]; `ESRCH` if no thread is found.
    pub fn open_of_thread(&self, pid: u32, name: &str, buffer: &mut Vec<u8>) -> io::Result<ProcFile> {
        let thread = self.living_thread(pid, None, buffer).ok_or(Errno::SRCH)?;
        self.open(pid, &format!("task/{}/{name}", thread.id))
    }

    /// Reads the first `most` bytes of a file about the memory of a process, such as `cmdline`; that of a living thread if
    /// the first one has ended.
    ///
    /// # Errors
    /// As [`ProcRoot::open`] and [`ProcFile::read_first`].
    pub fn read_memory<'b>(
        &self,
        pid: u32,
        name: &str,
        buffer: &'b mut Vec<u8>,
        most: usize,
    ) -> io::Result<&'b [u8]> {
        let first = self.open(pid, name).and_then(|file| file.fill(buffer, most));
        let filled = match first {
            Err(error) if has_exited(&error) => self.open_of_thread(pid, name, buffer)?.fill(buffer, most)?,
            filled => filled?,
        };
        Ok(&buffer[..filled.min(most)])
    }

    /// Begins a sample: [`ProcRoot::status`] bounds what all reads of one sample take.
    pub fn begin_sample(&self) {
        lock(&self.status_reads).begin();
    }

    /// Reads `status` of a process of `user`, through `file` if it is open, for a caller that must not be delayed.
    ///
    /// # Errors
    /// As [`ProcRoot::read`]; `WouldBlock` for a file that is large, or could be after others of this user were.
    pub fn status<'b>(
        &self,
        (pid, user): (u32, u32),
        file: Option<&ProcFile>,
        buffer: &'b mut Vec<u8>,
    ) -> io::Result<&'b [u8]> {
        let mut reads = lock(&self.status_reads);
        if !reads.allows(pid, user) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let filled = match file {
            Some(file) => file.fill(buffer, LARGE),
            None => self.open(pid, "status")?.fill(buffer, LARGE),
        }?;
        reads.read(pid, user, filled);
        if filled >= LARGE { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(&buffer[..filled]) }
    }

    /// The processes whose `status` this sample left out, by user.
    pub fn status_shortages(&self) -> Vec<Shortage> {
        let left_out = lock(&self.status_reads).left_out();
        let of = |(user, left_out)| Shortage {
            limit: "status_reads",
            user: Some(user),
            left_out,
            most: MOST as u64,
        };
        left_out.into_iter().map(of).collect()
    }

    /// The real and the effective user of a process; `user` is its owner as far as it is known.
    ///
    /// # Errors
    /// As [`ProcRoot::status`], which is read where the kernel does not tell the users otherwise (before Linux 6.13).
    pub fn users(&self, pid: u32, user: u32, buffer: &mut Vec<u8>) -> io::Result<[u32; 2]> {
        let known = i32::try_from(pid).ok().and_then(Pid::from_raw).filter(|_| self.own);
        let process = known.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some([real, effective, _]) = process.and_then(|process| pidfd::users(process.as_fd())) {
            return Ok([real, effective]);
        }
        let [real, effective, _] = users(self.status((pid, user), None, buffer)?).ok_or(Errno::PROTO)?;
        Ok([real, effective])
    }

    /// The target of a symbolic link of one process, such as `exe`; that of a living thread if the first one has ended.
    pub fn link(&self, pid: u32, name: &str) -> io::Result<String> {
        let of = |path: String| rfs::readlinkat(self.folder()?, path, Vec::new()).map_err(io::Error::from);
        let target = match of(format!("{pid}/{name}")) {
            Err(error) if has_exited(&error) => {
                let thread = self.living_thread(pid, None, &mut Vec::new()).ok_or(error)?;
                of(format!("{pid}/task/{}/{name}", thread.id))?
            }
            target => target?,
        };
        Ok(lossy(&target))
    }

    /// Number of descriptors that a process has open.
    ///
    /// Since 6.2 the kernel reports the number as the folder's size; before, and in fixtures, the entries are counted.
    pub fn open_files(&self, pid: u32) -> io::Result<u64> {
        let path = format!("{pid}/fd");
        if self.real
            && let Ok(size) = u64::try_from(rfs::statat(self.folder()?, &path, AtFlags::empty())?.st_size)
            && size > 0
        {
            return Ok(size);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rfs::openat(self.folder()?, &path, flags, Mode::empty())?;
        let mut listing = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(folder, &mut listing);
        let mut count = 0;
        while let Some(entry) = entries.next() {
            if number(entry?.file_name().to_bytes()).is_some() {
                count += 1;
            }
        }
        Ok(count)
    }

    /// Whether its pids are those of this process's pid namespace, so that system calls take them.
    pub(super) const fn has_own_pids(&self) -> bool {
        self.own
    }

    pub(super) fn folder(&self) -> io::Result<&OwnedFd> {
        self.folder.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))
    }
}

/// An open file of one process.
#[derive(Debug)]
pub struct ProcFile(OwnedFd);

impl ProcFile {
    /// Reads the whole file from its start; with a single call if the buffer is larger than the content.
    ///
    /// The kernel generates the content at each call, so that a second call
    /// to find the end would double the cost.
    ///
    /// # Errors
    /// Errors of the operating system; `ESRCH` also for empty content.
    pub fn read<'b>(&self, buffer: &'b mut Vec<u8>) -> io::Result<&'b [u8]> {
        let filled = self.fill(buffer, LARGEST)?;
        if filled >= LARGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("more than {LARGEST} bytes")));
        }
        Ok(&buffer[..filled])
    }

    /// Reads the first `most` bytes.
    ///
    /// # Errors
    /// As for [`ProcFile::read`], except the error about length.
    pub fn read_first<'b>(&self, buffer: &'b mut Vec<u8>, most: usize) -> io::Result<&'b [u8]> {
        let filled = self.fill(buffer, most)?;
        Ok(&buffer[..filled.min(most)])
    }

    /// Fills `buffer` from the start, until the end or at least `most` bytes.
    fn fill(&self, buffer: &mut Vec<u8>, most: usize) -> io::Result<usize> {
        if buffer.len() < FIRST {
            buffer.resize(FIRST, 0);
        }
        let mut filled = 0;
        loop {
            match rustix::io::pread(&self.0, &mut buffer[filled..], filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            if filled < buffer.len() || filled >= most {
                break;
            }
            buffer.resize(filled * 2, 0);
        }
        if filled == 0 { Err(Errno::SRCH.into()) } else { Ok(filled) }
    }
}

/// Parses `/proc/loadavg`: three averages, running/all, newest.
fn population(text: &[u8]) -> Option<Population> {
    let mut fields = text.strip_suffix(b"\n")?.split(|byte| *byte == b' ').skip(3);
    let threads = fields.next()?.split(|byte| *byte == b'/').nth(1)?;
    Some(Population { threads: number(threads)?, newest: number(fields.next()?)? })
}

/// Whether an error means that the process has ended.
pub fn has_exited(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::SRCH | Errno::NOENT))
}

fn lossy(text: &CStr) -> String {
    String::from_utf8_lossy(text.to_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::process::testing::{Process, Tree};

    #[test]
    fn only_numbers_are_processes_and_they_are_sorted() {
        let tree = Tree::new();
        for pid in [300, 7, 41] {
            tree.add(&Process::new(pid, "a"));
        }
        std::fs::create_dir(tree.proc().join("sys")).unwrap();
        std::fs::write(tree.proc().join("99999999999999"), "").unwrap();
        let mut root = ProcRoot::new(tree.proc());
        let mut found = Vec::new();
        for _ in 0..2 {
            root.list(&mut found).unwrap();
            assert_eq!(found.iter().map(|listed| listed.pid).collect::<Vec<_>>(), [7, 41, 300]);
        }
    }

    #[test]
    fn starts_and_exits_change_the_population() {
        let of = |text: &str| population(text.as_bytes());
        let before = of("0.33 1.21 1.29 1/520 22221\n");
        assert_eq!(before, of("9.99 1.21 1.29 7/520 22221\n"));
        assert_ne!(before, of("0.33 1.21 1.29 1/519 22221\n"));
        assert_ne!(before, of("0.33 1.21 1.29 1/520 22222\n"));
        assert!(before.is_some());
        for damaged in ["", "0.33 1.21 1.29 1/520 22221", "0.33 1.21 1.29 520 2\n", "0.3 1.2 1.2 1/5\n"] {
            assert_eq!(of(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn a_fixture_has_no_population() {
        let tree = Tree::new();
        std::fs::write(tree.proc().join("loadavg"), "0.33 1.21 1.29 1/520 22221\n").unwrap();
        let mut root = ProcRoot::new(tree.proc());
        root.connect().unwrap();
        assert_eq!(root.population(&mut Vec::new()), None);
    }

    #[test]
    fn files_are_read_completely_and_an_empty_one_means_an_exited_process() {
        let tree = Tree::new();
        tree.add(
            &Process::new(5, "a")
                .file("status", &"x".repeat(9000))
                .file("io", "")
                .file("fd/0", "")
                .file("fd/3", ""),
        );
        let mut root = ProcRoot::new(tree.proc());
        root.connect().unwrap();
        let mut buffer = Vec::new();
        assert_eq!(root.read(5, "status", &mut buffer).unwrap().len(), 9000);
        assert!(has_exited(&root.read(5, "io", &mut buffer).unwrap_err()));
        assert!(has_exited(&root.read(6, "stat", &mut buffer).unwrap_err()));
        assert_eq!(root.open_files(5).unwrap(), 2);
    }
}

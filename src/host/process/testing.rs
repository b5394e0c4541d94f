//! Process trees for tests, in the kernel's formats.

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::host::roots::Roots;
use crate::model::time::Timestamp;

/// This many seconds after a day of a host with the boot time of [`Tree`].
pub(crate) fn at(second: u64) -> Timestamp {
    let up = Duration::from_secs(86_400 + second);
    Timestamp::new(up, Duration::from_secs(1_700_000_000) + up)
}

/// A fixture root with processes in it.
#[derive(Debug)]
pub(crate) struct Tree(TempDir);

impl Tree {
    /// A fixture without processes, with a `/proc/stat`.
    pub(crate) fn new() -> Self {
        let tree = Self(TempDir::new().unwrap());
        std::fs::create_dir(tree.proc()).unwrap();
        std::fs::write(
            tree.proc().join("stat"),
            "cpu 1 2\nbtime 1700000000\nprocesses 4321\nprocs_running 1\n",
        )
        .unwrap();
        std::fs::create_dir(tree.0.path().join("cgroup")).unwrap();
        std::fs::write(tree.0.path().join("cgroup/cgroup.controllers"), "memory\n").unwrap();
        // The user who runs the tests owns the fixture.
        let uid = rustix::process::getuid().as_raw();
        std::fs::write(tree.0.path().join("passwd"), format!("tester:x:{uid}:0::/:/bin/sh\n")).unwrap();
        tree
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots::under(self.0.path())
    }

    pub(crate) fn proc(&self) -> PathBuf {
        self.0.path().join("proc")
    }

    /// Adds a process, or writes its files again in place.
    pub(crate) fn add(&self, process: &Process) {
        let folder = self.proc().join(process.pid.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::create_dir_all(self.group(&process.cgroup)).unwrap();
        let mut files = vec![
            ("stat".to_owned(), process.stat().into_bytes()),
            ("cgroup".to_owned(), format!("0::{}\n", process.cgroup).into_bytes()),
        ];
        files.extend(process.files.iter().cloned());
        for (name, text) in files {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        if let Some(target) = &process.exe {
            let _ = std::fs::remove_file(folder.join("exe"));
            std::os::unix::fs::symlink(target, folder.join("exe")).unwrap();
        }
    }

    /// The folder of a cgroup.
    pub(crate) fn group(&self, path: &str) -> PathBuf {
        self.0.path().join("cgroup").join(path.trim_start_matches('/'))
    }

    /// Ends a process: reading an open descriptor returns no bytes, where the kernel returns ESRCH.
    pub(crate) fn end(&self, pid: u32) {
        let folder = self.proc().join(pid.to_string());
        for entry in std::fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            // Not through the link `exe`, whose target may be a program of this machine.
            if entry.file_type().unwrap().is_file() {
                std::fs::write(entry.path(), "").unwrap();
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// One process of a fixture.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) comm: String,
    pub(crate) parent: u32,
    pub(crate) session: u32,
    pub(crate) terminal: i32,
    pub(crate) state: char,
    pub(crate) flags: u64,
    pub(crate) cpu: u64,
    pub(crate) faults: u64,
    pub(crate) start: u64,
    pub(crate) pages: u64,
    pub(crate) threads: u64,
    pub(crate) cgroup: String,
    pub(crate) exe: Option<String>,
    pub(crate) files: Vec<(String, Vec<u8>)>,
}

impl Process {
    /// A sleeping child of init, started at its pid's number of ticks.
    pub(crate) fn new(pid: u32, comm: &str) -> Self {
        Self {
            pid,
            comm: comm.to_owned(),
            parent: u32::from(pid != 1),
            session: pid,
            terminal: 0,
            state: 'S',
            flags: 0x40_0000,
            cpu: 0,
            faults: 0,
            start: u64::from(pid),
            pages: 10,
            threads: 1,
            cgroup: "/user.slice".to_owned(),
            exe: None,
            files: Vec::new(),
        }
    }

    pub(crate) fn parent(mut self, parent: u32) -> Self {
        self.parent = parent;
        self
    }

    pub(crate) fn cgroup(mut self, path: &str) -> Self {
        path.clone_into(&mut self.cgroup);
        self
    }

    pub(crate) fn pages(mut self, pages: u64) -> Self {
        self.pages = pages;
        self
    }

    pub(crate) fn cpu(mut self, ticks: u64) -> Self {
        self.cpu = ticks;
        self
    }

    pub(crate) fn start(mut self, start: u64) -> Self {
        self.start = start;
        self
    }

    pub(crate) fn exe(mut self, target: &str) -> Self {
        self.exe = Some(target.to_owned());
        self
    }

    pub(crate) fn file(mut self, name: &str, text: &str) -> Self {
        self.files.retain(|(other, _)| other != name);
        self.files.push((name.to_owned(), text.as_bytes().to_vec()));
        self
    }

    /// `status` with these KiB of anonymous, file and shared memory, and this peak in KiB.
    pub(crate) fn memory(self, anon: u64, file: u64, shmem: u64, peak: u64) -> Self {
        let text = format!(
            "Name:\tx\nVmHWM:\t{peak} kB\nRssAnon:\t{anon} kB\nRssFile:\t{file} kB\nRssShmem:\t{shmem} kB\n\
             VmSwap:\t0 kB\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n"
        );
        self.file("status", &text).pages((anon + file + shmem) / 4)
    }

    /// One of its threads, with this state and these resident pages.
    pub(crate) fn thread(self, id: u32, state: char, pages: u64) -> Self {
        let thread = Self { pid: id, state, pages, ..self.clone() };
        self.file(&format!("task/{id}/stat"), &thread.stat())
    }

    pub(crate) fn io(self, read: u64, written: u64) -> Self {
        self.file(
            "io",
            &format!("rchar: 1\nread_bytes: {read}\nwrite_bytes: {written}\ncancelled_write_bytes: 0\n"),
        )
    }

    fn stat(&self) -> String {
        let Self { pid, comm, parent, session, terminal, state, flags, .. } = self;
        let Self { cpu, faults, start, pages, threads, .. } = self;
        format!(
            "{pid} ({comm}) {state} {parent} {session} {session} {terminal} -1 {flags} 9 0 {faults} 0 {cpu} 0 0 0 20 0 \
             {threads} 0 {start} 8081408 {pages} 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"
        )
    }
}

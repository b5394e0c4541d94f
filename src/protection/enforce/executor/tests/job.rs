//! A process of the tests; whoever is left in its session, where it made one, is killed at the end.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::host::clock;
use crate::host::process;
use crate::model::ids::ProcessKey;

pub(super) struct Job {
    child: Child,
    output: BufReader<ChildStdout>,
    pub(super) key: ProcessKey,
}

/// What a process of the system is now; nothing where there is none.
pub(super) fn stat(pid: u32) -> Option<(ProcessKey, u8, u32)> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = process::stat(&text)?;
    Some((ProcessKey { pid, start: stat.start }, stat.state, stat.session))
}

pub(super) fn alive(key: ProcessKey) -> bool {
    stat(key.pid).is_some_and(|(now, state, _)| now == key && !matches!(state, b'Z' | b'X'))
}

impl Job {
    /// Starts a command.
    pub(super) fn start(command: &[&str]) -> Self {
        Self::start_as(command, None)
    }

    #[expect(clippy::disallowed_methods, reason = "the tests' own processes")]
    pub(super) fn start_as(command: &[&str], user: Option<u32>) -> Self {
        let mut starter = Command::new(command[0]);
        starter.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::piped());
        if let Some(user) = user {
            starter.uid(user);
        }
        let mut child = starter.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let key = stat(child.id()).unwrap().0;
        Self { child, output, key }
    }

    /// A Python program that makes a session of its own first.
    pub(super) fn python(program: &str) -> Self {
        let program = format!(
            "import os, signal, sys, time\nos.setsid()\ndef say(x): os.write(1, (str(x) + '\\n').encode())\n{program}"
        );
        Self::start(&["python3", "-S", "-c", &program])
    }

    /// The next line that it prints.
    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(super) fn alive(&self) -> bool {
        alive(self.key)
    }

    /// Waits for its end and reaps it.
    pub(super) fn reap(&mut self) {
        self.child.wait().unwrap();
    }

    /// The processes of its session that have not ended.
    pub(super) fn session(&self) -> Vec<u32> {
        let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            entry.unwrap().file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        });
        pids.filter(|pid| {
            stat(*pid)
                .is_some_and(|(_, state, session)| session == self.key.pid && !matches!(state, b'Z' | b'X'))
        })
        .collect()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        for _ in 0..20 {
            let left = self.session();
            for pid in &left {
                let pid = rustix::process::Pid::from_raw(i32::try_from(*pid).unwrap()).unwrap();
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            if left.is_empty() {
                break;
            }
        }
        let _ = self.child.wait();
    }
}

/// Waits until something holds.
#[track_caller]
pub(super) fn until(what: &str, mut check: impl FnMut() -> bool) {
    let begun = clock::now();
    while !check() {
        assert!(clock::now().since(begun) < Duration::from_secs(20), "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

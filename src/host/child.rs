//! Starts and stops helper processes of the daemon.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::process::Signal;

use super::{clock, poll};
use crate::model::lock::lock;
use crate::model::time::Timestamp;

/// The helpers that were started and not reaped.
static HELPERS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Whether a child of this process is a helper, and not a process that it has adopted ([`super::job::adopt_orphans`]).
pub fn is_helper(pid: u32) -> bool {
    lock(&HELPERS).contains(&pid)
}

/// How to start a copy of this program, or another one, as a helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCommand {
    pub program: PathBuf,
    /// Arguments before those of the helper.
    pub arguments: Vec<OsString>,
}

impl WorkerCommand {
    /// The running program's own file, with a subcommand.
    ///
    /// # Errors
    /// The operating system's error if the file cannot be determined.
    pub fn own(subcommand: &str) -> io::Result<Self> {
        Ok(Self { program: std::env::current_exe()?, arguments: vec![subcommand.into()] })
    }
}

/// A helper process that runs, or has exited and is not reaped yet.
///
/// Dropping it does not end the process: the code that started it decides how it ends.
#[derive(Debug)]
pub struct Helper {
    child: Child,
}

impl Helper {
    /// Starts a helper with pipes to its input and output; its error output is that of the daemon.
    #[expect(clippy::disallowed_methods, reason = "this is where helpers are started")]
    pub fn start(
        command: &WorkerCommand,
        arguments: &[OsString],
    ) -> io::Result<(Self, Option<ChildStdin>, Option<ChildStdout>)> {
        // Nobody may see it before it is known as a helper.
        let mut helpers = lock(&HELPERS);
        let mut child = Command::new(&command.program)
            .args(&command.arguments)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        helpers.insert(child.id());
        drop(helpers);
        let (input, output) = (child.stdin.take(), child.stdout.take());
        Ok((Self { child }, input, output))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it. It is an unreaped child, so that the pid cannot belong to another process.
    pub fn kill(&mut self) {
        // Fails only if it was already reaped.
        let _ = self.child.kill();
    }

    /// Its exit status, if it has exited; reaps it.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let mut helpers = lock(&HELPERS);
        let status = self.child.try_wait().ok().flatten();
        if status.is_some() {
            helpers.remove(&self.child.id());
        }
        status
    }
}

/// Runs a helper that exits by itself, and returns its output.
///
/// # Errors
/// Errors of the operating system; `TimedOut` if it takes longer than `patience`, `InvalidData` if its output exceeds
/// `largest` bytes. It is killed in both cases.
pub fn read_output(
    command: &WorkerCommand,
    arguments: &[OsString],
    largest: usize,
    patience: Duration,
) -> io::Result<Vec<u8>> {
    let (mut helper, input, output) = Helper::start(command, arguments)?;
    let output =
        output.map_or(Ok(Vec::new()), |output| read_until(output, largest, clock::now().plus(patience)));
    if output.is_err() {
        helper.kill();
    }
    drop(input);
    // It has closed its output, or was killed; one in uninterruptible sleep is left until the daemon ends.
    for _ in 0..100 {
        if helper.ended().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    output
}

fn read_until(mut output: ChildStdout, largest: usize, deadline: Timestamp) -> io::Result<Vec<u8>> {
    let mut received = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let left = deadline.since(clock::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if poll::events(&output, PollFlags::IN, left)?.is_empty() {
            continue;
        }
        match output.read(&mut chunk)? {
            0 => return Ok(received),
            read if received.len() + read > largest => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("more than {largest} bytes")));
            }
            read => received.extend_from_slice(&chunk[..read]),
        }
    }
}

/// Gives the calling process the lowest priority, and makes it the first to be killed when memory runs out.
pub fn step_back(proc: &Path) {
    // Both are optional: if one is denied, the work is done nevertheless.
    let _ = rustix::process::setpriority_process(None, 19);
    let _ = std::fs::write(proc.join("self/oom_score_adj"), "1000");
}

/// Asks the kernel to kill the calling process when the thread that started it ends.
pub fn die_with_parent() {
    // If this fails, the end of the input pipe still reports the end of the parent.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
}

/// Ends the calling process at once, without running destructors of libraries that other threads may still be in.
pub fn end_at_once() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
}

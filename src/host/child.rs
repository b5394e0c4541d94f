//! Starting and ending a helper process of our own.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use super::clock;
use crate::model::time::Timestamp;

/// How to start a copy of this program as a helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The program.
    pub program: PathBuf,
    /// Arguments before the helper's own.
    pub arguments: Vec<OsString>,
}

impl WorkerCommand {
    /// This program's own file, with a subcommand.
    ///
    /// # Errors
    /// The operating system's, where it does not tell which file that is.
    pub fn own(subcommand: &str) -> io::Result<Self> {
        Ok(Self { program: std::env::current_exe()?, arguments: vec![subcommand.into()] })
    }
}

/// A helper that runs, or ran and is still to be reaped.
///
/// It is not ended when this is dropped: whoever started it decides how.
#[derive(Debug)]
pub struct Helper {
    child: Child,
}

impl Helper {
    /// Starts one with pipes to its input and output; its error output goes where ours goes.
    ///
    /// # Errors
    /// The operating system's.
    #[expect(clippy::disallowed_methods, reason = "this is where helpers are started")]
    pub fn start(
        command: &WorkerCommand,
        arguments: &[OsString],
    ) -> io::Result<(Self, Option<ChildStdin>, Option<ChildStdout>)> {
        let mut child = Command::new(&command.program)
            .args(&command.arguments)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        Ok((Self { child }, input, output))
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it. It is our unreaped child, so that the pid cannot be another's.
    pub fn kill(&mut self) {
        // Only fails where it has already been reaped.
        let _ = self.child.kill();
    }

    /// How it ended, where it has; reaps it.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

/// What a helper that ends by itself says on its output.
///
/// # Errors
/// The operating system's; `TimedOut` where it takes longer than `patience`, `InvalidData` where it says more than
/// `largest` bytes. It is killed then.
pub fn read_output(
    command: &WorkerCommand,
    arguments: &[OsString],
    largest: usize,
    patience: Duration,
) -> io::Result<Vec<u8>> {
    let (mut helper, input, output) = Helper::start(command, arguments)?;
    let heard =
        output.map_or(Ok(Vec::new()), |output| read_until(output, largest, clock::now().plus(patience)));
    if heard.is_err() {
        helper.kill();
    }
    drop(input);
    // It has closed its output, or was killed; one that sleeps uninterruptibly is left to the end of the daemon.
    for _ in 0..100 {
        if helper.ended().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    heard
}

fn read_until(mut output: ChildStdout, largest: usize, deadline: Timestamp) -> io::Result<Vec<u8>> {
    let mut said = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let left = deadline.since(clock::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut waited = [PollFd::new(&output, PollFlags::IN)];
        match rustix::event::poll(&mut waited, Some(&left)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match output.read(&mut chunk)? {
            0 => return Ok(said),
            read if said.len() + read > largest => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("more than {largest} bytes")));
            }
            read => said.extend_from_slice(&chunk[..read]),
        }
    }
}

/// Lets everything else go first, and be the first to die where memory runs out: for helpers whose work can wait.
pub fn step_back(proc: &Path) {
    // Each is a courtesy: where it is refused, the work is done all the same.
    let _ = rustix::process::setpriority_process(None, 19);
    let _ = std::fs::write(proc.join("self/oom_score_adj"), "1000");
}

/// Asks the kernel to kill the calling process once the thread that started it has ended.
pub fn die_with_parent() {
    // Where it fails, the end of the input pipe still says so.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
}

/// Ends the calling process at once, without the destructors of libraries that other threads are still in.
pub fn end_at_once() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
}

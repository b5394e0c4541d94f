//! Starting and ending a helper process of our own.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::Signal;

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

/// Asks the kernel to kill the calling process once the thread that started it has ended.
pub fn die_with_parent() {
    // Where it fails, the end of the input pipe still says so.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
}

/// Ends the calling process at once, without the destructors of libraries that other threads are still in.
pub fn end_at_once() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
}

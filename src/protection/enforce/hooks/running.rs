//! Runs one hook from its start to its end, within its timeout.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use super::check;
use super::protocol::{Ending, HookRequest, HookResult, OUTPUT, SLOWEST, environment};
use crate::host::clock;
use crate::model::time::Timestamp;

/// Time for which the output that a hook wrote just before its end is still read.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_millis(50);
/// Time limit for the end of killed processes; those in uninterruptible sleep take longer and are abandoned.
const SWEEP_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of searches for processes that a hook left behind.
const SWEEPS: usize = 20;

/// Runs one hook; the other side closes `given_up` when the answer is no longer needed.
pub(super) fn run(request: &HookRequest, proc: &Path, given_up: BorrowedFd<'_>) -> HookResult {
    let begun = clock::now();
    let mut output = Vec::with_capacity(OUTPUT);
    let ending = match start(request) {
        Err(why) => Ending::Refused(why),
        Ok((mut child, pipe)) => {
            ordinary(&child, proc);
            let limit = Duration::from_millis(request.timeout_ms.min(SLOWEST));
            let ending = attend(&mut child, &pipe, given_up, begun, limit, &mut output);
            sweep(&mut child, proc);
            ending
        }
    };
    HookResult { id: request.id, ending, output: String::from_utf8_lossy(&output).into_owned() }
}

#[expect(clippy::disallowed_methods, reason = "this is where hooks are started")]
fn start(request: &HookRequest) -> Result<(Child, OwnedFd), String> {
    let program = check::program(&request.program)?;
    let prepared = (|| {
        // A file in memory: writing to a pipe could block on a hook that does not read.
        let mut input = std::fs::File::from(rustix::fs::memfd_create("hook-input", MemfdFlags::CLOEXEC)?);
        input.write_all(request.input.as_bytes())?;
        rustix::fs::seek(&input, rustix::fs::SeekFrom::Start(0))?;
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&read, true)?;
        Ok::<_, io::Error>((input, read, write))
    })();
    let (input, read, write) =
        prepared.map_err(|error| format!("cannot create the pipes of the hook: {error}"))?;
    let both = write.try_clone().map_err(|error| format!("cannot create the pipes of the hook: {error}"))?;
    let mut command = Command::new(&program);
    command
        .args(&request.arguments)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(environment(&request.input))
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(write))
        .stderr(Stdio::from(both));
    let child = command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    Ok((child, read))
}

/// Removes the daemon's privileges from the hook: the OOM killer prefers it to a job, and it has normal priority.
fn ordinary(child: &Child, proc: &Path) {
    // It may have ended already; where this is refused, it runs like the daemon.
    let _ = std::fs::write(proc.join(child.id().to_string()).join("oom_score_adj"), "0");
    let _ = pid(child).map(|pid| rustix::process::setpriority_process(Some(pid), 0));
}

/// Reads its output until it has ended or its timeout is over.
fn attend(
    child: &mut Child,
    pipe: &OwnedFd,
    given_up: BorrowedFd<'_>,
    begun: Timestamp,
    limit: Duration,
    output: &mut Vec<u8>,
) -> Ending {
    let pidfd = pid(child).and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    let mut open = true;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                if open {
                    wait(given_up, &[pipe.as_fd()], LAST_OUTPUT_TIMEOUT);
                    drain(pipe, output);
                }
                return status
                    .code()
                    .map_or_else(|| Ending::Signalled(status.signal().unwrap_or(0)), Ending::Exited);
            }
            Ok(None) => {}
            Err(error) => return Ending::Refused(format!("cannot wait for the hook: {error}")),
        }
        let left = limit.saturating_sub(clock::now().since(begun));
        if left.is_zero() || closed(given_up) {
            kill_group(child);
            drain(pipe, output);
            return Ending::TimedOut;
        }
        let mut watched: Vec<BorrowedFd<'_>> = pidfd.iter().map(|pidfd| pidfd.as_fd()).collect();
        if open {
            watched.push(pipe.as_fd());
        }
        // Without a pidfd its end is found by polling.
        wait(given_up, &watched, if pidfd.is_some() { left } else { left.min(LAST_OUTPUT_TIMEOUT) });
        open = open && drain(pipe, output);
    }
}

/// Reads the available output, keeps what fits, and returns whether more may follow.
fn drain(pipe: &OwnedFd, output: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 8192];
    // Output that is written faster than it is read is not awaited here.
    for _ in 0..64 {
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => return false,
            Ok(read) => {
                let room = OUTPUT.saturating_sub(output.len()).min(read);
                output.extend_from_slice(&buffer[..room]);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return true,
            Err(_) => return false,
        }
    }
    true
}

/// Waits until one is readable, or the other side closes `closing`.
fn wait(closing: BorrowedFd<'_>, watched: &[BorrowedFd<'_>], limit: Duration) {
    let mut asked = vec![PollFd::from_borrowed_fd(closing, PollFlags::empty())];
    asked.extend(watched.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
    // An interrupted wait only makes the caller check once more.
    let _ = poll(&mut asked, Timespec::try_from(limit).ok().as_ref());
}

/// Whether a pipe is closed by the other side.
fn closed(fd: BorrowedFd<'_>) -> bool {
    crate::host::poll::events(fd, PollFlags::empty(), Duration::ZERO).is_ok_and(|events| !events.is_empty())
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

fn kill_group(child: &Child) {
    if let Some(pid) = pid(child) {
        // It is an unreaped child, so that the number is that of its process group.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Kills and reaps all processes that the hook left: its orphans are children of the helper, in any session.
fn sweep(child: &mut Child, proc: &Path) {
    let begun = clock::now();
    for _ in 0..SWEEPS {
        // Reaps the hook itself too, where it was killed.
        while matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(Some(_))) {}
        let left = children(proc);
        if left.is_empty() || clock::now().since(begun) > SWEEP_TIMEOUT {
            break;
        }
        for pid in left {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }));
    }
    let _ = child.try_wait();
}

/// The children of the helper, by the kernel's list.
fn children(proc: &Path) -> Vec<Pid> {
    let mut text = String::new();
    let own = std::fs::File::open(proc.join("thread-self/children"));
    if own.and_then(|mut file| file.read_to_string(&mut text)).is_err() {
        return Vec::new();
    }
    text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok().and_then(Pid::from_raw)).collect()
}

//! The daemon's side: sends hooks to the helper, and keeps a helper running.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use rustix::event::PollFlags;

use super::protocol::{Ending, HookRequest, HookResult, LONGEST, SLOWEST};
use crate::host::child::{Helper, WorkerCommand};
use crate::host::{clock, poll};
use crate::protection::enforce::executor::BackgroundExecutor;
use crate::protection::types::step::{Finished, Outcome, Step, StepDone, StepError, Ticket, Work};

/// Capacity of the queue of hooks.
const QUEUE: usize = 16;
/// Interval at which an idle helper is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time that the helper may take in addition to the hook.
const EXTRA_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of a hook's output in the sentence of a failure.
const SHORT: usize = 200;

/// Starts hooks through the helper.
#[derive(Debug)]
pub struct Hooks {
    requests: SyncSender<HookRequest>,
    ended: Receiver<Finished>,
    status: Arc<Status>,
}

#[derive(Debug, Default)]
struct Status {
    pid: AtomicU32,
    starts: AtomicU64,
}

impl Hooks {
    /// Starts the helper, and a thread that communicates with it; `proc` is the process file system.
    ///
    /// # Errors
    /// If the thread cannot be started. A helper that cannot be started is tried again.
    pub fn start(command: WorkerCommand, proc: &Path) -> io::Result<Self> {
        let (requests, inbox) = sync_channel(QUEUE);
        let (report, ended) = sync_channel(2 * QUEUE);
        let status = Arc::new(Status::default());
        let arguments = vec![OsString::from("--proc"), proc.as_os_str().to_owned()];
        let mut keeper = Keeper { command, arguments, running: None, status: Arc::clone(&status) };
        let (tell, started) = sync_channel(1);
        let serve = move || {
            // Started here, because the helper ends with the thread that started it.
            keeper.ensure();
            // The caller of `start` waits for it.
            let _ = tell.send(());
            keeper.serve(&inbox, &report);
        };
        std::thread::Builder::new().name("hooks".to_owned()).spawn(serve)?;
        // Starts it now, while memory is free. Where the thread has ended, there is nothing to wait for.
        let _ = started.recv();
        Ok(Self { requests, ended, status })
    }

    /// The helper's pid; absent while none runs.
    pub fn pid(&self) -> Option<u32> {
        Some(self.status.pid.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
    }

    /// Number of helpers started so far, the first one included.
    pub fn starts(&self) -> u64 {
        self.status.starts.load(Ordering::Relaxed)
    }
}

impl BackgroundExecutor for Hooks {
    fn begin(&mut self, ticket: Ticket, step: &Step) -> bool {
        let Work::Hook { hook, input } = &step.work else { return false };
        let request = HookRequest {
            id: ticket.0,
            program: hook.program.clone(),
            arguments: hook.arguments.clone(),
            timeout_ms: u64::try_from(hook.timeout.as_millis()).unwrap_or(SLOWEST).min(SLOWEST),
            input: input.as_ref().to_owned(),
        };
        self.requests.try_send(request).is_ok()
    }

    fn poll(&mut self, finished: &mut Vec<Finished>) {
        finished.extend(self.ended.try_iter());
    }
}

struct Running {
    helper: Helper,
    input: ChildStdin,
    output: ChildStdout,
}

/// The state of the thread.
struct Keeper {
    command: WorkerCommand,
    arguments: Vec<OsString>,
    running: Option<Running>,
    status: Arc<Status>,
}

impl Keeper {
    fn serve(&mut self, inbox: &Receiver<HookRequest>, report: &SyncSender<Finished>) {
        loop {
            match inbox.recv_timeout(CHECK_INTERVAL) {
                Ok(request) => {
                    let (result, output) = match self.request(&request) {
                        Ok(answer) => outcome_of(&answer),
                        Err(error) => {
                            self.stop();
                            (Err(outside(format!("the hook helper failed: {error}"))), String::new())
                        }
                    };
                    let ticket = Ticket(request.id);
                    // Nobody asks any more where the report is full.
                    let _ = report.try_send(Finished { ticket, result, output: output.into() });
                    self.ensure();
                }
                Err(RecvTimeoutError::Timeout) => self.ensure(),
                Err(RecvTimeoutError::Disconnected) => return self.stop(),
            }
        }
    }

    /// Starts a helper where none runs.
    fn ensure(&mut self) {
        if self.running.as_mut().is_some_and(|running| running.helper.ended().is_some()) {
            self.running = None;
            self.status.pid.store(0, Ordering::Relaxed);
        }
        if self.running.is_some() {
            return;
        }
        if let Ok((helper, Some(input), Some(output))) = Helper::start(&self.command, &self.arguments) {
            self.status.pid.store(helper.pid(), Ordering::Relaxed);
            self.status.starts.fetch_add(1, Ordering::Relaxed);
            self.running = Some(Running { helper, input, output });
        }
    }

    fn stop(&mut self) {
        if let Some(Running { mut helper, input, output }) = self.running.take() {
            helper.kill();
            drop((input, output));
            let begun = clock::now();
            while helper.ended().is_none() && clock::now().since(begun) < CHECK_INTERVAL {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.status.pid.store(0, Ordering::Relaxed);
    }

    fn request(&mut self, request: &HookRequest) -> io::Result<HookResult> {
        self.ensure();
        let limit = Duration::from_millis(request.timeout_ms) + EXTRA_TIMEOUT;
        let running = self.running.as_mut().ok_or_else(|| io::Error::other("it cannot be started"))?;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        if line.len() > LONGEST {
            return Err(io::Error::other("there is more to tell than fits"));
        }
        // The helper reads between two requests, so that this blocks only on one that hangs, and then not the
        // executor.
        rustix::io::ioctl_fionbio(&running.input, true)?;
        let begun = clock::now();
        let left = || limit.saturating_sub(clock::now().since(begun));
        write(&mut running.input, &line, left)?;
        let mut answer = Vec::new();
        loop {
            await_fd(&running.output, PollFlags::IN, left)?;
            let mut buffer = [0; 8192];
            let read = running.output.read(&mut buffer)?;
            if read == 0 {
                return Err(io::Error::other("it ended"));
            }
            answer.extend_from_slice(&buffer[..read]);
            if answer.ends_with(b"\n") {
                let answer: HookResult = serde_json::from_slice(&answer)?;
                return if answer.id == request.id {
                    Ok(answer)
                } else {
                    Err(io::Error::other("it answers another"))
                };
            }
            if answer.len() > LONGEST {
                return Err(io::Error::other("its answer is too long"));
            }
        }
    }
}

fn write(pipe: &mut ChildStdin, mut bytes: &[u8], left: impl Fn() -> Duration) -> io::Result<()> {
    while !bytes.is_empty() {
        match pipe.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                await_fd(&*pipe, PollFlags::OUT, &left)?
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until a descriptor has the events `what`.
fn await_fd(fd: impl AsFd, what: PollFlags, left: impl Fn() -> Duration) -> io::Result<()> {
    loop {
        let limit = left();
        if !poll::events(&fd, what, limit)?.is_empty() {
            return Ok(());
        }
        if limit.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

fn outside(what: String) -> StepError {
    StepError::Outside { what: what.into() }
}

/// The result that an answer represents, and the output of the hook.
fn outcome_of(answer: &HookResult) -> (Result<StepDone, StepError>, String) {
    let output = answer.output.clone();
    let first: String =
        output.trim().chars().take(SHORT).map(|c| if c.is_control() { ' ' } else { c }).collect();
    let words = if first.is_empty() { String::new() } else { format!(": {first}") };
    let result = match &answer.ending {
        Ending::Exited(0) => Ok(StepDone { outcome: Outcome::Done, processes: 1 }),
        Ending::Exited(code) => Err(outside(format!("the hook exited with code {code}{words}"))),
        Ending::Signalled(signal) => {
            Err(outside(format!("the hook was terminated by signal {signal}{words}")))
        }
        Ending::TimedOut => Err(outside(format!("the hook exceeded its timeout and was killed{words}"))),
        Ending::Refused(why) => Err(outside(why.clone())),
    };
    (result, output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_a_sentence() {
        let output = |ending, output: &str| {
            let (result, output) = outcome_of(&HookResult { id: 1, ending, output: output.to_owned() });
            assert_eq!(output, output);
            result.map(|done| done.processes).map_err(|error| error.to_string())
        };
        assert_eq!(output(Ending::Exited(0), "fine"), Ok(1));
        let code = output(Ending::Exited(3), "no\nroom\n");
        assert_eq!(code, Err("the hook exited with code 3: no room".to_owned()));
        let late = output(Ending::TimedOut, "");
        assert_eq!(late, Err("the hook exceeded its timeout and was killed".to_owned()));
        assert_eq!(output(Ending::Refused("not ours".to_owned()), ""), Err("not ours".to_owned()));
    }
}

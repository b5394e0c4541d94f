//! Waits without blocking: for processes to end, cgroups to become empty, and checkpoint acknowledgements.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::PollFlags;

use super::checkpoint_file::{self, Connection, Report, Request};
use super::group::OpenGroup;
use super::handle::Handle;
use super::helpers::Token;
use crate::host::child::WorkerCommand;
use crate::host::{clock, poll};
use crate::model::time::Timestamp;

/// The name of the threads that wait for helpers.
const NAME: &str = "checkpoint-file";
/// Interval at which a thread checks whether its result is still awaited, and whether a killed helper has ended.
const ALIVE_INTERVAL: Duration = Duration::from_millis(100);

/// So many times longer than reading whether a cgroup is empty takes, it is not read again: in version 1 all of its
/// descendants are read, of which a user makes any number in a delegated one, and the guard waits for that.
const PAUSE_FACTOR: u32 = 20;

/// The event that is awaited.
#[derive(Debug)]
pub(super) enum Goal {
    /// All of these processes have ended, and the cgroup is empty. `read` is when that was found not to be so last, and how
    /// long it took.
    End { processes: Vec<Handle>, group: Option<OpenGroup>, read: Option<(Timestamp, Duration)> },
    /// A helper process sees a checkpoint acknowledgement, or has touched a file.
    Helper { progress: Receiver<Progress>, _alive: Arc<()> },
}

/// The progress of a wait; `left` is the number of processes that are awaited and have not ended, 0 where only the cgroup is
/// not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Waiting { left: u32 },
    Saving,
    Reached,
    Failed { why: Box<str> },
}

impl Goal {
    /// Evaluates the wait; descriptors of ended processes are closed. The number of those that are left is exact where `count`
    /// is set; otherwise one that is alive suffices, so that a job of thousands costs no more than any other.
    pub(super) fn check(&mut self, count: bool) -> Progress {
        match self {
            Self::End { processes, group, read } => {
                if count {
                    processes.retain(|process| !process.ended());
                }
                while processes.pop_if(|process| process.ended()).is_some() {}
                let left = u32::try_from(processes.len()).unwrap_or(u32::MAX);
                let begun = clock::now();
                let soon = read.is_some_and(|(at, took)| begun.since(at) < took * PAUSE_FACTOR);
                if left > 0 || (soon && !count) {
                    return Progress::Waiting { left: left.max(1) };
                }
                if group.as_ref().is_none_or(OpenGroup::empty) {
                    return Progress::Reached;
                }
                let now = clock::now();
                *read = Some((now, now.since(begun)));
                Progress::Waiting { left: u32::from(!count) }
            }
            Self::Helper { progress, .. } => progress.try_recv().unwrap_or(Progress::Waiting { left: 0 }),
        }
    }
}

/// Starts a helper process for a file of a user, which a thread waits for.
pub(super) fn start(
    token: Token,
    command: Option<&WorkerCommand>,
    request: &Request,
) -> std::io::Result<Goal> {
    let Token { thread, awaited } = token;
    let (tell, progress) = sync_channel(4);
    let alive = Arc::downgrade(&awaited);
    let (command, request) = (command.cloned(), serde_json::to_vec(request)?);
    std::thread::Builder::new().name(NAME.to_owned()).spawn(move || {
        if let Err(error) = relay(command.as_ref(), &request, &alive, &tell) {
            let why = format!("the process for the file failed: {error}").into();
            // Nobody waits for the result any more where it cannot be sent.
            let _ = tell.try_send(Progress::Failed { why });
        }
        drop(thread);
    })?;
    Ok(Goal::Helper { progress, _alive: awaited })
}

/// Passes the reports of a helper on until nobody awaits them, kills it, and waits for its end.
fn relay(
    command: Option<&WorkerCommand>,
    request: &[u8],
    alive: &Weak<()>,
    tell: &SyncSender<Progress>,
) -> std::io::Result<()> {
    let Connection { mut helper, mut input, mut output } = checkpoint_file::connect(command)?;
    let passed = (|| {
        input.write_all(request)?;
        input.write_all(b"\n")?;
        pass_on(&mut output, alive, tell)
    })();
    if let Some(helper) = &mut helper {
        helper.kill();
        // In a file system that does not answer, this is never.
        while helper.ended().is_none() {
            std::thread::sleep(ALIVE_INTERVAL);
        }
    }
    passed
}

fn pass_on(output: &mut File, alive: &Weak<()>, tell: &SyncSender<Progress>) -> std::io::Result<()> {
    let (mut text, mut chunk) = (Vec::new(), [0; 1024]);
    while alive.strong_count() > 0 {
        if poll::events(&*output, PollFlags::IN, ALIVE_INTERVAL)?.is_empty() {
            continue;
        }
        let read = output.read(&mut chunk)?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        text.extend_from_slice(&chunk[..read]);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let report: Report = serde_json::from_slice(&line)?;
            let (progress, last) = match report {
                Report::Saving => (Progress::Saving, false),
                Report::Reached => (Progress::Reached, true),
                Report::Failed(why) => (Progress::Failed { why: why.into() }, true),
                Report::Unreadable { path, error } => {
                    tracing::warn!(%path, %error, "The acknowledgement of a checkpoint cannot be read; the checkpoint does not count as saved.");
                    continue;
                }
            };
            if tell.try_send(progress).is_err() || last {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// A pending step.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) goal: Goal,
    pub(super) begun: Timestamp,
    pub(super) within: Duration,
    pub(super) processes: u32,
}

impl Wait {
    /// Whether its time limit is over.
    pub(super) fn over(&self, now: Timestamp) -> bool {
        now.since(self.begun) >= self.within
    }
}

//! The parent's two threads: one restarts the worker, one reads its lines.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::options::Options;
use super::protocol::{LONGEST, Line, RELEASE, Status};
use super::state::World;
use super::supervisor::{Order, Supervisor, WorkerObservation};
use crate::formats::lines::{LineLimits, Lines};
use crate::host::child::{Helper, WorkerCommand};
use crate::host::{clock, fs, process};
use crate::model::lock::lock;
use crate::model::time::Timestamp;

/// Interval between two checks of the worker.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// If two checks are further apart than this, the daemon itself was stopped, and the silence is not the worker's.
const PAUSED: Duration = Duration::from_millis(1_500);

/// How long the daemon's shutdown waits for the worker to shut NVML down; the source has one second to finish.
const FAREWELL: Duration = Duration::from_millis(900);

/// State that successive keepers of one worker share, so that a reload keeps everything known about the GPUs.
#[derive(Clone, Debug, Default)]
pub struct WorkerState {
    pub world: Arc<Mutex<World>>,
    /// Workers that could not be killed; locked by the keeper that currently runs.
    abandoned: Arc<Mutex<Vec<Helper>>>,
}

type WorkerEntry = (WorkerCommand, PathBuf, WorkerState);

/// One entry for each command and proc path; it grows only when these paths change.
static WORKER_STATES: Mutex<Vec<WorkerEntry>> = Mutex::new(Vec::new());

impl WorkerState {
    /// The state that earlier keepers of this worker left, or a new one.
    pub fn of(command: &WorkerCommand, proc: &Path) -> Self {
        let mut states = lock(&WORKER_STATES);
        let known = states.iter().find(|known| known.0 == *command && known.1 == proc);
        if let Some((.., shared)) = known {
            return shared.clone();
        }
        let shared = Self::default();
        states.push((command.clone(), proc.to_path_buf(), shared.clone()));
        shared
    }
}

/// The source's handle of the keeper's thread.
#[derive(Debug)]
pub struct Keeper {
    requests: Sender<bool>,
    ended: Receiver<()>,
}

impl Keeper {
    /// Starts the thread; it starts the first worker once the previous keeper has stopped its own.
    pub fn start(
        shared: &WorkerState,
        command: WorkerCommand,
        options: Options,
        proc: PathBuf,
        wanted: bool,
    ) -> std::io::Result<Self> {
        let (requests, last_message) = channel();
        let (end, ended) = channel();
        let shared = shared.clone();
        let run = move || {
            let mut abandoned = lock(&shared.abandoned);
            let now = clock::now();
            let mut keeping = Keeping {
                earlier: lock(&shared.world).keeper_started(now),
                world: Arc::clone(&shared.world),
                command,
                options,
                proc,
                supervisor: Supervisor::new(now, wanted),
                worker: None,
                abandoned: std::mem::take(&mut *abandoned),
                ending: false,
                looked: None,
                logged_status: None,
            };
            keeping.run(&last_message);
            *abandoned = std::mem::take(&mut keeping.abandoned);
            drop(abandoned);
            // The receiver may have been dropped.
            let _ = end.send(());
        };
        std::thread::Builder::new().name("gpu-keeper".to_owned()).spawn(run)?;
        Ok(Self { requests, ended })
    }

    /// Tells the thread whether a worker should run.
    pub fn want(&self, wanted: bool) {
        // The thread ends only when this value is dropped.
        let _ = self.requests.send(wanted);
    }

    /// Asks the worker to shut NVML down and waits for it: killing a worker inside a driver call can leave a
    /// GPU unusable.
    ///
    /// If the handle is only dropped, the thread does this on its own.
    pub fn finish(self) {
        let Self { requests, ended } = self;
        drop(requests);
        let _ = ended.recv_timeout(FAREWELL);
    }
}

struct Worker {
    helper: Helper,
    input: Option<ChildStdin>,
    statm: fs::KeptFile,
}

struct Keeping {
    world: Arc<Mutex<World>>,
    command: WorkerCommand,
    options: Options,
    proc: PathBuf,
    supervisor: Supervisor,
    worker: Option<Worker>,
    abandoned: Vec<Helper>,
    /// Restarts under earlier keepers.
    earlier: u64,
    ending: bool,
    looked: Option<Timestamp>,
    /// The NVML status that was logged at the last orderly exit.
    logged_status: Option<Status>,
}

impl Keeping {
    fn run(&mut self, requests: &Receiver<bool>) {
        let mut buffer = Vec::new();
        // Requests may have queued up while the previous keeper waited for its worker to exit.
        loop {
            match requests.try_recv() {
                Ok(wanted) => self.supervisor.want(wanted),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        loop {
            self.step(&mut buffer);
            if self.ending {
                if self.supervisor.released() {
                    return;
                }
                std::thread::sleep(CHECK_INTERVAL / 25);
                continue;
            }
            match requests.recv_timeout(CHECK_INTERVAL) {
                Ok(wanted) => self.supervisor.want(wanted),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.ending = true;
                    self.supervisor.want(false);
                }
            }
        }
    }

    fn step(&mut self, buffer: &mut Vec<u8>) {
        let now = clock::now();
        let elapsed = self.looked.replace(now).map_or(Duration::ZERO, |looked| now.since(looked));
        if elapsed > PAUSED {
            self.supervisor.exclude_pause(elapsed);
            lock(&self.world).exclude_pause(now);
        }
        self.abandoned.retain_mut(|helper| helper.ended().is_none());
        let ended = match &mut self.worker {
            Some(worker) => worker
                .helper
                .ended()
                .map(|status| (status.success(), format!("the GPU worker exited: {status}"))),
            None if self.supervisor.running() => {
                Some((false, "the GPU worker could not be started".to_owned()))
            }
            None => None,
        };
        let observation = {
            let mut world = lock(&self.world);
            world.abandoned = self.abandoned.len();
            WorkerObservation {
                last_message: world.last_message,
                started: world.reported,
                hung: world.hung(now, self.options.interval),
                ended: ended.as_ref().map(|(orderly, _)| *orderly),
                abandoned: self.abandoned.len(),
            }
        };
        if let Some((orderly, why)) = ended {
            self.end(orderly, why);
        }
        let order = self.supervisor.next(now, observation);
        self.carry_out(order, observation);
        let resident = self.worker.as_mut().and_then(|worker| {
            let [_, resident] = process::statm(worker.statm.read(buffer).ok()?)?;
            Some(resident.get())
        });
        let mut world = lock(&self.world);
        world.resident = resident;
        world.restarts = self.earlier + self.supervisor.restarts();
        if self.supervisor.released() && !world.released && !self.ending {
            world.worker_released();
        }
    }

    /// Handles a worker that exited. Without GPUs a worker exits once a minute; only the first exit is logged.
    fn end(&mut self, orderly: bool, why: String) {
        self.worker = None;
        let mut world = lock(&self.world);
        if !world.running {
            return;
        }
        if world.state.status == Status::Ok {
            self.logged_status = None;
        }
        world.worker_ended(orderly, why.clone());
        let status = world.state.status;
        drop(world);
        if self.logged_status.replace(status) != Some(status) || !orderly {
            tracing::info!(why, nvml = status.label(), "The GPU worker exited.");
        }
    }

    fn carry_out(&mut self, order: Order, observation: WorkerObservation) {
        match order {
            Order::Nothing => {}
            Order::Start => self.start(),
            Order::RequestExit => {
                if let Some(worker) = &mut self.worker {
                    // Closing the input makes the worker exit even if its pipe is full.
                    let _ = worker.input.take().map(|mut input| input.write_all(RELEASE));
                }
            }
            Order::Kill => {
                tracing::warn!(
                    reported = observation.started,
                    hung_seconds = observation.hung.map(|hung| hung.as_secs()),
                    calls = lock(&self.world).lasting(),
                    "The GPU worker does not respond; killing it."
                );
                if let Some(worker) = &mut self.worker {
                    worker.helper.kill();
                }
            }
            Order::Abandon => {
                if let Some(worker) = self.worker.take() {
                    tracing::error!(
                        pid = worker.helper.pid(),
                        "The GPU worker is still alive after SIGKILL; abandoning it."
                    );
                    self.abandoned.push(worker.helper);
                }
                lock(&self.world).worker_ended(
                    false,
                    "the GPU worker hangs in the driver and cannot be killed".to_owned(),
                );
            }
        }
    }

    fn start(&mut self) {
        let generation = lock(&self.world).worker_started(clock::now());
        let document = serde_json::to_string(&self.options).map_err(std::io::Error::from);
        match document.and_then(|document| Helper::start(&self.command, &[document.into()])) {
            Ok((helper, input, output)) => {
                let statm = fs::KeptFile::new(self.proc.join(helper.pid().to_string()).join("statm"));
                self.worker = Some(Worker { helper, input, statm });
                let world = Arc::clone(&self.world);
                let read = move || read(output, &world, generation);
                if let (Err(error), Some(worker)) =
                    (std::thread::Builder::new().name("gpu-reader".to_owned()).spawn(read), &mut self.worker)
                {
                    tracing::warn!(%error, "Cannot start the reader thread of the GPU worker; killing the worker.");
                    worker.helper.kill();
                }
            }
            Err(error) => {
                let program = self.command.program.display();
                lock(&self.world)
                    .worker_ended(false, format!("cannot start the GPU worker {program}: {error}"));
            }
        }
    }
}

/// Reads lines until the worker's end of the pipe is closed.
fn read(output: Option<ChildStdout>, world: &Mutex<World>, generation: u64) {
    let Some(mut output) = output else { return };
    let (mut lines, limits) = (Lines::default(), LineLimits { line: LONGEST, tail: LONGEST });
    let mut chunk = vec![0; 16 * 1024];
    while let Ok(filled @ 1..) = output.read(&mut chunk) {
        lines.feed(&chunk[..filled], limits, clock::now(), |line| {
            let at = clock::now();
            let line = line.ok().and_then(Line::read);
            let mut world = lock(world);
            match line {
                Some(line) => world.take(generation, at, line),
                None => world.bad_lines += 1,
            }
        });
    }
}

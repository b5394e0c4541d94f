//! The thread that samples while the command runs.

use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::anyhow;

use super::progress::Figures;
use crate::app::guarded_engine::GuardedEngine;
use crate::config::Config;
use crate::host::clock;
use crate::model::facts::ExitedProcess;
use crate::protection::options::Protection;
use crate::protection::types::incidents::Entry;
use crate::report::{self, Focus, Recorder, RunProgress};

/// The time that the end of the command waits for a sample that hangs.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Sampling is dense at first, so that short commands and short-lived children are seen: until when, in
/// seconds, and how often. No step is more than eight times the one before, which would count as a gap.
const PACE: [(f64, f64); 3] = [(2.0, 0.05), (120.0, 0.2), (f64::INFINITY, 1.0)];

/// Longest time for which the end of the command waits until protection has ended the processes that are left: the time between
/// SIGTERM and SIGKILL, and 2 s.
const ENDING_TIMEOUT: Duration = Duration::from_secs(12);
const ENDING_INTERVAL: Duration = Duration::from_millis(50);

/// How often, and at which interval, the end of the ranks of a job is checked.
const LAST_LOOKS: u32 = 10;
const LAST_PAUSE: Duration = Duration::from_millis(10);
/// The time that is waited for the cause of a failure, and how often it is looked for: the kernel logs a kill before it, and the
/// analyzer states the cause within a second and a half.
const CAUSE_TIMEOUT: Duration = Duration::from_millis(2_000);
const CAUSE_INTERVAL: Duration = Duration::from_millis(100);

/// The record, and the incidents of protection.
type Ended = (Recorder, Option<Vec<Entry>>);

/// The thread that samples until it is stopped.
pub(super) struct Watcher {
    /// The command that failed, to wait for the cause of its end.
    stop: Sender<Option<ExitedProcess>>,
    done: Receiver<std::io::Result<Ended>>,
    /// The longest time until the record is there.
    patience: Duration,
}

impl Watcher {
    /// Starts sampling with `config`, and recording the workload of this name; `figures` has those of the newest sample.
    /// Without `protection`, the workload is not protected. `command` is the pid of its first process.
    pub(super) fn start(
        config: Config,
        protection: Option<Protection>,
        (command, workload): (u32, &str),
        interval: Option<f64>,
        figures: Figures,
    ) -> std::io::Result<Self> {
        let focus = Focus { workloads: [workload.to_owned()].into(), ..Focus::default() };
        let workload = workload.to_owned();
        let ending = protection.as_ref().map_or(Duration::ZERO, |_| ENDING_TIMEOUT);
        let (stop, stopped) = channel();
        let (finished, done) = channel();
        std::thread::Builder::new().name("sampler".to_owned()).spawn(move || {
            let publish = |recorder: &Recorder| {
                let progress = RunProgress::of(recorder, &workload);
                *figures.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
            };
            let ended = GuardedEngine::start(&config, protection).map(|mut engine| {
                let of = (command, workload.as_str());
                let recorder = sample(&mut engine, of, Recorder::new(focus), interval, &publish, &stopped);
                (recorder, engine.finish())
            });
            // The receiver is closed if the sampler hung for too long.
            let _ = finished.send(ended);
        })?;
        Ok(Self { stop, done, patience: SAMPLE_TIMEOUT + ending })
    }

    /// Ends sampling and returns the record, with the cause of the end of the command that `failed`.
    pub(super) fn stop(self, failed: Option<ExitedProcess>) -> anyhow::Result<Ended> {
        // If the thread has panicked, the join below reports it.
        let _ = self.stop.send(failed);
        let ended = self.done.recv_timeout(self.patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => anyhow!("the sampler hangs"),
            RecvTimeoutError::Disconnected => anyhow!("the sampler has ended by a defect"),
        })?;
        Ok(ended?)
    }
}

fn sample(
    engine: &mut GuardedEngine,
    (command, workload): (u32, &str),
    mut recorder: Recorder,
    interval: Option<f64>,
    publish: &dyn Fn(&Recorder),
    stopped: &Receiver<Option<ExitedProcess>>,
) -> Recorder {
    let begun = clock::now();
    let failed = loop {
        let now = clock::now();
        let frame = engine.tick(now);
        recorder.take(report::sample(&frame));
        recorder.record_ends(&frame.outlook);
        publish(&recorder);
        engine.reap_orphans(command);
        let passed = now.since(begun).as_secs_f64();
        let pace = PACE.iter().find(|(until, _)| passed < *until).map_or(1.0, |(_, every)| *every);
        let every = Duration::from_secs_f64(interval.unwrap_or(pace));
        let took = clock::now().since(now);
        // It rests for at least as long as it works, to leave CPU time to the command.
        match stopped.recv_timeout(every.saturating_sub(took).max(took)) {
            Err(RecvTimeoutError::Timeout) => {}
            asked => break asked.unwrap_or_default(),
        }
    };
    // A process that has lost its parent may be left.
    let stopped_at = clock::now();
    while engine.is_ending(workload) && clock::now().since(stopped_at) < ENDING_TIMEOUT {
        std::thread::sleep(ENDING_INTERVAL);
        recorder.take(report::sample(&engine.tick(clock::now())));
        engine.reap_orphans(command);
    }
    // This program is its parent, and knows how it ended where no source does.
    failed.into_iter().for_each(|process| engine.exited(process));
    // The last messages of a job may not have been read yet.
    for _ in 0..if recorder.trained() { LAST_LOOKS } else { 0 } {
        let frame = engine.tick(clock::now());
        // The last values of a rank are recorded at its end.
        recorder.take(report::sample(&frame));
        if recorder.ended(&frame.timeline) {
            break;
        }
        // The sender is closed: a pause.
        std::thread::sleep(LAST_PAUSE);
    }
    let ended = clock::now();
    // The end of what no sample has had is not explained.
    let is_explained = failed.is_some() && recorder.has_workload();
    loop {
        let frame = engine.tick(clock::now());
        recorder.record_ends(&frame.outlook);
        if is_explained {
            recorder.explain(&frame.outlook.ends, command);
        }
        // A command can succeed although a process of it was killed.
        let is_awaited = (is_explained && recorder.end().is_none()) || recorder.awaits_kill();
        if !is_awaited || clock::now().since(ended) >= CAUSE_TIMEOUT {
            break;
        }
        std::thread::sleep(CAUSE_INTERVAL);
    }
    if is_explained {
        recorder.explain_by_failure();
    }
    recorder
}

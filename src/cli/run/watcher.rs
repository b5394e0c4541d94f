//! The thread that samples while the command runs.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::anyhow;

use crate::app::serve;
use crate::config::Config;
use crate::engine::{EVERYTHING, Engine};
use crate::events::Events;
use crate::host::clock;
use crate::report::{Focus, FrameView, Recorder};

/// How long the end of the command waits for a sample that hangs.
const PATIENCE: Duration = Duration::from_secs(3);
/// Sampling is dense at first, so that short commands and short-lived children are seen: until when, in
/// seconds, and how often. No step is more than eight times the one before, which would count as a gap.
const PACE: [(f64, f64); 3] = [(2.0, 0.05), (120.0, 0.2), (f64::INFINITY, 1.0)];

/// How often, and how far apart, the end of the ranks of a job is looked for.
const LAST_LOOKS: u32 = 10;
const LAST_PAUSE: Duration = Duration::from_millis(10);

/// Samples until it is told to stop.
pub(super) struct Watcher {
    stop: Sender<()>,
    done: Receiver<Recorder>,
}

impl Watcher {
    /// Begins to sample as `config` says, and to record the workload of this name.
    pub(super) fn start(config: Config, workload: &str, interval: Option<f64>) -> std::io::Result<Self> {
        let focus = Focus { workloads: [workload.to_owned()].into(), ..Focus::default() };
        let (stop, stopped) = channel();
        let (finished, done) = channel();
        std::thread::Builder::new().name("sampler".to_owned()).spawn(move || {
            let recorder = sample(&config, Recorder::new(focus), interval, &stopped);
            // Nobody waits any more where the sampler was stuck for too long.
            let _ = finished.send(recorder);
        })?;
        Ok(Self { stop, done })
    }

    /// Ends the sampling and gives what was seen.
    pub(super) fn stop(self) -> anyhow::Result<Recorder> {
        // Where the thread has ended by a defect, what follows says so.
        let _ = self.stop.send(());
        self.done.recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => anyhow!("the sampler hangs"),
            RecvTimeoutError::Disconnected => anyhow!("the sampler has ended by a defect"),
        })
    }
}

fn sample(
    config: &Config,
    mut recorder: Recorder,
    interval: Option<f64>,
    stopped: &Receiver<()>,
) -> Recorder {
    let mut engine = Engine::new(
        EVERYTHING,
        config,
        serve::context(&config.paths, Arc::default()),
        Arc::new(Events::new()),
    );
    let begun = clock::now();
    loop {
        let now = clock::now();
        recorder.take(FrameView::of(&engine.tick(now)));
        let passed = now.since(begun).as_secs_f64();
        let pace = PACE.iter().find(|(until, _)| passed < *until).map_or(1.0, |(_, every)| *every);
        let every = Duration::from_secs_f64(interval.unwrap_or(pace));
        let took = clock::now().since(now);
        // At least as much rest as work: the command's CPU time is its own.
        if stopped.recv_timeout(every.saturating_sub(took).max(took)) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    // What a job said last may still be on its way to us.
    for _ in 0..if recorder.trained() { LAST_LOOKS } else { 0 } {
        let frame = engine.tick(clock::now());
        // The last figures of a rank are told with its end.
        recorder.take(FrameView::of(&frame));
        if recorder.ended(&frame.timeline) {
            break;
        }
        // Nobody sends any more: a pause.
        let _ = stopped.recv_timeout(LAST_PAUSE);
    }
    recorder
}

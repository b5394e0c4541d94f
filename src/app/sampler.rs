//! The sampler thread: a tick, a frame, a wait. It waits for nothing but its own clock.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;

use super::state;
use crate::config::Config;
use crate::engine::{EVERYTHING, Engine};
use crate::events::Events;
use crate::host::{apart, clock, fs};
use crate::model::acknowledged::{Acknowledgement, ProblemId};
use crate::model::frame::Frame;
use crate::model::health::Health;
use crate::model::source::{Control, Reporter};
use crate::node_view;
use crate::past_runs::PastRuns;
use crate::protection::guard::supervisor::FeedHandle;
use crate::sources::Context;

/// A request to the sampler, which is handled between two ticks.
#[derive(Debug)]
pub enum Request {
    /// Apply a new configuration.
    Configure(Box<Config>, Context),
    /// Pass this to every source.
    Control(Control),
    /// Acknowledge a problem that is as bad as this.
    Acknowledge(ProblemId, Health, Acknowledgement),
    /// Forget the acknowledgements of these problems.
    Forget(Vec<ProblemId>),
    Stop,
}

/// The running thread.
#[derive(Debug)]
pub struct Sampler {
    requests: Sender<Request>,
    thread: JoinHandle<()>,
    /// The newest configuration, while it waits for the end of an incident.
    waiting: Option<(Config, Context)>,
}

/// Starts sampling; frames appear in `frames`. `requests` are handled between ticks.
///
/// # Errors
/// The operating system's, where the thread could not be started.
pub fn start(
    config: &Config,
    context: Context,
    events: Arc<Events>,
    frames: watch::Sender<Option<Arc<Frame>>>,
    feed: Arc<FeedHandle>,
    reporters: impl IntoIterator<Item = Arc<dyn Reporter>> + Send + 'static,
    (requests, inbox): (Sender<Request>, Receiver<Request>),
) -> std::io::Result<Sampler> {
    let config = config.clone();
    let thread = std::thread::Builder::new().name("sampler".to_owned()).spawn(move || {
        let interval = config.sampling.interval;
        let past_runs = Arc::clone(&context.past_runs);
        let keeper = keeper(&config, &past_runs);
        let mut engine = Engine::new(EVERYTHING, &config, context, Arc::clone(&events));
        engine.add_reporter(Arc::clone(&feed) as _);
        reporters.into_iter().for_each(|reporter| engine.add_reporter(reporter));
        let publish = |engine: &Engine, frame: Arc<Frame>| {
            events.ended(frame.outlook.ends.iter().map(AsRef::as_ref), node_view::ends::sentence);
            feed.look(&frame, engine.facts());
            frames.send_replace(Some(frame));
        };
        run(&mut engine, interval, &inbox, &events, &publish, keeper.as_ref());
        past_runs.close();
        if let Some(keeping) = keeper {
            keeping.finish(engine.save(), LAST_SAVE);
        }
    })?;
    Ok(Sampler { requests, thread, waiting: None })
}

impl Sampler {
    /// Sends a request, which is handled before the next tick.
    pub fn request(&self, request: Request) {
        if self.requests.send(request).is_err() {
            tracing::error!("The sampler has ended.");
        }
    }

    /// Applies a configuration, after the incident that is in progress: without the matcher that names it, a job would leave
    /// its target.
    pub fn configure(&mut self, config: Config, context: Context, in_incident: bool) {
        if in_incident {
            tracing::warn!("An incident is in progress; the sources stay as they are until its end.");
        }
        self.waiting = Some((config, context));
        self.catch_up(in_incident);
    }

    /// Applies the configuration that waits, unless an incident is in progress.
    pub fn catch_up(&mut self, in_incident: bool) {
        if !in_incident && let Some((config, context)) = self.waiting.take() {
            self.request(Request::Configure(Box::new(config), context));
        }
    }

    /// Ends the thread; a thread that is blocked in a read is not joined after `deadline`.
    pub fn stop(self, deadline: Duration) {
        self.request(Request::Stop);
        if !apart::ended(&self.thread, deadline) {
            tracing::warn!("The sampler did not end in time and is left behind.");
        }
    }
}

/// The time that shutdown waits for the state to be written.
const LAST_SAVE: Duration = Duration::from_millis(700);

/// Starts the thread that saves the state of the analyzers; absent without a folder for it, and where boots cannot be
/// distinguished.
fn keeper(config: &Config, past_runs: &Arc<PastRuns>) -> Option<state::Keeper> {
    let given = || std::env::var_os("STATE_DIRECTORY").map(|folder| Path::new(&folder).join("state.json"));
    let path = config.state_file.clone().or_else(given)?;
    // The records of protection log why a folder is not used.
    fs::check_folder(path.parent()?, true).ok()?;
    let boot_id = fs::read_text(&config.paths.proc.join("sys/kernel/random/boot_id")).ok()?;
    let started = state::Keeper::start(path, boot_id, Arc::clone(past_runs));
    started.inspect_err(|error| tracing::warn!(%error, "No thread to keep the state.")).ok()
}

fn run(
    engine: &mut Engine,
    mut interval: Duration,
    inbox: &Receiver<Request>,
    events: &Events,
    publish: &dyn Fn(&Engine, Arc<Frame>),
    keeping: Option<&state::Keeper>,
) {
    let mut due = clock::now();
    let (mut saved, mut saved_past) = (due, due);
    loop {
        if let Some(kept) = keeping.and_then(state::Keeper::loaded) {
            engine.restore(kept);
        }
        let now = clock::now();
        let frame = engine.tick(now);
        events.step("publish", clock::now());
        publish(engine, frame);
        if let Some(keeping) = keeping.filter(|_| now.since(saved) >= state::EVERY) {
            saved = now;
            events.step("save", clock::now());
            keeping.keep(engine.save());
        }
        if let Some(keeping) = keeping.filter(|_| now.since(saved_past) >= state::EVERY_PAST) {
            saved_past = now;
            keeping.keep_past_runs();
        }
        let done = clock::now();
        events.steps_end(done);
        let took = done.since(now);
        due = due.plus(interval);
        let missed = missed(done.since(due), interval);
        if missed > 0 {
            events.ticks_skipped(u64::from(missed), took);
            due = due.plus(interval * missed);
        }
        loop {
            match inbox.recv_timeout(due.since(clock::now())) {
                Ok(Request::Configure(config, context)) => {
                    interval = config.sampling.interval;
                    // A shorter interval does not wait for the end of a longer one.
                    due = due.earlier(clock::now().plus(interval));
                    engine.reconfigure(EVERYTHING, &config, context);
                }
                Ok(Request::Control(request)) => engine.control(request),
                Ok(Request::Acknowledge(id, health, acknowledgement)) => {
                    engine.acknowledged().add(id, health, acknowledgement);
                    if let Some(keeping) = keeping {
                        keeping.keep(engine.save());
                    }
                }
                Ok(Request::Forget(ids)) => ids.iter().for_each(|id| engine.acknowledged().remove(id)),
                Ok(Request::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
    }
}

/// How many whole ticks passed when the next one was due `late` ago.
fn missed(late: Duration, interval: Duration) -> u32 {
    if late.is_zero() {
        return 0;
    }
    let ticks = late.as_nanos().div_ceil(interval.as_nanos().max(1));
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_tick_is_skipped_and_not_queued() {
        let ms = Duration::from_millis;
        let cases = [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2), (5500, 6)];
        for (late, expected) in cases {
            assert_eq!(missed(ms(late), ms(1000)), expected, "late by {late} ms");
        }
    }
}

//! `memwarden serve`: everything around the sampler, until a signal ends it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::perf_log::{Owners, PerfLog};
use super::problems::{self, Operators};
use super::sampler::{self, Request, Sampler};
use super::{log, notify, schema};
use crate::config::{self, Config, Override, Paths};
use crate::engine::{self, EVERYTHING, Engine, Frames};
use crate::events::Events;
use crate::host::child::WorkerCommand;
use crate::host::clock;
use crate::host::roots::Roots;
use crate::job_summary::Ledger;
use crate::model::checkpoint::Checkpoints;
use crate::model::source::{Control, Reporter};
use crate::model::time::Timestamp;
use crate::past_runs::PastRuns;
use crate::protection::guard::supervisor::GuardSupervisor;
use crate::protection::options::{PROTECTION, Protection};
use crate::protection::record::{self, Records};
use crate::protection::types::incidents::Incidents;
use crate::serve::http;
use crate::sources::Context;

use super::push::Push;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration file; absent for the defaults.
    pub file: Option<PathBuf>,
    /// Values of the command line; they override the file, also at a reload.
    pub overrides: Vec<Override>,
}

/// Threads that serve HTTP and push; sampling has its own.
const SERVING_THREADS: usize = 1;
/// Shutdown takes at most 5 s: 2 s for requests in flight and for a last push, 1 s for the sampler.
const LAST_PUSH: Duration = Duration::from_secs(2);
const LAST_SAMPLE: Duration = Duration::from_secs(1);
const LAST_LINES: Duration = Duration::from_millis(500);
const LAST_RECORD: Duration = Duration::from_millis(500);
/// Shortest time between two reloads that were requested over HTTP.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);
/// A frame older than this many intervals means that the sampler is stuck.
const STALE_INTERVALS: u32 = 5;

/// Runs until TERM or INT.
///
/// # Errors
/// An invalid configuration, a port in use, or an invalid web-config file.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let config = load(options)?;
    raise_descriptor_limit();
    let logger = log::start(&config.log).context("cannot start logging")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(SERVING_THREADS)
        .thread_name("serve")
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(serve(options.clone(), config, &logger));
    // Connections to a peer that does not respond must not delay shutdown.
    runtime.shutdown_background();
    outcome
}

/// Kept descriptors make sampling several times cheaper, so the limit is raised to its maximum.
fn raise_descriptor_limit() {
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limits.maximum, maximum: limits.maximum };
    // If this fails, sources open and close files instead.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
}

/// Reads the configuration that `options` name.
///
/// # Errors
/// [`config::ConfigError`], with every error of the file.
pub fn load(options: &Options) -> Result<Config, config::ConfigError> {
    match &options.file {
        Some(file) => config::parse(file, &schema(), &options.overrides),
        None => config::parse_str("", "defaults".as_ref(), &schema(), &options.overrides),
    }
}

struct Daemon<'a> {
    options: Options,
    config: Config,
    logger: &'a log::Logger,
    events: Arc<Events>,
    frames: Frames,
    /// The age at which a frame means that the sampler is stuck.
    stale_after: watch::Sender<Duration>,
    sampler: Sampler,
    perf_log: Option<PerfLog>,
    owners: Arc<Owners>,
    guard: GuardSupervisor,
    checkpoints: Arc<Checkpoints>,
    past_runs: Arc<PastRuns>,
    recording: Recording,
    /// Whether the guard has completed a round.
    guards: bool,
    push: Push,
}

async fn serve(options: Options, config: Config, logger: &log::Logger) -> anyhow::Result<()> {
    let events = Arc::new(Events::new());
    let (publish, frames) = watch::channel(None);
    let (stop, stopped) = watch::channel(false);
    let (reload, mut reloads) = mpsc::channel(1);
    let (stale_after, judged) = watch::channel(config.sampling.interval * STALE_INTERVALS);
    let records = Records::start(&config, Arc::clone(&events)).map(Arc::new);
    let records = records.context("cannot start the records of protection")?;
    let (show_incidents, incidents) = watch::channel(incidents(&records));
    let checkpoints: Arc<Checkpoints> = Arc::default();
    let protected = !protection(&config).targets.is_empty();
    record::report_missing_capabilities(&config.paths.proc, &config.paths.cgroup, protected, &events);
    let mut guard = GuardSupervisor::new(own_command, Arc::clone(&records), Arc::clone(&checkpoints));
    let host_name = sysinfo::System::host_name();
    let jobs = Arc::new(Ledger::new(host_name.as_deref()));
    let past_runs: Arc<PastRuns> = Arc::default();
    let (requests, inbox) = std::sync::mpsc::channel();
    let server = http::Server::bind(http::Setup {
        web: config.web.clone(),
        compatibility: config.compatibility,
        frames: frames.clone(),
        events: Arc::clone(&events),
        reload: Box::new(ReloadRequests(reload)),
        acknowledge: Box::new(Operators(requests.clone())),
        alerts: Arc::clone(guard.alert_receiver()) as _,
        run_requests: Arc::clone(guard.run_receiver()) as _,
        host_name,
        incidents,
        jobs: Arc::clone(&jobs),
        past_runs: Arc::clone(&past_runs),
        stale_after: judged,
        retries_bind: !protection(&config).targets.is_empty(),
        proc: config.paths.proc.clone(),
    })?;
    let addresses = server.addresses();
    let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let mut signals = Signals::new().context("cannot listen for signals")?;
    events.config_loaded(clock::now(), &options.shown_file());
    let push = Push::start(&config, &frames, &events, logger.tap.clone(), &addresses);
    let context = context(&config.paths, Arc::clone(&checkpoints), Arc::clone(&past_runs));
    guard.configure(protection(&config), &context.roots);
    let feed = Arc::clone(guard.feed());
    let owners = Arc::new(Owners::new(&config.paths.passwd));
    let reporters: [Arc<dyn Reporter>; 2] = [Arc::clone(&owners) as _, jobs as _];
    tokio::spawn(problems::follow(frames.clone(), requests.clone()));
    let requests = (requests, inbox);
    let sampler = sampler::start(&config, context, Arc::clone(&events), publish, feed, reporters, requests)
        .context("cannot start the sampler")?;
    let perf_log = perf_log(&config, &frames, &owners);
    let recording = Recording {
        following: tokio::spawn(Arc::clone(&records).follow(frames.clone())),
        records,
        show_incidents,
        tried: clock::now(),
        trying: None,
    };
    let serving = tokio::spawn(server.run(stopped));
    let mut daemon = Daemon {
        options,
        config,
        logger,
        events,
        frames,
        stale_after,
        sampler,
        perf_log,
        owners,
        guard,
        checkpoints,
        past_runs,
        recording,
        guards: true,
        push,
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        revision = engine::REVISION,
        addresses = shown.join(","),
        "memwarden is serving."
    );
    notify::ready();
    let mut watchdog = notify::watchdog_interval().map(tokio::time::interval);
    let mut reading: Option<Reading> = None;
    let mut second = tokio::time::interval(Duration::from_secs(1));
    let (mut may_reload, mut next_reload) = (true, Instant::now());
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            _ = signals.hangup.recv() => match &mut reading {
                Some(reading) => reading.again = true,
                None => reading = Some(daemon.read(None)),
            },
            // Without a web-config file any local user can request a reload, and each reload is logged.
            () = tokio::time::sleep_until(next_reload), if !may_reload => may_reload = true,
            Some(answer) = reloads.recv(), if reading.is_none() && may_reload => {
                (may_reload, next_reload) = (false, Instant::now() + RELOAD_INTERVAL);
                reading = Some(daemon.read(Some(answer)));
            }
            (read, done) = finished(&mut reading) => {
                let outcome = daemon.reload(read);
                if let Some(answer) = done.answer {
                    // The client may have disconnected while the file was read.
                    let _ = answer.send(outcome);
                }
                reading = done.again.then(|| daemon.read(None));
            }
            _ = signals.release.recv() => daemon.control(Control::ReleaseGpu),
            _ = signals.acquire.recv() => daemon.control(Control::AcquireGpu),
            () = tick(&mut watchdog) => daemon.watchdog(),
            _ = second.tick() => {
                daemon.sampler.catch_up(daemon.guard.catch_up(), clock::now());
                daemon.stale_after.send_replace(daemon.sampler.interval() * STALE_INTERVALS);
                daemon.look_for_rival().await;
                daemon.watch();
            }
        }
    }
    tracing::info!("memwarden is ending.");
    daemon.recording.following.abort();
    notify::stopping();
    // The receiver is closed only if the server has ended.
    let _ = stop.send(true);
    let Daemon { sampler, perf_log, guard, recording, .. } = daemon;
    let records = recording.records;
    let push = daemon.push;
    let ending = tokio::task::spawn_blocking(move || {
        push.stop(LAST_PUSH);
        if let Some(perf_log) = perf_log {
            perf_log.finish(LAST_LINES);
        }
        sampler.stop(LAST_SAMPLE);
        drop(guard);
        records.finish(LAST_RECORD);
    });
    let _ = tokio::join!(serving, ending);
    Ok(())
}

/// The recorder, and how it is started again once another daemon has released the state folder.
struct Recording {
    records: Arc<Records>,
    following: tokio::task::JoinHandle<()>,
    show_incidents: watch::Sender<Option<Arc<dyn Incidents>>>,
    /// When it was last tried.
    tried: Timestamp,
    trying: Option<tokio::task::JoinHandle<std::io::Result<Option<Records>>>>,
}

impl Daemon<'_> {
    fn control(&self, request: Control) {
        tracing::info!(?request, "A signal asked for this.");
        self.sampler.request(Request::Control(request));
    }

    /// Starts reading the configuration file; a file system that hangs delays nothing else.
    fn read(&self, answer: Option<oneshot::Sender<Result<(), String>>>) -> Reading {
        notify::reloading();
        let options = self.options.clone();
        let load = move || {
            options.file.as_deref().map_or(Ok(()), config::require_key)?;
            load(&options)
        };
        Reading { task: tokio::task::spawn_blocking(load), answer, again: false }
    }

    /// Applies the configuration that was read; an invalid one changes nothing.
    fn reload(&mut self, read: Result<Config, String>) -> Result<(), String> {
        let outcome = read.and_then(|config| self.take_over(config));
        match &outcome {
            Ok(()) => self.events.config_loaded(clock::now(), &self.options.shown_file()),
            Err(error) => self.events.config_refused(error),
        }
        notify::ready();
        outcome
    }

    fn take_over(&mut self, config: Config) -> Result<(), String> {
        // Steps that can fail come first.
        if config.otlp != self.config.otlp {
            self.push.restart(&config, &self.frames, &self.events)?;
        }
        if config.perf_logs != self.config.perf_logs {
            // The old one's files are closed before the new one's are opened.
            self.perf_log = None;
            self.perf_log = perf_log(&config, &self.frames, &self.owners);
        }
        self.logger.set_level(&config.log);
        if config.log.format != self.config.log.format
            || config.web != self.config.web
            || config.compatibility != self.config.compatibility
            || config.state_file != self.config.state_file
        {
            tracing::warn!(
                "Changes of web, compatibility, log.format and state.file take effect at the next start."
            );
        }
        let context = context(&config.paths, Arc::clone(&self.checkpoints), Arc::clone(&self.past_runs));
        self.guard.configure(protection(&config), &context.roots);
        self.sampler.configure(config.clone(), context, self.guard.in_incident(), clock::now());
        self.stale_after.send_replace(self.sampler.interval() * STALE_INTERVALS);
        self.config = config;
        Ok(())
    }

    /// Starts recording once another daemon that held the state folder at the start has ended. The disk may hang;
    /// nothing here waits for it.
    async fn look_for_rival(&mut self) {
        let recording = &mut self.recording;
        if let Some(trying) = recording.trying.take_if(|trying| trying.is_finished()) {
            let outcome = trying.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            match outcome {
                Ok(Some(records)) => self.take_folder(Arc::new(records)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "The folder of state cannot be taken over; it is tried again.")
                }
            }
            return;
        }
        let now = clock::now();
        if recording.records.other_daemon()
            && recording.trying.is_none()
            && now.since(recording.tried) >= record::RETRY_INTERVAL
        {
            recording.tried = now;
            let (config, events) = (self.config.clone(), Arc::clone(&self.events));
            recording.trying = Some(tokio::task::spawn_blocking(move || Records::retry(&config, events)));
        }
    }

    fn take_folder(&mut self, records: Arc<Records>) {
        let recording = &mut self.recording;
        recording.following.abort();
        recording.following = tokio::spawn(Arc::clone(&records).follow(self.frames.clone()));
        recording.show_incidents.send_replace(incidents(&records));
        recording.records = Arc::clone(&records);
        tracing::info!(
            "The other memwarden has ended: from now on this one protects, and writes into the folder of state."
        );
        self.guard.rearm(records);
    }

    /// Logs the step in which a thread hangs.
    fn watch(&mut self) {
        let now = clock::now();
        self.events.watch_sampler(now);
        let guards = self.guard.alive(now);
        match (std::mem::replace(&mut self.guards, guards), guards) {
            (true, false) => tracing::error!("The guard hangs: nothing is protected until it goes on."),
            (false, true) => tracing::info!("The guard makes rounds again."),
            _ => {}
        }
    }

    /// Notifies the watchdog of systemd, unless the newest frame is old: then systemd restarts the daemon.
    fn watchdog(&self) {
        let stale = *self.stale_after.borrow();
        let fresh = self.frames.borrow().as_ref().is_some_and(|frame| clock::now().since(frame.at) <= stale);
        if fresh && self.guard.alive(clock::now()) {
            notify::alive();
        }
    }
}

impl Options {
    fn shown_file(&self) -> String {
        self.file.as_ref().map_or_else(|| "none (defaults)".to_owned(), |file| file.display().to_string())
    }
}

/// Writes performance logs if they are configured. A failure is logged and does not end the daemon.
fn perf_log(config: &Config, frames: &Frames, owners: &Arc<Owners>) -> Option<PerfLog> {
    PerfLog::start(&config.perf_logs, frames, owners).unwrap_or_else(|error| {
        tracing::error!(%error, "No thread to write performance logs.");
        None
    })
}

/// An engine for a command that samples this node itself.
pub fn own_engine(config: &Config) -> Engine {
    let context = context(&config.paths, Arc::default(), Arc::default());
    Engine::new(EVERYTHING, config, context, Arc::new(Events::new()))
}

/// The configured paths that the sources read.
pub fn context(paths: &Paths, checkpoints: Arc<Checkpoints>, past_runs: Arc<PastRuns>) -> Context {
    Context {
        roots: Arc::new(Roots {
            proc: paths.proc.clone(),
            sys: paths.sys.clone(),
            cgroup: paths.cgroup.clone(),
            kmsg: paths.kmsg.clone(),
            passwd: paths.passwd.clone(),
        }),
        worker: own_command("gpu-worker"),
        checkpoints,
        past_runs,
    }
}

/// The incidents for HTTP; absent where they are kept in memory only.
fn incidents(records: &Records) -> Option<Arc<dyn Incidents>> {
    records.store.clone().map(|store| Arc::new(crate::report::incident::Rendered(store)) as _)
}

/// The section on protection of the configuration.
pub fn protection(config: &Config) -> Protection {
    let section = config.modules.get(PROTECTION.key);
    section.map_or_else(Protection::default, |section| Protection::new(section, config.sampling.interval))
}

/// A hidden command of this program; absent where the path of the program is not known.
pub(super) fn own_command(name: &'static str) -> Option<WorkerCommand> {
    let command = WorkerCommand::own(name);
    let unknown = |error: &_| tracing::error!(%error, name, "The path of this program is not known, so that a process of it cannot be started.");
    command.inspect_err(unknown).ok()
}

/// Waits for the next watchdog notification; forever without a watchdog.
async fn tick(watchdog: &mut Option<tokio::time::Interval>) {
    match watchdog {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}

/// A configuration file that is being read.
struct Reading {
    task: tokio::task::JoinHandle<Result<Config, config::ConfigError>>,
    /// The HTTP requests that wait for the result.
    answer: Option<oneshot::Sender<Result<(), String>>>,
    /// Whether another HUP came meanwhile: the file may have changed after it was read.
    again: bool,
}

/// Waits for the file that is being read; forever if none is.
async fn finished(reading: &mut Option<Reading>) -> (Result<Config, String>, Reading) {
    let Some(current) = reading else { return std::future::pending().await };
    let read = match (&mut current.task).await {
        Ok(Ok(config)) => Ok(config),
        Ok(Err(error)) => Err(format!("{:#}", anyhow::Error::new(error))),
        Err(error) => Err(format!("reading the configuration failed: {error}")),
    };
    match reading.take() {
        Some(done) => (read, done),
        None => std::future::pending().await,
    }
}

struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
    release: Signal,
    acquire: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            release: signal(SignalKind::user_defined1())?,
            acquire: signal(SignalKind::user_defined2())?,
        })
    }
}

/// Passes `POST /-/reload` to the main loop.
#[derive(Debug)]
pub(super) struct ReloadRequests(pub(super) mpsc::Sender<oneshot::Sender<Result<(), String>>>);

impl http::Reload for ReloadRequests {
    fn request(&self) -> oneshot::Receiver<Result<(), String>> {
        let (answer, outcome) = oneshot::channel();
        if let Err(refused) = self.0.try_send(answer) {
            let (mpsc::error::TrySendError::Full(answer) | mpsc::error::TrySendError::Closed(answer)) =
                refused;
            // The receiver exists, so this cannot fail.
            let _ = answer.send(Err("another reload is under way".to_owned()));
        }
        outcome
    }
}

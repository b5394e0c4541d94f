//! The guard: the thread that protects, and how it receives input and is reported.
//!
//! [`input_builder`] builds the guard's input from each frame on the sampler's thread; `mailbox` hands it over without
//! blocking; [`guard_loop`] decides and acts, round by round, on a thread with locked memory that never blocks;
//! `guard_log` writes log messages on another thread.

pub mod alert_receiver;
pub mod alerts;
mod cannot_save;
pub mod drill;
mod foresight;
mod guard_log;
pub mod guard_loop;
mod holders;
pub mod input;
pub mod input_builder;
mod job_slots;
mod job_state;
pub mod journal;
mod mailbox;
mod notification;
mod prekill;
mod prekill_socket;
pub mod run_receiver;
pub mod run_requests;
pub mod supervisor;
#[cfg(test)]
mod tests;
mod users;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use self::alerts::Alerts;
use self::guard_loop::{Executors, GuardLoop};
use self::holders::Unhelped;
use self::input::{GuardInput, SLOTS};
use self::input_builder::InputBuilder;
use self::journal::{GuardJournal, Journal};
use self::mailbox::Mailbox;
use self::run_requests::RunRequests;
use super::enforce::ask_run::RunAsker;
use super::enforce::executor::{self, BackgroundExecutor, BackgroundExecutors, Machine, Observer};
use super::enforce::hooks::Hooks;
use super::enforce::levels::HostMeter;
use super::enforce::webhook::Webhooks;
use super::options::target::Target;
use super::record::{Records, SharedJobPids};
use super::status::{self, Names, Report};
use super::types::run_request::Peers;
use super::types::scope::Exempt;
use crate::host::child::WorkerCommand;
use crate::host::roots::Roots;
use crate::host::tls::Trust;
use crate::host::{apart, clock, memory, numa, priority};
use crate::model::checkpoint::Checkpoints;
use crate::model::facts::Facts;
use crate::model::frame::Frame;
use crate::model::ids::ProcessKey;
use crate::model::lock::lock;
use crate::model::outlook::Outlook;
use crate::model::point::Batch;
use crate::model::source::Reporter;
use crate::model::time::Timestamp;
use crate::model::units::Count;
use crate::protection::metrics;
use crate::protection::options::Protection;
use crate::protection::policy::Mode;

/// The stack size of the guard's thread in bytes: its working memory is on the heap, allocated beforehand.
const STACK: usize = 512 * 1024;

/// The state that the guard shares with the rest of the daemon.
#[derive(Debug)]
pub struct GuardState {
    /// The targets whose mode is not `off`.
    pub targets: Arc<[Target]>,
    /// The firing alerts.
    pub alerts: Arc<Alerts>,
    report: Mutex<Report>,
    names: Mutex<Names>,
    /// The requests of other nodes of runs.
    pub run_requests: Arc<RunRequests>,
    mailbox: Arc<Mailbox<GuardInput>>,
    signalled: Arc<Signalled>,
}

/// The processes that protection sent SIGTERM or SIGKILL since the last frame.
pub(super) type Signalled = Mutex<Vec<ProcessKey>>;

impl GuardState {
    /// The newest report of the guard.
    pub fn newest(&self) -> Report {
        lock(&self.report).clone()
    }

    /// Whether an incident that must not be interrupted is in progress.
    pub fn incident(&self) -> bool {
        let enforces = |target: usize| {
            self.targets.get(target).is_some_and(|target| target.limits.mode == Mode::Enforce)
        };
        self.newest().incident(enforces)
    }
}

impl Reporter for GuardState {
    fn report(&self, at: Timestamp, out: &mut Batch) {
        let names = lock(&self.names).clone();
        status::put(&self.newest(), &names, at, out);
        out.facts.signalled.extend(lock(&self.signalled).drain(..));
        for (outcome, count) in self.alerts.counts() {
            out.put(&metrics::ALERTS, &[outcome.into()], Count(count));
        }
        for (counts, metric) in [
            (&*self.run_requests.sent, &metrics::RUN_REQUESTS_SENT),
            (&self.run_requests.received, &metrics::RUN_REQUESTS_RECEIVED),
            (&self.run_requests.prekills.outcomes, &metrics::PREKILLS),
        ] {
            for (outcome, count) in counts.all() {
                out.put(metric, &[outcome.label().into()], Count(count));
            }
        }
    }
}

/// The sampler's side: builds the guard's input after each frame.
#[derive(Debug)]
pub struct Feed {
    input_builder: InputBuilder,
    job_pids: SharedJobPids,
    unhelped: Unhelped,
    shared: Arc<GuardState>,
}

impl Feed {
    /// Hands the data of a frame to the guard.
    pub fn look(&mut self, frame: &Frame, facts: &Facts) {
        self.look_at(frame.at, &frame.outlook, facts);
    }

    fn look_at(&mut self, at: Timestamp, outlook: &Outlook, sampled: &Facts) {
        let report = self.shared.newest();
        if let Some(facts) = self.input_builder.look(at, outlook, sampled, &self.shared.alerts, &report) {
            self.shared.run_requests.jobs_are(&facts);
            lock(&self.shared.names).clone_from(&self.input_builder.names);
            self.unhelped.tell(&report, &self.input_builder.names, outlook, sampled);
            let jobs = facts.slots.iter().flatten();
            let targets = &self.shared.targets;
            let watched = jobs.map(|slot| (&targets[slot.target].name, slot.user, &*slot.roster.largest));
            lock(&self.job_pids).record(at, watched);
            self.shared.mailbox.give(Box::new(facts), GuardInput::keep);
        }
    }
}

/// What one guard after the other has, whatever its configuration.
#[derive(Debug)]
struct GuardContext {
    /// Returns the command of a helper process.
    own: fn(&'static str) -> Option<WorkerCommand>,
    records: Arc<Records>,
    /// Alertmanager repeats a firing alert only after hours, so alerts outlast a reload.
    alerts: Arc<Alerts>,
    /// Received requests are remembered over a reload.
    run_requests: Arc<RunRequests>,
    /// The acknowledgements of jobs.
    checkpoints: Arc<Checkpoints>,
}

/// The running guard.
#[derive(Debug)]
pub struct Guard {
    shared: Arc<GuardState>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Starts the guard; absent where no target is configured.
    fn start(
        protection: &Protection,
        roots: &Roots,
        context: &GuardContext,
    ) -> std::io::Result<Option<(Self, Feed)>> {
        let Some((watch, feed)) = Self::prepare(protection, roots, context)? else { return Ok(None) };
        let shared = Arc::clone(&feed.shared);
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("guard".to_owned()).stack_size(STACK).spawn({
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
            move || run(watch, &shared, &stop)
        })?;
        shared.run_requests.guard_is(thread.thread().clone());
        for target in &*shared.targets {
            tracing::info!("Protection of {target}");
            if target.freeze && context.records.store.is_none() {
                let target = target.name.as_str();
                tracing::warn!(
                    target_name = target,
                    "freeze: nothing will be frozen, because state.file is not set."
                );
            }
        }
        Ok(Some((Self { shared, stop, thread: Some(thread) }, feed)))
    }

    /// Everything of a guard but its thread, with what earlier runs remember.
    fn prepare(
        protection: &Protection,
        roots: &Roots,
        context: &GuardContext,
    ) -> std::io::Result<Option<(GuardLoop, Feed)>> {
        let GuardContext { own, records, alerts, run_requests, checkpoints } = context;
        if protection.targets.is_empty() {
            return Ok(None);
        }
        let targets: Arc<[Target]> = protection.targets.clone().into();
        let shared = Arc::new(GuardState {
            targets: Arc::clone(&targets),
            alerts: Arc::clone(alerts),
            report: Mutex::new(Report::new(targets.len(), SLOTS)),
            names: Mutex::new(Names::default()),
            run_requests: Arc::clone(run_requests),
            mailbox: Arc::default(),
            signalled: Arc::new(Mutex::new(Vec::with_capacity(journal::MOST_SIGNALLED))),
        });
        let hooks = hooks(&targets, own("hook-helper"), &roots.proc);
        let helpers: Vec<u32> = hooks.iter().filter_map(Hooks::pid).collect();
        let exempt = executor::exempt(&roots.proc, &helpers).map(|exempt| match protection.of_command {
            true => Exempt { own: 0, ..exempt },
            false => exempt,
        });
        let exempt = exempt
            .inspect_err(|error| tracing::error!(%error, "Cannot read memwarden's own processes and cgroup; no action is taken."))
            .ok();
        let remembered = records.remembered();
        let ends = remembered.ends(clock::now());
        let mut input_builder = InputBuilder::with(
            Arc::clone(&targets),
            roots,
            exempt.clone(),
            remembered,
            records.other_daemon(),
        );
        input_builder.names.max_kills_per_hour = protection.max_kills_per_hour;
        for (target, user) in input_builder.strangers() {
            tracing::error!(
                target_name = target.name.as_str(),
                user,
                "Unknown user in allow_users; the target is disarmed."
            );
        }
        let enforce = targets.iter().any(|target| target.limits.mode == Mode::Enforce);
        let background = BackgroundExecutors {
            hooks: hooks.map(|hooks| Box::new(hooks) as _),
            webhooks: webhooks(&targets, protection.webhook_certificate.clone()),
            records: Some(records.executor()),
            runs: run_asker(&targets, protection.peers.clone(), run_requests),
            files: own("checkpoint-file"),
        };
        let machine = exempt.clone().filter(|_| enforce && !records.other_daemon()).and_then(|exempt| {
            let armed = Machine::arm(executor::Mode::Enforce, &roots.proc, &roots.cgroup, exempt, background)
                .and_then(|machine| machine.with_threads(&roots.cgroup));
            armed.inspect_err(|error| tracing::error!(%error, "Cannot set up the executor; targets in mode enforce are disarmed.")).ok()
        });
        let hands = Executors {
            enforce: machine.map(|machine| Box::new(machine) as _),
            observe: Box::new(Observer::new(exempt.unwrap_or_default(), &roots.proc)),
        };
        let meter = HostMeter::open(&roots.proc, &numa::gpu_nodes(roots));
        let meter = meter.inspect_err(|error| tracing::warn!(%error, "Cannot read the host's memory.")).ok();
        let config = format!("{:08x}", digest(protection));
        let journal =
            GuardJournal::new(records, &config, Arc::clone(&targets), Arc::clone(&shared.signalled))?;
        let book: Box<dyn Journal> = Box::new(journal);
        #[cfg(test)]
        let book = tests::cluster::observed(book);
        let (mailbox, checkpoints) = (Arc::clone(&shared.mailbox), Arc::clone(checkpoints));
        let mut watch =
            GuardLoop::new(targets, protection.max_kills_per_hour, mailbox, meter, hands, checkpoints, book);
        watch.run_requests = Arc::clone(run_requests);
        // The rate limits outlast a restart and a reload.
        watch.recall(&ends);
        Ok(Some((
            watch,
            Feed {
                input_builder,
                job_pids: Arc::clone(&records.job_pids),
                unhelped: Unhelped::default(),
                shared,
            },
        )))
    }

    /// Whether the guard has made a round within the last 15 s.
    pub fn alive(&self, now: Timestamp) -> bool {
        /// Many times the longest time between two rounds.
        const ROUND_TIMEOUT: Duration = Duration::from_secs(15);
        self.shared.newest().at.is_none_or(|at| now.since(at) < ROUND_TIMEOUT)
    }
}

impl Drop for Guard {
    /// Ends the thread; a round that hangs is abandoned.
    fn drop(&mut self) {
        /// Rounds take microseconds; thawing a cgroup takes one write.
        const STOP_TIMEOUT: Duration = Duration::from_millis(300);
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        apart::ended(&thread, STOP_TIMEOUT);
    }
}

/// The executor that asks the other nodes of runs, where a target in mode `enforce` has the scope `run`.
fn run_asker(
    targets: &[Target],
    peers: Option<Peers>,
    run_requests: &RunRequests,
) -> Option<Box<dyn BackgroundExecutor>> {
    let wanted = |target: &Target| target.ask.run && target.limits.mode == Mode::Enforce;
    let peers = peers.filter(|_| targets.iter().any(wanted))?;
    #[cfg(test)]
    if let Some(network) = tests::cluster::network() {
        return Some(network);
    }
    let started = RunAsker::start(peers, Arc::clone(&run_requests.sent));
    let started = started.inspect_err(
        |error| tracing::error!(%error, "Cannot start the thread that asks other nodes; no other node of a run is asked."),
    );
    Some(Box::new(started.ok()?))
}

/// The executor of webhooks, where a target in mode `enforce` has one.
fn webhooks(targets: &[Target], certificate: Option<PathBuf>) -> Option<Box<dyn BackgroundExecutor>> {
    let wanted = |target: &Target| target.webhook.is_some() && target.limits.mode == Mode::Enforce;
    targets.iter().any(wanted).then_some(())?;
    let trust = Trust::of(certificate);
    let secure = |target: &Target| target.webhook.as_ref().is_some_and(|url| url.starts_with("https://"));
    if targets.iter().any(|target| wanted(target) && secure(target))
        && let Err(error) = trust.roots()
    {
        // The certificates are read again for each call.
        tracing::error!(%error, "Cannot load the certificates for https webhooks; calls to them fail.");
    }
    let started = Webhooks::start(trust);
    let started = started.inspect_err(
        |error| tracing::error!(%error, "Cannot start the webhook thread; no webhook is called."),
    );
    Some(Box::new(started.ok()?))
}

/// The hash that identifies a configuration of protection in records: FNV-1a of its debug format.
fn digest(protection: &Protection) -> u32 {
    let output = format!("{protection:?}");
    output.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The hook helper, where a target in mode `enforce` has a hook.
fn hooks(targets: &[Target], helper: Option<WorkerCommand>, proc: &Path) -> Option<Hooks> {
    let wanted = |target: &Target| target.hook.is_some() && target.limits.mode == Mode::Enforce;
    let helper = helper.filter(|_| targets.iter().any(wanted))?;
    Hooks::start(helper, proc)
        .inspect_err(|error| tracing::error!(%error, "Cannot start the hook helper; no hook is run."))
        .ok()
}

/// The guard's thread.
fn run(mut watch: GuardLoop, shared: &GuardState, stop: &AtomicBool) {
    watch.report().locked = match memory::lock() {
        Ok(()) => true,
        Err(error) => {
            tracing::info!(%error, "Cannot lock the guard's memory; this requires CAP_IPC_LOCK or a higher RLIMIT_MEMLOCK.");
            false
        }
    };
    if !priority::go_first() {
        tracing::info!(
            "Cannot raise the priority of the guard's thread; this requires CAP_SYS_NICE or RLIMIT_NICE."
        );
    }
    let mut due = clock::now();
    while !stop.load(Ordering::Relaxed) {
        let pause = round(&mut watch, shared, due);
        due = clock::now().plus(pause);
        clock::wait(pause);
        // A thread that wakes it before the time has something for it.
        while due.since(clock::now()).is_zero()
            && !stop.load(Ordering::Relaxed)
            && watch.is_still(clock::now())
        {
            due = clock::now().plus(pause);
            clock::wait(pause);
        }
    }
    watch.finish(&clock::now);
}

/// One round, which was `due` before, and its report. Returns the longest time until the next one.
fn round(watch: &mut GuardLoop, shared: &GuardState, due: Timestamp) -> Duration {
    let begun = clock::now();
    let report = watch.report();
    report.lag = report.lag.max(begun.since(due));
    report.cpu = clock::thread_cpu();
    let pause = watch.round(&clock::now);
    let report = watch.report();
    report.longest = report.longest.max(clock::now().since(begun));
    if let Ok(mut out) = shared.report.try_lock() {
        out.copy(watch.report());
    }
    pause
}

//! The guard: the thread that protects, and how it is fed and heard.
//!
//! [`gather`] makes facts of each frame on the sampler's thread; `slot` hands
//! them over without a wait; [`watch`] decides and acts, round by round, on a
//! thread with locked memory that waits for nobody; `scribe` logs.

pub mod alerts;
pub mod desk;
pub mod drill;
pub mod facts;
mod foresight;
pub mod gather;
pub mod journal;
mod scribe;
mod seats;
mod sitting;
mod slot;
#[cfg(test)]
mod tests;
mod told;
mod users;
pub mod warden;
pub mod watch;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use self::alerts::Alerts;
use self::facts::{Facts, SEATS};
use self::gather::Gather;
use self::journal::Book;
use self::scribe::Scribe;
use self::slot::Slot;
use self::watch::{Hands, Watch};
use super::enforce::executor::{self, Errand, Errands, Machine, Observer};
use super::enforce::hooks::Hooks;
use super::enforce::levels::HostMeter;
use super::enforce::webhook::Webhooks;
use super::options::target::Target;
use super::record::{Lookout, Records};
use super::status::{self, Names, Report};
use crate::host::child::WorkerCommand;
use crate::host::roots::Roots;
use crate::host::tls::Trust;
use crate::host::{clock, memory, priority};
use crate::model::checkpoint::Checkpoints;
use crate::model::facts::Facts as Told;
use crate::model::frame::Frame;
use crate::model::lock::lock;
use crate::model::point::Batch;
use crate::model::source::Reporter;
use crate::model::time::Timestamp;
use crate::model::units::Count;
use crate::protection::metrics;
use crate::protection::options::Protection;
use crate::protection::policy::Mode;

/// The stack of the guard's thread: what it needs is in the heap, taken before.
const STACK: usize = 512 * 1024;

/// What the guard shares with the rest of the daemon.
#[derive(Debug)]
pub struct Shared {
    /// The targets that are not off.
    pub targets: Arc<[Target]>,
    /// The alerts that fire.
    pub alerts: Arc<Alerts>,
    report: Mutex<Report>,
    names: Mutex<Names>,
    slot: Arc<Slot<Facts>>,
}

impl Shared {
    /// What the guard said last.
    pub fn newest(&self) -> Report {
        lock(&self.report).clone()
    }

    /// Whether something is being done for a target, which must not be cut short.
    pub fn incident(&self) -> bool {
        let enforces = |target: usize| {
            self.targets.get(target).is_some_and(|target| target.limits.mode == Mode::Enforce)
        };
        self.newest().incident(enforces)
    }
}

impl Reporter for Shared {
    fn report(&self, at: Timestamp, out: &mut Batch) {
        let names = lock(&self.names).clone();
        status::put(&self.newest(), &names, at, out);
        for (outcome, count) in self.alerts.counts() {
            out.put(&metrics::ALERTS, &[outcome.into()], Count(count));
        }
    }
}

/// The sampler's end: what it calls after each frame.
#[derive(Debug)]
pub struct Feed {
    gather: Gather,
    lookout: Lookout,
    shared: Arc<Shared>,
}

impl Feed {
    /// Tells the guard what a frame says.
    pub fn look(&mut self, frame: &Frame, told: &Told) {
        let report = self.shared.newest();
        if let Some(facts) = self.gather.look(frame.at, &frame.outlook, told, &self.shared.alerts, &report) {
            lock(&self.shared.names).clone_from(&self.gather.names);
            let jobs = facts.seats.iter().flatten();
            let targets = &self.shared.targets;
            self.lookout.watch(jobs.map(|seat| (&targets[seat.target].name, &*seat.roster.largest)));
            self.shared.slot.give(Box::new(facts), Facts::keep);
        }
    }
}

/// The running guard.
#[derive(Debug)]
pub struct Guard {
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Starts guarding what the configuration names; nothing where it names nobody. `alerts` fire from one guard to the
    /// next; acknowledgements of jobs are read from `checkpoints`.
    ///
    /// # Errors
    /// The operating system's, where it gives no thread.
    pub fn start(
        protection: &Protection,
        roots: &Roots,
        helper: Option<WorkerCommand>,
        records: &Records,
        alerts: Arc<Alerts>,
        checkpoints: Arc<Checkpoints>,
    ) -> std::io::Result<Option<(Self, Feed)>> {
        if protection.targets.is_empty() {
            return Ok(None);
        }
        let targets: Arc<[Target]> = protection.targets.clone().into();
        let shared = Arc::new(Shared {
            targets: Arc::clone(&targets),
            alerts,
            report: Mutex::new(Report::new(targets.len(), SEATS)),
            names: Mutex::new(Names::default()),
            slot: Arc::default(),
        });
        let hooks = hooks(&targets, helper, &roots.proc);
        let helpers: Vec<u32> = hooks.iter().filter_map(Hooks::pid).collect();
        let never = executor::never(&roots.proc, &helpers);
        let never = never
            .inspect_err(|error| tracing::error!(%error, "Who we are is not known; nobody is touched."))
            .ok();
        let remembered = records.remembered();
        let ends = remembered.ends(clock::now());
        let mut gather =
            Gather::with(Arc::clone(&targets), roots, never.clone(), remembered, records.rival());
        gather.names.max_kills_per_hour = protection.max_kills_per_hour;
        for (target, user) in gather.strangers() {
            tracing::error!(
                target_name = target.name.as_str(),
                user,
                "There is no such user; the target is disarmed."
            );
        }
        let enforce = targets.iter().any(|target| target.limits.mode == Mode::Enforce);
        let errands = Errands {
            hooks: hooks.map(|hooks| Box::new(hooks) as _),
            webhooks: webhooks(&targets, protection.webhook_certificate.clone()),
            records: Some(records.errand()),
        };
        let machine = never.clone().filter(|_| enforce && !records.rival()).and_then(|never| {
            let armed = Machine::arm(executor::Mode::Enforce, &roots.proc, &roots.cgroup, never, errands);
            armed.inspect_err(|error| tracing::error!(%error, "Nobody can be signalled.")).ok()
        });
        let hands = Hands {
            enforce: machine.map(|machine| Box::new(machine) as _),
            observe: Box::new(Observer::new(never.unwrap_or_default())),
        };
        let meter = HostMeter::open(&roots.proc);
        let meter =
            meter.inspect_err(|error| tracing::warn!(%error, "The host's memory cannot be read.")).ok();
        let scribe = Scribe::start(Arc::clone(&targets))?;
        let ledger = records.ledger(&format!("{:08x}", digest(protection)));
        let flight = Arc::clone(records.flight());
        let memory = records.memory();
        let book = Box::new(Book::new(ledger, scribe, flight, memory, Arc::clone(&targets)));
        let slot = Arc::clone(&shared.slot);
        let mut watch =
            Watch::new(targets, protection.max_kills_per_hour, slot, meter, hands, checkpoints, book);
        // A restart, or a reload, is no new hour.
        watch.recall(&ends);
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new().name("guard".to_owned()).stack_size(STACK).spawn({
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
            move || run(watch, &shared, &stop)
        })?;
        for target in &*shared.targets {
            tracing::info!("Protection of {target}");
        }
        let feed = Feed { gather, lookout: records.lookout(), shared: Arc::clone(&shared) };
        Ok(Some((Self { shared, stop, thread: Some(thread) }, feed)))
    }

    /// What is shared with the rest of the daemon.
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether a round was made lately.
    pub fn alive(&self, now: Timestamp) -> bool {
        /// Many times the longest pause.
        const STUCK: Duration = Duration::from_secs(15);
        self.shared.newest().at.is_none_or(|at| now.since(at) < STUCK)
    }
}

impl Drop for Guard {
    /// Ends the thread; a round that hangs is left behind.
    fn drop(&mut self) {
        /// Rounds take microseconds; letting paused groups go on takes one write each.
        const PATIENCE: Duration = Duration::from_millis(300);
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        let begun = clock::now();
        while !thread.is_finished() && clock::now().since(begun) < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Who calls web services, where a target that may act has one.
fn webhooks(targets: &[Target], certificate: Option<PathBuf>) -> Option<Box<dyn Errand>> {
    let wanted = |target: &Target| target.webhook.is_some() && target.limits.mode == Mode::Enforce;
    targets.iter().any(wanted).then_some(())?;
    let trust = Trust::of(certificate);
    let secure = |target: &Target| target.webhook.as_ref().is_some_and(|url| url.starts_with("https://"));
    if targets.iter().any(|target| wanted(target) && secure(target))
        && let Err(error) = trust.roots()
    {
        // They are read again for each call.
        tracing::error!(%error, "No https webhook can be called.");
    }
    let started = Webhooks::start(trust);
    let started = started.inspect_err(|error| tracing::error!(%error, "No web service can be called."));
    Some(Box::new(started.ok()?))
}

/// Tells one configuration of protection from another, in records: FNV-1a of everything it says.
fn digest(protection: &Protection) -> u32 {
    let said = format!("{protection:?}");
    said.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The helper that starts hooks, where a target that may act has one.
fn hooks(targets: &[Target], helper: Option<WorkerCommand>, proc: &Path) -> Option<Hooks> {
    let wanted = |target: &Target| target.hook.is_some() && target.limits.mode == Mode::Enforce;
    let helper = helper.filter(|_| targets.iter().any(wanted))?;
    Hooks::start(helper, proc).inspect_err(|error| tracing::error!(%error, "No hook can be started.")).ok()
}

/// The guard's thread.
fn run(mut watch: Watch, shared: &Shared, stop: &AtomicBool) {
    watch.report().locked = match memory::lock() {
        Ok(()) => true,
        Err(error) => {
            tracing::info!(%error, "The guard's memory is not locked; it wants CAP_IPC_LOCK or a larger limit.");
            false
        }
    };
    if !priority::go_first() {
        tracing::info!(
            "The guard waits for its turn where the processors are busy; it wants CAP_SYS_NICE or LimitNICE."
        );
    }
    let mut due = clock::now();
    while !stop.load(Ordering::Relaxed) {
        let late = clock::now().since(due);
        let report = watch.report();
        report.lag = report.lag.max(late);
        report.cpu = clock::thread_cpu();
        let pause = watch.round(&clock::now);
        if let Ok(mut out) = shared.report.try_lock() {
            out.copy(watch.report());
        }
        due = clock::now().plus(pause);
        std::thread::park_timeout(pause);
    }
    watch.finish(&clock::now);
}

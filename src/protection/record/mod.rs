//! The records of protection: the audit log, and a folder per incident.
//!
//! [`ledger`] takes the guard's records without blocking; `recorder` writes incident folders on another thread;
//! `oom_kills` and `killed` make records of processes that the kernel, or another program, killed.

pub mod audit;
mod circumstances;
pub mod flight;
mod killed;
pub mod ledger;
mod memory;
mod oom_kills;
mod paused;
mod record_step;
mod recorder;
mod retention;
mod samples;
pub mod store;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::audit::{AuditLog, LogPath};
use self::circumstances::circumstances;
use self::flight::Flight;
use self::killed::KilledJobs;
pub use self::killed::SharedJobPids;
use self::ledger::Ledger;
use self::memory::MemoryThread;
pub use self::memory::{End, Memory, Remembered};
use self::oom_kills::OomKills;
use self::record_step::RecordExecutor;
pub use self::recorder::{Recorder, Status};
use self::store::Store;
use super::enforce::executor::BackgroundExecutor;
use crate::config::Config;
use crate::engine::Frames;
use crate::events::{Events, RecordsState};
use crate::host::{capability, cgroup, clock, fs, lock};
use crate::model::error_chain::error_chain;
use crate::model::frame::Frame;
use crate::model::lock::lock;
use crate::protection::types::incidents::{Entry, entries};

/// Reports the features of the system that protection lacks; `proc` is the process file system, and `cgroup` is where the
/// cgroup file systems are mounted.
/// They are logged only where something is `protected`.
pub fn report_missing_capabilities(proc: &Path, cgroup: &Path, protected: bool, events: &Events) {
    let psi = proc.join("pressure/memory").exists();
    let mut needs = vec![("psi", psi, "pressure is not told (the kernel may want psi=1 at boot)")];
    if let Some(writable) = cgroup::writable(cgroup) {
        let lost =
            "the cgroup file system is mounted read-only, so no limit can be raised and no cgroup frozen";
        needs.push(("cgroup_writable", writable, lost));
    }
    if let Some(mask) = capability::effective(proc) {
        let held = |(name, number, lost)| (name, capability::holds(mask, number), lost);
        needs.extend(capability::WANTED.map(held));
    }
    events.protection_needs(&needs, protected);
}

/// Interval at which a daemon checks whether another daemon with the same state directory has ended.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum size of a file of the audit log in bytes, and the number of older files that are kept.
const AUDIT_BYTES: u64 = 16 << 20;
const AUDIT_FILES: u32 = 4;

/// The last minutes of the watched readings. Callers must not block on the lock.
pub type SharedFlight = Arc<Mutex<Flight>>;

/// The newest frame and the one before it, the newest last.
pub(super) type SharedFrames = Arc<Mutex<Vec<Arc<Frame>>>>;

#[derive(Debug)]
pub struct Records {
    audit: AuditLog,
    recorder: Arc<Recorder>,
    /// The readings of the guard.
    pub flight: SharedFlight,
    frames: SharedFrames,
    /// The incident folders; absent where incidents are kept in memory only.
    pub store: Option<Store>,
    events: Arc<Events>,
    /// The jobs of processes.
    pub job_pids: SharedJobPids,
    passwd: PathBuf,
    archive: MemoryThread,
    hold: Hold,
    /// Whether a failure of the audit log has been reported.
    audit_troubled: AtomicBool,
}

/// The state directory: the folder of the state file, or the one that systemd sets; absent where there is neither.
pub fn folder(config: &Config) -> Option<PathBuf> {
    let given = || std::env::var_os("STATE_DIRECTORY").map(PathBuf::from);
    config.state_file.as_deref().and_then(Path::parent).map(Path::to_owned).or_else(given)
}

/// The state directory, and how it is locked.
struct StateFolder {
    path: PathBuf,
    /// Why it is not used; another user can change it.
    refused: Option<std::io::Error>,
    /// The folder of `web.socket`, if no other user can change it.
    sockets: Option<PathBuf>,
}

impl StateFolder {
    fn of(config: &Config) -> Option<Self> {
        let path = folder(config)?;
        let refused = fs::check_folder(&path, true).err();
        let sockets = config.web.socket.as_deref().and_then(Path::parent).map(Path::to_owned);
        let sockets = sockets.filter(|folder| fs::check_folder(folder, true).is_ok());
        Some(Self { path, refused, sockets })
    }

    /// Its path, if it is used.
    fn used(self) -> Option<PathBuf> {
        self.refused.is_none().then_some(self.path)
    }

    /// Takes its lock; nothing if another process has it. Two daemons would also act on the same jobs without records.
    fn lock(&self) -> std::io::Result<Option<std::fs::File>> {
        match (&self.refused, &self.sockets) {
            (None, _) => lock::take(&self.path),
            (Some(_), Some(sockets)) => lock::take_elsewhere(sockets, &self.path),
            (Some(_), None) => {
                Err(std::io::Error::other("other users can write to it, and to that of web.socket"))
            }
        }
    }
}

/// The incidents in a state directory.
pub fn store(folder: &Path) -> Store {
    Store::new(folder.join("incidents"))
}

/// Whether this process has locked the state directory.
#[derive(Debug)]
enum Hold {
    /// There is no state directory, or it cannot be locked.
    Nothing,
    /// The lock, held until the process ends.
    Alone(#[expect(dead_code, reason = "held, and never looked at")] std::fs::File),
    /// Another process has locked it.
    OtherDaemon,
}

impl Hold {
    /// Locks the folder; waits for a daemon that is just ending.
    fn of(state: &StateFolder) -> Self {
        /// Time that most daemons take to end.
        const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
        let begun = clock::now();
        let folder = &state.path;
        loop {
            match state.lock() {
                Ok(Some(file)) => return Self::Alone(file),
                Ok(None) if clock::now().since(begun) < LOCK_TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Ok(None) => {
                    tracing::error!(
                        folder = %folder.display(),
                        "Another memwarden uses this state directory. Both would act on the same jobs: this one protects \
                         nothing, and keeps its incident records and audit log in memory only, until the other has \
                         ended, which is checked every {} s. To run both, configure another state.file and \
                         different targets.",
                        RETRY_INTERVAL.as_secs()
                    );
                    return Self::OtherDaemon;
                }
                Err(error) => {
                    tracing::warn!(folder = %folder.display(), %error, "Cannot lock the state directory.");
                    return Self::Nothing;
                }
            }
        }
    }
}

impl Records {
    /// Opens the audit log and starts the threads; logs what cannot be written.
    pub fn start(config: &Config, events: Arc<Events>) -> std::io::Result<Self> {
        let state = StateFolder::of(config);
        if let Some(StateFolder { path, refused: Some(error), .. }) = &state {
            tracing::error!(
                folder = %path.display(),
                %error,
                "The state directory is not used: incident records and the audit log are kept in memory only."
            );
        }
        let hold = state.as_ref().map_or(Hold::Nothing, Hold::of);
        Self::with(hold, state.and_then(StateFolder::used), config, events)
    }

    /// Starts again after another daemon has ended; absent while it has not.
    ///
    /// # Errors
    /// If a thread cannot be started, or the lock fails for another reason.
    pub fn retry(config: &Config, events: Arc<Events>) -> std::io::Result<Option<Self>> {
        let Some(state) = StateFolder::of(config) else { return Ok(None) };
        let Some(file) = state.lock()? else { return Ok(None) };
        Self::with(Hold::Alone(file), state.used(), config, events).map(Some)
    }

    fn with(
        hold: Hold,
        folder: Option<PathBuf>,
        config: &Config,
        events: Arc<Events>,
    ) -> std::io::Result<Self> {
        // Two daemons that write into the same files would damage them.
        let folder = folder.filter(|_| !matches!(hold, Hold::OtherDaemon));
        if let Some(folder) = &folder {
            paused::let_go(folder.join("audit.jsonl"), config.paths.cgroup.clone());
        }
        let place = folder.as_deref().map(|folder| LogPath {
            path: folder.join("audit.jsonl"),
            most_bytes: AUDIT_BYTES,
            keep: AUDIT_FILES,
        });
        let audit = AuditLog::start(place)?;
        let store = folder.as_deref().map(store);
        let mut trouble = None;
        match &store {
            Some(store) => {
                if let Err(error) = store.check() {
                    let error = error_chain(&error);
                    tracing::error!(
                        error,
                        "Cannot write incident records; the next incident is tried again."
                    );
                    trouble = Some(error);
                }
            }
            None => {
                tracing::info!(
                    "Incident records and the audit log are kept in memory only: state.file is not set."
                )
            }
        }
        let boot = fs::read_text(&config.paths.proc.join("sys/kernel/random/boot_id")).unwrap_or_default();
        let past = folder.as_deref().map(|folder| folder.join("protection.jsonl"));
        let archive = MemoryThread::start(past, boot.trim().to_owned())?;
        let flight = SharedFlight::default();
        let frames = SharedFrames::default();
        let proc = config.paths.proc.clone();
        let (read, known) = (Arc::clone(&flight), Arc::clone(&frames));
        let written = Recorder::start(store.clone(), audit.clone(), proc, read, known, trouble);
        let recorder = Arc::new(written?);
        let records = Self {
            audit,
            recorder,
            flight,
            frames,
            store,
            events,
            job_pids: SharedJobPids::default(),
            passwd: config.paths.passwd.clone(),
            archive,
            hold,
            audit_troubled: AtomicBool::default(),
        };
        records.report_status();
        Ok(records)
    }

    /// Whether another memwarden uses the same state directory: this one must not act then.
    pub const fn other_daemon(&self) -> bool {
        matches!(self.hold, Hold::OtherDaemon)
    }

    /// Reports whether the records are written.
    fn report_status(&self) {
        let (audit, incidents) = (self.audit.status(), self.recorder.status());
        let troubled = audit.trouble.is_some();
        if self.audit_troubled.swap(troubled, Ordering::Relaxed) != troubled {
            match &audit.trouble {
                Some(error) => {
                    tracing::error!(error, "Cannot write the audit log; writing is tried again.");
                }
                None => tracing::info!("The audit log is written again."),
            }
        }
        self.events.records(RecordsState {
            on_disk: self.store.is_some(),
            audit_writable: audit.trouble.is_none(),
            incidents_writable: incidents.trouble.is_none(),
            audit_lost: audit.lost,
            incidents_lost: incidents.lost,
            incidents: incidents.written,
        });
    }

    /// The actions of protection so far, those of earlier runs included.
    pub fn remembered(&self) -> Remembered {
        self.archive.remembered()
    }

    /// The store of actions that outlast a restart, for the guard.
    pub fn memory(&self) -> Memory {
        self.archive.memory()
    }

    /// The ledger for the guard; `config` is the first digits of the configuration's hash.
    pub fn ledger(&self, config: &str) -> Ledger {
        Ledger::new(self.audit.clone(), Arc::clone(&self.recorder), config)
    }

    #[cfg(test)]
    pub const fn audit(&self) -> &AuditLog {
        &self.audit
    }

    /// The executor of the step that writes the incident record.
    pub fn executor(&self) -> Box<dyn BackgroundExecutor> {
        Box::new(RecordExecutor::new(Arc::clone(&self.recorder)))
    }

    /// The recorder of incident folders.
    #[cfg(test)]
    pub const fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Writes all records; waits for at most this time.
    pub fn finish(&self, within: Duration) {
        let begun = clock::now();
        if !self.recorder.flush(within) {
            tracing::warn!(
                "Cannot write all incident records in time; the end of an incident may be missing."
            );
        }
        if self.store.is_some() {
            self.audit.flush(within.saturating_sub(clock::now().since(begun)));
        }
    }

    /// What reads OOM kills and the host's memory from frames; `of_jobs`: kills of protected jobs only.
    pub fn follower(self: &Arc<Self>, of_jobs: bool) -> Follower {
        let (oom_kills, killed) = (OomKills::new(&self.passwd), KilledJobs::default());
        Follower { records: Arc::clone(self), oom_kills, killed, of_jobs }
    }

    /// Follows every frame, until there are no more.
    pub async fn follow(self: Arc<Self>, mut frames: Frames) {
        let mut follower = self.follower(false);
        while frames.changed().await.is_ok() {
            let frame = frames.borrow_and_update().clone();
            frame.into_iter().for_each(|frame| follower.look(&frame));
        }
    }
}

/// Reads OOM kills and the host's memory from frames.
#[derive(Debug)]
pub struct Follower {
    records: Arc<Records>,
    oom_kills: OomKills,
    killed: KilledJobs,
    of_jobs: bool,
}

impl Follower {
    /// Writes all records, and returns the incidents; absent where they are in memory only, or cannot be listed. Waits for at
    /// most this time.
    pub fn finish(self, within: Duration) -> Option<Vec<Entry>> {
        self.records.finish(within);
        self.records.store.as_ref().and_then(|store| entries(store).ok())
    }

    /// Reads them from the next frame.
    pub fn look(&mut self, frame: &Arc<Frame>) {
        let records = &self.records;
        if let Some(sample) = oom_kills::host(frame)
            && let Ok(mut flight) = records.flight.try_lock()
        {
            flight.push(sample);
        }
        records.report_status();
        let known = {
            let mut frames = lock(&records.frames);
            let old = frames.len().saturating_sub(1);
            frames.drain(..old);
            frames.push(Arc::clone(frame));
            frames.clone()
        };
        let jobs = lock(&records.job_pids);
        for mut incident in self.oom_kills.look(frame, self.of_jobs.then_some(&*jobs)) {
            incident.circumstances = circumstances(&known, &oom_kills::about(&incident));
            records.recorder.record(incident);
        }
        let killed = self.killed.record(frame, &jobs);
        killed.into_iter().for_each(|incident| records.recorder.record(incident));
    }
}

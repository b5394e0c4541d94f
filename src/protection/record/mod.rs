//! What is written down of protection: the audit log, and a folder for each incident.
//!
//! [`ledger`] is where the guard puts what it does, without a wait; `recorder`
//! makes folders of it on a thread of its own; `strikes` sees what the kernel's
//! OOM killer did, so that there is a record even when nobody else acted.

pub mod audit;
pub mod flight;
pub mod ledger;
mod memory;
mod paused;
mod recorder;
pub mod report;
pub mod store;
mod strikes;
mod summary;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::audit::{AuditLog, Place};
use self::flight::Flight;
use self::ledger::Ledger;
use self::memory::Archive;
pub use self::memory::{End, Memory, Remembered};
use self::recorder::RecordErrand;
pub use self::recorder::{Recorder, Status};
use self::store::Store;
use self::strikes::{Kills, Strikes};
use super::enforce::deaths::{Death, Deaths};
use super::enforce::executor::Errand;
use crate::config::Config;
use crate::engine::Frames;
use crate::events::{Events, RecordsState};
use crate::host::{capability, clock, fs, lock};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::protection::words::incidents::Incidents;

/// Says what of the system protection has to do without; `proc` is where processes are.
pub fn tell_needs(proc: &Path, events: &Events) {
    let psi = proc.join("pressure/memory").exists();
    let mut needs = vec![("psi", psi, "pressure is not told (the kernel may want psi=1 at boot)")];
    if let Some(mask) = capability::effective(proc) {
        let held = |(name, number, lost)| (name, capability::holds(mask, number), lost);
        needs.extend(capability::WANTED.map(held));
    }
    events.protection_needs(&needs);
}

/// How often a daemon that found a rival looks whether that has ended.
pub const TRY_AGAIN: Duration = Duration::from_secs(10);
/// Incidents that are kept.
const INCIDENTS: usize = 100;
/// All incidents together.
const INCIDENT_BYTES: u64 = 512 << 20;
/// One file of the audit log, and how many older ones are kept.
const AUDIT_BYTES: u64 = 16 << 20;
const AUDIT_FILES: u32 = 4;

/// The last minutes of what is watched, for whoever adds to it; nobody may wait for it.
pub type SharedFlight = Arc<Mutex<Flight>>;

/// Sees how watched processes end.
#[derive(Clone, Debug)]
pub struct Lookout {
    deaths: Arc<Mutex<Deaths>>,
    proc: PathBuf,
}

impl Lookout {
    /// Watches how the processes of these jobs end, each with the name of its target; one that `SIGKILL` ends is an
    /// incident.
    pub fn watch<'k>(&self, jobs: impl Iterator<Item = (&'k Label, &'k [ProcessKey])>) {
        lock(&self.deaths).watch(&self.proc, jobs);
    }

    fn poll(&self) -> Vec<Death> {
        lock(&self.deaths).poll()
    }
}

/// Everything that writes down.
#[derive(Debug)]
pub struct Records {
    audit: AuditLog,
    recorder: Arc<Recorder>,
    flight: SharedFlight,
    store: Option<Store>,
    events: Arc<Events>,
    lookout: Lookout,
    archive: Archive,
    hold: Hold,
    /// Whether it was said that the audit log cannot be written.
    audit_troubled: AtomicBool,
}

/// The folder beside the state file, or the one that systemd gives; nothing where there is neither.
pub fn folder(config: &Config) -> Option<PathBuf> {
    let given = || std::env::var_os("STATE_DIRECTORY").map(PathBuf::from);
    config.state_file.as_deref().and_then(Path::parent).map(Path::to_owned).or_else(given)
}

/// The incidents below a folder of state.
pub fn store(folder: &Path) -> Store {
    Store::new(folder.join("incidents"), INCIDENTS, INCIDENT_BYTES)
}

/// The incidents in a folder that has nothing else, to be read only.
pub fn incidents(folder: PathBuf) -> Box<dyn Incidents> {
    Box::new(Store::new(folder, 1, u64::MAX))
}

/// What this process has of the folder of state.
#[derive(Debug)]
enum Hold {
    /// There is no folder, or none that can be locked.
    Nothing,
    /// The lock, for as long as the process lives.
    Alone(#[expect(dead_code, reason = "held, and never looked at")] std::fs::File),
    /// Another process has it.
    Rival,
}

impl Hold {
    /// Takes the lock of the folder; one who ends just now is waited for.
    fn of(folder: &Path) -> Self {
        /// Most daemons end within a moment.
        const PATIENCE: Duration = Duration::from_secs(3);
        let begun = clock::now();
        loop {
            match lock::take(folder) {
                Ok(Some(file)) => return Self::Alone(file),
                Ok(None) if clock::now().since(begun) < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Ok(None) => {
                    tracing::error!(
                        folder = %folder.display(),
                        "Another memwarden uses this folder of state. Two would ask and end the same jobs: nothing is \
                         protected by this one, and its incidents and audit log are kept in memory only, until the \
                         other has ended, which is tried every {} s. Give it another state.file and its own targets \
                         if both are to run.",
                        TRY_AGAIN.as_secs()
                    );
                    return Self::Rival;
                }
                Err(error) => {
                    tracing::warn!(folder = %folder.display(), %error, "The folder of state cannot be locked.");
                    return Self::Nothing;
                }
            }
        }
    }
}

impl Records {
    /// Opens the audit log and starts the threads; says so where something cannot be written.
    ///
    /// # Errors
    /// The operating system's, where it gives no thread.
    pub fn start(config: &Config, events: Arc<Events>) -> std::io::Result<Self> {
        let hold = folder(config).map_or(Hold::Nothing, |folder| Hold::of(&folder));
        Self::with(hold, config, events)
    }

    /// Starts in the place of those of a daemon that found a rival; nothing while the rival has not ended.
    ///
    /// # Errors
    /// The operating system's, where it gives no thread, or no lock for another reason.
    pub fn retry(config: &Config, events: Arc<Events>) -> std::io::Result<Option<Self>> {
        let Some(folder) = folder(config) else { return Ok(None) };
        let Some(file) = lock::take(&folder)? else { return Ok(None) };
        Self::with(Hold::Alone(file), config, events).map(Some)
    }

    fn with(hold: Hold, config: &Config, events: Arc<Events>) -> std::io::Result<Self> {
        // Two that write into the same files would spoil them for both.
        let folder = folder(config).filter(|_| !matches!(hold, Hold::Rival));
        if let Some(folder) = &folder {
            paused::let_go(folder.join("audit.jsonl"), config.paths.cgroup.clone());
        }
        let place = folder.as_deref().map(|folder| Place {
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
                    let error = format!("{:#}", anyhow::Error::new(error));
                    tracing::error!(error, "Incidents cannot be written; it is tried again with each.");
                    trouble = Some(error);
                }
            }
            None => {
                tracing::info!("Incidents and the audit log are kept in memory only: there is no state.file.")
            }
        }
        let boot = fs::read_text(&config.paths.proc.join("sys/kernel/random/boot_id")).unwrap_or_default();
        let past = folder.as_deref().map(|folder| folder.join("protection.jsonl"));
        let archive = Archive::start(past, boot.trim().to_owned())?;
        let flight = SharedFlight::default();
        let proc = config.paths.proc.clone();
        let written =
            Recorder::start(store.clone(), audit.clone(), proc.clone(), Arc::clone(&flight), trouble);
        let recorder = Arc::new(written?);
        if !Deaths::told() {
            tracing::info!("How watched processes end is not known here: the kernel tells it since 6.15.");
        }
        let records = Self {
            audit,
            recorder,
            flight,
            store,
            events,
            lookout: Lookout { deaths: Arc::default(), proc },
            archive,
            hold,
            audit_troubled: AtomicBool::default(),
        };
        records.tell();
        Ok(records)
    }

    /// Whether another memwarden protects with the same folder of state: this one must not act then.
    pub const fn rival(&self) -> bool {
        matches!(self.hold, Hold::Rival)
    }

    /// Where incidents are; nothing where they are kept in memory only.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Says how writing fares.
    fn tell(&self) {
        let (audit, incidents) = (self.audit.status(), self.recorder.status());
        let troubled = audit.trouble.is_some();
        if self.audit_troubled.swap(troubled, Ordering::Relaxed) != troubled {
            match &audit.trouble {
                Some(error) => {
                    tracing::error!(
                        error,
                        "The audit log of protection cannot be written; it is tried again."
                    );
                }
                None => tracing::info!("The audit log of protection is written again."),
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

    /// What protection did before, also in an earlier run.
    pub fn remembered(&self) -> Remembered {
        self.archive.remembered()
    }

    /// Where the guard puts what must not be forgotten.
    pub fn memory(&self) -> Memory {
        self.archive.memory()
    }

    /// Where the guard puts what it does; `config` is the first digits of the configuration's hash.
    pub fn ledger(&self, config: &str) -> Ledger {
        Ledger::new(self.audit.clone(), Arc::clone(&self.recorder), config)
    }

    /// Where the guard puts what it reads.
    pub fn flight(&self) -> &SharedFlight {
        &self.flight
    }

    /// Who carries out the step that writes down what is known.
    pub fn errand(&self) -> Box<dyn Errand> {
        Box::new(RecordErrand::new(Arc::clone(&self.recorder)))
    }

    /// Who writes folders.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Who sees how processes end.
    pub fn lookout(&self) -> Lookout {
        self.lookout.clone()
    }

    /// Has everything written down, and waits for it at most so long.
    pub fn finish(&self, within: Duration) {
        let begun = clock::now();
        if !self.recorder.flush(within) {
            tracing::warn!("The last of what is known of incidents could not be written in time.");
        }
        if self.store.is_some() {
            self.audit.flush(within.saturating_sub(clock::now().since(begun)));
        }
    }

    /// Looks at every frame for what the kernel did, and keeps what it says of the host, until there are no more.
    pub async fn follow(self: Arc<Self>, mut frames: Frames) {
        let (mut strikes, mut kills) = (Strikes::default(), Kills::default());
        let remembered = self.archive.known();
        while frames.changed().await.is_ok() {
            let Some(frame) = frames.borrow_and_update().clone() else { continue };
            if let Some(sample) = strikes::host(&frame)
                && let Ok(mut flight) = self.flight.try_lock()
            {
                flight.push(sample);
            }
            self.tell();
            if let Some(incident) = strikes.look(&frame) {
                tracing::warn!(incident = incident.id, "{}", incident.summary);
                self.recorder.record(incident);
            }
            // After the strikes, whose victims are told better there.
            for incident in kills.look(&frame, self.lookout.poll(), |key| remembered.killed(key)) {
                self.recorder.record(incident);
            }
        }
    }
}

//! `--guard`: protection of the command without a daemon.

use std::path::PathBuf;

use crate::app::{guarded_engine, log};
use crate::cli::out;
use crate::config::{Config, LogFormat, LogLevel};
use crate::host::clock;
use crate::model::printable;
use crate::model::units::Bytes;
use crate::protection::options::Protection;
use crate::protection::types::incidents::Entry;

/// What `--guard` asks for.
#[derive(Debug)]
pub(super) struct Guarded {
    limit: Option<Bytes>,
    /// The folder of its records; absent where the user has no home.
    folder: Option<PathBuf>,
    _logger: log::Logger,
}

impl Guarded {
    /// Starts the log of the guard, on standard error; `set` are the options of the command line.
    ///
    /// # Errors
    /// If the log cannot be started.
    pub(super) fn new(config: &Config, set: &[String], limit: Option<Bytes>) -> anyhow::Result<Self> {
        let mut log = config.log.clone();
        let is_set = |key: &str| set.iter().any(|text| text.starts_with(key));
        if !is_set("log.level=") {
            log.level = LogLevel::Warn;
        }
        if !is_set("log.format=") && log.format == LogFormat::default() {
            log.format = LogFormat::Text;
        }
        let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let state = given("XDG_STATE_HOME").or_else(|| given("HOME").map(|home| home.join(".local/state")));
        let run = format!("run-{}-{}", clock::now().unix().as_secs(), std::process::id());
        Ok(Self {
            limit,
            folder: state.map(|state| state.join("memwarden").join(run)),
            _logger: log::start(&log)?,
        })
    }

    /// The options that it sets.
    pub(super) fn settings(&self) -> Option<String> {
        self.folder.as_ref().map(|folder| format!("state.file={}", folder.join("state.json").display()))
    }

    /// The protection of a workload.
    ///
    /// # Errors
    /// If its name contains a wildcard.
    pub(super) fn protection(&self, workload: &str) -> anyhow::Result<Protection> {
        guarded_engine::protection_of(workload, self.limit)
    }

    /// Names the incidents; without one, the folder is removed.
    pub(super) fn tell(&self, incidents: &[Entry]) {
        let Some(folder) = &self.folder else { return };
        if incidents.is_empty() {
            // Another run may have its folder beside it.
            let _ = std::fs::remove_dir_all(folder);
            let _ = folder.parent().map_or(Ok(()), std::fs::remove_dir);
        }
        for incident in incidents {
            let summary = incident.summary.as_deref().unwrap_or("The record is damaged.");
            let summary = printable::escaped(summary);
            let (folder, id) = (printable::path(&folder.join("incidents")), &incident.id);
            out::note(&format!(
                "memwarden: protection: {summary} Report: memwarden incidents --folder {folder} {id}\n"
            ));
        }
    }
}

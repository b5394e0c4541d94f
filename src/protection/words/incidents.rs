//! Incidents as those who show them see them: over HTTP and on the command line.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::incident::{Cause, Incident};

/// The file of an incident that has its record.
pub const RECORD: &str = "incident.json";

/// The version of the list's shape: it grows when a key changes its meaning or is removed.
const SCHEMA_VERSION: u32 = 1;

/// What could not be done with which folder.
#[derive(Debug, thiserror::Error)]
pub enum IncidentError {
    /// It is no name of an incident.
    #[error("`{0}` is no incident's name")]
    Name(String),
    /// A file or folder cannot be read or written.
    #[error("cannot {what} {path}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// One incident of a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// Its name, which is its folder's.
    pub id: String,
    /// All its files together.
    pub bytes: u64,
    /// Whether its record can be read; the rest is absent where not.
    pub complete: bool,
    /// Why there is a record.
    pub cause: Option<Cause>,
    /// The target's name, or the victim's group.
    pub target: Option<String>,
    /// `observe`, `enforce` or `drill`.
    pub mode: Option<String>,
    /// When it began, in seconds since 1970.
    pub began_unix_seconds: Option<f64>,
    /// When it was over; absent while it goes on.
    pub ended_unix_seconds: Option<f64>,
    /// What happened, one sentence.
    pub summary: Option<String>,
    /// How many steps were carried out.
    pub steps: Option<usize>,
}

/// Reads incidents. May wait for a disk.
pub trait Incidents: std::fmt::Debug + Send + Sync {
    /// The folder that has one folder for each.
    fn folder(&self) -> &Path;

    /// The name of each and the bytes of all its files, oldest first.
    ///
    /// # Errors
    /// Where the folder is there and cannot be read.
    fn names(&self) -> Result<Vec<(String, u64)>, IncidentError>;

    /// One file of an incident.
    ///
    /// # Errors
    /// Where there is none, or it cannot be read.
    fn file(&self, id: &str, name: &str) -> Result<Vec<u8>, IncidentError>;
}

/// All incidents, newest first; one whose record is damaged is in the list too.
///
/// # Errors
/// Where the folder cannot be listed.
pub fn entries(incidents: &dyn Incidents) -> Result<Vec<Entry>, IncidentError> {
    let names = incidents.names()?;
    let entries = names.into_iter().rev().map(|(id, bytes)| {
        let record = incidents.file(&id, RECORD).ok();
        let record = record.and_then(|record| serde_json::from_slice::<Incident>(&record).ok());
        let complete = record.is_some();
        let mut entry = Entry {
            id,
            bytes,
            complete,
            cause: None,
            target: None,
            mode: None,
            began_unix_seconds: None,
            ended_unix_seconds: None,
            summary: None,
            steps: None,
        };
        if let Some(record) = record {
            entry.cause = Some(record.cause);
            entry.began_unix_seconds = Some(record.began_unix_seconds);
            entry.ended_unix_seconds = record.ended_unix_seconds;
            entry.steps = Some(record.steps.len());
            entry.target = Some(record.target);
            entry.mode = Some(record.mode);
            entry.summary = Some(record.summary);
        }
        entry
    });
    Ok(entries.collect())
}

/// The list as one JSON object; that of a daemon that keeps no incidents where there are none.
///
/// # Errors
/// As [`entries`].
pub fn json(incidents: Option<&dyn Incidents>) -> Result<Vec<u8>, IncidentError> {
    #[derive(Serialize)]
    struct List {
        schema_version: u32,
        incidents: Vec<Entry>,
    }
    let incidents = incidents.map(entries).transpose()?.unwrap_or_default();
    let list = List { schema_version: SCHEMA_VERSION, incidents };
    Ok(serde_json::to_vec(&list).expect("keys are text and writing to memory cannot fail"))
}

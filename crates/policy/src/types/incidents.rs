//! The list of incidents, for HTTP and the command line.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::model::ends::End;

use super::incident::{Cause, Circumstances, Incident};

/// The file of an incident that has its record, without transitions and steps while it is in progress.
pub const RECORD: &str = "incident.json";
/// The file with its lines of the audit log.
pub const LINES: &str = "audit.jsonl";

/// Whether a name is a plain file name, as the ids and files of incidents are.
pub fn is_plain(name: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(fine)
}

/// The version of the list format: it grows when a key changes its meaning or is removed.
const SCHEMA_VERSION: u32 = 1;

/// An incident that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum IncidentError {
    /// The name is not an incident id.
    #[error("`{0}` is not an incident id")]
    Name(String),
    /// A file or folder cannot be read or written.
    #[error("cannot {what} {path}")]
    Io {
        /// The operation.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// One incident of a list.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Entry {
    /// Its id, which is the name of its folder.
    pub id: String,
    /// The size of all its files in bytes.
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
    /// When it ended, in seconds since 1970; absent while it is in progress.
    pub ended_unix_seconds: Option<f64>,
    /// The summary, one sentence.
    pub summary: Option<String>,
    /// The number of steps carried out.
    pub steps: Option<usize>,
    /// How the process ended that another program killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<Box<End>>,
    #[serde(flatten)]
    pub circumstances: Circumstances,
    /// The id of the incident on all nodes of its run; absent where no other node asked or was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_incident: Option<String>,
    /// The node that asked for a checkpoint of the run; absent where none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<String>,
    /// The run whose other nodes were asked for a checkpoint; absent where none were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_run: Option<String>,
    /// What came back from them; absent where no answer is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<String>,
}

/// Reads incidents. May block on a disk.
pub trait Incidents: std::fmt::Debug + Send + Sync {
    /// The folder with one folder per incident.
    fn folder(&self) -> &Path;

    /// The id of each incident and the size of its files in bytes, oldest first.
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

/// The record of an incident; absent where it cannot be read.
pub fn record(incidents: &dyn Incidents, id: &str) -> Option<Incident> {
    completed(incidents, id, &incidents.file(id, RECORD).ok()?)
}

/// The record of an incident, of which `record` is the file; absent where it is damaged.
pub fn completed(incidents: &dyn Incidents, id: &str, record: &[u8]) -> Option<Incident> {
    let mut incident: Incident = serde_json::from_slice(record).ok()?;
    if incident.ended_unix_seconds.is_none()
        && let Ok(lines) = incidents.file(id, LINES)
    {
        incident.complete(&lines);
    }
    Some(incident)
}

/// All incidents, newest first; one whose record is damaged is in the list too.
///
/// # Errors
/// Where the folder cannot be listed.
pub fn entries(incidents: &dyn Incidents) -> Result<Vec<Entry>, IncidentError> {
    let names = incidents.names()?;
    let entries = names.into_iter().rev().map(|(id, bytes)| {
        let Some(record) = record(incidents, &id) else { return Entry { id, bytes, ..Entry::default() } };
        Entry {
            id,
            bytes,
            complete: true,
            cause: Some(record.cause),
            began_unix_seconds: Some(record.began_unix_seconds),
            ended_unix_seconds: record.ended_unix_seconds,
            steps: Some(record.steps.len()),
            run_incident: record.run_incident().map(str::to_owned),
            asked_by: record.asked_by().map(str::to_owned),
            asked_run: record.asked_run().map(str::to_owned),
            answers: record.answers(),
            target: Some(record.target),
            mode: Some(record.mode),
            summary: Some(record.summary),
            end: record.end,
            circumstances: record.circumstances,
        }
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

//! The files of each job's performance logs, within bounds of number and size.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::row::{Row, rows};
use super::summary::Summary;
use super::{table, tensorboard};
use crate::config::{PerfFormat, PerfLog};
use crate::host::fs;
use crate::model::frame::Frame;

/// Jobs logged at once.
const MOST_JOBS: usize = 64;
/// A job that is not in the frames for so long, in seconds, has ended.
const GONE_AFTER: f64 = 60.0;
/// The least time between two summaries of a job, in seconds: each is written whole.
const SUMMARY_EVERY: f64 = 30.0;

/// What could not be done with which file.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
pub struct PerfLogError {
    path: PathBuf,
    source: io::Error,
}

/// Writes the logs of all jobs.
#[derive(Debug)]
pub struct Writer {
    config: PerfLog,
    folder: PathBuf,
    jobs: BTreeMap<String, Job>,
}

/// One run of one job.
#[derive(Debug)]
struct Job {
    folder: PathBuf,
    stamp: String,
    seen: f64,
    last_step: Option<u64>,
    summary: Summary,
    summarized: f64,
    /// Rows since the summary was written.
    fresh: bool,
    text: Option<Growing>,
    realtime: Option<Growing>,
    events: Option<Growing>,
}

/// A file that is appended to, with its length.
#[derive(Debug)]
struct Growing {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Writer {
    /// A writer below the configured folder, if there is one.
    pub fn new(config: &PerfLog) -> Option<Self> {
        let folder = config.folder.clone()?;
        Some(Self { config: config.clone(), folder, jobs: BTreeMap::new() })
    }

    /// Writes what a frame says, where a job has gone far enough since its last row.
    ///
    /// # Errors
    /// The first file that could not be written; the others are.
    pub fn take(&mut self, frame: &Frame) -> Result<(), PerfLogError> {
        let now = frame.at.unix().as_secs_f64();
        let mut outcome = Ok(());
        for (workload, row) in rows(frame) {
            if !self.jobs.contains_key(&workload) && self.jobs.len() >= MOST_JOBS {
                continue;
            }
            let folder = self.folder.join(file_name(&workload));
            let job =
                self.jobs.entry(workload).or_insert_with_key(|workload| Job::new(workload, folder, now));
            job.seen = now;
            // A step that falls is a run that goes on from a checkpoint.
            let due =
                job.last_step.is_none_or(|last| row.step < last || row.step >= last + self.config.every);
            if due {
                job.last_step = Some(row.step);
                outcome = outcome.and(job.write(&row, &self.config));
            }
        }
        let gone: Vec<String> = self
            .jobs
            .iter()
            .filter(|(_, job)| now - job.seen > GONE_AFTER)
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            if let Some(mut job) = self.jobs.remove(&name) {
                outcome = outcome.and(job.summarize(&self.config, true));
            }
        }
        outcome
    }

    /// Writes the summaries that are not up to date.
    ///
    /// # Errors
    /// The first file that could not be written.
    pub fn finish(mut self) -> Result<(), PerfLogError> {
        let mut outcome = Ok(());
        for job in self.jobs.values_mut() {
            outcome = outcome.and(job.summarize(&self.config, true));
        }
        outcome
    }
}

impl Job {
    fn new(workload: &str, folder: PathBuf, now: f64) -> Self {
        Self {
            folder,
            stamp: table::stamp(now),
            seen: now,
            last_step: None,
            summary: Summary::new(workload, now),
            summarized: now,
            fresh: false,
            text: None,
            realtime: None,
            events: None,
        }
    }

    fn write(&mut self, row: &Row, config: &PerfLog) -> Result<(), PerfLogError> {
        DirBuilder::new().recursive(true).mode(0o750).create(&self.folder).map_err(failed(&self.folder))?;
        self.summary.add(row);
        self.fresh = true;
        let Self { folder, stamp, text, realtime, events, .. } = self;
        let mut outcome = Ok(());
        if config.formats.contains(&PerfFormat::Text) {
            let name = format!("perf_metrics_{stamp}.log");
            let line = table::words(row);
            outcome = outcome.and(append(text, folder, &name, line.as_bytes(), config, |_| Vec::new()));
        }
        if config.formats.contains(&PerfFormat::Realtime) {
            let line = table::line(row);
            let head = |_| table::header().into_bytes();
            outcome =
                outcome.and(append(realtime, folder, "perf_realtime.log", line.as_bytes(), config, head));
        }
        if config.formats.contains(&PerfFormat::TensorBoard) {
            // The newest file of a folder is the one that TensorBoard follows: its time is in its name.
            let name = match events {
                Some(open) if open.length < config.size => open.name(),
                _ => format!("events.out.tfevents.{:010}.memwarden", row.unix_seconds.trunc()),
            };
            let scalars = scalars(row);
            let head = |at| tensorboard::file_version(at);
            outcome =
                outcome.and(append(events, folder, &name, &scalars, config, |()| head(row.unix_seconds)));
        }
        outcome.and(self.summarize(config, false))
    }

    /// Writes the summary, unless it is up to date, or was written a moment ago and the run goes on.
    fn summarize(&mut self, config: &PerfLog, end: bool) -> Result<(), PerfLogError> {
        let due = end || self.seen - self.summarized >= SUMMARY_EVERY;
        if !self.fresh || !due || !config.formats.contains(&PerfFormat::Summary) {
            return Ok(());
        }
        let path = self.folder.join(format!("perf_summary_{}.json", self.stamp));
        fs::write_atomically(&path, |out| out.write_all(self.summary.json().as_bytes()))
            .map_err(failed(&path))?;
        self.fresh = false;
        self.summarized = self.seen;
        keep_newest(&self.folder, "perf_summary_", config.files).map_err(failed(&self.folder))
    }
}

fn scalars(row: &Row) -> Vec<u8> {
    let named: Vec<(String, f64)> = super::row::COLUMNS
        .iter()
        .zip(row.values)
        .filter_map(|(column, value)| Some((format!("training/{}", column.name), value?)))
        .collect();
    let values: Vec<(&str, f64)> = named.iter().map(|(tag, value)| (tag.as_str(), *value)).collect();
    tensorboard::scalars(row.unix_seconds, row.step, &values)
}

/// Appends to a file of that name, which is opened, or moved aside where it is full, first.
fn append(
    slot: &mut Option<Growing>,
    folder: &Path,
    name: &str,
    bytes: &[u8],
    config: &PerfLog,
    head: impl FnOnce(()) -> Vec<u8>,
) -> Result<(), PerfLogError> {
    let path = folder.join(name);
    let full = slot.as_ref().is_some_and(|open| open.length >= config.size);
    if full {
        *slot = None;
        if path.exists() {
            move_aside(&path, config.files).map_err(failed(&path))?;
        }
    }
    let growing = match slot.take().filter(|open| open.path == path) {
        Some(open) => open,
        None => {
            let open = Growing::open(&path, &head(())).map_err(failed(&path))?;
            let kind: String = name.chars().take_while(|letter| !letter.is_ascii_digit()).collect();
            if kind != name {
                keep_newest(folder, &kind, config.files).map_err(failed(folder))?;
            }
            open
        }
    };
    let growing = slot.insert(growing);
    growing.file.write_all(bytes).map_err(failed(&path))?;
    growing.length += bytes.len() as u64;
    Ok(())
}

impl Growing {
    fn open(path: &Path, head: &[u8]) -> io::Result<Self> {
        // The folder may be a job's own: what stands there is not followed, and a pipe is not waited for.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        let mut file =
            File::options().append(true).create(true).mode(0o640).custom_flags(flags).open(path)?;
        let status = file.metadata()?;
        if !status.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        let mut length = status.len();
        if length == 0 {
            file.write_all(head)?;
            length = head.len() as u64;
        }
        Ok(Self { path: path.to_owned(), file, length })
    }

    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// `path` becomes `path.1`, which becomes `path.2`, … of which `files` are kept, the current one counted.
fn move_aside(path: &Path, files: usize) -> io::Result<()> {
    let numbered = |number: usize| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    for number in (1..files.saturating_sub(1)).rev() {
        match std::fs::rename(numbered(number), numbered(number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    if files > 1 { std::fs::rename(path, numbered(1)) } else { std::fs::remove_file(path) }
}

/// Removes all but the newest files whose names begin so: their names are in the order of time.
fn keep_newest(folder: &Path, kind: &str, files: usize) -> io::Result<()> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(kind)) {
            names.insert(name);
        }
    }
    for name in names.iter().take(names.len().saturating_sub(files)) {
        std::fs::remove_file(folder.join(name))?;
    }
    Ok(())
}

/// A workload as the name of a folder: letters, digits and `-_.` as they are, other bytes as `%` and two digits.
fn file_name(workload: &str) -> String {
    let mut name = String::with_capacity(workload.len());
    for (place, byte) in workload.bytes().enumerate().take(80) {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            b'.' if place > 0 => name.push('.'),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    if name.is_empty() { "%".to_owned() } else { name }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> PerfLogError {
    let path = path.to_owned();
    move |source| PerfLogError { path, source }
}

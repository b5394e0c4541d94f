//! PyTorch allocator snapshots in watched folders, read as they appear.
//!
//! A separate thread lists the folders, and a separate process of lowest priority, the first to be killed when memory runs out,
//! reads each file: a folder on an unreachable server stalls nothing else, and a large snapshot takes no
//! memory of the daemon.

mod folder;
pub mod metrics;
mod watcher;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use self::watcher::Request;
use self::watcher::{FolderState, Owners, Shared, Watch};
use crate::formats::snapshot_digest::{Device, Digest};
use crate::host::apart;
use crate::host::background::Background;
use crate::host::child::WorkerCommand;
use crate::host::lab;
use crate::model::facts::{Facts, ReportedRank};
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::point::Batch;
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Ratio, Seconds};
use crate::sources::{Context, Registration};

crate::options! {
    /// The options of the source.
    struct Options {
        /// Folders in which jobs write allocator snapshots (*.pickle, *.pkl); the newest snapshot of each rank is read.
        /// In a folder that several users can write it must belong to the user of the rank's process; where none is
        /// known, to root or to the folder's owner.
        folders: Vec<Folder>;
        /// Time between two checks of the folders for new snapshots; a file is read when it has not changed for this
        /// time.
        scan_interval: Duration = 10s in 1s..=1h;
        /// Maximum memory that reading one snapshot may take, in a separate process; about ten times the size of the
        /// file is needed.
        max_memory: Bytes = 1GiB;
    }

    struct Folder {
        /// Name of the folder in metrics: the value of the label `folder`.
        name: Option<Label>;
        /// Path of the folder with the snapshots.
        path: Option<PathBuf>;
    }
}

/// The source of allocator snapshots in watched folders.
pub static REGISTRATION: Registration = Registration {
    name: "snapshots",
    about: "Fragmentation and leak suspects, from PyTorch allocator snapshots that jobs write into watched folders.",
    options: Options::OPTIONS,
    metrics: metrics::METRICS,
    check: |settings| check(&Options::read(settings)),
    ..Registration::built_by(|settings, context| Box::new(Snapshots::new(Options::read(settings), context)))
};

fn check(options: &Options) -> Vec<(String, String)> {
    let mut names = std::collections::BTreeSet::new();
    let mut problems = Vec::new();
    for (place, Folder { name, path }) in options.folders.iter().enumerate() {
        let key = format!("folders[{place}]");
        match name {
            None => problems.push((key.clone(), "must have a name".to_owned())),
            Some(name) if !names.insert(name) => {
                problems.push((key.clone(), format!("has the same name, {name}, as another folder")));
            }
            Some(_) => {}
        }
        if path.is_none() {
            problems.push((key, "must have a path".to_owned()));
        }
    }
    problems
}

struct Snapshots {
    watches: Vec<Watch>,
    scan_interval: Duration,
    max_memory: Bytes,
    proc: PathBuf,
    may_start: bool,
    background: Option<Background<Shared>>,
}

impl Snapshots {
    fn new(options: Options, context: &Context) -> Self {
        let watches = options.folders.into_iter();
        let watches = watches.filter_map(|folder| Some(Watch { name: folder.name?, path: folder.path? }));
        Self {
            watches: watches.collect(),
            scan_interval: options.scan_interval,
            max_memory: options.max_memory,
            proc: context.roots.proc.clone(),
            may_start: context.worker.is_some(),
            background: None,
        }
    }

    /// What is exchanged with the thread, which is started at the first call.
    fn shared(&mut self) -> Result<&Shared, SourceError> {
        if !self.may_start {
            return Err(SourceError::unavailable(
                "reading snapshots needs a separate process, which is disabled here",
            ));
        }
        // Looked for once: the thread keeps what it has read where the program is gone later.
        let program = self.background.is_none().then(lab::program).transpose();
        let program = program.map_err(|why| SourceError::unavailable(why.to_string()))?;
        Background::of(&mut self.background, "reads snapshots", |shared, stopped| {
            let program = program.ok_or(io::ErrorKind::NotFound)?;
            let command = WorkerCommand {
                program,
                arguments: [&*lab::release(), "snapshot-digest"].map(Into::into).to_vec(),
            };
            let reader = watcher::reader(command, self.max_memory, self.proc.clone());
            let (watches, every) = (self.watches.clone(), self.scan_interval);
            apart::spawn("snapshots", move || watcher::run(&watches, every, &reader, &shared, &stopped))
        })
    }
}

impl Source for Snapshots {
    fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        if self.watches.is_empty() {
            return Err(SourceError::unavailable("sources.snapshots.folders is empty"));
        }
        let shared = self.shared()?;
        *lock(&shared.owners) = owners(&out.facts);
        let folders = Arc::clone(&lock(&shared.folders));
        for folder in &*folders {
            put(folder, out);
            out.facts.shortages.extend_from_slice(&folder.left_out);
        }
        folders.iter().find_map(|folder| folder.problem.clone()).map_or(Ok(()), Err)
    }
}

/// The users of the processes that reported these ranks at the previous tick. If several report the same rank, the
/// first one counts.
fn owners(facts: &Facts) -> Owners {
    let mut owners = Owners::new();
    for ReportedRank { key, rank, .. } in &facts.before.ranks {
        // Among several processes with the same rank and workload, those after the first have a suffix.
        let rank = rank.as_str().split_once('@').map_or(rank.as_str(), |(rank, _)| rank);
        let row = key.and_then(|key| facts.row(key));
        if let Some(row) = row.filter(|_| !rank.is_empty()) {
            owners.entry(rank.to_owned()).or_insert(row.uid);
        }
    }
    owners
}

fn put(folder: &FolderState, out: &mut Batch) {
    let watch = std::slice::from_ref(&folder.name);
    out.put(&metrics::READ, watch, Count(folder.read));
    out.put(&metrics::ERRORS, watch, Count(folder.errors));
    out.put(&metrics::OF_OTHERS, watch, Count(folder.of_others));
    for file in &folder.files {
        let labels = [folder.name.clone(), file.rank.clone()];
        out.put(&metrics::TIME, &labels, Seconds::from(file.written));
        if let Some(digest) = &file.digest {
            put_digest(&labels, digest, out);
        }
    }
}

fn put_digest(rank: &[Label; 2], digest: &Digest, out: &mut Batch) {
    let with = |last: &str| -> Vec<Label> { rank.iter().cloned().chain([last.into()]).collect() };
    for device in &digest.devices {
        let Device { reserved, allocated, active, requested, .. } = *device;
        let labels = with(&device.device.to_string());
        for (metric, bytes) in [
            (&metrics::RESERVED, reserved),
            (&metrics::ALLOCATED, allocated),
            (&metrics::ACTIVE, active),
            (&metrics::REQUESTED, requested),
            (&metrics::INACTIVE_SPLIT, device.inactive_split),
            (&metrics::RELEASABLE, device.releasable),
            (&metrics::UNRELEASABLE, device.unreleasable),
            (&metrics::LARGEST_FREE, device.largest_free),
        ] {
            out.put(metric, &labels, Bytes::new(bytes));
        }
    }
    for request in &digest.requests {
        let labels = with(&request.size);
        out.put(&metrics::REQUEST, &labels, Bytes::new(request.bytes));
        out.put_some(&metrics::UNUSABLE, &labels, request.unusable.and_then(Ratio::new));
        out.put_some(&metrics::LOST, &labels, request.lost.and_then(Ratio::new));
    }
    out.put(&metrics::FAILURES, rank, Count(digest.failures));
    out.put_some(&metrics::SUSPECTS, rank, digest.suspect_bytes.map(Bytes::new));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::facts::{ProcessRow, ProcessTable};
    use crate::model::ids::ProcessKey;

    #[test]
    fn a_rank_belongs_to_the_first_process_that_reported_it() {
        let row = |pid, uid| ProcessRow {
            parent: 1,
            uid,
            ..ProcessRow::new(ProcessKey { pid, start: 1 }, "python".into())
        };
        let reported = |key: Option<(u32, u64)>, rank: &str| ReportedRank {
            key: key.map(|(pid, start)| ProcessKey { pid, start }),
            workload: "job".into(),
            rank: rank.into(),
            run: Label::default(),
            cannot_save: None,
        };
        let rows = vec![row(7, 61_001), row(8, 61_002), row(9, 61_001)];
        let mut facts =
            Facts { processes: Some(Arc::new(ProcessTable { rows, boot: None })), ..Facts::default() };
        facts.before.ranks = vec![
            reported(Some((7, 1)), "0"),
            reported(Some((8, 1)), "0"),
            reported(Some((9, 1)), "1@9"),
            // A different process than the one that reported, one that is not known, and one that has not reported.
            reported(Some((8, 2)), "2"),
            reported(None, "3"),
            reported(Some((8, 1)), ""),
        ];
        let expected = [("0".to_owned(), 61_001), ("1".to_owned(), 61_001)];
        assert_eq!(owners(&facts), Owners::from(expected));
    }
}

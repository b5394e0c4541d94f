//! Follows the files of one configured path on its own thread, so that a hanging file system delays nothing else.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use super::file::{Counts, Follower, PassResult, Piece, Refusal};
use super::options::{Log, Options};
use crate::formats::log_lines::oom::Cause;
use crate::formats::log_lines::{self, Framework, Reading, Splitter, Tracker};
use crate::host::background::Background;
use crate::host::{apart, clock, user_files};
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::shortage::Shortage;
use crate::model::time::Timestamp;

/// Most passes over a file before the next file is read: 4 MiB.
const PASSES: usize = 16;
/// Interval between two listings of the folder of a path with wildcards.
const LIST_EVERY: Duration = Duration::from_secs(5);

/// How long the values of a completed run are kept; at least the longest scrape interval.
const AFTER_END: Duration = Duration::from_secs(60);

/// What was read from one file.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) workload: Label,
    /// The owner of the file, if the workload is named after the file and not configured.
    pub(super) owner: Option<u32>,
    /// The rank in the lines, or the number in the file name if there are several files; empty if there is neither.
    pub(super) rank: Label,
    pub(super) framework: Option<Framework>,
    pub(super) reading: Reading,
    pub(super) counts: log_lines::Counts,
    /// When a value was last read, on the monotonic clock; nothing once the values have expired.
    pub(super) last_value: Option<Duration>,
}

/// Counters over all files of a path, including removed ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) file: Counts,
    pub(super) lines: u64,
    pub(super) recognized: u64,
    pub(super) cut: u64,
    /// In the order of [`Refusal::LABELS`].
    pub(super) refused: [u64; Refusal::LABELS.len()],
}

/// The results of the thread, read by the sampler.
#[derive(Clone, Debug, Default)]
pub(super) struct LogState {
    /// When the last pass over all files ended.
    pub(super) passed: Option<Timestamp>,
    pub(super) views: Vec<View>,
    pub(super) totals: Totals,
    /// Out-of-memory messages of removed files, by workload.
    pub(super) gone: Vec<(Label, [u64; Cause::ALL.len()])>,
    /// Number of open files.
    pub(super) followed: usize,
    /// A file that is not followed, and why.
    pub(super) refused: Option<(PathBuf, Refusal)>,
    /// The folder in its path because of which it is not followed, with the permissions of others in it.
    pub(super) folder: Option<String>,
    /// Files beyond the limit.
    pub(super) left_out: Vec<Shortage>,
}

/// A file and its parser.
struct Watched {
    follower: Follower,
    splitter: Splitter,
    tracker: Tracker,
    found: Option<PassResult>,
}

/// The state of following one path.
pub(super) struct Watch {
    log: Log,
    options: Options,
    files: Vec<Watched>,
    /// Counters of removed files.
    left: Totals,
    gone: Vec<(Label, [u64; Cause::ALL.len()])>,
    listed: Option<Timestamp>,
    /// Why the folder could not be listed.
    unlisted: Option<Refusal>,
    /// Links of the last listing that are not followed, which have been counted.
    links: HashSet<PathBuf>,
    /// Files beyond the limit.
    left_out: Vec<Shortage>,
}

/// Most workloads whose counts are kept after their files are removed.
const MOST_GONE: usize = 64;

impl Watch {
    pub(super) fn new(log: Log, options: Options) -> Self {
        Self {
            log,
            options,
            files: Vec::new(),
            left: Totals::default(),
            gone: Vec::new(),
            listed: None,
            unlisted: None,
            links: HashSet::new(),
            left_out: Vec::new(),
        }
    }

    pub(super) fn pass(&mut self, now: Timestamp) -> LogState {
        if self.listed.is_none_or(|listed| now.since(listed) >= LIST_EVERY) {
            self.list(now);
        }
        for watched in &mut self.files {
            watched.pass(&self.options, now);
            if let Some(PassResult::Refused(why)) = watched.found
                && watched.follower.fresh_refusal()
            {
                count(&mut self.left.refused, why);
            }
        }
        self.seen(now)
    }

    fn list(&mut self, now: Timestamp) {
        let first = self.listed.replace(now).is_none();
        let found = match self.log.pattern.files(self.options.max_files) {
            Ok(files) => {
                self.left_out = files.left_out;
                let links = files.refused;
                let new = links.iter().filter(|(path, _)| !self.links.contains(path));
                new.for_each(|(_, why)| count(&mut self.left.refused, *why));
                self.links = links.into_iter().map(|(path, _)| path).collect();
                files.found
            }
            // A folder that does not exist has no files.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                let why = Refusal::of(&error);
                if self.unlisted.replace(why) != Some(why) {
                    count(&mut self.left.refused, why);
                }
                return;
            }
        };
        self.unlisted = None;
        let wanted: HashSet<&Path> = found.iter().map(PathBuf::as_path).collect();
        let (kept, dropped) = std::mem::take(&mut self.files)
            .into_iter()
            .partition(|watched| wanted.contains(watched.follower.path()));
        self.files = kept;
        for watched in dropped {
            self.retire(&watched);
        }
        for path in found {
            if self.files.iter().all(|watched| watched.follower.path() != path) {
                let follower = Follower::new(path);
                self.files.push(Watched {
                    follower: if first { follower } else { follower.from_front() },
                    splitter: Splitter::default(),
                    tracker: Tracker::new(self.log.framework),
                    found: None,
                });
            }
        }
    }

    /// Keeps the counters of a file that is no longer followed.
    fn retire(&mut self, watched: &Watched) {
        add(&mut self.left, watched);
        let ooms = watched.tracker.counts().ooms;
        let workload = self.workload(watched.follower.path());
        let has_capacity = self.gone.len() < MOST_GONE;
        match self.gone.iter_mut().find(|(known, _)| *known == workload) {
            Some((_, counts)) => counts.iter_mut().zip(ooms).for_each(|(count, more)| *count += more),
            None if ooms.iter().any(|count| *count > 0) && has_capacity => {
                self.gone.push((workload, ooms));
            }
            None => {}
        }
    }

    fn workload(&self, path: &Path) -> Label {
        let name = || Label::printable(&path.file_stem().unwrap_or_default().to_string_lossy());
        self.log.workload.clone().unwrap_or_else(name)
    }

    fn seen(&self, now: Timestamp) -> LogState {
        let mut totals = self.left;
        let mut views = Vec::with_capacity(self.files.len());
        for watched in &self.files {
            add(&mut totals, watched);
            let tracker = &watched.tracker;
            let path = watched.follower.path();
            let named = || if self.log.pattern.is_wild() { last_number(path) } else { None };
            let rank = tracker.latest().rank.or_else(named);
            let open = self.log.pattern.is_wild() && self.log.workload.is_none();
            views.push(View {
                workload: self.workload(path),
                owner: if open { watched.follower.owner() } else { None },
                rank: rank.map_or_else(Label::default, Label::from),
                framework: tracker.framework(),
                reading: tracker.latest().clone(),
                counts: *tracker.counts(),
                last_value: tracker.last_value(),
            });
        }
        let refused = self.files.iter().find_map(|watched| match watched.found {
            Some(PassResult::Refused(why)) => Some((watched.follower.path().to_owned(), why)),
            _ => None,
        });
        let unlisted = || self.unlisted.map(|why| (self.log.pattern.path().to_owned(), why));
        let refused = refused.or_else(unlisted);
        let untrusted = refused.as_ref().filter(|(_, why)| matches!(why, Refusal::Untrusted(_)));
        LogState {
            folder: untrusted.and_then(|(path, _)| user_files::writable_folder(path)),
            passed: Some(now),
            views,
            totals,
            gone: self.gone.clone(),
            followed: self.files.iter().filter(|watched| watched.follower.is_open()).count(),
            refused,
            left_out: self.left_out.clone(),
        }
    }
}

impl Watched {
    fn pass(&mut self, options: &Options, now: Timestamp) {
        let Self { follower, splitter, tracker, found } = self;
        for _ in 0..PASSES {
            let outcome = follower.pass(|piece| match piece {
                Piece::Bytes(bytes) => splitter.feed(bytes, |line| tracker.line(line, now.monotonic())),
                Piece::Break => splitter.forget(),
            });
            *found = Some(outcome);
            if outcome != PassResult::More {
                break;
            }
        }
        let silent = tracker.last_value().map(|last_value| now.monotonic().saturating_sub(last_value));
        let hold = if tracker.latest().finished { AFTER_END } else { options.hold(tracker.usual()) };
        if silent.is_some_and(|silent| silent > hold) {
            tracker.forget();
        }
    }
}

fn add(totals: &mut Totals, watched: &Watched) {
    let (file, lines) = (&watched.follower.counts, watched.tracker.counts());
    totals.file.bytes += file.bytes;
    totals.file.skipped += file.skipped;
    totals.file.rotations += file.rotations;
    totals.lines += lines.lines;
    totals.recognized += lines.recognized;
    totals.cut += watched.splitter.cut;
}

fn count(counts: &mut [u64; Refusal::LABELS.len()], why: Refusal) {
    for (count, kind) in counts.iter_mut().zip(Refusal::LABELS) {
        *count += u64::from(kind == why.label());
    }
}

/// The last number in a file name: `worker_12.log` is of rank 12.
fn last_number(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let digits = name.split(|letter: char| !letter.is_ascii_digit()).rfind(|part| !part.is_empty())?;
    if digits.len() > 6 { None } else { digits.parse().ok() }
}

/// Starts a thread that follows a path.
pub(super) fn start(log: Log, options: Options) -> io::Result<Background<Mutex<LogState>>> {
    Background::start(Mutex::default(), |shared, stopped| {
        let interval = options.interval;
        let mut watch = Watch::new(log, options);
        apart::spawn("log-tail", move || {
            loop {
                let state = watch.pass(clock::now());
                // The lock is not held while files are read.
                *lock(&shared) = state;
                if !stopped.pause(interval) {
                    return;
                }
            }
        })
    })
}

//! Metrics of training jobs from their log files, for jobs that report in no other way.
//!
//! Each configured path has a thread that reads new lines (`watch`, `file`);
//! [`crate::formats::log_lines`] parses them; a sample exposes what the
//! threads have found (`expose`) without waiting for them.

mod expose;
pub mod file;
pub mod metrics;
mod options;
pub mod pattern;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::Mutex;
use std::time::Duration;

use file::Refusal;
use options::Options;
use watch::LogState;

use crate::host::background::Background;
use crate::model::facts::Membership;
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::point::Batch;
use crate::model::source::{Failure, Source, SourceError};
use crate::model::time::Timestamp;
use crate::sources::Registration;

/// The source of metrics from training logs.
pub static REGISTRATION: Registration = Registration {
    name: "logs",
    about: "Steps, loss, throughput and out-of-memory messages, from the log files of training jobs.",
    options: Options::OPTIONS,
    metrics: metrics::METRICS,
    check: |settings| Options::read(settings).check(),
    ..Registration::built_by(|settings, _| {
        Box::new(Logs { options: Options::read(settings), tails: Vec::new(), began: None })
    })
};

/// A pass that takes longer is reported: the file system does not respond.
const SLOW: Duration = Duration::from_secs(30);

struct Logs {
    options: Options,
    /// One for each path; started by the first sample.
    tails: Vec<Tail>,
    began: Option<Timestamp>,
}

/// A path and the thread that follows it.
struct Tail {
    path: Label,
    follower: Option<Background<Mutex<LogState>>>,
}

impl Source for Logs {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        if self.options.files.is_empty() {
            return Err(SourceError::unavailable("sources.logs.files is empty"));
        }
        let began = *self.began.get_or_insert(at);
        if self.tails.is_empty() {
            let logs = self.options.logs();
            self.tails = logs.iter().map(|log| Tail::start(log, &self.options)).collect();
        }
        let mut all: Vec<LogState> = self
            .tails
            .iter()
            .map(|tail| {
                tail.follower.as_ref().map_or_else(LogState::default, |own| lock(&own.shared).clone())
            })
            .collect();
        add_owners(&mut all, &out.facts.workload_of);
        put(&self.tails, &all, at, out);
        out.facts.shortages.extend(all.iter().flat_map(|state| state.left_out.iter().cloned()));
        outcome(&self.tails, &all, began, at)
    }
}

impl Tail {
    fn start(log: &options::Log, options: &Options) -> Self {
        let path = Label::printable(&log.pattern.path().to_string_lossy());
        Self { path, follower: watch::start(log.clone(), options.clone()).ok() }
    }
}

/// Adds the owner to a workload name that comes from a file name, so that no user can report values for
/// another user's workload.
fn add_owners(all: &mut [LogState], members: &[Membership]) {
    for view in all.iter_mut().flat_map(|state| &mut state.views) {
        let Some(owner) = view.owner.filter(|owner| *owner != 0) else { continue };
        let of = members.iter().find(|member| member.workload.name == view.workload);
        if of.is_some_and(|member| member.workload.user != owner) {
            view.workload = format!("{}@{owner}", view.workload).into();
        }
    }
}

fn put(tails: &[Tail], all: &[LogState], at: Timestamp, out: &mut Batch) {
    for (tail, state) in tails.iter().zip(all) {
        expose::put_state(&tail.path, state, at, out);
    }
    expose::ooms(all, out);
    expose::figures(all, at, out);
}

/// The most severe error: a path without thread, a file system that does not respond, or a file that is not followed.
fn outcome(tails: &[Tail], all: &[LogState], began: Timestamp, at: Timestamp) -> Result<(), SourceError> {
    let mut there = false;
    let mut refused = None;
    for (tail, state) in tails.iter().zip(all) {
        if tail.follower.is_none() {
            return Err(SourceError::failed(
                Failure::Io,
                format!("cannot create the thread that follows {}", tail.path),
            ));
        }
        let silent = at.since(state.passed.unwrap_or(began));
        if silent > SLOW {
            let why =
                format!("the file system of {} has not responded for {} s", tail.path, silent.as_secs());
            return Err(SourceError::failed(Failure::Timeout, why));
        }
        there |= state.followed > 0 || state.passed.is_none();
        refused = refused.or(state.refused.as_ref().map(|refused| (refused, state.folder.as_deref())));
    }
    if let Some(((path, why), folder)) = refused {
        let (kind, what) = match why {
            Refusal::NotRegular => (Failure::Io, "it is not a regular file".to_owned()),
            Refusal::Binary => (Failure::Parse, "it does not contain text".to_owned()),
            Refusal::Untrusted(why) => {
                let folder = folder.map_or_else(String::new, |folder| format!("; the folder is {folder}"));
                (Failure::Permission, format!("{why}{folder}"))
            }
            Refusal::Permission => (Failure::Permission, "permission denied".to_owned()),
            Refusal::Io => (Failure::Io, "input/output error".to_owned()),
        };
        return Err(SourceError::failed(kind, format!("{} is not followed: {what}", path.display())));
    }
    if there { Ok(()) } else { Err(SourceError::unavailable("none of the configured logs exists yet")) }
}

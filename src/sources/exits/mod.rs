//! How processes ended: the exit status of every process, from the kernel's process events, and who sent the signals that end
//! processes, from its tracepoint of signals.
//!
//! It has no points of single processes. The analyzer `ends` uses what is known of the processes of workloads.

pub mod metrics;

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use crate::host::exit_events::{ExitEvent, ExitEvents};
use crate::host::process;
use crate::host::roots::Roots;
use crate::host::sent_signals::{SentSignal, SentSignals};
use crate::model::ends::{ExitStatus, Sender};
use crate::model::facts::{ExitedProcess, ProcessTable, ReceivedSignal};
use crate::model::ids::ProcessKey;
use crate::model::point::Batch;
use crate::model::source::{Failure, Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Count, Flag};
use crate::sources::Registration;

/// The source of exit statuses.
pub static REGISTRATION: Registration = Registration {
    name: "exits",
    about: "How processes ended (exit code or signal), from the kernel's process events; needs Linux 6.6 or CAP_NET_ADMIN. With CAP_PERFMON, also who sent the signal.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_, context| {
        let roots = Arc::clone(&context.roots);
        Box::new(Exits { roots, events: None, signals: None, counts: [0; 3], overruns: 0 })
    })
};

/// Most events that are read in one sample; the rest is read in the next one.
const MOST: usize = 20_000;

struct Exits {
    roots: Arc<Roots>,
    events: Option<ExitEvents>,
    /// Absent where they cannot be known.
    signals: Option<SentSignals>,
    /// Processes that ended with success, with failure and by a signal.
    counts: [u64; 3],
    overruns: u64,
}

impl Source for Exits {
    fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let Self { roots, events, signals, counts, overruns } = self;
        if events.is_none() {
            *events = Some(ExitEvents::open(&roots.proc).map_err(|error| not_open(&error))?);
            let opened = SentSignals::open(&roots.sys);
            *signals = opened
                .inspect_err(|error| tracing::debug!(%error, "The senders of signals are not known."))
                .ok();
        }
        let Some(open) = events else { return Ok(()) };
        let before = out.facts.before.processes.clone();
        let exited = &mut out.facts.exited;
        let mut ended = HashSet::new();
        let read = open.drain(MOST, |event| {
            if event.tid == event.pid {
                counts[match ExitStatus::of_wait(event.status) {
                    ExitStatus::Code(0) => 0,
                    ExitStatus::Code(_) => 1,
                    ExitStatus::Signal(_) => 2,
                }] += 1;
            }
            let row = before.as_ref().and_then(|table| table.get(event.pid));
            // An event that is older than the process is about an earlier one of this pid.
            exited.extend(row.and_then(|row| status_of(row.key, event, &mut ended)));
        });
        match read {
            Ok(has_lost) => *overruns += u64::from(has_lost),
            Err(error) => {
                *events = None;
                return Err(SourceError::failed(Failure::Io, format!("process events: {error}")));
            }
        }
        if let Some(signals) = signals {
            let facts = &mut out.facts;
            let tables = [&facts.before.processes, &facts.processes];
            let tables: Vec<&ProcessTable> = tables.into_iter().flatten().map(|table| &**table).collect();
            let received = &mut facts.received_signals;
            let has_lost = signals.drain(|sent| received.extend(received_signal(&tables, sent)));
            *overruns += u64::from(has_lost);
        }
        for (how, count) in ["success", "failure", "signal"].into_iter().zip(*counts) {
            out.put(&metrics::EXITS, &[how.into()], Count(count));
        }
        out.put(&metrics::OVERRUNS, &[], Count(*overruns));
        out.put(&metrics::SENDERS, &[], Flag(signals.is_some()));
        Ok(())
    }
}

/// The exit status of the process that had the pid of an event in the last sample; `ended` has those that are known to have ended.
fn status_of(key: ProcessKey, event: ExitEvent, ended: &mut HashSet<ProcessKey>) -> Option<ExitedProcess> {
    // An event that is older than the process is about an earlier one of this pid, a second one about a later one. A thread
    // that ends with 0 says nothing about its process.
    let is_own = key.start <= process::ticks(event.at)
        && if event.tid == event.pid { ended.insert(key) } else { event.status != 0 };
    is_own.then_some(ExitedProcess { process: key, tid: event.tid, status: event.status })
}

/// A signal to a process that one of these tables has; without those that are about an earlier process of its pid.
fn received_signal(tables: &[&ProcessTable], sent: SentSignal) -> Option<ReceivedSignal> {
    let row_of = |pid: u32| {
        let rows = tables.iter().filter_map(|table| table.get(pid));
        rows.filter(|row| row.key.start <= process::ticks(sent.at)).max_by_key(|row| row.key.start)
    };
    let process = row_of(sent.target)?.key;
    let sender = sent.sender.map(|pid| {
        let row = row_of(pid);
        let comm = row.map(|row| row.comm.clone()).unwrap_or_default();
        Sender { pid, comm, user_id: row.map(|row| row.uid) }
    });
    Some(ReceivedSignal { process, signal: sent.signal, sender })
}

fn not_open(error: &io::Error) -> SourceError {
    SourceError::unavailable(format!("no process events: {error}; Linux 6.6 or CAP_NET_ADMIN is required"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_status_of_a_process_is_not_that_of_its_threads_or_of_the_next_one_of_its_pid() {
        let key = ProcessKey { pid: 7, start: process::ticks(Duration::from_secs(100)) };
        let mut ended = HashSet::new();
        let mut status = |tid, second, status| {
            let event = ExitEvent { tid, pid: 7, status, at: Duration::from_secs(second) };
            status_of(key, event, &mut ended).map(|exited| exited.status)
        };
        assert_eq!(status(7, 99, 3), None, "an earlier process");
        assert_eq!(status(8, 101, 0), None, "a thread");
        assert_eq!(status(7, 102, 9), Some(9));
        assert_eq!(status(7, 103, 0), None, "a later process");
    }
}

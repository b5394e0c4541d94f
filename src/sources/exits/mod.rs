//! How processes ended: the exit status of every process, from the kernel's process events.
//!
//! It has no points of single processes. The analyzer `ends` uses the statuses of the processes of workloads.

pub mod metrics;

use std::io;
use std::path::PathBuf;

use crate::host::exit_events::ExitEvents;
use crate::host::process;
use crate::model::facts::ExitedProcess;
use crate::model::point::Batch;
use crate::model::source::{Failure, Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::Count;
use crate::sources::Registration;

/// The source of exit statuses.
pub static REGISTRATION: Registration = Registration {
    name: "exits",
    about: "How processes ended (exit code or signal), from the kernel's process events; needs Linux 6.6 or CAP_NET_ADMIN.",
    on_by_default: true,
    options: &[],
    metrics: metrics::METRICS,
    needs: &[],
    check: |_| Vec::new(),
    build: |_, context| Box::new(Exits { proc: context.roots.proc.clone(), ..Exits::default() }),
};

/// Most events that are read in one sample; the rest is read in the next one.
const MOST: usize = 20_000;

#[derive(Default)]
struct Exits {
    proc: PathBuf,
    events: Option<ExitEvents>,
    /// Processes that ended with success, with failure and by a signal.
    counts: [u64; 3],
    overruns: u64,
}

impl Source for Exits {
    fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let Self { proc, events, counts, overruns } = self;
        if events.is_none() {
            *events = Some(ExitEvents::open(proc).map_err(|error| not_open(&error))?);
        }
        let Some(open) = events else { return Ok(()) };
        let before = out.facts.before.processes.clone();
        let exited = &mut out.facts.exited;
        let read = open.drain(MOST, |event| {
            if event.tid == event.pid {
                counts[match (event.status, event.status & 0x7f) {
                    (0, _) => 0,
                    (_, 0) => 1,
                    _ => 2,
                }] += 1;
            }
            let row = before.as_ref().and_then(|table| table.get(event.pid));
            // An event that is older than the process is about an earlier one of this pid.
            if let Some(row) = row.filter(|row| row.key.start <= process::ticks(event.at)) {
                exited.push(ExitedProcess { process: row.key, status: event.status });
            }
        });
        match read {
            Ok(drained) => *overruns += u64::from(drained.has_lost),
            Err(error) => {
                *events = None;
                return Err(SourceError::failed(Failure::Io, format!("process events: {error}")));
            }
        }
        for (how, count) in ["success", "failure", "signal"].into_iter().zip(*counts) {
            out.put(&metrics::EXITS, &[how.into()], Count(count));
        }
        out.put(&metrics::OVERRUNS, &[], Count(*overruns));
        Ok(())
    }
}

fn not_open(error: &io::Error) -> SourceError {
    SourceError::unavailable(format!("no process events: {error}; Linux 6.6 or CAP_NET_ADMIN is required"))
}

//! Steps that are carried out in the background: hooks, webhooks and records on a disk.

use crate::host::child::WorkerCommand;
use crate::protection::types::step::{Finished, Skip, Step, Ticket, Work};

use super::reach::NotSignalled;

/// Carries out steps that may take long, without blocking the caller.
pub trait BackgroundExecutor: Send + std::fmt::Debug {
    /// Starts a step; returns whether there was room for it.
    fn begin(&mut self, ticket: Ticket, step: &Step) -> bool;

    /// Adds the steps that have ended since the last call.
    fn poll(&mut self, finished: &mut Vec<Finished>);
}

/// The background executors; a step without one is skipped as unsupported.
#[derive(Debug, Default)]
pub struct BackgroundExecutors {
    /// Starts hooks.
    pub hooks: Option<Box<dyn BackgroundExecutor>>,
    /// Calls webhooks.
    pub webhooks: Option<Box<dyn BackgroundExecutor>>,
    /// Writes incident records.
    pub records: Option<Box<dyn BackgroundExecutor>>,
    /// Asks the other nodes of runs.
    pub runs: Option<Box<dyn BackgroundExecutor>>,
    /// The command of the processes that touch and watch files.
    pub files: Option<WorkerCommand>,
}

impl BackgroundExecutors {
    pub(super) fn begin(&mut self, ticket: Ticket, step: &Step) -> Result<(), NotSignalled> {
        let who = match step.work {
            Work::Hook { .. } => &mut self.hooks,
            Work::Webhook { .. } => &mut self.webhooks,
            Work::Record => &mut self.records,
            Work::AskRun(_) => &mut self.runs,
            _ => return Err(NotSignalled::Skip(Skip::Unsupported)),
        };
        let Some(who) = who else { return Err(NotSignalled::Skip(Skip::Unsupported)) };
        if who.begin(ticket, step) { Ok(()) } else { Err(NotSignalled::Skip(Skip::Busy)) }
    }

    pub(super) fn poll(&mut self, finished: &mut Vec<Finished>) {
        for who in
            [&mut self.hooks, &mut self.webhooks, &mut self.records, &mut self.runs].into_iter().flatten()
        {
            who.poll(finished);
        }
    }
}

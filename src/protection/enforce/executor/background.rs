//! What somebody else does for the executor: hooks, web services, records on a disk.

use crate::protection::words::step::{Finished, Skip, Step, Ticket, Work};

use super::reach::Miss;

/// Somebody who carries out steps that may take long, and must not make the caller wait.
pub trait BackgroundExecutor: Send + std::fmt::Debug {
    /// Begins a step; whether there was room for it.
    fn begin(&mut self, ticket: Ticket, step: &Step) -> bool;

    /// Tells the steps that ended since.
    fn poll(&mut self, finished: &mut Vec<Finished>);
}

/// Who does what; a step that nobody does is skipped as unsupported.
#[derive(Debug, Default)]
pub struct BackgroundExecutors {
    /// Starts hooks.
    pub hooks: Option<Box<dyn BackgroundExecutor>>,
    /// Calls web services.
    pub webhooks: Option<Box<dyn BackgroundExecutor>>,
    /// Writes down what is known.
    pub records: Option<Box<dyn BackgroundExecutor>>,
}

impl BackgroundExecutors {
    pub(super) fn begin(&mut self, ticket: Ticket, step: &Step) -> Result<(), Miss> {
        let who = match step.work {
            Work::Hook { .. } => &mut self.hooks,
            Work::Webhook { .. } => &mut self.webhooks,
            Work::Record => &mut self.records,
            _ => return Err(Miss::Skip(Skip::Unsupported)),
        };
        let Some(who) = who else { return Err(Miss::Skip(Skip::Unsupported)) };
        if who.begin(ticket, step) { Ok(()) } else { Err(Miss::Skip(Skip::Busy)) }
    }

    pub(super) fn poll(&mut self, finished: &mut Vec<Finished>) {
        for who in [&mut self.hooks, &mut self.webhooks, &mut self.records].into_iter().flatten() {
            who.poll(finished);
        }
    }
}

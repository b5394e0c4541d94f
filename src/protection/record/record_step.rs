//! The step of a plan that writes the incident record, on the recorder's thread.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::recorder::{QUEUE, Recorder};
use crate::protection::enforce::executor::BackgroundExecutor;
use crate::protection::types::step::{Finished, Step, Ticket};

/// The executor of the step that writes the incident record.
#[derive(Debug)]
pub(super) struct RecordExecutor {
    recorder: Arc<Recorder>,
    report: SyncSender<Finished>,
    ended: Receiver<Finished>,
}

impl RecordExecutor {
    pub(super) fn new(recorder: Arc<Recorder>) -> Self {
        let (report, ended) = sync_channel(QUEUE);
        Self { recorder, report, ended }
    }
}

impl BackgroundExecutor for RecordExecutor {
    fn begin(&mut self, ticket: Ticket, _step: &Step) -> bool {
        self.recorder.begin_step(ticket, self.report.clone())
    }

    fn poll(&mut self, finished: &mut Vec<Finished>) {
        finished.extend(self.ended.try_iter());
    }
}

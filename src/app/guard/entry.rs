//! The step that writes the record: the folder is begun with the move, so what is left is to say whether it could be.

use std::sync::Arc;

use crate::app::records::Recorder;
use crate::host::executor::Errand;
use crate::model::step::{Finished, Outcome, Step, StepDone, StepError, Ticket};

/// Records that are under way at once.
const MOST: usize = 64;

/// Says how the writing of incidents fares.
#[derive(Debug)]
pub(super) struct Entry {
    recorder: Arc<Recorder>,
    begun: Vec<Ticket>,
}

impl Entry {
    pub(super) fn new(recorder: Arc<Recorder>) -> Self {
        Self { recorder, begun: Vec::with_capacity(MOST) }
    }
}

impl Errand for Entry {
    fn begin(&mut self, ticket: Ticket, _step: &Step) -> bool {
        let room = self.begun.len() < MOST;
        if room {
            self.begun.push(ticket);
        }
        room
    }

    fn poll(&mut self, finished: &mut Vec<Finished>) {
        if self.begun.is_empty() {
            return;
        }
        let trouble = self.recorder.status().trouble;
        for ticket in self.begun.drain(..) {
            let result = match &trouble {
                Some(what) => Err(StepError::Outside { what: what.as_str().into() }),
                None => Ok(StepDone { outcome: Outcome::Done, processes: 0, micros: 0 }),
            };
            finished.push(Finished::new(ticket, result));
        }
    }
}

//! The checkpoint request: one signal to each rank with a handler, and waiting for the acknowledgement.

use std::sync::Arc;

use crate::protection::plan::{Action, Plan, PlanInput};
use crate::protection::types::step::Work;

/// Sends the checkpoint signal, once per incident.
pub(super) struct Ask;

impl Action for Ask {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        let Some(signal) = input.target.ask.signal.filter(|_| input.transition.ask) else { return };
        let first = u16::try_from(out.steps().len()).unwrap_or(0);
        for asked in &input.roster.ask {
            let unless = asked.above.and_then(|above| above.checked_add(first));
            let work = Work::Signal { process: asked.key, signal, only_if_caught: true };
            out.push_unless(input, work, unless);
        }
    }
}

/// Touches the file that the job watches.
pub(super) struct Touch;

impl Action for Touch {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        let Some(path) = input.target.ask.touch.as_ref().filter(|_| input.transition.ask) else { return };
        // A rank sees the path as the job does; a launcher may be outside the container.
        let process = input.roster.ask.first().map(|asked| asked.key);
        if let Some(process) = process.or_else(|| input.roster.largest.first().copied()) {
            out.push(input, Work::Touch { process, path: Arc::clone(path) });
        }
    }
}

/// Waits for the acknowledgement file; the guard itself reads acknowledgements from the job socket.
pub(super) struct Await;

impl Action for Await {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        if let Some(by) = input.target.ask.file.as_ref().filter(|_| input.transition.ask) {
            out.push(input, Work::Await { by: Arc::clone(by), within: input.target.limits.longest_grace });
        }
    }
}

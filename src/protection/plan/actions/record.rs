//! The record: the incident is written before processes are acted on.

use crate::protection::plan::{Action, Plan, PlanInput};
use crate::protection::types::step::Work;

/// Writes the record.
pub(super) struct Record;

impl Action for Record {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        out.push(input, Work::Record);
    }
}

//! The record: what is known is written down before somebody is touched.

use crate::protection::plan::{Action, Plan, Trip};
use crate::protection::words::step::Work;

/// Writes the record.
pub(super) struct Record;

impl Action for Record {
    fn plan(&self, trip: &Trip<'_>, out: &mut Plan) {
        out.push(trip, Work::Record);
    }
}

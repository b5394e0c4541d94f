//! The hook: a program of the operator's, started by the helper.

use std::sync::Arc;

use crate::protection::plan::{Action, Plan, Trip};
use crate::protection::words::step::Work;

/// Starts the hook.
pub(super) struct Hook;

impl Action for Hook {
    fn plan(&self, trip: &Trip<'_>, out: &mut Plan) {
        if let (Some(hook), Some(told)) = (&trip.target.hook, trip.told) {
            out.push(trip, Work::Hook { hook: Arc::clone(hook), input: Arc::clone(told) });
        }
    }
}

//! The webhook: each move is told to a service of the operator's.

use std::sync::Arc;

use crate::protection::plan::{Action, Plan, Trip};
use crate::protection::words::step::Work;

/// Tells the service.
pub(super) struct Webhook;

impl Action for Webhook {
    fn plan(&self, trip: &Trip<'_>, out: &mut Plan) {
        if let (Some(url), Some(told)) = (&trip.target.webhook, trip.told) {
            out.push(trip, Work::Webhook { url: Arc::clone(url), body: Arc::clone(told) });
        }
    }
}

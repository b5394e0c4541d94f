//! The webhook: posts each transition to a service of the operator.

use std::sync::Arc;

use crate::protection::plan::{Action, Plan, PlanInput};
use crate::protection::types::step::Work;

/// Posts the transition.
pub(super) struct Webhook;

impl Action for Webhook {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        if let (Some(url), Some(notification)) = (&input.target.webhook, input.notification) {
            out.push(input, Work::Webhook { url: Arc::clone(url), body: Arc::clone(notification) });
        }
    }
}

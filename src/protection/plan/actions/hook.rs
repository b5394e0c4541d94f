//! The hook: a program of the operator's, started by the helper.

use std::sync::Arc;

use crate::protection::plan::{Action, Plan, PlanInput};
use crate::protection::types::step::Work;

/// Starts the hook.
pub(super) struct Hook;

impl Action for Hook {
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan) {
        if let (Some(hook), Some(notification)) = (&input.target.hook, input.notification) {
            out.push(input, Work::Hook { hook: Arc::clone(hook), input: Arc::clone(notification) });
        }
    }
}

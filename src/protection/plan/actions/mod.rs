//! The actions, one file each, and the stages that they belong to.

mod ask;
mod await_end;
mod hook;
mod kill;
mod pause;
mod raise;
mod record;
mod release;
mod term;
mod webhook;

use super::Action;
use crate::protection::types::step::Stage;

/// The actions of a stage, in order. A kill comes before its record, which could block on a disk.
pub fn on(stage: Stage) -> &'static [&'static dyn Action] {
    match stage {
        Stage::Warn | Stage::Cooldown => &[&pause::Resume, &webhook::Webhook],
        Stage::Soft => &[&record::Record, &raise::Raise, &pause::Pause, &hook::Hook, &webhook::Webhook],
        Stage::Checkpoint => {
            &[&record::Record, &pause::Resume, &ask::Ask, &ask::Touch, &ask::Await, &webhook::Webhook]
        }
        Stage::Term => {
            &[&record::Record, &pause::Resume, &term::Term, &await_end::AwaitEnd, &webhook::Webhook]
        }
        Stage::Kill => {
            &[&kill::Kill, &release::Release, &await_end::AwaitEnd, &record::Record, &webhook::Webhook]
        }
        Stage::Verify => &[&hook::Hook, &webhook::Webhook],
    }
}

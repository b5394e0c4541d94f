//! The actions, one file each, and the states that they belong to.

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
use crate::protection::types::rung::{Rung, State};

/// The actions of a state, in order. A kill comes before its record, which could block on a disk.
pub fn on(stage: State) -> &'static [&'static dyn Action] {
    match stage {
        State::At(Rung::Warn) | State::Cooldown => &[&pause::Resume, &webhook::Webhook],
        State::At(Rung::Soft) => {
            &[&record::Record, &raise::Raise, &pause::Pause, &hook::Hook, &webhook::Webhook]
        }
        State::At(Rung::Checkpoint) => {
            &[&record::Record, &pause::Resume, &ask::Ask, &ask::Touch, &ask::Await, &webhook::Webhook]
        }
        State::At(Rung::Term) => {
            &[&record::Record, &pause::Resume, &term::Term, &await_end::AwaitEnd, &webhook::Webhook]
        }
        State::At(Rung::Kill) => {
            &[&kill::Kill, &release::Release, &await_end::AwaitEnd, &record::Record, &webhook::Webhook]
        }
        State::Verify => &[&hook::Hook, &webhook::Webhook],
        State::Disarmed | State::Blind | State::Ok => &[],
    }
}

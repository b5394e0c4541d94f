//! The ladders of all targets, side by side.
//!
//! Targets are stepped in the order of the configuration, each seeing what
//! those before it did in the same step: so one shortage takes one victim.

use super::ladder::{Gate, Ladder};
use super::limits::Limits;
use super::observed::Observed;
use super::rate::Rate;
use super::state::{Mode, Transition};
use crate::model::time::Timestamp;

/// A move and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The target's place.
    pub target: usize,
    /// The move.
    pub transition: Transition,
}

/// Every ladder of the host.
#[derive(Clone, Debug)]
pub struct Board {
    ladders: Vec<Ladder>,
    rate: Rate,
}

impl Board {
    /// Ladders that stand at OK; at most `most_per_hour` incidents of the whole host end a job in an hour.
    pub fn new(limits: impl IntoIterator<Item = Limits>, most_per_hour: u32, now: Timestamp) -> Self {
        let ladders = limits.into_iter().map(|limits| Ladder::new(limits, now)).collect();
        Self { ladders, rate: Rate::new(most_per_hour) }
    }

    /// The ladders, in the order of the targets.
    pub fn ladders(&self) -> &[Ladder] {
        &self.ladders
    }

    /// Incidents that may still end a job in this hour.
    pub fn left(&self, now: Timestamp) -> u32 {
        self.rate.left(now)
    }

    /// Steps one target.
    ///
    /// # Panics
    /// Where there is no such target.
    pub fn step(&mut self, target: usize, now: Timestamp, observed: &Observed) -> Option<Move> {
        // In observe mode nobody's memory comes back because of us.
        let busy = self.ladders.iter().enumerate().any(|(place, ladder)| {
            place != target && ladder.ending() && ladder.limits().mode == Mode::Enforce
        });
        let gate = Gate { busy, host_left: self.rate.left(now) };
        let transition = self.ladders[target].step(now, observed, gate)?;
        if transition.counts {
            self.rate.count(now);
        }
        Some(Move { target, transition })
    }
}

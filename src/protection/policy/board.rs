//! The ladders of all targets, side by side.
//!
//! One ladder stands in each seat: a target that names several jobs has one
//! for each. Seats are stepped in order, each seeing what those before it did
//! in the same step: so one shortage takes one victim.

use super::ladder::{Gate, Ladder};
use super::observed::Observed;
use super::rate::Rate;
use super::state::{Mode, Transition};
use crate::model::time::Timestamp;

/// Every ladder of the host.
#[derive(Clone, Debug)]
pub struct Board {
    /// A ladder and the place of its target.
    seats: Vec<Option<(usize, Ladder)>>,
    /// By target, over all its ladders.
    rates: Vec<Rate>,
    host: Rate,
}

impl Board {
    /// So many empty seats; `most` is how many incidents of each target may end a job in an hour, and `host` how many of
    /// all together.
    pub fn new(seats: usize, most: impl IntoIterator<Item = u32>, host: u32) -> Self {
        let rates = most.into_iter().map(Rate::new).collect();
        Self { seats: vec![None; seats], rates, host: Rate::new(host) }
    }

    /// Puts a ladder of a target into a seat, or empties it; returns what was there, so that nothing is freed here.
    ///
    /// # Panics
    /// Where there is no such seat or target.
    pub fn seat(&mut self, seat: usize, ladder: Option<(usize, Ladder)>) -> Option<(usize, Ladder)> {
        assert!(
            ladder.as_ref().is_none_or(|(target, _)| *target < self.rates.len()),
            "a target of the board"
        );
        std::mem::replace(&mut self.seats[seat], ladder)
    }

    /// The ladder in a seat.
    pub fn ladder(&self, seat: usize) -> Option<&Ladder> {
        self.seats.get(seat)?.as_ref().map(|(_, ladder)| ladder)
    }

    /// Incidents of a target that may still end a job in this hour.
    pub fn left(&self, target: usize, now: Timestamp) -> u32 {
        self.rates.get(target).map_or(0, |rate| rate.left(now))
    }

    /// Incidents of all targets that may still end a job in this hour.
    pub fn host_left(&self, now: Timestamp) -> u32 {
        self.host.left(now)
    }

    /// Whether somebody else's memory is on its way back. Where nothing is done, nobody's is.
    fn busy(&self, but: usize) -> bool {
        self.seats.iter().enumerate().any(|(place, seat)| {
            place != but
                && seat
                    .as_ref()
                    .is_some_and(|(_, ladder)| ladder.ending() && ladder.limits().mode == Mode::Enforce)
        })
    }

    /// Steps the ladder in one seat; an empty seat never moves.
    pub fn step(&mut self, seat: usize, now: Timestamp, observed: &Observed) -> Option<Transition> {
        let busy = self.busy(seat);
        let (target, ladder) = self.seats.get_mut(seat)?.as_mut()?;
        let left = self.rates[*target].left(now).min(self.host.left(now));
        let transition = ladder.step(now, observed, Gate { busy, left })?;
        if transition.counts {
            self.rates[*target].count(now);
            self.host.count(now);
        }
        Some(transition)
    }
}

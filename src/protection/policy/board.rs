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

    /// A target was ended at that time, before this board was made: the limits are those of the hour, whoever counts.
    pub fn recall(&mut self, target: usize, at: Timestamp) {
        if let Some(rate) = self.rates.get_mut(target) {
            rate.count(at);
        }
        self.host.count(at);
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
            let enforces = ladder.limits().mode == Mode::Enforce;
            self.rates[*target].count(now);
            // What would have been done to one must not keep another from being protected.
            if enforces {
                self.host.count(now);
            }
        }
        Some(transition)
    }
}

#[cfg(test)]
mod tests {
    use super::super::observed::{Aged, Members, Observed, Reading, Resource};
    use super::super::state::State;
    use super::super::tests::{GIB, limits};
    use super::*;
    use crate::model::units::Bytes;
    use crate::protection::policy::Limits;

    /// Less than the hard level is left of the limit.
    fn short() -> Observed {
        let (headroom, total) = (Bytes::ZERO, Bytes::new(8 * GIB));
        let mut observed = Observed { fit: true, ..Observed::default() };
        observed.readings[Resource::Cgroup.place()] =
            Some(Aged::now(Reading { headroom, total, fast: None, slow: None }));
        observed.members = Some(Aged::now(Members { count: 1, catching: None }));
        observed
    }

    #[test]
    fn what_was_ended_before_counts_on() {
        let (now, before) = (Timestamp::from_secs(4000), Timestamp::from_secs(1000));
        let mut board = Board::new(0, [3, 3], 5);
        board.recall(1, before);
        board.recall(usize::MAX, before);
        assert_eq!((board.left(0, now), board.left(1, now), board.host_left(now)), (3, 2, 3));
        assert_eq!(board.host_left(Timestamp::from_secs(4600)), 5);
    }

    #[test]
    fn what_is_only_observed_uses_up_nothing_of_the_host() {
        let now = Timestamp::from_secs(100);
        let mut board = Board::new(2, [3, 3], 1);
        let ladder = |mode| Ladder::new(Limits { mode, ..limits() }, now);
        board.seat(0, Some((0, ladder(Mode::Observe))));
        board.seat(1, Some((1, ladder(Mode::Enforce))));
        let mut to = |seat| board.step(seat, now, &short()).map(|moved| moved.to);
        assert_eq!((to(0), to(1)), (Some(State::Kill), Some(State::Kill)));
        assert_eq!((board.left(0, now), board.left(1, now), board.host_left(now)), (2, 2, 0));
    }
}

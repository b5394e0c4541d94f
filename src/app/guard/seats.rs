//! Who sits where: each job that a target names has a seat of its own, and keeps it.

use std::time::Duration;

use super::facts::SEATS;
use crate::model::label::Label;
use crate::model::scope::Scope;
use crate::model::step::Group;
use crate::model::time::Timestamp;

/// A job that is not there any more keeps its seat for this long: its incident, and the quiet time after it, are its own.
const KEPT: Duration = Duration::from_secs(120);

/// One job, by its target and name.
#[derive(Debug)]
pub(super) struct Sitter {
    pub(super) target: usize,
    /// The workload or the topmost group; empty where the target names nobody now.
    pub(super) name: Label,
    pub(super) serial: u64,
    pub(super) seen: Timestamp,
    /// Whether the guard was given a ladder for it.
    pub(super) begun: bool,
    pub(super) scope: Option<Scope>,
    /// The group whose limits are read.
    pub(super) group: Option<Group>,
}

/// Every seat.
#[derive(Debug)]
pub(super) struct Seats {
    pub(super) all: Vec<Option<Sitter>>,
    last: u64,
    /// When it was looked at before.
    looked: Option<Timestamp>,
    /// Jobs that found none in this sample.
    pub(super) unseated: u64,
}

impl Seats {
    pub(super) fn new() -> Self {
        Self { all: (0..SEATS).map(|_| None).collect(), last: 0, looked: None, unseated: 0 }
    }

    /// The seat of a job, which it is given where it has none; nothing where all are taken.
    pub(super) fn of(&mut self, target: usize, name: &Label, now: Timestamp) -> Option<usize> {
        let mine = |sitter: &Sitter| sitter.target == target && sitter.name == *name;
        let place = self.all.iter().position(|seat| seat.as_ref().is_some_and(mine));
        let Some(place) = place.or_else(|| self.all.iter().position(Option::is_none)) else {
            self.unseated += 1;
            return None;
        };
        self.last += 1;
        let (last, name) = (self.last, name.clone());
        let sitter = self.all[place].get_or_insert(Sitter {
            target,
            name,
            serial: last,
            seen: now,
            begun: false,
            scope: None,
            group: None,
        });
        sitter.seen = now;
        Some(place)
    }

    /// Takes the seats of those who have been away for long, and of nobody once the target names somebody; `busy` is asked
    /// whether an incident is under way there. Called once before each sample's jobs are given theirs.
    pub(super) fn clear(&mut self, now: Timestamp, busy: impl Fn(usize) -> bool) {
        let before = self.looked.replace(now);
        for (place, seat) in self.all.iter_mut().enumerate() {
            let away = seat.as_ref().is_some_and(|sitter| match sitter.name.is_empty() {
                true => before.is_some_and(|before| before.since(sitter.seen) > Duration::ZERO),
                false => now.since(sitter.seen) > KEPT,
            });
            if away && !busy(place) {
                *seat = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_keeps_its_seat_and_is_missed_for_a_while() {
        let at = Timestamp::from_secs;
        let mut seats = Seats::new();
        assert_eq!(seats.of(0, &"a".into(), at(0)), Some(0));
        assert_eq!(seats.of(0, &"b".into(), at(0)), Some(1));
        assert_eq!(seats.of(1, &"a".into(), at(0)), Some(2));
        assert_eq!(seats.of(0, &"b".into(), at(100)), Some(1));
        seats.clear(at(130), |place| place == 0);
        let taken: Vec<bool> = seats.all.iter().take(4).map(Option::is_some).collect();
        assert_eq!(taken, [true, true, false, false]);
        let serial = seats.all[1].as_ref().unwrap().serial;
        assert_eq!(seats.of(2, &"c".into(), at(130)), Some(2));
        assert_ne!(seats.all[2].as_ref().unwrap().serial, serial);
        for more in 0..SEATS {
            seats.of(3, &more.into(), at(131));
        }
        assert_eq!(seats.unseated, 3);
    }

    #[test]
    fn a_target_that_names_nobody_keeps_one_seat_until_it_names_somebody() {
        let at = Timestamp::from_secs;
        let mut seats = Seats::new();
        let mut serials = |second, name: &str| {
            seats.clear(at(second), |_| false);
            seats.of(0, &name.into(), at(second));
            seats
                .all
                .iter()
                .flatten()
                .map(|sitter| (sitter.serial, sitter.name.to_string()))
                .collect::<Vec<_>>()
        };
        let first = serials(1, "");
        assert_eq!((serials(2, ""), serials(3, "")), (first.clone(), first));
        assert_eq!(serials(4, "a").len(), 2);
        let named = serials(5, "a");
        assert_eq!((named.len(), named[0].1.as_str()), (1, "a"));
    }
}

//! A level that rises immediately and falls with a delay, so that a value at a threshold does not cause repeated
//! findings; and the level that several samples confirm, for alerts.

use std::collections::BTreeMap;

use crate::model::finding::Subject;
use crate::model::time::Timestamp;

/// Seconds for which a lower level must hold before it is reported.
const HOLD: f64 = 60.0;
/// Seconds within the last [`HOLD`] for which consecutive samples must have found a level: more than the 10 s between two
/// assessments of a forecast.
const CONFIRM: f64 = 15.0;
/// Maximum number of changes of the found level that are kept for a subject.
const CHANGES: usize = 60;

/// The reported level of each subject.
#[derive(Debug)]
pub(super) struct Latch<L> {
    levels: BTreeMap<Subject, Held<L>>,
    last: f64,
}

#[derive(Debug)]
struct Held<L> {
    level: L,
    since_unix: f64,
    /// When the found level fell below the reported one, in seconds on the monotonic clock.
    falling: Option<f64>,
    seen: f64,
    /// The found levels of the last [`HOLD`] seconds, the oldest first.
    found: Vec<Found<L>>,
}

/// Consecutive samples of one level, in seconds on the monotonic clock.
#[derive(Debug)]
struct Found<L> {
    first: f64,
    last: f64,
    level: L,
}

impl<L> Default for Latch<L> {
    fn default() -> Self {
        Self { levels: BTreeMap::new(), last: 0.0 }
    }
}

impl<L: Copy + Ord> Latch<L> {
    /// Begins a tick: removes subjects that the previous tick did not have.
    pub(super) fn begin(&mut self, now: Timestamp) {
        let last = self.last;
        self.levels.retain(|_, held| held.seen >= last);
        self.last = now.monotonic().as_secs_f64();
    }

    /// Removes a subject that begins again.
    pub(super) fn forget(&mut self, subject: &Subject) {
        self.levels.remove(subject);
    }

    /// The level to report when `level` is found, and its start in seconds since 1970.
    pub(super) fn update(&mut self, subject: &Subject, level: L, now: Timestamp) -> (L, f64) {
        let (at, unix) = (now.monotonic().as_secs_f64(), now.unix().as_secs_f64());
        let found = Found { first: at, last: at, level };
        let Some(held) = self.levels.get_mut(subject) else {
            let new = Held { level, since_unix: unix, falling: None, seen: at, found: vec![found] };
            self.levels.insert(subject.clone(), new);
            return (level, unix);
        };
        held.seen = at;
        match held.found.last_mut().filter(|last| last.level == level) {
            Some(last) => last.last = at,
            None => {
                let surplus = (held.found.len() + 1).saturating_sub(CHANGES);
                held.found.drain(..surplus);
                held.found.retain(|found| at - found.last < HOLD);
                held.found.push(found);
            }
        }
        if level >= held.level {
            held.falling = None;
        } else {
            held.falling.get_or_insert(at);
        }
        if level > held.level || held.falling.is_some_and(|since| at - since >= HOLD) {
            (held.level, held.since_unix, held.falling) = (level, unix, None);
        }
        (held.level, held.since_unix)
    }

    /// The highest level that consecutive samples have found for [`CONFIRM`] seconds of the last [`HOLD`]; the default where
    /// there is none.
    pub(super) fn confirmed(&self, subject: &Subject, now: Timestamp) -> L
    where
        L: Default,
    {
        let Some(held) = self.levels.get(subject) else { return L::default() };
        let begin = now.monotonic().as_secs_f64() - HOLD;
        let is_confirmed = |level: &L| {
            let runs = held.found.chunk_by(|a, b| (a.level >= *level) == (b.level >= *level));
            let seconds = runs.map(|run| match run {
                [first, .., last] if first.level >= *level => (last.last - first.first.max(begin)).max(0.0),
                [only] if only.level >= *level => (only.last - only.first.max(begin)).max(0.0),
                _ => 0.0,
            });
            seconds.sum::<f64>() >= CONFIRM
        };
        held.found.iter().map(|found| found.level).filter(is_confirmed).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_rises_at_once_and_falls_after_a_minute() {
        let mut latch = Latch::default();
        let subject = Subject::host();
        let mut levels = Vec::new();
        for second in 0..200 {
            let now = Timestamp::from_secs(second);
            latch.begin(now);
            // Up and down each second until second 100, then low.
            let level = if second < 100 { second % 2 } else { 0 };
            levels.push(latch.update(&subject, level, now));
        }
        assert_eq!((levels[0], levels[1]), ((0, 0.0), (1, 1.0)));
        assert!(levels[1..160].iter().all(|levels| *levels == (1, 1.0)), "{levels:?}");
        assert_eq!(levels[160], (0, 160.0));
    }

    /// The confirmed level after one sample a second of each of these levels.
    fn confirmed(levels: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut latch = Latch::default();
        let after = levels.into_iter().zip(0..).map(|(level, second)| {
            let now = Timestamp::from_secs(second);
            latch.begin(now);
            latch.update(&Subject::host(), level, now);
            latch.confirmed(&Subject::host(), now)
        });
        after.collect()
    }

    #[test]
    fn what_one_sample_finds_is_held_and_not_confirmed() {
        let once = |from: u64, count: u64| {
            (0..120).map(move |s| if (from..from + count).contains(&s) { 3 } else { 1 })
        };
        assert!(confirmed(once(30, 1)).iter().all(|level| *level <= 1));
        // A forecast is assessed each 10 s: what one assessment says is there for 10 samples.
        assert!(confirmed(once(30, 10)).iter().all(|level| *level <= 1));
        // Not at once either, at the start of the daemon.
        assert_eq!(confirmed([3]), [0]);
        let lasting = confirmed(once(30, 30));
        assert_eq!((lasting[44], lasting[45], lasting[119]), (1, 3, 1));
    }

    #[test]
    fn a_level_that_comes_and_goes_is_confirmed_by_the_time_that_it_lasts() {
        // 10 of 20 seconds.
        assert_eq!(confirmed((0..60).map(|s| if s % 20 < 10 { 3 } else { 1 })).last(), Some(&3));
        // Two levels in turn: at least the lower one.
        assert_eq!(confirmed((0..40).map(|s| 2 + s % 2)).last(), Some(&2));
    }

    #[test]
    fn a_subject_that_has_ended_is_forgotten() {
        let mut latch = Latch::default();
        for second in 0..3 {
            latch.begin(Timestamp::from_secs(second));
            if second != 1 {
                assert_eq!(
                    latch.update(&Subject::host(), 5 - second, Timestamp::from_secs(second)).0,
                    5 - second
                );
            }
        }
    }
}

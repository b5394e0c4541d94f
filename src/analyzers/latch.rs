//! A level that rises immediately and falls with a delay, so that a value at a threshold does not cause repeated
//! findings.

use std::collections::BTreeMap;

use crate::model::finding::Subject;
use crate::model::time::Timestamp;

/// Seconds for which a lower level must hold before it is reported.
const HOLD: f64 = 60.0;

/// The reported level of each subject.
#[derive(Debug)]
pub(super) struct Latch<L> {
    levels: BTreeMap<Subject, Held<L>>,
    last: f64,
}

#[derive(Clone, Copy, Debug)]
struct Held<L> {
    level: L,
    since_unix: f64,
    /// When the found level fell below the reported one, in seconds on the monotonic clock.
    falling: Option<f64>,
    seen: f64,
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
        let new = Held { level, since_unix: unix, falling: None, seen: at };
        let Some(held) = self.levels.get_mut(subject) else {
            self.levels.insert(subject.clone(), new);
            return (level, unix);
        };
        held.seen = at;
        if level >= held.level {
            held.falling = None;
        } else {
            held.falling.get_or_insert(at);
        }
        if level > held.level || held.falling.is_some_and(|since| at - since >= HOLD) {
            *held = new;
        }
        (held.level, held.since_unix)
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

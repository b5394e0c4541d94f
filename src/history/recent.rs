//! The recent past of the node's series for display, in bounded memory that the users share.

use foldhash::{HashMap, HashSet};

use super::rings::Rings;
use crate::model::fair;
use crate::model::label::Label;

/// Maximum number of series: 2 MiB after a day ([`Rings::BOUND`] each).
pub const MOST_SERIES: usize = 208;
/// Seconds for which the history of a subject that no longer exists is kept, where there is room.
const RETENTION_SECONDS: f64 = 86_400.0;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    Host,
    Gpu(Label),
    /// A workload, by its name.
    Workload(Label),
    /// A rank, by its workload and its number.
    Rank(Label, Label),
}

/// What a series measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Quantity {
    /// Memory in use: of the host, of a GPU, of a workload's processes (RSS), or of a rank's allocator (allocated).
    Used,
    /// Swap in use of the host, GPU memory of a workload, or reserved memory of a rank's allocator.
    Second,
    /// Utilization of a GPU, 0 to 1.
    Utilization,
}

#[derive(Clone, Debug)]
pub struct Sample {
    pub subject: Subject,
    pub quantity: Quantity,
    /// The value, at least 0.
    pub value: f64,
    /// The user that shares the memory of the history with others; absent for the host and its devices, which come
    /// first.
    pub owner: Option<Label>,
}

type Key = (Subject, Quantity);

#[derive(Clone, Debug, Default)]
struct Kept {
    rings: Rings,
    /// When it was last recorded, in seconds since the origin.
    seen: f64,
}

/// The recent past of the node's series.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    series: HashMap<Key, Kept>,
    /// Series of the newest tick that are not kept because there is no room.
    omitted: usize,
    /// The newest tick, in seconds since the origin.
    at: f64,
    /// The intervals between the newest ticks, in seconds.
    intervals: [f64; 8],
    ticks: usize,
}

impl Recent {
    /// Records the samples of a tick at `at` seconds since an origin that never steps.
    pub fn record(&mut self, at: f64, samples: &[Sample]) {
        if self.ticks > 0 {
            self.intervals[self.ticks % self.intervals.len()] = at - self.at;
        }
        self.ticks += 1;
        self.at = at;
        let chosen = self.choose(samples);
        self.omitted = chosen.iter().filter(|chosen| !**chosen).count();
        if self.omitted > 0 {
            let left_out = samples.iter().zip(&chosen).filter(|(_, chosen)| !**chosen);
            for (sample, _) in left_out {
                self.series.remove(&(sample.subject.clone(), sample.quantity));
            }
        }
        for (sample, _) in samples.iter().zip(&chosen).filter(|(_, chosen)| **chosen) {
            let key = (sample.subject.clone(), sample.quantity);
            let kept = self.series.entry(key).or_default();
            kept.rings.push(at, sample.value);
            kept.seen = at;
        }
        self.forget(at);
    }

    /// Which of the samples are recorded: those of the host and its devices, then an equal share for each user, of
    /// which those come first that are recorded already.
    fn choose(&self, samples: &[Sample]) -> Vec<bool> {
        if samples.len() <= MOST_SERIES {
            return vec![true; samples.len()];
        }
        let shared = samples.iter().filter(|sample| sample.owner.is_none()).count();
        let room = MOST_SERIES.saturating_sub(shared);
        let mut owned: Vec<usize> =
            (0..samples.len()).filter(|place| samples[*place].owner.is_some()).collect();
        owned.sort_by_cached_key(|place| {
            !self.series.contains_key(&(samples[*place].subject.clone(), samples[*place].quantity))
        });
        let owners: Vec<Option<&Label>> = owned.iter().map(|place| samples[*place].owner.as_ref()).collect();
        let mut chosen: Vec<bool> = samples.iter().map(|sample| sample.owner.is_none()).collect();
        for (place, given) in owned.into_iter().zip(fair::divide(&owners, room)) {
            chosen[place] = given;
        }
        let mut left = MOST_SERIES;
        for chosen in chosen.iter_mut().filter(|chosen| **chosen) {
            *chosen = left > 0;
            left = left.saturating_sub(1);
        }
        chosen
    }

    /// Removes series that ended long ago, and those that ended first where there is no room.
    fn forget(&mut self, now: f64) {
        self.series.retain(|_, kept| now - kept.seen <= RETENTION_SECONDS);
        if self.series.len() <= MOST_SERIES {
            return;
        }
        let mut ended: Vec<(f64, Key)> = self
            .series
            .iter()
            .filter(|(_, kept)| kept.seen < now)
            .map(|(key, kept)| (kept.seen, key.clone()))
            .collect();
        ended.sort_by(|(one, _), (next, _)| one.total_cmp(next));
        for (_, key) in ended.into_iter().take(self.series.len() - MOST_SERIES) {
            self.series.remove(&key);
        }
    }

    /// The series of a subject.
    pub fn rings(&self, subject: &Subject, quantity: Quantity) -> Option<&Rings> {
        self.series.get(&(subject.clone(), quantity)).map(|kept| &kept.rings)
    }

    /// The subjects that have a series, in order.
    pub fn subjects(&self) -> Vec<&Subject> {
        let all: HashSet<&Subject> = self.series.keys().map(|(subject, _)| subject).collect();
        let mut all: Vec<&Subject> = all.into_iter().collect();
        all.sort();
        all
    }

    /// Number of kept series.
    pub fn len(&self) -> usize {
        self.series.len()
    }

    /// Whether no series is kept.
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// Number of series of the newest tick that are not kept because there is no room.
    pub fn omitted(&self) -> usize {
        self.omitted
    }

    /// The newest tick, in seconds since the origin.
    pub fn newest(&self) -> f64 {
        self.at
    }

    /// The interval of the ticks in seconds, the shortest of the last ones; absent before the second.
    pub fn interval(&self) -> Option<f64> {
        let known = self.intervals.iter().copied().filter(|interval| *interval > 0.0);
        known.min_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::rings::Range;

    fn sample(subject: Subject, owner: Option<&str>) -> Sample {
        Sample { subject, quantity: Quantity::Used, value: 1.0, owner: owner.map(Label::from) }
    }

    fn workload(name: usize, owner: &str) -> Sample {
        sample(Subject::Workload(name.into()), Some(owner))
    }

    #[test]
    fn one_user_cannot_use_the_history_of_another() {
        let mut recent = Recent::default();
        let many = (0..500).map(|name| workload(name, "mallory"));
        let all: Vec<Sample> =
            many.chain([workload(900, "alice"), sample(Subject::Host, None), workload(901, "bob")]).collect();
        for at in 0..20_u32 {
            recent.record(f64::from(at), &all);
            assert_eq!((recent.len(), recent.omitted()), (MOST_SERIES, all.len() - MOST_SERIES));
        }
        for subject in [Subject::Host, Subject::Workload(900.into()), Subject::Workload(901.into())] {
            let steps = recent.rings(&subject, Quantity::Used).unwrap().steps(Range::Minutes);
            assert_eq!(steps.len(), 20, "{subject:?}");
        }
        // Those of the user that are kept stay the same ones.
        let kept = recent.rings(&Subject::Workload(0.into()), Quantity::Used).unwrap();
        assert_eq!(kept.steps(Range::Minutes).len(), 20);
    }

    #[test]
    fn what_ended_stays_until_there_is_no_room() {
        let mut recent = Recent::default();
        recent.record(0.0, &[workload(0, "alice")]);
        recent.record(1.0, &[workload(1, "alice")]);
        assert_eq!(recent.subjects(), [&Subject::Workload(0.into()), &Subject::Workload(1.into())]);
        let many: Vec<Sample> = (2..2 + MOST_SERIES - 1).map(|name| workload(name, "alice")).collect();
        recent.record(2.0, &many);
        assert_eq!(recent.len(), MOST_SERIES);
        assert!(recent.rings(&Subject::Workload(0.into()), Quantity::Used).is_none(), "it ended first");
        assert!(recent.rings(&Subject::Workload(1.into()), Quantity::Used).is_some());
        recent.record(RETENTION_SECONDS + 3.0, &[]);
        assert!(recent.is_empty());
    }

    #[test]
    fn the_interval_is_that_of_the_ticks() {
        let mut recent = Recent::default();
        assert_eq!(recent.interval(), None);
        for at in [0.0, 5.0, 15.0, 20.0] {
            recent.record(at, &[]);
        }
        assert_eq!((recent.interval(), recent.newest()), (Some(5.0), 20.0));
    }

    #[test]
    fn memory_is_bounded() {
        const { assert!(MOST_SERIES * (Rings::BOUND + size_of::<(Key, Kept)>()) < (21 << 20) / 10) };
    }
}

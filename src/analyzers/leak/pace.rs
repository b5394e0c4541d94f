//! Training steps per second, so that growth can be reported per step.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::analyzers::ranks;
use crate::model::analyzer::View;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::sources::training::metrics::STEPS;

/// Minimum interval that a step rate is computed over; it includes evaluations and checkpoints.
const SHORTEST: Duration = Duration::from_secs(60);
/// The interval is at most twice this long.
const LONGEST: Duration = Duration::from_secs(600);

/// The step count at one time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Timestamp,
    steps: f64,
}

/// The step rate of one rank.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Start of the current interval, and of the next one.
    from: Mark,
    next: Mark,
    now: Mark,
}

impl Pace {
    fn go_on(&mut self, now: Mark) {
        if now.steps < self.now.steps {
            *self = Self { from: now, next: now, now };
        }
        self.now = now;
        if now.at.since(self.next.at) >= LONGEST {
            (self.from, self.next) = (self.next, now);
        }
    }

    fn steps_per_second(&self) -> Option<f64> {
        let took = self.now.at.since(self.from.at);
        let rate = (self.now.steps - self.from.steps) / took.as_secs_f64();
        (took >= SHORTEST && rate > 0.0).then_some(rate)
    }
}

/// The step rates of all ranks that report steps.
#[derive(Debug, Default)]
pub(super) struct Paces {
    ranks: BTreeMap<[Label; 2], Pace>,
    by_pid: BTreeMap<Label, f64>,
    by_workload: BTreeMap<Label, f64>,
}

impl Paces {
    /// Updates the step rates from this frame.
    pub(super) fn record(&mut self, view: &View<'_>, at: Timestamp) {
        let pids = ranks::pids(view);
        (self.by_pid, self.by_workload) = (BTreeMap::new(), BTreeMap::new());
        let mut ranks = std::mem::take(&mut self.ranks);
        for point in view.points(&STEPS) {
            let [workload, rank] = &*point.labels else { continue };
            let now = Mark { at, steps: point.value };
            let key = [workload.clone(), rank.clone()];
            let mut pace = ranks.remove(&key).unwrap_or(Pace { from: now, next: now, now });
            pace.go_on(now);
            if let Some(rate) = pace.steps_per_second() {
                if let Some(pid) = pids.get(&[workload, rank]) {
                    self.by_pid.insert((*pid).clone(), rate);
                }
                // Ranks wait for each other: a workload completes a step when its slowest rank does.
                let slowest = self.by_workload.entry(workload.clone()).or_insert(rate);
                *slowest = slowest.min(rate);
            }
            self.ranks.insert(key, pace);
        }
    }

    /// Steps per second of a process, or of the whole workload where `pid` is empty; absent before it is known.
    pub(super) fn of(&self, workload: &Label, pid: &Label) -> Option<f64> {
        if pid.is_empty() { self.by_workload.get(workload).copied() } else { self.by_pid.get(pid).copied() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::point::Batch;
    use crate::model::units::{Count, Flag};
    use crate::sources::training::metrics::INFO;

    #[test]
    fn a_pace_is_known_after_a_minute_and_follows() {
        let mut paces = Paces::default();
        let (job, none): (Label, Label) = ("job".into(), "".into());
        let mut at = |second: u64, steps: &[u64]| {
            let mut batch = Batch::new();
            for (rank, steps) in steps.iter().enumerate() {
                let of: [Label; 2] = [job.clone(), rank.to_string().into()];
                batch.put(&STEPS, &of, Count(*steps));
                let value = |name: &&str| match *name {
                    "workload" => job.clone(),
                    "rank" => of[1].clone(),
                    "pid" => format!("{}", 40 + rank).into(),
                    _ => none.clone(),
                };
                let labels: Vec<Label> = INFO.desc.labels.iter().map(value).collect();
                batch.put(&INFO, &labels, Flag(true));
            }
            paces.record(&View::new(batch.families()), Timestamp::from_secs(second));
            [paces.of(&job, &"40".into()), paces.of(&job, &"41".into()), paces.of(&job, &none)]
        };
        assert_eq!(at(100, &[10, 10]), [None; 3]);
        assert_eq!(at(130, &[70, 40]), [None; 3], "too short a stretch");
        assert_eq!(at(160, &[130, 70]), [Some(2.0), Some(1.0), Some(1.0)]);
        // Old steps no longer count, and a step counter that restarts is another run.
        at(760, &[1330, 70]);
        at(1360, &[1330, 70]);
        assert_eq!(at(1960, &[1330, 670]), [None, Some(1.0), Some(1.0)]);
        assert_eq!(at(2000, &[5, 710]), [None, Some(1.0), Some(1.0)]);
    }
}

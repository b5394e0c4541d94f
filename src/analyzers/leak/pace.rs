//! Training steps per second of the ranks that report steps.

use std::collections::BTreeMap;

use forecast::pace::Pace;

use crate::analyzers::ranks;
use crate::model::analyzer::View;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::sources::training::metrics::STEPS;

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
        let (pids, seconds) = (ranks::pids(view), at.monotonic().as_secs_f64());
        (self.by_pid, self.by_workload) = (BTreeMap::new(), BTreeMap::new());
        let mut ranks = std::mem::take(&mut self.ranks);
        for point in view.points(&STEPS) {
            let [workload, rank] = &*point.labels else { continue };
            let key = [workload.clone(), rank.clone()];
            let mut pace = ranks.remove(&key).unwrap_or_else(|| Pace::new(seconds, point.value));
            pace.record(seconds, point.value);
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

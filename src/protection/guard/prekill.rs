//! Cgroups that systemd-oomd is about to kill: which protected jobs are in them, and the way to the guard.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use super::input::GuardInput;
use crate::model::ids::within;
use crate::model::lock::lock;
use crate::protection::plan::victim::Roster;
use crate::protection::types::run_request::{RunCounts, RunOutcome};

/// Maximum number of notifications that wait for the guard.
const QUEUE: usize = 64;

/// A cgroup that is about to be killed, on its way to the guard.
#[derive(Debug)]
pub(super) struct Prekill {
    pub(super) cgroup: Arc<str>,
    /// The slots of the jobs in it, with their serial numbers.
    pub(super) jobs: Vec<(usize, u64)>,
    /// Receives the answer when nothing is waited for any more.
    pub(super) reply: SyncSender<()>,
}

/// The notifications of systemd-oomd.
#[derive(Debug, Default)]
pub struct Prekills {
    /// The slots, serial numbers and processes of the protected jobs.
    jobs: Mutex<Vec<(usize, u64, Arc<Roster>)>>,
    pending: Mutex<Vec<Prekill>>,
    /// Counts of notifications.
    pub outcomes: RunCounts,
}

impl Prekills {
    /// Replaces the jobs with those of a sample.
    pub(super) fn jobs_are(&self, input: &GuardInput) {
        let jobs = input.slots.iter().enumerate();
        let jobs = jobs
            .filter_map(|(slot, job)| Some((slot, job.as_ref()?.serial, Arc::clone(&job.as_ref()?.roster))));
        *lock(&self.jobs) = jobs.collect();
    }

    /// Removes all jobs: there is no guard.
    pub(super) fn no_guard(&self) {
        lock(&self.jobs).clear();
        lock(&self.pending).clear();
    }

    /// Passes a cgroup that is about to be killed to the guard. The receiver ends when nothing is waited for any more; absent
    /// where no protected job is in the cgroup.
    pub(super) fn notify(&self, cgroup: String) -> Option<Receiver<()>> {
        let is_in = |roster: &Roster| roster.groups.iter().any(|group| within(group.as_str(), &cgroup));
        let jobs: Vec<(usize, u64)> = lock(&self.jobs)
            .iter()
            .filter(|(.., roster)| is_in(roster))
            .map(|(slot, serial, _)| (*slot, *serial))
            .collect();
        let mut pending = lock(&self.pending);
        let refused = match jobs.is_empty() {
            true => Some(RunOutcome::NoJob),
            false => (pending.len() >= QUEUE).then_some(RunOutcome::Busy),
        };
        if let Some(outcome) = refused {
            self.outcomes.add(outcome);
            return None;
        }
        let (reply, answer) = sync_channel(1);
        pending.push(Prekill { cgroup: cgroup.into(), jobs, reply });
        Some(answer)
    }

    /// Takes the notifications that wait, if the lock is free.
    pub(super) fn waiting(&self) -> Vec<Prekill> {
        self.pending.try_lock().map(|mut pending| std::mem::take(&mut *pending)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_jobs_with_a_process_in_the_cgroup_are_passed_on() {
        let prekills = Prekills::default();
        let job = |slot, groups: &[&str]| {
            let groups = groups.iter().map(|group| (*group).into()).collect();
            (slot, 7, Arc::new(Roster { groups, ..Roster::default() }))
        };
        let jobs = [job(0, &["/a/job_1/step_0", "/a/job_1/step_1"]), job(3, &["/a/job_11"]), job(4, &[])];
        *lock(&prekills.jobs) = jobs.into();
        for (cgroup, expected) in [
            ("/a/job_1", &[(0, 7)][..]),
            ("/a/job_1/step_1", &[(0, 7)]),
            ("/a/job_1/step_1/task", &[]),
            ("/a", &[(0, 7), (3, 7)]),
            ("/", &[(0, 7), (3, 7)]),
            ("/b", &[]),
        ] {
            let answer = prekills.notify(cgroup.to_owned());
            let found = prekills.waiting();
            assert_eq!(found.first().map_or(&[][..], |prekill| &prekill.jobs), expected, "{cgroup}");
            assert_eq!(
                (answer.is_some(), found.len()),
                (!expected.is_empty(), usize::from(answer.is_some()))
            );
        }
        let kept: Vec<_> = (0..=QUEUE).map(|_| prekills.notify("/a".to_owned())).collect();
        assert!(kept[..QUEUE].iter().all(Option::is_some) && kept[QUEUE].is_none());
        prekills.no_guard();
        assert!(kept[0].as_ref().unwrap().recv().is_err(), "nobody answers any more");
        let counts: Vec<_> = prekills.outcomes.all().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [(RunOutcome::NoJob, 2), (RunOutcome::Busy, 1)]);
    }
}

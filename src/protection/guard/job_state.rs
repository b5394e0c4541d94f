//! The state that the guard's thread keeps of the job in one slot.

mod checkpoint_request;
mod progress;
mod readings;
mod steps;
mod verification;

use std::sync::Arc;
use std::time::Duration;

use self::checkpoint_request::CheckpointRequest;
pub(super) use self::progress::PlanProgress;
use self::readings::{CgroupReadings, NodeReadings};
pub(super) use self::readings::{HostLimits, oldest, reading_with_rates};
pub(super) use self::steps::{AWAIT_CHECKPOINT, AWAIT_END, PendingStep};
use self::steps::{Freeze, PendingSteps};
use self::verification::Verification;
use super::input::{JobInput, JobNames, SampledGives, SampledReading, SamplerReadings};
use super::journal::JobTransition;
use crate::model::checkpoint::Checkpoints;
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::options::target::Victims;
use crate::protection::plan::victim::{MOST, Roster};
use crate::protection::policy::{Aged, Levels, Limits, Members, Observed, Reading, Resource, State};

/// The processes of a request that are remembered; a job with more of them is never taken for one that was started again.
const MOST_ASKED: usize = 32;

/// The job in one slot.
#[derive(Debug)]
pub(super) struct JobState {
    /// Distinguishes the job from earlier jobs in the same slot.
    pub(super) serial: u64,
    /// The index of its target.
    pub(super) target: usize,
    /// The user of the job.
    pub(super) user: Option<u32>,
    pub(super) names: Arc<JobNames>,
    /// The processes of the newest sample.
    pub(super) roster: Arc<Roster>,
    /// Whether the executor has accepted a scope for the job. Without one, no process is signalled.
    pub(super) scoped: bool,
    /// Since when a reading is at the hard level.
    pub(super) hard_since: Option<Timestamp>,
    /// What the sampler knows of the job, and since when.
    pub(super) sampled: SamplerReadings,
    sampled_at: Timestamp,
    /// The limits of its cgroup.
    pub(super) cgroup: CgroupReadings,
    /// The NUMA nodes that it may use.
    pub(super) nodes: NodeReadings,
    /// The checkpoint request of the incident.
    pub(super) checkpoint: CheckpointRequest,
    /// The processes that the last checkpoint request could go to.
    asked: [Option<ProcessKey>; MOST_ASKED],
    /// Whether its cgroup is frozen.
    pub(super) freeze: Freeze,
    /// The processes that the incident terminates.
    pub(super) verification: Verification,
    /// Steps that have started and not ended.
    pub(super) pending: PendingSteps,
    /// The plan that is being carried out.
    pub(super) progress: Option<PlanProgress>,
    /// The memory of the progress of its plans.
    pub(super) carried: Vec<bool>,
    /// The time that steps for it have taken.
    pub(super) spent: Duration,
    /// The newest transition, to which later steps belong.
    pub(super) moved: Option<JobTransition>,
}

impl JobState {
    /// The state of a job that has just been assigned to a slot. Allocates; everything later does not.
    pub(super) fn new(input: &JobInput, at: Timestamp) -> Self {
        Self {
            serial: input.serial,
            target: input.target,
            user: input.user,
            names: Arc::clone(&input.names),
            roster: Arc::clone(&input.roster),
            scoped: false,
            hard_since: None,
            sampled: SamplerReadings::default(),
            sampled_at: at,
            cgroup: CgroupReadings::default(),
            nodes: NodeReadings::default(),
            checkpoint: CheckpointRequest::default(),
            asked: [None; MOST_ASKED],
            freeze: Freeze::default(),
            verification: Verification::default(),
            pending: PendingSteps::new(),
            progress: None,
            carried: Vec::with_capacity(MOST + 8),
            spent: Duration::ZERO,
            moved: None,
        }
    }

    /// Takes over newer input. What it replaces goes back with the input, to be freed on another thread.
    pub(super) fn receive(&mut self, input: &mut JobInput, at: Timestamp) {
        std::mem::swap(&mut self.roster, &mut input.roster);
        std::mem::swap(&mut self.names, &mut input.names);
        if let Some(meter) = &mut input.meter {
            self.cgroup.replace_meter(meter);
        }
        if let Some(meter) = &mut input.nodes {
            self.nodes.replace_meter(meter);
        }
        if input.processes.is_some() {
            self.cgroup.replace_process_meter(&mut input.processes);
        }
        (self.sampled, self.sampled_at) = (input.sampled, at);
    }

    /// Notes which processes a checkpoint is requested of.
    pub(super) fn note_request(&mut self, roster: &Roster) {
        let mut asked = roster.ask.iter().map(|asked| asked.key);
        let all = [(); MOST_ASKED].map(|()| asked.next());
        self.asked = if asked.next().is_some() { [None; MOST_ASKED] } else { all };
    }

    /// Reads the checkpoint states that the job's processes have reported over the job socket since the request.
    pub(super) fn read_acknowledgements(&mut self, reported: &Checkpoints, now: Timestamp) {
        let requested =
            self.moved.map(|moved| moved.transition).filter(|moved| moved.to == State::Checkpoint);
        if let Some(requested) = requested {
            self.checkpoint.read(reported, &self.roster, requested.at, now);
        }
    }

    /// The processes that a transition to `to` is about. The processes that were sent SIGTERM are those that are killed,
    /// although others may be the largest or newest by then.
    pub(super) fn affected(&mut self, to: State, victims: Victims) -> Arc<Roster> {
        let chosen = &mut self.verification.victims;
        if matches!(to, State::Term | State::Kill) && (victims == Victims::Whole || chosen.is_none()) {
            *chosen = Some(Arc::clone(&self.roster));
        }
        let terminates = matches!(to, State::Term | State::Kill | State::Verify);
        Arc::clone(chosen.as_ref().filter(|_| terminates).unwrap_or(&self.roster))
    }

    /// The processes that are waited for: those that the incident terminates, or all where it terminates none.
    pub(super) fn awaited(&self) -> &Arc<Roster> {
        self.verification.victims.as_ref().unwrap_or(&self.roster)
    }

    /// Everything that the policy decides on. `host` is the reading of the host; `able` is whether there is an executor.
    pub(super) fn observed(
        &self,
        now: Timestamp,
        host: Option<(Timestamp, Reading)>,
        able: bool,
    ) -> Observed {
        let own =
            |read: Option<(Timestamp, Reading)>| read.map(|(at, reading)| Aged::of(reading, now.since(at)));
        let SamplerReadings {
            members,
            gpu,
            allocator,
            forecast,
            falls,
            save,
            growth,
            leak,
            alert,
            unfit,
            ..
        } = self.sampled;
        let age = now.since(self.sampled_at);
        let catching = self.checkpoint.catching;
        Observed {
            readings: Resource::ALL.map(|resource| match resource {
                Resource::Gpu => gpu.reading(age),
                Resource::Allocator => allocator.reading(age),
                _ => own(self.timed(resource, host)),
            }),
            absent: Resource::ALL.map(|resource| match resource {
                Resource::Host => false,
                Resource::Cgroup => self.cgroup.unlimited(),
                Resource::Gpu => gpu == SampledReading::Absent,
                Resource::Allocator => allocator == SampledReading::Absent,
                Resource::Nodes => self.nodes.nodes().is_none(),
                Resource::High => self.cgroup.high().is_none(),
            }),
            groups: self.cgroup.groups(),
            nodes: self.nodes.nodes(),
            save,
            forecast: forecast.map(|forecast| Aged::of(forecast, age)),
            falls: falls.map(|falls| Aged::of(falls, age)),
            growth: growth.map(|growth| Aged::of(growth, age)),
            leak: leak.map(|leak| Aged::of(leak, age)),
            // Its age is that of the newest notification.
            alert: Some(Aged::of(
                alert.map(|alert| alert.most),
                alert.map_or(Duration::ZERO, |alert| now.since(alert.at)),
            )),
            members: members.map(|members| Aged::of(Members { catching, ..members }, age)),
            restarted: is_another(&self.asked, self.roster.ask.iter().map(|asked| asked.key)),
            ack: self.checkpoint.ack,
            alive: self.verification.alive,
            victims: self.verification.resident,
            gives: None,
            half_dead: self.verification.half_dead(),
            busy: self.pending.kills(),
            kill_waits: false,
            unfinished: false,
            fit: able && unfit.is_none() && (self.scoped || members.is_none_or(|members| members.count == 0)),
        }
    }

    /// The newest reading of a resource that the guard reads itself; `host` is that of the host.
    fn timed(&self, resource: Resource, host: Option<(Timestamp, Reading)>) -> Option<(Timestamp, Reading)> {
        match resource {
            Resource::Host => host,
            Resource::Cgroup => self.cgroup.timed(),
            Resource::Nodes => self.nodes.timed(),
            Resource::High => self.cgroup.high(),
            // These readings change only with a frame.
            Resource::Gpu | Resource::Allocator => None,
        }
    }

    /// The same without its time.
    pub(super) fn reading(&self, resource: Resource, host: Option<(Timestamp, Reading)>) -> Option<Reading> {
        self.timed(resource, host).map(|(_, reading)| reading)
    }

    /// Whether a hard level of these limits is reached, by what the guard reads itself.
    pub(super) fn is_hard(&self, limits: &Limits, host: Option<(Timestamp, Reading)>) -> bool {
        let reached = |(resource, levels): (Resource, &Levels)| {
            self.reading(resource, host)
                .zip(levels.hard)
                .is_some_and(|(reading, hard)| reading.is_within(hard))
        };
        limits.watched().any(reached)
    }

    /// Whether a level of these limits is reached where swap does not count, or a hard one, by what the guard reads itself of the host
    /// and of the job's limits.
    pub(super) fn is_low(&self, limits: &Limits, host: Option<(Timestamp, Reading)>) -> bool {
        let shared = [Resource::Host, Resource::Cgroup, Resource::Nodes];
        shared.into_iter().any(|resource| {
            let levels = limits.levels[resource.place()].as_ref();
            self.reading(resource, host).zip(levels).is_some_and(|(reading, levels)| {
                let memory = Reading::of(reading.room.without_swap());
                memory.is_within(levels.soft) || levels.hard.is_some_and(|hard| reading.is_within(hard))
            })
        })
    }

    /// What the end of the job's victims gives back. Where they are all processes of a cgroup: what the kernel counts in it now of
    /// anonymous memory, and of shared memory beyond all files that they see in memory. Otherwise what the sampler knows, at most that,
    /// and at most the memory of the processes with shared pages once: the sum of resident memory counts these for each.
    pub(super) fn gives(&self) -> Option<Bytes> {
        let SampledGives { resident, files, of_gpus } = self.sampled.gives?;
        let counted = self.cgroup.private(files);
        let on_host = match counted.filter(|_| self.roster.group.is_some()) {
            Some(counted) => counted,
            None => counted.into_iter().chain(self.cgroup.own_used()).fold(resident, Bytes::min),
        };
        Some(on_host.saturating_add(of_gpus))
    }

    /// Whether the end of victims is to be awaited and no step awaits it: the last attempt failed a second ago or more.
    pub(super) fn must_await_again(&self, now: Timestamp) -> bool {
        self.verification.is_due(now) && !self.pending.awaits_end()
    }

    /// The incident is over.
    pub(super) fn end_incident(&mut self) {
        self.pending.clear();
        self.checkpoint = CheckpointRequest::default();
        self.verification.end();
    }
}

/// Whether the job was started again since a request: it has processes, and none of those that were asked.
fn is_another(asked: &[Option<ProcessKey>], now: impl Iterator<Item = ProcessKey>) -> bool {
    let mut now = now.peekable();
    asked.iter().any(Option::is_some) && now.peek().is_some() && !now.any(|key| asked.contains(&Some(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_another_when_none_of_those_that_were_asked_is_left() {
        let key = |pid: &u32| ProcessKey { pid: *pid, start: 1 };
        let another = |asked: &[u32], now: &[u32]| {
            let asked: Vec<_> = asked.iter().map(key).map(Some).chain([None]).collect();
            is_another(&asked, now.iter().map(key))
        };
        assert!(another(&[10, 2], &[11, 3]));
        assert!(!another(&[10, 2], &[11, 2]), "one that was asked would be asked again");
        assert!(!another(&[10, 2], &[]) && !another(&[], &[11]));
        let again = ProcessKey { pid: 10, start: 2 };
        assert!(is_another(&[Some(key(&10))], std::iter::once(again)), "its pid was used again");
    }
}

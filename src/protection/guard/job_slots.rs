//! Assignment of jobs to slots: each job that a target names keeps its slot, and users share the slots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::input::{JobNames, SLOTS};
use crate::model::fair;
use crate::model::ids::WorkloadKey;
use crate::model::label::Label;
use crate::model::node_set::NodeSet;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::enforce::process_set::ProcessSet;
use crate::protection::types::scope::Scope;
use crate::protection::types::step::Group;

/// Time for which a job that has ended keeps its slot, for its incident and the cooldown.
const SLOT_RETENTION: Duration = Duration::from_secs(120);

/// The identity of a job. Names do not identify it, because users choose them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JobIdentity {
    /// The target names no process now.
    None,
    Workload(WorkloadKey),
    /// The topmost cgroup that the target names.
    Group(Label),
}

/// A job that a target names now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NamedJob {
    pub(super) target: usize,
    pub(super) what: JobIdentity,
    /// The user of the job; absent where the target names no job.
    pub(super) user: Option<u32>,
}

/// A job that has a slot.
#[derive(Debug)]
pub(super) struct JobSlot {
    pub(super) claim: NamedJob,
    /// Its current name; empty where the target names no process.
    pub(super) name: Label,
    pub(super) serial: u64,
    pub(super) seen: Timestamp,
    /// Whether its escalation was handed to the guard.
    pub(super) begun: bool,
    pub(super) scope: Option<Scope>,
    /// The cgroup whose limits are read.
    pub(super) group: Option<Group>,
    /// The NUMA nodes whose memory is read, and the memory in their pools of huge pages.
    pub(super) nodes: Option<(NodeSet, Bytes)>,
    /// The processes whose memory is read, by the target's own limit.
    pub(super) metered: BTreeSet<crate::model::ids::ProcessKey>,
    /// The exact readings of it; absent where the target has no limit of its own.
    pub(super) set: Option<Arc<ProcessSet>>,
    /// The names that the guard was given.
    pub(super) names: Arc<JobNames>,
    /// The logged reasons why its processes do not save a checkpoint on request.
    pub(super) cannot_save: BTreeSet<Label>,
}

#[derive(Debug)]
pub(super) struct JobSlots {
    pub(super) all: Vec<Option<JobSlot>>,
    last: u64,
    /// When slots were last assigned.
    looked: Option<Timestamp>,
    /// Jobs without a slot in this sample, by user.
    pub(super) without_slot: BTreeMap<Option<u32>, u64>,
}

/// The priority of a job among those of its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SlotPriority {
    /// An incident is in progress: the job always keeps its slot.
    Busy,
    /// The job has a slot.
    Occupied,
    /// The job has no slot yet.
    New,
    /// The job has ended and keeps its slot for a while.
    Away,
}

#[derive(Debug)]
struct SlotRequest {
    rank: SlotPriority,
    /// Jobs with older slots come first.
    serial: u64,
    user: Option<u32>,
    place: Option<usize>,
    /// Its index among the jobs of this sample.
    number: Option<usize>,
}

impl JobSlots {
    pub(super) fn new() -> Self {
        let all = (0..SLOTS).map(|_| None).collect();
        Self { all, last: 0, looked: None, without_slot: BTreeMap::new() }
    }

    /// The slot of each job of this sample, divided between users; absent where a job has none. `busy` returns whether
    /// an incident is in progress in a slot.
    pub(super) fn assign(
        &mut self,
        now: Timestamp,
        claims: &[NamedJob],
        busy: impl Fn(usize) -> bool,
    ) -> Vec<Option<usize>> {
        self.clear(now, &busy);
        let asks = self.asks(claims, &busy);
        let kept = keep(&asks);
        self.without_slot.clear();
        for (ask, _) in asks.iter().zip(&kept).filter(|(_, kept)| !**kept) {
            if let Some(place) = ask.place {
                self.all[place] = None;
            }
            if ask.number.is_some() {
                *self.without_slot.entry(ask.user).or_default() += 1;
            }
        }
        let mut places = vec![None; claims.len()];
        for (ask, _) in asks.iter().zip(&kept).filter(|(_, kept)| **kept) {
            let Some(number) = ask.number else { continue };
            places[number] = ask.place.or_else(|| self.all.iter().position(Option::is_none));
            if let Some(place) = places[number] {
                self.sit(place, &claims[number], now);
            }
        }
        places
    }

    fn asks(&self, claims: &[NamedJob], busy: impl Fn(usize) -> bool) -> Vec<SlotRequest> {
        let mut away: BTreeMap<&NamedJob, (usize, u64)> = BTreeMap::new();
        for (place, job) in self.all.iter().enumerate() {
            away.extend(job.as_ref().map(|job| (&job.claim, (place, job.serial))));
        }
        let rank = |place: usize, otherwise| if busy(place) { SlotPriority::Busy } else { otherwise };
        let mut asks: Vec<SlotRequest> = claims
            .iter()
            .enumerate()
            .map(|(number, claim)| {
                let (place, serial) = away.remove(claim).unzip();
                SlotRequest {
                    rank: place.map_or(SlotPriority::New, |place| rank(place, SlotPriority::Occupied)),
                    serial: serial.unwrap_or(u64::MAX),
                    user: claim.user,
                    place,
                    number: Some(number),
                }
            })
            .collect();
        asks.extend(away.into_iter().map(|(claim, (place, serial))| SlotRequest {
            rank: rank(place, SlotPriority::Away),
            serial,
            user: claim.user,
            place: Some(place),
            number: None,
        }));
        asks.sort_by_key(|ask| (ask.rank, ask.serial));
        asks
    }

    fn sit(&mut self, place: usize, claim: &NamedJob, now: Timestamp) {
        self.last += 1;
        let serial = self.last;
        let job = self.all[place].get_or_insert_with(|| JobSlot {
            claim: claim.clone(),
            name: Label::default(),
            serial,
            seen: now,
            begun: false,
            scope: None,
            group: None,
            nodes: None,
            metered: BTreeSet::new(),
            set: None,
            names: Arc::default(),
            cannot_save: BTreeSet::new(),
        });
        job.seen = now;
    }

    /// Clears slots of jobs that ended long ago, and those of targets without a process once they have one.
    fn clear(&mut self, now: Timestamp, busy: impl Fn(usize) -> bool) {
        let before = self.looked.replace(now);
        for (place, slot) in self.all.iter_mut().enumerate() {
            let away = slot.as_ref().is_some_and(|job| match job.claim.what == JobIdentity::None {
                true => before.is_some_and(|before| before.since(job.seen) > Duration::ZERO),
                false => now.since(job.seen) > SLOT_RETENTION,
            });
            if away && !busy(place) {
                *slot = None;
            }
        }
    }
}

/// Which jobs have a slot: those of each user's share, and those with an incident in any case.
fn keep(asks: &[SlotRequest]) -> Vec<bool> {
    let owners: Vec<Option<u32>> = asks.iter().map(|ask| ask.user).collect();
    let mut kept = fair::divide(&owners, SLOTS);
    let mut over = 0;
    for (ask, kept) in
        asks.iter().zip(&mut kept).filter(|(ask, kept)| ask.rank == SlotPriority::Busy && !**kept)
    {
        debug_assert!(ask.place.is_some(), "who is busy sits");
        *kept = true;
        over += 1;
    }
    let others =
        asks.iter().zip(&mut kept).rev().filter(|(ask, kept)| ask.rank != SlotPriority::Busy && **kept);
    others.take(over).for_each(|(_, kept)| *kept = false);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: u32 = 1001;
    const MALLORY: u32 = 1002;

    fn claims(jobs: &[(usize, &str, u32)]) -> Vec<NamedJob> {
        let claim = |(target, name, user): &(usize, &str, u32)| NamedJob {
            target: *target,
            what: if name.is_empty() { JobIdentity::None } else { JobIdentity::Group((*name).into()) },
            user: (!name.is_empty()).then_some(*user),
        };
        jobs.iter().map(claim).collect()
    }

    fn many(count: usize, user: u32) -> Vec<NamedJob> {
        (0..count)
            .map(|job| NamedJob {
                target: 0,
                what: JobIdentity::Group(format!("job-{job}").into()),
                user: Some(user),
            })
            .collect()
    }

    const NOBODY: fn(usize) -> bool = |_| false;

    #[test]
    fn a_job_keeps_its_slot_for_a_while_after_it_disappears() {
        let at = Timestamp::from_secs;
        let mut slots = JobSlots::new();
        let (a, b, c) = ((0, "a", 7), (0, "b", 7), (1, "a", 7));
        assert_eq!(slots.assign(at(0), &claims(&[a, b, c]), NOBODY), [Some(0), Some(1), Some(2)]);
        assert_eq!(slots.assign(at(100), &claims(&[b]), NOBODY), [Some(1)]);
        assert_eq!(slots.assign(at(130), &claims(&[b]), |place| place == 0), [Some(1)]);
        let taken: Vec<bool> = slots.all.iter().take(4).map(Option::is_some).collect();
        assert_eq!(taken, [true, true, false, false]);
        let serial = slots.all[1].as_ref().unwrap().serial;
        assert_eq!(slots.assign(at(130), &claims(&[b, (2, "c", 7)]), |place| place == 0), [Some(1), Some(2)]);
        assert_ne!(slots.all[2].as_ref().unwrap().serial, serial);
        assert!(slots.without_slot.is_empty());
    }

    #[test]
    fn a_target_without_jobs_keeps_one_slot_until_it_has_one() {
        let at = Timestamp::from_secs;
        let mut slots = JobSlots::new();
        let mut serials = |second, name: &str| {
            slots.assign(at(second), &claims(&[(0, name, 7)]), NOBODY);
            let jobs = slots.all.iter().flatten();
            jobs.map(|job| (job.serial, matches!(job.claim.what, JobIdentity::Group(_)))).collect::<Vec<_>>()
        };
        let first = serials(1, "");
        assert_eq!((serials(2, ""), serials(3, "")), (first.clone(), first));
        assert_eq!(serials(4, "a").len(), 2);
        let named = serials(5, "a");
        assert_eq!((named.len(), named[0].1), (1, true));
    }

    #[test]
    fn seventy_jobs_of_one_user_leave_a_slot_for_another() {
        let at = Timestamp::from_secs;
        let mut slots = JobSlots::new();
        let mut all = many(70, MALLORY);
        let places = slots.assign(at(1), &all, NOBODY);
        assert_eq!(places.iter().flatten().count(), SLOTS);
        assert_eq!(slots.without_slot, [(Some(MALLORY), 6)].into_iter().collect());
        let before: Vec<u64> = slots.all.iter().flatten().map(|job| job.serial).collect();
        all.extend(claims(&[(0, "train", ALICE)]));
        let places = slots.assign(at(2), &all, NOBODY);
        assert!(places[70].is_some(), "Alice's job has its seat");
        assert_eq!(slots.without_slot, [(Some(MALLORY), 7)].into_iter().collect());
        // Nobody else was moved, and nobody is as long as nothing changes.
        let stay =
            |slots: &JobSlots| slots.all.iter().flatten().filter(|job| before.contains(&job.serial)).count();
        assert_eq!(stay(&slots), SLOTS - 1);
        let again = slots.assign(at(3), &all, NOBODY);
        assert_eq!((again, stay(&slots)), (places, SLOTS - 1));
    }

    #[test]
    fn slots_of_ended_jobs_are_reused_first() {
        let at = Timestamp::from_secs;
        let mut slots = JobSlots::new();
        slots.assign(at(1), &many(64, MALLORY), NOBODY);
        // Mallory's jobs have ended, and would keep their slots for two minutes.
        assert_eq!(slots.assign(at(2), &claims(&[(0, "train", ALICE)]), NOBODY).iter().flatten().count(), 1);
        assert!(slots.without_slot.is_empty(), "who is not there is missed by nobody");
    }

    #[test]
    fn whom_something_is_being_done_for_is_never_sent_away() {
        let at = Timestamp::from_secs;
        let mut slots = JobSlots::new();
        let mut all = many(64, MALLORY);
        slots.assign(at(1), &all, NOBODY);
        all.extend((0..20).map(|job| NamedJob {
            target: 1,
            what: JobIdentity::Group(format!("a-{job}").into()),
            user: Some(ALICE),
        }));
        let places = slots.assign(at(2), &all, |place| place < 60);
        assert!(places[..60].iter().zip(0..).all(|(place, slot)| *place == Some(slot)));
        assert_eq!(places[64..].iter().flatten().count(), 4, "those where nothing is under way make room");
    }
}

//! The workloads that have members, which of them are watched, and what they add up to.

use std::collections::{BTreeMap, HashMap};

use super::identity::{Identity, Kind};
use super::member::{Counted, Member};
use super::settle::Claim;
use crate::model::facts::ProcessRow;
use crate::model::label::Label;
use crate::model::units::Bytes;

/// Workloads by number; numbers grow, so that the order is that of finding. 0 is nobody's.
#[derive(Debug, Default)]
pub(super) struct Roster {
    pub(super) workloads: BTreeMap<u32, Workload>,
    by_name: HashMap<Label, u32>,
    last: u32,
}

/// One workload.
#[derive(Debug)]
pub(super) struct Workload {
    pub(super) identity: Identity,
    pub(super) watched: bool,
    pub(super) live: u64,
    pub(super) exited: u64,
    /// Cumulative over all members there ever were.
    pub(super) totals: Counted,
    pub(super) now: Sums,
    /// The container shown of a pod that has several.
    pub(super) container: Label,
}

/// What the members of one sample add up to; what none of them has is absent.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) rss: Bytes,
    pub(super) anon: Option<Bytes>,
    pub(super) file: Option<Bytes>,
    pub(super) shmem: Option<Bytes>,
    pub(super) swap: Option<Bytes>,
    pub(super) pss: Option<Bytes>,
    pub(super) without_pss: bool,
    pub(super) largest_peak: Option<Bytes>,
    pub(super) active: u64,
    pub(super) idle: u64,
    pub(super) threads: u64,
    pub(super) open_files: Option<u64>,
    pub(super) restricted: u64,
    /// Start time and user of the oldest member.
    pub(super) oldest: Option<(u64, u32)>,
    pub(super) containers: BTreeMap<Label, Bytes>,
}

impl Roster {
    /// The claim on the workload of this name, which `identity` describes where it is new.
    pub(super) fn claim(&mut self, name: &Label, identity: impl FnOnce() -> Identity) -> Claim {
        if let Some(id) = self.by_name.get(name)
            && let Some(workload) = self.workloads.get(id)
        {
            return Claim { kind: workload.identity.kind, id: *id };
        }
        self.last += 1;
        let identity = identity();
        let claim = Claim { kind: identity.kind, id: self.last };
        self.by_name.insert(name.clone(), self.last);
        self.workloads.insert(self.last, Workload::new(identity));
        claim
    }

    /// What was found by its speaking only uses a GPU too: it is what it would be had that been seen first.
    pub(super) fn uses_gpu(&mut self, claim: Claim) {
        let spoke = |workload: &&mut Workload| workload.identity.kind == Kind::Job;
        if let Some(workload) = self.workloads.get_mut(&claim.id).filter(spoke) {
            workload.identity.kind = Kind::Gpu;
        }
    }

    /// Counts members, forgets workloads without, and takes new ones under watch while there are fewer than `most`.
    pub(super) fn turn(&mut self, claims: impl Iterator<Item = Claim>, most: usize) {
        for workload in self.workloads.values_mut() {
            workload.live = 0;
            workload.now = Sums::default();
        }
        for claim in claims {
            if let Some(workload) = self.workloads.get_mut(&claim.id) {
                workload.live += 1;
            }
        }
        self.workloads.retain(|_, workload| workload.live > 0);
        self.by_name.retain(|_, id| self.workloads.contains_key(id));
        let mut room = most.saturating_sub(self.watched());
        let job = |workload: &&Workload| workload.watched && workload.identity.kind == Kind::Job;
        let mut jobs = self.workloads.values().filter(job).count();
        let mut waiting: Vec<_> =
            self.workloads.iter_mut().filter(|(_, workload)| !workload.watched).collect();
        waiting.sort_by_key(|(id, workload)| (workload.identity.kind, **id));
        for (_, workload) in waiting {
            if room == 0 {
                break;
            }
            // Anybody may speak on the job socket: what only that tells of leaves half of the room to others.
            if workload.identity.kind == Kind::Job {
                if jobs >= most.div_ceil(2) {
                    continue;
                }
                jobs += 1;
            }
            workload.watched = true;
            room -= 1;
        }
    }

    /// How many are watched.
    pub(super) fn watched(&self) -> usize {
        self.workloads.values().filter(|workload| workload.watched).count()
    }

    /// The workload of a claim, where it is watched.
    pub(super) fn watched_mut(&mut self, claim: Option<Claim>) -> Option<&mut Workload> {
        self.workloads.get_mut(&claim?.id).filter(|workload| workload.watched)
    }
}

impl Workload {
    fn new(identity: Identity) -> Self {
        Self {
            identity,
            watched: false,
            live: 0,
            exited: 0,
            totals: Counted::default(),
            now: Sums::default(),
            container: "".into(),
        }
    }

    /// Adds one member. `active` is whether it did anything since the last sample.
    pub(super) fn add(
        &mut self,
        row: &ProcessRow,
        member: &mut Member,
        active: bool,
        container: Option<&Label>,
    ) {
        self.count(row, member);
        let now = &mut self.now;
        let (status, rss) = (&member.status, member.rss(row));
        now.rss = now.rss.saturating_add(rss);
        plus(&mut now.anon, status.anon);
        plus(&mut now.file, status.file);
        plus(&mut now.shmem, status.shmem);
        plus(&mut now.swap, status.swap);
        plus(&mut now.pss, member.pss);
        now.without_pss |= member.pss.is_none() && rss > Bytes::ZERO;
        now.largest_peak = now.largest_peak.max(status.peak);
        now.active += u64::from(active);
        now.idle += u64::from(!active);
        now.threads = now.threads.saturating_add(row.threads);
        if let Some(count) = member.open_files {
            now.open_files = Some(now.open_files.unwrap_or(0).saturating_add(count));
        }
        now.restricted += u64::from(member.restricted());
        let oldest = (row.key.start, row.uid);
        now.oldest = Some(now.oldest.map_or(oldest, |other| other.min(oldest)));
        if let Some(container) = container.filter(|container| !container.as_str().is_empty()) {
            let sum = now.containers.entry(container.clone()).or_default();
            *sum = sum.saturating_add(rss);
        }
    }

    /// Only what a member did since it was last counted is added, so the totals never fall when it ends.
    fn count(&mut self, row: &ProcessRow, member: &mut Member) {
        let (totals, counted) = (&mut self.totals, &mut member.counted);
        advance(&mut totals.cpu_ticks, &mut counted.cpu_ticks, row.cpu_ticks);
        advance(&mut totals.major_faults, &mut counted.major_faults, row.major_faults);
        if let Some(io) = member.io {
            advance_some(&mut totals.read, &mut counted.read, io.read);
            advance_some(&mut totals.written, &mut counted.written, io.written);
        }
    }

    /// Settles which container is shown; one has to be twice as large to take another's place.
    pub(super) fn choose_container(&mut self) {
        let Some((largest, size)) = self.now.containers.iter().max_by_key(|(_, size)| **size) else {
            self.container = "".into();
            return;
        };
        let shown = self.now.containers.get(&self.container);
        if shown.is_none_or(|shown| size.get() >= shown.get().saturating_mul(2).max(1)) {
            self.container = largest.clone();
        }
    }
}

fn plus(sum: &mut Option<Bytes>, more: Option<Bytes>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(Bytes::ZERO).saturating_add(more));
    }
}

fn advance(total: &mut u64, counted: &mut u64, now: u64) {
    *total = total.saturating_add(now.saturating_sub(*counted));
    *counted = now.max(*counted);
}

fn advance_some(total: &mut Option<Bytes>, counted: &mut Option<Bytes>, now: Option<Bytes>) {
    let Some(now) = now else { return };
    let before = counted.unwrap_or(Bytes::ZERO);
    *total = Some(total.unwrap_or(Bytes::ZERO).saturating_add(now.saturating_sub(before)));
    *counted = Some(now.max(before));
}

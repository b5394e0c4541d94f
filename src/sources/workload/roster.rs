//! The workloads that have members, which of them are watched, and what they add up to.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::identity::{Identity, Kind};
use super::member::{Counted, Member};
use super::naming;
use super::settle::Claim;
use crate::model::facts::{self, ProcessRow};
use crate::model::fair;
use crate::model::ids::{Anchor, WorkloadKey};
use crate::model::label::Label;
use crate::model::units::Bytes;

/// Workloads by number; numbers grow, so that the order is that of finding. 0 is nobody's.
#[derive(Debug, Default)]
pub(super) struct Roster {
    pub(super) workloads: BTreeMap<u32, Workload>,
    by_key: HashMap<WorkloadKey, u32>,
    /// The names of those that live.
    names: HashSet<Label>,
    last: u32,
}

/// One workload.
#[derive(Debug)]
pub(super) struct Workload {
    pub(super) identity: Identity,
    /// What others are told; without a name before it was counted first.
    pub(super) told: Arc<facts::Workload>,
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
    /// Start time of the oldest member, and of the oldest that is not root's with its user.
    pub(super) oldest: Option<u64>,
    oldest_user: Option<(u64, u32)>,
    pub(super) containers: BTreeMap<Label, Bytes>,
}

impl Roster {
    /// The claim on the workload of this key, which `identity` describes where it is new.
    pub(super) fn claim(&mut self, key: &WorkloadKey, identity: impl FnOnce() -> Identity) -> Claim {
        let known = self.by_key.get(key).and_then(|id| Some((*id, self.workloads.get(id)?)));
        if let Some((id, workload)) = known {
            return claim(&workload.identity, id);
        }
        self.last += 1;
        let workload = Workload::new(identity());
        let claim = claim(&workload.identity, self.last);
        self.by_key.insert(key.clone(), self.last);
        self.workloads.insert(self.last, workload);
        claim
    }

    /// The claim again, while its workload lives.
    pub(super) fn again(&self, before: Claim) -> Option<Claim> {
        self.workloads.get(&before.id).map(|workload| claim(&workload.identity, before.id))
    }

    /// The claim on the same for another user.
    pub(super) fn counterpart(&mut self, claim: Claim, uid: u32) -> Claim {
        let Some(workload) = self.workloads.get(&claim.id) else { return claim };
        let mut identity = workload.identity.clone();
        identity.key.user = Some(uid);
        self.claim(&identity.key.clone(), || identity)
    }

    /// What was found by its speaking only uses a GPU too: it is what it would be had that been seen first.
    pub(super) fn uses_gpu(&mut self, claim: Claim) {
        let spoke = |workload: &&mut Workload| workload.identity.kind == Kind::Job;
        if let Some(workload) = self.workloads.get_mut(&claim.id).filter(spoke) {
            workload.identity.kind = Kind::Gpu;
        }
    }

    /// Counts members, forgets workloads without, gives names to new ones, and takes up to `most` under watch. Returns
    /// how many are not watched, by user.
    pub(super) fn turn<'r>(
        &mut self,
        claims: impl Iterator<Item = (Claim, &'r ProcessRow)>,
        most: usize,
        user: impl FnMut(u32) -> Label,
    ) -> BTreeMap<u32, u64> {
        for workload in self.workloads.values_mut() {
            workload.live = 0;
            workload.now = Sums::default();
        }
        for (claim, row) in claims {
            if let Some(workload) = self.workloads.get_mut(&claim.id) {
                workload.live += 1;
                workload.now.meet(row);
            }
        }
        let Self { workloads, by_key, names, .. } = self;
        workloads.retain(|_, workload| {
            let lives = workload.live > 0;
            if !lives {
                by_key.remove(&workload.identity.key);
                names.remove(&workload.told.name);
            }
            lives
        });
        self.tell(user);
        self.watch(most)
    }

    /// Tells whose each workload is, and gives names to new ones.
    fn tell(&mut self, mut user: impl FnMut(u32) -> Label) {
        let mut new = Vec::new();
        for (id, workload) in &mut self.workloads {
            let oldest = workload.now.oldest_user.map_or(0, |(_, uid)| uid);
            let owner = workload.identity.key.user.unwrap_or(oldest);
            if workload.told.user != owner {
                workload.told =
                    facts::Workload { user: owner, ..facts::Workload::clone(&workload.told) }.into();
            }
            if workload.told.name.is_empty() {
                new.push((naming::rank(&workload.identity), workload.now.oldest, *id));
            }
        }
        new.sort_unstable();
        for (_, _, id) in new {
            let Some(workload) = self.workloads.get_mut(&id) else { continue };
            let owner = user(workload.told.user);
            let name = naming::name(&workload.identity, &owner, id, |name| !self.names.contains(name));
            self.names.insert(name.clone());
            workload.told = facts::Workload { name, ..facts::Workload::clone(&workload.told) }.into();
        }
    }

    /// Divides the places between users. Within a user's share those that are watched stay watched.
    fn watch(&mut self, most: usize) -> BTreeMap<u32, u64> {
        let places = self.workloads.iter();
        let mut order: Vec<_> = places
            .map(|(id, workload)| (!workload.watched, workload.identity.kind, *id, workload.told.user))
            .collect();
        order.sort_unstable();
        // Anybody may speak on the job socket: what only that tells of leaves half of the room to others.
        let speaks = |kind: Kind| kind == Kind::Job;
        let jobs: Vec<u32> =
            order.iter().filter(|(_, kind, ..)| speaks(*kind)).map(|(.., user)| *user).collect();
        let mut jobs = fair::divide(&jobs, most.div_ceil(2)).into_iter();
        order.retain(|(_, kind, ..)| !speaks(*kind) || jobs.next() == Some(true));
        let users: Vec<u32> = order.iter().map(|(.., user)| *user).collect();
        let placed = order.iter().zip(fair::divide(&users, most)).filter(|(_, placed)| *placed);
        let placed: HashSet<u32> = placed.map(|((_, _, id, _), _)| *id).collect();
        let mut left_out = BTreeMap::new();
        for (id, workload) in &mut self.workloads {
            let watched = placed.contains(id);
            if workload.watched && !watched {
                // Whoever is watched again is counted from the beginning.
                (workload.totals, workload.exited) = (Counted::default(), 0);
            }
            workload.watched = watched;
            if !watched {
                *left_out.entry(workload.told.user).or_default() += 1;
            }
        }
        left_out
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

/// The claim on a workload.
fn claim(identity: &Identity, id: u32) -> Claim {
    // Within a cgroup the managers of the host, or its owner, decide who is in.
    let user = identity.key.user.filter(|_| !matches!(identity.key.anchor, Anchor::Group(_)));
    Claim { kind: identity.kind, id, user }
}

impl Sums {
    /// Whose the oldest members are.
    fn meet(&mut self, row: &ProcessRow) {
        let start = row.key.start;
        self.oldest = Some(self.oldest.map_or(start, |other| other.min(start)));
        if row.uid != 0 {
            let oldest = (start, row.uid);
            self.oldest_user = Some(self.oldest_user.map_or(oldest, |other| other.min(oldest)));
        }
    }
}

impl Workload {
    fn new(identity: Identity) -> Self {
        let (key, plain) = (identity.key.clone(), identity.plain.clone());
        let user = key.user.unwrap_or(0);
        Self {
            told: facts::Workload { key, name: Label::default(), plain, user }.into(),
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

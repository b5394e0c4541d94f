//! The workloads that have members, which of them are tracked, and their sums.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::identity::{Identity, WorkloadKind};
use super::member::{Counted, Member};
use super::naming;
use super::settle::Assignment;
use crate::model::facts::{self, PodNames, ProcessRow};
use crate::model::fair;
use crate::model::ids::{Anchor, WorkloadKey};
use crate::model::label::Label;
use crate::model::node_set::NodeSet;
use crate::model::subordinate::SubordinateIds;
use crate::model::units::Bytes;

/// Workloads by number; numbers increase in the order of finding. 0 means no workload.
#[derive(Debug, Default)]
pub(super) struct WorkloadTable {
    pub(super) workloads: BTreeMap<u32, Workload>,
    by_key: foldhash::HashMap<WorkloadKey, u32>,
    names: HashSet<Label>,
    last: u32,
}

#[derive(Debug)]
pub(super) struct Workload {
    pub(super) identity: Identity,
    /// The facts that others receive; it has no name before the first count.
    pub(super) facts: Arc<facts::Workload>,
    /// The names that are published with the facts.
    pub(super) names: Arc<facts::WorkloadNames>,
    pub(super) watched: bool,
    pub(super) live: u64,
    pub(super) exited: u64,
    /// Cumulative over all members so far.
    pub(super) totals: Counted,
    pub(super) now: Sums,
    /// The container that is exposed for a pod with several, or the step of a Slurm job.
    pub(super) part: Label,
    /// Start of its oldest process that now uses a GPU or reports as a rank, where all earlier ones had ended before it
    /// started: a shell runs one job after the other.
    successor: Option<u64>,
    /// Start of the youngest process so far that used a GPU or reported as a rank.
    youngest: Option<u64>,
}

/// The sums over the members at one sample; absent if no member has the value.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) rss: Bytes,
    pub(super) anon: Option<Bytes>,
    pub(super) file: Option<Bytes>,
    pub(super) shmem: Option<Bytes>,
    /// Anonymous and shared memory, each page once; absent where that is not read.
    pub(super) memory: Option<Bytes>,
    pub(super) swap: Option<Bytes>,
    pub(super) huge: Option<Bytes>,
    /// The NUMA nodes that the cpuset of some member allows.
    pub(super) nodes: NodeSet,
    pub(super) pss: Option<Bytes>,
    pub(super) without_pss: bool,
    /// Whether the parts of some member's memory are unknown.
    pub(super) without_parts: bool,
    /// Whether the nodes of some member are unknown.
    pub(super) without_nodes: bool,
    pub(super) largest_peak: Option<Bytes>,
    pub(super) active: u64,
    pub(super) idle: u64,
    pub(super) threads: u64,
    pub(super) open_files: Option<u64>,
    pub(super) restricted: u64,
    /// Start time of the oldest member, and of the oldest that does not run as root, with its user.
    pub(super) oldest: Option<u64>,
    oldest_user: Option<(u64, u32)>,
    pub(super) parts: BTreeMap<Label, Bytes>,
}

impl WorkloadTable {
    /// The assignment to the workload with this key; `identity` creates the identity of a new one.
    pub(super) fn assignment(
        &mut self,
        key: &WorkloadKey,
        identity: impl FnOnce() -> Identity,
    ) -> Assignment {
        let known = self.by_key.get(key).and_then(|id| Some((*id, self.workloads.get(id)?)));
        if let Some((id, workload)) = known {
            return assignment(&workload.identity, id);
        }
        self.last += 1;
        let workload = Workload::new(identity());
        let assignment = assignment(&workload.identity, self.last);
        self.by_key.insert(key.clone(), self.last);
        self.workloads.insert(self.last, workload);
        assignment
    }

    /// The same assignment, if its workload still exists.
    pub(super) fn again(&self, before: Assignment) -> Option<Assignment> {
        self.workloads.get(&before.id).map(|workload| assignment(&workload.identity, before.id))
    }

    /// The assignment to the corresponding workload of another user.
    pub(super) fn counterpart(&mut self, assignment: Assignment, uid: u32) -> Assignment {
        let Some(workload) = self.workloads.get(&assignment.id) else { return assignment };
        let mut identity = workload.identity.clone();
        identity.key.user = Some(uid);
        self.assignment(&identity.key.clone(), || identity)
    }

    /// Notes the processes that use a GPU or report as a rank, by start in clock ticks after boot.
    pub(super) fn note_jobs(&mut self, processes: impl Iterator<Item = (Assignment, u64)>) {
        let mut spans: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (assignment, start) in processes {
            let (oldest, youngest) = spans.entry(assignment.id).or_insert((start, start));
            (*oldest, *youngest) = ((*oldest).min(start), (*youngest).max(start));
        }
        for (id, (oldest, youngest)) in spans {
            let Some(workload) = self.workloads.get_mut(&id) else { continue };
            if workload.youngest.is_some_and(|before| oldest > before) {
                workload.successor = Some(oldest);
            }
            workload.youngest = workload.youngest.max(Some(youngest));
        }
    }

    /// Changes the kind of a workload that was found as a job tree and that uses a GPU, as if the GPU had
    /// been seen first.
    pub(super) fn uses_gpu(&mut self, assignment: Assignment) {
        let from_socket = |workload: &&mut Workload| workload.identity.kind == WorkloadKind::Job;
        if let Some(workload) = self.workloads.get_mut(&assignment.id).filter(from_socket) {
            workload.identity.kind = WorkloadKind::Gpu;
        }
    }

    /// Sets the id of a Slurm job whose cgroup does not contain it. The workload is named again, for its id.
    pub(super) fn set_slurm_job(&mut self, assignment: Assignment, job: &Label) {
        let unknown = |workload: &&mut Workload| {
            workload.identity.kind == WorkloadKind::Slurm && workload.identity.slurm_job.is_empty()
        };
        let Some(workload) = self.workloads.get_mut(&assignment.id).filter(unknown) else { return };
        workload.identity.slurm_job = job.clone();
        workload.rename(format!("slurm-{job}").into(), &mut self.names);
    }

    /// Names the workloads of pods for namespace and pod, where these are known.
    pub(super) fn name_pods(&mut self, pods: &PodNames) {
        for workload in
            self.workloads.values_mut().filter(|workload| workload.identity.kind == WorkloadKind::Pod)
        {
            if let Some(name) = pods.pods.get(&workload.identity.pod_uid) {
                let plain = Label::from(format!("{}/{}", name.namespace, name.pod));
                if workload.identity.plain != plain {
                    workload.rename(plain, &mut self.names);
                }
            }
        }
    }

    /// Counts members, removes workloads without members, names new ones, and selects up to `most` to be
    /// tracked. Returns the number of workloads that are not tracked, by user.
    pub(super) fn turn<'r>(
        &mut self,
        assignments: impl Iterator<Item = (Assignment, &'r ProcessRow)>,
        most: usize,
        subordinates: &SubordinateIds,
        user: impl FnMut(u32) -> Label,
    ) -> BTreeMap<u32, u64> {
        for workload in self.workloads.values_mut() {
            workload.live = 0;
            workload.now = Sums::default();
        }
        for (assignment, row) in assignments {
            if let Some(workload) = self.workloads.get_mut(&assignment.id) {
                workload.live += 1;
                workload.now.meet(row);
            }
        }
        let Self { workloads, by_key, names, .. } = self;
        workloads.retain(|_, workload| {
            let has_members = workload.live > 0;
            if !has_members {
                by_key.remove(&workload.identity.key);
                names.remove(&workload.facts.name);
            }
            has_members
        });
        self.update_names(user);
        self.watch(most, subordinates)
    }

    /// Publishes the user of each workload, and names new ones.
    fn update_names(&mut self, mut user: impl FnMut(u32) -> Label) {
        let mut new = Vec::new();
        for (id, workload) in &mut self.workloads {
            let oldest = workload.now.oldest_user.map_or(0, |(_, uid)| uid);
            let owner = workload.identity.key.user.unwrap_or(oldest);
            if workload.facts.user != owner {
                workload.facts =
                    facts::Workload { user: owner, ..facts::Workload::clone(&workload.facts) }.into();
            }
            if workload.facts.name.is_empty() {
                new.push((naming::rank(&workload.identity), workload.now.oldest, *id));
            }
        }
        new.sort_unstable();
        for (_, _, id) in new {
            let Some(workload) = self.workloads.get_mut(&id) else { continue };
            let owner = user(workload.facts.user);
            let name = naming::name(&workload.identity, &owner, id, |name| !self.names.contains(name));
            self.names.insert(name.clone());
            workload.facts = facts::Workload { name, ..facts::Workload::clone(&workload.facts) }.into();
        }
    }

    /// Divides the limit between users, whose subordinate ids have no share of their own. Within a user's share, workloads that are tracked remain so.
    fn watch(&mut self, most: usize, subordinates: &SubordinateIds) -> BTreeMap<u32, u64> {
        let places = self.workloads.iter();
        let mut order: Vec<_> = places
            .map(|(id, workload)| {
                let payer = subordinates.owner(workload.facts.user);
                (!workload.watched, workload.identity.kind, *id, payer)
            })
            .collect();
        order.sort_unstable();
        // Any process can report over the job socket: workloads found only by it may use at most half of the limit.
        let from_socket = |kind: WorkloadKind| kind == WorkloadKind::Job;
        let jobs: Vec<u32> =
            order.iter().filter(|(_, kind, ..)| from_socket(*kind)).map(|(.., user)| *user).collect();
        let mut jobs = fair::divide(&jobs, most.div_ceil(2)).into_iter();
        order.retain(|(_, kind, ..)| !from_socket(*kind) || jobs.next() == Some(true));
        let users: Vec<u32> = order.iter().map(|(.., user)| *user).collect();
        let placed = order.iter().zip(fair::divide(&users, most)).filter(|(_, placed)| *placed);
        let placed: HashSet<u32> = placed.map(|((_, _, id, _), _)| *id).collect();
        let mut left_out = BTreeMap::new();
        for (id, workload) in &mut self.workloads {
            let watched = placed.contains(id);
            if workload.watched && !watched {
                // A workload that is tracked again is counted from zero.
                (workload.totals, workload.exited) = (Counted::default(), 0);
            }
            workload.watched = watched;
            if !watched {
                *left_out.entry(subordinates.owner(workload.facts.user)).or_default() += 1;
            }
        }
        left_out
    }

    pub(super) fn watched(&self) -> usize {
        self.workloads.values().filter(|workload| workload.watched).count()
    }

    /// The workload of an assignment, if it is tracked.
    pub(super) fn watched_of(&self, assignment: Option<Assignment>) -> Option<&Workload> {
        self.workloads.get(&assignment?.id).filter(|workload| workload.watched)
    }

    /// As [`WorkloadTable::watched_of`].
    pub(super) fn watched_mut(&mut self, assignment: Option<Assignment>) -> Option<&mut Workload> {
        self.workloads.get_mut(&assignment?.id).filter(|workload| workload.watched)
    }
}

fn assignment(identity: &Identity, id: u32) -> Assignment {
    // Membership in a cgroup is decided by the managers of the host, or by its owner.
    let user = identity.key.user.filter(|_| !matches!(identity.key.anchor, Anchor::Group(_)));
    Assignment { kind: identity.kind, id, user }
}

impl Sums {
    /// Updates the oldest member and its user.
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
            facts: facts::Workload { key, name: Label::default(), plain, user }.into(),
            identity,
            names: Arc::default(),
            watched: false,
            live: 0,
            exited: 0,
            totals: Counted::default(),
            now: Sums::default(),
            part: "".into(),
            successor: None,
            youngest: None,
        }
    }

    /// When the job in it started, in clock ticks after boot: its oldest process, or the first of a later job in the same
    /// shell. The memory of an earlier one says nothing about it.
    pub(super) fn start(&self) -> Option<u64> {
        self.successor.or(self.now.oldest)
    }

    /// Gives it another name, which is made unique when names are next assigned.
    fn rename(&mut self, plain: Label, names: &mut HashSet<Label>) {
        names.remove(&self.facts.name);
        self.identity.plain = plain.clone();
        let published = facts::Workload::clone(&self.facts);
        self.facts = facts::Workload { name: Label::default(), plain, ..published }.into();
    }

    /// Adds one member. `active` is whether it was active since the last sample.
    pub(super) fn add(&mut self, row: &ProcessRow, member: &mut Member, active: bool, part: Option<&Label>) {
        self.count(row, member);
        let now = &mut self.now;
        let (status, rss) = (&member.status, member.rss(row));
        now.rss = now.rss.saturating_add(rss);
        plus(&mut now.anon, status.anon);
        plus(&mut now.file, status.file);
        plus(&mut now.shmem, status.shmem);
        plus(&mut now.swap, status.swap);
        plus(&mut now.huge, status.huge);
        now.nodes = now.nodes.or(status.nodes.unwrap_or_default());
        now.without_nodes |= status.nodes.is_none();
        plus(&mut now.pss, member.pss);
        now.without_parts |= member.withheld;
        now.without_pss |= member.pss.is_none() && rss > Bytes::ZERO;
        now.largest_peak = now.largest_peak.max(status.peak);
        now.active += u64::from(active);
        now.idle += u64::from(!active);
        now.threads = now.threads.saturating_add(row.threads);
        if let Some(count) = member.open_files {
            now.open_files = Some(now.open_files.unwrap_or(0).saturating_add(count));
        }
        now.restricted += u64::from(member.restricted());
        if let Some(part) = part.filter(|part| !part.is_empty()) {
            let sum = now.parts.entry(part.clone()).or_default();
            *sum = sum.saturating_add(rss);
        }
    }

    /// Adds only the increments since the last count, so that the totals never decrease when a member ends.
    fn count(&mut self, row: &ProcessRow, member: &mut Member) {
        let (totals, counted) = (&mut self.totals, &mut member.counted);
        advance(&mut totals.cpu_ticks, &mut counted.cpu_ticks, row.cpu_ticks);
        advance(&mut totals.major_faults, &mut counted.major_faults, row.major_faults);
        if let Some(io) = member.io {
            advance_some(&mut totals.read, &mut counted.read, io.read);
            advance_some(&mut totals.written, &mut counted.written, io.written);
        }
    }

    /// Selects the container or step that is exposed; one replaces another only if it is twice as large.
    pub(super) fn choose_part(&mut self) {
        let Some((largest, size)) = self.now.parts.iter().max_by_key(|(_, size)| **size) else {
            self.part = "".into();
            return;
        };
        let shown = self.now.parts.get(&self.part);
        if shown.is_none_or(|shown| size.get() >= shown.get().saturating_mul(2).max(1)) {
            self.part = largest.clone();
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

//! Builds the guard's input from a sample: which jobs the targets name, their processes, and their forecasts.
//!
//! Runs on the sampler's thread after each frame, so that the guard allocates and searches nothing.

mod meters;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use self::names::names;
use super::alerts::Alerts;
use super::cannot_save;
use super::foresight::Traits;
use super::input::{GuardInput, JobInput, SamplerReadings};
use super::job_slots::{JobIdentity, JobSlot, JobSlots, NamedJob};
use super::users;
use crate::host::capability;
use crate::host::cgroup::{self, Hierarchy};
use crate::host::numa::{self, GpuNode};
use crate::host::process::ProcRoot;
use crate::host::roots::Roots;
use crate::model::facts::{Facts, Membership, ProcessRow, ProcessTable};
use crate::model::ids::{ProcessKey, WorkloadKey};
use crate::model::label::Label;
use crate::model::outlook::Outlook;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::enforce::levels::HostMeter;
use crate::protection::options::target::{Selector, Target};
use crate::protection::plan::ranks::KnownRanks;
use crate::protection::plan::victim::{self, ProcessInfo, Roster};
use crate::protection::policy::{Escalation, Members, Mode, Resource};
use crate::protection::record::Remembered;
use crate::protection::status::{Name, Names, Report, Unfit};
use crate::protection::types::scope::{Exempt, Member, Scope};
use crate::protection::types::step::Group;

/// A job's name and its processes, those included that have its name and may not be signalled.
type Named<'t> = (Label, Vec<&'t ProcessRow>);

/// Builds the guard's input from frames.
#[derive(Debug)]
pub struct InputBuilder {
    targets: Arc<[Target]>,
    /// User ids by target, or the name of the first unknown user.
    users: Vec<Result<Vec<u32>, String>>,
    exempt: Option<Exempt>,
    /// The only user whose processes memwarden may signal, without CAP_KILL.
    only: Option<u32>,
    hierarchy: Option<Hierarchy>,
    roots: Roots,
    proc: ProcRoot,
    /// The NUMA nodes that the guard's meter of the host leaves out.
    gpu_nodes: Vec<GpuNode>,
    /// Whether GPUs use the memory of the host. It stays so: a GPU that does not answer says nothing else.
    is_pool: bool,
    /// The host's memory.
    host: Option<Bytes>,
    slots: JobSlots,
    /// Earlier checkpoint requests, those of earlier runs included.
    remembered: Remembered,
    /// Whether another daemon uses the same state directory.
    other_daemon: bool,
    /// The names of targets and jobs, for labels.
    pub names: Names,
    /// Processes that may not be signalled, by slot.
    pub whys: BTreeMap<usize, RefusalCounts>,
}

/// Number of processes that may not be signalled, by reason.
pub type RefusalCounts = BTreeMap<&'static str, u32>;

/// The processes of one job, and those that may not be signalled.
#[derive(Debug, Default)]
struct JobMembers {
    processes: Vec<ProcessInfo>,
    left_out: u32,
    /// Their number, by reason.
    whys: RefusalCounts,
    /// Whether the target names init or memwarden itself.
    wide: bool,
    /// Whether memwarden has no permission to signal some of them.
    beyond: bool,
}

impl InputBuilder {
    /// A builder for these targets. Without `exempt`, no action is allowed: who must not be signalled is not known.
    pub fn new(targets: Arc<[Target]>, roots: &Roots, exempt: Option<Exempt>) -> Self {
        Self::with(targets, roots, exempt, Remembered::default(), false)
    }

    /// A builder that knows earlier incidents; with `other_daemon`, no action is allowed.
    pub fn with(
        targets: Arc<[Target]>,
        roots: &Roots,
        exempt: Option<Exempt>,
        remembered: Remembered,
        other_daemon: bool,
    ) -> Self {
        let users = targets.iter().map(|target| users::numbers(&target.users, &roots.passwd)).collect();
        let names = Names {
            targets: targets.iter().map(|target| (target.name.clone(), target.limits.mode)).collect(),
            target_most_per_hour: targets.iter().map(|target| target.limits.max_kills_per_hour).collect(),
            ..Names::default()
        };
        let hierarchy = cgroup::memory_hierarchy(&roots.cgroup).ok().and_then(Result::ok);
        let barred =
            capability::effective(&roots.proc).is_some_and(|mask| !capability::holds(mask, capability::KILL));
        let only = barred.then(|| rustix::process::geteuid().as_raw());
        let gpu_nodes = numa::gpu_nodes(roots);
        Self {
            targets,
            users,
            exempt,
            only,
            hierarchy,
            roots: roots.clone(),
            proc: ProcRoot::new(roots.proc.clone()),
            host: HostMeter::open(&roots.proc, &gpu_nodes)
                .and_then(|meter| meter.read())
                .ok()
                .map(|room| room.limit),
            gpu_nodes,
            is_pool: false,
            slots: JobSlots::new(),
            remembered,
            other_daemon,
            names,
            whys: BTreeMap::new(),
        }
    }

    /// The targets with a user that does not exist on this host, with the first such user.
    pub fn strangers(&self) -> impl Iterator<Item = (&Target, &str)> {
        let unknown = self.targets.iter().zip(&self.users);
        unknown.filter_map(|(target, users)| Some((target, users.as_ref().err()?.as_str())))
    }

    /// The input of this sample. Absent where the processes are not known any more: old input is better than none.
    /// Where they never were known, every target is unfit.
    pub fn look(
        &mut self,
        now: Timestamp,
        outlook: &Outlook,
        facts: &Facts,
        alerts: &Alerts,
        report: &Report,
    ) -> Option<GuardInput> {
        let nobody = ProcessTable::default();
        let known = facts.processes.as_deref();
        if known.is_none() && self.slots.all.iter().flatten().any(|job| job.claim.what != JobIdentity::None) {
            return None;
        }
        let table = known.unwrap_or(&nobody);
        self.proc.begin_sample();
        // Without it, no job is known to be bound to some NUMA nodes.
        let _ = self.proc.connect();
        let jobs = self.jobs(table, facts);
        let busy = |place: usize| {
            report.slots.get(place).and_then(Option::as_ref).is_some_and(|slot| {
                slot.state.acts() || slot.state == crate::protection::policy::State::Verify
            })
        };
        let claims: Vec<NamedJob> = jobs.keys().cloned().collect();
        let places = self.slots.assign(now, &claims, busy);
        let mut found: BTreeMap<usize, Vec<&ProcessRow>> = BTreeMap::new();
        for (place, (name, rows)) in places.into_iter().zip(jobs.into_values()) {
            let Some(place) = place else { continue };
            if let Some(job) = &mut self.slots.all[place] {
                job.name = name;
            }
            found.insert(place, rows);
        }
        let mut slots: Vec<Option<JobInput>> = self.slots.all.iter().map(|_| None).collect();
        self.names.slots = vec![None; slots.len()];
        self.whys.clear();
        self.names.without_slot =
            self.slots.without_slot.iter().map(|(user, count)| (*user, *count)).collect();
        for (place, slot) in slots.iter_mut().enumerate() {
            let Some(mut job) = self.slots.all[place].take() else { continue };
            let rows = found.remove(&place).unwrap_or_default();
            let crowd = self.crowd(&job, &rows, facts);
            self.whys.insert(place, crowd.whys.clone());
            let cannot_save = cannot_save::logged(&mut job, &self.targets, &crowd.processes, facts);
            self.names.slots[place] = Some(Name {
                serial: job.serial,
                workload: self.shown(&job),
                user: job.claim.user,
                members: u32::try_from(crowd.processes.len()).unwrap_or(u32::MAX),
                left_out: crowd.left_out,
                cannot_save,
            });
            let mut facts = self.facts(&mut job, &crowd, (now, outlook, facts, table), alerts);
            if known.is_none() {
                let sampled = &mut facts.sampled;
                (sampled.members, sampled.unfit) = (None, sampled.unfit.or(Some(Unfit::Unknown)));
            }
            *slot = Some(facts);
            self.slots.all[place] = Some(job);
        }
        self.is_pool |= facts.host_memory_is_pool;
        Some(GuardInput { at: now, host: self.host_meter(), is_pool: self.is_pool, slots })
    }

    /// The name of a job in labels: with its user where a job of another user has the same name.
    fn shown(&self, job: &JobSlot) -> Label {
        let NamedJob { target, user, .. } = job.claim;
        let alike = |other: &JobSlot| {
            (other.claim.target, &other.name) == (target, &job.name) && other.claim.user != user
        };
        match user.filter(|_| self.slots.all.iter().flatten().any(alike)) {
            Some(user) => format!("{} (uid {user})", job.name).into(),
            None => job.name.clone(),
        }
    }

    /// The jobs that the targets name now, with their processes, those included that may not be signalled.
    ///
    /// A job belongs to one user; a user whom the target does not allow has none. A target that names no process has
    /// one job without a name.
    fn jobs<'t>(&self, table: &'t ProcessTable, facts: &Facts) -> BTreeMap<NamedJob, Named<'t>> {
        let mut jobs: BTreeMap<NamedJob, Named<'_>> = BTreeMap::new();
        for (target, selector) in self.targets.iter().map(|target| &target.selector).enumerate() {
            let mut named: BTreeMap<JobIdentity, Named<'_>> = BTreeMap::new();
            match selector {
                Selector::Workload(_) => {
                    for Membership { process, workload } in &facts.workload_of {
                        let row = table.get(process.pid).filter(|row| row.key == *process);
                        if let Some(row) = row.filter(|_| selector.names_workload(workload)) {
                            let what = JobIdentity::Workload(workload.key.clone());
                            named
                                .entry(what)
                                .or_insert_with(|| (workload.name.clone(), Vec::new()))
                                .1
                                .push(row);
                        }
                    }
                }
                Selector::Cgroup(_) => {
                    for row in &table.rows {
                        let path = row.cgroup.as_ref().map(Label::as_str);
                        if let Some(top) = path.and_then(|path| selector.names_group(path)) {
                            let top = Label::from(top);
                            let what = JobIdentity::Group(top.clone());
                            named.entry(what).or_insert_with(|| (top, Vec::new())).1.push(row);
                        }
                    }
                }
            }
            let before = jobs.len();
            let mut nobodys = Vec::new();
            for (what, (name, rows)) in named {
                let (allowed, others): (Vec<&ProcessRow>, _) =
                    rows.into_iter().partition(|row| self.may_be_touched(target, row));
                if allowed.is_empty() {
                    nobodys.extend(others);
                    continue;
                }
                // A cgroup is one job, of the user who started it, and so is a scheduler's workload; any other
                // workload is one job per user.
                let one = match &what {
                    JobIdentity::Workload(key) => key.user.is_none(),
                    JobIdentity::Group(_) | JobIdentity::None => true,
                };
                let occupied = self.slots.all.iter().flatten().map(|job| &job.claim);
                let known = occupied.filter(|claim| claim.target == target && claim.what == what);
                // It remains the same job when its first process ends.
                let first = known.filter_map(|claim| claim.user).next().or_else(|| {
                    allowed.iter().min_by_key(|row| (row.key.start, row.key.pid)).map(|row| row.uid)
                });
                for row in allowed {
                    let user = if one { first } else { Some(row.uid) };
                    let claim = NamedJob { target, what: what.clone(), user };
                    jobs.entry(claim).or_insert_with(|| (name.clone(), others.clone())).1.push(row);
                }
            }
            if jobs.len() == before {
                let claim = NamedJob { target, what: JobIdentity::None, user: None };
                jobs.insert(claim, (Label::default(), nobodys));
            }
        }
        jobs
    }

    /// Whether the target allows the user of a process.
    fn may_be_touched(&self, target: usize, row: &ProcessRow) -> bool {
        self.users[target].as_ref().is_ok_and(|users| users.contains(&row.uid))
    }

    /// Divides the processes of a job into those that may be signalled and those that may not.
    fn crowd(&self, job: &JobSlot, rows: &[&ProcessRow], facts: &Facts) -> JobMembers {
        let mut crowd = JobMembers::default();
        let target = job.claim.target;
        let (Ok(_), Some(exempt)) = (&self.users[target], &self.exempt) else { return crowd };
        for row in rows {
            let ours = exempt.pids.contains(&row.key.pid);
            crowd.wide |= ours || row.key.pid <= 2;
            // A zombie has no memory and receives no signal.
            if matches!(row.state, b'Z' | b'X') {
                continue;
            }
            let enforces = self.targets[target].limits.mode == Mode::Enforce;
            let beyond = enforces && self.only.is_some_and(|only| row.uid != only);
            crowd.beyond |= beyond;
            let why = if ours {
                Some("memwarden itself")
            } else if row.key.pid <= 2 || row.kernel {
                Some("init or kernel threads")
            } else if !self.may_be_touched(target, row) {
                Some("of users not in allow_users")
            } else {
                beyond.then_some("of users whose processes memwarden has no permission to signal")
            };
            if let Some(why) = why {
                crowd.left_out += 1;
                *crowd.whys.entry(why).or_default() += 1;
                continue;
            }
            crowd.processes.push(ProcessInfo {
                key: row.key,
                parent: row.parent,
                resident: facts.pool_of(row),
                group: row.cgroup.clone(),
                rank: facts.gpu_processes.iter().any(|process| process.pid == row.key.pid)
                    || facts.ranks.iter().any(|rank| rank.key == Some(row.key)),
            });
        }
        crowd
    }

    fn facts(
        &self,
        job: &mut JobSlot,
        crowd: &JobMembers,
        (now, outlook, facts, table): (Timestamp, &Outlook, &Facts, &ProcessTable),
        alerts: &Alerts,
    ) -> JobInput {
        let target = &self.targets[job.claim.target];
        let processes = &crowd.processes;
        let members: BTreeSet<ProcessKey> = processes.iter().map(|process| process.key).collect();
        let others = table.rows.iter().filter(|row| !members.contains(&row.key));
        let others = others.filter_map(|row| row.cgroup.as_ref().map(Label::as_str));
        let group = victim::own_group(processes, others).and_then(|path| self.group(path));
        let scope = self.scope(job, target, processes, group.as_ref());
        let mut unfit = match (&self.users[job.claim.target], &self.exempt) {
            (Err(_), _) => Some(Unfit::UnknownUser),
            (_, None) => Some(Unfit::NoExecutor),
            _ if self.other_daemon && target.limits.mode == Mode::Enforce => Some(Unfit::OtherDaemon),
            (Ok(_), Some(_)) if crowd.wide => Some(Unfit::TooWide),
            (Ok(_), Some(_)) if crowd.beyond && crowd.processes.is_empty() => Some(Unfit::NoPermission),
            _ => None,
        };
        if let (Some(scope), Some(exempt)) = (&scope, &self.exempt)
            && scope.sound(exempt).is_err()
        {
            unfit = unfit.or(Some(Unfit::Bounds));
        }
        let changed = scope.is_some() && scope != job.scope;
        if changed {
            job.scope.clone_from(&scope);
        }
        let common = match &job.claim.what {
            JobIdentity::Group(path) => Some(path.clone()),
            _ => victim::common_group(processes).map(Label::from),
        };
        let common = common.as_ref().map(Label::as_str);
        let meter = self.meter(job, common.or_else(|| victim::root_group(processes)));
        let nodes = self.nodes_meter(job, processes, facts.memory_nodes);
        let own = self.process_meter(job, target, processes);
        let watched = |resource: Resource| target.limits.levels[resource.place()].is_some();
        let pids: BTreeSet<u32> = members.iter().map(|key| key.pid).collect();
        let gpus = facts.gpu_processes.iter().filter(|process| pids.contains(&process.pid));
        let gpus: BTreeSet<&str> = gpus.map(|process| process.uuid.as_str()).collect();
        let (workloads, mixed) = self.workloads(job.claim.target, &members, facts, table);
        let traits = Traits {
            members,
            workloads,
            mixed,
            group: common,
            gpus: gpus.into_iter().collect(),
            host: watched(Resource::Host),
            nodes: watched(Resource::Nodes),
            gpu: watched(Resource::Gpu),
            allocator: watched(Resource::Allocator),
        };
        let count = u32::try_from(processes.len()).unwrap_or(u32::MAX);
        let names = names(job, &traits.workloads, facts);
        if *job.names != names {
            job.names = names.into();
        }
        let roster = Roster::new(processes, target.victims, group).asking(
            processes,
            &known_ranks(&traits.members, facts),
            target.ask.ranks,
        );
        JobInput {
            serial: job.serial,
            target: job.claim.target,
            user: job.claim.user,
            names: Arc::clone(&job.names),
            escalation: (!std::mem::replace(&mut job.begun, true)).then(|| {
                let asked = self.remembered.asked(traits.members.iter());
                Escalation::new(target.limits.clone(), now).asked_before(asked)
            }),
            scope: scope.filter(|_| changed),
            meter,
            nodes,
            processes: own,
            sampled: SamplerReadings {
                members: Some(Members { count, catching: None }),
                gpu: traits.gpu_left(facts),
                allocator: traits.allocator_left(facts),
                forecast: traits.forecast(outlook),
                falls: traits.falls(outlook),
                save: traits.save(facts),
                gives: (count > 0).then(|| traits.gives(outlook, facts, &roster)),
                growth: traits.growth(outlook),
                leak: traits.leak(outlook),
                alert: alerts.firing(target, &job.names),
                unfit,
            },
            roster: roster.into(),
        }
    }

    /// The workloads that consist of the members only, so that their sums are the job's own, and whether there are
    /// others, with a process of another user. Processes that root runs for a job belong to it.
    fn workloads<'t>(
        &self,
        target: usize,
        members: &BTreeSet<ProcessKey>,
        facts: &'t Facts,
        table: &ProcessTable,
    ) -> (BTreeSet<&'t WorkloadKey>, bool) {
        let named = facts.workload_of.iter().filter(|member| members.contains(&member.process));
        let mut named: BTreeSet<&WorkloadKey> = named.map(|member| &member.workload.key).collect();
        let before = named.len();
        for member in facts.workload_of.iter().filter(|member| !members.contains(&member.process)) {
            let row = table.get(member.process.pid).filter(|row| row.key == member.process);
            let own = row.is_none_or(|row| {
                row.uid == 0 || (matches!(row.state, b'Z' | b'X') && self.may_be_touched(target, row))
            });
            if !own {
                named.remove(&member.workload.key);
            }
        }
        let mixed = named.len() < before;
        (named, mixed)
    }

    /// The scope of a job. For a target that names cgroups: whatever is in the job's cgroup when a signal is sent. For
    /// one that names workloads: the job's own cgroup as a whole, and each known process with its descendants.
    fn scope(
        &self,
        job: &JobSlot,
        target: &Target,
        processes: &[ProcessInfo],
        own: Option<&Group>,
    ) -> Option<Scope> {
        let users = self.users[job.claim.target].as_ref().ok()?.clone();
        if processes.is_empty() {
            return None;
        }
        let members = match &job.claim.what {
            JobIdentity::Group(path) => vec![Member::Group(self.group(path.clone())?)],
            JobIdentity::Workload(_) | JobIdentity::None => {
                let pids: BTreeSet<u32> = processes.iter().map(|process| process.key.pid).collect();
                let mut members: Vec<Member> = own.cloned().map(Member::Group).into_iter().collect();
                members.extend(processes.iter().map(|process| match pids.contains(&process.parent) {
                    true => Member::Process(process.key),
                    false => Member::Tree(process.key),
                }));
                members
            }
        };
        Some(Scope { name: target.name.clone(), users, owner: job.claim.user, members: members.into() })
    }
}

/// The ranks of a job that launchers have started, or that have reported their number over the job socket.
fn known_ranks(members: &BTreeSet<ProcessKey>, facts: &Facts) -> KnownRanks {
    let started = facts.environment_ranks.iter().map(|rank| (rank.process, Some(rank.rank)));
    // A rank whose number another process has too is named by its number and its pid.
    let connected = facts.ranks.iter().filter_map(|rank| Some((rank.key?, rank.rank.as_str().parse().ok())));
    connected.chain(started).filter(|(key, _)| members.contains(key)).collect()
}

#[cfg(test)]
mod tests;

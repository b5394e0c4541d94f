//! Builds the guard's input from a sample: which jobs the targets name, their processes, and their forecasts.
//!
//! Runs on the sampler's thread after each frame, so that the guard allocates and searches nothing.

mod meters;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::alerts::Alerts;
use super::cannot_save;
use super::foresight::Traits;
use super::input::{GuardInput, JobInput, JobNames, SamplerReadings};
use super::job_slots::{JobIdentity, JobSlot, JobSlots, NamedJob};
use super::users;
use crate::host::capability;
use crate::host::cgroup::{self, Hierarchy};
use crate::host::numa::{self, GpuNode};
use crate::host::roots::Roots;
use crate::model::facts::{Facts, Membership, ProcessRow, ProcessTable, WorkloadNames};
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
    /// A builder for these targets. Without `never`, the processes that must not be signalled are unknown and no
    /// action is allowed.
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
            host: HostMeter::open(&roots.proc, &gpu_nodes)
                .and_then(|meter| meter.read())
                .ok()
                .map(|left| left.total),
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
            gpu: watched(Resource::Gpu),
            allocator: watched(Resource::Allocator),
        };
        let count = u32::try_from(processes.len()).unwrap_or(u32::MAX);
        let names = names(job, &traits.workloads, facts);
        if *job.names != names {
            job.names = names.into();
        }
        JobInput {
            serial: job.serial,
            target: job.claim.target,
            user: job.claim.user,
            names: Arc::clone(&job.names),
            escalation: (!std::mem::replace(&mut job.begun, true)).then(|| {
                let asked = self.remembered.asked(traits.members.iter());
                Escalation::new(target.limits.clone(), now).asked_before(asked)
            }),
            roster: Roster::new(processes, target.victims, group)
                .asking(processes, &known_ranks(&traits.members, facts), target.ask.ranks)
                .into(),
            scope: scope.filter(|_| changed),
            meter,
            processes: own,
            sampled: SamplerReadings {
                members: Some(Members { count, catching: None }),
                gpu: traits.gpu_left(facts),
                allocator: traits.allocator_left(facts),
                forecast: traits.forecast(outlook),
                falls: traits.falls(outlook),
                save: traits.save(facts),
                growth: traits.growth(outlook),
                leak: traits.leak(outlook),
                alert: alerts.firing(target, &job.names),
                unfit,
            },
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

/// The names of a job. A job whose processes are in several workloads has those of its cgroup only.
fn names(job: &JobSlot, workloads: &BTreeSet<&WorkloadKey>, facts: &Facts) -> JobNames {
    let key = match &job.claim.what {
        JobIdentity::Workload(key) => Some(key),
        JobIdentity::Group(_) if workloads.len() == 1 => workloads.first().copied(),
        JobIdentity::Group(_) | JobIdentity::None => None,
    };
    let mut owner =
        key.and_then(|key| facts.names_of(key)).map(|names| WorkloadNames::clone(names)).unwrap_or_default();
    if let JobIdentity::Group(path) = &job.claim.what {
        owner.cgroup = path.clone();
    }
    // The job of one user in a workload of several users.
    let of_workload = key.and_then(|key| facts.workloads.iter().find(|workload| workload.key == *key));
    if let Some(user) =
        job.claim.user.filter(|user| of_workload.is_none_or(|workload| workload.user != *user))
    {
        let named = facts.workloads.iter().find(|workload| workload.user == user);
        let named = named.and_then(|workload| facts.names_of(&workload.key));
        owner.user = named.map_or_else(|| user.into(), |names| names.user.clone());
    }
    let workload = of_workload.map(|workload| workload.name.clone()).unwrap_or_default();
    JobNames { workload, owner }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::GpuProcess;
    use crate::model::units::Bytes;
    use crate::protection::options::Protection;

    /// A host whose jobs are in groups below `cgroup`.
    struct World {
        folder: tempfile::TempDir,
        input_builder: InputBuilder,
        at: Timestamp,
        /// The user and the workload of each pid.
        who: fn(u32) -> (u32, String),
        /// Bytes that processes hold on a GPU that uses the memory of the host.
        pool: &'static [(u32, u64)],
    }

    impl World {
        fn new(selector: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(folder.path().join("cgroup")).unwrap();
            std::fs::write(folder.path().join("cgroup/cgroup.controllers"), "memory\n").unwrap();
            let text = format!(
                "protection: {{mode: enforce, targets: [{{name: t, {selector}, allow_users: ['7', '8']}}]}}"
            );
            let config = crate::config::parse_str(&text, "f".as_ref(), &crate::app::schema(), &[]).unwrap();
            let targets =
                Protection::new(&config.modules["protection"], config.sampling.interval).targets.into();
            let exempt = Some(Exempt { own: 1000, pids: vec![1000], groups: Vec::new() });
            let input_builder = InputBuilder::new(targets, &Roots::under(folder.path()), exempt);
            Self {
                folder,
                input_builder,
                at: Timestamp::from_secs(10),
                who: |_| (7, "w".to_owned()),
                pool: &[],
            }
        }

        /// Makes a group with this much left, in MiB.
        fn group(&self, path: &str, left: u64) {
            let folder = self.folder.path().join("cgroup").join(path);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("memory.max"), format!("{}\n", 100 << 20)).unwrap();
            std::fs::write(folder.join("memory.current"), format!("{}\n", (100 - left) << 20)).unwrap();
            std::fs::write(folder.join("memory.stat"), "inactive_file 0\n").unwrap();
        }

        fn look(&mut self, rows: &[(u32, u32, &str)]) -> JobInput {
            self.sample(Some(rows)).unwrap().slots.into_iter().flatten().next().unwrap()
        }

        fn sample(&mut self, rows: Option<&[(u32, u32, &str)]>) -> Option<GuardInput> {
            let row = |(pid, parent, cgroup): &(u32, u32, &str)| ProcessRow {
                parent: *parent,
                uid: (self.who)(*pid).0,
                rss: Bytes::new(1),
                cgroup: Some((*cgroup).into()),
                ..ProcessRow::new(ProcessKey { pid: *pid, start: 1 }, "python".into())
            };
            let table = rows.map(|rows| ProcessTable { rows: rows.iter().map(row).collect(), boot: None });
            let all = table.iter().flat_map(|table| &table.rows);
            let named = |row: &ProcessRow| match (self.who)(row.key.pid).1 {
                job if job.starts_with("slurm") => Membership::in_group(row.key, &job),
                other => Membership::named(row.key, &other),
            };
            let workload_of = all.map(named).collect();
            let gpu_process = |(pid, bytes): &(u32, u64)| GpuProcess {
                pid: *pid,
                gpu: "0".into(),
                uuid: "GPU-a".into(),
                memory: Some(Bytes::new(*bytes)),
            };
            let facts = Facts {
                processes: table.map(Arc::new),
                workload_of,
                gpu_processes: self.pool.iter().map(gpu_process).collect(),
                gpus_of_host_memory: if self.pool.is_empty() { Vec::new() } else { vec!["GPU-a".into()] },
                host_memory_is_pool: !self.pool.is_empty(),
                ..Facts::default()
            };
            self.at = self.at.plus(std::time::Duration::from_secs(1));
            self.input_builder.look(
                self.at,
                &Outlook::default(),
                &facts,
                &Alerts::default(),
                &Report::default(),
            )
        }
    }

    fn left(meter: Option<Option<crate::protection::enforce::levels::GroupMeter>>) -> Option<u64> {
        meter.flatten()?.read(Bytes::new(1 << 40)).unwrap().map(|(left, _)| left.headroom.get() >> 20)
    }

    #[test]
    fn a_group_made_anew_at_the_same_path_is_read_again() {
        for selector in ["cgroup: /jobs/a", "workload: w"] {
            let mut world = World::new(selector);
            world.group("jobs/a", 60);
            assert_eq!(left(world.look(&[(10, 1, "/jobs/a")]).meter), Some(60));
            assert!(world.look(&[(10, 1, "/jobs/a")]).meter.is_none(), "the same as before");
            std::fs::rename(world.folder.path().join("cgroup/jobs/a"), world.folder.path().join("old"))
                .unwrap();
            world.group("jobs/a", 20);
            assert_eq!(left(world.look(&[(20, 1, "/jobs/a")]).meter), Some(20), "{selector}");
            std::fs::rename(world.folder.path().join("cgroup/jobs/a"), world.folder.path().join("gone"))
                .unwrap();
            assert!(matches!(world.look(&[]).meter, Some(None)), "{selector}");
        }
    }

    #[test]
    fn memory_on_a_gpu_that_uses_the_memory_of_the_host_makes_a_process_larger() {
        let mut world = World::new("workload: w");
        let rows = [(10, 1, "/a"), (11, 1, "/a")];
        let largest = |input: &GuardInput| {
            let roster = &input.slots.iter().flatten().next().unwrap().roster;
            (Vec::from_iter(roster.largest.iter().map(|key| key.pid)), roster.resident.get())
        };
        let before = world.sample(Some(&rows)).unwrap();
        assert_eq!((largest(&before), before.is_pool), ((vec![10, 11], 2), false));
        // Each has a byte of resident memory. On two GPUs, both count.
        world.pool = &[(11, 60), (11, 5)];
        let pool = world.sample(Some(&rows)).unwrap();
        assert_eq!((largest(&pool), pool.is_pool), ((vec![11, 10], 67), true));
        world.pool = &[];
        assert!(world.sample(Some(&rows)).unwrap().is_pool, "also while the GPU does not answer");
    }

    #[test]
    fn the_meter_of_the_host_is_exchanged_when_the_driver_adds_the_memory_of_a_gpu() {
        let mut world = World::new("workload: w");
        let write = |path: &str, text: &str| {
            let path = world.folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal: 9 kB\nMemAvailable: 8 kB\n");
        write("sys/devices/system/node/has_cpu", "0\n");
        write("sys/devices/system/node/has_memory", "0-1\n");
        let node =
            "MemTotal: 4 kB\nMemFree: 2 kB\nActive(file): 1 kB\nInactive(file): 0 kB\nSReclaimable: 0 kB\n";
        write("sys/devices/system/node/node1/meminfo", node);
        let left = |input: GuardInput| {
            input.host.map(|meter| meter.read().unwrap()).map(|left| (left.headroom.get(), left.total.get()))
        };
        assert_eq!(left(world.sample(Some(&[])).unwrap()), None);
        std::fs::create_dir_all(world.folder.path().join("proc/driver/nvidia/gpus/a/numa_status")).unwrap();
        assert_eq!(left(world.sample(Some(&[])).unwrap()), Some((5 << 10, 5 << 10)));
        assert_eq!(left(world.sample(Some(&[])).unwrap()), None, "as before");
    }

    #[test]
    fn a_target_whose_processes_are_unknown_is_disarmed() {
        let mut world = World::new("workload: w");
        let facts = world.sample(None).unwrap().slots.into_iter().flatten().next().unwrap();
        assert_eq!((facts.sampled.unfit, facts.sampled.members), (Some(Unfit::Unknown), None));
        assert_eq!(world.look(&[(10, 1, "/jobs/a")]).sampled.unfit, None);
        assert!(world.sample(None).is_none(), "what was known is better than nothing");
    }

    #[test]
    fn whom_we_may_not_signal_is_left_out() {
        let mut world = World::new("workload: w");
        world.input_builder.only = Some(7);
        let facts = world.look(&[(10, 1, "/jobs/a")]);
        assert_eq!((facts.sampled.unfit, facts.sampled.members.unwrap().count), (None, 1));
        world.input_builder.only = Some(8);
        let facts = world.look(&[(10, 1, "/jobs/a")]);
        assert_eq!(
            (facts.sampled.unfit, facts.sampled.members.unwrap().count),
            (Some(Unfit::NoPermission), 0)
        );
        assert!(facts.roster.end.is_empty() && facts.scope.is_none());
        let whys: Vec<_> = world.input_builder.whys.values().flatten().collect();
        assert_eq!(whys, [(&"of users whose processes memwarden has no permission to signal", &1)]);
    }

    #[test]
    fn the_limit_of_a_container_is_read_from_inside() {
        let mut world = World::new("workload: w");
        world.group(".", 30);
        assert_eq!(left(world.look(&[(10, 1, "/")]).meter), Some(30));
    }

    #[test]
    fn a_target_that_names_a_group_reaches_nobody_outside_it() {
        let mut world = World::new("cgroup: /jobs/*");
        world.group("jobs/a", 60);
        let scope = world.look(&[(10, 1, "/jobs/a"), (11, 10, "/elsewhere")]).scope.unwrap();
        let [Member::Group(group)] = &*scope.members else { panic!("{scope:?}") };
        assert_eq!(group.path.as_str(), "/jobs/a");
    }

    /// The names, users, members and left-out processes of all slots.
    fn occupied(world: &World) -> Vec<(String, Option<u32>, u32, u32)> {
        let names = world.input_builder.names.slots.iter().flatten();
        names.map(|name| (name.workload.to_string(), name.user, name.members, name.left_out)).collect()
    }

    #[test]
    fn users_who_are_not_allowed_take_no_slot() {
        let mut world = World::new("workload: \"job-*\"");
        // Pids from 100 on are Mallory's: 70 workloads of its own, and a process that goes by the name of the real job.
        world.who = |pid| match pid {
            10 | 170 => (if pid == 10 { 7 } else { 9 }, "job-real".to_owned()),
            _ => (9, format!("job-{pid}")),
        };
        let fakes: Vec<(u32, u32, &str)> = (100..171).map(|pid| (pid, 1, "/u/9")).collect();
        let alone = world.sample(Some(&fakes)).unwrap().slots;
        assert_eq!(alone.iter().flatten().count(), 1, "the target names nobody");
        assert_eq!(occupied(&world), [(String::new(), None, 0, 71)]);
        let all: Vec<_> = std::iter::once((10, 1, "/u/7")).chain(fakes).collect();
        world.sample(Some(&all)).unwrap();
        world.sample(Some(&all)).unwrap();
        assert_eq!(occupied(&world), [("job-real".to_owned(), Some(7), 1, 1)]);
        assert!(world.input_builder.names.without_slot.is_empty());
    }

    #[test]
    fn two_users_with_one_name_have_a_job_each() {
        let mut world = World::new("workload: w");
        world.who = |pid| (if pid < 20 { 7 } else { 8 }, "w".to_owned());
        let facts = world.sample(Some(&[(10, 1, "/a"), (11, 10, "/a"), (20, 1, "/a")])).unwrap();
        assert_eq!(
            occupied(&world),
            [("w (uid 7)".to_owned(), Some(7), 2, 0), ("w (uid 8)".to_owned(), Some(8), 1, 0)]
        );
        let victims: Vec<Vec<u32>> = facts
            .slots
            .iter()
            .flatten()
            .map(|slot| slot.roster.largest.iter().map(|key| key.pid).collect())
            .collect();
        assert_eq!(victims, [vec![10, 11], vec![20]], "nobody ends for the other");
    }

    #[test]
    fn a_scheduler_job_is_one_job_whoever_owns_its_processes() {
        let mut world = World::new("workload: slurm-*");
        world.who = |pid| (if pid < 20 { 7 } else { 8 }, "slurm-1".to_owned());
        world.sample(Some(&[(10, 1, "/a"), (20, 10, "/a"), (21, 10, "/a")])).unwrap();
        assert_eq!(occupied(&world), [("slurm-1".to_owned(), Some(7), 3, 0)]);
        let serial = world.input_builder.slots.all.iter().flatten().next().unwrap().serial;
        world.sample(Some(&[(20, 1, "/a"), (21, 1, "/a")])).unwrap();
        assert_eq!(occupied(&world), [("slurm-1".to_owned(), Some(7), 2, 0)], "the launcher ended");
        assert_eq!(world.input_builder.slots.all.iter().flatten().next().unwrap().serial, serial);
    }

    #[test]
    fn where_another_daemon_protects_no_process_is_signalled() {
        let mut world = World::new("workload: w");
        world.input_builder.other_daemon = true;
        assert_eq!(world.look(&[(10, 1, "/a")]).sampled.unfit, Some(Unfit::OtherDaemon));
    }
}

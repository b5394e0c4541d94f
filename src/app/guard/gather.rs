//! From a frame to facts: which jobs the targets name, who belongs to them, and what is foreseen for them.
//!
//! Runs on the sampler's thread after each frame, so that the guard allocates
//! and searches nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::alerts::Alerts;
use super::facts::{Facts, SeatFacts};
use super::foresight::Traits;
use super::seats::{Seats, Sitter};
use super::users;
use crate::host::capability;
use crate::host::cgroup::{self, Hierarchy};
use crate::host::levels::GroupMeter;
use crate::host::roots::Roots;
use crate::model::facts::{Facts as Told, Membership, ProcessRow, ProcessTable};
use crate::model::frame::Frame;
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::scope::{Member, Never, Scope};
use crate::model::step::Group;
use crate::model::time::Timestamp;
use crate::protection::policy::{Ladder, Members, Mode, Resource};
use crate::protection::report::{Names, Report, Unfit};
use crate::protection::target::{Selector, Target};
use crate::protection::victim::{self, Person, Roster};

/// Makes facts of frames.
#[derive(Debug)]
pub struct Gather {
    targets: Arc<[Target]>,
    /// By target; the first unknown user's name where one is.
    users: Vec<Result<Vec<u32>, String>>,
    never: Option<Never>,
    /// The only user whose processes we may signal, where we may not signal all.
    only: Option<u32>,
    hierarchy: Option<Hierarchy>,
    seats: Seats,
    /// What the seats are called, for the labels.
    pub names: Names,
}

/// The members of one job, raw and sifted.
#[derive(Debug, Default)]
struct Crowd {
    people: Vec<Person>,
    left_out: u32,
    /// Whether init, or we ourselves, are among those that the target names.
    wide: bool,
    /// Whether there are some whom we may not signal.
    beyond: bool,
}

impl Gather {
    /// One for these targets; `never` is absent where we do not know who we are, and nobody is touched then.
    pub fn new(targets: Arc<[Target]>, roots: &Roots, never: Option<Never>) -> Self {
        let users = targets.iter().map(|target| users::numbers(&target.users, &roots.passwd)).collect();
        let names = Names {
            targets: targets.iter().map(|target| (target.name.clone(), target.limits.mode)).collect(),
            ..Names::default()
        };
        let hierarchy = cgroup::memory_hierarchy(&roots.cgroup).ok().and_then(Result::ok);
        let barred =
            capability::effective(&roots.proc).is_some_and(|mask| !capability::holds(mask, capability::KILL));
        let only = barred.then(|| rustix::process::geteuid().as_raw());
        Self { targets, users, never, only, hierarchy, seats: Seats::new(), names }
    }

    /// The targets whose users are not all known here, with the first unknown one.
    pub fn strangers(&self) -> impl Iterator<Item = (&Target, &str)> {
        let unknown = self.targets.iter().zip(&self.users);
        unknown.filter_map(|(target, users)| Some((target, users.as_ref().err()?.as_str())))
    }

    /// What this sample says. Nothing where the processes are not known any more: old facts are better than none. Where
    /// they never were, every target is said to be unfit.
    pub fn look(
        &mut self,
        now: Timestamp,
        frame: &Frame,
        told: &Told,
        alerts: &Alerts,
        report: &Report,
    ) -> Option<Facts> {
        let nobody = ProcessTable::default();
        let known = told.processes.as_deref();
        if known.is_none() && self.seats.all.iter().flatten().any(|sitter| !sitter.name.is_empty()) {
            return None;
        }
        let table = known.unwrap_or(&nobody);
        let jobs = self.jobs(table, told);
        let busy = |place: usize| {
            report.seats.get(place).and_then(Option::as_ref).is_some_and(|seat| {
                seat.state.acts() || seat.state == crate::protection::policy::State::Verify
            })
        };
        self.seats.clear(now, busy);
        self.seats.unseated = 0;
        let mut seats: Vec<Option<SeatFacts>> = self.seats.all.iter().map(|_| None).collect();
        let mut found = BTreeMap::new();
        for ((target, name), rows) in jobs {
            if let Some(place) = self.seats.of(target, &name, now) {
                found.insert(place, rows);
            }
        }
        self.names.seats = vec![None; seats.len()];
        self.names.unseated = self.seats.unseated;
        for (place, seat) in seats.iter_mut().enumerate() {
            let Some(mut sitter) = self.seats.all[place].take() else { continue };
            let rows = found.remove(&place).unwrap_or_default();
            let crowd = self.crowd(&sitter, &rows, told);
            let count = u32::try_from(crowd.people.len()).unwrap_or(u32::MAX);
            self.names.seats[place] = Some((sitter.serial, sitter.name.clone(), count, crowd.left_out));
            let mut facts = self.facts(&mut sitter, &crowd, &rows, (now, frame, told, table), alerts);
            if known.is_none() {
                (facts.members, facts.unfit) = (None, facts.unfit.or(Some(Unfit::Unknown)));
            }
            *seat = Some(facts);
            self.seats.all[place] = Some(sitter);
        }
        Some(Facts { at: now, seats })
    }

    /// The jobs that the targets name now, each with its processes; a target that names nobody has one without.
    fn jobs<'t>(
        &self,
        table: &'t ProcessTable,
        told: &Told,
    ) -> BTreeMap<(usize, Label), Vec<&'t ProcessRow>> {
        let mut jobs: BTreeMap<(usize, Label), Vec<&ProcessRow>> = BTreeMap::new();
        for (place, target) in self.targets.iter().enumerate() {
            let before = jobs.len();
            match &target.selector {
                Selector::Workload(_) => {
                    for Membership { process, workload } in &told.workload_of {
                        let row = table.get(process.pid).filter(|row| row.key == *process);
                        if let Some(row) = row.filter(|_| target.selector.names_workload(workload)) {
                            jobs.entry((place, workload.name.clone())).or_default().push(row);
                        }
                    }
                }
                Selector::Cgroup(_) => {
                    for row in &table.rows {
                        let path = row.cgroup.as_ref().map(Label::as_str);
                        if let Some(top) = path.and_then(|path| target.selector.names_group(path)) {
                            jobs.entry((place, top.into())).or_default().push(row);
                        }
                    }
                }
            }
            if jobs.len() == before {
                jobs.insert((place, Label::default()), Vec::new());
            }
        }
        jobs
    }

    /// Sifts the processes of a job: who may be touched, and who may not.
    fn crowd(&self, sitter: &Sitter, rows: &[&ProcessRow], told: &Told) -> Crowd {
        let mut crowd = Crowd::default();
        let (Ok(users), Some(never)) = (&self.users[sitter.target], &self.never) else { return crowd };
        for row in rows {
            let ours = never.pids.contains(&row.key.pid);
            crowd.wide |= ours || row.key.pid <= 2;
            // What has ended and was not waited for has no memory and hears nothing.
            if matches!(row.state, b'Z' | b'X') {
                continue;
            }
            let enforces = self.targets[sitter.target].limits.mode == Mode::Enforce;
            let beyond = enforces && self.only.is_some_and(|only| row.uid != only);
            crowd.beyond |= beyond;
            if beyond || ours || row.key.pid <= 2 || row.kernel || !users.contains(&row.uid) {
                crowd.left_out += 1;
                continue;
            }
            crowd.people.push(Person {
                key: row.key,
                parent: row.parent,
                resident: row.rss,
                group: row.cgroup.clone(),
                rank: told.gpu_processes.iter().any(|process| process.pid == row.key.pid)
                    || told.ranks.iter().any(|rank| rank.key == Some(row.key)),
            });
        }
        crowd
    }

    fn facts(
        &self,
        sitter: &mut Sitter,
        crowd: &Crowd,
        rows: &[&ProcessRow],
        (now, frame, told, table): (Timestamp, &Frame, &Told, &ProcessTable),
        alerts: &Alerts,
    ) -> SeatFacts {
        let target = &self.targets[sitter.target];
        let people = &crowd.people;
        let members: BTreeSet<ProcessKey> = people.iter().map(|person| person.key).collect();
        let others = table.rows.iter().filter(|row| !members.contains(&row.key));
        let others = others.filter_map(|row| row.cgroup.as_ref().map(Label::as_str));
        let group = victim::own_group(people, others).and_then(|path| self.group(path));
        let scope = self.scope(sitter, target, people, group.as_ref());
        let mut unfit = match (&self.users[sitter.target], &self.never) {
            (Err(_), _) => Some(Unfit::UnknownUser),
            (_, None) => Some(Unfit::NoExecutor),
            (Ok(_), Some(_)) if crowd.wide => Some(Unfit::TooWide),
            (Ok(_), Some(_)) if crowd.beyond && crowd.people.is_empty() => Some(Unfit::NoPermission),
            _ => None,
        };
        if let (Some(scope), Some(never)) = (&scope, &self.never)
            && scope.sound(never).is_err()
        {
            unfit = unfit.or(Some(Unfit::Bounds));
        }
        let changed = scope.is_some() && scope != sitter.scope;
        if changed {
            sitter.scope.clone_from(&scope);
        }
        let common = match &target.selector {
            Selector::Cgroup(_) if !sitter.name.is_empty() => Some(sitter.name.clone()),
            _ => victim::common_group(people).map(Label::from),
        };
        let common = common.as_ref().map(Label::as_str);
        let meter = self.meter(sitter, common.or_else(|| root(people)));
        let gpus: BTreeSet<&str> = told
            .gpu_processes
            .iter()
            .filter(|process| rows.iter().any(|row| row.key.pid == process.pid))
            .map(|process| process.uuid.as_str())
            .collect();
        let workloads = told.workload_of.iter().filter(|member| members.contains(&member.process));
        let workloads: BTreeSet<&str> = workloads.map(|member| member.workload.name.as_str()).collect();
        let watched = |resource: Resource| target.limits.levels[resource.place()].is_some();
        let traits = Traits {
            workloads: workloads.into_iter().collect(),
            group: common,
            gpus: gpus.into_iter().collect(),
            host: watched(Resource::Host),
            gpu: watched(Resource::Gpu),
            allocator: watched(Resource::Allocator),
        };
        let count = u32::try_from(people.len()).unwrap_or(u32::MAX);
        let begins = !std::mem::replace(&mut sitter.begun, true);
        SeatFacts {
            serial: sitter.serial,
            target: sitter.target,
            ladder: begins.then(|| Ladder::new(target.limits.clone(), now)),
            roster: Roster::new(people, target.victims, group).into(),
            members: Some(Members { count, catching: None }),
            scope: scope.filter(|_| changed),
            meter,
            gpu: traits.gpu_left(frame),
            allocator: traits.allocator_left(frame),
            forecast: traits.forecast(frame),
            leak: traits.leak(frame),
            alert: alerts.firing(target),
            unfit,
        }
    }

    fn group(&self, path: Label) -> Option<Group> {
        let folder = self.hierarchy.as_ref()?.root.join(path.as_str().trim_start_matches('/'));
        let inode = rustix::fs::stat(&folder).ok()?.st_ino;
        Some(Group { path, inode })
    }

    /// What reads the limits of a group, where it is another than before: also one made anew at the same path, since
    /// descriptors of the one before it never say anything again.
    fn meter(&self, sitter: &mut Sitter, path: Option<&str>) -> Option<Option<GroupMeter>> {
        let group = path.and_then(|path| self.group(path.into()));
        if sitter.group == group {
            return None;
        }
        let meter = group.as_ref().zip(self.hierarchy.as_ref()).and_then(|(group, hierarchy)| {
            let path = group.path.as_str();
            let opened = GroupMeter::open(hierarchy, path);
            opened.inspect_err(|error| tracing::debug!(path, %error, "A group's limits cannot be read.")).ok()
        });
        sitter.group = group;
        Some(meter)
    }

    /// Who may be touched. Of a target that names cgroups: whoever is in the job's, by then; of one that names workloads:
    /// the job's own group as a whole, and each process that is known with what descends from it.
    fn scope(
        &self,
        sitter: &Sitter,
        target: &Target,
        people: &[Person],
        own: Option<&Group>,
    ) -> Option<Scope> {
        let users = self.users[sitter.target].as_ref().ok()?.clone();
        if people.is_empty() {
            return None;
        }
        let members = match &target.selector {
            Selector::Cgroup(_) => vec![Member::Group(self.group(sitter.name.clone())?)],
            Selector::Workload(_) => {
                let pids: BTreeSet<u32> = people.iter().map(|person| person.key.pid).collect();
                let mut members: Vec<Member> = own.cloned().map(Member::Group).into_iter().collect();
                members.extend(people.iter().map(|person| match pids.contains(&person.parent) {
                    true => Member::Process(person.key),
                    false => Member::Tree(person.key),
                }));
                members
            }
        };
        Some(Scope { name: target.name.clone(), users, members })
    }
}

/// The hierarchy's root, where all are in groups that have nothing else in common: it has a limit inside a container.
fn root(people: &[Person]) -> Option<&'static str> {
    (!people.is_empty() && people.iter().all(|person| person.group.is_some())).then_some("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::Bytes;
    use crate::protection::options::Protection;

    /// A host whose jobs are in groups below `cgroup`.
    struct World {
        folder: tempfile::TempDir,
        gather: Gather,
        at: Timestamp,
    }

    impl World {
        fn new(selector: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(folder.path().join("cgroup")).unwrap();
            std::fs::write(folder.path().join("cgroup/cgroup.controllers"), "memory\n").unwrap();
            let text = format!(
                "protection: {{mode: enforce, targets: [{{name: t, {selector}, allow_users: ['7']}}]}}"
            );
            let config = crate::config::parse_str(&text, "f".as_ref(), &crate::app::schema(), &[]).unwrap();
            let targets =
                Protection::new(&config.rooms["protection"], config.sampling.interval).targets.into();
            let never = Some(Never { own: 1000, pids: vec![1000], groups: Vec::new() });
            let gather = Gather::new(targets, &Roots::under(folder.path()), never);
            Self { folder, gather, at: Timestamp::from_secs(10) }
        }

        /// Makes a group with this much left, in MiB.
        fn group(&self, path: &str, left: u64) {
            let folder = self.folder.path().join("cgroup").join(path);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("memory.max"), format!("{}\n", 100 << 20)).unwrap();
            std::fs::write(folder.join("memory.current"), format!("{}\n", (100 - left) << 20)).unwrap();
            std::fs::write(folder.join("memory.stat"), "inactive_file 0\n").unwrap();
        }

        fn look(&mut self, rows: &[(u32, u32, &str)]) -> SeatFacts {
            self.sample(Some(rows)).unwrap().seats.into_iter().flatten().next().unwrap()
        }

        fn sample(&mut self, rows: Option<&[(u32, u32, &str)]>) -> Option<Facts> {
            let row = |(pid, parent, cgroup): &(u32, u32, &str)| ProcessRow {
                key: ProcessKey { pid: *pid, start: 1 },
                parent: *parent,
                session: 0,
                terminal: 0,
                uid: 7,
                comm: "python".into(),
                state: b'S',
                kernel: false,
                rss: Bytes::new(1),
                cpu_ticks: 0,
                threads: 1,
                major_faults: 0,
                cgroup: Some((*cgroup).into()),
                naming_cgroup: None,
            };
            let table = rows.map(|rows| ProcessTable { rows: rows.iter().map(row).collect(), boot: None });
            let all = table.iter().flat_map(|table| &table.rows);
            let workload_of = all.map(|row| Membership::named(row.key, "w")).collect();
            let told = Told { processes: table.map(Arc::new), workload_of, ..Told::default() };
            self.at = self.at.plus(std::time::Duration::from_secs(1));
            let frame = Frame {
                sequence: 1,
                at: self.at,
                families: Vec::new(),
                sources: Vec::new(),
                findings: Vec::new(),
                timeline: Arc::default(),
            };
            self.gather.look(self.at, &frame, &told, &Alerts::default(), &Report::default())
        }
    }

    fn left(meter: Option<Option<GroupMeter>>) -> Option<u64> {
        meter.flatten()?.read(Bytes::new(1 << 40)).unwrap().map(|left| left.headroom.get() >> 20)
    }

    #[test]
    fn a_group_made_anew_at_the_same_path_is_read_anew() {
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
    fn a_target_whose_processes_nobody_tells_is_unfit() {
        let mut world = World::new("workload: w");
        let facts = world.sample(None).unwrap().seats.into_iter().flatten().next().unwrap();
        assert_eq!((facts.unfit, facts.members), (Some(Unfit::Unknown), None));
        assert_eq!(world.look(&[(10, 1, "/jobs/a")]).unfit, None);
        assert!(world.sample(None).is_none(), "what was known is better than nothing");
    }

    #[test]
    fn whom_we_may_not_signal_is_left_out() {
        let mut world = World::new("workload: w");
        world.gather.only = Some(7);
        let facts = world.look(&[(10, 1, "/jobs/a")]);
        assert_eq!((facts.unfit, facts.members.unwrap().count), (None, 1));
        world.gather.only = Some(8);
        let facts = world.look(&[(10, 1, "/jobs/a")]);
        assert_eq!((facts.unfit, facts.members.unwrap().count), (Some(Unfit::NoPermission), 0));
        assert!(facts.roster.end.is_empty() && facts.scope.is_none());
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
        let [Member::Group(group)] = scope.members.as_slice() else { panic!("{scope:?}") };
        assert_eq!(group.path.as_str(), "/jobs/a");
    }
}

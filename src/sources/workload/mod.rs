//! Workloads: groups of processes that belong together, and the resources that each group uses.
//!
//! Workloads are found by configured matchers, by the cgroup paths of Slurm, Kubernetes and container engines, by
//! systemd units, by GPU use, and by ranks that report over the job socket, in this order. Built on the
//! [`crate::model::facts`] of `process` and `gpu`, and those of `training` at the previous tick. `smaps_rollup` is
//! read only if `pss` is enabled, because a read holds the memory map lock of the process.

mod exits;
mod expose;
mod hanging;
mod identity;
mod matcher;
mod member;
pub mod metrics;
mod naming;
mod options;
mod ranks;
mod seen;
mod sets;
mod settle;
mod slurm;
mod texts;
mod top;
mod tree;
mod users;
mod workload_table;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use exits::Exits;
use identity::{Identity, Names, WorkloadKind};
use member::{Files, Member};
use options::Options;
use ranks::Ranks;
use seen::Seen;
use sets::Sets;
use settle::Assignment;
use slurm::SlurmJobs;
use texts::Texts;
use tree::Trees;
use users::Users;
use workload_table::WorkloadTable;

use crate::host::cgroup_owner::Owners;
use crate::host::process::readers::{self, Pool};
use crate::host::process::{self, ProcRoot};
use crate::host::roots::Roots;
use crate::model::attention;
use crate::model::facts::{GpuProcess, Membership, PodNames, ProcessRow, ProcessTable};
use crate::model::ids::ProcessKey;
use crate::model::point::Batch;
use crate::model::shortage::Shortage;
use crate::model::source::{Failure, Source, SourceError};
use crate::model::subordinate::SubordinateIds;
use crate::model::time::Timestamp;
use crate::sources::Registration;

pub static REGISTRATION: Registration = Registration {
    name: "workload",
    about: "Workloads (process trees, Slurm jobs, pods, containers and systemd units) and the resources that each uses. Requires the process source.",
    options: Options::OPTIONS,
    metrics: metrics::METRICS,
    needs: &["process"],
    check: |settings| Options::read(settings).check(),
    ..Registration::built_by(|settings, context| {
        // Together with the third that `process` uses, this is half of the limit.
        let descriptors = process::descriptor_limit() / 6;
        Box::new(Workloads::new(Options::read(settings), &context.roots, descriptors, &readers::shared()))
    })
};

struct Workloads {
    options: Options,
    /// The first error because of which a matcher or a tree is left out.
    problem: Option<String>,
    files: Files,
    users: Users,
    workload_table: WorkloadTable,
    /// Of this sample.
    subordinates: Arc<SubordinateIds>,
    /// The state of each process, in the order of the table.
    seen: Vec<Seen>,
    names: Names,
    exits: Exits,
    trees: Trees,
    /// The numbers of the workloads of these trees.
    tree_ids: BTreeSet<u32>,
    sets: Sets,
    texts: Texts,
    slurm: SlurmJobs,
    ranks: Ranks,
    /// Names of pods and containers, at this sample.
    pods: Arc<PodNames>,
    /// Number of workloads that are not tracked because of the limit, by user.
    left_out: BTreeMap<u32, u64>,
    started: bool,
}

impl Workloads {
    fn new(mut options: Options, roots: &Roots, descriptors: usize, pool: &Arc<Pool>) -> Self {
        let problem = options.check().into_iter().next().map(|(key, what)| format!("{key} {what}"));
        options.matchers.retain(|matcher| matcher.problem().is_none());
        let texts = Texts::new(&options.matchers, Arc::clone(pool));
        Self {
            slurm: SlurmJobs::new(Arc::clone(pool), Arc::clone(&texts.budget)),
            ranks: Ranks::new(Arc::clone(pool), Arc::clone(&texts.budget)),
            texts,
            options,
            problem,
            pods: Arc::default(),
            files: Files::new(ProcRoot::new(roots.proc.clone()), descriptors, pool),
            users: Users::new(roots.passwd.clone()),
            workload_table: WorkloadTable::default(),
            subordinates: Arc::default(),
            seen: Vec::new(),
            names: Names::new(Owners::new(roots.cgroup.clone())),
            exits: Exits::default(),
            trees: Trees::default(),
            tree_ids: BTreeSet::new(),
            sets: Sets::new(pool),
            left_out: BTreeMap::new(),
            started: false,
        }
    }

    /// Removes the processes that are no longer in the table and adds the new ones.
    fn follow(&mut self, table: &ProcessTable, at: Timestamp) {
        let (seen, gone) = seen::merge(std::mem::take(&mut self.seen), table, self.started);
        self.seen = seen;
        self.started = true;
        for mut process in gone {
            let Some(member) = process.member.take() else { continue };
            if let Some(workload) = self.workload_table.watched_mut(process.assignment) {
                // Helpers of memwarden, such as a worker that finds no driver, are not the job's.
                workload.exited += u64::from(!process.is_memwarden());
                if let Some(peak) = member.peak {
                    let payer = self.subordinates.owner(workload.facts.user);
                    self.exits.record(&workload.facts.name, payer, peak, at);
                }
            }
            self.files.release(*member);
        }
        self.exits.forget(at, self.options.exited_peak_hold);
    }

    /// The assignment of each process on its own: by matcher, or by the name of its cgroup.
    fn assignments(&mut self, table: &ProcessTable) -> Vec<Option<Assignment>> {
        self.names.turn();
        let Self { options, workload_table, seen, names, trees, .. } = self;
        let mut assignments = Vec::with_capacity(table.rows.len());
        for (seen, row) in seen.iter_mut().zip(&table.rows) {
            if row.kernel {
                assignments.push(None);
                continue;
            }
            if seen.to_name {
                seen.direct = None;
                let path = row.naming_cgroup.as_ref();
                let named = path.map_or(Ok(None), |path| names.of(path, options));
                // If it cannot be determined now, it is tried again.
                seen.unresolved = named.is_err();
                seen.named = named.unwrap_or_default();
            }
            let known = seen.direct.and_then(|assignment| workload_table.again(assignment));
            seen.direct = known.or_else(|| direct(seen, row, options, trees, workload_table));
            assignments.push(seen.direct);
        }
        assignments
    }

    /// Determines the workload of every process.
    fn settle(
        &mut self,
        table: &ProcessTable,
        gpu_processes: &[GpuProcess],
        reporting: &[ProcessKey],
        at: Timestamp,
    ) {
        self.texts.turn(&mut self.seen, table, &self.files.root, &mut self.users, at);
        let mut direct = self.assignments(table);
        let remembered: Vec<_> = self.seen.iter().map(|seen| seen.assignment).collect();
        let parents = settle::parents(table);
        let workload_table = &mut self.workload_table;
        let settle = |workload_table: &mut WorkloadTable, direct: &[Option<Assignment>]| {
            settle::settle(table, &parents, direct, &remembered, |assignment, uid| {
                workload_table.counterpart(assignment, uid)
            })
        };
        let mut settled = settle(workload_table, &direct);
        let on_gpus = gpu_processes.iter().map(|process| (WorkloadKind::Gpu, process.pid, None));
        let on_gpus = on_gpus.filter(|_| self.options.gpu_trees);
        let reporters = reporting.iter().map(|key| (WorkloadKind::Job, key.pid, Some(*key)));
        let reporters = reporters.filter(|_| self.options.job_trees);
        let mut jobs = Vec::new();
        for (kind, pid, key) in on_gpus.chain(reporters) {
            let Ok(place) = table.rows.binary_search_by_key(&pid, |row| row.key.pid) else { continue };
            let row = &table.rows[place];
            if let Some(assignment) = settled[place].filter(|_| kind == WorkloadKind::Gpu) {
                workload_table.uses_gpu(assignment);
            }
            if row.kernel || key.is_some_and(|key| key != row.key) {
                continue;
            }
            jobs.push(place);
            if settled[place].is_some() {
                continue;
            }
            let root = settle::root_of(table, &parents, place);
            let identity = Identity::of_tree(kind, &table.rows[root], &self.options);
            direct[root] = Some(workload_table.assignment(&identity.key.clone(), || identity));
            settled = settle(workload_table, &direct);
        }
        for (seen, assignment) in self.seen.iter_mut().zip(settled) {
            seen.assignment = assignment;
        }
        let jobs = jobs.into_iter();
        let jobs = jobs.filter_map(|place| Some((self.seen[place].assignment?, table.rows[place].key.start)));
        self.workload_table.note_jobs(jobs);
        self.slurm.turn(&self.seen, table, &parents, &self.files.root, at);
        self.slurm.name_jobs(&self.seen, &mut self.workload_table);
        self.workload_table.name_pods(&self.pods);
        let assigned_rows = self.seen.iter().zip(&table.rows);
        let assignments = assigned_rows.filter_map(|(seen, row)| Some((seen.assignment?, row)));
        let users = &mut self.users;
        self.left_out =
            self.workload_table
                .turn(assignments, self.options.max_workloads, &self.subordinates, |uid| users.name(uid));
        let read = (&self.files.root, &*self.pods);
        self.ranks.turn(&self.seen, table, &parents, &self.workload_table, read, at);
    }

    /// Passes on which process belongs to which workload, and which users are affected by the limit.
    fn publish(&mut self, at: Timestamp, out: &mut Batch) {
        let members = self.seen.iter().filter_map(|seen| {
            let workload = self.workload_table.workloads.get(&seen.assignment?.id)?;
            Some(Membership { process: seen.key, workload: Arc::clone(&workload.facts) })
        });
        out.facts.workload_of = members.collect();
        let most = self.options.max_workloads;
        out.facts.shortages.extend(Shortage::of_users("workloads", most, &self.left_out));
        out.facts.shortages.extend(self.exits.shortages(at));
    }

    /// Reads the members in detail and computes the sums.
    fn observe(&mut self, table: &ProcessTable, at: Timestamp) {
        let mut may_read_pss = self.options.pss;
        let place_of = |seen: &[Seen], key| seen.binary_search_by_key(&key, |seen| seen.key).ok();
        self.files.io.keep(|key| place_of(&self.seen, key).is_some());
        for (seen, row) in self.seen.iter_mut().zip(&table.rows) {
            if self.workload_table.watched_mut(seen.assignment).is_none() {
                if let Some(member) = seen.member.take() {
                    self.files.release(*member);
                }
                continue;
            }
            attention::attend(row.key.pid);
            let member = seen.member.get_or_insert_with(Box::<Member>::default);
            member.observe(row, seen.shown, &mut self.files);
            if may_read_pss && member.request_pss(row, at, &mut self.files) {
                // One per sample: each may take 20 ms.
                may_read_pss = false;
            }
        }
        attention::rest();
        for (key, answer) in self.files.io.answers() {
            let place = place_of(&self.seen, key);
            if let Some(member) = place.and_then(|place| self.seen[place].member.as_mut()) {
                member.take_io(answer);
            }
        }
        for (key, answer) in self.files.pss.answers() {
            let place = place_of(&self.seen, key);
            if let Some(member) = place.and_then(|place| self.seen[place].member.as_mut()) {
                member.pss = answer.flatten();
            }
        }
        for (seen, row) in self.seen.iter_mut().zip(&table.rows) {
            let active = matches!(row.state, b'R' | b'D')
                || seen.cpu_ticks.is_some_and(|before| row.cpu_ticks > before);
            seen.cpu_ticks = Some(row.cpu_ticks);
            let Some(workload) = self.workload_table.watched_mut(seen.assignment) else { continue };
            let Some(member) = &mut seen.member else { continue };
            let part = seen.named.as_ref().map(|named| &named.part);
            workload.add(row, member, active, part);
        }
        let roots = self.trees.roots().filter_map(|root| place_of(&self.seen, root));
        self.tree_ids.extend(roots.filter_map(|place| Some(self.seen[place].assignment?.id)));
        for (id, memory) in self.sets.turn(&self.tree_ids, &self.seen, table, &self.files.root, at) {
            if let Some(workload) = self.workload_table.workloads.get_mut(&id) {
                workload.now.memory = Some(memory);
            }
        }
        for workload in self.workload_table.workloads.values_mut() {
            workload.choose_part();
        }
    }
}

/// The assignment of a process by a configured tree or matcher, or by its cgroup.
fn direct(
    seen: &Seen,
    row: &ProcessRow,
    options: &Options,
    trees: &Trees,
    workload_table: &mut WorkloadTable,
) -> Option<Assignment> {
    // A tree that is requested by its pid contains only descendants of that process.
    let tree = trees.name_of(row).map(|name| (name, None, None));
    let user = if row.uid == 0 { seen.user } else { row.uid };
    let matched = seen.matched.map(|place| &options.matchers[place]);
    let matched = matched.map(|matcher| (&matcher.name, matcher.run.as_ref(), Some(user)));
    if let Some((name, run, user)) = tree.or(matched) {
        let identity = Identity::of_rule(name, run, user, row);
        return Some(workload_table.assignment(&identity.key.clone(), || identity));
    }
    let identity = &seen.named.as_ref()?.identity;
    Some(workload_table.assignment(&identity.key, || Identity::clone(identity)))
}

impl Source for Workloads {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let Some(table) = out.facts.processes.clone() else {
            return Err(SourceError::unavailable(
                "workloads require the process source, which is disabled or failed",
            ));
        };
        let path = self.files.root.path().display().to_string();
        let failed = |error| SourceError::io(format_args!("cannot open {path}"), &error);
        self.files.connect().map_err(failed)?;
        self.users.tick();
        self.files.root.begin_sample();
        if !self.started {
            self.trees = Trees::bind(&self.options.trees, &self.files.root, &mut self.files.buffer);
        }
        self.subordinates = Arc::clone(&out.facts.subordinates);
        self.follow(&table, at);
        self.pods = Arc::clone(&out.facts.pods);
        self.settle(&table, &out.facts.gpu_processes, &out.facts.reporting, at);
        self.publish(at, out);
        self.observe(&table, at);
        let limit = |seen: &Seen| Some((seen.key, seen.member.as_ref()?.own_limits()?));
        out.facts.own_limits = self.seen.iter().filter_map(limit).collect();
        self.expose(&table, at, out);
        out.facts.shortages.extend(self.files.root.status_shortages());
        hanging::put(&self.texts.pool().look(), at, out);
        match &self.problem {
            Some(problem) => Err(SourceError::failed(Failure::Parse, problem.clone())),
            None => Ok(()),
        }
    }
}

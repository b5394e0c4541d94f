//! The ranks and the run of each workload, from the environment of its processes.
//!
//! A job that reports nothing over the job socket has ranks too. Each process of a workload is read once or twice, on
//! the threads of [`readers`](crate::host::process::readers) and within the budget of its user. Children inherit the
//! environment of a rank and are not ranks themselves, so that they are not read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::identity::{Identity, WorkloadKind};
use super::seen::Seen;
use super::texts::Budget;
use super::workload_table::WorkloadTable;
use crate::formats::rank_environment::{self, EnvironmentRank, RankEnvironment};
use crate::host::process::readers::{Pool, ReadRequests, ReadTarget};
use crate::host::process::{self, ProcRoot};
use crate::model::facts::{self, PodNames, ProcessRow, ProcessTable, Run};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::time::Timestamp;

/// Times from the first sample with a process until it is read, for the first and for the last time: a launcher may replace
/// its program after it has set variables.
const READ_AFTER: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(20)];
/// Maximum number of processes whose environment is remembered; further ones are not read.
const MOST: usize = 20_000;

/// What is known of the environment of one process.
#[derive(Debug)]
struct Known {
    since: Timestamp,
    reads: usize,
    environment: Option<RankEnvironment>,
}

/// The environments of the processes of workloads.
pub(super) struct Ranks {
    requests: ReadRequests<Option<RankEnvironment>>,
    budget: Arc<Budget>,
    known: foldhash::HashMap<ProcessKey, Known>,
    /// The name of this node, for runs whose rendezvous address is of the node itself.
    node: Label,
    /// The run of each workload, by its number.
    runs: BTreeMap<u32, Run>,
    ranks: Vec<facts::EnvironmentRank>,
}

impl Ranks {
    pub(super) fn new(pool: Arc<Pool>, budget: Arc<Budget>) -> Self {
        let node = rustix::system::uname().nodename().to_string_lossy().as_ref().into();
        let requests = ReadRequests::new(pool);
        Self {
            requests,
            budget,
            known: foldhash::HashMap::default(),
            node,
            runs: BTreeMap::new(),
            ranks: Vec::new(),
        }
    }

    /// Reads what is missing, and determines the ranks and the run of each workload.
    pub(super) fn turn(
        &mut self,
        seen: &[Seen],
        table: &ProcessTable,
        parents: &[Option<usize>],
        workload_table: &WorkloadTable,
        (root, pods): (&Arc<ProcRoot>, &PodNames),
        at: Timestamp,
    ) {
        let place_of = |key| seen.binary_search_by_key(&key, |seen: &Seen| seen.key).ok();
        self.known.retain(|key, _| place_of(*key).is_some_and(|place| seen[place].assignment.is_some()));
        self.requests.keep(|key| place_of(key).is_some());
        for (key, answer) in self.requests.answers() {
            if let (Some(known), Some(Some(environment))) = (self.known.get_mut(&key), answer) {
                known.environment = Some(environment);
            }
        }
        for (place, (seen, row)) in seen.iter().zip(&table.rows).enumerate() {
            let workload = workload_table.watched_of(seen.assignment);
            if workload.is_some_and(|workload| workload.identity.kind != WorkloadKind::Unit) {
                let inherits = self.is_below_a_rank(place, table, parents);
                self.read(row, inherits, root, at);
            }
        }
        self.find_ranks(seen, table, parents, workload_table);
        self.find_runs(seen, workload_table, pods);
    }

    /// Requests the environment of a process, if it is due.
    fn read(&mut self, row: &ProcessRow, inherits: bool, root: &Arc<ProcRoot>, at: Timestamp) {
        if self.known.len() >= MOST && !self.known.contains_key(&row.key) {
            return;
        }
        let known = self.known.entry(row.key).or_insert(Known { since: at, reads: 0, environment: None });
        let due = READ_AFTER.get(known.reads).is_some_and(|after| at.since(known.since) >= *after);
        let is_rank = known.environment.as_ref().is_some_and(|environment| environment.rank.is_some());
        let idle = row.kernel || inherits || is_rank || matches!(row.state, b'Z' | b'X');
        if !due || idle || self.requests.waits_for(row.key) || !self.budget.allows(row.uid) {
            return;
        }
        known.reads += 1;
        let target = ReadTarget::of(row, "environ");
        let (root, budget, key, uid) = (Arc::clone(root), Arc::clone(&self.budget), row.key, row.uid);
        self.requests.request(target, move || environment(&root, key, uid, &budget));
    }

    fn rank_of(&self, row: &ProcessRow) -> Option<EnvironmentRank> {
        self.known.get(&row.key)?.environment.as_ref()?.rank
    }

    /// Whether an ancestor is a rank that its launcher started as one.
    fn is_below_a_rank(&self, place: usize, table: &ProcessTable, parents: &[Option<usize>]) -> bool {
        let mut above = parents[place];
        // A chain of parents in a table that was read while processes ended could be circular.
        for _ in 0..64 {
            let Some(place) = above else { return false };
            if self.rank_of(&table.rows[place]).is_some_and(|rank| !rank.is_task) {
                return true;
            }
            above = parents[place];
        }
        false
    }

    /// The ranks of all workloads: processes with a rank whose ancestors have none. The tasks of a Slurm step are ranks
    /// only where nothing below them is.
    fn find_ranks(
        &mut self,
        seen: &[Seen],
        table: &ProcessTable,
        parents: &[Option<usize>],
        workload_table: &WorkloadTable,
    ) {
        let mut launchers = vec![false; table.rows.len()];
        let mut found = Vec::new();
        for (place, row) in table.rows.iter().enumerate() {
            let Some(rank) = self.rank_of(row).filter(|_| seen[place].assignment.is_some()) else { continue };
            if rank.is_task {
                found.push((place, rank));
            } else if !self.is_below_a_rank(place, table, parents) {
                found.push((place, rank));
                let mut above = parents[place];
                for _ in 0..64 {
                    let Some(place) = above else { break };
                    launchers[place] = true;
                    above = parents[place];
                }
            }
        }
        // Of tasks with the same environment, the topmost is the task.
        let is_below_a_task = |place: usize, rank: EnvironmentRank| {
            let same = |above: usize| self.rank_of(&table.rows[above]) == Some(rank);
            parents[place].is_some_and(same)
        };
        let ranks = found
            .iter()
            .filter(|(place, rank)| !rank.is_task || (!launchers[*place] && !is_below_a_task(*place, *rank)));
        let ranks = ranks.filter_map(|(place, rank)| {
            let workload = workload_table.watched_of(seen[*place].assignment)?;
            Some(facts::EnvironmentRank {
                process: table.rows[*place].key,
                workload: Arc::clone(&workload.facts),
                rank: rank.rank,
                local_rank: rank.local_rank,
                world: rank.world,
            })
        });
        self.ranks = ranks.collect();
    }

    /// The run of each workload: the first name, in order, that its ranks agree on.
    fn find_runs(&mut self, seen: &[Seen], workload_table: &WorkloadTable, pods: &PodNames) {
        // Processes that no launcher started as ranks have a name of their run too, those below a rank that of the rank.
        let mut named: foldhash::HashMap<&crate::model::ids::WorkloadKey, Option<&Label>> =
            foldhash::HashMap::default();
        for seen in seen {
            let environment = self.known.get(&seen.key).and_then(|known| known.environment.as_ref());
            let own = environment.and_then(|environment| environment.named_run.as_ref());
            let workload = workload_table.watched_of(seen.assignment);
            if let (Some(own), Some(workload)) = (own, workload) {
                let known = named.entry(&workload.identity.key).or_insert(Some(own));
                *known = known.filter(|known| *known == own);
            }
        }
        let mut environments: foldhash::HashMap<&crate::model::ids::WorkloadKey, Vec<&RankEnvironment>> =
            foldhash::HashMap::default();
        for rank in &self.ranks {
            let environment = self.known.get(&rank.process).and_then(|known| known.environment.as_ref());
            environments.entry(&rank.workload.key).or_default().extend(environment);
        }
        let runs = workload_table.workloads.iter().filter(|(_, workload)| workload.watched).filter_map(
            |(id, workload)| {
                let ranks = environments.get(&workload.identity.key).map_or(&[][..], Vec::as_slice);
                let named = named.get(&workload.identity.key).copied().flatten();
                Some((*id, self.run(&workload.identity, (ranks, named), pods)?))
            },
        );
        self.runs = runs.collect();
    }

    fn run(
        &self,
        identity: &Identity,
        (ranks, named): (&[&RankEnvironment], Option<&Label>),
        pods: &PodNames,
    ) -> Option<Run> {
        let agreed = |name: fn(&RankEnvironment) -> &Option<Label>| {
            let first = name(ranks.first()?).as_ref()?;
            ranks.iter().all(|rank| name(rank).as_ref() == Some(first)).then(|| first.clone())
        };
        if let Some(run) = &identity.run {
            return Some(Run { name: run.clone(), configured: true });
        }
        let slurm =
            || (!identity.slurm_job.is_empty()).then(|| format!("slurm-{}", identity.slurm_job).into());
        let pod = || {
            let pod = pods.pods.get(&identity.pod_uid)?;
            rank_environment::run_of_pod(pod.namespace.as_str(), pod.pod.as_str())
        };
        let master = || {
            let master = agreed(|rank| &rank.master)?;
            Some(match rank_environment::is_loopback(master.as_str()) {
                true => format!("{}:{master}", self.node).into(),
                false => master,
            })
        };
        let name = agreed(|rank| &rank.named_run)
            .or_else(|| named.filter(|_| ranks.is_empty()).cloned())
            .or_else(slurm)
            .or_else(pod)
            .or_else(|| agreed(|rank| &rank.elastic_run))
            .or_else(|| agreed(|rank| &rank.mpi_run))
            .or_else(master)?;
        Some(Run { name, configured: false })
    }

    pub(super) fn run_of(&self, workload: u32) -> Run {
        self.runs.get(&workload).cloned().unwrap_or_default()
    }

    /// The ranks, sorted by process.
    pub(super) fn ranks(&self) -> &[facts::EnvironmentRank] {
        &self.ranks
    }
}

/// Reads the environment of a process that has not been replaced by another one; nothing if it cannot be read now.
fn environment(root: &ProcRoot, key: ProcessKey, uid: u32, budget: &Budget) -> Option<RankEnvironment> {
    let mut buffer = Vec::new();
    let found = budget.environment(root, (key.pid, uid), &mut buffer).map(RankEnvironment::read);
    let stat = root.read(key.pid, "stat", &mut buffer).ok().and_then(process::stat)?;
    found.filter(|_| stat.start == key.start)
}

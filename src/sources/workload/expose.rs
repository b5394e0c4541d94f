//! Converts workloads to points.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Workloads;
use super::identity::WorkloadKind;
use super::metrics;
use super::slurm::SlurmJob;
use super::top::{self, Candidate};
use super::workload_table::Workload;
use crate::host::process::{seconds, unix_seconds};
use crate::model::facts::{Membership, PodNames, ProcessTable, Run, WorkloadNames};
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Flag, Unit as _};

/// Seconds by which the start of a process may seem to be later than now: the boot time is a whole number of seconds, and is read
/// every few samples.
const CLOCK_ERROR: f64 = 60.0;

impl Workloads {
    pub(super) fn expose(&mut self, table: &ProcessTable, at: Timestamp, out: &mut Batch) {
        let watched = self.workload_table.watched();
        out.put(&metrics::WORKLOADS, &[], Count(watched as u64));
        out.put(&metrics::OMITTED, &[], Count((self.workload_table.workloads.len() - watched) as u64));
        if !self.options.matchers.is_empty() {
            out.put(&metrics::UNREADABLE, &[], Count(self.texts.unreadable));
            out.put(&metrics::DEFERRED, &[], Count(self.texts.deferred));
        }
        out.facts.environment_ranks.extend_from_slice(self.ranks.ranks());
        for (id, workload) in
            self.workload_table.workloads.iter_mut().filter(|(_, workload)| workload.watched)
        {
            let user = self.users.name(workload.facts.user);
            let run = self.ranks.run_of(*id);
            put_info(workload, (user, run), self.slurm.of(&workload.identity), &self.pods, out);
            put_sums(workload, self.options.pss, (table.boot, at), out);
            put_nodes(workload, out);
            out.facts.workloads.push(Arc::clone(&workload.facts));
            out.facts.workload_names.push(Arc::clone(&workload.names));
        }
        self.put_members(out);
        self.put_exits(out);
        self.put_gpus(table, out);
        self.put_largest(table, out);
    }

    /// Publishes in the facts which process belongs to which workload.
    fn put_members(&self, out: &mut Batch) {
        let members = self.seen.iter().filter_map(|seen| {
            let workload = self.workload_table.watched_of(seen.assignment)?;
            Some(Membership { process: seen.key, workload: Arc::clone(&workload.facts) })
        });
        out.facts.members.extend(members);
    }

    /// The largest peak of the ended processes of each workload.
    fn put_exits(&self, out: &mut Batch) {
        for (workload, peak) in self.exits.peaks() {
            out.put(&metrics::EXITED_PEAK, std::slice::from_ref(workload), peak);
        }
    }

    fn put_gpus(&self, table: &ProcessTable, out: &mut Batch) {
        let mut sums: BTreeMap<[Label; 3], (u64, Option<Bytes>)> = BTreeMap::new();
        let mut pools: BTreeMap<Label, Bytes> = BTreeMap::new();
        for process in &out.facts.gpu_processes {
            let place = table.rows.binary_search_by_key(&process.pid, |row| row.key.pid);
            let assignment = place.ok().and_then(|place| self.seen[place].assignment);
            let Some(workload) = self.workload_table.watched_of(assignment) else { continue };
            let labels = [workload.facts.name.clone(), process.gpu.clone(), process.uuid.clone()];
            let (count, memory) = sums.entry(labels).or_default();
            *count += 1;
            if let Some(more) = process.memory {
                *memory = Some(memory.unwrap_or(Bytes::ZERO).saturating_add(more));
                if out.facts.gpus_of_host_memory.contains(&process.uuid) {
                    let pool = pools.entry(workload.facts.name.clone()).or_insert(workload.now.rss);
                    *pool = pool.saturating_add(more);
                }
            }
        }
        for (name, pool) in pools {
            out.put(&metrics::POOL, &[name], pool);
        }
        for (labels, (count, memory)) in sums {
            out.put(&metrics::GPU_PROCESSES, &labels, Count(count));
            out.put_some(&metrics::GPU_MEMORY, &labels, memory);
        }
    }

    fn put_largest(&mut self, table: &ProcessTable, out: &mut Batch) {
        let candidates = self.seen.iter().zip(&table.rows).enumerate();
        let candidates = candidates.filter(|(_, (_, row))| !row.kernel).map(|(place, (seen, row))| {
            let watched = |assignment| self.workload_table.watched_of(Some(assignment)).is_some();
            let workload = seen.assignment.filter(|own| watched(*own)).map_or(0, |own| own.id);
            Candidate { workload, rss: seen.rss(row), shown: seen.shown, place }
        });
        let (top, host_top) = (self.options.top_processes, self.options.host_top);
        let chosen = top::choose(candidates.collect(), |id| if id == 0 { host_top } else { top });
        self.seen.iter_mut().for_each(|seen| seen.shown = false);
        for chosen in chosen {
            let workload = self.workload_table.workloads.get(&chosen.workload);
            let name = workload.map(|workload| workload.facts.name.clone()).unwrap_or_default();
            for place in chosen.places {
                self.seen[place].shown = true;
                let row = &table.rows[place];
                let labels = [name.clone(), row.key.pid.into(), row.comm.clone()];
                out.put(&metrics::PROCESS_RSS, &labels, self.seen[place].rss(row));
                let status = self.seen[place].member.as_ref().map(|member| member.status);
                out.put_some(&metrics::PROCESS_ANON, &labels, status.and_then(|status| status.anon));
                out.put_some(&metrics::PROCESS_SHMEM, &labels, status.and_then(|status| status.shmem));
                out.put(&metrics::PROCESS_CPU, &labels, seconds(row.cpu_ticks));
            }
            out.put(&metrics::OTHER_RSS, std::slice::from_ref(&name), chosen.others_rss);
            out.put(&metrics::OTHER, &[name], Count(chosen.others));
        }
    }
}

fn put_info(
    workload: &mut Workload,
    (user, run): (Label, Run),
    job: &SlurmJob,
    pods: &PodNames,
    out: &mut Batch,
) {
    let identity = &workload.identity;
    let part = |kinds: &[WorkloadKind]| {
        let has = kinds.contains(&identity.kind);
        if has { workload.part.clone() } else { Label::default() }
    };
    let container = part(&[WorkloadKind::Pod, WorkloadKind::Container]);
    // A container's names are those of its own log: the pod's name alone says nothing of its containers.
    let of_pod = || pods.pods.get(&identity.pod_uid);
    let names =
        pods.containers.get(&container).filter(|_| identity.kind == WorkloadKind::Pod).or_else(of_pod);
    let pod = names.cloned().unwrap_or_default();
    let (cgroup, slurm_job_id) = (identity.cgroup.clone(), identity.slurm_job.clone());
    let names = WorkloadNames { user, cgroup, slurm_job_id, pod, run };
    let labels = [
        workload.facts.name.clone(),
        identity.kind.label().into(),
        names.user.clone(),
        names.cgroup.clone(),
        names.slurm_job_id.clone(),
        part(&[WorkloadKind::Slurm]),
        job.account.clone(),
        job.partition.clone(),
        names.pod.namespace.clone(),
        names.pod.pod.clone(),
        names.pod.container.clone(),
        identity.pod_uid.clone(),
        container,
        identity.unit.clone(),
        names.run.name.clone(),
    ];
    out.put(&metrics::INFO, &labels, Flag(true));
    if *workload.names != names {
        workload.names = names.into();
    }
}

fn put_sums(workload: &Workload, pss: bool, (boot, at): (Option<u64>, Timestamp), out: &mut Batch) {
    let name = &workload.facts.name;
    let label = std::slice::from_ref(name);
    let (now, totals) = (&workload.now, &workload.totals);
    out.put(&metrics::RSS, label, now.rss);
    if !now.without_parts {
        out.put_some(&metrics::ANON, label, now.anon);
        out.put_some(&metrics::FILE, label, now.file);
        out.put_some(&metrics::SHMEM, label, now.shmem);
        out.put_some(&metrics::SWAP, label, now.swap);
        out.put_some(&metrics::HUGE, label, now.huge);
    }
    out.put_some(&metrics::MEMORY, label, now.memory);
    if pss && !now.without_pss {
        out.put_some(&metrics::PSS, label, now.pss);
    }
    out.put_some(&metrics::PROCESS_PEAK, label, now.largest_peak);
    out.put(&metrics::EXITED, label, Count(workload.exited));
    out.put(&metrics::PROCESSES_BY_ACTIVITY, &[name.clone(), "active".into()], Count(now.active));
    out.put(&metrics::PROCESSES_BY_ACTIVITY, &[name.clone(), "idle".into()], Count(now.idle));
    out.put(&metrics::THREADS, label, Count(now.threads));
    out.put(&metrics::CPU, label, seconds(totals.cpu_ticks));
    out.put(&metrics::MAJOR_FAULTS, label, Count(totals.major_faults));
    out.put_some(&metrics::READ, label, totals.read);
    out.put_some(&metrics::WRITTEN, label, totals.written);
    out.put_some(&metrics::OPEN_FILES, label, now.open_files.map(Count));
    out.put(&metrics::RESTRICTED, label, Count(now.restricted));
    if let (Some(boot), Some(start)) = (boot, workload.start()) {
        // A start that is still to come is that of another clock.
        let started = unix_seconds(boot, start);
        let is_past = started.value() <= at.unix().as_secs_f64() + CLOCK_ERROR;
        out.put_some(&metrics::START, label, is_past.then_some(started));
    }
}

/// Puts the NUMA nodes that the workload is bound to: those that its processes may use, where these are not all.
fn put_nodes(workload: &Workload, out: &mut Batch) {
    let all = out.facts.memory_nodes;
    let own = workload.now.nodes.and(all);
    if workload.now.without_nodes || own.is_empty() || own == all {
        return;
    }
    for node in own.iter() {
        out.put(&metrics::BOUND, &[workload.facts.name.clone(), node.into()], Flag(true));
    }
}

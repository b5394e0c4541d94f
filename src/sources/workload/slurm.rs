//! Properties of Slurm jobs that the path of a cgroup does not contain, from the processes of the job.
//!
//! Since Slurm 26.05, the cgroup of a job is named for the job's SLUID. The job's id is in the title of its slurmstepd,
//! `slurmstepd: [77.0]` (`_set_job_log_prefix` in src/slurmd/slurmstepd/slurmstepd.c). Only root can run a process
//! with root's real user whose executable is slurmstepd, so that no user can give its job the id of another. The
//! environment of the job's processes also has the id, but their user writes it: of the environment, only the account
//! and the partition are taken, which are display text.

use std::sync::Arc;
use std::time::Duration;

use super::identity::{Identity, WorkloadKind};
use super::seen::Seen;
use super::texts::Budget;
use super::workload_table::WorkloadTable;
use crate::host::process::readers::{Pool, ReadRequests, ReadTarget};
use crate::host::process::{self, ProcRoot};
use crate::model::facts::{ProcessRow, ProcessTable};
use crate::model::ids::{Anchor, WorkloadKey};
use crate::model::label::Label;
use crate::model::time::Timestamp;

/// The name of the process that runs a step.
const STEPD: &str = "slurmstepd";
/// Names of its executable: Slurm's own, and that of Debian's package `slurmd`, to which `slurmstepd` is a link.
const EXECUTABLES: [&str; 2] = [STEPD, "slurmstepd-wlm"];
/// Reads of one job without delay, and the interval of further ones: a new process may have neither title nor environment yet.
const READ_AT_ONCE: u32 = 8;
const READ_EVERY: Duration = Duration::from_secs(30);
/// Longest title that is read; it has about 30 bytes.
const LONGEST_TITLE: usize = 4096;
/// Longest name of an account or a partition that is shown.
const LONGEST_NAME: usize = 64;
/// The bytes of such a name that are neither letters nor digits.
const OTHERS: &[u8] = b"_.+-@,:";

/// The known properties of one job; empty where unknown.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SlurmJob {
    /// Its id, from the title of its slurmstepd.
    id: Label,
    /// Its account and partition, from the environment of a process that its slurmstepd started.
    pub(super) account: Label,
    pub(super) partition: Label,
    environment_read: bool,
    title: Attempts,
    environment: Attempts,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Attempts {
    made: u32,
    last: Option<Timestamp>,
}

impl Attempts {
    fn may_read(&self, at: Timestamp) -> bool {
        self.made < READ_AT_ONCE || self.last.is_none_or(|last| at.since(last) >= READ_EVERY)
    }

    const fn count(&mut self, at: Timestamp) {
        self.made = self.made.saturating_add(1);
        self.last = Some(at);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum SlurmAnswer {
    Id(Label),
    Names { account: Label, partition: Label },
}

/// The jobs that have processes.
pub(super) struct SlurmJobs {
    requests: ReadRequests<Option<SlurmAnswer>>,
    budget: Arc<Budget>,
    jobs: foldhash::HashMap<WorkloadKey, SlurmJob>,
    unknown: SlurmJob,
}

impl SlurmJobs {
    pub(super) fn new(pool: Arc<Pool>, budget: Arc<Budget>) -> Self {
        let (requests, jobs) = (ReadRequests::new(pool), foldhash::HashMap::default());
        Self { requests, budget, jobs, unknown: SlurmJob::default() }
    }

    /// The known properties of the job with this identity.
    pub(super) fn of(&self, identity: &Identity) -> &SlurmJob {
        self.jobs.get(&identity.key).unwrap_or(&self.unknown)
    }

    /// Reads the missing properties of each job.
    pub(super) fn turn(
        &mut self,
        seen: &[Seen],
        table: &ProcessTable,
        parents: &[Option<usize>],
        root: &Arc<ProcRoot>,
        at: Timestamp,
    ) {
        let before = std::mem::take(&mut self.jobs).into_iter();
        let mut before: foldhash::HashMap<_, _> = before.collect();
        for (place, (row, identity)) in rows(seen, table) {
            let key = &identity.key;
            if !self.jobs.contains_key(key) {
                self.jobs.insert(key.clone(), before.remove(key).unwrap_or_default());
            }
            let Some(job) = self.jobs.get_mut(key) else { continue };
            if matches!(row.state, b'Z' | b'X') || self.requests.waits_for(row.key) {
                continue;
            }
            let stepd = row.comm.as_str() == STEPD;
            let started = parents[place].is_some_and(|parent| table.rows[parent].comm.as_str() == STEPD);
            let Anchor::Group(path) = &key.anchor else { continue };
            let path = Arc::clone(path);
            let (root, pid, uid) = (Arc::clone(root), row.key.pid, row.uid);
            if stepd && identity.slurm_job.is_empty() && job.id.is_empty() && job.title.may_read(at) {
                job.title.count(at);
                self.requests.request(ReadTarget::of(row, "cmdline"), move || title(&root, pid, &path));
            } else if !stepd
                && started
                && !job.environment_read
                && self.budget.allows(uid)
                && job.environment.may_read(at)
            {
                job.environment.count(at);
                let budget = Arc::clone(&self.budget);
                let read = move || environment(&root, (pid, uid), &path, &budget);
                self.requests.request(ReadTarget::of(row, "environ"), read);
            }
        }
        let place_of = |key| seen.binary_search_by_key(&key, |seen: &Seen| seen.key).ok();
        self.requests.keep(|key| place_of(key).is_some());
        for (key, answer) in self.requests.answers() {
            let named = place_of(key).and_then(|place| seen[place].named.as_ref());
            let Some(job) = named.and_then(|named| self.jobs.get_mut(&named.identity.key)) else { continue };
            match answer.flatten() {
                Some(SlurmAnswer::Id(id)) => job.id = id,
                Some(SlurmAnswer::Names { account, partition }) => {
                    (job.account, job.partition, job.environment_read) = (account, partition, true);
                }
                None => {}
            }
        }
    }

    /// Gives each workload the id of its job, where the cgroup does not contain it.
    pub(super) fn name_jobs(&self, seen: &[Seen], workload_table: &mut WorkloadTable) {
        for seen in seen {
            let Some(named) = &seen.named else { continue };
            let known = |job: &&SlurmJob| !job.id.is_empty() && named.identity.slurm_job.is_empty();
            if let (Some(job), Some(assignment)) =
                (self.jobs.get(&named.identity.key).filter(known), seen.direct)
            {
                workload_table.set_slurm_job(assignment, &job.id);
            }
        }
    }
}

/// The processes whose cgroup is a job's, with the places of their rows.
fn rows<'s>(
    seen: &'s [Seen],
    table: &'s ProcessTable,
) -> impl Iterator<Item = (usize, (&'s ProcessRow, &'s Identity))> {
    seen.iter().zip(&table.rows).enumerate().filter_map(|(place, (seen, row))| {
        let identity = &*seen.named.as_ref()?.identity;
        (identity.kind == WorkloadKind::Slurm).then_some((place, (row, identity)))
    })
}

/// The job's id in the title of the slurmstepd with this pid, if the process is in the cgroup at `path`.
fn title(root: &ProcRoot, pid: u32, path: &str) -> Option<SlurmAnswer> {
    let mut buffer = Vec::new();
    let status = root.read(pid, "status", &mut buffer).ok()?;
    let roots = matches!(process::users(status), Some([0, 0, _])) && !process::status(status).signalled;
    let executable = root.link(pid, "exe").unwrap_or_default();
    // The suffix is the kernel's, for the time after an update of Slurm.
    let executable = executable.strip_suffix(" (deleted)").unwrap_or(&executable);
    if !roots || !executable.rsplit('/').next().is_some_and(|name| EXECUTABLES.contains(&name)) {
        return None;
    }
    let text = root.open(pid, "cmdline").and_then(|file| {
        Ok(String::from_utf8_lossy(file.read_first(&mut buffer, LONGEST_TITLE)?).into_owned())
    });
    let id = text.ok().and_then(|text| job_in(&text)).filter(|_| is_in(root, pid, path));
    id.map(SlurmAnswer::Id)
}

/// The job's id in a title such as `slurmstepd: [77.0]`, `[77.batch]`.
fn job_in(title: &str) -> Option<Label> {
    let (id, _) = title.strip_prefix("slurmstepd: [")?.split_once('.')?;
    let valid = (1..=10).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_digit());
    valid.then(|| id.into())
}

/// Account and partition in the environment of a process, if it is in the cgroup at `path`.
fn environment(root: &ProcRoot, (pid, uid): (u32, u32), path: &str, budget: &Budget) -> Option<SlurmAnswer> {
    let mut buffer = Vec::new();
    let text = budget.environment(root, (pid, uid), &mut buffer)?;
    let value = |name: &[u8]| {
        let mut entries = text.split(|byte| *byte == 0);
        let value = entries.find_map(|entry| entry.strip_prefix(name)?.strip_prefix(b"="));
        value.and_then(|value| Label::of_letters(value, LONGEST_NAME, OTHERS)).unwrap_or_default()
    };
    let (account, partition) = (value(b"SLURM_JOB_ACCOUNT"), value(b"SLURM_JOB_PARTITION"));
    // Between fork and exec, a process has the environment of slurmstepd, which has neither.
    if (account.is_empty() && partition.is_empty()) || !is_in(root, pid, path) {
        return None;
    }
    Some(SlurmAnswer::Names { account, partition })
}

/// Whether the process with this pid is in the cgroup at `path` or below it. The pid may have been reused.
fn is_in(root: &ProcRoot, pid: u32, path: &str) -> bool {
    let mut buffer = Vec::new();
    let naming = root.read(pid, "cgroup", &mut buffer).ok().and_then(|text| process::cgroups(text).naming);
    naming.is_some_and(|naming| {
        naming.strip_prefix(path).is_some_and(|below| below.is_empty() || below.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_the_number_before_the_step() {
        for (title, expected) in [
            ("slurmstepd: [77.0]\0", Some("77")),
            ("slurmstepd: [77.batch]", Some("77")),
            ("slurmstepd: [4294967295.extern]", Some("4294967295")),
            ("slurmstepd: [77]", None),
            ("slurmstepd: [.0]", None),
            ("slurmstepd: [7x.0]", None),
            ("slurmstepd: [12345678901.0]", None),
            ("python slurmstepd: [77.0]", None),
            ("slurmstepd\0infinity", None),
            ("", None),
        ] {
            assert_eq!(job_in(title).as_ref().map(Label::as_str), expected, "{title}");
        }
    }

    #[test]
    fn invalid_slurm_names_are_not_shown() {
        for (value, expected) in [
            (&b"physics"[..], Some("physics")),
            (b"gpu,cpu", Some("gpu,cpu")),
            (b"", None),
            (b"a b", None),
            (b"a\x1b[2J", None),
            (b"\xff", None),
            (&[b'a'; 65], None),
        ] {
            assert_eq!(Label::of_letters(value, LONGEST_NAME, OTHERS).as_ref().map(Label::as_str), expected);
        }
    }
}

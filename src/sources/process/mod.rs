//! All processes of the host, at low cost: one `pread` of `/proc/PID/stat` for each.
//!
//! Kernel threads use no memory and are read only occasionally. The owner and
//! the cgroup of a process are read when it is found, again while it is young,
//! when its name changes, and at every 64th sample.

mod census;
mod entry;
pub mod metrics;

use std::sync::Arc;

use census::{Census, MOST_NEW};

use crate::host::fs::KeptFile;
use crate::host::process::{self, Boot, ProcRoot};
use crate::host::subordinate::Subordinates;
use crate::model::facts::ProcessTable;
use crate::model::point::Batch;
use crate::model::source::{Failure, Source, SourceError};
use crate::model::subordinate;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Flag};
use crate::sources::Registration;

pub static REGISTRATION: Registration = Registration {
    name: "process",
    about: "All processes of the host, from /proc/PID/stat; required by the workload source.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_, context| {
        // Together with the sixth that `workload` uses, this is half of the limit.
        let (roots, descriptors) = (&context.roots, process::descriptor_limit() / 3);
        let subordinates = Subordinates::new(&roots.passwd);
        Box::new(Processes::new(ProcRoot::new(roots.proc.clone()), descriptors, subordinates))
    })
};

/// The size of `/proc/stat` grows with the number of CPUs; reading it takes up to a millisecond on the largest hosts.
const BOOT_EVERY: u64 = 8;

struct Processes {
    census: Census,
    stat: KeptFile,
    boot: Boot,
    buffer: Vec<u8>,
    ticks: u64,
    limited: bool,
    subordinates: Subordinates,
}

impl Processes {
    fn new(root: ProcRoot, descriptors: usize, subordinates: Subordinates) -> Self {
        let stat = KeptFile::new(root.path().join("stat"));
        let census = Census::new(root, descriptors, MOST_NEW);
        Self {
            census,
            stat,
            boot: Boot::default(),
            buffer: Vec::new(),
            ticks: 0,
            limited: false,
            subordinates,
        }
    }

    fn read_boot(&mut self) {
        if !self.ticks.is_multiple_of(BOOT_EVERY) && self.boot.time.is_some() {
            return;
        }
        self.boot = self.stat.read(&mut self.buffer).map(process::boot).unwrap_or_default();
    }

    fn see_limits(&mut self, limited: bool) {
        if limited && !self.limited {
            tracing::warn!(
                path = %self.census.root.path().display(),
                "Processes of other users are hidden from the daemon, probably by the mount option hidepid of /proc; only processes of its own user are measured."
            );
        } else if self.limited && !limited {
            tracing::info!("Processes of other users are visible again.");
        }
        self.limited = limited;
    }
}

impl Source for Processes {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        out.facts.subordinates = self.subordinates.ids(at);
        subordinate::publish(&out.facts.subordinates);
        let path = self.census.root.path().display().to_string();
        let failed = |error| SourceError::io(format_args!("cannot list {path}"), &error);
        self.census.take().map_err(failed)?;
        self.read_boot();
        self.ticks += 1;
        let rows = self.census.rows();
        if rows.is_empty() {
            let why = format!("no process in {path} can be read");
            return Err(SourceError::failed(Failure::Permission, why));
        }
        // Every pid namespace has a first process; if it is not visible, other processes are hidden too.
        self.see_limits(rows[0].key.pid != 1);

        let mut states = [0_u64; STATES.len()];
        let (mut kernel, mut threads, mut rss) = (0_u64, 0_u64, Bytes::ZERO);
        for row in &rows {
            if row.kernel {
                kernel += 1;
                continue;
            }
            states[place_of(row.state)] += 1;
            threads = threads.saturating_add(row.threads);
            rss = rss.saturating_add(row.rss);
        }
        for (state, count) in STATES.iter().zip(states) {
            out.put(&metrics::PROCESSES, &[(*state).into()], Count(count));
        }
        out.put(&metrics::KERNEL_THREADS, &[], Count(kernel));
        out.put(&metrics::THREADS, &[], Count(threads));
        out.put(&metrics::RSS, &[], rss);
        out.put_some(&metrics::FORKS, &[], self.boot.forks.map(Count));
        out.put(&metrics::RACES, &[], Count(self.census.races));
        out.put(&metrics::DEFERRED, &[], Count(self.census.deferred));
        out.put(&metrics::KEPT, &[], Count(self.census.reading.kept as u64));
        out.put(&metrics::LIMITED, &[], Flag(self.limited));
        out.facts.shortages.extend(self.census.root.status_shortages());
        out.facts.processes = Some(Arc::new(ProcessTable { rows, boot: self.boot.time_at(at) }));
        match self.census.trouble.take() {
            Some((pid, error)) => Err(SourceError::io(format_args!("cannot read {path}/{pid}/stat"), &error)),
            None => Ok(()),
        }
    }
}

const STATES: [&str; 6] = ["running", "sleeping", "disk_sleep", "zombie", "stopped", "other"];

/// Index of a state letter in [`STATES`]; `X`, `I`, `P` and future letters are "other".
const fn place_of(state: u8) -> usize {
    match state {
        b'R' => 0,
        b'S' => 1,
        b'D' => 2,
        b'Z' => 3,
        b'T' | b't' => 4,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::process::testing::{Process, Tree, at};

    fn source(tree: &Tree) -> Processes {
        Processes::new(ProcRoot::new(tree.proc()), 100, Subordinates::default())
    }

    fn shown(batch: &Batch) -> String {
        let mut text = String::new();
        for family in batch.families() {
            for point in &family.points {
                let labels: Vec<_> = point.labels.iter().map(|label| label.as_str()).collect();
                text.push_str(&format!("{}{labels:?} {}\n", family.desc.name, point.value));
            }
        }
        text
    }

    #[test]
    fn all_processes_are_counted_and_kernel_threads_separately() {
        let tree = Tree::new();
        tree.add(&Process::new(1, "init"));
        let mut kthread = Process::new(2, "kworker/0:1").pages(0);
        kthread.flags = 0x20_8040;
        tree.add(&kthread);
        for (pid, state) in [(3, 'R'), (4, 'D'), (5, 'Z'), (6, 't'), (7, 'X')] {
            let mut process = Process::new(pid, "a) S (b\nc");
            process.state = state;
            process.threads = if matches!(state, 'Z' | 'X') { 1 } else { 3 };
            tree.add(&process);
        }
        let mut out = Batch::new();
        source(&tree).sample(at(1), &mut out).unwrap();
        expect_test::expect![[r#"
            memwarden_processes["running"] 1
            memwarden_processes["sleeping"] 1
            memwarden_processes["disk_sleep"] 1
            memwarden_processes["zombie"] 1
            memwarden_processes["stopped"] 1
            memwarden_processes["other"] 1
            memwarden_kernel_threads[] 1
            memwarden_processes_threads[] 12
            memwarden_processes_rss_bytes[] 245760
            memwarden_forks_total[] 4321
            memwarden_process_races_total[] 0
            memwarden_process_discoveries_deferred_total[] 0
            memwarden_process_descriptors_kept[] 6
            memwarden_process_visibility_limited[] 0
        "#]]
        .assert_eq(&shown(&out));
        let table = out.facts.processes.unwrap();
        assert_eq!(table.boot, Some(1_700_000_000));
        assert_eq!(table.get(3).unwrap().comm.as_str(), "a) S (b c");
    }

    #[test]
    fn the_cgroup_of_a_process_is_that_of_a_living_thread() {
        let tree = Tree::new();
        let mut job = Process::new(9, "p").cgroup("/job").thread(9, 'S', 5).thread(12, 'S', 5);
        job.threads = 2;
        let job = job.file("task/12/cgroup", "0::/job\n");
        tree.add(&job);
        let ended = Process { state: 'Z', ..job.clone().thread(9, 'Z', 0).cgroup("/") };
        let mut known = source(&tree);
        let group = |source: &mut Processes| {
            let mut out = Batch::new();
            source.sample(Timestamp::from_secs(1), &mut out).unwrap();
            let row = out.facts.processes.as_ref().unwrap().get(9).unwrap().clone();
            (row.cgroup.unwrap().to_string(), char::from(row.state))
        };
        assert_eq!(group(&mut known), ("/job".to_owned(), 'S'));
        // The first thread ends, whose cgroup then reads as `/`.
        tree.add(&ended);
        for _ in 0..130 {
            assert_eq!(group(&mut known), ("/job".to_owned(), 'S'));
        }
        assert_eq!(
            group(&mut source(&tree)),
            ("/job".to_owned(), 'S'),
            "also where it was never seen before"
        );
    }

    #[test]
    fn hidden_processes_are_reported() {
        let tree = Tree::new();
        tree.add(&Process::new(77, "own"));
        let mut source = source(&tree);
        let mut out = Batch::new();
        source.sample(Timestamp::from_secs(1), &mut out).unwrap();
        assert!(shown(&out).contains("memwarden_process_visibility_limited[] 1\n"));
        tree.add(&Process::new(1, "init"));
        let mut out = Batch::new();
        source.sample(Timestamp::from_secs(2), &mut out).unwrap();
        assert!(shown(&out).contains("memwarden_process_visibility_limited[] 0\n"));
    }

    #[test]
    fn an_unreadable_proc_is_a_failure_that_names_the_path() {
        let tree = Tree::new();
        let mut out = Batch::new();
        let error = source(&tree).sample(Timestamp::from_secs(1), &mut out).unwrap_err().to_string();
        assert!(error.contains(&tree.proc().display().to_string()), "{error}");
        assert!(out.facts.processes.is_none());
        let mut missing = Processes::new(ProcRoot::new(tree.proc().join("none")), 1, Subordinates::default());
        let error = missing.sample(Timestamp::from_secs(1), &mut out).unwrap_err();
        assert!(matches!(error, SourceError::Failed { kind: Failure::NotFound, .. }));
    }
}

//! Finds a `/dev/shm` that is small for the data-loader processes that use it.
//!
//! # What it says
//! One finding for each workload whose `/dev/shm` has less than `LEAST` for each data-loader process: containers have 64 MiB
//! by default, and PyTorch's DataLoader passes batches through it.
//!
//! # Method
//! Data-loader processes are the children of a rank, or of a process that uses a GPU, that have its name or the one that
//! PyTorch gives them. Each keeps two batches ready: one of 32 images with 224 x 224 pixels in fp32 takes 18 MiB.
//!
//! # When it stays silent
//! About fewer than two such processes; and after `EARLY` where little of it was ever in use: batches of tokens are small.

pub mod metrics;

use std::collections::BTreeMap;

use super::Registration;
use crate::model::analyzer::{Analysis, Analyzer, View};
use crate::model::facts::{self, Facts, Tmpfs};
use crate::model::finding::{Evidence, Finding, Severity, Subject};
use crate::model::format;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, MIB, real};

/// Registration of the `shm` analyzer.
pub static REGISTRATION: Registration = Registration {
    name: "shm",
    about: "Finds a /dev/shm that is small for the data-loader processes that use it, as in containers by default.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_| Box::new(Shm::default()))
};

/// The mount point that programs use by default.
const MOUNT: &str = "/dev/shm";
/// Bytes for each data-loader process: the two batches that it keeps ready, with a margin.
const LEAST: f64 = 64.0 * MIB;
/// Seconds in which data-loader processes have filled it once.
const EARLY: f64 = 300.0;
/// Used share from which it is in use.
const USED: f64 = 0.25;
/// The name that PyTorch gives to its data-loader processes.
const WORKER: &str = "pt_data_worker";

#[derive(Debug, Default)]
struct Shm {
    small: BTreeMap<Subject, Small>,
}

#[derive(Debug)]
struct Small {
    since: Timestamp,
    /// The largest used share.
    peak: f64,
}

impl Analyzer for Shm {
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        let Some(facts) = view.facts() else { return };
        let found = loaders(facts);
        self.small.retain(|subject, _| found.contains_key(subject));
        for (subject, (own, count)) in found {
            let each = real(own.size.get()) / real(count);
            if count < 2 || each >= LEAST {
                self.small.remove(&subject);
                continue;
            }
            let small = self.small.entry(subject.clone()).or_insert(Small { since: now, peak: 0.0 });
            small.peak = small.peak.max(own.used_share());
            if now.since(small.since).as_secs_f64() > EARLY && small.peak < USED {
                continue;
            }
            let labels = [subject.workload.clone(), subject.mount.clone()];
            out.batch.put(&metrics::EACH, &labels, Bytes::of(each));
            let (size, used) = (real(own.size.get()), real(own.used.get()));
            out.findings.push(Finding {
                analyzer: REGISTRATION.name,
                state: "small",
                severity: Severity::Warning,
                since_unix_seconds: small.since.unix().as_secs_f64(),
                summary: format!(
                    "{MOUNT} of {} has {} for {count} data-loader processes: a batch that does not fit ends them by SIGBUS (bus error).",
                    subject.workload,
                    format::bytes(size)
                ),
                evidence: vec![
                    Evidence { what: "size_bytes", value: size },
                    Evidence { what: "used_bytes", value: used },
                    Evidence { what: "loader_processes", value: real(count) },
                ],
                advice: "Enlarge it (docker --shm-size, --ipc=host, an emptyDir of medium Memory at /dev/shm), or use fewer loader workers.",
                subject,
            });
        }
    }
}

/// The `/dev/shm` of each workload with data-loader processes, and their number.
fn loaders(facts: &Facts) -> BTreeMap<Subject, (&Tmpfs, u64)> {
    let mut found: BTreeMap<Subject, (&Tmpfs, u64)> = BTreeMap::new();
    let Some((tmpfs, table)) = facts.tmpfs.as_deref().zip(facts.processes.as_deref()) else { return found };
    let ranks = facts.ranks.iter().filter_map(|rank| rank.key).map(|key| key.pid);
    let ranks = ranks.chain(facts.environment_ranks.iter().map(|rank| rank.process.pid));
    let mut trainers: BTreeMap<u32, (Subject, &Tmpfs)> = BTreeMap::new();
    for pid in ranks.chain(facts.gpu_processes.iter().map(|process| process.pid)) {
        let trainer = || {
            let member = facts::member_of(&facts.workload_of, pid)?;
            let seen = tmpfs.of_process.get(&member.process)?.iter();
            let own = seen
                .filter_map(|place| tmpfs.file_systems.get(*place))
                .find(|own| own.mount.as_str() == MOUNT)?;
            Some((Subject::tmpfs(&member.workload.name, &own.mount), own))
        };
        if let Some(trainer) = trainer() {
            trainers.insert(pid, trainer);
        }
    }
    for row in &table.rows {
        let Some((subject, own)) = trainers.get(&row.parent) else { continue };
        let is_named = table.get(row.parent).is_some_and(|parent| parent.comm == row.comm);
        if (is_named || row.comm.as_str() == WORKER) && row.state != b'Z' {
            found.entry(subject.clone()).or_insert((own, 0)).1 += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests;

//! Tests of both sources on fixture trees: membership, sums, and values of ended processes.

mod matchers;
mod members;
mod memory;
mod ranks;
mod slurm;
mod users;

use std::time::Duration;

use super::*;
use crate::host::process::testing::{Process, Tree, at};
use crate::model::facts;
use crate::model::ids::Anchor;
use crate::model::node_set::NodeSet;
use crate::model::setting::Settings;
use crate::model::units::Bytes;
use crate::sources::Context;

/// Both sources on one fixture, run like the engine runs them.
struct Host {
    tree: Tree,
    process: Box<dyn Source>,
    workload: Workloads,
    gpus: Vec<GpuProcess>,
    reporting: Vec<ProcessKey>,
    pods: Arc<PodNames>,
    memory_nodes: NodeSet,
    second: u64,
}

impl Host {
    fn new(options: Options) -> Self {
        let tree = Tree::new();
        tree.add(&Process::new(1, "systemd"));
        let context = Context {
            roots: Arc::new(tree.roots()),
            worker: None,
            checkpoints: Arc::default(),
            past_runs: Arc::default(),
        };
        let mut process = (crate::sources::REGISTRY
            .iter()
            .find(|source| source.name == "process")
            .unwrap()
            .build)(&Settings::default(), &context);
        // Processes that a test adds start while the daemon runs.
        process.sample(Timestamp::from_secs(0), &mut Batch::new()).unwrap();
        let workload = Workloads::new(options, &tree.roots(), 1_000, &patient());
        Self {
            tree,
            process,
            workload,
            gpus: Vec::new(),
            reporting: Vec::new(),
            pods: Arc::default(),
            memory_nodes: NodeSet::default(),
            second: 0,
        }
    }

    fn add(&self, process: &Process) -> &Self {
        self.tree.add(process);
        self
    }

    fn gpu(&mut self, pid: u32, memory: Option<u64>) {
        let memory = memory.map(Bytes::new);
        self.gpus.push(GpuProcess { pid, gpu: "0".into(), uuid: "GPU-a".into(), memory });
    }

    fn sample(&mut self) -> Batch {
        self.second += 1;
        let mut out = Batch::new();
        let at = at(self.second);
        self.process.sample(at, &mut out).unwrap();
        out.facts.gpu_processes.clone_from(&self.gpus);
        out.facts.reporting.clone_from(&self.reporting);
        out.facts.pods = Arc::clone(&self.pods);
        out.facts.memory_nodes = self.memory_nodes;
        self.workload.sample(at, &mut out).unwrap();
        out
    }

    /// Members by workload: `name: pids`.
    fn members(&mut self) -> String {
        self.sample();
        let mut lines: Vec<_> = self
            .workload
            .workload_table
            .workloads
            .iter()
            .map(|(id, workload)| {
                let of = self
                    .workload
                    .seen
                    .iter()
                    .filter(|seen| seen.assignment.is_some_and(|assignment| assignment.id == *id));
                let pids: Vec<_> = of.map(|seen| seen.key.pid.to_string()).collect();
                format!("{}: {}", workload.facts.name, pids.join(" "))
            })
            .collect();
        lines.sort();
        lines.join("\n")
    }
}

/// Threads whose results are waited for.
fn patient() -> Arc<Pool> {
    Arc::new(Pool::new(readers::Pace::PATIENT))
}

fn options() -> Options {
    Options { top_processes: 2, host_top: 1, exited_peak_hold: Duration::from_secs(5), ..Options::default() }
}

fn matcher(name: &str) -> matcher::Matcher {
    matcher::Matcher { name: name.into(), ..matcher::Matcher::default() }
}

fn values(batch: &Batch, prefix: &str) -> String {
    let mut text = String::new();
    for family in batch.families().iter().filter(|family| family.desc.name.starts_with(prefix)) {
        for point in &family.points {
            let labels: Vec<_> = point.labels.iter().map(|label| label.as_str()).collect();
            text.push_str(&format!("{} {} {}\n", family.desc.name, labels.join(","), point.value));
        }
    }
    text
}

fn value(batch: &Batch, name: &str, labels: &[&str]) -> Option<f64> {
    let family = batch.families().iter().find(|family| family.desc.name == name)?;
    let same = |point: &&crate::model::point::Point| {
        point.labels.iter().map(|label| label.as_str()).eq(labels.iter().copied())
    };
    family.points.iter().find(same).map(|point| point.value)
}

const JOB: &str = "/slurm/uid_1000/job_7/step_0/task_0";

/// A matcher with this name that searches for `part` in command lines.
fn of_line(name: &str, part: &str) -> matcher::Matcher {
    matcher::Matcher { command_line: Some(part.to_owned()), ..matcher(name) }
}

/// `status` of a process with this set of pending signals.
fn pending(mask: &str) -> String {
    format!("Name:\tx\nVmHWM:\t40 kB\nRssAnon:\t40 kB\nSigPnd:\t{mask}\nShdPnd:\t0000000000000000\n")
}

impl Host {
    /// Adds a process of another user.
    fn add_of(&self, user: u32, process: &Process) {
        self.tree.add(process);
        std::os::unix::fs::chown(self.tree.proc().join(process.pid.to_string()), Some(user), None).unwrap();
    }

    /// Gives a cgroup to a user.
    fn delegate(&self, path: &str, user: u32) {
        std::fs::create_dir_all(self.tree.group(path)).unwrap();
        std::os::unix::fs::chown(self.tree.group(path), Some(user), None).unwrap();
    }
}

/// Some labels of `memwarden_workload_info`, with a line for each workload.
fn labels(host: &mut Host, names: &[&str]) -> String {
    let out = host.sample();
    let info = out.families().iter().find(|family| family.desc.name == "memwarden_workload_info");
    let points = info.map(|family| &family.points[..]).unwrap_or_default();
    let lines = points.iter().map(|point| {
        let label = |name: &str| {
            let place = metrics::INFO.desc.labels.iter().position(|label| *label == name).unwrap();
            point.labels[place].as_str()
        };
        names.iter().map(|name| label(name)).collect::<Vec<_>>().join(",")
    });
    lines.collect::<Vec<_>>().join("\n")
}

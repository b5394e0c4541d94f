//! The sources of the simulated node. They have the names of the real ones, in the same order.

use std::sync::Arc;
use std::time::Duration;

use super::scene::{self, Rank, Run};
use crate::model::facts::{
    ExitedProcess, Membership, ProcessRow, ProcessTable, Run as RunName, Workload, WorkloadNames,
};
use crate::model::ids::{Anchor, ProcessKey, WorkloadKey};
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Flag, Seconds, real, whole};
use crate::sources::gpu::field::Field;
use crate::sources::gpu::protocol::{Identity, Lasting, Line, Process, Sample, State, Status};
use crate::sources::gpu::state::World;
use crate::sources::training::simulated::SimulatedRanks;
use crate::sources::{Registration, gpu, memory, process, training, workload};

/// The sources, in the order in which they are sampled.
pub static REGISTRY: &[&Registration] = &[&MEMORY, &GPU, &PROCESS, &WORKLOAD, &TRAINING];

static MEMORY: Registration =
    Registration { build: |_, _| Box::new(Simulated::of(put_memory)), ..memory::REGISTRATION };
static GPU: Registration = Registration { build: |_, _| Box::new(Gpus::default()), ..gpu::REGISTRATION };
static PROCESS: Registration =
    Registration { build: |_, _| Box::new(Simulated::of(put_processes)), ..process::REGISTRATION };
static WORKLOAD: Registration =
    Registration { build: |_, _| Box::new(Simulated::of(put_workloads)), ..workload::REGISTRATION };
static TRAINING: Registration = Registration {
    build: |settings, context| {
        Box::new(Training { ranks: SimulatedRanks::new(settings, context), clock: Clock::default() })
    },
    ..training::REGISTRATION
};

/// The interval of the samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// The second of the scene: it begins with the first sample.
#[derive(Debug, Default)]
struct Clock(Option<Timestamp>);

impl Clock {
    fn second(&mut self, at: Timestamp) -> u64 {
        at.since(*self.0.get_or_insert(at)).as_secs()
    }
}

/// A source whose points depend on nothing but the time.
struct Simulated {
    clock: Clock,
    put: fn(u64, Timestamp, &mut Batch),
}

impl Simulated {
    fn of(put: fn(u64, Timestamp, &mut Batch)) -> Self {
        Self { clock: Clock::default(), put }
    }
}

impl Source for Simulated {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        (self.put)(self.clock.second(at), at, out);
        Ok(())
    }
}

fn put_memory(second: u64, _at: Timestamp, out: &mut Batch) {
    use memory::metrics as m;
    // No screen may be mistaken for one of a real node.
    let names = ["demo (simulated)", "simulated", "simulated by memwarden demo"];
    out.put(&m::HOST_INFO, &names.map(Label::from), Flag(true));
    let (total, used) = (Bytes::of(scene::HOST_TOTAL), Bytes::of(scene::host_used(second)));
    out.put(&m::TOTAL, &[], total);
    out.put(&m::AVAILABLE, &[], total.saturating_sub(used));
    out.put(&m::USED, &[], used);
    out.put_some(&m::UTILIZATION, &[], used.share_of(total));
    out.put(&m::ANON, &[], used);
    out.put(&m::SWAP_TOTAL, &[], Bytes::ZERO);
    out.put(&m::SWAP_USED, &[], Bytes::ZERO);
}

fn put_processes(second: u64, at: Timestamp, out: &mut Batch) {
    let rows: Vec<ProcessRow> = scene::ranks(second).map(|rank| row(&rank, second)).collect();
    out.put(&process::metrics::PROCESSES, &["running".into()], Count(rows.len() as u64));
    out.put(&process::metrics::RSS, &[], rows.iter().map(|row| row.rss).sum());
    let is_there = |key: ProcessKey| rows.iter().any(|row| row.key == key);
    let before = scene::ranks(second.saturating_sub(1)).map(|rank| rank.key);
    let gone = before.filter(|key| !is_there(*key));
    out.facts.exited.extend(gone.map(|process| ExitedProcess { process, tid: process.pid, status: 0 }));
    out.facts.processes = Some(Arc::new(ProcessTable { rows, boot: Some(boot(second, at)) }));
}

/// When the host was booted, in seconds since 1970.
fn boot(second: u64, at: Timestamp) -> u64 {
    at.unix().as_secs() - second - scene::UPTIME
}

fn row(rank: &Rank, second: u64) -> ProcessRow {
    let cgroup = rank.run.cgroup();
    ProcessRow {
        parent: 1,
        session: rank.key.pid,
        uid: rank.run.uid,
        state: b'R',
        rss: Bytes::of(rank.resident(second)),
        cpu_ticks: rank.cpu_seconds(second) * 100,
        threads: 24,
        cgroup: Some(cgroup.as_str().into()),
        naming_cgroup: Some(cgroup.into()),
        ..ProcessRow::new(rank.key, "python".into())
    }
}

fn put_workloads(second: u64, at: Timestamp, out: &mut Batch) {
    use workload::metrics as m;
    let ranks: Vec<Rank> = scene::ranks(second).collect();
    let mut count = 0;
    for run in &scene::RUNS {
        let own: Vec<&Rank> = ranks.iter().filter(|rank| rank.run.slurm_job == run.slurm_job).collect();
        let Some(first) = own.first() else { continue };
        count += 1;
        let facts = Arc::new(Workload {
            key: WorkloadKey { anchor: Anchor::Group(run.cgroup().into()), user: None },
            name: run.workload().into(),
            plain: run.workload().into(),
            user: run.uid,
        });
        let label = std::slice::from_ref(&facts.name);
        let resident: Bytes = own.iter().map(|rank| Bytes::of(rank.resident(second))).sum();
        out.put(&m::INFO, &info(run), Flag(true));
        out.put(&m::RSS, label, resident);
        out.put(&m::ANON, label, resident);
        out.put(&m::PROCESSES_BY_ACTIVITY, &[facts.name.clone(), "active".into()], Count(own.len() as u64));
        out.put(
            &m::CPU,
            label,
            Seconds::from_micros(own.iter().map(|rank| rank.cpu_seconds(second)).sum::<u64>() * 1_000_000),
        );
        let start = boot(second, at) + first.key.start / 100;
        out.put(&m::START, label, Seconds::from(Duration::from_secs(start)));
        for rank in own {
            let labels = [facts.name.clone(), rank.key.pid.into(), "python".into()];
            out.put(&m::PROCESS_RSS, &labels, Bytes::of(rank.resident(second)));
            let of_gpu = out.facts.gpu_processes.iter().find(|process| process.pid == rank.key.pid).cloned();
            if let Some(process) = of_gpu {
                let labels = [facts.name.clone(), process.gpu, process.uuid];
                out.put(&m::GPU_PROCESSES, &labels, Count(1));
                out.put_some(&m::GPU_MEMORY, &labels, process.memory);
            }
            let member = Membership { process: rank.key, workload: Arc::clone(&facts) };
            out.facts.workload_of.push(member.clone());
            out.facts.members.push(member);
        }
        out.facts.workloads.push(facts);
        out.facts.workload_names.push(Arc::new(names(run)));
    }
    out.put(&m::WORKLOADS, &[], Count(count));
    out.put(&m::OMITTED, &[], Count(0));
}

fn names(run: &Run) -> WorkloadNames {
    WorkloadNames {
        user: run.user.into(),
        cgroup: run.cgroup().into(),
        slurm_job_id: run.slurm_job.into(),
        run: RunName { name: run.name.into(), configured: false },
        ..WorkloadNames::default()
    }
}

/// The labels of `memwarden_workload_info`.
fn info(run: &Run) -> Vec<Label> {
    let names = names(run);
    let value = |label: &&str| match *label {
        "workload" => run.workload().into(),
        "kind" => "slurm".into(),
        "user" => names.user.clone(),
        "cgroup" => names.cgroup.clone(),
        "slurm_job_id" => names.slurm_job_id.clone(),
        "run" => names.run.name.clone(),
        _ => Label::default(),
    };
    workload::metrics::INFO.desc.labels.iter().map(value).collect()
}

/// NVML's values, as a worker process would send them.
#[derive(Default)]
struct Gpus {
    clock: Clock,
    world: World,
    /// The number of the worker; absent before the first sample.
    worker: Option<u64>,
}

fn uuid(gpu: u32) -> String {
    format!("GPU-51a1a7ed-0000-4000-8000-{gpu:012x}")
}

impl Source for Gpus {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let second = self.clock.second(at);
        let world = &mut self.world;
        let worker = *self.worker.get_or_insert_with(|| {
            world.keeper_started(at);
            let worker = world.worker_started(at);
            begin(world, worker, at);
            worker
        });
        let hung = scene::hung_gpu(second);
        let lasting =
            hung.map(|gpu| Lasting { gpu: Some(gpu), function: "nvmlDeviceGetMemoryInfo_v2".to_owned() });
        world.take(worker, at, Line::Beat { lasting: lasting.into_iter().collect() });
        for gpu in (0..scene::GPUS).filter(|gpu| Some(*gpu) != hung) {
            world.take(worker, at, Line::Sample(Box::new(sample(gpu, second))));
        }
        let result = gpu::report::put(world, at, INTERVAL, true, out);
        world.peaks_exposed();
        result
    }
}

/// The first messages of the worker: its state, and the identity of each GPU.
fn begin(world: &mut World, worker: u64, at: Timestamp) {
    let state = State {
        status: Status::Ok,
        gpus: scene::GPUS,
        driver: "simulated".to_owned(),
        nvml: "simulated".to_owned(),
        cuda: "13.0".to_owned(),
        ..State::default()
    };
    world.take(worker, at, Line::State(state));
    for gpu in 0..scene::GPUS {
        let identity = Identity {
            gpu,
            uuid: uuid(gpu),
            name: "NVIDIA H100 80GB HBM3 (simulated)".to_owned(),
            pci: format!("0000:{:02x}:00.0", 0x11 * (gpu + 1)),
            minor: Some(gpu),
            architecture: "hopper".to_owned(),
            ..Identity::default()
        };
        world.take(worker, at, Line::Device(Box::new(identity)));
    }
}

fn sample(gpu: u32, second: u64) -> Sample {
    let holder = scene::ranks(second).find(|rank| rank.gpu() == gpu);
    let held = holder.map_or(0, |rank| whole(rank.gpu_memory(second)));
    let total = whole(scene::GPU_TOTAL);
    // What the driver itself uses.
    let used = held + (4 << 20);
    let varied = |value: u64, by: f64| whole(real(value) + scene::noise(second, gpu) * by);
    let busy = |idle, working, by| if holder.is_some() { varied(working, by) } else { idle };
    let values = vec![
        (Field::MemoryTotal, total + (600 << 20)),
        (Field::MemoryReserved, 600 << 20),
        (Field::MemoryUsed, used),
        (Field::MemoryFree, total - used),
        (Field::Utilization, busy(0, 97, 2.0)),
        (Field::MemoryUtilization, busy(0, 41, 5.0)),
        (Field::Temperature, busy(33, 62, 2.0)),
        (Field::MemoryTemperature, busy(38, 74, 2.0)),
        (Field::Power, busy(71_000, 640_000, 20_000.0)),
        (Field::PowerLimit, 700_000),
        (Field::EccMode, 1),
        (Field::EccUncorrectedVolatile, 0),
    ];
    let process = holder.map(|rank| Process {
        pid: rank.key.pid,
        memory: Some(held),
        sm: Some(95),
        ..Process::default()
    });
    Sample { gpu, values, processes: Some(process.into_iter().collect()), ..Sample::default() }
}

/// What the ranks report.
struct Training {
    clock: Clock,
    ranks: SimulatedRanks,
}

impl Source for Training {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let second = self.clock.second(at);
        let running: Vec<Rank> = scene::ranks(second).collect();
        for rank in &running {
            for message in rank.messages(second, &uuid(rank.gpu())) {
                self.ranks.receive(rank.key, rank.run.uid, &message, at);
            }
        }
        self.ranks.keep(|key| running.iter().any(|rank| rank.key == key));
        self.ranks.sample(at, out)
    }
}

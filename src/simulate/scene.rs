//! What happens on the simulated node. Pure: a second in, processes, memory and messages out.
//!
//! It has 8 GPUs. A run leaks on one of its GPUs, saves a checkpoint that it was asked for, and is started again from it; the
//! evaluation of another run will not fit; the driver calls for a third run's GPU do not return. One GPU is not used.

use serde_json::{Value, json};

use crate::model::ids::ProcessKey;
use crate::model::units::{GIB, real, whole};

/// The length of the scene in seconds.
pub const SECONDS: u32 = 1_200;
/// Number of GPUs.
pub(super) const GPUS: u32 = 8;
/// Bytes of a GPU that processes can use.
pub(super) const GPU_TOTAL: f64 = 79.2 * GIB;
/// Bytes of the host.
pub(super) const HOST_TOTAL: f64 = 1_007.0 * GIB;
/// Bytes of the host that no run uses.
const HOST_SYSTEM: f64 = 38.0 * GIB;
/// Bytes of a GPU that a process has besides its allocator: the CUDA context.
const CONTEXT: f64 = 0.6 * GIB;
/// Seconds of uptime of the host at the beginning.
pub(super) const UPTIME: u64 = 400_000;

/// When the evaluation is predicted.
const PREDICTED: u64 = 120;
/// When the calls for [`HUNG_GPU`] stop to return.
const HANGS: u64 = 300;
const HUNG_GPU: u32 = 6;
/// When the leaking run is asked for a checkpoint, when that is saved, when the run ends, and when it is started again.
const ASKED: u64 = 600;
const SAVED: u64 = 630;
const ENDS: u64 = 640;
const RESTARTS: u64 = 670;
/// The first step of a run comes this long after its start, in seconds.
const LOADING: u64 = 10;
/// Pids are above those that Linux gives, so that none is that of a real process.
const FIRST_PID: u32 = 5_000_000;

/// A training run on this node.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) name: &'static str,
    pub(super) slurm_job: u32,
    pub(super) user: &'static str,
    pub(super) uid: u32,
    /// The first of its GPUs and their number: each has a rank.
    gpus: (u32, u32),
    /// Whether its ranks report over the job socket.
    reports: bool,
    /// Bytes that the allocator of each rank has allocated at the beginning.
    allocated: f64,
    /// Bytes per second by which those of rank 0 grow until the restart.
    leaks: f64,
    /// Seconds of a step.
    step: f64,
}

pub(super) const RUNS: [Run; 3] = [
    Run {
        name: "llama-8b",
        slurm_job: 4711,
        user: "alice",
        uid: 7001,
        gpus: (0, 4),
        reports: true,
        allocated: 60.0 * GIB,
        leaks: 0.018 * GIB,
        step: 2.0,
    },
    Run {
        name: "vit-h-finetune",
        slurm_job: 4720,
        user: "bob",
        uid: 7002,
        gpus: (4, 2),
        reports: true,
        allocated: 41.0 * GIB,
        leaks: 0.0,
        step: 1.0,
    },
    Run {
        name: "diffusion-xl",
        slurm_job: 4731,
        user: "carol",
        uid: 7003,
        gpus: (HUNG_GPU, 1),
        reports: false,
        allocated: 52.0 * GIB,
        leaks: 0.0,
        step: 1.0,
    },
];

/// One rank of a run at one second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rank {
    pub(super) run: &'static Run,
    pub(super) rank: u32,
    pub(super) key: ProcessKey,
    /// When its process started, in seconds from the beginning.
    started: u64,
}

/// The processes of the ranks that run, in the order of their pids.
pub(super) fn ranks(second: u64) -> impl Iterator<Item = Rank> {
    RUNS.iter().enumerate().flat_map(move |(place, run)| {
        let restarts = run.restarts();
        let is_second = restarts && second >= RESTARTS;
        let is_between = restarts && (ENDS..RESTARTS).contains(&second);
        let started = if is_second { RESTARTS } else { 0 };
        let first = FIRST_PID + 100 * u32::try_from(place).unwrap_or(0) + if is_second { 10 } else { 0 };
        let count = if is_between { 0 } else { run.gpus.1 };
        (0..count).map(move |rank| Rank {
            run,
            rank,
            key: ProcessKey { pid: first + rank, start: (UPTIME + started) * 100 },
            started,
        })
    })
}

impl Run {
    pub(super) fn workload(&self) -> String {
        format!("slurm-{}", self.slurm_job)
    }

    pub(super) fn cgroup(&self) -> String {
        format!("/slurm/uid_{}/job_{}", self.uid, self.slurm_job)
    }

    /// Whether it is asked for a checkpoint, ends and is started again.
    fn restarts(&self) -> bool {
        self.leaks > 0.0
    }

    /// The last optimizer step at this second.
    fn step_at(&self, second: u64) -> u64 {
        let step = |begun: u64, second: u64| whole(real(second.saturating_sub(begun + LOADING)) / self.step);
        match second {
            RESTARTS.. if self.restarts() => step(0, ASKED) + step(RESTARTS, second),
            ASKED.. if self.restarts() => step(0, ASKED),
            _ => step(0, second),
        }
    }
}

impl Rank {
    pub(super) const fn gpu(&self) -> u32 {
        self.run.gpus.0 + self.rank
    }

    fn seconds(&self, second: u64) -> u64 {
        second.saturating_sub(self.started)
    }

    /// Whether this is the second start of the run.
    fn is_restarted(&self) -> bool {
        self.started > 0
    }

    /// Bytes that its allocator has given to tensors, and those that it holds.
    pub(super) fn allocated(&self, second: u64) -> (f64, f64) {
        let leak = if self.rank == 0 && !self.is_restarted() {
            self.run.leaks * real(second.min(ASKED))
        } else {
            0.0
        };
        let loaded = if self.seconds(second) < LOADING { 0.25 } else { 1.0 };
        let wave = 0.15 * GIB * noise(second, self.key.pid);
        (self.run.allocated * loaded + leak + wave, (self.run.allocated * loaded + leak) * 1.04 + 0.3 * GIB)
    }

    /// Bytes of its GPU that the driver counts as its.
    pub(super) fn gpu_memory(&self, second: u64) -> f64 {
        self.allocated(second).1 + CONTEXT
    }

    /// Resident bytes.
    pub(super) fn resident(&self, second: u64) -> f64 {
        (14.0 + 0.02 * noise(second, self.key.pid)) * GIB
    }

    /// CPU seconds since its start.
    pub(super) fn cpu_seconds(&self, second: u64) -> u64 {
        self.seconds(second) * 3
    }

    /// What it sends over the job socket in this second.
    pub(super) fn messages(&self, second: u64, uuid: &str) -> Vec<String> {
        if !self.run.reports {
            return Vec::new();
        }
        let mut messages = Vec::new();
        let (run, restarts) = (self.run, self.run.restarts());
        let step = run.step_at(second);
        if second == self.started {
            messages.push(json!({
                "type": "hello", "v": 1, "client": "memwarden demo", "rank": self.rank, "local_rank": self.rank,
                "world": run.gpus.1, "run": run.name, "framework": "torch", "framework_version": "2.9.1",
                "precision": "bf16", "devices": {"0": {"uuid": uuid, "name": "NVIDIA H100 80GB HBM3"}},
            }));
        }
        let (allocated, reserved) = self.allocated(second);
        let bytes = |amount: f64| whole(amount);
        messages.push(json!({"type": "mem", "devices": {"0": {
            "allocated": bytes(allocated), "allocated_peak": bytes(allocated), "active": bytes(allocated),
            "reserved": bytes(reserved), "reserved_peak": bytes(reserved), "requested": bytes(allocated * 0.99),
            "inactive_split": bytes((reserved - allocated) * 0.3), "retries": 0, "ooms": 0,
            "free": bytes(GPU_TOTAL - reserved - CONTEXT), "total": bytes(GPU_TOTAL),
        }}}));
        let is_saving = restarts && (ASKED + 1..ENDS).contains(&second);
        if step > run.step_at(second.saturating_sub(1)) && !is_saving {
            messages.push(json!({
                "type": "step", "step": step, "seconds": run.step * (1.0 + 0.01 * noise(second, self.key.pid)),
                "tokens": step * 16_384, "loss": 1.9 + 1.5 / (1.0 + real(step) / 200.0),
            }));
        }
        if restarts {
            messages.extend(self.checkpoint(second, step));
        } else if second == PREDICTED {
            messages.push(json!({
                "type": "prediction", "phase": "evaluation", "resource": "device", "device": "0",
                "certainty": "estimated", "peak": bytes(96.0 * GIB), "peak_p90": bytes(98.0 * GIB), "held": bytes(allocated),
                "step": step, "due_step": 1_500, "sequence": 1,
                "size": {"unit": "batches", "units": 40, "fixed": 42.0 * GIB, "per_unit": 1.35 * GIB},
                "basis": "the outputs of 2 batches",
            }));
        }
        messages.iter().map(Value::to_string).collect()
    }

    /// The messages about the checkpoint, the end and the new start.
    fn checkpoint(&self, second: u64, step: u64) -> Option<Value> {
        let path = format!("/scratch/{}/step-{}.pt", self.run.name, self.run.step_at(ASKED));
        let event = |name: &str| json!({"type": "event", "name": name, "step": step});
        match second {
            ASKED => Some(event("checkpoint requested")),
            _ if second == ASKED + 1 => {
                Some(json!({"type": "checkpoint", "state": "saving", "step": step, "path": path}))
            }
            SAVED => Some(json!({"type": "checkpoint", "state": "saved", "step": step, "path": path})),
            _ if second == ENDS - 1 => {
                Some(json!({"type": "bye", "reason": "checkpoint saved", "end": "finished"}))
            }
            _ if second == RESTARTS + LOADING => Some(event("resumed from the checkpoint")),
            _ => None,
        }
    }
}

/// The GPU whose driver calls do not return in this second.
pub(super) fn hung_gpu(second: u64) -> Option<u32> {
    (second >= HANGS).then_some(HUNG_GPU)
}

/// Bytes of the host that are in use.
pub(super) fn host_used(second: u64) -> f64 {
    let noise = 0.2 * GIB * noise(second, 0);
    HOST_SYSTEM + noise + ranks(second).map(|rank| rank.resident(second)).sum::<f64>()
}

/// A value between -1 and 1 that looks like noise and is the same in each run.
pub(super) fn noise(second: u64, of: u32) -> f64 {
    // The mixing function of SplitMix64.
    let mut bits = second.wrapping_add(u64::from(of) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    real(bits >> 40) / real(1 << 23) - 1.0
}

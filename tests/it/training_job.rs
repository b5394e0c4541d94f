//! A small training job that sends every message of the protocol, step after step.

use std::io::{BufRead as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{program, wait_for};

/// The rank of the started process, and the number of ranks.
const RANK: &str = "MEMWARDEN_TEST_RANK";
const WORLD: u64 = 2;
/// Between two steps.
const STEP: Duration = Duration::from_millis(200);
/// Tokens of one step.
pub(crate) const TOKENS: u32 = 8_192;
/// Samples of one step.
pub(crate) const SAMPLES: u32 = 4;

/// The UUID of the fake GPU that a rank is on.
pub(crate) fn uuid(rank: u64) -> String {
    format!("GPU-00000000-0000-0000-0000-00000000000{rank}")
}

/// The first message of a rank: the description of a small LLaMA.
pub(crate) fn hello(rank: u64) -> Value {
    json!({
        "type": "hello", "v": 1, "client": "speaker.rs", "rank": rank, "local_rank": rank, "world": WORLD,
        "run": "speaker", "framework": "none", "framework_version": "1", "data_parallel": WORLD,
        "sequence_length": 2048, "global_batch": 8, "precision": "bf16", "recompute": "none",
        "devices": {"0": {"uuid": uuid(rank), "name": "NVIDIA H100 80GB HBM3"}},
        "model": {
            "kind": "llama", "layers": 4, "hidden": 1024, "ffn": 2816, "heads": 16, "kv_heads": 8,
            "head_dim": 64, "vocab": 32000, "gated": true, "experts": 0, "experts_per_token": 0,
            "expert_ffn": 0, "shared_expert_ffn": 0, "moe_layers": 0, "parameters": 113_000_000,
            "trainable": 113_000_000
        }
    })
}

/// Messages that a rank sends once.
fn once() -> [Value; 3] {
    [
        json!({
            "type": "params", "parameters": 113_000_000, "trainable": 1_000_000, "lora": 1_000_000,
            "parameter_bytes": 226_000_000, "gradient_bytes": 2_000_000, "optimizer_bytes": 8_000_000,
            "by_dtype": {"bf16": 226_000_000}, "by_group": {"attention": 90_000_000, "mlp": 136_000_000},
            "nan": 0, "inf": 1
        }),
        json!({"type": "event", "name": "after warm-up", "step": 0, "detail": {"note": "none"}}),
        json!({"type": "oom", "device": "0", "requested": 1 << 30, "allocated": 1_u64 << 33, "free": 1 << 20}),
    ]
}

/// Messages that a rank sends at each step, which takes about `seconds`.
pub(crate) fn step(step: u64, seconds: f64) -> Vec<Value> {
    #[expect(clippy::cast_precision_loss, reason = "a few steps")]
    let so_far = step as f64;
    let phases = [("loader", 0.1), ("forward", 0.3), ("backward", 0.4), ("optimizer", 0.1)];
    let mut messages: Vec<Value> = phases
        .iter()
        .flat_map(|(name, share)| {
            let (seconds, peak) = (so_far * seconds * share, 9_u64 << 30);
            [
                json!({"type": "phase", "name": name, "state": "begin"}),
                json!({"type": "phase", "name": name, "state": "end", "seconds": seconds, "count": step,
                       "allocated_peak": peak}),
            ]
        })
        .collect();
    messages.push(json!({
        "type": "step", "step": step, "seconds": seconds, "tokens": step * u64::from(TOKENS),
        "samples": step * u64::from(SAMPLES),
        "loss": 10.0 / so_far.max(1.0), "learning_rate": 3e-4, "grad_norm": 1.5, "skipped": step / 50,
        "nan": step / 90, "dropped": step / 70
    }));
    let device = json!({
        "allocated": 8_u64 << 30, "allocated_peak": 9_u64 << 30, "active": (8_u64 << 30) + (64 << 20),
        "reserved": 11_u64 << 30, "reserved_peak": 12_u64 << 30, "requested": 8_000_000_000_u64,
        "inactive_split": 1_u64 << 30, "releasable": 2_000_000_000, "largest_free": 512 << 20,
        "retries": step / 40, "ooms": step / 100, "free": 60_u64 << 30, "total": 80_u64 << 30
    });
    messages.push(json!({"type": "mem", "devices": {"0": device}, "pinned": 256 << 20}));
    let state = ["saving", "saved", "saved"].get(usize::try_from(step % 30).unwrap());
    messages
        .extend(state.map(|state| json!({"type": "checkpoint", "state": state, "step": step, "path": "/x"})));
    // Outside of all phases, as after an evaluation.
    messages.push(json!({"type": "phase", "name": "waiting", "state": "begin"}));
    messages
}

/// Sends all of `messages`; returns whether the socket has a listener.
pub(crate) fn say(job: &mut UnixStream, messages: &[Value]) -> bool {
    let lines: String = messages.iter().map(|message| format!("{message}\n")).collect();
    job.write_all(lines.as_bytes()).is_ok()
}

/// A rank in a separate process, so that the driver can distinguish it from the others.
pub(crate) struct Rank(Child);

impl Rank {
    /// Starts a process that waits for the path of a socket.
    pub(crate) fn start(rank: u64) -> Self {
        let child = program(std::env::current_exe().unwrap())
            .args(["--exact", "training_job::a_rank_reports", "--ignored", "--nocapture"])
            .env(RANK, rank.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Lets the rank connect and report.
    pub(crate) fn speak(&mut self, socket: &Path) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{}", socket.display()).unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have ended with the daemon already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "other tests start it as a process of its own"]
fn a_rank_reports() {
    let Some(rank) = std::env::var(RANK).ok().and_then(|rank| rank.parse().ok()) else { return };
    let mut socket = String::new();
    std::io::stdin().lock().read_line(&mut socket).unwrap();
    let socket = PathBuf::from(socket.trim_end());
    let mut job = wait_for("the job socket", Duration::from_secs(20), || UnixStream::connect(&socket).ok());
    assert!(say(&mut job, &[hello(rank)]) && say(&mut job, &once()));
    let mut number = 1;
    while say(&mut job, &step(number, STEP.as_secs_f64())) {
        number += 1;
        std::thread::sleep(STEP);
    }
}

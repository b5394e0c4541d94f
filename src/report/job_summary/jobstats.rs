//! The summary that Princeton's jobstats keeps in AdminComment: `JS1:` and base64 of gzip of JSON.
//!
//! The keys are those that `jobstats.py` reads (`parse_stats`, `__str__`): of the job `nodes`, `total_time` (elapsed seconds)
//! and `gpus`; of a node `total_memory`, `used_memory`, `total_time` (CPU seconds), `cpus`, and by GPU `gpu_total_memory`,
//! `gpu_used_memory` and `gpu_utilization` (percent). jobstats says of a node that lacks a key that the JSON is malformed.

use std::collections::BTreeMap;
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use super::NodeUse;
use crate::job_summary::JobGpu;
use crate::model::units::whole;

/// Why there is no line for jobstats.
#[derive(Debug, thiserror::Error)]
pub enum JobstatsError {
    /// JSON or gzip failed.
    #[error("cannot write the summary for jobstats")]
    Write(#[from] std::io::Error),
}

#[derive(Debug, Serialize)]
struct Job {
    nodes: BTreeMap<String, Node>,
    total_time: u64,
    gpus: usize,
}

#[derive(Debug, Serialize)]
struct Node {
    #[serde(skip_serializing_if = "Option::is_none")]
    total_memory: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_memory: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<u32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    gpu_total_memory: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    gpu_used_memory: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    gpu_utilization: BTreeMap<String, f64>,
}

/// The line for these nodes.
pub(super) fn line(nodes: &[NodeUse]) -> Result<String, JobstatsError> {
    let elapsed = nodes.iter().map(|node| node.summary.run_seconds()).fold(0.0, f64::max);
    let job = Job {
        nodes: nodes.iter().map(|node| (node.summary.node.clone(), of(node))).collect(),
        total_time: whole(elapsed.round()),
        gpus: nodes.iter().map(|node| node.summary.gpus.len()).sum(),
    };
    let json = serde_json::to_vec(&job).map_err(std::io::Error::from)?;
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&json)?;
    Ok(format!("JS1:{}", STANDARD.encode(packed.finish()?)))
}

fn of(node: &NodeUse) -> Node {
    let memory = &node.summary.memory;
    let by_gpu = |value: fn(&JobGpu) -> Option<u64>| -> BTreeMap<String, u64> {
        let gpus = node.summary.gpus.iter();
        gpus.filter_map(|gpu| Some((key(gpu), value(gpu)?))).collect()
    };
    let percent = |gpu: &JobGpu| Some((key(gpu), tenths(gpu.mean_utilization_ratio? * 100.0)));
    Node {
        total_memory: memory.limit_bytes,
        // jobstats uses anonymous memory (`cgroup_memory_rss_bytes`).
        used_memory: memory.anonymous_peak_bytes.or(memory.peak_bytes),
        total_time: node.summary.cpu_seconds.map(tenths),
        cpus: node.cpus,
        gpu_total_memory: by_gpu(|gpu| gpu.memory_total_bytes),
        // A GPU that no process used has no memory of the job.
        gpu_used_memory: by_gpu(|gpu| {
            gpu.memory_peak_bytes.or((gpu.held_seconds.is_some() && gpu.used_seconds == 0.0).then_some(0))
        }),
        gpu_utilization: node.summary.gpus.iter().filter_map(percent).collect(),
    }
}

/// The name of a GPU: its index, or its UUID where the index is not known.
fn key(gpu: &JobGpu) -> String {
    if gpu.gpu.is_empty() { gpu.uuid.clone() } else { gpu.gpu.clone() }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

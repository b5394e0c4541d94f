//! Frames to serve.

use std::sync::Arc;

use crate::model::desc::{Counter, Gauge};
use crate::model::frame::{Frame, SourceReport};
use crate::model::point::Batch;
use crate::model::source::Status;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Ratio, Seconds};

static TOTAL: Gauge<Bytes> = Gauge::new("memwarden_host_memory_total_bytes", "Memory of the host.", &[]);
static AVAILABLE: Gauge<Bytes> =
    Gauge::new("memwarden_host_memory_available_bytes", "Memory available.", &[]);
static GPU_USED: Gauge<Bytes> =
    Gauge::new("memwarden_gpu_memory_used_bytes", "Memory in use on the \"GPU\" & more.", &["gpu", "uuid"]);
static GPU_TOTAL: Gauge<Bytes> =
    Gauge::new("memwarden_gpu_memory_total_bytes", "All of it.", &["gpu", "uuid"]);
static GPU_BUSY: Gauge<Ratio> =
    Gauge::new("memwarden_gpu_utilization_ratio", "Busy share of the time.", &["gpu", "uuid"]);
static GPU_OTHER: Gauge<Count> =
    Gauge::new("memwarden_gpu_processes", "Processes by kind.", &["gpu", "uuid", "kind"]);
static PROCESSES: Gauge<Count> =
    Gauge::new("memwarden_workload_processes", "Processes of the workload.", &["workload"]);
static CPU: Counter<Seconds> =
    Counter::new("memwarden_workload_cpu_seconds_total", "CPU time of the workload.", &["workload"]);

static MANY: Gauge<Bytes> = Gauge::<Bytes>::new(
    "memwarden_process_memory_rss_bytes",
    "Resident memory.",
    &["workload", "pid", "comm"],
)
.budget(1_000_000);

fn frame(sequence: u64, batch: Batch, sources: Vec<SourceReport>) -> Arc<Frame> {
    let (families, dropped, _) = batch.seal();
    assert!(dropped.is_empty());
    Arc::new(Frame {
        sequence,
        at: Timestamp::from_secs(1_700_000_000 + sequence),
        families,
        sources,
        findings: Vec::new(),
        outlook: crate::model::outlook::Outlook::default(),
        timeline: Arc::default(),
        acknowledged: Arc::default(),
    })
}

/// A node with two GPUs, of which one says less, and two workloads.
pub(crate) fn node() -> Arc<Frame> {
    node_at(1)
}

/// The same in the frame of this number, a second after the one before.
pub(crate) fn node_at(sequence: u64) -> Arc<Frame> {
    let mut batch = Batch::new();
    batch.put(&TOTAL, &[], Bytes::new(64 << 30));
    batch.put(&AVAILABLE, &[], Bytes::new(16 << 30));
    batch.put(&GPU_USED, &["0".into(), "GPU-a".into()], Bytes::new(3 << 30));
    batch.put(&GPU_USED, &["1".into(), "GPU-b".into()], Bytes::ZERO);
    batch.put(&GPU_TOTAL, &["0".into(), "GPU-a".into()], Bytes::new(4 << 30));
    batch.put(&GPU_OTHER, &["0".into(), "GPU-a".into(), "compute".into()], Count(1));
    batch.put_some(&GPU_BUSY, &["0".into(), "GPU-a".into()], Ratio::new(0.5));
    batch.put(&PROCESSES, &["slurm/17".into()], Count(9));
    batch.put(&PROCESSES, &["train.service".into()], Count(2));
    batch.put(&CPU, &["slurm/17".into()], Seconds::from_micros(1_500_000));
    let report = |source, status, why: Option<&str>, age_seconds| SourceReport {
        source,
        status,
        why: why.map(str::to_owned),
        age_seconds,
    };
    frame(
        sequence,
        batch,
        vec![
            report("memory", Status::Ok, None, Some(0.0)),
            report("pressure", Status::Unavailable, Some("the kernel has no PSI"), None),
            report("gpu", Status::Failed, Some("timeout: <gpu 1>"), Some(12.5)),
        ],
    )
}

/// Names that want to be markup.
pub(crate) fn hostile() -> Arc<Frame> {
    let mut batch = Batch::new();
    batch.put(&PROCESSES, &["<script>alert(\"1\")</script>".into()], Count(1));
    let report = SourceReport {
        source: "memory",
        status: Status::Failed,
        why: Some("<script>alert(\"1\")</script>".to_owned()),
        age_seconds: None,
    };
    frame(1, batch, vec![report])
}

/// That many series like those of a node's processes.
pub(crate) fn large(sequence: u64, series: u32) -> Arc<Frame> {
    let mut batch = Batch::new();
    for pid in 0..series {
        let workload = format!("slurm/job_{}/step_0", pid % 17);
        let labels = [workload.into(), (pid + 1000).into(), "python3.11".into()];
        batch.put(&MANY, &labels, Bytes::new(u64::from(pid) * 40_960));
    }
    frame(sequence, batch, Vec::new())
}

//! Nodes with problems, and their verdicts.

mod model;
mod problems;
mod severity;

use std::sync::Arc;

use super::events::Recorder;
use super::*;
use crate::catalog::{fragmentation, gpu, memory, protection, training, workload as jobs};
use crate::model::acknowledged::{Acknowledgement, ProblemId};
use crate::model::finding::{Finding, Severity, Subject};
use crate::model::frame::SourceReport;
use crate::model::health::Rule;
use crate::model::label::Label;
use crate::model::outlook::{Forecast, Growth, LeakState, Outlook, Rate, Tte};
use crate::model::point::Batch;
use crate::model::source::Status;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Flag, Seconds};

const GIB: u64 = 1 << 30;

const NOW: u64 = 1_795_391_700;

/// When everything began, in seconds since 1970.
fn began() -> f64 {
    f64::from(u32::try_from(NOW - 600).unwrap())
}

/// A node that is described step by step.
#[derive(Default)]
pub(crate) struct Node {
    batch: Batch,
    findings: Vec<Finding>,
    sources: Vec<SourceReport>,
    conclusions: Vec<Conclusion>,
    at: u64,
}

fn gpu_labels(index: u32) -> [Label; 2] {
    [index.into(), format!("GPU-{index}").into()]
}

impl Node {
    /// A host with 64 GiB of which a quarter is used, and forecasts of it.
    pub(crate) fn new() -> Self {
        let mut node = Self { batch: Batch::new(), at: NOW, ..Self::default() };
        node.batch.put(&memory::HOST_INFO, &["node17".into(), "6.8".into(), "Debian".into()], Flag(true));
        node.batch.put(&memory::TOTAL, &[], Bytes::new(64 * GIB));
        node.batch.put(&memory::USED, &[], Bytes::new(16 * GIB));
        node.assessed(Subject::host(), 16, 64, Rule::None);
        node
    }

    /// A resource of which so much is used, and the rule that holds.
    fn assessed(&mut self, subject: Subject, used_gib: u64, limit_gib: u64, rule: Rule) {
        let gib = |gib: u64| f64::from(u32::try_from(gib << 10).unwrap()) * 1_048_576.0;
        let forecast = Forecast {
            used_bytes: gib(used_gib),
            limit_bytes: gib(limit_gib),
            within: [Some(0.01); 4],
            rule,
            since_unix_seconds: began(),
            ..Forecast::default()
        };
        self.conclusions.push(Conclusion { subject, forecast: Some(forecast), ..Conclusion::default() });
    }

    /// The forecast of a resource that was assessed.
    fn forecast(&mut self, subject: &Subject) -> &mut Forecast {
        let known = self.conclusions.iter_mut().find(|known| known.subject == *subject);
        known.and_then(|known| known.forecast.as_mut()).expect("it was assessed")
    }

    /// A GPU with 80 GiB of which so much is used, and its status.
    pub(crate) fn gpu(&mut self, index: u32, used_gib: u64, status: &str) {
        let labels = gpu_labels(index);
        let [gpu, uuid] = labels.clone();
        for other in ["ok", "hung", "lost"] {
            self.batch.put(&gpu::STATUS, &[gpu.clone(), uuid.clone(), other.into()], Flag(other == status));
        }
        if status == "ok" {
            self.batch.put(&gpu::MEMORY_USED, &labels, Bytes::new(used_gib * GIB));
            self.batch.put(&gpu::MEMORY_FREE, &labels, Bytes::new((80 - used_gib) * GIB));
            self.assessed(Subject::gpu(&gpu, &uuid), used_gib, 80, Rule::None);
        } else {
            self.batch.put(&gpu::HUNG_CALL, &[gpu, uuid, "nvmlDeviceGetMemoryInfo".into()], Flag(true));
            self.batch.put(&gpu::SAMPLE_AGE, &labels, Seconds::from_micros(180_000_000));
        }
    }

    /// A workload of a user with a rank on a GPU.
    pub(crate) fn job(&mut self, name: &str, user: &str, run: &str, on: u32, gib: Option<u64>) {
        let empty = Label::default();
        let mut info = vec![empty.clone(); jobs::INFO.desc.labels.len()];
        (info[0], info[1], info[2]) = (name.into(), "slurm".into(), user.into());
        info[3] = format!("/{name}").into();
        self.batch.put(&jobs::INFO, &info, Flag(true));
        self.batch.put(&jobs::RSS, &[name.into()], Bytes::new(2 * GIB));
        self.batch.put(
            &jobs::PROCESS_RSS,
            &[name.into(), "4711".into(), "python3".into()],
            Bytes::new(2 * GIB),
        );
        let [gpu, uuid] = gpu_labels(on);
        if let Some(gib) = gib {
            self.batch.put(
                &jobs::GPU_MEMORY,
                &[name.into(), gpu.clone(), uuid.clone()],
                Bytes::new(gib * GIB),
            );
        }
        let rank = ["0", "0", "1", "4711"].map(Label::from);
        let [number, local, world, pid] = rank;
        let found =
            [name.into(), number, local, world, pid, gpu, uuid, run.into(), empty.clone(), "torch".into()];
        let found: Vec<Label> = found.into_iter().chain([empty.clone(), empty.clone(), empty]).collect();
        self.batch.put(&training::INFO, &found, Flag(true));
    }

    pub(crate) fn finding(
        &mut self,
        analyzer: &'static str,
        subject: Subject,
        state: &'static str,
        severity: Severity,
    ) {
        self.findings.push(Finding {
            analyzer,
            summary: format!("{subject} is {state}."),
            subject,
            state,
            severity,
            since_unix_seconds: began(),
            evidence: Vec::new(),
            advice: "Save a checkpoint.",
        });
    }

    /// GPU 0 runs out in 4 minutes, because an allocator on it leaks.
    pub(crate) fn leak(&mut self) {
        let [gpu, uuid] = gpu_labels(0);
        let on = Subject::gpu(&gpu, &uuid);
        let known = self.forecast(&on);
        known.time_to_exhaustion = Some(Tte { p10: 185.0, p50: 250.0, p90: Some(420.0) });
        known.rule = Rule::ExhaustionWithin15Minutes;
        let process =
            Subject { workload: "slurm/4711".into(), ..Subject::gpu_process(&gpu, &uuid, &"4711".into()) };
        let growth = Growth {
            state: LeakState::Leaking,
            rate: Some(Rate { bytes_per_second: f64::from(50_u32 << 20), error_bytes_per_second: 0.0 }),
            since_unix_seconds: Some(began()),
            ..Growth::default()
        };
        let subject = process.clone();
        self.conclusions.push(Conclusion { subject, growth: Some(growth), ..Conclusion::default() });
        self.finding("exhaustion", on, "critical", Severity::Critical);
        self.finding("leak", process, "leaking", Severity::Warning);
    }

    fn source(&mut self, source: &'static str, status: Status, why: &str) {
        let why = Some(why.to_owned());
        self.sources.push(SourceReport { source, status, why, age_seconds: None });
    }

    pub(crate) fn frame(self) -> Frame {
        let (families, dropped, _) = self.batch.seal();
        assert!(dropped.is_empty(), "{dropped:?}");
        Frame {
            sequence: 1,
            at: Timestamp::from_secs(self.at),
            families,
            sources: self.sources,
            findings: self.findings,
            outlook: Outlook {
                conclusions: self.conclusions,
                has_forecasts: true,
                has_leaks: true,
                ..Outlook::default()
            },
            timeline: Arc::default(),
            acknowledged: Arc::default(),
        }
    }

    pub(crate) fn view(self) -> NodeView {
        view(&self.frame(), 0.5, None)
    }
}

fn view(frame: &Frame, age_seconds: f64, last_holders: Option<&LastHolders>) -> NodeView {
    let situation = Situation { age_seconds, stale_after: 5.0, last_holders, ..Situation::default() };
    NodeView::of(Some(frame), &situation)
}

#[track_caller]
fn says(view: &NodeView, health: Health, sentence: &str) {
    assert_eq!((view.verdict.health, view.verdict.sentence.as_str()), (health, sentence));
}

//! The input of a report: the part of a frame that reports use, from this process or from a daemon's JSON.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use crate::catalog::{buddyinfo, fragmentation, gpu, memory, training, vmstat, workload};
use crate::model::finding::Subject;
use crate::model::frame::Frame;
use crate::model::outlook::Conclusion;
use crate::model::printable::escaped;

macro_rules! names {
    ($($id:ident = $room:ident::$metric:ident;)+) => {
        $(pub(super) const $id: &str = $room::$metric.desc.name;)+
        /// Every metric that a report reads.
        pub(super) const NAMES: &[&str] = &[$($id),+];
    };
}

names! {
    HOST_INFO = memory::HOST_INFO;
    HOST_TOTAL = memory::TOTAL;
    HOST_USED = memory::USED;
    HOST_ANON = memory::ANON;
    HOST_SHARED = memory::SHMEM;
    HOST_CACHED = memory::CACHED;
    HOST_SWAP = memory::SWAP_USED;
    HOST_UNUSABLE = buddyinfo::UNUSABLE;
    HOST_ZONE_FREE = buddyinfo::FREE;
    OOM_KILLS = vmstat::OOM_KILLS;
    NVML_STATUS = gpu::NVML_STATUS;
    GPU_INFO = gpu::INFO;
    GPU_STATUS = gpu::STATUS;
    GPU_AGE = gpu::SAMPLE_AGE;
    GPU_USED = gpu::MEMORY_USED;
    GPU_FREE = gpu::MEMORY_FREE;
    GPU_UTILIZATION = gpu::UTILIZATION;
    GPU_PROCESS = gpu::PROCESS_MEMORY;
    WORKLOAD_RSS = workload::RSS;
    WORKLOAD_ANON = workload::ANON;
    WORKLOAD_FILE = workload::FILE;
    WORKLOAD_SHARED = workload::SHMEM;
    WORKLOAD_SWAP = workload::SWAP;
    WORKLOAD_GPU = workload::GPU_MEMORY;
    WORKLOAD_CPU = workload::CPU;
    WORKLOAD_PROCESSES = workload::PROCESSES_BY_ACTIVITY;
    WORKLOAD_EXITED = workload::EXITED;
    WORKLOAD_PROCESS_PEAK = workload::PROCESS_PEAK;
    WORKLOAD_EXITED_PEAK = workload::EXITED_PEAK;
    PROCESS_RSS = workload::PROCESS_RSS;
    ALLOCATOR_STATE = fragmentation::ALLOCATOR_STATE;
    ALLOCATOR_UNRELEASABLE = fragmentation::UNRELEASABLE;
    ALLOCATOR_UNRELEASABLE_RATIO = fragmentation::UNRELEASABLE_RATIO;
    TRAINING_STEP = training::STEP;
    TRAINING_STEPS = training::STEPS;
    TRAINING_TOKENS = training::TOKENS;
    TRAINING_LOSS = training::LOSS;
    TRAINING_FLOPS = training::FLOPS;
    TRAINING_MFU = training::MFU;
    PHASE_SECONDS = training::PHASE_SECONDS;
    PHASE_COUNT = training::PHASES;
    PHASE_PEAK = training::PHASE_PEAK;
    TRAINING_INFO = training::INFO;
    ALLOCATOR_ALLOCATED = training::ALLOCATED;
    ALLOCATOR_PEAK = training::ALLOCATED_PEAK;
    ALLOCATOR_RESERVED_PEAK = training::RESERVED_PEAK;
}

/// One sample: the values of a frame that reports use.
#[derive(Clone, Debug, Default)]
pub struct FrameView {
    /// The sequence number of the frame; equal numbers mean the same frame.
    pub sequence: u64,
    /// When it was sampled, in seconds on a clock that is common to the samples of one report.
    pub seconds: f64,
    /// When it was sampled, in seconds since 1970.
    pub unix_seconds: f64,
    pub(super) sources: Vec<SourceState>,
    pub(super) findings: Vec<FindingView>,
    /// The conclusions of the analyzers.
    pub(super) conclusions: Vec<Conclusion>,
    series: HashMap<String, Vec<Row>>,
}

/// The status of one source.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SourceState {
    pub(super) source: String,
    pub(super) status: String,
    #[serde(default)]
    pub(super) why: Option<String>,
}

/// A finding of an analyzer.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct FindingView {
    pub(super) analyzer: String,
    pub(super) subject: Subject,
    pub(super) state: String,
    pub(super) summary: String,
    #[serde(default)]
    pub(super) advice: String,
}

/// One series.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Row {
    labels: BTreeMap<String, String>,
    pub(super) value: f64,
}

impl Row {
    /// A label's value; empty where there is none.
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

impl FrameView {
    /// Creates a sample from a frame of this process.
    pub fn of(frame: &Frame) -> Self {
        let mut series = HashMap::new();
        for family in frame.families.iter().filter(|family| NAMES.contains(&family.desc.name)) {
            let rows = family.points.iter().map(|point| {
                let labels = family.desc.labels.iter().zip(point.labels.iter());
                let labels = labels.filter(|(_, value)| !value.is_empty());
                Row {
                    labels: labels.map(|(name, value)| ((*name).to_owned(), value.to_string())).collect(),
                    value: point.value,
                }
            });
            series.insert(family.desc.name.to_owned(), rows.collect());
        }
        let sources = frame.sources.iter().map(|report| SourceState {
            source: report.source.to_owned(),
            status: report.status.label().to_owned(),
            why: report.why.clone(),
        });
        let findings = frame.findings.iter().map(|finding| FindingView {
            analyzer: finding.analyzer.to_owned(),
            subject: finding.subject.clone(),
            state: finding.state.to_owned(),
            summary: finding.summary.clone(),
            advice: finding.advice.to_owned(),
        });
        let frame = Self {
            sequence: frame.sequence,
            seconds: frame.at.monotonic().as_secs_f64(),
            unix_seconds: frame.at.unix().as_secs_f64(),
            sources: sources.collect(),
            findings: findings.collect(),
            conclusions: frame.outlook.conclusions.clone(),
            series,
        };
        frame.printable()
    }

    /// Escapes all names for display in tables and sentences.
    fn printable(mut self) -> Self {
        fn show(text: &mut String) {
            if let Cow::Owned(shown) = escaped(text) {
                *text = shown;
            }
        }
        for source in &mut self.sources {
            show(&mut source.source);
            show(&mut source.status);
            source.why.as_mut().map(show);
        }
        for stated in &mut self.findings {
            stated.subject = std::mem::take(&mut stated.subject).printable();
            [&mut stated.state, &mut stated.summary, &mut stated.advice].into_iter().for_each(show);
        }
        for known in &mut self.conclusions {
            known.subject = std::mem::take(&mut known.subject).printable();
            let peaks = known.forecast.as_mut().and_then(|forecast| forecast.peaks.as_mut());
            if let Some((phase, _)) = peaks.and_then(|peaks| peaks.phase.as_mut()) {
                show(phase);
            }
        }
        self.series.values_mut().flatten().flat_map(|row| row.labels.values_mut()).for_each(show);
        self
    }

    /// Parses a frame that a daemon serves as JSON.
    ///
    /// # Errors
    /// What is missing or invalid in the JSON, with line and column.
    pub fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Served {
            sequence: u64,
            unix_seconds: f64,
            sources: Vec<SourceState>,
            findings: Vec<FindingView>,
            #[serde(default)]
            conclusions: Vec<Conclusion>,
            metrics: Vec<Metric>,
        }
        #[derive(Deserialize)]
        struct Metric {
            name: String,
            series: Vec<Row>,
        }
        let served: Served = serde_json::from_slice(json)?;
        let wanted = served.metrics.into_iter().filter(|metric| NAMES.contains(&metric.name.as_str()));
        Ok(Self {
            sequence: served.sequence,
            seconds: served.unix_seconds,
            unix_seconds: served.unix_seconds,
            sources: served.sources,
            findings: served.findings,
            conclusions: served.conclusions,
            series: wanted.map(|metric| (metric.name, metric.series)).collect(),
        }
        .printable())
    }

    /// Every series of a metric.
    pub(super) fn rows(&self, name: &str) -> &[Row] {
        self.series.get(name).map_or(&[], Vec::as_slice)
    }

    /// The value of the first series of a metric that has these labels; absent where there is none.
    pub(super) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |row: &&Row| labels.iter().all(|(label, value)| row.label(label) == *value);
        self.rows(name).iter().find(has).map(|row| row.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::http::tests::frames;
    use crate::serve::json;

    #[test]
    fn every_name_is_in_the_catalog() {
        let known: Vec<&str> = crate::catalog::all().map(|desc| desc.name).collect();
        for name in NAMES
            .iter()
            .filter(|name| cfg!(feature = "gpu") || !(name.contains("_gpu_") || name.contains("_nvml_")))
        {
            assert!(known.contains(name), "{name}");
        }
    }

    #[test]
    fn a_frame_and_its_json_look_the_same() {
        let frame = frames::node();
        let (own, served) = (FrameView::of(&frame), FrameView::read(&json::encode(&frame)).unwrap());
        assert_eq!(own.value(HOST_TOTAL, &[]), Some(68_719_476_736.0));
        assert_eq!(own.series.len(), served.series.len());
        for (name, rows) in &own.series {
            assert_eq!(format!("{rows:?}"), format!("{:?}", served.rows(name)));
        }
        assert_eq!(format!("{:?}", own.sources), format!("{:?}", served.sources));
        assert!(FrameView::read(b"{}").is_err());
    }

    #[test]
    fn no_name_moves_a_cursor() {
        let json = br#"{"sequence":1,"unix_seconds":1.0,
            "sources":[{"source":"x","status":"failed","why":"\u001b[2J"}],
            "findings":[],"conclusions":[{"subject":{"resource":"workload","workload":"a\u202eb\nc"}}],
            "metrics":[{"name":"memwarden_workload_rss_bytes",
                "series":[{"labels":{"resource":"workload","workload":"a\u202eb\nc"},"value":1.0}]}]}"#;
        let frame = FrameView::read(json).unwrap();
        assert_eq!(frame.sources[0].why.as_deref(), Some("\\x1b[2J"));
        let row = &frame.rows(WORKLOAD_RSS)[0];
        assert_eq!(row.label("workload"), "a\\u{202e}b\\nc");
        assert_eq!(
            frame.conclusions[0].subject.workload.as_str(),
            row.label("workload"),
            "both are shown alike"
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(json in ".{0,200}") {
            let _ = FrameView::read(json.as_bytes());
        }
    }
}

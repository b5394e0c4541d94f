//! The daemon's side of a test: metrics, frames, a runtime and a pusher.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{NumberDataPoint, metric::Data, number_data_point};

use super::super::body::Encoder;
use super::super::pushing::Sender;
use super::super::resolve::resolve;
use super::super::{LogTap, OtlpError, Pusher, Setup, resource, start, stream};
use crate::config::{Otlp, OtlpProtocol};
use crate::events::{self, Events};
use crate::host::clock;
use crate::model::desc::Instrument;
use crate::model::frame::Frame;
use crate::model::point::Batch;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Ratio};

crate::metrics! {
    /// Memory in use.
    pub USED: Gauge<Bytes> = "memwarden_test_memory_used_bytes" {uuid, gpu}
        .semconv("hw.gpu.memory.usage", Instrument::UpDownCounter, &[("hw.type", "gpu")], &[("uuid", "hw.id")]);
    /// The share in use; the same name as USED except for its unit.
    pub SHARE: Gauge<Ratio> = "memwarden_test_memory_used_ratio" {};
    /// Faults.
    pub FAULTS: Counter<Count> = "memwarden_test_faults_total" {pid}.counting("{fault}").budget(5_000)
        .semconv("process.paging.faults", Instrument::Counter, &[("type", "major")], &[("pid", "process.pid")]);
    /// Small faults.
    pub MINOR: Counter<Count> = "memwarden_test_minor_faults_total" {pid}.counting("{fault}")
        .semconv("process.paging.faults", Instrument::Counter, &[("type", "minor")], &[("pid", "process.pid")]);
}

pub(super) const BOTH: [OtlpProtocol; 2] = [OtlpProtocol::Grpc, OtlpProtocol::HttpProtobuf];

/// A configuration that pushes to `endpoint` 20 times per second.
pub(super) fn pushing(protocol: OtlpProtocol, endpoint: String) -> Otlp {
    Otlp {
        enabled: true,
        endpoint: Some(endpoint),
        protocol: Some(protocol),
        interval: Some(Duration::from_millis(50)),
        ..Otlp::default()
    }
}

pub(super) struct World {
    pub(super) runtime: tokio::runtime::Runtime,
    pub(super) events: Arc<Events>,
    pub(super) logs: LogTap,
    frames: tokio::sync::watch::Sender<Option<Arc<Frame>>>,
}

impl World {
    pub(super) fn new() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (frames, _) = tokio::sync::watch::channel(None);
        Self { runtime, events: Arc::new(Events::new()), logs: LogTap::default(), frames }
    }

    pub(super) fn start(&self, config: &Otlp) -> Result<Option<Pusher>, OtlpError> {
        self.start_with(config, &|_| None)
    }

    pub(super) fn start_with(
        &self,
        config: &Otlp,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Pusher>, OtlpError> {
        start(Setup {
            config,
            env,
            catalog: METRICS.iter().copied().chain(events::METRICS.iter().copied()).collect(),
            frames: self.frames.subscribe(),
            events: Arc::clone(&self.events),
            runtime: self.runtime.handle().clone(),
            logs: self.logs.clone(),
            instance: "127.0.0.1:10636".to_owned(),
        })
    }

    /// Publishes a frame.
    pub(super) fn show(&self, fill: impl FnOnce(&mut Batch)) {
        let mut batch = Batch::new();
        fill(&mut batch);
        self.frames.send_replace(Some(Arc::new(frame_of(batch))));
    }

    /// A client that pushes once with `config`.
    pub(super) fn sender(&self, config: &Otlp) -> Sender {
        let resolved = resolve(config, &|_| None).unwrap().0.unwrap();
        let resource = resource::resource(&resolved.resource, "127.0.0.1:10636".to_owned());
        let streams = stream::streams(METRICS, resolved.names);
        let encoder = Encoder::new(streams, &resource, resolved.delta, clock::now());
        Sender::new(Arc::new(resolved), self.frames.subscribe(), encoder).unwrap()
    }

    fn count(&self, name: &str) -> f64 {
        let mut batch = Batch::new();
        self.events.put(std::iter::empty(), &mut batch);
        frame_of(batch).value(name, &[]).unwrap_or(0.0)
    }

    pub(super) fn taken(&self) -> f64 {
        self.count(events::OTLP_EXPORTS.desc.name)
    }

    /// Log records with this outcome.
    pub(super) fn records(&self, outcome: &str) -> f64 {
        let mut batch = Batch::new();
        self.events.put(std::iter::empty(), &mut batch);
        frame_of(batch).value(events::OTLP_LOGS.desc.name, &[("outcome", outcome)]).unwrap_or(0.0)
    }

    pub(super) fn failed(&self) -> f64 {
        self.count(events::OTLP_FAILURES.desc.name)
    }
}

/// The frame of a batch.
pub(super) fn frame_of(batch: Batch) -> Frame {
    Frame {
        sequence: 1,
        at: Timestamp::from_secs(1),
        families: batch.seal().0,
        sources: Vec::new(),
        findings: Vec::new(),
        outlook: crate::model::outlook::Outlook::default(),
        timeline: Arc::default(),
        acknowledged: Arc::default(),
    }
}

/// Waits until `done`, for at most 20 s.
pub(super) fn eventually(what: &str, done: impl Fn() -> bool) {
    for _ in 0..4_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("not within 20 s: {what}");
}

/// One line per point, sorted: `name{attributes} value kind unit`.
pub(super) fn lines(request: &ExportMetricsServiceRequest) -> Vec<String> {
    let scopes = request.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics);
    let mut lines = Vec::new();
    for metric in scopes.flat_map(|scope| &scope.metrics) {
        let (kind, points): (_, &[NumberDataPoint]) = match metric.data.as_ref().unwrap() {
            Data::Gauge(gauge) => ("gauge".to_owned(), &gauge.data_points),
            Data::Sum(sum) => (
                format!("sum({}, {})", sum.is_monotonic, sum.aggregation_temporality().as_str_name()),
                &sum.data_points,
            ),
            other => panic!("{other:?}"),
        };
        for point in points {
            let attributes: Vec<_> = point.attributes.iter().map(pair).collect();
            let value = match point.value.unwrap() {
                number_data_point::Value::AsDouble(value) => value,
                number_data_point::Value::AsInt(value) => panic!("{value} came as integer"),
            };
            lines.push(format!("{}{{{}}} {value} {kind} {}", metric.name, attributes.join(","), metric.unit));
        }
    }
    lines.sort();
    lines
}

pub(super) fn pair(attribute: &KeyValue) -> String {
    let value = attribute.value.as_ref().and_then(|value| value.value.as_ref()).unwrap();
    match value {
        any_value::Value::StringValue(text) => format!("{}={text:?}", attribute.key),
        any_value::Value::IntValue(number) => format!("{}={number}", attribute.key),
        other => panic!("{other:?}"),
    }
}

/// The resource's attributes, sorted.
pub(super) fn resource(request: &ExportMetricsServiceRequest) -> Vec<String> {
    let resource = request.resource_metrics[0].resource.as_ref().unwrap();
    let mut pairs: Vec<_> = resource.attributes.iter().map(pair).collect();
    pairs.sort();
    pairs
}

//! Requests for tests, as an SDK sends them.

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Figure;
use opentelemetry_proto::tonic::metrics::v1::{
    Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

pub(super) const CUMULATIVE: i32 = 2;

pub(super) fn text(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(Value::StringValue(value.to_owned())) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

pub(super) fn int(key: &str, value: i64) -> KeyValue {
    let value = Some(AnyValue { value: Some(Value::IntValue(value)) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

pub(super) fn number(value: f64, attributes: &[KeyValue]) -> NumberDataPoint {
    NumberDataPoint {
        value: Some(Figure::AsDouble(value)),
        attributes: attributes.to_vec(),
        ..NumberDataPoint::default()
    }
}

pub(super) fn metric(name: &str, unit: &str, data: Data) -> Metric {
    Metric { name: name.to_owned(), unit: unit.to_owned(), data: Some(data), ..Metric::default() }
}

pub(super) fn gauge(name: &str, value: f64, attributes: &[KeyValue]) -> Metric {
    metric(name, "", Data::Gauge(Gauge { data_points: vec![number(value, attributes)] }))
}

/// A total that began at `start` and is reported at `at`.
pub(super) fn sum(name: &str, value: f64, temporality: i32, start: u64, at: u64) -> Metric {
    let point = NumberDataPoint { start_time_unix_nano: start, time_unix_nano: at, ..number(value, &[]) };
    let data = Sum { data_points: vec![point], aggregation_temporality: temporality, is_monotonic: true };
    metric(name, "", Data::Sum(data))
}

pub(super) fn histogram(
    name: &str,
    unit: &str,
    temporality: i32,
    (bounds, counts): (&[f64], &[u64]),
    sum: f64,
) -> Metric {
    let point = HistogramDataPoint {
        count: counts.iter().fold(0, |sum, count| sum.saturating_add(*count)),
        sum: Some(sum),
        bucket_counts: counts.to_vec(),
        explicit_bounds: bounds.to_vec(),
        ..HistogramDataPoint::default()
    };
    metric(
        name,
        unit,
        Data::Histogram(Histogram { data_points: vec![point], aggregation_temporality: temporality }),
    )
}

/// A request of one resource.
pub(super) fn request(attributes: &[KeyValue], metrics: Vec<Metric>) -> ExportMetricsServiceRequest {
    let resource = Resource { attributes: attributes.to_vec(), ..Resource::default() };
    let scope_metrics = vec![ScopeMetrics { metrics, ..ScopeMetrics::default() }];
    let metrics = ResourceMetrics { resource: Some(resource), scope_metrics, ..ResourceMetrics::default() };
    ExportMetricsServiceRequest { resource_metrics: vec![metrics] }
}

/// A request with this many points, with five attributes each.
pub(super) fn push(name: &str, count: usize) -> ExportMetricsServiceRequest {
    let attributes = [int("rank", 0), text("a", "b"), text("c", "d"), text("e", "f"), int("g", 7)];
    request(&[int("dl.rank", 3)], (0..count).map(|_| gauge(name, 1.5, &attributes)).collect())
}

/// The request that Megatron-LM sends after some steps, with the SDK's default bounds in milliseconds.
pub(super) fn megatron(rank: i64) -> ExportMetricsServiceRequest {
    let bounds = [0.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 250.0, 500.0, 750.0, 1e3, 2.5e3, 5e3, 7.5e3, 1e4];
    let mut counts = [0; 16];
    counts[9] = 4;
    let resource = [
        text("service.name", "megatron"),
        int("dl.rank", rank),
        int("dl.world_size", 8),
        int("dl.local_rank", rank % 4),
        int("dl.data_parallel.size", 4),
        int("process.pid", 1),
        text("nemo.run.id", "17"),
    ];
    let metrics = vec![
        histogram("megatron.training.step_duration_ms", "ms", CUMULATIVE, (&bounds, &counts), 2_600.0),
        gauge("megatron.training.loss", 2.25, &[]),
        gauge("megatron.training.throughput_tflops", 412.5, &[]),
        gauge("megatron.training.tokens_per_sec", 80_000.0, &[]),
        gauge("megatron.training.grad_norm", f64::NAN, &[]),
        gauge("megatron.training.learning_rate", 3e-4, &[]),
        gauge("megatron.training.memory_allocated_gb", 61.5, &[]),
        sum("megatron.training.skipped_iters", 2.0, CUMULATIVE, 1, 2),
        gauge("gen_ai.server.queue", 1.0, &[]),
    ];
    request(&resource, metrics)
}

//! Encodes one export as protobuf, point by point from the frame.
//!
//! A tree of the whole message would be several times the size of the frame, and the allocator would keep that
//! memory. So only one point at a time is a message; the enclosing messages are written as tags and lengths.

use std::sync::Arc;

use bytes::buf::Chain;
use bytes::{Buf as _, Bytes};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, Metric, NumberDataPoint};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

use super::containers::Containers;
use super::stream::{Earlier, Stream};
use crate::model::desc::Instrument;
use crate::model::frame::Frame;
use crate::model::time::Timestamp;

/// Tags of the OTLP messages that are written here; the generated types write the others.
mod tag {
    /// `ExportMetricsServiceRequest.resource_metrics`.
    pub(super) const RESOURCE_METRICS: u8 = 1;
    /// `ResourceMetrics.resource`.
    pub(super) const RESOURCE: u8 = 1;
    /// `ResourceMetrics.scope_metrics`.
    pub(super) const SCOPE_METRICS: u8 = 2;
    /// `ScopeMetrics.scope`.
    pub(super) const SCOPE: u8 = 1;
    /// `ScopeMetrics.metrics`.
    pub(super) const METRICS: u8 = 2;
    /// `Metric.gauge`.
    pub(super) const GAUGE: u8 = 5;
    /// `Metric.sum`.
    pub(super) const SUM: u8 = 7;
    /// `Gauge.data_points` and `Sum.data_points`.
    pub(super) const POINTS: u8 = 1;
    /// `Sum.aggregation_temporality`.
    pub(super) const TEMPORALITY: u8 = 2;
    /// `Sum.is_monotonic`.
    pub(super) const MONOTONIC: u8 = 3;
}

/// An encoded export: the part before the metrics, and the metrics.
pub(super) type Body = Chain<Bytes, Bytes>;

/// The last accepted export, which deltas are relative to.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) frame: Arc<Frame>,
    pub(super) at: Timestamp,
}

/// The part of an export that never changes.
pub(super) struct Encoder {
    streams: Vec<Stream>,
    /// The resource and the scope, encoded, each with its tag.
    resource: Vec<u8>,
    scope: Vec<u8>,
    /// Whether counters are sent as deltas since the last export.
    pub(super) delta: bool,
    /// Start time of cumulative sums.
    begun: u64,
}

impl Encoder {
    pub(super) fn new(streams: Vec<Stream>, resource: &Resource, delta: bool, begun: Timestamp) -> Self {
        let scope = InstrumentationScope {
            name: "memwarden".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let tagged = |tag, message: &[u8]| {
            let mut out = Vec::new();
            nested(&mut out, tag, message);
            out
        };
        Self {
            streams,
            resource: tagged(tag::RESOURCE, &resource.encode_to_vec()),
            scope: tagged(tag::SCOPE, &scope.encode_to_vec()),
            delta,
            begun: nanoseconds(begun),
        }
    }

    /// Encodes the export of `frame` at `now`; absent where it has no points.
    ///
    /// Yields to other tasks after each metric: a large frame takes several milliseconds.
    pub(super) async fn encode(&self, frame: &Frame, base: Option<&Base>, now: Timestamp) -> Option<Body> {
        let mut metrics = Vec::new();
        let mut points = Vec::new();
        let containers = Containers::of(frame);
        for stream in &self.streams {
            points.clear();
            self.points(stream, (frame, &containers), base, now, &mut points);
            if !points.is_empty() {
                self.metric(stream, &mut points, &mut metrics);
                tokio::task::yield_now().await;
            }
        }
        (!metrics.is_empty()).then(|| self.around(metrics))
    }

    /// The points of one metric, each with its tag.
    fn points(
        &self,
        stream: &Stream,
        (frame, containers): (&Frame, &Containers<'_>),
        base: Option<&Base>,
        now: Timestamp,
        out: &mut Vec<u8>,
    ) {
        let delta = self.delta && stream.kind == Instrument::Counter;
        let base = base.filter(|_| delta);
        let mut message = NumberDataPoint {
            start_time_unix_nano: match (stream.kind, base) {
                (Instrument::Gauge, _) => 0,
                (_, Some(base)) => nanoseconds(base.at),
                (_, None) => self.begun,
            },
            time_unix_nano: nanoseconds(now),
            ..NumberDataPoint::default()
        };
        for series in &stream.series {
            let earlier = base.map(|base| Earlier::new(series, &base.frame));
            for point in series.points(frame) {
                let before = earlier.as_ref().map_or(0.0, |earlier| earlier.value(point));
                // A counter that decreased was reset.
                let value = if before <= point.value { point.value - before } else { point.value };
                if !series.attributes(point, containers, &mut message.attributes) {
                    continue;
                }
                message.value = Some(Value::AsDouble(value));
                out.push(key(tag::POINTS, LENGTH));
                varint(out, message.encoded_len());
                // A vector has no length limit.
                let _ = message.encode(out);
            }
        }
    }

    /// One metric with its tag, from its points.
    fn metric(&self, stream: &Stream, points: &mut Vec<u8>, out: &mut Vec<u8>) {
        let about = Metric {
            name: stream.name.clone(),
            description: stream.help.to_owned(),
            unit: stream.unit.to_owned(),
            ..Metric::default()
        };
        let data = match stream.kind {
            Instrument::Gauge => tag::GAUGE,
            Instrument::Counter | Instrument::UpDownCounter => {
                let monotonic = stream.kind == Instrument::Counter;
                let temporality = if monotonic && self.delta {
                    AggregationTemporality::Delta
                } else {
                    AggregationTemporality::Cumulative
                };
                points.extend([key(tag::TEMPORALITY, NUMBER), temporality as u8]);
                points.extend([key(tag::MONOTONIC, NUMBER), u8::from(monotonic)]);
                tag::SUM
            }
        };
        let mut metric = about.encode_to_vec();
        metric.push(key(data, LENGTH));
        varint(&mut metric, points.len());
        out.push(key(tag::METRICS, LENGTH));
        varint(out, metric.len() + points.len());
        out.extend_from_slice(&metric);
        out.extend_from_slice(points);
    }

    /// Encodes the request that encloses the metrics.
    fn around(&self, metrics: Vec<u8>) -> Body {
        let mut scope = Vec::new();
        scope.push(key(tag::SCOPE_METRICS, LENGTH));
        varint(&mut scope, self.scope.len() + metrics.len());
        let mut head = Vec::new();
        head.push(key(tag::RESOURCE_METRICS, LENGTH));
        varint(&mut head, self.resource.len() + scope.len() + self.scope.len() + metrics.len());
        head.extend_from_slice(&self.resource);
        head.extend_from_slice(&scope);
        head.extend_from_slice(&self.scope);
        Bytes::from(head).chain(Bytes::from(metrics))
    }
}

/// The wire type of a number.
const NUMBER: u8 = 0;
/// The wire type of bytes and messages.
const LENGTH: u8 = 2;

/// The byte before a field whose tag is below 16.
const fn key(tag: u8, wire_type: u8) -> u8 {
    tag << 3 | wire_type
}

fn nested(out: &mut Vec<u8>, tag: u8, message: &[u8]) {
    out.push(key(tag, LENGTH));
    varint(out, message.len());
    out.extend_from_slice(message);
}

fn varint(out: &mut Vec<u8>, mut number: usize) {
    while let Some(rest @ 1..) = number.checked_shr(7) {
        out.push(number.to_le_bytes()[0] | 0x80);
        number = rest;
    }
    out.push(number.to_le_bytes()[0]);
}

fn nanoseconds(at: Timestamp) -> u64 {
    u64::try_from(at.unix().as_nanos()).unwrap_or(u64::MAX)
}

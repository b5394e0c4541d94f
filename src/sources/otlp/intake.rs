//! Converts a decoded request to the values of ranks.

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Figure;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, DataPointFlags, Metric, NumberDataPoint,
};

use super::counts::Outcome;
use super::figures::{Counted, Figures, Temporality, Times};
use super::names::{self, Extra, KnownName};
use crate::model::desc::Kind;
use crate::model::label::Label;

/// Largest rank accepted; ranks count from 0.
const MOST_RANK: u64 = 1_000_000;
/// Largest device ordinal accepted.
const MOST_DEVICE: u64 = 255;
/// Attributes with the rank: Megatron-LM's (nemo-lens before and after its renaming), then those that others use.
const RANK: &[&str] = &["nv.dl.rank", "dl.rank", "rank", "global_rank"];
const WORLD: &[&str] = &["nv.dl.world_size", "dl.world_size", "world_size"];
const LOCAL_RANK: &[&str] = &["nv.dl.local_rank", "dl.local_rank", "local_rank"];
const DATA_PARALLEL: &[&str] = &["nv.dl.data_parallel.size", "dl.data_parallel.size"];
/// Other attributes that a point may have: our own labels. Attributes that name a workload come from a
/// memwarden and not from a job: a daemon that pushes to its own receiver must not read its own metrics back.
const LABELS: &[&str] = &["device", "phase", "convention"];
/// Conventions of counting operations.
const CONVENTIONS: &[&str] = &["full", "causal", "6n", "hardware"];
/// Attribute with the instance of a service; nemo-lens names it `{run}-rank{rank}`.
const INSTANCE: &str = "service.instance.id";

/// Outcomes of the points of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) taken: u64,
    pub(super) unknown: u64,
    pub(super) refused: u64,
}

impl Tally {
    fn add(&mut self, outcome: Outcome, count: usize) {
        let count = count as u64;
        match outcome {
            Outcome::Taken => self.taken += count,
            Outcome::Unknown => self.unknown += count,
            Outcome::Refused => self.refused += count,
        }
    }
}

/// The identity that a push reports, in addition to what the kernel reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RankAttributes {
    /// The global rank; absent if it is not reported, in which case the job is one process.
    pub(super) rank: Option<u64>,
    /// The rank on this host, which is the ordinal of its device.
    pub(super) local_rank: Option<u64>,
    world: Option<u64>,
    data_parallel: Option<u64>,
}

impl RankAttributes {
    fn of(attributes: &[KeyValue]) -> Self {
        let number = |names: &[&str]| names.iter().find_map(|name| number(find(attributes, name)?));
        let instance = || {
            let Value::StringValue(text) = find(attributes, INSTANCE)? else { return None };
            text.rsplit_once("-rank")?.1.parse().ok()
        };
        Self {
            rank: number(RANK).or_else(instance),
            local_rank: number(LOCAL_RANK),
            world: number(WORLD),
            data_parallel: number(DATA_PARALLEL),
        }
    }

    fn is_possible(&self) -> bool {
        let rank = self.rank.unwrap_or(0);
        rank <= MOST_RANK && self.world.is_none_or(|world| rank < world)
    }
}

/// Storage of the values of ranks.
pub(super) trait FiguresByRank {
    /// The values of a rank; nothing if the limit is reached.
    fn figures(&mut self, reported: &RankAttributes) -> Option<&mut Figures>;
}

pub(super) fn take(request: &ExportMetricsServiceRequest, ranks: &mut impl FiguresByRank) -> Tally {
    let mut tally = Tally::default();
    for metrics in &request.resource_metrics {
        let attributes = metrics.resource.as_ref().map_or(&[][..], |resource| &resource.attributes);
        let reported = RankAttributes::of(attributes);
        for metric in metrics.scope_metrics.iter().flat_map(|scope| &scope.metrics) {
            match names::known(&metric.name, &metric.unit) {
                Some(known) => take_metric(metric, &known, &reported, ranks, &mut tally),
                None => tally.add(Outcome::Unknown, points(metric)),
            }
        }
    }
    tally
}

fn take_metric(
    metric: &Metric,
    known: &KnownName,
    reported: &RankAttributes,
    ranks: &mut impl FiguresByRank,
    tally: &mut Tally,
) {
    let mut at = |attributes: &[KeyValue],
                  flags: u32,
                  take: &mut dyn FnMut(&mut Figures, &RankAttributes, Label) -> Outcome| {
        let outcome = match place(attributes, known, reported) {
            // The job marks the point as having no value.
            _ if flags & DataPointFlags::NoRecordedValueMask as u32 != 0 => Outcome::Refused,
            Err(outcome) => outcome,
            Ok((reported, extra)) => {
                ranks.figures(&reported).map_or(Outcome::Refused, |figures| take(figures, &reported, extra))
            }
        };
        tally.add(outcome, 1);
    };
    let kind = known.desc.kind;
    match &metric.data {
        Some(Data::Gauge(gauge)) if kind == Kind::Gauge => {
            for point in &gauge.data_points {
                at(&point.attributes, point.flags, &mut |figures, reported, extra| {
                    take_number(figures, known, reported, extra, point, Temporality::Gauge)
                });
            }
        }
        Some(Data::Sum(sum)) => {
            // A sum that may decrease is exposed as a gauge.
            let temporality = match (kind, temporality(sum.aggregation_temporality)) {
                (Kind::Counter, Some(temporality)) if sum.is_monotonic => Some(temporality),
                (Kind::Gauge, Some(Temporality::Cumulative)) if !sum.is_monotonic => Some(Temporality::Gauge),
                _ => None,
            };
            let Some(temporality) = temporality else { return tally.add(Outcome::Unknown, points(metric)) };
            for point in &sum.data_points {
                at(&point.attributes, point.flags, &mut |figures, reported, extra| {
                    take_number(figures, known, reported, extra, point, temporality)
                });
            }
        }
        Some(Data::Histogram(histogram)) if kind == Kind::Histogram => {
            let Some(temporality) = temporality(histogram.aggregation_temporality) else {
                return tally.add(Outcome::Unknown, points(metric));
            };
            for point in &histogram.data_points {
                let (bounds, counts) = (&point.explicit_bounds, &point.bucket_counts);
                let counted = Counted::explicit(point.count, point.sum, bounds, counts, known.factor);
                let times = Times { start: point.start_time_unix_nano, at: point.time_unix_nano };
                at(&point.attributes, point.flags, &mut |figures, _, _| {
                    figures.steps(counted, temporality, times)
                });
            }
        }
        Some(Data::ExponentialHistogram(histogram)) if kind == Kind::Histogram => {
            let Some(temporality) = temporality(histogram.aggregation_temporality) else {
                return tally.add(Outcome::Unknown, points(metric));
            };
            for point in &histogram.data_points {
                let positive = point.positive.as_ref();
                let (offset, counts) =
                    positive.map_or((0, &[][..]), |buckets| (buckets.offset, &buckets.bucket_counts[..]));
                let sum = point.sum.map(|sum| sum * known.factor);
                let mut counted =
                    Counted::exponential(point.count, sum, point.zero_count, (point.scale, offset), counts);
                // Powers of two of milliseconds are not powers of two of seconds.
                counted.buckets = counted.buckets.filter(|_| known.factor.to_bits() == 1_f64.to_bits());
                let times = Times { start: point.start_time_unix_nano, at: point.time_unix_nano };
                at(&point.attributes, point.flags, &mut |figures, _, _| {
                    figures.steps(counted, temporality, times)
                });
            }
        }
        Some(_) => tally.add(Outcome::Unknown, points(metric)),
        None => {}
    }
}

fn take_number(
    figures: &mut Figures,
    known: &KnownName,
    reported: &RankAttributes,
    extra: Label,
    point: &NumberDataPoint,
    temporality: Temporality,
) -> Outcome {
    #[expect(clippy::cast_precision_loss, reason = "figures are shown as f64")]
    let value = match point.value {
        Some(Figure::AsDouble(value)) => value,
        Some(Figure::AsInt(value)) => value as f64,
        None => return Outcome::Refused,
    };
    #[expect(clippy::cast_precision_loss, reason = "a number of processes")]
    let value = match reported.data_parallel {
        Some(parts) if known.of_all => value / parts as f64,
        _ => value,
    };
    let times = Times { start: point.start_time_unix_nano, at: point.time_unix_nano };
    figures.number(known, extra, value, temporality, times)
}

/// The rank of a point, and the value of its last label.
fn place(
    attributes: &[KeyValue],
    known: &KnownName,
    reported: &RankAttributes,
) -> Result<(RankAttributes, Label), Outcome> {
    let understood = |key: &str| RANK.contains(&key) || LOCAL_RANK.contains(&key) || LABELS.contains(&key);
    // Two points that differ only in attributes without a label would be one series.
    if !attributes.iter().all(|attribute| understood(&attribute.key)) {
        return Err(Outcome::Unknown);
    }
    // The rank's own share is not known.
    if known.of_all && reported.data_parallel.is_none_or(|parts| parts == 0) {
        return Err(Outcome::Unknown);
    }
    let own = RankAttributes::of(attributes);
    let reported = RankAttributes {
        rank: own.rank.or(reported.rank),
        local_rank: own.local_rank.or(reported.local_rank),
        ..*reported
    };
    if !reported.is_possible() {
        return Err(Outcome::Refused);
    }
    let text = |name| match find(attributes, name) {
        Some(Value::StringValue(text)) if !text.is_empty() => Some(text.as_str()),
        _ => None,
    };
    let extra = match known.extra {
        Extra::None => Label::default(),
        Extra::Device => {
            let device = find(attributes, "device").map(number);
            match device.unwrap_or(reported.local_rank) {
                Some(device) if device <= MOST_DEVICE => device.into(),
                None if device.is_none() => Label::default(),
                _ => return Err(Outcome::Refused),
            }
        }
        Extra::Phase => Label::printable(text("phase").ok_or(Outcome::Unknown)?),
        Extra::Convention => {
            let convention = known.fixed.or_else(|| text("convention")).ok_or(Outcome::Unknown)?;
            if !CONVENTIONS.contains(&convention) {
                return Err(Outcome::Unknown);
            }
            convention.into()
        }
    };
    Ok((reported, extra))
}

fn find<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a Value> {
    let attribute = attributes.iter().find(|attribute| attribute.key == name)?;
    attribute.value.as_ref()?.value.as_ref()
}

/// A number, which launchers also pass as text.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::IntValue(number) => u64::try_from(*number).ok(),
        Value::StringValue(text) if text.len() <= 10 && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().ok()
        }
        _ => None,
    }
}

fn temporality(number: i32) -> Option<Temporality> {
    match AggregationTemporality::try_from(number) {
        Ok(AggregationTemporality::Delta) => Some(Temporality::Delta),
        Ok(AggregationTemporality::Cumulative) => Some(Temporality::Cumulative),
        _ => None,
    }
}

fn points(metric: &Metric) -> usize {
    match &metric.data {
        Some(Data::Gauge(gauge)) => gauge.data_points.len(),
        Some(Data::Sum(sum)) => sum.data_points.len(),
        Some(Data::Histogram(histogram)) => histogram.data_points.len(),
        Some(Data::ExponentialHistogram(histogram)) => histogram.data_points.len(),
        Some(Data::Summary(summary)) => summary.data_points.len(),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{gauge, int, request, text};
    use super::*;
    use crate::sources::training::metrics as m;

    #[derive(Default)]
    struct AllRanks(std::collections::BTreeMap<u64, Figures>);

    impl FiguresByRank for AllRanks {
        fn figures(&mut self, reported: &RankAttributes) -> Option<&mut Figures> {
            Some(self.0.entry(reported.rank.unwrap_or(0)).or_default())
        }
    }

    /// Points accepted, unknown and refused, and each series as rank, name, label and value.
    fn check(request: &ExportMetricsServiceRequest, expected: &str) {
        let mut all_ranks = AllRanks::default();
        let Tally { taken, unknown, refused } = take(request, &mut all_ranks);
        let mut found = format!("{taken} {unknown} {refused}");
        for (rank, figures) in all_ranks.0 {
            for (desc, extra, value) in figures.numbers() {
                let name = desc.name.trim_start_matches("memwarden_training_");
                found.push_str(&format!(", {rank} {name} [{extra}] {value}"));
            }
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn a_rank_is_found_in_its_attributes() {
        let loss = |attributes: &[KeyValue]| vec![gauge("megatron.training.loss", 2.0, attributes)];
        for (attributes, rank) in [
            (vec![int("dl.rank", 3), int("rank", 4)], 3),
            (vec![text("nv.dl.rank", "12")], 12),
            (vec![text("service.instance.id", "a-rank1-rank9")], 9),
            (vec![text("rank", "-1")], 0),
            (vec![text("rank", "7 or so")], 0),
        ] {
            check(&request(&attributes, loss(&[])), &format!("1 0 0, {rank} loss [] 2"));
        }
        check(&request(&[int("rank", 1)], loss(&[int("rank", 2)])), "1 0 0, 2 loss [] 2");
        check(&request(&[int("rank", 8), text("world_size", "8")], loss(&[])), "0 0 1");
        check(&request(&[int("rank", 1_000_001)], loss(&[])), "0 0 1");
    }

    #[test]
    fn points_with_and_without_a_label_are_separate() {
        let metrics = vec![
            gauge("megatron.training.loss", 1.0, &[text("split", "validation")]),
            gauge("megatron.training.loss", 2.0, &[]),
            gauge("memwarden.training.loss", 3.0, &[text("workload", "slurm/1")]),
        ];
        check(&request(&[], metrics), "1 2 0, 0 loss [] 2");
    }

    #[test]
    fn labels_of_devices_phases_and_conventions_are_checked() {
        let name = |desc: &'static crate::model::desc::Desc| desc.otlp_name();
        let mut flops = gauge(&name(&m::FLOPS.desc), 5.0, &[text("convention", "full")]);
        flops.unit = "{flop}/s".to_owned();
        let mut odd = gauge(&name(&m::FLOPS.desc), 5.0, &[text("convention", "mine")]);
        odd.unit = "{flop}/s".to_owned();
        check(&request(&[], vec![flops, odd]), "1 1 0, 0 flops_per_second [full] 5");
        let device = |device| {
            let mut metric = gauge(&name(&m::ACTIVE.desc), 6.0, &[device]);
            metric.unit = "By".to_owned();
            metric
        };
        let metrics = vec![device(int("device", 1)), device(text("device", "2")), device(int("device", 256))];
        let expected = "2 0 1, 0 allocator_active_bytes [1] 6, 0 allocator_active_bytes [2] 6";
        check(&request(&[int("local_rank", 5)], metrics), expected);
        let peak = || vec![gauge("megatron.training.memory_allocated_gb", 0.5, &[])];
        let reported = "allocator_allocated_peak_bytes";
        check(&request(&[int("dl.local_rank", 5)], peak()), &format!("1 0 0, 0 {reported} [5] 536870912"));
        check(&request(&[], peak()), &format!("1 0 0, 0 {reported} [] 536870912"));
    }

    #[test]
    fn the_tokens_of_a_whole_job_are_divided_or_left_out() {
        let tokens = || vec![gauge("megatron.training.tokens_per_sec", 800.0, &[])];
        let parts = |parts| request(&[int("dl.data_parallel.size", parts)], tokens());
        check(&parts(8), "1 0 0, 0 throughput_tokens_per_second [] 100");
        check(&parts(0), "0 1 0");
        check(&request(&[], tokens()), "0 1 0");
    }
}

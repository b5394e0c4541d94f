//! A metric as an OTLP stream: its name, its instrument, and the mapping of its labels to attributes.

use foldhash::HashMapExt as _;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};

use super::containers::Containers;
use crate::config::OtlpNames;
use crate::model::desc::{Desc, INFINITE, Instrument, Kind, SUM};
use crate::model::frame::Frame;
use crate::model::label::Label;
use crate::model::point::{Point, points};
use crate::model::units::{Flag, Unit as _};

/// Attributes that are integers in the semantic conventions.
const WHOLE: [&str; 3] = ["process.pid", "process.parent_pid", "process.vpid"];

pub(super) struct Stream {
    pub(super) name: String,
    pub(super) kind: Instrument,
    pub(super) unit: &'static str,
    pub(super) help: &'static str,
    /// Several metrics of memwarden may map to one of the semantic conventions, distinguished by a fixed attribute.
    pub(super) series: Vec<Series>,
}

/// The points of one metric of memwarden in a stream.
pub(super) struct Series {
    desc: &'static Desc,
    part: Part,
    /// The label, by its place, and the value that a point must have.
    only: Option<(usize, &'static str)>,
    /// Whether only the cgroups of containers are sent.
    of_containers: bool,
    /// Sorted by key.
    attributes: Vec<(&'static str, Origin)>,
}

/// The points of a metric that a stream includes. A histogram is sent as its three parts, with the same names as in
/// the scraped formats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    Buckets,
    Sum,
    Count,
}

impl Part {
    /// Whether a point belongs to it.
    fn has(self, point: &Point) -> bool {
        let le = || point.labels.last().map(Label::as_str);
        match self {
            Self::All => true,
            Self::Buckets => le() != Some(SUM),
            Self::Sum => le() == Some(SUM),
            Self::Count => le() == Some(INFINITE),
        }
    }
}

enum Origin {
    Label { place: usize, whole: bool },
    Fixed(&'static str),
}

/// The instruments for these metrics.
pub(super) fn streams(catalog: &[&'static Desc], names: OtlpNames) -> Vec<Stream> {
    let mut streams: Vec<Stream> = Vec::with_capacity(catalog.len());
    for &desc in catalog {
        if desc.kind == Kind::Histogram {
            streams.extend(parts(desc));
        } else if desc.semconv.is_none() || names != OtlpNames::Semconv {
            streams.push(own(desc));
        }
    }
    if names == OtlpNames::Memwarden {
        return streams;
    }
    for &desc in catalog {
        let Some(semconv) = &desc.semconv else { continue };
        let place = |label: &str| desc.labels.iter().position(|own| *own == label);
        let series = Series {
            only: semconv.only.and_then(|(label, value)| Some((place(label)?, value))),
            of_containers: semconv.name.starts_with("container."),
            ..Series::whole(desc, conventional(desc))
        };
        match streams.iter_mut().find(|stream| stream.name == semconv.name) {
            Some(stream) => stream.series.push(series),
            None => streams.push(Stream {
                name: semconv.name.to_owned(),
                kind: semconv.instrument,
                // The conventions have no annotation for what is 0 or 1.
                unit: if desc.ucum == Flag::UCUM { "1" } else { desc.ucum },
                help: desc.help(),
                series: vec![series],
            }),
        }
    }
    streams
}

/// Labels as attributes with the same names.
fn plain(labels: &[&'static str]) -> Vec<(&'static str, Origin)> {
    let labels = labels.iter().enumerate();
    sorted(labels.map(|(place, name)| (*name, Origin::Label { place, whole: false })).collect())
}

/// The three parts of a histogram. They only grow; a sum that may decrease gets no `_total`, which the scraped names
/// do not have either.
fn parts(desc: &'static Desc) -> [Stream; 3] {
    let unit = desc.suffix.replace('_', ".");
    let part = |part, name: &str, ucum, labels| Stream {
        name: format!("{}{unit}.{name}", desc.otlp_name()),
        kind: Instrument::UpDownCounter,
        unit: ucum,
        help: desc.help(),
        series: vec![Series { part, ..Series::whole(desc, plain(labels)) }],
    };
    let without = desc.labels.split_last().map_or(&[][..], |(_, rest)| rest);
    [
        part(Part::Buckets, "bucket", "{value}", desc.labels),
        part(Part::Sum, "sum", desc.ucum, without),
        part(Part::Count, "count", "{value}", without),
    ]
}

fn own(desc: &'static Desc) -> Stream {
    Stream {
        name: desc.otlp_name(),
        kind: match desc.kind {
            Kind::Gauge => Instrument::Gauge,
            // A histogram is sent as its parts.
            Kind::Counter | Kind::Histogram => Instrument::Counter,
        },
        unit: desc.ucum,
        help: desc.help(),
        series: vec![Series::whole(desc, plain(desc.labels))],
    }
}

fn conventional(desc: &'static Desc) -> Vec<(&'static str, Origin)> {
    let (renamed, fixed) =
        desc.semconv.as_ref().map_or((&[][..], &[][..]), |found| (found.renamed, found.fixed));
    let only = desc.semconv.as_ref().and_then(|found| found.only).map(|(label, _)| label);
    let labels = desc.labels.iter().enumerate().filter(|(_, label)| Some(**label) != only);
    let labels = labels.map(|(place, label)| {
        let name = renamed.iter().find(|(from, _)| from == label).map_or(*label, |(_, to)| *to);
        (name, Origin::Label { place, whole: WHOLE.contains(&name) })
    });
    let fixed = fixed.iter().map(|(name, value)| (*name, Origin::Fixed(value)));
    sorted(labels.chain(fixed).collect())
}

fn sorted(mut attributes: Vec<(&'static str, Origin)>) -> Vec<(&'static str, Origin)> {
    attributes.sort_by_key(|(name, _)| *name);
    attributes
}

impl Series {
    /// All points of a metric.
    fn whole(desc: &'static Desc, attributes: Vec<(&'static str, Origin)>) -> Self {
        Self { desc, part: Part::All, only: None, of_containers: false, attributes }
    }

    pub(super) fn points<'f>(&self, frame: &'f Frame) -> impl Iterator<Item = &'f Point> {
        let (part, only) = (self.part, self.only);
        let is_sent = move |point: &&Point| {
            let has = |(place, value): (usize, &str)| {
                point.labels.get(place).is_some_and(|own| own.as_str() == value)
            };
            part.has(point) && only.is_none_or(has)
        };
        points(&frame.families, self.desc).iter().filter(is_sent)
    }

    /// Replaces `out` by the attributes of `point`; false where it is not sent. Empty labels are not sent, as in the scraped
    /// formats.
    pub(super) fn attributes(
        &self,
        point: &Point,
        containers: &Containers<'_>,
        out: &mut Vec<KeyValue>,
    ) -> bool {
        out.clear();
        out.extend(
            self.attributes.iter().filter_map(|(key, origin)| Some(attribute(key, origin.value(point)?))),
        );
        !self.of_containers || containers.describe(point, out)
    }
}

pub(super) fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// The values of a series in an earlier frame.
pub(super) struct Earlier<'f>(foldhash::HashMap<&'f [Label], f64>);

impl<'f> Earlier<'f> {
    pub(super) fn new(series: &Series, frame: &'f Frame) -> Self {
        let mut values = foldhash::HashMap::new();
        values.extend(series.points(frame).map(|point| (&*point.labels, point.value)));
        Self(values)
    }

    /// The value in that frame; zero for a new point.
    pub(super) fn value(&self, point: &Point) -> f64 {
        self.0.get(&*point.labels).copied().unwrap_or(0.0)
    }
}

impl Origin {
    fn value(&self, point: &Point) -> Option<Value> {
        match self {
            Self::Fixed(text) => Some(Value::StringValue((*text).to_owned())),
            Self::Label { place, whole } => {
                let text = point.labels.get(*place).filter(|label| !label.is_empty())?.as_str();
                Some(match text.parse::<i64>() {
                    Ok(number) if *whole => Value::IntValue(number),
                    _ => Value::StringValue(text.to_owned()),
                })
            }
        }
    }
}

//! A metric as it goes over OTLP: its name, its instrument, and how its labels become attributes.

use opentelemetry::metrics::AsyncInstrument;
use opentelemetry::{Key, KeyValue, Value};

use crate::config::OtlpNames;
use crate::model::desc::{Desc, Instrument, Kind};
use crate::model::frame::Frame;
use crate::model::point::Point;

/// Attributes that the semantic conventions have as whole numbers.
const WHOLE: [&str; 3] = ["process.pid", "process.parent_pid", "process.vpid"];

/// One instrument.
pub(super) struct Stream {
    pub(super) name: String,
    pub(super) kind: Instrument,
    pub(super) unit: &'static str,
    pub(super) help: &'static str,
    /// The most attribute sets in one push.
    pub(super) budget: usize,
    /// Several metrics of ours may be one of the semantic conventions, apart by a fixed attribute.
    series: Vec<Series>,
}

struct Series {
    desc: &'static Desc,
    /// Sorted by key, as the SDK stores each set a second time where they are not.
    attributes: Vec<(Key, Origin)>,
}

enum Origin {
    Label { place: usize, whole: bool },
    Fixed(&'static str),
}

/// The instruments for these metrics.
pub(super) fn streams(catalog: &[&'static Desc], names: OtlpNames) -> Vec<Stream> {
    let mut streams: Vec<Stream> = Vec::with_capacity(catalog.len());
    for &desc in catalog {
        if desc.semconv.is_none() || names != OtlpNames::Semconv {
            streams.push(own(desc));
        }
    }
    if names == OtlpNames::Memwarden {
        return streams;
    }
    for &desc in catalog {
        let Some(semconv) = &desc.semconv else { continue };
        let series = Series { desc, attributes: conventional(desc) };
        match streams.iter_mut().find(|stream| stream.name == semconv.name) {
            Some(stream) => {
                stream.series.push(series);
                stream.budget += desc.budget;
            }
            None => streams.push(Stream {
                name: semconv.name.to_owned(),
                kind: semconv.instrument,
                unit: desc.ucum,
                help: desc.help(),
                budget: desc.budget,
                series: vec![series],
            }),
        }
    }
    streams
}

fn own(desc: &'static Desc) -> Stream {
    let labels = desc.labels.iter().enumerate();
    let attributes = labels.map(|(place, name)| (*name, Origin::Label { place, whole: false })).collect();
    Stream {
        name: desc.otlp_name(),
        kind: match desc.kind {
            Kind::Gauge => Instrument::Gauge,
            Kind::Counter => Instrument::Counter,
        },
        unit: desc.ucum,
        help: desc.help(),
        budget: desc.budget,
        series: vec![Series { desc, attributes: sorted(attributes) }],
    }
}

fn conventional(desc: &'static Desc) -> Vec<(Key, Origin)> {
    let (renamed, fixed) =
        desc.semconv.as_ref().map_or((&[][..], &[][..]), |found| (found.renamed, found.fixed));
    let labels = desc.labels.iter().enumerate().map(|(place, label)| {
        let name = renamed.iter().find(|(from, _)| from == label).map_or(*label, |(_, to)| *to);
        (name, Origin::Label { place, whole: WHOLE.contains(&name) })
    });
    let fixed = fixed.iter().map(|(name, value)| (*name, Origin::Fixed(value)));
    sorted(labels.chain(fixed).collect())
}

fn sorted(mut attributes: Vec<(&'static str, Origin)>) -> Vec<(Key, Origin)> {
    attributes.sort_by_key(|(name, _)| *name);
    attributes.into_iter().map(|(name, origin)| (Key::from_static_str(name), origin)).collect()
}

impl Stream {
    /// Hands all points of `frame` to the SDK.
    pub(super) fn observe(&self, frame: &Frame, out: &dyn AsyncInstrument<f64>) {
        let mut attributes = Vec::new();
        for series in &self.series {
            let family = frame.families.iter().find(|family| std::ptr::eq(family.desc, series.desc));
            for point in family.iter().flat_map(|family| &family.points) {
                attributes.clear();
                // What is empty is not sent, as on the pulled road.
                attributes.extend(
                    series
                        .attributes
                        .iter()
                        .filter_map(|(key, origin)| Some(KeyValue::new(key.clone(), origin.value(point)?))),
                );
                out.observe(point.value, &attributes);
            }
        }
    }
}

impl Origin {
    fn value(&self, point: &Point) -> Option<Value> {
        match self {
            Self::Fixed(text) => Some((*text).into()),
            Self::Label { place, whole } => {
                let text = point.labels.get(*place).filter(|label| !label.is_empty())?.as_str();
                Some(match text.parse::<i64>() {
                    Ok(number) if *whole => number.into(),
                    _ => text.to_owned().into(),
                })
            }
        }
    }
}

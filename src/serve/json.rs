//! A frame as JSON, for `/api/v1/frame` and `/api/v1/findings`.
//!
//! Serialized directly from the frame. Within one `schema_version` keys are only added. Unknown values are `null` or
//! left out, never 0, and every number is finite.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

use crate::model::desc::Kind;
use crate::model::finding::Finding;
use crate::model::frame::{Frame, SourceReport};
use crate::model::label::Label;
use crate::model::outlook::Conclusion;
use crate::model::point::Family;
use crate::model::printable;

/// Incremented when a key changes its meaning or is removed.
pub const SCHEMA_VERSION: u32 = 1;

pub fn encode(frame: &Frame) -> Vec<u8> {
    /// Approximate size of a series in bytes.
    const SERIES: usize = 96;
    let series = frame.series();
    let frame = Whole {
        about: About::of(frame),
        sources: &frame.sources,
        findings: &frame.findings,
        conclusions: &frame.outlook.conclusions,
        metrics: &frame.families,
    };
    write(Vec::with_capacity(series * SERIES + 1024), &frame)
}

/// The findings of the frame as one JSON object.
pub fn findings(frame: &Frame) -> Vec<u8> {
    write(Vec::new(), &Stated { about: About::of(frame), findings: &frame.findings })
}

/// Appends a value as JSON that is shown as it is: control and invisible characters are escaped.
pub(super) fn write(mut out: Vec<u8>, value: &impl Serialize) -> Vec<u8> {
    serde_json::to_writer(&mut out, value).expect("keys are text and writing to memory cannot fail");
    match std::str::from_utf8(&out).map(printable::json) {
        Ok(Cow::Owned(escaped)) => escaped.into_bytes(),
        _ => out,
    }
}

#[derive(Serialize)]
struct About {
    schema_version: u32,
    sequence: u64,
    unix_seconds: f64,
}

impl About {
    fn of(frame: &Frame) -> Self {
        let unix_seconds = frame.at.unix().as_secs_f64();
        Self { schema_version: SCHEMA_VERSION, sequence: frame.sequence, unix_seconds }
    }
}

#[derive(Serialize)]
struct Stated<'a> {
    #[serde(flatten)]
    about: About,
    findings: &'a [Finding],
}

#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    about: About,
    sources: &'a [SourceReport],
    findings: &'a [Finding],
    conclusions: &'a [Conclusion],
    #[serde(serialize_with = "metrics")]
    metrics: &'a [Family],
}

fn metrics<S: Serializer>(families: &[Family], serializer: S) -> Result<S::Ok, S::Error> {
    fn metric(family: &Family) -> Metric<'_> {
        let desc = family.desc;
        Metric { name: desc.name, unit: desc.ucum, kind: desc.kind, help: desc.help(), series: family }
    }
    serializer.collect_seq(families.iter().filter(|family| !family.points.is_empty()).map(metric))
}

#[derive(Serialize)]
struct Metric<'a> {
    name: &'static str,
    unit: &'static str,
    kind: Kind,
    help: &'static str,
    #[serde(serialize_with = "series")]
    series: &'a Family,
}

fn series<S: Serializer>(family: &Family, serializer: S) -> Result<S::Ok, S::Error> {
    let finite = family.points.iter().filter(|point| point.value.is_finite());
    serializer.collect_seq(
        finite.map(|point| Series { labels: (family.desc.labels, &*point.labels), value: point.value }),
    )
}

#[derive(Serialize)]
struct Series<'a> {
    #[serde(serialize_with = "labels")]
    labels: (&'static [&'static str], &'a [Label]),
    value: f64,
}

fn labels<S: Serializer>(
    (names, labels): &(&'static [&'static str], &[Label]),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let labels = names.iter().zip(*labels);
    serializer.collect_map(labels.filter(|(_, value)| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desc::Gauge;
    use crate::model::point::Point;
    use crate::model::time::Timestamp;
    use crate::model::units::Ratio;
    use crate::serve::http::tests::frames;
    use expect_test::expect;

    #[test]
    fn a_frame_is_one_object() {
        let frame = frames::node();
        let mut value: serde_json::Value = serde_json::from_slice(&encode(&frame)).unwrap();
        let metrics = value["metrics"].as_array_mut().unwrap();
        assert_eq!(metrics.len(), frame.families.len());
        metrics.truncate(1);
        expect![[r#"
            {
              "conclusions": [],
              "findings": [],
              "metrics": [
                {
                  "help": "Memory of the host.",
                  "kind": "gauge",
                  "name": "memwarden_host_memory_total_bytes",
                  "series": [
                    {
                      "labels": {},
                      "value": 68719476736.0
                    }
                  ],
                  "unit": "By"
                }
              ],
              "schema_version": 1,
              "sequence": 1,
              "sources": [
                {
                  "age_seconds": 0.0,
                  "source": "memory",
                  "status": "ok",
                  "why": null
                },
                {
                  "age_seconds": null,
                  "source": "pressure",
                  "status": "unavailable",
                  "why": "the kernel has no PSI"
                },
                {
                  "age_seconds": 12.5,
                  "source": "gpu",
                  "status": "failed",
                  "why": "timeout: <gpu 1>"
                }
              ],
              "unix_seconds": 1700000001.0
            }"#]]
        .assert_eq(&serde_json::to_string_pretty(&value).unwrap());
    }

    #[test]
    fn labels_are_an_object_and_no_number_is_invented() {
        static SMALL: Gauge<Ratio> = Gauge::new("memwarden_small_ratio", "Small.", &["a", "b"]);
        let point = |a: &str, value| Point { labels: [a.into(), "\"\n\u{1}".into()].into(), value };
        let points = vec![point("x", 0.1), point("y", f64::NAN), point("z", f64::INFINITY)];
        let families = vec![Family::new(&SMALL.desc, points)];
        let frame = Frame {
            sequence: 7,
            at: Timestamp::from_secs(1),
            families,
            sources: Vec::new(),
            findings: Vec::new(),
            outlook: crate::model::outlook::Outlook::default(),
            timeline: std::sync::Arc::default(),
            acknowledged: std::sync::Arc::default(),
        };
        let text = String::from_utf8(encode(&frame)).unwrap();
        expect![[r#"{"schema_version":1,"sequence":7,"unix_seconds":1.0,"sources":[],"findings":[],"conclusions":[],"metrics":[{"name":"memwarden_small_ratio","unit":"1","kind":"gauge","help":"Small.","series":[{"labels":{"a":"x","b":"\"\n\u0001"},"value":0.1}]}]}"#]]
            .assert_eq(&text);
    }
}

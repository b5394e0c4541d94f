//! A frame as JSON, for `/api/v1/frame` and `/api/v1/findings`.
//!
//! Serialized directly from the frame. Within one `schema_version` keys are only added. Unknown values are `null` or
//! left out, never 0, and every number is finite.

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use crate::model::frame::Frame;
use crate::model::point::{Family, Point};
use crate::model::printable;

/// Incremented when a key changes its meaning or is removed.
pub const SCHEMA_VERSION: u32 = 1;

/// The frame as one JSON object.
pub fn encode(frame: &Frame) -> Vec<u8> {
    /// Approximate size of a series in bytes.
    const SERIES: usize = 96;
    let mut out = Vec::with_capacity(frame.series() * SERIES + 1024);
    serde_json::to_writer(&mut out, &Whole(frame)).expect("keys are text and writing to memory cannot fail");
    shown(out)
}

/// Escapes all control and invisible characters in JSON text.
pub(super) fn shown(json: Vec<u8>) -> Vec<u8> {
    match std::str::from_utf8(&json).map(printable::json) {
        Ok(Cow::Owned(escaped)) => escaped.into_bytes(),
        _ => json,
    }
}

/// The findings of the frame as one JSON object.
pub fn findings(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    serde_json::to_writer(&mut out, &Stated(frame)).expect("keys are text and writing to memory cannot fail");
    shown(out)
}

struct Stated<'a>(&'a Frame);

impl Serialize for Stated<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(frame) = self;
        let mut out = serializer.serialize_struct("Findings", 4)?;
        out.serialize_field("schema_version", &SCHEMA_VERSION)?;
        out.serialize_field("sequence", &frame.sequence)?;
        out.serialize_field("unix_seconds", &frame.at.unix().as_secs_f64())?;
        out.serialize_field("findings", &frame.findings)?;
        out.end()
    }
}

struct Whole<'a>(&'a Frame);

impl Serialize for Whole<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(frame) = self;
        let mut out = serializer.serialize_struct("Frame", 7)?;
        out.serialize_field("schema_version", &SCHEMA_VERSION)?;
        out.serialize_field("sequence", &frame.sequence)?;
        out.serialize_field("unix_seconds", &frame.at.unix().as_secs_f64())?;
        out.serialize_field("sources", &frame.sources)?;
        out.serialize_field("findings", &frame.findings)?;
        out.serialize_field("conclusions", &frame.outlook.conclusions)?;
        out.serialize_field("metrics", &Metrics(&frame.families))?;
        out.end()
    }
}

struct Metrics<'a>(&'a [Family]);

impl Serialize for Metrics<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().filter(|family| !family.points.is_empty()).map(Metric))
    }
}

struct Metric<'a>(&'a Family);

impl Serialize for Metric<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(Family { desc, .. }) = self;
        let mut out = serializer.serialize_struct("Metric", 5)?;
        out.serialize_field("name", desc.name)?;
        out.serialize_field("unit", desc.ucum)?;
        out.serialize_field("kind", &desc.kind)?;
        out.serialize_field("help", desc.help())?;
        out.serialize_field("series", &Series(self.0))?;
        out.end()
    }
}

struct Series<'a>(&'a Family);

impl Serialize for Series<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let names = self.0.desc.labels;
        let finite = self.0.points.iter().filter(|point| point.value.is_finite());
        serializer.collect_seq(finite.map(|point| One { names, point }))
    }
}

struct One<'a> {
    names: &'static [&'static str],
    point: &'a Point,
}

impl Serialize for One<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_map(Some(2))?;
        out.serialize_entry("labels", &Labels(self))?;
        out.serialize_entry("value", &self.point.value)?;
        out.end()
    }
}

struct Labels<'a>(&'a One<'a>);

impl Serialize for Labels<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let labels = self.0.names.iter().zip(self.0.point.labels.iter());
        serializer.collect_map(labels.filter(|(_, value)| !value.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desc::Gauge;
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
        let families = vec![Family { desc: &SMALL.desc, points }];
        let frame = Frame {
            sequence: 7,
            at: Timestamp::from_secs(1),
            families,
            sources: Vec::new(),
            findings: Vec::new(),
            outlook: crate::model::outlook::Outlook::default(),
            timeline: std::sync::Arc::default(),
        };
        let text = String::from_utf8(encode(&frame)).unwrap();
        expect![[r#"{"schema_version":1,"sequence":7,"unix_seconds":1.0,"sources":[],"findings":[],"conclusions":[],"metrics":[{"name":"memwarden_small_ratio","unit":"1","kind":"gauge","help":"Small.","series":[{"labels":{"a":"x","b":"\"\n\u0001"},"value":0.1}]}]}"#]]
            .assert_eq(&text);
    }
}

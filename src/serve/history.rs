//! The recent past as JSON, for `/api/v1/history`.
//!
//! Without `subject`, what is kept; with `subject=node` the series of the host and the events of all subjects; with `subject=host`, `subject=gpu&gpu=INDEX`, `subject=workload&workload=NAME` or
//! `subject=rank&workload=NAME&rank=RANK` the series of that, in the `range` 10m, 2h or 24h. A step without a sample is
//! `null`.

use serde::Serialize;

use super::json::{SCHEMA_VERSION, write};
use super::page::parameter;
use crate::history::recent::{MOST_SERIES, Quantity, Recent, Subject};
use crate::history::rings::Range;
use crate::node_view::NodeView;
use crate::node_view::events::{Event, Recorder};

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    subject: Option<Asked>,
    range: Range,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Node,
    Host,
    Gpu(String),
    Workload(String),
    Rank(String, String),
}

#[derive(Serialize)]
struct Kept<'a> {
    schema_version: u32,
    series: usize,
    max_series: usize,
    omitted_series: usize,
    ranges: Vec<Ranged>,
    subjects: Vec<Named<'a>>,
}

#[derive(Serialize)]
struct Ranged {
    range: &'static str,
    step_seconds: u32,
    steps: usize,
}

#[derive(Serialize)]
struct Named<'a> {
    subject: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<&'a str>,
}

#[derive(Serialize)]
struct Told<'a> {
    schema_version: u32,
    range: &'static str,
    step_seconds: u32,
    series: Vec<Series>,
    events: Vec<&'a Event>,
}

#[derive(Serialize)]
struct Series {
    name: &'static str,
    /// Start of each step in seconds since 1970, its smallest and its largest value.
    points: Vec<(f64, Option<f64>, Option<f64>)>,
}

impl Wanted {
    /// Parses the query of a request, without its question mark.
    ///
    /// # Errors
    /// One sentence about the invalid parameter.
    pub fn parse(query: &str) -> Result<Self, String> {
        let of = |name: &str| {
            parameter(query, name)
                .filter(|value| !value.is_empty())
                .ok_or_else(|| format!("The parameter {name} is missing."))
        };
        let subject = match parameter(query, "subject").as_deref() {
            None | Some("") => None,
            Some("node") => Some(Asked::Node),
            Some("host") => Some(Asked::Host),
            Some("gpu") => Some(Asked::Gpu(of("gpu")?)),
            Some("workload") => Some(Asked::Workload(of("workload")?)),
            Some("rank") => Some(Asked::Rank(of("workload")?, of("rank")?)),
            Some(_) => {
                return Err("The parameter subject must be node, host, gpu, workload or rank.".to_owned());
            }
        };
        let range = match parameter(query, "range") {
            None => Range::Minutes,
            Some(word) => Range::of_label(&word).ok_or("The parameter range must be 10m, 2h or 24h.")?,
        };
        Ok(Self { subject, range })
    }

    /// The JSON of what was asked for; absent where there is no history of it.
    pub fn encode(&self, node: &NodeView, recorder: &Recorder) -> Option<Vec<u8>> {
        let Some(asked) = &self.subject else {
            return Some(write(Vec::new(), &kept(&recorder.recent)));
        };
        let context = self.context(asked, node, recorder);
        (!context.series.is_empty()).then(|| write(Vec::new(), &context))
    }

    fn context<'a>(&self, asked: &Asked, node: &NodeView, recorder: &'a Recorder) -> Told<'a> {
        let (subject, names): (_, &[(Quantity, &'static str)]) = match asked {
            Asked::Node | Asked::Host => (
                Subject::Host,
                &[(Quantity::Used, "memory_used_bytes"), (Quantity::Second, "swap_used_bytes")],
            ),
            Asked::Gpu(index) => (
                Subject::Gpu(node.gpu(index).map_or(index, |gpu| &gpu.uuid).into()),
                &[(Quantity::Used, "memory_used_bytes"), (Quantity::Utilization, "utilization_ratio")],
            ),
            Asked::Workload(name) => (
                Subject::Workload(name.into()),
                &[(Quantity::Used, "rss_bytes"), (Quantity::Second, "gpu_memory_bytes")],
            ),
            Asked::Rank(name, rank) => (
                Subject::Rank(name.into(), rank.into()),
                &[(Quantity::Used, "allocated_bytes"), (Quantity::Second, "reserved_bytes")],
            ),
        };
        let series = names.iter().filter_map(|(quantity, name)| {
            let rings = recorder.recent.rings(&subject, *quantity)?;
            let points = rings.steps(self.range).into_iter().map(|(at, extent)| {
                (recorder.unix(at), extent.map(|extent| extent.min), extent.map(|extent| extent.max))
            });
            Some(Series { name, points: points.collect() })
        });
        let about = |event: &&Event| match asked {
            Asked::Node => true,
            Asked::Host => event.gpu.is_empty() && event.workload.is_empty(),
            Asked::Gpu(index) => event.gpu == *index,
            Asked::Workload(name) | Asked::Rank(name, _) => event.workload == *name,
        };
        Told {
            schema_version: SCHEMA_VERSION,
            range: self.range.label(),
            step_seconds: self.range.step(),
            series: series.collect(),
            events: recorder.events().filter(about).collect(),
        }
    }
}

fn kept(recent: &Recent) -> Kept<'_> {
    let named = |subject: &'static str, uuid, workload, rank| Named { subject, uuid, workload, rank };
    let subjects = recent.subjects().into_iter().map(|subject| match subject {
        Subject::Host => named("host", None, None, None),
        Subject::Gpu(uuid) => named("gpu", Some(uuid.as_str()), None, None),
        Subject::Workload(name) => named("workload", None, Some(name.as_str()), None),
        Subject::Rank(name, rank) => named("rank", None, Some(name.as_str()), Some(rank.as_str())),
    });
    Kept {
        schema_version: SCHEMA_VERSION,
        series: recent.len(),
        max_series: MOST_SERIES,
        omitted_series: recent.omitted(),
        ranges: Range::ALL
            .map(|range| Ranged { range: range.label(), step_seconds: range.step(), steps: range.steps() })
            .into(),
        subjects: subjects.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::http::tests::frames;

    fn answer(query: &str) -> Option<serde_json::Value> {
        let mut recorder = Recorder::default();
        for sequence in [1, 2, 4] {
            recorder.record(&frames::node_at(sequence));
        }
        let frame = frames::node_at(4);
        let node = NodeView::of(Some(&frame), &crate::node_view::Situation::default());
        let json = Wanted::parse(query).unwrap().encode(&node, &recorder)?;
        Some(serde_json::from_slice(&json).unwrap())
    }

    #[test]
    fn a_subject_has_its_series_with_gaps() {
        let context = answer("subject=gpu&gpu=0&range=10m").unwrap();
        assert_eq!(context["series"][0]["name"], "memory_used_bytes");
        let points = context["series"][0]["points"].as_array().unwrap();
        let known: Vec<bool> = points.iter().map(|point| point[2].is_number()).collect();
        assert_eq!(known, [true, true, false, true]);
        assert_eq!(points[0][0], 1_700_000_001.0);
        assert_eq!(answer("subject=gpu&gpu=7"), None);
        let kept = answer("").unwrap();
        assert_eq!((kept["omitted_series"].as_u64(), kept["max_series"].as_u64()), (Some(0), Some(208)));
        assert!(kept["subjects"].as_array().unwrap().iter().any(|subject| subject["uuid"] == "GPU-a"));
    }

    #[test]
    fn the_node_has_the_events_of_all_subjects() {
        let mut recorder = Recorder::default();
        let mut node = crate::node_view::tests::Node::new();
        node.gpu(0, 70, "ok");
        node.leak();
        let frame = node.frame();
        recorder.record(&frame);
        let view = NodeView::of(Some(&frame), &crate::node_view::Situation::default());
        let of = |query: &str| -> serde_json::Value {
            let json = Wanted::parse(query).unwrap().encode(&view, &recorder).unwrap();
            serde_json::from_slice(&json).unwrap()
        };
        let (all, host) = (of("subject=node"), of("subject=host"));
        assert_eq!(all["series"], host["series"]);
        assert!(
            !all["events"].as_array().unwrap().is_empty() && host["events"].as_array().unwrap().is_empty()
        );
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (query, part) in
            [("subject=x", "subject"), ("subject=gpu", "gpu"), ("subject=host&range=1y", "range")]
        {
            assert!(Wanted::parse(query).unwrap_err().contains(part), "{query}");
        }
    }
}

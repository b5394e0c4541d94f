//! The readings of an incident: as CSV for `memwarden replay` and `plot`, and as a chart.

use crate::model::format;
use crate::model::label::Label;
use crate::model::units::Unit as _;
use crate::plot::Chart;
use crate::plot::report::{Clock, Mark, Report, Series};
use crate::protection::types::incident::{Incident, Move, Sample, is_of_target};

/// The subjects, in order of appearance.
fn subjects(samples: &[Sample]) -> Vec<&Label> {
    let mut found: Vec<&Label> = Vec::new();
    for sample in samples {
        if !found.contains(&&sample.subject) {
            found.push(&sample.subject);
        }
    }
    found
}

/// The samples that are recorded with an incident: those of its target, then those of the host. Memory of other targets is
/// left out, unless the target is unknown.
pub fn of_incident(incident: &Incident, samples: &[Sample]) -> Vec<Sample> {
    let own = |sample: &Sample| is_of_target(sample.subject.as_str(), &incident.target);
    let known = samples.iter().any(own);
    let included = |sample: &&Sample| !known || own(sample) || sample.subject.as_str() == "host";
    let mut samples: Vec<Sample> = samples.iter().filter(included).cloned().collect();
    samples.sort_by_key(|sample| !own(sample));
    samples
}

/// One file for each subject: its name, and `t_s,bytes,limit` with seconds since 1970.
pub fn csv(samples: &[Sample]) -> Vec<(String, Vec<u8>)> {
    let files = subjects(samples).into_iter().map(|subject| {
        let mut table = csv::Writer::from_writer(Vec::new());
        // Writing to memory cannot fail.
        let _ = table.write_record(["t_s", "bytes", "limit"]);
        for sample in samples.iter().filter(|sample| sample.subject == *subject) {
            let shown = |bytes: Option<crate::model::units::Bytes>| {
                bytes.map_or_else(String::new, |bytes| bytes.get().to_string())
            };
            let at = format!("{:.3}", sample.at.unix().as_secs_f64());
            let _ = table.write_record([at, shown(sample.used), shown(sample.limit)]);
        }
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        let name: String = subject.as_str().chars().map(plain).take(60).collect();
        (format!("memory-{name}.csv"), table.into_inner().unwrap_or_default())
    });
    files.collect()
}

/// Maximum number of steps that the mark of a transition names.
const MOST_STEPS: usize = 3;

/// A transition with the steps that were taken in the state after it, each once.
fn mark(incident: &Incident, at: &Move) -> String {
    let until = incident
        .moves
        .iter()
        .map(|step| step.unix_seconds)
        .filter(|next| *next > at.unix_seconds)
        .fold(f64::INFINITY, f64::min);
    let mut steps: Vec<String> = Vec::new();
    for step in &incident.steps {
        let silent = matches!(step.step["do"].as_str(), Some("record" | "await" | "await_end") | None);
        if silent || !(at.unix_seconds..until).contains(&step.unix_seconds) {
            continue;
        }
        let failed = if step.result.as_deref() == Some("failed") { " failed" } else { "" };
        let name = format!("{}{failed}", named(&step.step));
        if !steps.contains(&name) {
            steps.push(name);
        }
    }
    let more = steps.len().saturating_sub(MOST_STEPS);
    steps.truncate(MOST_STEPS);
    if more > 0 {
        steps.push(format!("{more} more"));
    }
    if steps.is_empty() { at.to.clone() } else { format!("{}: {}", at.to, steps.join(", ")) }
}

/// A step in few words, without its process.
fn named(step: &serde_json::Value) -> String {
    step["signal"]
        .as_u64()
        .map_or_else(|| step["do"].as_str().unwrap_or("?").replace('_', " "), format::signal)
}

/// The chart of memory use, with the transitions and their steps marked.
pub fn chart(incident: &Incident, samples: &[Sample]) -> Chart {
    let series = subjects(samples).into_iter().map(|subject| {
        let own = || samples.iter().filter(|sample| sample.subject == *subject);
        Series {
            name: subject.as_str().to_owned(),
            unit: "bytes".to_owned(),
            points: own()
                .map(|sample| (sample.at.unix().as_secs_f64(), sample.used.map(|used| used.value())))
                .collect(),
            limit_bytes: own().filter_map(|sample| sample.limit).next_back().map(|limit| limit.value()),
        }
    });
    let moves = incident.moves.iter().map(|step| Mark {
        t_s: step.unix_seconds,
        text: mark(incident, step),
        alarm: matches!(step.to.as_str(), "term" | "kill"),
    });
    let struck = (incident.moves.is_empty() && incident.began_unix_seconds > 0.0).then(|| Mark {
        t_s: incident.began_unix_seconds,
        text: incident.cause.label().replace('_', " "),
        alarm: true,
    });
    let report = Report {
        schema: "memwarden.report/1".into(),
        title: format!("{}: {}", incident.host, incident.id),
        subtitle: incident.summary.clone(),
        time: Some(Clock::Utc),
        series: series.collect(),
        events: moves.chain(struck).collect(),
        ..Report::default()
    };
    report.chart()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Timestamp;
    use crate::model::units::Bytes;
    use crate::protection::types::incident::{StepRecord, target_subjects};
    use crate::recording;
    use serde_json::json;

    fn samples() -> Vec<Sample> {
        let sample = |second, subject: &str, used: Option<u64>| Sample {
            at: Timestamp::from_secs(second),
            subject: subject.into(),
            used: used.map(Bytes::new),
            limit: Some(Bytes::new(100)),
        };
        vec![
            sample(1, "host", Some(50)),
            sample(1, "a/b", Some(7)),
            sample(2, "host", None),
            sample(3, "host", Some(60)),
        ]
    }

    #[test]
    fn each_subject_has_a_file_that_can_be_read_again() {
        let files = csv(&samples());
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["memory-host.csv", "memory-a-b.csv"]);
        let text = std::str::from_utf8(&files[0].1).unwrap();
        assert_eq!(text, "t_s,bytes,limit\n1.000,50,100\n2.000,,100\n3.000,60,100\n");
        let read = recording::csv::read("host", &files[0].1).unwrap();
        assert_eq!(read.rows.len(), 2);
    }

    #[test]
    fn a_transition_is_marked_with_the_steps_taken_after_it() {
        let to = |at: f64, to: &str| Move { unix_seconds: at, to: to.to_owned(), ..Move::default() };
        let step = |at: f64, step: serde_json::Value, result: &str| StepRecord {
            unix_seconds: at,
            step,
            result: Some(result.to_owned()),
            ..StepRecord::default()
        };
        let signal = |pid: u64| json!({"do": "signal", "signal": 15, "process": {"pid": pid}});
        let incident = Incident {
            moves: vec![to(10.0, "soft"), to(20.0, "term"), to(30.0, "kill")],
            steps: vec![
                step(20.0, json!({"do": "record"}), "ok"),
                step(20.1, signal(7), "ok"),
                step(20.2, signal(8), "ok"),
                step(20.3, json!({"do": "hook"}), "failed"),
                step(30.0, json!({"do": "kill_group"}), "ok"),
            ],
            ..Incident::default()
        };
        let marks: Vec<String> = incident.moves.iter().map(|step| mark(&incident, step)).collect();
        assert_eq!(marks, ["soft", "term: SIGTERM, hook failed", "kill: kill group"]);
    }

    #[test]
    fn an_incident_has_its_target_before_the_host_and_no_other_target() {
        let sample = |second, subject: &str| Sample {
            at: Timestamp::from_secs(second),
            subject: subject.into(),
            used: None,
            limit: None,
        };
        let all = [sample(1, "host"), sample(2, "train GPU"), sample(3, "other GPU"), sample(4, "train")];
        let of = |target: &str| {
            let incident = Incident { target: target.to_owned(), ..Incident::default() };
            let samples = of_incident(&incident, &all).into_iter().map(|sample| sample.subject.to_string());
            samples.collect::<Vec<_>>()
        };
        assert_eq!(of("train"), ["train GPU", "train", "host"]);
        assert_eq!(of("gone").len(), 4, "its target is unknown");
    }

    #[test]
    fn the_gpu_of_a_target_is_drawn_with_its_own_limit() {
        let [gpu, _] = target_subjects("train");
        let of = |second, subject: &Label, used: u64, limit: u64| Sample {
            at: Timestamp::from_secs(second),
            subject: subject.clone(),
            used: Some(Bytes::new(used)),
            limit: Some(Bytes::new(limit)),
        };
        let host = Label::from("host");
        let samples = [of(1, &gpu, 70, 80), of(2, &gpu, 79, 80), of(1, &host, 50, 100)];
        let chart = chart(&Incident::default(), &samples);
        let names: Vec<&str> = chart.panels.iter().map(|panel| panel.lines[0].name.as_str()).collect();
        assert_eq!(names, ["train GPU", "host"]);
        assert_eq!(chart.panels[0].lines[0].points, [(1.0, Some(70.0)), (2.0, Some(79.0))]);
        assert_eq!(csv(&samples)[0].0, "memory-train-GPU.csv");
    }

    #[test]
    fn what_is_missing_is_a_gap_in_the_chart() {
        let chart = chart(&Incident { began_unix_seconds: 2.0, ..Incident::default() }, &samples());
        assert_eq!(chart.panels.len(), 1, "the same limit is the same panel");
        let points = &chart.panels[0].lines[0].points;
        assert_eq!(points, &[(1.0, Some(50.0)), (2.0, None), (3.0, Some(60.0))]);
    }
}

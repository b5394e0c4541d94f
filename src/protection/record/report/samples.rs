//! The readings of an incident: as CSV for `memwarden replay` and `plot`, and as a chart.

use crate::model::label::Label;
use crate::model::units::Unit as _;
use crate::plot::Chart;
use crate::plot::report::{Clock, Mark, Report, Series};
use crate::protection::words::incident::{Incident, Sample};

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

/// The chart of memory use, with the transitions marked.
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
        text: step.to.clone(),
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
    use crate::recording;

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
    fn what_is_missing_is_a_gap_in_the_chart() {
        let chart = chart(&Incident { began_unix_seconds: 2.0, ..Incident::default() }, &samples());
        assert_eq!(chart.panels.len(), 1, "the same limit is the same panel");
        let points = &chart.panels[0].lines[0].points;
        assert_eq!(points, &[(1.0, Some(50.0)), (2.0, None), (3.0, Some(60.0))]);
    }
}

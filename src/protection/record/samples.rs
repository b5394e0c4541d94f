//! The readings of an incident as CSV, for `memwarden replay` and `plot`.

use crate::model::label::Label;
use crate::model::units::Bytes;
use crate::protection::types::incident::{Sample, is_of_target};

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
/// left out, unless the target is unknown. `known` is whether it is.
pub(super) fn of_incident(target: &str, known: bool, samples: &[Sample]) -> Vec<Sample> {
    let own = |sample: &Sample| is_of_target(sample.subject.as_str(), target);
    let included = |sample: &&Sample| !known || own(sample) || sample.subject.as_str() == "host";
    let mut samples: Vec<Sample> = samples.iter().filter(included).cloned().collect();
    samples.sort_by_key(|sample| !own(sample));
    samples
}

/// The rows of each subject: its name, and `t_s,bytes,limit` with seconds since 1970, without a header.
pub(super) fn csv(samples: &[Sample]) -> impl Iterator<Item = (&Label, Vec<u8>)> {
    subjects(samples).into_iter().map(|subject| {
        let mut table = csv::Writer::from_writer(Vec::new());
        for sample in samples.iter().filter(|sample| sample.subject == *subject) {
            let shown =
                |bytes: Option<Bytes>| bytes.map_or_else(String::new, |bytes| bytes.get().to_string());
            let at = format!("{:.3}", sample.at.unix().as_secs_f64());
            // Writing to memory cannot fail.
            let _ = table.write_record([at, shown(sample.used), shown(sample.limit)]);
        }
        (subject, table.into_inner().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Timestamp;
    use crate::protection::types::incident::{SAMPLES_HEADER, samples_file};

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
    fn each_subject_has_a_file() {
        let samples = samples();
        let files: Vec<_> = csv(&samples).collect();
        let names: Vec<String> = files.iter().map(|(subject, _)| samples_file(subject.as_str())).collect();
        assert_eq!(names, ["memory-host.csv", "memory-a-b.csv"]);
        let text = [SAMPLES_HEADER.as_bytes(), &files[0].1].concat();
        let expected = "t_s,bytes,limit\n1.000,50,100\n2.000,,100\n3.000,60,100\n";
        assert_eq!(std::str::from_utf8(&text), Ok(expected));
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
        let of = |target: &str, known| {
            let samples =
                of_incident(target, known, &all).into_iter().map(|sample| sample.subject.to_string());
            samples.collect::<Vec<_>>()
        };
        assert_eq!(of("train", true), ["train GPU", "train", "host"]);
        assert_eq!(of("gone", false).len(), 4, "its target is unknown");
    }
}

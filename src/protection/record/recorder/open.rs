//! An incident in progress, and what is to be appended to its files.

use std::collections::BTreeMap;

use crate::model::lock::lock;
use crate::model::time::Timestamp;
use crate::protection::record::SharedFlight;
use crate::protection::record::samples::{csv, of_incident};
use crate::protection::types::incident::{Incident, SAMPLES_HEADER, is_of_target, samples_file};
use crate::protection::types::incidents::LINES;

/// Maximum size of the lines of one incident in bytes.
const MOST_LINES: usize = 4 << 20;
/// Bytes of samples from which the last minutes are written at the end instead of all.
const SAMPLES: usize = 4 << 20;

/// Files, by name.
type Files = Vec<(String, Vec<u8>)>;

/// An incident in progress.
pub(super) struct Open {
    pub(super) incident: Incident,
    /// What is to be appended to its files.
    pub(super) pending: BTreeMap<String, Vec<u8>>,
    /// Whether its record was written at its beginning.
    pub(super) has_record: bool,
    /// The bytes of its lines so far.
    pub(super) lines: usize,
    /// The number of samples that were looked at, and the bytes of those that are its own.
    pub(super) samples: (u64, usize),
    /// Whether it has changed since it was last written.
    pub(super) news: bool,
    /// Whether it is over and its last lines are missing.
    pub(super) late: bool,
    /// Since when its record is complete but for the answers of other nodes.
    pub(super) closed: Option<Timestamp>,
}

impl Open {
    /// Adds the new samples to what is to be appended. At the end of an incident with more than are kept, returns the files with
    /// the last minutes instead.
    pub(super) fn add_samples(&mut self, flight: &SharedFlight, ended: bool) -> Files {
        let (known, bytes) = self.samples;
        let has_too_many = bytes > SAMPLES;
        if has_too_many && !ended {
            return Vec::new();
        }
        let (all, count) = lock(flight).since(if has_too_many { 0 } else { known });
        let is_own = |subject: &str| is_of_target(subject, &self.incident.target);
        let is_known = self.incident.subjects.iter().any(|subject| is_own(subject))
            || all.iter().any(|sample| is_own(sample.subject.as_str()));
        let samples = of_incident(&self.incident.target, is_known, &all);
        let mut replaced = Vec::new();
        for (subject, rows) in csv(&samples) {
            let (name, subjects) = (samples_file(subject.as_str()), &mut self.incident.subjects);
            let is_new = subjects.iter().all(|own| own != subject.as_str());
            if is_new {
                subjects.push(subject.to_string());
            }
            self.samples.1 += rows.len();
            let header = if is_new || has_too_many { SAMPLES_HEADER } else { "" };
            let rows = [header.as_bytes(), &rows].concat();
            if has_too_many {
                replaced.push((name, rows));
            } else {
                self.pending.entry(name).or_default().extend(rows);
            }
        }
        self.samples.0 = count;
        replaced
    }

    /// Takes its own lines of the audit log.
    pub(super) fn take(&mut self, lines: &[u8]) {
        let marker = format!("\"incident\":\"{}\"", self.incident.id);
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let ours = line.windows(marker.len()).any(|part| part == marker.as_bytes());
            if ours && self.lines + line.len() <= MOST_LINES {
                self.lines += line.len();
                self.pending.entry(LINES.to_owned()).or_default().extend_from_slice(line);
                self.incident.read(line);
                self.news = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::Bytes;
    use crate::protection::types::incident::Sample;

    #[test]
    fn the_last_minutes_take_the_place_of_more_samples_than_are_kept() {
        let flight = SharedFlight::default();
        let push = |second| {
            let (at, subject) = (Timestamp::from_secs(second), "host".into());
            lock(&flight).push(Sample { at, subject, used: Some(Bytes::new(second)), limit: None });
        };
        let mut open = Open {
            incident: Incident::default(),
            pending: BTreeMap::new(),
            has_record: false,
            lines: 0,
            samples: (0, 0),
            news: true,
            late: false,
            closed: None,
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        for second in [1, 2] {
            push(second);
            assert!(open.add_samples(&flight, false).is_empty());
        }
        let all = "t_s,bytes,limit\n1.000,1,\n2.000,2,\n";
        assert_eq!(text(&open.pending["memory-host.csv"]), all);
        open.samples.1 = SAMPLES + 1;
        push(3);
        assert!(open.add_samples(&flight, false).is_empty());
        assert_eq!(text(&open.pending["memory-host.csv"]), all, "nothing more");
        let replaced = open.add_samples(&flight, true);
        assert_eq!(text(&replaced[0].1), format!("{all}3.000,3,\n"));
    }
}

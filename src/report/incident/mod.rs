//! The record of an incident for people: a report in Markdown and a chart, rendered when they are asked for.

mod chart;
mod text;

use std::io;
use std::path::Path;

pub use self::text::report;
use crate::model::printable;
use crate::plot::{self, Chart, Theme, svg};
use crate::protection::types::incident::{Incident, samples_file};
use crate::protection::types::incidents::{self, IncidentError, Incidents, RECORD};

/// The files that are rendered: the report and the chart.
pub const REPORT: &str = "report.md";
pub const CHART: &str = "memory.svg";

/// Incidents with the files that no disk has. The record of an incident in progress has what is known so far.
#[derive(Debug)]
pub struct Rendered<I>(pub I);

impl<I: Incidents> Rendered<I> {
    fn known(&self, id: &str) -> Result<Incident, IncidentError> {
        let record = self.0.file(id, RECORD)?;
        incidents::completed(&self.0, id, &record).ok_or_else(|| IncidentError::Io {
            what: "read the record in",
            path: self.0.folder().join(id),
            source: io::Error::from(io::ErrorKind::InvalidData),
        })
    }

    /// The chart of an incident.
    ///
    /// # Errors
    /// Where its record cannot be read.
    pub fn chart(&self, id: &str) -> Result<Chart, IncidentError> {
        let incident = self.known(id)?;
        let samples = |subject: &String| self.0.file(id, &samples_file(subject)).unwrap_or_default();
        let tables: Vec<_> =
            incident.subjects.iter().map(|subject| (subject.as_str(), samples(subject))).collect();
        Ok(chart::chart(&incident, &tables))
    }
}

impl<I: Incidents> Incidents for Rendered<I> {
    fn folder(&self) -> &Path {
        self.0.folder()
    }

    fn names(&self) -> Result<Vec<(String, u64)>, IncidentError> {
        self.0.names()
    }

    fn file(&self, id: &str, name: &str) -> Result<Vec<u8>, IncidentError> {
        match name {
            RECORD => match self.known(id) {
                Ok(incident) => Ok(incident.json()),
                // A damaged one is shown as it is.
                Err(_) => self.0.file(id, RECORD),
            },
            REPORT => Ok(report(&self.known(id)?).into_bytes()),
            CHART => {
                let picture = plot::draw(&self.chart(id)?, 1200, 600, &Theme::LIGHT);
                Ok(svg::render(&picture, printable::is_hidden).into_bytes())
            }
            _ => self.0.file(id, name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Timestamp;
    use crate::protection::types::audit::{Entry, Occasion};
    use crate::protection::types::incidents::LINES;
    use crate::protection::types::reason::Reason;
    use crate::protection::types::rung::State;

    #[derive(Debug)]
    struct Stored(Vec<(&'static str, Vec<u8>)>);

    impl Incidents for Stored {
        fn folder(&self) -> &Path {
            Path::new("/incidents")
        }

        fn names(&self) -> Result<Vec<(String, u64)>, IncidentError> {
            Ok(vec![("i".to_owned(), 1)])
        }

        fn file(&self, _id: &str, name: &str) -> Result<Vec<u8>, IncidentError> {
            let known = self.0.iter().find(|(own, _)| *own == name).map(|(_, bytes)| bytes.clone());
            known.ok_or_else(|| IncidentError::Name(name.to_owned()))
        }
    }

    #[test]
    fn an_incident_in_progress_is_rendered_from_its_lines() {
        let record = Incident {
            id: "i".to_owned(),
            subjects: vec!["host".to_owned()],
            began_unix_seconds: 1.0,
            ..Incident::default()
        };
        let entry = Entry::Transition {
            from: State::Warn,
            to: State::Soft,
            reason: Reason::Leak,
            why: "".into(),
            readings: Vec::new().into(),
        };
        let [incident, target, mode, config] = ["i", "job", "enforce", "ab"].map(Into::into);
        let mut line = Vec::new();
        entry.write(Timestamp::from_secs(2), Occasion { incident, target, mode, config }, &mut line);
        let table = b"t_s,bytes,limit\n1.0,5,10\n2.0,6,10\n".to_vec();
        let files = vec![(RECORD, record.json()), (LINES, line), ("memory-host.csv", table)];
        let rendered = Rendered(Stored(files));
        let file = |name| String::from_utf8(rendered.file("i", name).unwrap()).unwrap();
        let listed = incidents::entries(&rendered).unwrap().remove(0);
        assert_eq!(listed.summary.unwrap(), "Memory of job ran low; no signal is recorded.");
        assert!(file(RECORD).contains("\"to\": \"soft\"") && file(REPORT).contains("a leak is confirmed"));
        assert!(file(CHART).starts_with("<svg") && file(CHART).contains("soft"), "{}", file(CHART));
        let damaged = Rendered(Stored(vec![(RECORD, b"{".to_vec())]));
        assert!(damaged.file("i", REPORT).is_err());
        assert_eq!(damaged.file("i", RECORD).unwrap(), b"{");
    }
}

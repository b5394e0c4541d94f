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

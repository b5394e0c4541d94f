//! The files of an incident for people: a report in Markdown, a chart, and the readings as CSV.

mod samples;
mod text;

pub use samples::{chart, csv, of_incident};
pub use text::report;

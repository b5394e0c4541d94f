//! An incident for people: a report to paste into a ticket, a chart, and the readings as CSV.

mod samples;
mod text;

pub use samples::{chart, csv};
pub use text::{line, report};

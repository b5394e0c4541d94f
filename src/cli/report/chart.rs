//! Writes the chart of a report to a file.

use std::path::Path;

use crate::cli::picture::Format;
use crate::plot::report::Report;
use crate::plot::{self, Picture, Theme};
use crate::report::ReportOutput;

/// The size of a chart, and the height that each panel adds, in pixels.
const WIDTH: u32 = 1200;
const HEIGHT: u32 = 600;
const PANEL: u32 = 260;

/// Writes the chart.
pub(in crate::cli) fn write(report: &ReportOutput, path: &Path) -> anyhow::Result<()> {
    Format::of(path)?.write(&draw(&report.plot), path)
}

fn draw(report: &Report) -> Picture {
    let chart = report.chart();
    let panels = u32::try_from(chart.panels.len()).unwrap_or(u32::MAX);
    let height = panels.saturating_mul(PANEL).clamp(HEIGHT, 4000);
    plot::draw(&chart, WIDTH, height, &Theme::LIGHT)
}

//! Writes the chart of a report to a file.

use std::path::Path;

use crate::cli::picture::Format;
use crate::plot::{self, Chart, Picture, Theme};
use crate::recording::chart::together;
use crate::report::ReportOutput;

/// The size of a chart, and the height that each panel adds, in pixels.
const WIDTH: u32 = 1200;
const HEIGHT: u32 = 600;
const PANEL: u32 = 260;

pub(in crate::cli) fn write(report: &ReportOutput, path: &Path) -> anyhow::Result<()> {
    write_chart(&report.plot.chart(), path)
}

pub(in crate::cli) fn write_chart(chart: &Chart, path: &Path) -> anyhow::Result<()> {
    Format::of(path)?.write(&draw(chart), path)
}

/// Writes one chart with the panels of all reports.
pub(super) fn write_all(reports: &[ReportOutput], path: &Path) -> anyhow::Result<()> {
    let charts = reports.iter().map(|report| report.plot.chart()).collect();
    write_chart(&together(charts), path)
}

fn draw(chart: &Chart) -> Picture {
    let panels = u32::try_from(chart.panels.len()).unwrap_or(u32::MAX);
    let height = panels.saturating_mul(PANEL).clamp(HEIGHT, 4000);
    plot::draw(chart, WIDTH, height, &Theme::LIGHT)
}
